"""What low precision does to numbers and to training.

The number core is here: formats, codes, and the one door into a format, `round_to`. The
rooms that need torch, matplotlib or ipywidgets are loaded when first named:
`mplab.simulate`, `mplab.training`, `mplab.pictures`, `mplab.widgets` and the others.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from mplab.checks import check
from mplab.codes import (
    Fields,
    decode,
    encode,
    fields,
    from_ml_dtypes,
    next_down,
    next_up,
    to_ml_dtypes,
    ulp,
    values,
)
from mplab.formats import (
    BF16,
    FORMATS,
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP8_E5M2FNUZ,
    FP8_E8M0,
    FP16,
    FP32,
    TF32,
    Event,
    Format,
    Overflow,
    Rounding,
    Specials,
    Tininess,
    format_of,
)
from mplab.rounding import Stream, Tally, events, round_to, tally

__version__ = "0.1.0"

__all__ = [
    "BF16",
    "FORMATS",
    "FP4_E2M1",
    "FP6_E2M3",
    "FP6_E3M2",
    "FP8_E4M3",
    "FP8_E4M3FNUZ",
    "FP8_E5M2",
    "FP8_E5M2FNUZ",
    "FP8_E8M0",
    "FP16",
    "FP32",
    "TF32",
    "Event",
    "Fields",
    "Format",
    "Overflow",
    "Rounding",
    "Specials",
    "Stream",
    "Tally",
    "Tininess",
    "check",
    "decode",
    "encode",
    "events",
    "fields",
    "format_of",
    "from_ml_dtypes",
    "next_down",
    "next_up",
    "round_to",
    "tally",
    "to_ml_dtypes",
    "ulp",
    "values",
]


def _rooms() -> set[str]:
    """The modules and packages beside this file."""
    return {module.name for module in iter_modules(__path__) if module.name[0] != "_"}


def __getattr__(name: str) -> Any:
    if name in _rooms():
        return import_module(f"mplab.{name}")
    raise AttributeError(f"module 'mplab' has no attribute {name!r}")


def __dir__() -> list[str]:
    hidden = {"Any", "annotations", "import_module", "iter_modules"}
    return sorted({*globals(), *_rooms()} - hidden)
