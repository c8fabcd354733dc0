"""A table that can be read aloud."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under headings, shown by Jupyter as an HTML table and printed as text.

    Examples:
        >>> print(Table("Formats", ("name", "bits"), (("FP16", "16"), ("FP32", "32"))))
        Formats
        name  bits
        FP16  16
        FP32  32
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __repr__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
        return "\n".join([self.caption, *text])

    def _repr_html_(self) -> str:
        left = 'style="text-align:left"'
        head = "".join(f'<th scope="col" {left}>{escape(cell)}</th>' for cell in self.header)
        body = "".join(
            f'<tr><th scope="row" {left}>{escape(first)}</th>'
            + "".join(f"<td {left}>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
            for first, *cells in self.rows
        )
        caption = (
            f'<caption style="text-align:left;font-weight:bold">{escape(self.caption)}</caption>'
        )
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
