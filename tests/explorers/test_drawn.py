"""Pictures of explorers are those that somebody looked at, and so are their still pictures."""

import json

import pytest
from drawn import assert_as_it_was, told
from every_figure import LAYERS
from histories import history

from mplab import BF16, FP32, Format, explorers
from mplab.course.explorers import chart
from mplab.course.explorers.modules import to_live_html
from mplab.course.pictures.canvas import power_of_two


def range_map():
    explorer = explorers.RangeMap(history("fp32", 9, gradients={3: LAYERS, 5: {}}))
    pictures = [explorer.draw()]
    explorer.scale.value = explorer.scale.max
    explorer.layer.value = "decoder"
    return [*pictures, explorer.draw()]


def every_part():
    """A chart with everything that a chart can have."""
    drawn = chart.Chart(
        chart.Scale(0, 8, 60, 460, inset=10), chart.Scale(-3, 3, 240, 20, log=True)
    )
    drawn.frame()
    drawn.ticks_x([0, 4, 9], lambda x: f"{x}!", mark=True)
    drawn.ticks_x([2], down=31, grid=True)
    drawn.ticks_y([0.125, 1, 16, 0], mark=True)
    drawn.ticks_y([2.0], power_of_two, grid=True)
    drawn.band(0.5, 0.25)
    drawn.zone(1, 2, 0.5)
    drawn.curve([0, 4, 8], [1, 2, 4], "#117733", 2, dots=True, more=chart.DASHED)
    drawn.curve([], [])
    drawn.line(f"M60 20{drawn.stairs([1, 2, 0.5])}")
    drawn.area("M0 0h9v9z", "#7A21DD", 0.5)
    drawn.name_ends([(4, "one"), (4, "other")])
    drawn.below("steps & more")
    drawn.upright(15, 130, "size")
    on = chart.Chart(chart.Scale(0, 1, 500, 600), chart.Scale(0, 1, 240, 20), drawn)
    on.frame()
    on.text(550, 130, "")
    return [(drawn.svg("parts", width=650, height=300.6, panels=2), "")]


def bars():
    rows = [
        chart.Bar("a", 2, "two", "#EE6677"),
        chart.Bar("b", 9, "nine", "#117733", True),
    ]
    ticks = {"ticks": [0, 4, 8], "tick_words": str, "mark": 4, "axis": "size"}
    x = chart.Scale(0, 8, 100, 400)
    return [(chart.bars(rows, x, "Bars", width=500, row=30, **ticks), "")]


PICTURES = {"range map": range_map, "chart": every_part, "bars": bars}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_one_that_it_was(name):
    for number, (svg, words) in enumerate(PICTURES[name]()):
        text = "\n<".join([*svg.split("<"), f"!-- {words} -->\n"]).lstrip()
        assert_as_it_was(text, __file__, f"{name} {number}.svg")


UNSIGNED = Format("U3", exponent_bits=3, precision=2, signed=False)
STILL = {
    "bits": lambda: explorers.BitExplorer(0.1, UNSIGNED),
    "line": lambda: explorers.NumberLine(around="-3.5"),
    "line at a large number": lambda: explorers.NumberLine(
        BF16, FP32, around=2**30, zoom=-99
    ),
    "lab": lambda: explorers.RoundingLab("-17", seed=2**60),
    "lab at an end": lambda: explorers.RoundingLab("0", UNSIGNED),
}


@pytest.mark.parametrize("name", STILL)
def test_an_explorer_in_the_page_starts_as_it_did(name):
    explorer = STILL[name]()
    state = {k: v for k, v in explorer.get_state().items() if not k.startswith("_")}
    words = json.dumps({k: v for k, v in state.items() if k != "layout"}, indent=1)
    text = f"{words}\n{told(explorer.static_picture())}"
    assert_as_it_was(text, __file__, f"{name}.txt")


@pytest.mark.parametrize("number", ["0x3C", "-0", "1/0", "nan"])
def test_what_is_no_exact_number_has_no_still_picture(number):
    line = explorers.NumberLine(around=number, zoom=99)
    assert line.static_picture() is None and line.zoom == 18
    bits = explorers.BitExplorer(number)
    assert bits.static_picture() is None and "<img" not in to_live_html(bits)
    assert explorers.RoundingLab(number).static_picture() is None
    assert explorers.NumberLine(FP32, FP32).static_picture() is None


@pytest.mark.parametrize("number", ["1e400", "-449", "1e5000"])
def test_what_the_page_refuses_has_no_still_picture(number):
    assert explorers.RoundingLab(number).static_picture() is None
    line = explorers.NumberLine(around=number).static_picture()
    assert (line is None) == (number != "-449")
    claim = explorers.BitExplorer(number).static_picture().claim
    assert claim.startswith(f"{number} is stored as ")
