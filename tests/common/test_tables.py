"""The table: what a reader of the page and one of the text get."""

import pytest

from mplab import FP16
from mplab.common.tables import Table
from mplab.numbers.formats import Format

ROWS = (("FP16", "16"), ("FP32", "32"))


def test_a_table_escapes_what_it_shows():
    page = Table("<a>", ("b",), (("<c>", "&"),))._repr_html_()
    assert "<a>" not in page
    assert "<c>" not in page
    assert "&lt;c&gt;" in page
    assert "&amp;" in page


@pytest.mark.parametrize(
    ("caption", "header", "text", "tags"),
    [
        (
            "Formats",
            ("format", "bits"),
            "Formats\nformat  bits\nFP16    16\nFP32    32",
            (1, 1),
        ),
        ("Formats", (), "Formats\nFP16  16\nFP32  32", (1, 0)),
        ("", ("name", "bits"), "name  bits\nFP16  16\nFP32  32", (0, 1)),
        ("", (), "FP16  16\nFP32  32", (0, 0)),
    ],
)
def test_a_table_leaves_out_an_empty_caption_and_empty_headings(
    caption, header, text, tags
):
    table = Table(caption, header, ROWS)
    assert repr(table) == text
    page = table._repr_html_()
    assert (page.count("<caption"), page.count("<thead")) == tags
    assert page.count('scope="row"') == len(ROWS)


def test_the_card_of_a_format_names_its_rows_and_escapes_its_note():
    assert FP16._repr_html_().count('scope="row"') == len(str(FP16).splitlines()) - 1
    odd = Format("A<B", exponent_bits=4, precision=4, note="<i>half</i>")
    assert "A&lt;B" in odd._repr_html_()
    assert "<i>" not in odd._repr_html_()
