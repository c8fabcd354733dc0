"""A table with marked headings, which a screen reader can read aloud."""

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """Rows under headings, shown by Jupyter as an HTML table and printed as text.

    Attributes:
        caption: what the table is about; empty for none.
        header: a heading for each column; empty for none.
        rows: the cells; the first cell of a row is its heading.

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
        lines = [self.header, *self.rows] if self.header else self.rows
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.caption, *text] if self.caption else text)

    def _repr_html_(self) -> str:
        left = 'style="text-align:left"'
        head = "".join(
            f'<th scope="col" {left}>{escape(cell)}</th>' for cell in self.header
        )
        body = "".join(
            f'<tr><th scope="row" {left}>{escape(first)}</th>'
            + "".join(f"<td {left}>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
            for first, *cells in self.rows
        )
        bold = 'style="text-align:left;font-weight:bold"'
        caption = (
            f"<caption {bold}>{escape(self.caption)}</caption>" if self.caption else ""
        )
        top = f"<thead><tr>{head}</tr></thead>" if head else ""
        return f"<table>{caption}{top}<tbody>{body}</tbody></table>"


class Tabular:
    """Anything that is shown as its `table`."""

    @property
    def table(self) -> Table:
        """The table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()
