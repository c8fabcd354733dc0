"""Formats, their codes, and rounding to a format, for NumPy and torch."""

from mplab.numbers.codes import (
    Fields as Fields,
    decode as decode,
    encode as encode,
    fields as fields,
    next_down as next_down,
    next_up as next_up,
    ulp as ulp,
    values as values,
)
from mplab.numbers.formats import (
    BF16 as BF16,
    E4M3 as E4M3,
    E5M2 as E5M2,
    FORMATS as FORMATS,
    FP4_E2M1 as FP4_E2M1,
    FP6_E2M3 as FP6_E2M3,
    FP6_E3M2 as FP6_E3M2,
    FP8_E4M3 as FP8_E4M3,
    FP8_E4M3FNUZ as FP8_E4M3FNUZ,
    FP8_E5M2 as FP8_E5M2,
    FP8_E5M2FNUZ as FP8_E5M2FNUZ,
    FP8_E8M0 as FP8_E8M0,
    FP16 as FP16,
    FP32 as FP32,
    FP64 as FP64,
    TF32 as TF32,
    Event as Event,
    Format as Format,
    Overflow as Overflow,
    Rounding as Rounding,
    Specials as Specials,
    Tininess as Tininess,
    format_of as format_of,
)
from mplab.numbers.options import Stream as Stream, Tally as Tally
from mplab.numbers.rounding import (
    events as events,
    round_to as round_to,
    tally as tally,
)
from mplab.numbers.threads import set_threads as set_threads

# `import mplab` takes all of these: the names imported above, without the modules
__all__ = [
    name
    for name in dir()
    if name[0] != "_" and not hasattr(globals()[name], "__spec__")
]
