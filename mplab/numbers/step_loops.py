"""Ufuncs that take values of a format, and count what is none: codes, and arithmetic.

One call checks operands, computes and rounds; a small array costs what a ufunc of NumPy does. Each
ufunc counts the numbers that it cannot take: those that are no values of the format and, in
arithmetic, infinities, NaNs and what has no finite result. The caller then goes the long way, which
raises or computes. What is a value, and every result, is decided by `kernels._round_bits`.

numba's cache on disk notices edits to this file only; `_EDITION` stands for `kernels`.
"""

import zlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic, overload
from numba.np.unsafe.ndarray import to_fixed_tuple

from mplab.numbers import kernels
from mplab.numbers.compiled import callback, make_ufunc
from mplab.numbers.formats import Format, Overflow, Rounding, Specials
from mplab.numbers.kernels import (
    _ADDRESSES,
    _COUNT,
    ANY,
    FINITE,
    _as,
    _as_bits,
    _as_float,
    _at,
    _mask,
    _round_bits,
    _unpack,
    _wide_vectors,
)
from mplab.numbers.parameters import rounding_parameters

_EDITION = zlib.crc32(Path(kernels.__file__).read_bytes(), kernels._LAYOUT)

STEPS = (
    "enter",
    "encode",
    "quantize",
    "decode",
    "add",
    "subtract",
    "multiply",
    "divide",
    "sqrt",
    "fma",
)
"""What a ufunc does; "enter" gives the values of a format as float64, "quantize" the codes of any
numbers, rounded with saturation."""

_ENTER = 0
_ENCODE = 1
_QUANTIZE = 2
_DECODE = 3
_ADD = 4
_SUBTRACT = 5
_MULTIPLY = 6
_DIVIDE = 7
_ROOT = 8
_FMA = 9
"""The same steps in loops, which take whole numbers."""

_TIES_TO_EVEN = int(Rounding.TIES_TO_EVEN)
_TOWARD_ZERO = int(Rounding.TOWARD_ZERO)
_TOWARD_NEGATIVE = int(Rounding.TOWARD_NEGATIVE)
_BLOCK = 512
"""Numbers of an operand that is not contiguous, which are copied before a loop."""

_SIGN = np.int64(-(1 << 63))
_INFINITY = np.int64(0x7FF << 52)
_NAN = np.int64(0x7FF8 << 48)

_SMALL, _LARGE = (int(np.float32(x).view(np.int32)) for x in (2.0**-50, 2.0**60))


class Coded(NamedTuple):
    """What coding knows of a format, beside what rounding knows; for `float32` or `float64`."""

    shift: Any  # from the last bit of a number to the last bit of a normal code
    offset: Any  # from the exponents of codes to those of the numbers, as codes
    subnormals: Any  # codes below are of subnormals and zero
    flip: Any  # the bits that a sign changes, then what it adds
    add: Any
    mask: Any  # all bits of a code
    last: Any  # codes past this one are of infinity and NaN
    infinity: Any  # its code, or −1, as of NaN
    nan: Any


_CODED = len(Coded._fields)
_MISSES = _COUNT + _CODED
"""Place of the number of misses, after what rounding and coding know."""


class StepUfunc(NamedTuple):
    """A ufunc, and how many numbers it could not take in all its calls."""

    call: Any
    dtype: Any
    """Of the output."""
    misses: memoryview
    """One integer, which never falls; if it rises during a call, that call may be wrong."""
    wider: str
    """The kind of another ufunc, which may take what this one cannot; empty if there is none."""
    kept: Any
    """The memory that both read."""


_fixed: Any = to_fixed_tuple  # whose stub says that it never returns


def _widen(bits, like):
    """Widen the bits of a float32 if `like` is wider, without a conversion that may flush."""


@overload(_widen)
def _widen_typed(bits, like):
    if bits.bitwidth == like.bitwidth:
        return lambda bits, like: bits

    def widen(bits, like):
        a = np.int64(bits) & 0x7FFFFFFF
        tiny = np.float64(np.float64(np.int32(a)) * 2.0**-149).view(np.int64)
        rebias = np.int64(1792 << 52) if a >= 0x7F800000 else np.int64(896 << 52)
        wide = tiny if a < 0x800000 else (a << 29) + rebias
        return wide | (np.int64(bits) & _SIGN)

    return widen


@intrinsic
def _add_atomically(typing, data, at, number):
    """Add a number to `data[at]`, which other threads may change at the same time."""

    def emit(context, builder, signature, arguments):
        data, at, number = arguments
        builder.atomic_rmw("add", builder.gep(data, [at]), number, "monotonic")
        return context.get_dummy_value()

    return types.none(data, types.int64, data.dtype), emit


@njit(forceinline=True)
def to_odd(x, y, mode):
    """Add x + y in their own dtype, rounded to odd, with the sign of an exact zero in this mode.

    The two-sum of Knuth computes the error of the sum to nearest. Where the error is not zero and
    the last bit of the sum is 0, the neighbour on the side of the error has a last bit of 1.
    """
    s = x + y
    of_y = s - x
    lost = (x - (s - of_y)) + (y - of_y)
    bits = _as_bits(s)
    if abs(lost) > 0:  # all in the branch, so that a single sum rarely waits for it
        apart = _mask(bits, _as(bits, _as_bits(lost) ^ bits) < 0)
        bits = _as(bits, _as(bits, bits + apart) | 1)  # cut, and the last bit set
    if mode == _TOWARD_NEGATIVE:  # an exact zero is -0, unless both are +0
        plus = _as_bits(x) | _as_bits(y)
        bits = _as_bits(-abs(s)) if s == 0 and plus != 0 else bits
    return bits


@njit(forceinline=True)
def _rounded(bits, special_cases, known):
    random = np.uint32(0)
    return _as(
        bits, _round_bits(bits, _TIES_TO_EVEN, special_cases, random, known, ANY)[0]
    )


@njit(forceinline=True)
def _is_wrong(bits, special_cases, known):
    """Tell whether a number is neither a value of the format nor NaN.

    Every mode leaves a value as it is; to cut is the cheapest.
    """
    a = _as(bits, bits & ~known.sign_bit)
    random = np.uint32(0)
    cut = _round_bits(bits, _TOWARD_ZERO, special_cases, random, known, FINITE)[0]
    past = (a > known.max_finite) & (a != known.beyond)
    return ((_as(bits, cut) != bits) | past) & (a <= known.infinity)


@njit(forceinline=True)
def _encoded(bits, known, coded):
    """Return the code of a value, and whether it has none."""
    grid_below = known.grid_below
    a = _as(bits, bits & ~known.sign_bit)
    low = _as_float(a if a < grid_below else grid_below)
    tiny = _as(bits, _as_bits(low + _as_float(known.anchor)) - known.anchor)
    normal = _as(bits, _as(bits, a >> coded.shift) - coded.offset)
    code = tiny if a < grid_below else normal
    code = coded.infinity if a == known.infinity else code
    flipped = _as(bits, code ^ coded.flip)
    negative = _as(bits, _as(bits, flipped + coded.add) & coded.mask)
    code = negative if bits < 0 else code
    is_nan = a > known.infinity
    return coded.nan if is_nan else code, is_nan & (coded.nan < 0)


@njit(forceinline=True)
def _decoded(code, known, coded):
    """Return the bits of the value of a code."""
    sign_code = (coded.mask >> 1) + 1
    signed = (coded.flip != 0) & (code & sign_code != 0)
    a = (((code ^ coded.flip) + coded.add) & coded.mask) if signed else code
    quantum = _as_float(known.quantum)
    tiny = np.float64(np.float64(np.int32(a)) * quantum).view(np.int64)
    value = tiny if a < coded.subnormals else (a + coded.offset) << coded.shift
    past = a > coded.last
    value = _INFINITY if past else value
    value = value | (_SIGN if signed else np.int64(0))
    is_nan = (code == coded.nan) | past & (a != coded.infinity)
    return _NAN if is_nan else value, (code & ~coded.mask) != 0


def _usable(bits, instead):
    """Return the bits of an operand to compute with, and whether others stand for its own."""


@overload(_usable)
def _usable_typed(bits, instead):
    def finite(bits, instead):
        wrong = (bits & ~_SIGN) >= _INFINITY
        return instead if wrong else bits, wrong

    # So that no result overflows or is subnormal, nor what a sum loses.
    def ordinary(bits, instead):
        a = np.int32(bits & 0x7FFFFFFF)
        wrong = (a < np.int32(_SMALL)) & (a != 0) | (a >= np.int32(_LARGE))
        return instead if wrong else bits, wrong

    return ordinary if bits.bitwidth == 32 else finite


@njit(forceinline=True)
def _computed(step, x, y, z, special_cases, known):
    """Return the bits of the result of an operation; see `mplab.arithmetic.operations`.

    float32 serves for at most 11 bits of precision: it has 2p + 2, and holds every product. What
    would raise a flag is left out by integers: of a choice between two floats LLVM may compute
    both. Zero stands for it, with the sign that no addition or subtraction may leave out: where
    one may, LLVM computes with the operand itself, then chooses.
    """
    zero = _as(x, known.sign_bit if step == _SUBTRACT else 0)
    of_a, wrong = _usable(x, zero)
    of_b, other = _usable(y, zero)
    a = _as_float(of_a)
    b = _as_float(of_b)
    wrong |= other | _is_wrong(x, special_cases, known)
    if step != _ROOT:
        wrong |= _is_wrong(y, special_cases, known)
    bits = x
    if step == _ADD:
        bits = _as_bits(a + b)
    elif step == _SUBTRACT:
        bits = _as_bits(a - b)
    elif step == _MULTIPLY:
        bits = _as_bits(a * b)
    elif step == _DIVIDE:
        is_zero = _as(x, of_b & ~known.sign_bit) == 0
        wrong |= is_zero
        one_and_a_half = _as(x, known.infinity >> 1)
        divisor = _as_float(one_and_a_half if is_zero else of_b)
        bits = _as_bits(np.divide(a, divisor))  # `/` would look for 0 and not be SIMD
    elif step == _ROOT:
        wrong |= a < 0
        root = np.sqrt(_as_float(_as(x, of_a & ~known.sign_bit)))
        bits = _as(x, _as_bits(root) | _as(x, of_a & known.sign_bit))
    elif step == _FMA:
        of_c, other = _usable(z, zero)
        wrong |= other | _is_wrong(z, special_cases, known)
        bits = to_odd(a * b, _as_float(of_c), _TIES_TO_EVEN)
    return _rounded(bits, special_cases, known), wrong


@njit(forceinline=True)
def _operand(address, stride, begin, width, like, scratch, size):
    """Return numbers of an operand: its memory where contiguous, else a copy."""
    if stride == width:
        return carray(_at(address + begin * stride, like), size)
    for i in range(size):
        scratch[i] = carray(_at(address + (begin + i) * stride, like), 1)[0]
    return scratch[:size]


_BITS = {"f": np.int32(0), "d": np.int64(0)}


def _like(kind: str) -> Any:
    """Return an integer of the width of a dtype, for its bits."""
    return _BITS.get(kind, np.dtype(kind).type(0))


@cache
def _loop(
    step: int, kinds: str, special_cases: bool, itemsize: int, edition: int
) -> Any:
    """Compile the loop of a ufunc from inputs of one dtype to an output of another.

    It computes in integers of the width of its facts.
    """
    like_in, like_out = map(_like, kinds)
    dtype = like_in.dtype
    width = like_in.itemsize
    step_out = like_out.itemsize
    inputs = _inputs(step)
    second = min(inputs, 2) - 1
    third = inputs - 1
    # Results of half the width are widened by a loop of their own: with both widths in one loop
    # LLVM takes the vectors of the wider.
    narrow = itemsize == 4 and kinds[1] == "d"

    def loop(args, sizes, strides, data):
        _wide_vectors()
        kinds, edition  # noqa: B018  # only to be part of the cache's key
        size = sizes[0]
        numbers = carray(data, _MISSES + 1)
        known = _unpack(numbers)
        coded = Coded(*_fixed(numbers[_COUNT:_MISSES], _CODED))
        whole = True
        for k in range(inputs):
            whole &= strides[k] == width
        length = size if whole and not narrow else min(size, _BLOCK)
        scratch = np.empty((inputs, 0 if whole else length), dtype)
        kept = np.empty(length if narrow else 0, dtype)
        like = numbers[0]
        wrong = _as(like, 0)
        for begin in range(0, size, length):
            some = min(length, size - begin)
            x = _operand(args[0], strides[0], begin, width, like_in, scratch[0], some)
            y = _operand(
                args[second],
                strides[second],
                begin,
                width,
                like_in,
                scratch[second],
                some,
            )
            z = _operand(
                args[third], strides[third], begin, width, like_in, scratch[third], some
            )
            out = carray(_at(args[inputs] + begin * step_out, like_out), some)
            results = out
            if narrow:
                results = kept
            for i in range(some):
                if step == _DECODE:
                    r, bad = _decoded(np.int64(x[i]), known, coded)
                elif step == _ENCODE:
                    bits = _widen(x[i], like)
                    r, bad = _encoded(bits, known, coded)
                    bad |= _is_wrong(bits, special_cases, known)
                elif step == _QUANTIZE:
                    bits = _rounded(_widen(x[i], like), special_cases, known)
                    r, bad = _encoded(bits, known, coded)
                elif step == _ENTER:
                    r = _widen(x[i], like)
                    bad = _is_wrong(r, special_cases, known)
                else:
                    r, bad = _computed(
                        step,
                        _widen(x[i], like),
                        _widen(y[i], like),
                        _widen(z[i], like),
                        special_cases,
                        known,
                    )
                results[i] = r
                wrong = _as(like, wrong | _as(like, bad))
            if narrow:
                for i in range(some):
                    out[i] = np.float64(_as_float(results[i])).view(np.int64)
                if wrong:  # another loop takes them all
                    break
        if wrong:
            _add_atomically(data, _MISSES, wrong)  # type: ignore[call-arg]

    integers = types.CPointer(types.int32 if itemsize == 4 else types.int64)
    return callback(types.void(_ADDRESSES, _ADDRESSES, _ADDRESSES, integers), loop)


@cache
def _facts(fmt: Format, overflow: Overflow, dtype: type) -> np.ndarray | None:
    """List the parameters of rounding and the facts of codes; None if float32 cannot serve."""
    parameters = rounding_parameters(fmt, np.dtype(dtype), overflow)
    if parameters is None:
        return None
    info = np.finfo(dtype)
    twos = fmt.specials is Specials.TWOS_COMPLEMENT
    gridded = fmt.emin > info.minexp
    mask = (1 << fmt.bits) - 1
    coded = Coded(
        shift=info.nmant + 1 - fmt.precision,
        offset=(1 - int(info.minexp) - fmt.bias) << (fmt.precision - 1),
        subnormals=(1 << (fmt.precision - 1)) * (fmt.has_zero and gridded),
        flip=-1 if twos else fmt.sign_code,
        add=twos,
        mask=mask,
        last=mask if twos else fmt.max_code,
        infinity=fmt.infinity_code or -1,
        nan=-1 if fmt.nan_code is None else fmt.nan_code,
    )
    numbers = parameters.numbers
    return np.array([*numbers, *coded, 0], numbers.dtype)


def _inputs(step: int) -> int:
    return 3 if step == _FMA else 2 if _ADD <= step <= _DIVIDE else 1


def ufunc_of(name: str, fmt: Format, kind: str) -> StepUfunc | None:
    """Return the ufunc of a step for inputs of a dtype; None for wide formats, and for no step.

    Args:
        name: one of `STEPS`, or of an operation that has no loop here.
        fmt: the format of its numbers.
        kind: "f" or "d", for "decode" "B", "H" or "I"; "F" for float32 computed in float64.
    """
    if fmt.bits > 32 or name not in STEPS:
        return None
    step = STEPS.index(name)
    coded = step in (_ENCODE, _QUANTIZE)
    kinds = "f" if kind == "F" else kind
    kinds += "BHII"[(fmt.bits - 1) // 8] if coded else "d"
    overflow = Overflow(step == _QUANTIZE)
    facts = None
    wider = ""
    narrow = (coded and fmt.bits < 32) or (step >= _ADD and fmt.precision <= 11)
    if narrow and kind == "f":  # half the width, half the time
        facts = _facts(fmt, overflow, np.float32)
        wider = "" if coded or facts is None else "F"
    if facts is None:
        facts = _facts(fmt, overflow, np.float64)
    assert facts is not None  # float64 holds every format
    loop = _loop(step, kinds, not fmt.has_negative_zero, facts.itemsize, _EDITION)
    made = make_ufunc(name, loop, [_inputs(step) * kinds[0] + kinds[1]], facts)
    misses: Any = facts[_MISSES:]
    return StepUfunc(made.call, np.dtype(kinds[1]), memoryview(misses), wider, made)
