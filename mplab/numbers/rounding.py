"""Rounding to a format. All conversions go through `round_to`.

What rounds where: NumPy arrays and tensors on the processor in the compiled loops of `kernels`,
which tests/numbers/test_rounding.py holds equal to the definition; tensors on other devices in the
expression of `tensors`, which tests/numbers/test_tensors.py holds equal to the loops; the
explorers' pages in numbers.js, which tests/explorers/test_page_numbers.py holds equal, too.

Exact numbers enter float64 rounded to odd, so that the rounding here is their only one: Fractions
in `inputs`, held by tests/numbers/test_inputs.py, and sums of two float64 in the loops of
`mplab.arithmetic`, held by tests/arithmetic/test_operations.py.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

from mplab.numbers.checks import integer, quoted
from mplab.numbers.formats import (
    FP32,
    Event,
    Format,
    FormatLike,
    Overflow,
    Rounding,
    Tininess,
    format_of,
)
from mplab.numbers.inputs import (
    as_array,
    as_float64,
    is_tensor,
    on_tensors,
    widen,
)
from mplab.numbers.parameters import Keys, RoundingParameters, rounding_parameters
from mplab.numbers.threads import DIVISIBLE, parallel

_MASK64 = (1 << 64) - 1

CHUNK = 1 << 14
"""Numbers whose copy stays in a core's cache."""

NUMBERS: dict[Any, str] = {
    np.dtype(np.float32): "f",
    np.dtype(np.float64): "d",
    float: "d",
    np.float64: "d",
}
CODES: dict[Any, str] = {np.dtype(kind): kind for kind in "BHI"}
"""The dtypes of codes that `checked` takes."""


class Stream:
    """Random bits for stochastic rounding: a pure function of seed, call and index.

    Element i of call k gets the same 32 bits in NumPy and torch, for any chunking and any number
    of threads. Read as a fraction, they are added to the discarded fraction of the number, cut to
    32 bits: if the sum reaches 1, the number is rounded away from zero. So the probability is the
    discarded fraction, exactly if that has at most 32 bits (always for float32 input in the
    normal range).

    With fewer `bits`, as in hardware, the fraction is cut to that many bits: the probability is a
    multiple of 2^−bits, and the mean is nearer to zero than x, by less than 2^−bits of the gap.

    Args:
        seed: an integer in 0 .. 2^64 − 1.
        calls: number of calls that have taken bits before.
        bits: random bits per element, 1 to 32: the leading ones of the element's 32 bits.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: an argument is out of range.

    Source:
        Fitzgibbon and Felix 2025, On stochastic rounding with few random bits: the variant SRFF,
        which needs no rounding of the fraction.

    Examples:
        >>> round_to(
        ...     np.full(4, 2049.0), FP16, rounding=Rounding.STOCHASTIC, stream=Stream(1)
        ... )
        array([2048., 2050., 2050., 2048.])
    """

    def __init__(self, seed: int, *, calls: int = 0, bits: int = 32) -> None:
        self.seed = integer("Stream", "seed", seed, most=_MASK64)
        self.calls = integer("Stream", "calls", calls)
        self.bits = integer("Stream", "bits", bits, least=1, most=32)

    def __repr__(self) -> str:
        few = f", bits={self.bits}" if self.bits < 32 else ""
        return f"Stream({self.seed}, calls={self.calls}{few})"

    def keys(self) -> Keys:
        """Return the keys of the next call, and count the call.

        Returns:
            A function of k that returns two 32-bit keys, for the counter-based mixer, of the k-th
            2^32 elements; the bits above the first key mark the random bits that are left out.
        """
        call = _mix64(self.seed + _mix64(self.calls))
        self.calls += 1
        dropped = (1 << (32 - self.bits)) - 1

        def of_run(run: int) -> tuple[int, int]:
            key = _mix64(call + run)
            return key & 0xFFFFFFFF | dropped << 32, key >> 32

        return of_run


def _mix64(z: int) -> int:
    """Take the SplitMix64 step of Steele, Lea and Flood (2014), a bijection on 64-bit integers."""
    z = (z + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


@dataclass
class Tally:
    """Counts of numbers that were exact, overflowed, underflowed, became zero, ... in rounding.

    `COUNTED` defines each counter; total = exact + inexact + nan. Tallies add: `a + b`, `a += b`.
    """

    total: int = 0
    exact: int = 0
    inexact: int = 0
    underflow: int = 0
    flushed: int = 0
    subnormal: int = 0
    overflow: int = 0
    nan: int = 0
    infinite: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(a + b for a, b in zip(astuple(self), astuple(other), strict=True))
        )

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, counts: dict[str, int]) -> Tally:
        """Make a tally from its counters; the inverse of `as_dict`."""
        return cls(**counts)

    def add_counts(self, total: int, counts: Any) -> None:
        """Add the eight counts, one per flag bit, that a loop returned for `total` numbers."""
        inexact, underflow, overflow, _, flushed, subnormal, nan, infinite = np.asarray(
            counts
        ).tolist()
        self.total += total
        self.exact += total - inexact - nan
        self.inexact += inexact
        self.underflow += underflow
        self.flushed += flushed
        self.subnormal += subnormal
        self.overflow += overflow
        self.nan += nan
        self.infinite += infinite


COUNTED = {
    "total": "every x",
    "exact": "r = x, infinities included",
    "inexact": "x is not NaN and r != x",
    "underflow": "r != x, and rounded with unbounded exponent x would lie below min_normal",
    "flushed": "x != 0 and r = 0",
    "subnormal": "0 < |r| < min_normal",
    "overflow": "x is finite, and rounded with unbounded exponent it would pass max_finite",
    "nan": "x is NaN",
    "infinite": "x is infinite",
}
"""Definition of each counter of a `Tally`, with x the input and r the result."""


class RoundingRules(TypedDict, total=False):
    """The options that `round_to`, `tally` and `events` share, all of them keywords."""

    rounding: Rounding
    overflow: Overflow
    flush_inputs: bool
    flush_outputs: bool
    stream: Stream | None


def round_to(
    x: Any,
    fmt: FormatLike,
    *,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.IEEE,
    flush_inputs: bool = False,
    flush_outputs: bool = False,
    stream: Stream | None = None,
    out: np.ndarray | None = None,
    tally: Tally | None = None,
) -> Any:
    """Round each element of `x` to a value of `fmt`.

    NaN gives NaN, also where `fmt` has none: there it is a marker that `encode` refuses.
    Payload and sign of a NaN are not kept. A zero keeps its sign, also one that comes
    from underflow, except in formats without −0. Overflow is decided after rounding: past
    `fmt.max_finite` lies infinity, NaN where `fmt` has no infinity, ±max_finite where it
    has neither or under `Overflow.SATURATE`; directed modes stop at max_finite on their
    inward side, and rounding to odd on both sides, even if its code is even. An unsigned format
    gives NaN for negative numbers, a format without zero gives its least value for zero. At one
    bit of precision, where no significand is even, ties in the normal range go away from zero. In
    P3109 formats a tie goes to the even code, at one bit, too, and rounding to odd gives infinity
    past `fmt.max_finite`.

    Args:
        x: float32 or float64 array of any shape `(...)`; float16 and ml_dtypes arrays are
            taken as float32; a Python float, integer arrays and lists of Python numbers as
            float64; an int, `Decimal`, `Fraction` or decimal string is rounded once from its
            exact value, to a float64; a torch tensor on any device gives a tensor, as in
            `mplab.numbers.tensors.round_tensor`.
        fmt: the format to round to, or its name or dtype: see `mplab.format_of`.
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: the result past the largest finite value.
        flush_inputs: take |x| below `fmt.min_normal` as zero before rounding.
        flush_outputs: replace subnormal results by zero after rounding.
        stream: source of random bits for `STOCHASTIC`; each call takes the next ones.
        out: array of the dtype and shape of the result to write into; may be `x`.
        tally: counters to add this call's counts to.

    Returns:
        float32 or float64 like `x`, shape `(...)`, every element a value of `fmt`; `out`
        if given.

    Raises:
        TypeError: `x` holds Booleans or no numbers; an option is of the wrong type.
        ValueError: an array or list holds an integer that float64 cannot; `out` has another
            dtype or shape or is read-only; a stream is missing, or is given to another mode;
            float32 cannot hold the result.

    Exactness:
        Correctly rounded: one rounding, from the value `x` holds.

    Source:
        IEEE 754-2019 §4.3, §7.4, §7.5; OCP OFP8 1.0 for E4M3 and E5M2; for rounding to odd
        and stochastic rounding see `Rounding` and `Stream`.

    Examples:
        >>> round_to(np.array([0.7, 464.0, 465.0]), FP8_E4M3)
        array([  0.6875, 448.    ,      nan])
        >>> float(round_to("0.1", FP16))
        0.0999755859375
    """
    if type(x) is _ARRAY and tally is None and stream is None:
        dtype = x.dtype
        known: tuple[int, ...] = id(dtype), id(fmt)
        if not (
            rounding is _EVEN
            and overflow is _IEEE
            and flush_inputs is False
            and flush_outputs is False
        ):
            known += id(rounding), id(overflow), id(flush_inputs), id(flush_outputs)
        compiled = _COMPILED.get(known)
        if (
            compiled is None
            and known[0] in _DTYPES
            and rounding is not Rounding.STOCHASTIC
        ):
            compiled = _compile(
                known, dtype, fmt, rounding, overflow, flush_inputs, flush_outputs
            )
        if compiled is not None and x.flags.c_contiguous and x.size < DIVISIBLE:
            if out is None and x.ndim:  # for a 0-d array a ufunc returns a scalar
                return compiled[0](x)
            if (
                out is not None
                and (out is x or type(out) is _ARRAY)
                and out.dtype is dtype
                and out.shape == x.shape
                and out.flags.carray  # contiguous and writeable
            ):
                return compiled[0](x, out)
    rules: Any = {"rounding": rounding, "overflow": overflow, "stream": stream}
    rules |= {"flush_inputs": flush_inputs, "flush_outputs": flush_outputs}
    if is_tensor(x):
        from mplab.numbers.tensors import round_tensor

        return round_tensor(x, fmt, out=out, tally=tally, **rules)  # type: ignore[arg-type]
    from mplab.numbers import kernels

    source = _Source("round_to", x)
    result = source.result(out)
    array, how = source.prepared(fmt, **rules)
    target = result if array is source.array else np.empty_like(array)
    counts = None if tally is None else np.zeros(8, np.int64)
    kernels.run(bits_of(array), bits_of(target), counts=counts, **how)
    if target is not result:
        result[...] = narrow("round_to", target, format_of(fmt))
    if tally is not None and counts is not None:
        tally.add_counts(array.size, counts)
    return source.deliver(result, out)


def tally(x: Any, fmt: FormatLike, **rules: Unpack[RoundingRules]) -> Tally:
    """Count what `round_to` with these arguments would do to `x`, without keeping the result.

    Examples:
        >>> tally(np.array([1.0, 1e-9, 1e6, np.nan]), FP16)
        Tally(total=4, exact=1, inexact=2, underflow=1, flushed=1, subnormal=0, overflow=1, \
nan=1, infinite=0)
    """
    counted = Tally()
    round_to(x, fmt, tally=counted, **rules)
    return counted


@on_tensors
def events(
    x: Any,
    fmt: FormatLike,
    *,
    tininess: Tininess = Tininess.AFTER,
    **rules: Unpack[RoundingRules],
) -> Any:
    """Return the IEEE 754 exceptions that `round_to` with these arguments raises per element.

    INEXACT: the result differs from x. UNDERFLOW: the result is inexact and tiny. OVERFLOW: x
    is finite and its rounded value, with unbounded exponent, passes max_finite. INVALID: x
    is a signaling NaN, or a number for which `fmt` has no better result than NaN (an
    infinity without saturation in a format without infinity, a negative number in an unsigned
    format). Rounding never divides by zero.

    Args:
        x: as in `round_to`, shape `(...)`.
        fmt: the format to round to.
        tininess: whether tiny is judged on the rounded result with unbounded exponent
            (`AFTER`) or on x (`BEFORE`).
        **rules: `rounding`, `overflow`, `flush_inputs`, `flush_outputs` and `stream` as in
            `round_to`.

    Returns:
        uint8 of shape `(...)`, the `Event` bits of each element.

    Source:
        IEEE 754-2019 §7.2, §7.4, §7.5, §7.6.

    Examples:
        >>> [Event(int(e)) for e in events(np.array([1.0, 1e-9, 1e6]), FP16)]
        [<Event: 0>, <Event.INEXACT|UNDERFLOW: 3>, <Event.INEXACT|OVERFLOW: 5>]
    """
    from mplab.numbers import kernels

    source = _Source("events", x)
    array, how = source.prepared(fmt, tininess=tininess, **rules)
    flags = np.empty(array.size, np.uint8)
    kernels.flag(bits_of(array), flags, **how)
    flags &= int(Event.INEXACT | Event.UNDERFLOW | Event.OVERFLOW | Event.INVALID)
    return flags.reshape(source.shape)[()]


def require_values(function: str, argument: str, x: Any, fmt: FormatLike) -> np.ndarray:
    """Convert `x` to float64; raise if an element is neither a value of `fmt` nor NaN.

    Args:
        function: the function that was called, for the message.
        argument: the name of `x` in the message.
        x: as in `round_to`.
        fmt: the format that the numbers must belong to.

    Raises:
        TypeError: `x` holds no numbers.
        ValueError: an element is not a value of `fmt`; nothing is rounded here.

    Examples:
        >>> require_values("dot", "a", np.array([0.5, 0.1], np.float32), FP4_E2M1)
        Traceback (most recent call last):
        ValueError: dot: a must hold values of FP4_E2M1; got 0.10000000149011612, between \
0.0 (0x0) and 0.5 (0x1). Round first: round_to(a, FP4_E2M1).
    """
    fmt = format_of(fmt, function=function)
    if type(x) is _ARRAY and (entered := _entered(x, fmt)) is not None:
        return entered
    array = as_float64(function, x, argument)
    same = np.asarray(round_to(array, fmt)).view(np.int64) == array.view(np.int64)
    if not same.all() and not (same := same | np.isnan(array)).all():
        from mplab.numbers.codes import refusal  # which needs this file

        first = float(array[~same].flat[0])
        written = x if type(x) is int else first
        raise ValueError(refusal(function, argument, first, fmt, quoted(written)))
    return array


def _entered(x: np.ndarray, fmt: Format) -> np.ndarray | None:
    """Return the values of a format in float64; None if some are none, or for the long way."""
    if x.dtype.char == "f":
        wide: np.ndarray | None = checked("enter", fmt, x)
        return wide
    for at in range(0, x.size, CHUNK):
        if checked("enter", fmt, x.reshape(-1)[at : at + CHUNK]) is None:
            return None
    return x


def checked(step: str, fmt: Format, *operands: Any, kinds: Any = NUMBERS) -> Any:
    """Take a step with values of a format in one call; see `mplab.numbers.checked`.

    Args:
        step: one of the steps there.
        fmt: the format.
        *operands: arrays of one dtype, or floats.
        kinds: the dtypes that the step takes.

    Returns:
        What the step's ufunc does; None where the caller must go the long way, because an operand
        is no value, or has no finite result, or is of another kind.
    """
    kind: Any = None
    for x in operands:
        if type(x) is _ARRAY:
            found = kinds.get(x.dtype) if x.ndim else None
        else:
            found = kinds.get(type(x))
        if found is None or (found != kind and kind is not None):
            return None
        kind = found
    ready = _CHECKED.get((step, fmt, kind))
    if ready is None:
        from mplab.numbers import checked as steps

        ready = _CHECKED[step, fmt, kind] = steps.checked(step, fmt, kind) or ()
    if not ready:
        return None
    call, dtype, misses, _ = ready
    before = misses[0]
    first = operands[0]
    if type(first) is _ARRAY and first.size >= DIVISIBLE:
        result = _in_threads(call, dtype, operands)
    else:
        result = call(*operands)
    return result if misses[0] == before else None


def _in_threads(call: Any, dtype: Any, operands: tuple[Any, ...]) -> np.ndarray:
    """Call a ufunc on pieces of large arrays of one shape; on others at once."""
    first = operands[0]
    if any(np.shape(x) != first.shape or not x.flags.c_contiguous for x in operands):
        return np.asarray(call(*operands))
    out = np.empty(first.shape, dtype)
    flat = [x.reshape(-1) for x in (*operands, out)]
    parallel(lambda a, b: call(*(x[a:b] for x in flat)), first.size, wrap=first.size)
    return out


# Python finds a global faster than an attribute, and a short call looks for three.
_ARRAY = np.ndarray
_EVEN = Rounding.TIES_TO_EVEN
_IEEE = Overflow.IEEE

_DTYPES = {id(np.dtype(dtype)) for dtype in (np.float32, np.float64)}

_CHECKED: dict[Any, Any] = {}
"""The ufuncs of steps, found without a function of Python's cache, and so without numba."""


_COMPILED: dict[tuple[int, ...], tuple[Any, ...]] = {}
"""Cached ufuncs by identity, each with the objects that must live as long.

By identity, because hashing a format takes longer than rounding a thousand numbers."""


def _compile(
    known: tuple[int, ...],
    dtype: np.dtype[Any],
    fmt: FormatLike,
    rounding: Rounding,
    overflow: Overflow,
    flush_inputs: bool,
    flush_outputs: bool,
) -> tuple[Any, ...] | None:
    """Build and cache the ufunc for these options; None where `_Source` must do the rounding."""
    from mplab.numbers.kernels import ufunc

    rules = rounding, overflow, flush_inputs, flush_outputs, Tininess.AFTER
    like = format_of(fmt, function="round_to")
    parameters = checked_parameters("round_to", like, dtype, *rules)
    if parameters is None:
        return None
    if len(_COMPILED) >= 512:
        _COMPILED.clear()
    compiled = _COMPILED[known] = (
        ufunc(parameters, rounding),
        dtype,
        fmt,
        parameters,
    )
    return compiled


class _Source:
    """The input as a contiguous float32 or float64 array, and the form the caller passed."""

    __slots__ = ("array", "dtype", "function", "given", "scalar", "shape")

    def __init__(self, function: str, x: Any) -> None:
        self.function = function
        self.given = x
        if not (type(x) is np.ndarray and x.dtype.char in "fd" and x.dtype.isnative):
            x = as_array(function, x)
        self.scalar = type(x) is not np.ndarray
        self.dtype = x.dtype  # perhaps byte-swapped
        self.shape = x.shape
        native = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
        self.array = np.ascontiguousarray(native)

    def result(self, out: np.ndarray | None) -> np.ndarray:
        """Return a contiguous array to round into: `out` itself where that is safe."""
        if out is None:
            return np.empty(self.array.shape, self.array.dtype)
        if (
            type(out) is not np.ndarray
            or out.dtype != self.dtype
            or out.shape != self.shape
        ):
            given = (
                f"{out.dtype}, {out.shape}"
                if isinstance(out, np.ndarray)
                else type(out)
            )
            raise ValueError(
                f"{self.function}: out must be a NumPy array of dtype {self.dtype} and shape "
                f"{self.shape}; got {given}. Use np.empty_like(x)."
            )
        if not out.flags.writeable:
            raise ValueError(
                f"{self.function}: out must be writeable; got a read-only array. Copy it first."
            )
        plain = out.flags.c_contiguous and out.dtype.isnative
        if plain and (out is self.given or not np.may_share_memory(out, self.array)):
            return out
        return np.empty(self.array.shape, self.array.dtype)

    def prepared(
        self, fmt: FormatLike, **options: Any
    ) -> tuple[np.ndarray, LoopOptions]:
        """Return the numbers for the loops, in float64 if need be, and the loops' options."""
        fmt = format_of(fmt, function=self.function)
        dtype = self.array.dtype
        how = loop_options(self.function, fmt, dtype, **options)
        wide = how["parameters"].numbers.itemsize > dtype.itemsize
        return widen(self.array) if wide else self.array, how

    def deliver(self, result: np.ndarray, out: np.ndarray | None) -> Any:
        """Return the result in the form of the input: `out`, a scalar or an array."""
        if out is not None:
            if out is not result:
                out[...] = result.reshape(self.shape)
            return out
        shaped = result.reshape(self.shape)
        if self.scalar:
            return shaped[()]
        return shaped if self.dtype.isnative else shaped.astype(self.dtype)


def bits_of(array: np.ndarray) -> np.ndarray:
    """The bits of a contiguous array, shape (n,), which share its memory."""
    return array.reshape(-1).view(np.int32 if array.itemsize == 4 else np.int64)


def narrow(function: str, wide: np.ndarray, fmt: Format) -> np.ndarray:
    """Convert float64 to float32 without rounding, also where the CPU flushes subnormals."""
    from mplab.numbers.codes import encode  # which needs this file

    try:
        return np.asarray(encode(wide, FP32)).view(np.float32)
    except ValueError:
        raise ValueError(
            f"{function}: x must be float64 here; got float32, which cannot hold every result in "
            f"{fmt.name}. Convert it first."
        ) from None


class LoopOptions(TypedDict):
    """The options of the loops in `mplab.numbers.kernels`."""

    parameters: RoundingParameters
    mode: Rounding
    keys: Keys | None


def loop_options(
    function: str,
    fmt: Format,
    dtype: np.dtype[Any],
    *,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.IEEE,
    flush_inputs: bool = False,
    flush_outputs: bool = False,
    stream: Stream | None = None,
    tininess: Tininess = Tininess.AFTER,
) -> LoopOptions:
    """Check the options of a call, and return those of its loop.

    The parameters are those for float64 if float32 cannot serve; that changes no result.
    """
    rules = (overflow, flush_inputs, flush_outputs, tininess)
    parameters = checked_parameters(function, fmt, dtype, rounding, *rules)
    keys = checked_keys(function, rounding, stream)
    if parameters is None:
        parameters = rounding_parameters(fmt, np.dtype(np.float64), *rules)
        assert parameters is not None  # float64 holds every format
    return {"parameters": parameters, "mode": rounding, "keys": keys}


def checked_keys(
    function: str, rounding: Rounding, stream: Stream | None
) -> Keys | None:
    """Return the random keys of this call, or None if the mode needs no random bits."""
    if rounding is not Rounding.STOCHASTIC:
        if stream is not None:
            raise ValueError(
                f"{function}: stream must be None without Rounding.STOCHASTIC; got {stream!r} "
                f"with {rounding!r}. Leave it out, or pass rounding=Rounding.STOCHASTIC."
            )
        return None
    if not isinstance(stream, Stream):
        raise ValueError(
            f"{function}: stream must be a Stream with Rounding.STOCHASTIC; got "
            f"{quoted(stream)}. Pass stream=Stream(seed) and reuse it from call to call."
        )
    return stream.keys()


def checked_parameters(
    function: str,
    fmt: Format,
    dtype: np.dtype[Any],
    rounding: Rounding,
    overflow: Overflow,
    flush_inputs: bool,
    flush_outputs: bool,
    tininess: Tininess,
) -> RoundingParameters | None:
    """Check the options, and return the parameters of the loops."""
    if fmt.bits > 32:
        raise ValueError(
            f"{function}: fmt must have at most 32 bits, since every step is computed in float64; "
            f"got {fmt.name}. Compute with Python's floats or NumPy's float64 themselves."
        )
    # Types first: in a cache 0 would pass for Rounding.TIES_TO_EVEN and for False.
    options = rounding, overflow, flush_inputs, flush_outputs, tininess
    for (name, kind), given in zip(_OPTIONS.items(), options, strict=True):
        if type(given) is not kind:
            choices = (
                "True or False" if kind is bool else f"a member of {kind.__name__}"
            )
            raise TypeError(
                f"{function}: {name} must be {choices}; got {quoted(given)}. Pass one."
            )
    return rounding_parameters(fmt, dtype, *options[1:])


_OPTIONS = {
    "rounding": Rounding,
    "overflow": Overflow,
    "flush_inputs": bool,
    "flush_outputs": bool,
    "tininess": Tininess,
}
