"""The figures of formats: their bits, all their values, and their decimal digits."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from mplab.common.words import number, plural
from mplab.course.pictures import canvas as c
from mplab.numbers.codes import decode, encode, ulp, values
from mplab.numbers.formats import Format, Specials
from mplab.numbers.rounding import round_to

INTEGERS = "INT8"


# Bits ------------------------------------------------------------------------------------
@c.in_house_style
def bit_fields(x: float | str | Fraction, formats: Sequence[Format]) -> c.Picture:
    """Draw how each format stores a number, bit by bit.

    Args:
        x: the number; a decimal string or a Fraction is taken exactly.
        formats: one row each.

    Returns:
        A figure whose title says how many different numbers are stored.
    """
    asked = Fraction(x) if isinstance(x, str) else x
    stored = [float(round_to(x, fmt)) for fmt in formats]
    picture = c.Picture(height=0.7 + 0.42 * len(formats), width=8.6)
    axes = picture.subplots()
    axes.set_axis_off()
    longest = max(fmt.bits for fmt in formats)
    axes.set_xlim(-7.5, longest + 9)
    axes.set_ylim(len(formats) - 0.3, -1.2)
    for row, (fmt, value) in enumerate(zip(formats, stored, strict=True)):
        axes.text(
            -0.7,
            row,
            fmt.name,
            ha="right",
            va="center",
            color=c.INK,
            fontweight="bold",
        )
        axes.text(longest + 0.7, row, number(value, digits=9), ha="left", va="center")
        _draw_code(axes, row, int(encode(value, fmt)), fmt)
    for place, (name, colour) in zip((-1.5, 4.5, 16.5), c.FIELDS.items(), strict=True):
        axes.text(place, -0.85, name, color=colour, va="center", fontweight="bold")
    different = len({value for value in stored if math.isfinite(value)})
    exact = sum(math.isfinite(value) and Fraction(value) == asked for value in stored)
    sentence = (
        f"{x} is stored as {plural(different, 'number')} in "
        f"{plural(len(formats), 'format')}, exactly in {exact or 'none'} of them"
    )
    pairs = zip(formats, stored, strict=True)
    words = "; ".join(
        f"{fmt.name} {int(encode(value, fmt)):0{fmt.bits}b} = {number(value)}"
        for fmt, value in pairs
    )
    return c.titled(
        picture,
        sentence,
        f"Rows of bits: sign, exponent, trailing significand. {words}.",
    )


def _draw_code(axes: Axes, row: int, code: int, fmt: Format) -> None:
    """Draw a row of cells, filled where the bit is 1, in the colour of its field."""
    widths = (int(fmt.signed), fmt.exponent_bits, fmt.precision - 1)
    if fmt.specials is Specials.TWOS_COMPLEMENT:
        widths = (0, 0, fmt.bits)
    for place, colour in enumerate(np.repeat(list(c.FIELDS.values()), widths)):
        bit = code >> (fmt.bits - 1 - place) & 1
        face = colour if bit else "white"
        axes.add_patch(
            Rectangle(
                (place + 0.06, row - 0.34), 0.88, 0.68, facecolor=face, edgecolor=colour
            )
        )


# Whole formats ---------------------------------------------------------------------------
@c.in_house_style
def code_table(fmt: Format) -> c.Picture:
    """Draw a table of all non-negative numbers of a format of at most 8 bits, by their fields.

    Args:
        fmt: the format.

    Returns:
        A figure with one row for each exponent field and one column for each trailing
        significand; its title counts the codes.
    """
    if fmt.bits > 8:
        raise ValueError(
            f"code_table: fmt must have at most 8 bits; got {fmt.name} with {fmt.bits}. "
            "Use number_lines for a part of a wider format."
        )
    trailing = fmt.precision - 1
    rows = 1 << fmt.exponent_bits
    columns = 1 << trailing
    table = decode(np.arange(rows * columns), fmt).reshape(rows, columns)
    longest = max(len(_in_full(float(value))) for value in table.flat)
    wide = max(0.84, 0.077 * longest)
    picture = c.Picture(height=1.2 + 0.235 * rows, width=2.2 + wide * columns)
    axes = picture.subplots()
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    colour = c.style(fmt).colour
    for row in range(rows):
        for column in range(columns):
            value = float(table[row, column])
            _draw_cell(axes, row, column, value, fmt, colour)
    axes.set_xticks(
        range(columns), [f"{column:0{trailing}b}" for column in range(columns)]
    )
    axes.set_yticks(
        range(rows), [f"{row:0{fmt.exponent_bits}b}" for row in range(rows)]
    )
    axes.set_xlabel("trailing significand (pale: subnormal)")
    axes.set_ylabel("exponent field")
    axes.tick_params(length=0)
    every = values(fmt)
    finite = np.unique(every[np.isfinite(every)])  # −0 and 0 are one number
    infinite = int(np.isinf(every).sum())
    nan = int(np.isnan(every).sum())
    sentence = (
        f"{fmt.name}: {every.size} codes, {finite.size} different numbers, "
        f"{infinite or 'no'} infinit{'y' if infinite == 1 else 'ies'}, {plural(nan, 'NaN')}"
    )
    details = (
        f"Table of the {table.size} codes without sign; the first row goes up to "
        f"{number(float(table[0, -1]))}, the largest number is {number(fmt.max_finite)}."
    )
    return c.titled(picture, sentence, details)


def _draw_cell(
    axes: Axes, row: int, column: int, value: float, fmt: Format, colour: str
) -> None:
    """Draw a value in its cell: subnormals pale, infinities and NaNs grey."""
    normal = math.isfinite(value) and value >= fmt.min_normal
    face, alpha = (colour, 0.3) if normal else (colour, 0.1)
    if not math.isfinite(value):
        face = c.BAND
        alpha = 0.4
    corner = (column - 0.5, row - 0.5)
    axes.add_patch(
        Rectangle(
            corner,
            1,
            1,
            facecolor=face,
            alpha=alpha,
            edgecolor="white",
            linewidth=1,
        )
    )
    axes.text(column, row, _in_full(value), ha="center", va="center", fontsize=8.5)


def _in_full(value: float) -> str:
    """Write a number with all its digits; if these are many, as a multiple of a power of two.

    Examples:
        >>> (
        ...     _in_full(0.013671875),
        ...     _in_full(1.75 * 2.0**-14),
        ...     _in_full(2.0**-16),
        ...     _in_full(-0.0),
        ... )
        ('0.013671875', '1.75 · 2⁻¹⁴', '2⁻¹⁶', '−0')
    """
    words = number(value, digits=9)
    if not math.isfinite(value) or Fraction(words.replace("−", "-")) == Fraction(value):
        return words
    significand, exponent = math.frexp(value)
    power = c.power_of_two(2.0 ** (exponent - 1))
    if significand == 0.5:
        return power
    return f"{number(2 * significand, digits=17)} · {power}"


@c.in_house_style
def number_lines(
    formats: Sequence[Format], low: float, high: float, *, integers: bool = False
) -> c.Picture:
    """Draw all values of each format from `low` to `high`, as ticks on lines.

    Args:
        formats: one line each; of at most 20 bits.
        low: where the lines begin.
        high: where they end; if it is below `low`, the two are swapped.
        integers: whether the whole numbers of INT8 have a line too.

    Returns:
        A figure whose title counts the values.
    """
    low, high = sorted((low, high))
    rows = [
        (fmt.name, _between(values(fmt), low, high), c.style(fmt).colour)
        for fmt in formats
    ]
    if integers:
        rows.append((INTEGERS, _between(np.arange(-128.0, 128.0), low, high), "black"))
    picture = c.Picture(height=1.1 + 0.45 * len(rows))
    axes = picture.subplots()
    for row, (_, found, colour) in enumerate(rows):
        axes.plot([low, high], [row, row], color=c.BAND, linewidth=0.8)
        axes.vlines(
            found, row - 0.3, row + 0.3, color=colour, linewidth=1.1, clip_on=False
        )
    c.rows(axes, [name for name, _, _ in rows])
    axes.set_xlim(low, high)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("value")
    counts = [f"{name} {found.size}" for name, found, _ in rows]
    sentence = f"Numbers from {number(low)} to {number(high)}: {c.listed(counts)}"
    return c.titled(picture, sentence, "Ticks on one line for each format.")


def _between(every: np.ndarray, low: float, high: float) -> np.ndarray:
    finite = every[np.isfinite(every)]
    return np.unique(finite[(finite >= low) & (finite <= high)])


# Gaps, ranges, digits --------------------------------------------------------------------
def magnitudes(fmt: Format, window: tuple[int, int], *, each: int) -> np.ndarray:
    """Return magnitudes of a format from 2^low to 2^high, `each` in every binade."""
    low = max(window[0], fmt.emin - fmt.precision + 1)
    exponents = np.arange(low * each, min(window[1], fmt.emax + 1) * each) / each
    last = min(fmt.max_finite, 2.0 ** window[1])
    return np.append(2.0**exponents, last)


def decimal_digits(formats: Sequence[Format]) -> c.Picture:
    """Draw how many decimal digits a number has: the logarithm of its ratio to the gap there.

    Args:
        formats: one line each.

    Returns:
        A figure whose title says how many digits the normal numbers of each format have.
    """
    lines = []
    words = []
    line = {"linestyle": "solid", "linewidth": 1.2}
    for fmt in formats:
        x = magnitudes(fmt, (-30, 18), each=16)
        digits = np.log10(x / ulp(x, fmt))
        lines.append(c.Line(x, digits, fmt.name, c.style(fmt), line))
        least, most = ((fmt.precision - k) * math.log10(2) for k in (1, 0))
        words.append(f"{least:.1f} to {most:.1f} ({fmt.name})")
    claim = (
        f"A normal number has {c.listed(words)} decimal digits; a subnormal has fewer"
    )
    details = (
        "Saw teeth; at the left, among the subnormal numbers, bits are lost one by one."
    )
    quantities = "magnitude", "decimal digits"
    return c.line_chart(
        lines,
        *quantities,
        claim,
        details,
        log="x",
        finish=lambda axes: axes.set_ylim(bottom=0),
    )
