"""The page on some runs: whole in one file, described, and the same for the same runs."""

import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from histories import history as history_of
from legible import assert_legible
from tiers import mostly_slow

from mplab.pictures import loss_curves, report, results_table
from mplab.pictures.pages import class_parts
from mplab.training import RECIPES

pytestmark = pytest.mark.slow

STEPS = 60


def history(named, seed=0, factor=1.0, **changes):
    """A small run without training."""
    facts = {
        **{
            "task": "digits-autoencoder",
            "seed": seed,
            "metrics": {"r2": 0.5 + seed / 10},
        },
        "loss": factor * (0.03 + 0.2 * 0.9 ** np.arange(STEPS)) * (1 + seed / 10),
        "loss_scale": np.full(STEPS, RECIPES[named].init_scale or 1.0),
        "environment": {"torch": "2.13.0", "platform": "<machine>"},
    }
    return replace(history_of(named, STEPS), **facts | changes)


def several():
    falling = 2.0 ** np.maximum(20, 28 - np.arange(STEPS))
    return [
        *(history("fp32", seed) for seed in range(3)),
        *(history("fp16-naive", seed, 2.5) for seed in range(3)),
        *(history("fp16-overflow", s, loss_scale=falling) for s in range(3)),
        *(history("bf16-kahan", seed) for seed in range(3)),
        *(history("amp-bf16", seed, device="NVIDIA H100") for seed in range(3)),
    ]


class Page(HTMLParser):
    """The tags that are open, and the attributes of each tag."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, words):
        self.words.append(words)


def test_the_page_needs_nothing_from_outside_and_is_well_formed():
    page = Page(report(several()))
    assert page.open == []
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 2
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)
    assert all(len(image["alt"]) > 60 for image in images)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe"}
    assert not [
        a for _, a in page.tags if a.get("href") or a.get("src", "data:")[:5] != "data:"
    ]


def test_the_page_says_what_the_runs_show_and_where_they_come_from(tmp_path):
    source = tmp_path / "run.json"
    source.write_bytes(b"runs")
    words = " ".join(Page(report(several(), source=source)).words)
    digest, claim = hashlib.sha256(b"runs").hexdigest(), loss_curves(several()).claim
    machines = ("cpu, NVIDIA H100", "<machine>")  # escaped in the source
    for said in (
        claim,
        digest,
        "digits-autoencoder, seeds 0, 1 and 2",
        "kahan",
        *machines,
    ):
        assert said in words


def test_equal_runs_give_equal_pages():
    assert report(several()) == report(several())


def test_one_run_has_a_page_too():
    words = " ".join(Page(report([history("fp32")])).words)
    assert "FP32 ends at a loss of 0.03" in words


def test_seeds_share_a_line_with_their_range_behind_it():
    runs = several()
    figure = assert_legible(loss_curves(runs))
    simulated = figure.axes[0]
    assert simulated.get_title(loc="left") == "simulated\nmedian and range of 3 seeds"
    assert len(simulated.lines) == len(simulated.collections) == 4
    middle = simulated.lines[0].get_ydata()
    np.testing.assert_array_equal(middle, runs[1].loss)
    edges = simulated.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (runs[0].loss.min(), runs[2].loss.max())


def test_recipes_that_look_alike_are_kept_apart_by_their_names():
    runs = [
        history("fp32"),
        history("fp16-scaled"),
        history("fp16-overflow", factor=2.0),
    ]
    first, second = (
        "FP16 with loss scaling (fp16-scaled)",
        "FP16 with loss scaling (fp16-overflow)",
    )
    assert [row[0] for row in results_table(runs).rows] == ["FP32", first, second]
    assert loss_curves(runs).claim == (
        f"{second} ends at 2.0× FP32's loss; {first} ends within 10% of it"
    )


def test_settings_in_the_page_are_words_and_one_is_not_yes():
    runs = [
        history("fp32", settings={"max_norm": norm}, recipe=str(norm))
        for norm in (1.0, None)
    ]
    page = report(runs)
    assert ">1.0</td>" in page and ">–</td>" in page and ">yes</td>" not in page


def test_each_seed_is_compared_with_fp32_of_the_same_seed():
    claim = loss_curves(several()[:6]).claim
    assert claim == "FP16 without scaling ends at 2.5× FP32's loss"


def test_the_table_has_the_median_and_the_range_of_the_seeds():
    (row,) = results_table([history("bf16", seed) for seed in (0, 1, 2)]).rows
    assert row[3] == "0.600 (0.500 to 0.700)"
    (row,) = results_table([history("bf16", 1)]).rows
    assert row[3] == "0.600"
    (row,) = results_table(
        [history("bf16", s, metrics={"r2": np.nan}) for s in (0, 1)]
    ).rows
    assert "nan" in row[3]


@pytest.mark.parametrize(
    "recipe", mostly_slow(RECIPES, ["fp32", "fp16-scaled", "amp-fp16"])
)
def test_every_recipe_has_a_curve_that_can_be_read(recipe):
    other = history(recipe, factor=1.7)
    figure = assert_legible(loss_curves([history("fp32"), other]))
    names = {
        re.split(" on | ends| \\(", text.get_text())[0]
        for text in figure.axes[-1].texts
    }
    assert len(names) == 2 or recipe == "fp32"


def test_all_recipes_together_can_be_read():
    assert_legible(
        loss_curves([history(r, factor=1 + i / 9) for i, r in enumerate(RECIPES)])
    )
    renamed = replace(history("bf16"), recipe="mine")
    assert loss_curves([renamed]).claim.startswith("BF16 ends")


# The figure of a class
KINDS = ("right", "a known mistake", "wrong otherwise", "not attempted")
PARTS = {
    "encode: subnormal numbers and zeros": (14, 3, 1, 2),
    "value: infinity and NaN": (9, 4, 5, 2),
    "fields: all": (20, 0, 0, 0),
}


def test_the_title_names_the_part_that_the_fewest_have_right():
    picture = class_parts(
        {name: dict(zip(KINDS, n, strict=True)) for name, n in PARTS.items()}
    )
    assert picture.claim == (
        "“value: infinity and NaN” is right in 9 of 20 submissions, the fewest of all parts"
    )
    assert "fields: all: 20 right, 0 a known mistake" in picture.alt
    bars = [bar for kind in picture.axes[0].containers for bar in kind]
    assert [bar.get_width() for bar in bars[:3]] == [14, 9, 20]
    assert [bar.get_x() + bar.get_width() for bar in bars[-2:]] == [20, 20]
    assert_legible(picture)


@pytest.mark.parametrize("size", [1, 40])
def test_one_part_and_many_can_be_read(size):
    assert_legible(
        class_parts({f"part {i}": dict.fromkeys(KINDS, i) for i in range(size)})
    )
