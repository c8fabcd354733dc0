"""Parameters of the rounding loops: a format and the rounding rules as an integer array."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mplab.numbers.formats import Format, Overflow, Rounding, Specials, Tininess

Keys = Callable[[int], tuple[int, int]]
"""The random keys of the k-th 2^32 elements; see `mplab.Stream.keys`."""


class RoundingParameters(NamedTuple):
    """The parameters of the rounding loops for one format, one set of rules, one input dtype."""

    numbers: np.ndarray
    """Integers of the width of the input, shape (21,), in the order `_round_bits` unpacks."""
    special_cases: bool
    """Whether inputs or outputs are flushed or the format lacks −0: rarely needed steps."""
    ufuncs: dict[Rounding, Any]
    """The ufuncs that `mplab.numbers.kernels.ufunc` made from these parameters."""


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
    width = info.nmant + 1
    source_emin = int(info.minexp)
    shift = width - fmt.precision
    lowest = fmt.emin - fmt.precision + 1
    gridded = fmt.emin > source_emin
    fits = shift >= 0 and fmt.emin >= source_emin and fmt.max_finite <= float(info.max)
    anchored = fmt.emin + shift < int(info.maxexp)  # else the anchor overflows
    if not fits or (gridded and not (anchored and lowest >= source_emin)):
        return None

    def bits(x: float) -> int:
        return int(np.array(x, dtype).view(integer))

    saturate = overflow is Overflow.SATURATE or not fmt.has_nan
    beyond = fmt.max_finite if saturate else np.inf if fmt.has_infinity else np.nan
    # With unbounded exponent the grid just below 2^emin is half as wide. If the format has the emin
    # of the source, the source's numbers there are subnormal, on one grid: the shift must shrink.
    tiny_shift = shift if gridded else max(shift - 1, 0)
    sign_bit = int(np.iinfo(integer).min)
    # At one bit of precision all significands but 0 are odd. P3109 goes by the parity of the code
    # there, which is that of the biased exponent; and its infinity, past an even code, is odd.
    by_code = fmt.specials is Specials.P3109
    one_bit = fmt.precision == 1
    parameters = [
        shift,
        0 if tininess is Tininess.BEFORE else tiny_shift,
        one_bit and not by_code,
        one_bit and by_code and (fmt.emin - source_emin) % 2,
        bits(fmt.min_normal) if gridded else 0,
        bits(2.0 ** (fmt.emin + shift)) if gridded else 0,
        bits(2.0**lowest),
        bits(2.0**-lowest) if gridded else 0,
        bits(fmt.min_normal),
        bits(fmt.max_finite),
        bits(beyond),
        bits(beyond if by_code else fmt.max_finite),
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
    special_cases = flush_inputs or flush_outputs or not fmt.has_negative_zero
    return RoundingParameters(np.array(parameters, integer), special_cases, {})
