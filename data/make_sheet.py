"""Write the formats into the sheet that learners keep open, lessons/SHEET.md.

python data/make_sheet.py
"""

import math

from mplab import FORMATS
from mplab.common.files import course_folder
from mplab.common.words import number, superscript

LAST = "FP4_E2M1"
"""The last format in the table; those after it stand in no lesson."""

HEAD = (
    "| format | bits: sign, exponent, trailing | p | u | largest | smallest normal | smallest "
    "| not finite |\n|---|---|--:|---|--:|---|---|---|"
)


def power(x: float) -> str:
    """Write a number as a power of two if it is one."""
    significand, exponent = math.frexp(x)
    return f"2{superscript(exponent - 1)}" if significand == 0.5 else number(x)


def table() -> str:
    """The formats of the lessons, a row each, in Markdown."""
    rows = [HEAD]
    names = list(FORMATS)
    for name in names[: names.index(LAST) + 1]:
        fmt = FORMATS[name]
        fields = f"{int(fmt.signed)}, {fmt.exponent_bits}, {fmt.precision - 1}"
        rows.append(
            f"| {name} | {fmt.bits}: {fields} | {fmt.precision} | {power(fmt.unit_roundoff)} "
            f"| {number(fmt.max_finite)} | {power(fmt.min_normal)} | {power(fmt.min_subnormal)} "
            f"| {fmt.specials.value} |"
        )
    return "\n".join(rows)


def renewed(text: str) -> str:
    """Replace the table in a sheet."""
    before, _, rest = text.partition("| format |")
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n\n{after}"


if __name__ == "__main__":
    path = course_folder("lessons") / "SHEET.md"
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
