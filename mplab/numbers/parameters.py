"""From the arguments of a call to those of the loops: options checked, a format as integers."""

from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

import numpy as np

from mplab.numbers.checks import quoted
from mplab.numbers.formats import Format, Overflow, Rounding, Specials, Tininess
from mplab.numbers.options import Keys, Stream


class Known(NamedTuple):
    """What rounding knows of a format and of the rules.

    All are integers of the width of the input; numbers are given by their bits.
    """

    shift: Any  # bits of a normal number that are cut
    tiny_shift: Any  # the same where tininess is judged, with unbounded exponent
    all_odd: Any  # whether all significands but 0 are odd, at one bit of precision
    odd_codes: Any  # whether the parity of codes is the opposite of that of exponents
    grid_below: Any  # numbers below lie on the grid of the subnormals
    anchor: Any  # a float whose unit in the last place is the quantum of that grid
    quantum: Any
    per_quantum: Any
    min_normal: Any
    max_finite: Any
    beyond: Any  # the result past max_finite
    to_odd_beyond: Any  # the same, rounded to odd
    flush_in: Any  # inputs below are zero
    floor: Any  # results below are `floor_value`
    floor_value: Any
    infinity: Any
    nan: Any
    quiet: Any  # the bit of a quiet NaN
    sign_bit: Any
    no_sign: Any  # the sign bit in formats without signs
    no_minus_zero: Any  # the sign bit in formats without −0


class RoundingParameters(NamedTuple):
    """The parameters of the rounding loops for one format, one set of rules, one input dtype."""

    numbers: np.ndarray
    """Those of `Known` in an array, which the loops take."""
    address: int
    """Of these numbers in memory."""
    special_cases: bool
    """Whether inputs or outputs are flushed or the format lacks −0: rarely needed steps."""
    ufuncs: dict[Rounding, Any]
    """The ufuncs that `mplab.numbers.kernels.ufunc` made from these parameters."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a copy point to memory of its own."""
        return _parameters, (self.numbers, self.special_cases)


def _parameters(numbers: np.ndarray, special_cases: bool) -> RoundingParameters:
    return RoundingParameters(numbers, address_of(numbers), special_cases, {})


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
            choices = f"a member of {kind.__name__}"
            if kind is bool:
                choices = "True or False"
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


@lru_cache(maxsize=512)
def rounding_parameters(
    fmt: Format,
    dtype: np.dtype[Any],
    overflow: Overflow = Overflow.IEEE,
    flush_inputs: bool = False,
    flush_outputs: bool = False,
    tininess: Tininess = Tininess.AFTER,
) -> RoundingParameters | None:
    """Compute the loop parameters of `fmt` for float32 or float64 input.

    Returns:
        None if float32 cannot serve: some value of `fmt` is not a float32; its least value is a
        subnormal float32 although its emin is not that of float32; or the anchor would overflow.
    """
    info = np.finfo(dtype)
    integer = np.dtype(f"i{dtype.itemsize}")
    width = info.nmant + 1  # of significands, as in `fmt.precision`
    source_emin = int(info.minexp)
    shift = width - fmt.precision
    lowest = fmt.emin - fmt.precision + 1
    # Else subnormals of the format are subnormals of the input, and cut like normal numbers.
    gridded = fmt.emin > source_emin
    fits = shift >= 0 and fmt.emin >= source_emin and fmt.max_finite <= float(info.max)
    anchored = fmt.emin + shift < int(info.maxexp)  # else the anchor overflows
    if not fits or (gridded and not (anchored and lowest >= source_emin)):
        return None

    def bits(x: float) -> int:
        return int(np.array(x, dtype).view(integer))

    saturate = overflow is Overflow.SATURATE or not fmt.has_nan
    beyond = np.inf if fmt.has_infinity else np.nan
    if saturate:
        beyond = fmt.max_finite
    # With unbounded exponent the grid just below 2^emin is half as wide. If the format has the emin
    # of the source, the source's numbers there are subnormal, on one grid: the shift must shrink.
    tiny_shift = max(shift - 1, 0)
    grid_below = anchor = per_quantum = 0
    if gridded:
        tiny_shift = shift
        grid_below = bits(fmt.min_normal)
        anchor = bits(2.0 ** (fmt.emin + shift))
        per_quantum = bits(2.0**-lowest)
    if tininess is Tininess.BEFORE:
        tiny_shift = 0
    sign_bit = int(np.iinfo(integer).min)
    # At one bit of precision all significands but 0 are odd. P3109 goes by the parity of the code
    # there, which is that of the biased exponent; and its infinity, past an even code, is odd.
    by_code = fmt.specials is Specials.P3109
    one_bit = fmt.precision == 1
    known = Known(
        shift=shift,
        tiny_shift=tiny_shift,
        all_odd=one_bit and not by_code,
        odd_codes=one_bit and by_code and (fmt.emin - source_emin) % 2,
        grid_below=grid_below,
        anchor=anchor,
        quantum=bits(2.0**lowest),
        per_quantum=per_quantum,
        min_normal=bits(fmt.min_normal),
        max_finite=bits(fmt.max_finite),
        beyond=bits(beyond),
        to_odd_beyond=bits(beyond if by_code else fmt.max_finite),
        flush_in=bits(fmt.min_normal) if flush_inputs else 0,
        floor=bits(fmt.min_normal) if flush_outputs or not fmt.has_zero else 0,
        floor_value=0 if fmt.has_zero else bits(fmt.min_normal),
        infinity=bits(np.inf),
        nan=bits(np.nan),
        quiet=1 << (info.nmant - 1),
        sign_bit=sign_bit,
        no_sign=0 if fmt.signed else sign_bit,
        no_minus_zero=0 if fmt.has_negative_zero else sign_bit,
    )
    special_cases = flush_inputs or flush_outputs or not fmt.has_negative_zero
    return _parameters(np.array(known, integer), special_cases)


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first number, in a third of the time of `array.ctypes`."""
    address: int = array.__array_interface__["data"][0]
    return address
