"""The compiled loops behind the one door, `mplab.round_to`.

`_round_bits` is the only definition of rounding in the library. It works on the bits of
a float32 or float64 and returns the bits of the result and what happened on the way. A
loop around it is compiled per rounding mode and dtype, never per format: the facts of
the format arrive in an array. Keep every callee in this file: numba's cache on disk
notices edits to the file of the loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

from mplab.formats import Event, Format, Overflow, Rounding, Tininess
from mplab.threads import parallel

# Bits of a flag byte: the four events that rounding can raise, and four classes.
INEXACT, UNDERFLOW = int(Event.INEXACT), int(Event.UNDERFLOW)
OVERFLOW, INVALID = int(Event.OVERFLOW), int(Event.INVALID)
FLUSHED, SUBNORMAL, NAN, INFINITE = 16, 32, 64, 128
EVENTS = INEXACT | UNDERFLOW | OVERFLOW | INVALID

BLOCK = 4096
"""Elements rounded before they are counted: counting inside the rounding loop stops SIMD."""

_TIES_TO_EVEN, _TIES_TO_AWAY = int(Rounding.TIES_TO_EVEN), int(Rounding.TIES_TO_AWAY)
_TOWARD_ZERO, _STOCHASTIC = int(Rounding.TOWARD_ZERO), int(Rounding.STOCHASTIC)
_TOWARD_POSITIVE, _TOWARD_NEGATIVE = int(Rounding.TOWARD_POSITIVE), int(Rounding.TOWARD_NEGATIVE)


# Typed helpers: numba widens int32 arithmetic to int64, which halves the SIMD width.


def _as(like, value):
    """`value` in the integer type of `like`."""
    raise NotImplementedError


@overload(_as)
def _as_typed(like, value):
    if like.bitwidth == 32:
        return lambda like, value: np.int32(value)
    return lambda like, value: np.int64(value)


def _as_float(bits):
    """The float with these bits."""
    raise NotImplementedError


@overload(_as_float)
def _as_float_typed(bits):
    if bits.bitwidth == 32:
        return lambda bits: np.int32(bits).view(np.float32)
    return lambda bits: np.int64(bits).view(np.float64)


def _as_bits(number):
    """The bits of a float."""
    raise NotImplementedError


@overload(_as_bits)
def _as_bits_typed(number):
    if isinstance(number, types.Float) and number.bitwidth == 32:
        return lambda number: np.float32(number).view(np.int32)
    return lambda number: np.float64(number).view(np.int64)


def _align(like, random, shift):
    """32 random bits as an addend for the `shift` discarded bits, the top ones first."""
    raise NotImplementedError


@overload(_align)
def _align_typed(like, random, shift):
    if like.bitwidth == 32:  # >> 1 first: a shift by 32 is undefined
        return lambda like, random, shift: np.int32(
            np.uint32(np.uint32(random) >> np.uint32(1)) >> np.uint32(31 - shift)
        )
    return lambda like, random, shift: (
        np.int64(random) << (shift - 32) if shift > 32 else np.int64(random) >> (32 - shift)
    )


# The definition ------------------------------------------------------------------------


@njit(forceinline=True)
def _round_in_place(a, shift, mode, away, odd, random):
    """Magnitude bits `a` without their lowest `shift` bits; a carry reaches the exponent."""
    low = _as(a, (_as(a, 1) << shift) - 1)
    if mode == _TIES_TO_EVEN:
        addend = _as(a, ((low >> 1) + (((a >> shift) | odd) & 1)) & low)
    elif mode == _TIES_TO_AWAY:
        addend = _as(a, _as(a, low + 1) >> 1)
    elif mode == _TOWARD_ZERO:
        addend = _as(a, 0)
    elif mode == _STOCHASTIC:
        addend = _align(a, random, shift)
    else:
        addend = low if away else _as(a, 0)
    return _as(a, _as(a, a + addend) & ~low)


@njit(forceinline=True)
def _round_to_grid(a, anchor, quantum, per_quantum, mode, away, random):
    """Magnitude bits `a` to a multiple of `quantum`, by adding and subtracting an anchor.

    `quantum` is normal, and comparisons are on bits, so that this also holds in a thread
    that treats subnormal operands as zero.
    """
    x = _as_float(a)
    near = (x + anchor) - anchor
    if mode == _TIES_TO_EVEN:
        return _as_bits(near)
    down = near - quantum if _as_bits(near) > a else near
    if mode == _TOWARD_ZERO:
        return _as_bits(down)
    if mode == _TIES_TO_AWAY:
        up = (x - down) + (x - down) >= quantum
    elif mode == _STOCHASTIC:
        # in float64, whose 53 bits hold the threshold
        up = np.float64((x - down) * per_quantum) * 4294967296.0 >= 4294967296.0 - random
    else:
        up = away and _as_bits(down) != a
    return _as_bits(down + quantum) if up else _as_bits(down)


@njit(forceinline=True)
def _round_bits(bits, mode, rare, random, facts):
    """Round one number, given by its bits: the bits of the result, and its flags.

    `facts` is what `facts_of` returns. The sign is handled apart; all else is done on
    the magnitude, whose bits order as the numbers do.
    """
    (shift, tiny_shift, odd, grid_below, anchor, quantum, per_quantum, min_normal, max_finite,
     beyond, flush_in, floor, floor_value, infinity, nan, quiet, sign_bit, no_sign, no_minus_zero,
     ) = facts  # fmt: skip
    original = _as(bits, bits & ~sign_bit)
    sign = _as(bits, bits & sign_bit)
    away = (sign == 0) == (mode == _TOWARD_POSITIVE)
    a = original
    if rare and a < flush_in:
        a = _as(bits, 0)
    r = _round_in_place(a, shift, mode, away, odd, random)
    grid = _round_to_grid(a, anchor, quantum, per_quantum, mode, away, random)
    r = grid if a < grid_below else r
    past = r > max_finite
    limit = beyond
    if _TOWARD_ZERO <= mode <= _TOWARD_NEGATIVE:
        inward = mode == _TOWARD_ZERO or not away
        limit = max_finite if inward and original != infinity else beyond
    r = limit if past else r
    is_nan = original > infinity
    if rare:
        is_nan = is_nan or (sign & no_sign != 0 and a > 0)
        r = floor_value if r < floor else r
        sign = _as(bits, sign & ~(no_minus_zero if r == 0 else no_sign))
    result = nan if is_nan or r > infinity else _as(bits, r | sign)

    unbounded = _round_in_place(a, tiny_shift, mode, away, odd, random)
    number = not is_nan
    inexact = original <= infinity and (is_nan or r != original)
    finite = number and original < infinity
    signaling = original > infinity and original & quiet == 0
    flags = INEXACT if inexact else 0
    flags |= UNDERFLOW if number and inexact and unbounded < min_normal else 0
    flags |= OVERFLOW if past and finite else 0
    refused = (is_nan and original <= infinity) or (original == infinity and r > infinity)
    flags |= INVALID if signaling or refused else 0
    flags |= FLUSHED if number and r == 0 and original != 0 else 0
    flags |= SUBNORMAL if number and r > 0 and r < min_normal else 0
    flags |= NAN if original > infinity else 0
    flags |= INFINITE if original == infinity else 0
    return result, flags


@njit(forceinline=True)
def _random_bits(index, key0, key1):
    """32 bits from a counter: a keyed two-multiply mixer, written so that it vectorises."""
    h = np.uint32(index) ^ np.uint32(key0)
    h ^= h >> np.uint32(16)
    h = np.uint32(h * np.uint32(0x21F0AAAD))
    h ^= (h >> np.uint32(15)) ^ np.uint32(key1)
    h = np.uint32(h * np.uint32(0xD35A2D97))
    return np.uint32(h ^ (h >> np.uint32(15)))


@njit(forceinline=True)
def _unpack(facts):
    """The array that `facts_of` returns as local variables, which SIMD needs."""
    return (
        facts[0], facts[1], facts[2], facts[3], _as_float(facts[4]), _as_float(facts[5]),
        _as_float(facts[6]), facts[7], facts[8], facts[9], facts[10], facts[11], facts[12],
        facts[13], facts[14], facts[15], facts[16], facts[17], facts[18],
    )  # fmt: skip


class Facts(NamedTuple):
    """What the loops need to know of a format and of the rules, for one input dtype."""

    numbers: np.ndarray
    """Integers of the width of the input, shape (19,), in the order `_round_bits` unpacks."""
    rare: bool
    """Whether anything is asked for that IEEE formats without flushing do not need."""


def facts_of(
    fmt: Format,
    dtype: np.dtype[Any],
    overflow: Overflow = Overflow.IEEE,
    flush_inputs: bool = False,
    flush_outputs: bool = False,
    tininess: Tininess = Tininess.AFTER,
) -> Facts | None:
    """The facts of `fmt` for float32 or float64 input.

    Returns:
        None if float32 cannot serve: some value of `fmt` is not a float32, or its least
        value is a subnormal float32 off the float32 grid.
    """
    info = np.finfo(dtype)
    integer = np.dtype(f"i{dtype.itemsize}")
    width, source_emin = info.nmant + 1, int(info.minexp)
    shift, lowest = width - fmt.precision, fmt.emin - fmt.precision + 1
    gridded = fmt.emin > source_emin
    fits = shift >= 0 and fmt.emin >= source_emin and fmt.max_finite <= float(info.max)
    if not fits or (gridded and lowest < source_emin):
        return None

    def bits(x: float) -> int:
        return int(np.array(x, dtype).view(integer))

    saturate = overflow is Overflow.SATURATE or not fmt.has_nan
    beyond = fmt.max_finite if saturate else np.inf if fmt.has_infinity else np.nan
    # Below 2^emin an unbounded exponent would halve the grid; the source shares the
    # grid of a format with its own emin, so there the shift itself must shrink.
    tiny_shift = shift if gridded else max(shift - 1, 0)
    sign_bit = int(np.iinfo(integer).min)
    facts = [
        shift,
        0 if tininess is Tininess.BEFORE else tiny_shift,
        fmt.precision == 1,
        bits(fmt.min_normal) if gridded else 0,
        bits(2.0 ** (fmt.emin + shift)) if gridded else 0,
        bits(2.0**lowest),
        bits(2.0**-lowest) if gridded else 0,
        bits(fmt.min_normal),
        bits(fmt.max_finite),
        bits(beyond),
        bits(fmt.min_normal) if flush_inputs else 0,
        bits(fmt.min_normal) if flush_outputs or not fmt.has_zero else 0,
        0 if fmt.has_zero else bits(fmt.min_normal),
        bits(np.inf),
        bits(np.nan),
        1 << (info.nmant - 1),
        sign_bit,
        0 if fmt.signed else sign_bit,
        0 if fmt.has_negative_zero else sign_bit,
    ]
    rare = flush_inputs or flush_outputs or not fmt.has_negative_zero
    return Facts(np.array(facts, integer), rare)


# The loops -----------------------------------------------------------------------------


@njit(forceinline=True)
def _apart(x, r, scratch):
    """`x`, or a copy of it if `r` is the same memory: LLVM then sees that SIMD is safe."""
    if x.ctypes.data != r.ctypes.data:
        return x
    copy = scratch[: x.size]
    for i in range(x.size):
        copy[i] = x[i]
    return copy


def _loop(mode: int, rare: bool) -> Callable[..., None]:
    """A loop that rounds `bits` into `out`."""

    def round_all(bits, out, facts, start, key0, key1):
        known = _unpack(facts)
        scratch = np.empty(BLOCK, bits.dtype)
        for block in range(0, bits.size, BLOCK):
            r = out[block : block + BLOCK]
            x = _apart(bits[block : block + BLOCK], r, scratch)
            for i in range(x.size):
                random = np.uint32(0)
                if mode == _STOCHASTIC:
                    random = _random_bits(start + block + i, key0, key1)
                r[i] = _round_bits(x[i], mode, rare, random, known)[0]

    return _compiled(round_all)


@njit
def _count(flags, counts):
    """Add to `counts[b]` how many bytes of `flags` have bit b set, eight bytes at a time."""
    words = flags[: flags.size // 8 * 8].view(np.uint64)
    for begin in range(0, words.size, 128):  # a byte of `lanes` counts up to 255
        for bit in range(8):
            lanes = np.uint64(0)
            for word in words[begin : begin + 128]:
                lanes += (word >> np.uint64(bit)) & np.uint64(0x0101010101010101)
            for byte in range(8):
                counts[bit] += np.int64((lanes >> np.uint64(8 * byte)) & np.uint64(255))
    for flag in flags[words.size * 8 :]:
        for bit in range(8):
            counts[bit] += (flag >> bit) & 1


def _flagging_loop(mode: int, rare: bool) -> Callable[..., None]:
    """A loop that also writes flag bytes into `flags`, and counts them into `counts`.

    `out` and `flags` may hold just one block, which is then written again and again.
    """

    def round_and_flag(bits, out, flags, counts, facts, start, key0, key1):
        size = bits.size
        known = _unpack(facts)
        scratch = np.empty(BLOCK, bits.dtype)
        for block in range(0, size, BLOCK):
            length = min(BLOCK, size - block)
            r = out[block : block + length] if out.size == size else out[:length]
            f = flags[block : block + length] if flags.size == size else flags[:length]
            x = _apart(bits[block : block + length], r, scratch)
            for i in range(length):
                random = (
                    _random_bits(start + block + i, key0, key1)
                    if mode == _STOCHASTIC
                    else np.uint32(0)
                )
                result, flag = _round_bits(x[i], mode, rare, random, known)
                r[i] = result
                f[i] = flag
            _count(f, counts)

    return _compiled(round_and_flag)


class _compiled:
    """A function compiled by numba, cached on disk where possible, else in memory only.

    numba raises when no folder is writable, either at decoration or, if an unwritable
    folder already holds the cache, when it saves.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        try:
            self._call = njit(nogil=True, cache=True)(function)
        except RuntimeError:
            self._call = njit(nogil=True)(function)

    def __call__(self, *arguments: Any) -> None:
        try:
            self._call(*arguments)
        except OSError:
            self._call = njit(nogil=True)(self._function)
            self._call(*arguments)


@cache
def _loop_for(mode: int, rare: bool, flagging: bool) -> Callable[..., None]:
    return (_flagging_loop if flagging else _loop)(mode, rare)


def run(
    bits: np.ndarray,
    out: np.ndarray | None,
    facts: Facts,
    mode: Rounding,
    *,
    keys: Callable[[int], tuple[int, int]] | None = None,
    flags: np.ndarray | None = None,
    counts: np.ndarray | None = None,
) -> None:
    """Round contiguous `bits` into `out`, on several threads if they are many.

    Args:
        bits: int32 or int64, shape (n,): the bits of the floats.
        out: same dtype and shape, may be `bits` itself; None discards the result.
        facts: from `facts_of`.
        mode: how to round.
        keys: for `STOCHASTIC`: the two 32-bit keys of each run of 2^32 elements.
        flags: uint8, shape (n,), to receive the flag bytes.
        counts: int64, shape (8,), to which the number of set flags is added, per bit.
    """
    if flags is None and counts is None and out is not None:
        loop = _loop_for(int(mode), facts.rare, False)

        def work(begin: int, end: int) -> None:
            key0, key1 = keys(begin >> 32) if keys else (0, 0)
            loop(bits[begin:end], out[begin:end], facts.numbers, begin, key0, key1)

        parallel(work, bits.size, wrap=1 << 32)
        return
    loop = _loop_for(int(mode), facts.rare, True)
    partial: list[np.ndarray] = []

    def flag(begin: int, end: int) -> None:
        key0, key1 = keys(begin >> 32) if keys else (0, 0)
        target = out[begin:end] if out is not None else np.empty(BLOCK, bits.dtype)
        bytes_ = flags[begin:end] if flags is not None else np.empty(BLOCK, np.uint8)
        count = np.zeros(8, np.int64)
        loop(bits[begin:end], target, bytes_, count, facts.numbers, begin, key0, key1)
        partial.append(count)

    parallel(flag, bits.size, wrap=1 << 32)
    if counts is not None and partial:
        counts += np.sum(partial, axis=0)
