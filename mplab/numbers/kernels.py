"""The compiled loops of `mplab.round_to`.

`_round_bits` defines rounding for NumPy arrays and CPU tensors. It takes the bits of a float32 or
float64 and returns the bits of the result and its flags. Two more definitions serve other
machines: `mplab.numbers.tensors._round_bits` for tensors on devices, which
tests/numbers/test_tensors.py holds equal, and the pages' numbers.js, which
tests/explorers/test_page_numbers.py holds equal. Loops around it are compiled per rounding
mode and dtype, never per format: the parameters of the format arrive in an array. Keep every
callee in this file, because numba's cache on disk notices edits to the file of the loop only.
"""

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic, overload

from mplab.numbers.compiled import callback, compiled, make_ufunc
from mplab.numbers.formats import Event, Rounding
from mplab.numbers.options import Keys
from mplab.numbers.parameters import Known, RoundingParameters, address_of
from mplab.numbers.threads import DIVISIBLE, parallel

# Bits of a flag byte: the four events that rounding can raise, and four classes of numbers.
INEXACT, UNDERFLOW, OVERFLOW, INVALID = map(
    int, (Event.INEXACT, Event.UNDERFLOW, Event.OVERFLOW, Event.INVALID)
)

FLUSHED, SUBNORMAL, NAN, INFINITE = 16, 32, 64, 128

BLOCK = 2048
"""Number of elements in a block of `_in_blocks`: few enough for 32-bit counters."""

# Kinds of blocks: any; none past max_finite; nor any tiny but 0.
ANY, FINITE, NORMAL = range(3)

_TIES_TO_EVEN, _TIES_TO_AWAY, _STOCHASTIC, _TO_ODD = map(
    int,
    (
        Rounding.TIES_TO_EVEN,
        Rounding.TIES_TO_AWAY,
        Rounding.STOCHASTIC,
        Rounding.TO_ODD,
    ),
)

_TOWARD_ZERO, _TOWARD_POSITIVE, _TOWARD_NEGATIVE = map(
    int, (Rounding.TOWARD_ZERO, Rounding.TOWARD_POSITIVE, Rounding.TOWARD_NEGATIVE)
)


_COUNT = len(Known._fields)
_LAYOUT = zlib.crc32(" ".join(Known._fields).encode())
"""Part of the names of loops, because numba's cache does not notice an edit where `Known` is."""


# Typed helpers, because numba widens int32 arithmetic to int64, which halves the SIMD width.
def _as(like, value):
    """Convert `value` to the integer type of `like`."""


@overload(_as)
def _as_typed(like, value):
    if like.bitwidth == 32:
        return lambda like, value: np.int32(value)
    return lambda like, value: np.int64(value)


def _as_float(bits):
    """Reinterpret bits as a float."""


@overload(_as_float)
def _as_float_typed(bits):
    if bits.bitwidth == 32:
        return lambda bits: np.int32(bits).view(np.float32)
    return lambda bits: np.int64(bits).view(np.float64)


def _as_bits(number):
    """Reinterpret a float as bits."""


@overload(_as_bits)
def _as_bits_typed(number):
    if isinstance(number, types.Float) and number.bitwidth == 32:
        return lambda number: np.float32(number).view(np.int32)
    return lambda number: np.float64(number).view(np.int64)


def _mask(like, condition):
    """Return all bits set if the condition holds, else none."""


@overload(_mask)
def _mask_typed(like, condition):
    if like.bitwidth == 32:
        return lambda like, condition: np.int32(-1) if condition else np.int32(0)
    return lambda like, condition: np.int64(-1) if condition else np.int64(0)


@intrinsic
def _shift_right(typing, x, by):
    """Shift uint32 `x` right by `by`, in 32 bits."""

    def emit(context, builder, signature, numbers):
        return builder.lshr(*numbers)

    return types.uint32(types.uint32, types.uint32), emit


def _align(like, random, shift):
    """Align 32 random bits with the top of the `shift` discarded bits, to be added to them."""


@overload(_align)
def _align_typed(like, random, shift):
    if like.bitwidth == 32:  # >> 1 first: a shift by 32 is undefined
        return lambda like, random, shift: np.int32(
            _shift_right(  # type: ignore[call-arg]
                _shift_right(np.uint32(random), np.uint32(1)),  # type: ignore[call-arg]
                np.uint32(31 - shift),
            )
        )
    return lambda like, random, shift: (
        np.int64(random) << (shift - 32)
        if shift > 32
        else np.int64(random) >> (32 - shift)
    )


@njit(forceinline=True)
def _carries(fraction, random):
    """Tell whether `fraction` in [0, 1), cut to 32 bits, carries when `random` is added."""
    return np.float64(fraction) * 4294967296.0 >= 4294967296.0 - random


# The definition ------------------------------------------------------------------------
@njit(forceinline=True)
def _round_in_place(a, shift, mode, away, all_odd, odd_codes, random):
    """Round off the lowest `shift` bits of magnitude `a`; a carry goes into the exponent."""
    last = _as(a, _as(a, 1) << shift)
    low = _as(a, last - 1)
    odds = _as(a, last | _as(a, -all_odd << shift))
    parity = _as(a, a ^ _as(a, odd_codes << shift))
    if mode == _TIES_TO_EVEN:
        # `-(low & 1)`: where nothing is cut, no tie goes up. One addend plus a condition, because a
        # choice between two addends becomes a branch in scalar code.
        up = _as(a, odds & -(low & 1))
        addend = _as(a, _as(a, low >> 1) - _mask(a, parity & up != 0))
    elif mode == _TIES_TO_AWAY:
        addend = _as(a, _as(a, low + 1) >> 1)
    elif mode == _TOWARD_ZERO:
        addend = _as(a, 0)
    elif mode == _STOCHASTIC:
        addend = _align(a, random, shift)
    elif mode == _TO_ODD:
        addend = _as(a, low & _mask(a, parity & odds == 0))
    else:
        addend = low if away else _as(a, 0)
    return _as(a, _as(a, a + addend) & ~low)


@njit(forceinline=True)
def _round_to_grid(a, known, mode, away, random):
    """Round magnitude `a` to a multiple of `quantum`, by adding and subtracting an anchor.

    `quantum` is normal and comparisons are on bits, so this also works in a thread that treats
    subnormal operands as zero.
    """
    x = _as_float(a)
    anchor = _as_float(known.anchor)
    quantum = _as_float(known.quantum)
    near = (x + anchor) - anchor
    if mode == _TIES_TO_EVEN:
        return _as_bits(near)
    down = near - quantum if _as_bits(near) > a else near
    if mode == _TOWARD_ZERO:
        return _as_bits(down)
    if mode == _TIES_TO_AWAY:
        up = (x - down) + (x - down) >= quantum
    elif mode == _STOCHASTIC:
        up = _carries((x - down) * _as_float(known.per_quantum), random)
    elif mode == _TO_ODD:  # the anchor moves the parity of the multiple to the last bit
        up = _as_bits(down + anchor) & 1 == 0 and _as_bits(down) != a
    else:
        up = away and _as_bits(down) != a
    return _as_bits(down + quantum) if up else _as_bits(down)


@njit(forceinline=True)
def _round_bits(bits, mode, special_cases, random, known, kind):
    """Round one number, given by its bits; return the bits of the result and the flags.

    The sign is handled separately; the rest works on the magnitude, because magnitude bits sort
    like the numbers. Where the caller knows the `kind` of the number, the compiler leaves out the
    impossible cases.
    """
    odd_codes = known.odd_codes
    if not special_cases:  # a constant, so the common formats need one step less
        odd_codes = _as(bits, 0)
    original = _as(bits, bits & ~known.sign_bit)
    sign = _as(bits, bits & known.sign_bit)
    away = mode != _TO_ODD and (sign == 0) == (mode == _TOWARD_POSITIVE)
    a = original
    if special_cases and a < known.flush_in:
        a = _as(bits, 0)
    r = _round_in_place(a, known.shift, mode, away, known.all_odd, odd_codes, random)
    if kind == NORMAL:
        return _as(bits, r | sign), _as(bits, _mask(bits, r != a) & INEXACT)
    # keep larger numbers out of floating point, where a signaling NaN would raise a flag
    low = a if a < known.grid_below else _as(bits, known.grid_below)
    grid = _round_to_grid(low, known, mode, away, random)
    r = grid if a < known.grid_below else r
    past = kind == ANY and r > known.max_finite
    limit = known.beyond
    if mode == _TO_ODD:
        limit = known.to_odd_beyond if original != known.infinity else known.beyond
    elif _TOWARD_ZERO <= mode <= _TOWARD_NEGATIVE:
        inward = mode == _TOWARD_ZERO or not away
        limit = (
            known.max_finite if inward and original != known.infinity else known.beyond
        )
    r = limit if past else r
    is_nan = kind == ANY and original > known.infinity
    if special_cases:
        is_nan = is_nan or (sign & known.no_sign != 0 and a > 0)
        r = known.floor_value if r < known.floor else r
        sign = _as(bits, sign & ~(known.no_minus_zero if r == 0 else known.no_sign))
    # `beyond` is the same for the whole loop, so the compiler tests it only once
    to_nan = is_nan or (known.beyond > known.infinity and r > known.infinity)
    result = known.nan if kind == ANY and to_nan else _as(bits, r | sign)

    unbounded = _round_in_place(
        a, known.tiny_shift, mode, away, known.all_odd, odd_codes, random
    )
    was_nan = _mask(bits, kind == ANY and original > known.infinity)
    was_infinite = _mask(bits, kind == ANY and original == known.infinity)
    refused = was_infinite & _mask(bits, r > known.infinity)
    no_number = was_nan
    inexact = _mask(bits, r != original) & ~was_nan
    if special_cases:
        no_number = _mask(bits, is_nan)
        refused |= no_number & ~was_nan
        inexact |= no_number & ~was_nan
    flags = inexact & INEXACT
    flags |= (
        inexact & ~no_number & _mask(bits, unbounded < known.min_normal) & UNDERFLOW
    )
    flags |= _mask(bits, past) & ~(no_number | was_infinite) & OVERFLOW
    flags |= (was_nan & _mask(bits, original & known.quiet == 0) | refused) & INVALID
    flags |= ~no_number & _mask(bits, r == 0) & _mask(bits, original != 0) & FLUSHED
    flags |= (
        ~no_number & _mask(bits, r > 0) & _mask(bits, r < known.min_normal) & SUBNORMAL
    )
    flags |= was_nan & NAN
    flags |= was_infinite & INFINITE
    return result, _as(bits, flags)


@intrinsic
def _mix(typing, counter, key0, key1, dropped):
    """Mix a uint32 counter with two keys by three multiplications, and clear the bits in `dropped`.

    After two multiplications the results of some index pairs are correlated, after three they are
    not. Written in LLVM's instructions, because numba widens uint32 arithmetic to 64 bits.
    """

    def emit(context, builder, signature, numbers):
        def folded(h, by):
            return builder.xor(h, builder.lshr(h, h.type(by)))

        counter, key0, key1, dropped = numbers
        h = folded(builder.xor(counter, key0), 16)
        h = folded(builder.mul(h, h.type(0x21F0AAAD)), 15)
        h = builder.xor(h, key1)
        h = folded(builder.mul(h, h.type(0xD35A2D97)), 15)
        h = folded(builder.mul(h, h.type(0x31848BAB)), 14)
        return builder.and_(h, builder.not_(dropped))

    return types.uint32(*4 * [types.uint32]), emit


@njit(forceinline=True)
def _random_bits(index, key0, key1):
    """Return 32 random bits for an index and the keys of `Stream.keys`."""
    dropped = np.uint32(key0 >> 32)
    return _mix(np.uint32(index), np.uint32(key0), np.uint32(key1), dropped)  # type: ignore[call-arg]


@njit(forceinline=True)
def _unpack(p):
    """Unpack the array of `rounding_parameters` into local variables, which SIMD needs."""
    # By index, because `to_fixed_tuple` costs a short call 35 of its 230 nanoseconds.
    return Known(
        p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10],
        p[11], p[12], p[13], p[14], p[15], p[16], p[17], p[18], p[19], p[20],
    )  # fmt: skip


# The loops -----------------------------------------------------------------------------
def _prefer_512(_context):
    def emit(context, builder, signature, arguments):
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), emit


# On some processors with 512-bit vectors LLVM prefers 256 bits; on others this has no effect. The
# attribute applies to the calling function, which holds the loop after inlining.
_wide_vectors: Any = intrinsic(_prefer_512)


@intrinsic
def _add(typing, x, y):
    """Add uint32 `x` and `y`, in 32 bits."""

    def emit(context, builder, signature, numbers):
        return builder.add(*numbers)

    return types.uint32(types.uint32, types.uint32), emit


@njit(forceinline=True)
def _round_one(bits, i, start, key0, key1, mode, special_cases, known, kind):
    """Round `bits[i]`, element `start + i` of its call."""
    random = np.uint32(0)
    if mode == _STOCHASTIC:
        random = _random_bits(_add(np.uint32(start), np.uint32(i)), key0, key1)  # type: ignore[call-arg]
    return _round_bits(bits[i], mode, special_cases, random, known, kind)


@njit(forceinline=True)
def _without_overlap(x, r, scratch):
    """Return `x`, or a copy of it if `r` is the same memory: LLVM then sees that SIMD is safe."""
    if x.ctypes.data != r.ctypes.data:
        return x
    copy = scratch[: x.size]
    for i in range(x.size):
        copy[i] = x[i]
    return copy


@njit(forceinline=True)
def _kind_of(bits, known):
    """Classify a block: ANY if a number is past max_finite, FINITE if one is tiny, else NORMAL."""
    magnitude = _as(known.sign_bit, ~known.sign_bit)
    largest = _as(magnitude, 0)
    least = magnitude
    for i in range(bits.size):
        a = _as(largest, bits[i] & magnitude)
        largest = a if a > largest else largest
        a = _as(largest, _as(largest, a - 1) & magnitude)  # zero sorts after all others
        least = a if a < least else least
    if largest > known.max_finite:
        return ANY
    return NORMAL if least >= known.min_normal - 1 else FINITE


@njit(forceinline=True)
def _bit(flags, bit):
    return _as(flags, _as(flags, flags >> bit) & 1)


@njit(forceinline=True)
def _round_block(
    bits, out, totals, start, key0, key1, mode, special_cases, known, kind
):
    """Round a block of one kind, and add its flags to `totals` if not None.

    Counters have the width of the bits, so that SIMD covers them.
    """
    # D stays 0: INVALID is not in a tally.
    a = b = c = d = e = f = g = h = _as(bits[0], 0)
    for i in range(out.size):
        out[i], flags = _round_one(
            bits, i, start, key0, key1, mode, special_cases, known, kind
        )
        a = _as(a, a + _bit(flags, 0))
        b = _as(a, b + _bit(flags, 1))
        c = _as(a, c + _bit(flags, 2))
        e = _as(a, e + _bit(flags, 4))
        f = _as(a, f + _bit(flags, 5))
        g = _as(a, g + _bit(flags, 6))
        h = _as(a, h + _bit(flags, 7))
    if totals is not None:
        for bit, count in enumerate((a, b, c, d, e, f, g, h)):
            totals[bit] += count


@njit(forceinline=True)
def _in_blocks(bits, out, totals, known, start, key0, key1, mode, special_cases, looks):
    """Round `bits` into `out`; if `totals` is not None, add the number of flags b to `totals[b]`.

    Unless `looks` is None, each block is classified first. `out` may be `bits`.
    """
    scratch = np.empty(BLOCK, bits.dtype)
    for block in range(0, bits.size, BLOCK):
        x = bits[block : block + BLOCK]
        r = out[block : block + BLOCK]
        x = _without_overlap(x, r, scratch)
        begin = start + block
        kind = ANY
        if looks is not None:
            kind = _kind_of(x, known)
            if kind == NORMAL:
                _round_block(
                    x, r, totals, begin, key0, key1, mode, special_cases, known, NORMAL
                )
            elif kind == FINITE:
                _round_block(
                    x, r, totals, begin, key0, key1, mode, special_cases, known, FINITE
                )
        if kind == ANY:
            _round_block(
                x, r, totals, begin, key0, key1, mode, special_cases, known, ANY
            )


def _looks(mode: int, special_cases: bool) -> Any:
    """Tell whether blocks are classified first: only usual modes are worth the compilation."""
    return True if mode in (_TIES_TO_EVEN, _STOCHASTIC) and not special_cases else None


@njit(forceinline=True)
def _round_all(bits, out, parameters, mode, special_cases):
    """Round `bits` into `out`, without random bits.

    One loop is for the same memory, one for separate memory: in both LLVM sees that SIMD is safe.
    """
    known = _unpack(parameters)
    random = np.uint32(0)
    if bits.ctypes.data == out.ctypes.data:
        for i in range(out.size):
            out[i] = _round_bits(out[i], mode, special_cases, random, known, ANY)[0]
    else:
        for i in range(out.size):
            out[i] = _round_bits(bits[i], mode, special_cases, random, known, ANY)[0]


def _pointer(_context, address, like):
    """Make a pointer from an address, of the pointer type `like` or to the type of `like`."""
    kind = like if isinstance(like, types.CPointer) else types.CPointer(like)

    def convert(context, builder, signature, arguments):
        return builder.inttoptr(
            arguments[0], context.get_value_type(signature.return_type)
        )

    return kind(address, like), convert


_at: Any = intrinsic(_pointer)

_ADDRESSES = types.CPointer(types.intp)
_INT64 = np.int64(0)
_BYTE = np.uint8(0)


@cache
def _inner_loop(mode: int, special_cases: bool, width: int) -> Any:
    """Compile the loop of a NumPy ufunc, for addresses, sizes, strides and `parameters.numbers`."""

    def loop(args, sizes, strides, parameters):
        _wide_vectors()
        size = sizes[0]
        source = args[0]
        target = args[1]
        known = carray(parameters, _COUNT)
        if size == 1 or (strides[0] == width // 8 and strides[1] == width // 8):
            bits = carray(_at(source, parameters), size)
            out = carray(_at(target, parameters), size)
            _round_all(bits, out, known, mode, special_cases)
            return
        for i in range(size):
            bits = carray(_at(source + i * strides[0], parameters), 1)
            out = carray(_at(target + i * strides[1], parameters), 1)
            _round_all(bits, out, known, mode, special_cases)

    integer = types.CPointer(types.int32 if width == 32 else types.int64)
    signature = types.void(_ADDRESSES, _ADDRESSES, _ADDRESSES, integer)
    return callback(signature, loop, _LAYOUT)


def ufunc(parameters: RoundingParameters, mode: Rounding) -> Any:
    """Return a ufunc that rounds floats with these parameters; not stochastically.

    Python calls a ufunc of NumPy five times as fast as a loop compiled by numba. The caller keeps
    `parameters` alive.
    """
    known = parameters.ufuncs.get(mode)
    if known is None:
        integer = parameters.numbers.dtype
        loop = _inner_loop(int(mode), parameters.special_cases, 8 * integer.itemsize)
        kinds = ["ff" if integer.itemsize == 4 else "dd"]
        # setdefault: if two threads make one, the second is dropped with the memory it reads
        known = parameters.ufuncs.setdefault(
            mode, make_ufunc("round_to", loop, kinds, parameters.numbers)
        )
    return known.call


@njit(forceinline=True)
def _flag_all(bits, flags, parameters, start, key0, key1, mode, special_cases):
    """Write the flag bytes of `bits`."""
    known = _unpack(parameters)
    for i in range(flags.size):
        flags[i] = _round_one(
            bits, i, start, key0, key1, mode, special_cases, known, ANY
        )[1]


@cache
def loop_at(
    what: str, mode: int, special_cases: bool, itemsize: int = 4
) -> Callable[..., None]:
    """Compile a loop that takes addresses: an array argument costs numba a microsecond.

    Args:
        what: "round"; "count", which rounds and adds the number of flags to eight counters; or
            "flag", which writes the flag bytes in place of the results.
        mode: the rounding mode.
        special_cases: see `RoundingParameters`.
        itemsize: of the numbers, in bytes.

    Returns:
        A function of eight integers: the addresses of the numbers and of the results, which may
        be the same; how many there are, below 2^32; the address of the parameters;
        the index of the first number in its call; two random keys, or zeros; and the address of
        the counters, int64, or 0. The caller keeps the memory alive.
    """
    looks = _looks(mode, special_cases)
    like = np.int32(0) if itemsize == 4 else np.int64(0)

    def round_at(source, target, size, parameters, start, key0, key1, counts):
        _wide_vectors()
        bits = carray(_at(source, like), size)
        out = carray(_at(target, like), size)
        known = _unpack(carray(_at(parameters, like), _COUNT))
        _in_blocks(
            bits, out, None, known, start, key0, key1, mode, special_cases, looks
        )

    def count_at(source, target, size, parameters, start, key0, key1, counts):
        _wide_vectors()
        bits = carray(_at(source, like), size)
        out = carray(_at(target, like), size)
        known = _unpack(carray(_at(parameters, like), _COUNT))
        totals = carray(_at(counts, _INT64), 8)
        _in_blocks(
            bits, out, totals, known, start, key0, key1, mode, special_cases, looks
        )

    def flag_at(source, target, size, parameters, start, key0, key1, counts):
        _wide_vectors()
        bits = carray(_at(source, like), size)
        flags = carray(_at(target, _BYTE), size)
        known = carray(_at(parameters, like), _COUNT)
        _flag_all(bits, flags, known, start, key0, key1, mode, special_cases)

    loops: Any = {"round": round_at, "count": count_at, "flag": flag_at}
    return compiled((types.int64,) * 8, loops[what], itemsize, _LAYOUT)


def run(
    x: np.ndarray,
    out: np.ndarray,
    parameters: RoundingParameters,
    mode: Rounding,
    *,
    keys: Keys | None = None,
    counts: np.ndarray | None = None,
) -> None:
    """Round a contiguous array into `out`, or write its flags there, in threads if it is large.

    Args:
        x: float32 or float64.
        out: contiguous, as many numbers: of the same dtype, perhaps `x` itself, for the results;
            uint8 for the flag bytes.
        parameters: from `rounding_parameters`.
        mode: how to round.
        keys: for `STOCHASTIC`, from `Stream.keys`.
        counts: int64, shape (8,), to which the number of flags is added, per bit; INVALID,
            which is not in a tally, is not counted.
    """
    what = "count"
    if counts is None:
        what = "flag" if out.itemsize == 1 else "round"
    if what == "round" and keys is None:
        known = ufunc(parameters, mode)
        x, out = x.reshape(-1), out.reshape(-1)  # one of them may have no dimension
        if x.size < DIVISIBLE:  # no slices: they take longer than a small array
            known(x, out)
        else:
            parallel(lambda a, b: known(x[a:b], out[a:b]), x.size, wrap=x.size)
        return
    loop = loop_at(what, int(mode), parameters.special_cases, x.itemsize)
    source = address_of(x)
    target = address_of(out)
    parts: list[np.ndarray] = []

    def work(begin: int, end: int) -> None:
        key0, key1 = keys(begin >> 32) if keys else (0, 0)
        place = source + begin * x.itemsize, target + begin * out.itemsize
        counters = 0
        if counts is not None:  # a piece has counters of its own
            part = np.zeros(8, np.int64)
            parts.append(part)
            counters = address_of(part)
        loop(*place, end - begin, parameters.address, begin, key0, key1, counters)

    parallel(work, x.size, wrap=1 << 32)
    if counts is not None:
        counts += sum(parts)
