"""The figures: by what they draw, whether it can be read, and by whom."""

import re
from base64 import b64decode
from functools import cache
from html import escape
from itertools import combinations, product
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from coloraide import Color
from every_figure import FIGURES, THREE
from histories import STEPS, learning as history
from legible import assert_legible, assert_words_stand_out, words_of
from matplotlib.figure import Figure
from PIL import Image
from tiers import mostly_slow

import mplab
from mplab import BF16, FP8_E5M2, FP16, FP32, pictures, round_to
from mplab.common.files import course_folder
from mplab.course.pictures import canvas
from mplab.course.pictures.grades import class_parts
from mplab.lessons.l01.figures import flushed_share
from mplab.training import (
    RECIPES,
    ExponentHistogram,
    exponents as ranges,
)

SVG = "http://www.w3.org/2000/svg"
COLOURS = {"reference": canvas.REFERENCE.colour} | {
    name: look.colour for name, look in canvas.STYLES.items()
}
NEUTRAL = {look.marker: look.colour for look in canvas.NEUTRAL}


def histogram(low, counts, zeros=0):
    exponents = np.arange(low, low + len(counts))
    return ExponentHistogram(exponents, np.array(counts, dtype=np.int64), zeros, 0)


def shifted(layers, k):
    """The histograms of the same numbers times 2^k."""
    return {n: h._replace(exponents=h.exponents + k) for n, h in layers.items()}


LAYERS = {
    "encoder 1": histogram(-30, [1, 2, 1]),
    "encoder 2": histogram(-26, [1, 2, 1]),
}


# Palette ---------------------------------------------------------------------------------


def on_a_dark_page(colour):
    """The second of the colours that `light_dark` gives."""
    turned = re.search(r"calc\((.*?) - l\)", canvas.light_dark(colour))[1]
    seen = Color(colour).convert("oklch")
    return seen.set("l", float(turned) - seen["l"]).convert("srgb").clip()


@pytest.mark.parametrize("look", [Color, on_a_dark_page])
def test_words_in_and_on_a_colour_can_be_read_also_on_a_dark_page(look):
    white = look("#ffffff")
    for colour in (canvas.INK, *canvas.FIELDS.values()):
        assert look(colour).contrast(white, method="wcag21") >= 4.5
    for colour in (*COLOURS.values(), *NEUTRAL.values()):
        assert look(colour).contrast(white, method="wcag21") >= 3


@pytest.mark.parametrize("sight", ["protan", "deutan", "tritan"])
@pytest.mark.parametrize(
    ("method", "least"), [("machado", 17.5), ("vienot", 14), ("brettel", 12)]
)
def test_two_colours_differ_whatever_the_reader_s_colour_vision(sight, method, least):
    """Least difference measured: 17.8, 14.3 and 12.4, the last two between FP16 and BF16."""
    seen = {name: Color(c).filter(sight, method=method) for name, c in COLOURS.items()}
    for one, other in combinations(seen, 2):
        assert seen[one].delta_e(seen[other], method="2000") >= least, (one, other)
    for one, other in combinations(NEUTRAL.values(), 2):
        pair = [Color(colour).filter(sight, method=method) for colour in (one, other)]
        assert pair[0].delta_e(pair[1], method="2000") > 12.5


def test_a_format_s_colour_and_dash_mean_the_format_and_nothing_else():
    """Least difference of a neutral colour from a format's: 18.7, of grey from FP32's."""
    for neutral, look in product(canvas.NEUTRAL, canvas.STYLES.values()):
        assert Color(neutral.colour).delta_e(Color(look.colour), method="2000") > 18
        assert neutral.marker != look.marker
        assert (
            neutral.dash in ("solid", canvas.REFERENCE.dash)
            or neutral.dash != look.dash
        )
    formats = "|".join(look.colour for look in canvas.STYLES.values())
    drawing = [
        *Path(mplab.__file__).parent.rglob("*.py"),
        *course_folder("lessons").rglob("*.py"),
    ]
    by_hand = rf'{formats}|STYLES\["'
    found = {
        path.name
        for path in drawing
        if re.search(by_hand, path.read_text("utf-8"), re.I)
    }
    assert found == {"canvas.py"}


def test_marker_and_dash_repeat_what_the_colour_says():
    markers = [look.marker for look in canvas.STYLES.values()]
    assert len(set(markers)) == len(markers)
    for first, second in combinations([FP32, FP16, BF16], 2):
        assert canvas.style(first).dash != canvas.style(second).dash
    assert canvas.style(mplab.TF32) == canvas.REFERENCE, "outside the palette"


# Words and places ------------------------------------------------------------------------


def test_a_power_of_two_is_required_where_exponents_are_shifted():
    with pytest.raises(ValueError, match=r"must be a positive power of two; got 3\.0"):
        ranges.exponent_of(3.0)


def test_labels_are_moved_apart_in_their_order_and_stay_inside_their_row():
    places = canvas.spread(
        [5.0, 5.0, 5.5, 40.0], [4.0, 2.0, 4.0, 2.0], low=0.0, high=50.0
    )
    assert places == sorted(places)
    assert np.all(np.diff(places) >= [3.0, 3.0, 3.0])
    assert places[3] == 40.0
    assert canvas.spread([-3.0, 12.0], [2.0, 2.0], low=0.0, high=10.0) == [1.0, 9.0]
    assert canvas.spread([3.0], [2.0], low=0.0, high=10.0) == [3.0]


# Ranges ----------------------------------------------------------------------------------


def test_the_limits_are_where_rounding_changes():
    for fmt in (FP16, BF16, FP8_E5M2):
        edges = ranges.zones(fmt)
        assert round_to(2.0**edges.flushed, fmt) == 0
        assert round_to(1.01 * 2.0**edges.flushed, fmt) == fmt.min_subnormal
        assert round_to(2.0**edges.subnormal, fmt) == fmt.min_normal
        assert np.isinf(round_to(2.0**edges.overflow, fmt))


# Figures ---------------------------------------------------------------------------------


STALLED = np.full(STEPS, 0.07)
BROKEN = np.where(np.arange(STEPS) < 20, 0.1, np.nan)
FLUSHED = {
    step: {f"layer {i}": (n, 100) for i, n in enumerate((100, 99, 26, 8, 1, 0))}
    for step in (0, 30, 59)
}


@cache
def drawn(name):
    """A figure that tests share and leave as it is."""
    return FIGURES[name]()


SHOWN = ["losses", "gradients", "scales"]
"""Figures with many words."""


@pytest.mark.parametrize("name", mostly_slow(FIGURES, SHOWN))
def test_a_figure_can_be_read(name):
    assert_legible(drawn(name))


@pytest.mark.slow
def test_many_runs_and_one_part_and_many_can_be_read():
    runs = [history(recipe, factor=1 + i / 9) for i, recipe in enumerate(RECIPES)]
    assert_legible(pictures.loss_curves(runs))
    for size in (1, 40):
        parts = {
            f"part {i}": dict.fromkeys([*THREE, "not attempted"], i)
            for i in range(size)
        }
        assert_legible(class_parts(parts))


@pytest.mark.parametrize("name", mostly_slow(SHOWN, ["gradients"]))
def test_jupyter_gets_an_image_with_its_description(name):
    picture = drawn(name)
    bundle = picture._repr_mimebundle_()
    image = re.fullmatch(
        r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"[^>]*><style>[^<]*</style>',
        bundle["text/html"],
    )
    svg = b64decode(image[1]).decode()
    words = {
        "".join(text.itertext()).strip()
        for text in ElementTree.fromstring(svg).iter(f"{{{SVG}}}text")
    }
    every = {line for text in words_of(picture) for line in text.split("\n")}
    assert every and every <= words
    # Each colour has a name, which is given for both.
    look, _, shapes = svg.partition("</style>")
    assert not re.search(r"#[0-9a-f]{6}\b", shapes)
    assert re.findall(r"class='k\d+'", shapes) and "style=" not in shapes
    for name in set(re.findall(r"var\((--\d+)\)", look)):
        (colour,) = re.findall(rf"{name}:(#\w{{6}});", look)
        assert f"{name}:light-dark({colour}," in look
    assert bundle["text/plain"] == picture.alt and "nan" not in bundle["text/plain"]


def test_a_figure_on_a_page_keeps_all_digits_of_its_words():
    picture = pictures.bit_fields(0.1, [FP16])
    svg = b64decode(picture.address().partition(",")[2])
    assert b">0.0999755859<" in svg


def test_the_legibility_check_sees_overlap_and_clipping():
    figure = Figure(figsize=(3, 2))
    figure.text(0.5, 0.5, "one")
    assert_legible(figure)
    figure.text(0.52, 0.5, "two")
    with pytest.raises(AssertionError, match="one"):
        assert_legible(figure)
    clipped = Figure(figsize=(3, 2))
    clipped.text(0.9, 0.5, "too far to the right")
    with pytest.raises(AssertionError, match="too far"):
        assert_legible(clipped)


def test_the_legibility_check_sees_faint_words_on_what_is_behind_them():
    figure = Figure(figsize=(3, 2))
    figure.text(0.5, 0.5, "blue", color=canvas.STYLES["FP32"].colour)
    with pytest.raises(AssertionError, match=r"faint: .*blue': 3\.[01]"):
        assert_legible(figure)
    dark = Figure(figsize=(3, 2), facecolor="black")
    dark.text(0.5, 0.5, "ink", color=canvas.INK)
    with pytest.raises(AssertionError, match="faint"):
        assert_legible(dark)
    box = '<rect fill="#222" width="99" height="99"/>'
    svg = f'<svg style="fill:{canvas.INK}">{box}<text x="9" y="20">ink</text></svg>'
    with pytest.raises(AssertionError, match="faint"):
        assert_words_stand_out(svg)


def test_the_reader_s_settings_neither_change_a_figure_nor_are_changed():
    plain = FIGURES["one loss"]().png()
    with matplotlib.rc_context(
        {"axes.facecolor": "black", "font.size": 30, "lines.linewidth": 9}
    ):
        assert FIGURES["one loss"]().png() == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_a_saved_figure_carries_its_description(tmp_path):
    figure = drawn("one loss")
    for name in ("figure.svg", "figure.png"):
        figure.save(tmp_path / name)
    with Image.open(tmp_path / "figure.png") as image:
        assert image.text["Description"] == figure.alt
    svg = (tmp_path / "figure.svg").read_text("utf-8")
    assert escape(figure.alt, quote=False) in svg
    assert "<text" not in svg  # the same letters wherever it is shown


def test_the_loss_title_says_what_the_runs_show():
    def title(**changes):
        return pictures.loss_curves([history("fp32"), history(**changes)]).claim

    assert title(loss=STALLED) == "FP16 without scaling ends at 2.3× FP32's loss"
    assert title() == "FP16 without scaling ends within 10% of FP32"
    assert title(loss=BROKEN) == "FP16 without scaling ends without a finite loss"


def test_the_loss_title_says_which_run_diverged():
    def title(*runs):
        return assert_legible(pictures.loss_curves(runs)).claim

    fp16 = history()
    assert title(history("fp32", loss=BROKEN), fp16) == (
        "FP32 ends without a finite loss; FP16 without scaling ends at a loss of 0.0307"
    )
    assert title(history("fp32"), fp16, history(seed=1, loss=BROKEN)) == (
        "FP16 without scaling ends without a finite loss in 1 of 2 runs"
    )
    never = np.full(STEPS, np.nan)
    assert title(history("fp32"), history(loss=never)).endswith("a finite loss")
    lost = assert_legible(pictures.loss_scale([history(loss_scale=0 * fp16.loss)]))
    assert lost.claim.endswith("its loss scale stays at 0")


def test_a_seed_that_diverged_hides_no_other():
    found = pictures.by_seed({"FP32": [0.9, 0.91], "FP16": [0.9, np.nan]})
    assert found.claim.endswith("0.000 and 1 not finite with FP16")
    worst = {name: [0.5 + k] for k, name in enumerate(("FP32", "a", "b", "c"))}
    claim = pictures.by_seed({**worst, "d": [np.nan]}).claim
    assert "lowest not finite with d and highest +3.000 with c" in claim


def test_the_loss_axis_names_the_loss_of_the_task():
    def label(task):
        return pictures.loss_curves([history("fp32", task=task)]).axes[0].get_ylabel()

    assert label("digits-autoencoder") == "training loss (mean squared error)"
    assert label("digits-cnn") == "training loss (cross entropy)"
    assert label("mine") == "training loss"


def test_the_name_of_a_run_is_that_of_its_formats_whatever_its_recipe_is_called():
    def name(**settings):
        run = history("mine", compute_format="BF16", settings=settings)
        return pictures.loss_curves([run]).claim.partition(" ends")[0]

    assert name() == name(weight_format="FP32") == "BF16"
    assert name(weight_format="BF16", optimizer_format="BF16") == "pure BF16"
    kept = {"weight_format": "BF16", "optimizer_format": "FP32"}
    assert name(**kept) == "BF16 with BF16 weights"
    assert name(**kept, update_rounding="kahan") == "BF16 with Kahan BF16 weights"
    assert name(weight_format="FP16", update_rounding="stochastic") == (
        "BF16 with stochastic FP16 weights"
    )
    assert name(fp8="current") == "BF16 current scaling"
    assert name(fp8="nvfp4") == "nvfp4"  # which says its format itself


def test_only_mixed_precision_is_called_amp():
    def place(compute_format="BF16", **settings):
        run = history("amp-bf16", compute_format=compute_format, settings=settings)
        return pictures.results_table([run]).rows[0][1]

    assert place() == place(weight_format="FP32", fp8=None) == "torch AMP on CPU"
    assert (
        place(weight_format="BF16")
        == place(fp8="current")
        == place("FP32")
        == "torch on CPU"
    )


def test_runs_of_one_format_differ_in_dash_and_marker():
    static = {"settings": {"dynamic": False}, "loss_scale": np.full(STEPS, 2.0**18)}
    runs = [history("fixed", compute_format="FP16", **static)]
    runs += [history("fp16-scaled"), history("fp16-naive"), history("bf16")]
    for draw in (pictures.loss_curves, pictures.loss_scale):
        picture = draw(runs)
        lines = [
            line for line in picture.axes[0].lines if len(line.get_xdata()) == STEPS
        ]
        looks = {
            (
                line.get_color(),
                str(line._dash_pattern),
                line.get_fillstyle(),
                hollow(line),
            )
            for line in lines
        }
        assert len(lines) == len(looks) == 4
    assert_legible(picture)


def hollow(line):
    return line.get_markerfacecolor() == "white"


def test_the_gradient_title_counts_what_is_lost():
    claim = pictures.gradient_exponents(LAYERS, FP16).claim
    assert claim == "FP16 flushes 62.5% of these gradients to 0 (100% in encoder 1)"
    fitting = pictures.gradient_exponents(shifted(LAYERS, 10), FP16).claim
    assert fitting == "FP16 flushes none of these gradients to 0 and overflows on none"
    over = pictures.gradient_exponents(shifted(LAYERS, 41), FP16).claim
    assert over == "FP16 overflows on 37.5% (75% in encoder 2)"
    broken = histogram(0, [])._replace(nonfinite=5)
    lost = assert_legible(pictures.gradient_exponents({"a": broken}, FP16))
    assert lost.claim.endswith("overflows on none; 5 are inf or NaN")
    assert "a: all are 0, inf or NaN." in lost.alt
    assert_legible(pictures.gradient_exponents({"a": histogram(-1074, [1])}, FP16))


def test_bands_lie_at_the_limits_of_the_format():
    for fmt in (FP16, BF16):
        axes = pictures.gradient_exponents(LAYERS, fmt).axes[0]
        edges = ranges.zones(fmt)
        low, high = axes.get_xlim()
        bands = [p for p in axes.patches if p.get_height() == 1]
        assert sorted((p.get_x(), p.get_x() + p.get_width()) for p in bands) == [
            (low, edges.flushed),
            (edges.flushed, edges.subnormal),
            (edges.overflow, high),
        ]
        words = [text.get_text() for text in axes.texts][-4:]
        assert words == [
            "flushed to 0", "subnormal", f"normal in {fmt.name}", "overflow"
        ]  # fmt: skip


def test_flushed_bars_have_the_recorded_lengths():
    figure = assert_legible(flushed_share(history(flushed=FLUSHED)))
    assert [bar.get_width() for bar in figure.axes[0].patches] == [100, 99, 26, 8, 1, 0]
    assert figure.axes[0].yaxis.get_inverted()
    assert figure.claim == (
        "FP16 without scaling: 39% of the gradients are flushed to 0 at step 0, 39% at step 30 "
        "and 39% at step 59"
    )
