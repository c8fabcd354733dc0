"""The explorer of rounding: which bits decide, and what each mode makes of them."""

from __future__ import annotations

import traitlets

from mplab.explorers._entry import first_words, least_of, read_within, require_kind
from mplab.explorers.modules import PageExplorer, module
from mplab.numbers.checks import integer
from mplab.numbers.codes import ulp
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, Format, Rounding, require_format
from mplab.pictures.rounding import rounding_profile

FORMATS = (FP8_E4M3, FP8_E5M2, BF16, FP16)

_DRAWN = (Rounding.TIES_TO_EVEN, Rounding.TOWARD_ZERO, Rounding.STOCHASTIC)


class RoundingLab(PageExplorer):
    """Which bits decide where a number goes?

    The bits of a number, cut where the format ends: the bits it keeps, then guard, round
    and sticky. Below, what each of the six modes makes of it. The slider adds eighths of
    an ulp to the magnitude, which are exactly the patterns of those three bits: a negative
    number moves away from 0, as a positive one does. It lives in the page, without Python.

    Args:
        number: what to start with: anything that can be typed, or a float.
        fmt: the format to enter.
        mode: the mode to point out.
        seed: of the draws of stochastic rounding.

    Attributes:
        entry: the number that was typed; setting it, as each of these, shows another.
        eighths: what is added to its magnitude, in eighths of an ulp, 0 to 16.
        format: the name of the format.
        mode: that of the rounding mode.
        seed: of the draws.
        formats: the facts of all formats that are offered.

    Raises:
        TypeError: an argument is of another kind.
        ValueError: `number` cannot be read, or is past the ends of the format.

    Exactness:
        The number and its chances are exact; results are those of `mplab.round_to`, for chance
        with the bits of `mplab.Stream(seed)`.

    Examples:
        >>> lab = RoundingLab("17")
        >>> lab.entry, lab.format, lab.mode
        ('17', 'FP8_E4M3', 'TIES_TO_EVEN')
    """

    _esm = module("rounding_lab.js")
    entry = traitlets.Unicode().tag(sync=True)
    eighths = traitlets.Int().tag(sync=True)
    format = traitlets.Unicode().tag(sync=True)
    mode = traitlets.Unicode().tag(sync=True)
    # JavaScript's numbers end at 2^53
    seed = traitlets.Int().tag(sync=True, to_json=lambda seed, widget: str(seed))

    def __init__(
        self,
        number: str | float = "17",
        fmt: Format = FP8_E4M3,
        *,
        mode: Rounding = Rounding.TIES_TO_EVEN,
        seed: int = 0,
    ) -> None:
        first = require_format("RoundingLab", fmt)
        words, exact = first_words(
            "RoundingLab",
            "number",
            number,
            lambda typed: read_within("The number", typed, fmt, fmt),
        )
        require_kind("RoundingLab", "mode", mode, Rounding)
        if mode is Rounding.TO_ODD:
            raise ValueError(
                f"RoundingLab: mode must be one of the lessons; got {mode!r}. Choose from the menu."
            )
        seed = integer("RoundingLab", "seed", seed, most=2**64 - 1)
        middle, reach = float(exact), 2 * float(ulp(float(exact), fmt))
        low, high = max(middle - reach, least_of(fmt)), min(middle + reach, fmt.max_finite)
        super().__init__(
            (*FORMATS, first),
            lambda: rounding_profile(fmt, _DRAWN, low, high, seed=seed),
            entry=words,
            format=first.name,
            mode=mode.name,
            seed=seed,
        )
