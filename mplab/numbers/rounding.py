"""Rounding to a format. All conversions go through `round_to`.

To check it, read three files: `round_to` here looks for the loop of its options, `parameters`
writes the format and the options as 21 integers, and `kernels._round_bits` rounds one number by
them. All else brings numbers in and results out.

What rounds where: NumPy arrays and tensors on the processor in the compiled loops of `kernels`,
which tests/numbers/test_rounding.py holds equal to the definition; tensors on other devices in the
expression of `tensors`, which tests/numbers/test_tensors.py holds equal to the loops; the
explorers' pages in numbers.js, which tests/explorers/test_page_numbers.py holds equal, too.

Exact numbers enter float64 rounded to odd, so that the rounding here is their only one: Fractions
in `inputs`, held by tests/numbers/test_inputs.py, and sums of two float64 in the loops of
`mplab.arithmetic`, held by tests/arithmetic/test_operations.py.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from mplab.numbers.formats import (
    Event,
    FormatLike,
    Overflow,
    Rounding,
    Tininess,
    format_of,
)
from mplab.numbers.inputs import as_array, is_tensor, on_tensors, widen
from mplab.numbers.options import RoundingRules, Stream, Tally
from mplab.numbers.parameters import LoopOptions, checked_parameters, loop_options
from mplab.numbers.steps import narrow
from mplab.numbers.threads import DIVISIBLE


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
    # The short way: arrays of floats, contiguous and not so large that threads are worth while. It
    # is written out here, because each call in Python costs a tenth of rounding ten numbers.
    if type(x) is _ARRAY and tally is None and stream is None:
        dtype = x.dtype
        key: tuple[int, ...] = id(dtype), id(fmt)
        if not (
            rounding is _EVEN
            and overflow is _IEEE
            and flush_inputs is False
            and flush_outputs is False
        ):
            key += id(rounding), id(overflow), id(flush_inputs), id(flush_outputs)
        compiled = _COMPILED.get(key)
        if (
            compiled is None
            and key[0] in _DTYPES
            and rounding is not Rounding.STOCHASTIC
        ):
            compiled = _compile(
                key, dtype, fmt, rounding, overflow, flush_inputs, flush_outputs
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
    # The long way, of all other inputs.
    rules: Any = {"rounding": rounding, "overflow": overflow, "stream": stream}
    rules |= {"flush_inputs": flush_inputs, "flush_outputs": flush_outputs}
    if is_tensor(x):
        from mplab.numbers.tensors import round_tensor

        return round_tensor(x, fmt, out=out, tally=tally, **rules)  # type: ignore[arg-type]
    from mplab.numbers import kernels

    source = _Source("round_to", x)
    result = source.space_for(out)
    array, options = source.for_loops(fmt, **rules)
    rounded = result
    if array is not source.array:  # float32 cannot serve, and the result is narrowed
        rounded = np.empty_like(array)
    counts = None if tally is None else np.zeros(8, np.int64)
    kernels.run(array, rounded, counts=counts, **options)
    if rounded is not result:
        result[...] = narrow("round_to", rounded, format_of(fmt))
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
    array, options = source.for_loops(fmt, tininess=tininess, **rules)
    flags = np.empty(array.shape, np.uint8)
    kernels.run(array, flags, **options)
    flags &= _RAISED
    return flags.reshape(source.shape)[()]


_RAISED = int(Event.INEXACT | Event.UNDERFLOW | Event.OVERFLOW | Event.INVALID)

# Python finds a global faster than an attribute, and a short call looks for three.
_ARRAY = np.ndarray
_EVEN = Rounding.TIES_TO_EVEN
_IEEE = Overflow.IEEE

_DTYPES = {id(np.dtype(dtype)) for dtype in (np.float32, np.float64)}

_COMPILED: dict[tuple[int, ...], tuple[Any, ...]] = {}
"""Cached ufuncs by identity, each with the objects that must live as long.

By identity, because hashing a format takes longer than rounding a thousand numbers."""


def _compile(
    key: tuple[int, ...],
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
    compiled = _COMPILED[key] = (
        ufunc(parameters, rounding),
        dtype,
        fmt,
        parameters,
    )
    return compiled


class _Source:
    """The input as a contiguous float32 or float64 array, and the form the caller passed."""

    __slots__ = ("array", "dtype", "function", "original", "scalar", "shape")

    def __init__(self, function: str, x: Any) -> None:
        self.function = function
        self.original = x
        if not (type(x) is np.ndarray and x.dtype.char in "fd" and x.dtype.isnative):
            x = as_array(function, x)
        self.scalar = type(x) is not np.ndarray
        self.dtype = x.dtype  # perhaps byte-swapped
        self.shape = x.shape
        if not x.dtype.isnative:
            x = x.astype(x.dtype.newbyteorder("="))
        self.array = np.ascontiguousarray(x)

    def space_for(self, out: np.ndarray | None) -> np.ndarray:
        """Return a contiguous array to round into: `out` itself where that is safe."""
        if out is None:
            return np.empty(self.array.shape, self.array.dtype)
        if (
            type(out) is not np.ndarray
            or out.dtype != self.dtype
            or out.shape != self.shape
        ):
            got: Any = type(out)
            if isinstance(out, np.ndarray):
                got = f"{out.dtype}, {out.shape}"
            raise ValueError(
                f"{self.function}: out must be a NumPy array of dtype {self.dtype} and shape "
                f"{self.shape}; got {got}. Use np.empty({self.shape}, {self.dtype.str!r})."
            )
        if not out.flags.writeable:
            raise ValueError(
                f"{self.function}: out must be writeable; got a read-only array. Copy it first."
            )
        plain = out.flags.c_contiguous and out.dtype.isnative
        if plain and (out is self.original or not np.may_share_memory(out, self.array)):
            return out
        return np.empty(self.array.shape, self.array.dtype)

    def for_loops(
        self, fmt: FormatLike, **options: Any
    ) -> tuple[np.ndarray, LoopOptions]:
        """Return the numbers for the loops, in float64 if need be, and the loops' options."""
        fmt = format_of(fmt, function=self.function)
        dtype = self.array.dtype
        checked = loop_options(self.function, fmt, dtype, **options)
        if checked["parameters"].numbers.itemsize > dtype.itemsize:
            return widen(self.array), checked
        return self.array, checked

    def deliver(self, result: np.ndarray, out: np.ndarray | None) -> Any:
        """Return the result in the form of the input: `out`, a scalar or an array."""
        shaped = result.reshape(self.shape)
        if out is not None:
            if out is not result:
                out[...] = shaped
            return out
        if self.scalar:
            return shaped[()]
        if not self.dtype.isnative:
            return shaped.astype(self.dtype)
        return shaped
