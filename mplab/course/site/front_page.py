"""Make the first page of `mplab export-html`, and the page for teachers."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from mplab.common.words import superscript
from mplab.course.explorers.freezing import Control, Frozen, pack
from mplab.course.explorers.modules import BitExplorer, facts, joined, to_live_html
from mplab.course.explorers.range_map import RangeMap
from mplab.course.pictures.canvas import percent
from mplab.course.site.frame import (
    FILES,
    address,
    image_address,
    page,
    repository,
    shrink_pictures,
)
from mplab.course.site.lesson_page import (
    beginning,
    frozen_explorer_html,
    markdown_to_html,
    title_of,
)
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32

EXPONENTS = range(0, 26, 2)
"""Loss scales of the first explorer, as powers of two."""

_SHOWN = 8
"""How many digits the first explorer shows."""

_THUMB = 280
"""The width of a card's picture in pixels: all of them stay below 100 kB."""

_PARTS = {
    1: "Start here", 2: "Numbers", 5: "Sums and updates", 8: "Training in few bits",
    13: "The clinic", 14: "Numerical analysis in few bits",
}  # fmt: skip
"""The parts of the course, by their first lesson."""

_ABOUT = (
    "Lessons that let you see what FP16, BF16 and FP8 do to numbers and to the training of "
    "networks, and a library that computes in them bit for bit."
)


def front_page(out: Path, lessons: Sequence[Path], guide: str, *, digits: str) -> str:
    """Make the page that links to the others; a lesson that is not exported has no link.

    Args:
        out: the folder of the pages.
        lessons: the notebooks.
        guide: the instructor's guide, whose table has the minutes of each lesson.
        digits: the first explorer, from `draw_digits`.
    """
    pages = [out / f"{path.stem}.html" for path in lessons]
    begin = ""
    if pages[0].exists():
        begin = f' <a href="{pages[0].name}">Begin with lesson 1</a>.'
    cards = [
        _card(lesson, exported, guide)
        for lesson, exported in zip(lessons, pages, strict=True)
    ]
    # The first card is as wide as leaves no hole in the last row.
    spans = (f"--of-{n}: {n - (len(pages) - 1) % n}" for n in (2, 3, 4))
    body = (
        (FILES / "front.html")
        .read_text("utf-8")
        .format(
            race=_race(),
            counters=joined("spelling.js", "numbers.js", "counters.js"),
            digits=digits,
            begin=begin,
            bits=to_live_html(BitExplorer("0.1")),
            clone=f"git clone {repository()}\n" if repository() else "",
            lessons="\n".join(cards),
            spans="; ".join(spans),
        )
    )
    names = {
        "#lessons": "Lessons",
        "#run": "Run it",
        "teaching.html": "Teach with it",
        "api/mplab.html": "Reference",
    }
    ways = [f'<a href="{where}">{name}</a>' for where, name in names.items()]
    title = "mplab: training in few bits"
    return page(title, shrink_pictures(body), ways=ways, kind="front", about=_ABOUT)


def teaching_page(guide: str) -> str:
    """Make a page of the instructor's guide, with links to pages instead of to notebooks."""
    html = re.sub(
        r'href="(\d\d_\w+)\.ipynb"', r'href="\1.html"', markdown_to_html(guide)
    )
    html = re.sub(r'<a href="(?!\d\d_|#|https?:)[^"]*">(.*?)</a>', r"\1", html)
    return page("mplab: for teachers", html, ways=_HOME)


def other_pages(out: Path) -> dict[str, str]:
    """Make the search page for the pages in `out`, and the page for a wrong address."""
    entries = []
    for path in sorted(out.glob("[0-9]*.html")) + sorted((out / "api").rglob("*.html")):
        where = path.relative_to(out).as_posix()
        html = path.read_text("utf-8")
        name = path.stem if where.startswith("api") else f"Lesson {int(path.stem[:2])}"
        main = html.partition("<main")[2].partition("</main>")[0]
        for part in re.split(r'<(?:h[12]|section) id="', main)[1:]:
            anchor, _, rest = part.partition('"')
            heading, _, words = _plain(f"<p{rest}").partition(" # ")
            link = f'<a href="{where}#{anchor}">{name} · {heading if words else anchor}</a>'
            entries.append(f"<li>{link}<p>{(words or heading)[:6000]}</p></li>")
    search = (FILES / "search.html").read_text("utf-8")
    lost = (FILES / "404.html").read_text("utf-8")
    return {
        "search.html": page(
            "mplab", search.format(entries="\n".join(entries)), ways=_HOME
        ),
        "404.html": page("mplab", lost.format(base=address()), ways=_HOME),
    }


_HOME = ['<a href="index.html">mplab</a>']


def _plain(html: str) -> str:
    """Return the words of HTML, still escaped; powers of two as in the text of lessons."""
    html = html.replace("<sup>−", "<sup>-")
    html = re.sub(r"<sup>(-?\d+)</sup>", lambda sup: superscript(int(sup[1])), html)
    return " ".join(
        re.sub(r"(?s)<(script|style|svg)\b.*?</\1>|<[^>]+>", " ", html).split()
    )


def _race() -> str:
    """Write the race of sums as it ends when rounding to nearest: each at 2^precision."""
    runners = (FP8_E5M2, FP8_E4M3, BF16, FP16, FP32)
    rows = "".join(
        f'<li class="stopped" data-format="{fmt.name}" style="--log: {fmt.precision}">'
        f"<b>{fmt.name}</b><span></span>"
        f"<output>{2**fmt.precision:,} + 1 = {2**fmt.precision:,}</output></li>"
        for fmt in runners
    )
    given = json.dumps([facts(fmt) for fmt in runners])
    return (FILES / "race.html").read_text("utf-8").format(rows=rows, facts=given)


def draw_digits() -> str:
    """Train a network in FP32, and in FP16 with each loss scale; show what each of them paints.

    Below the digits lie the gradients of the run in FP32, times the loss scale, over FP16's zones.

    Returns:
        An explorer with a slider of loss scales, as HTML.
    """
    from mplab.training.digits import measure_painted_digits
    from mplab.training.recipes import RECIPES

    naive = RECIPES["fp16-naive"]
    scales = {"2" + superscript(exponent): 2.0**exponent for exponent in EXPONENTS}
    recipes = [
        replace(naive, name=name, init_scale=scale, dynamic=False)
        for name, scale in scales.items()
    ]
    found = measure_painted_digits(
        "fp32", *recipes, record_gradients_at=(200,), progress=False
    )
    r2 = found.r2
    gradients = RangeMap(found.runs["fp32"])
    fixed = _row_of_digits("images", found.images)
    fixed += _row_of_digits("FP32", found.painted["fp32"])
    states = []
    for exponent, name in zip(EXPONENTS, scales, strict=True):
        gradients.scale.value = exponent
        part = gradients.shares
        share = percent(part.flushed, part.total)
        lost = f"Between layers, {share} of the gradients become 0 in FP16."
        painted = fixed + _row_of_digits("FP16", found.painted[name])
        sentence = f"{_result_sentence(r2[name], r2['fp32'])} {lost}"
        states.append((painted + gradients.draw()[0], sentence))
    frozen = Frozen(
        question="One network, trained in FP16. Which loss scale brings the digits back?",
        controls=[Control("slider", "loss scale", [*scales], start=0, readout=True)],
        buttons=[],
        positions=len(states),
        start=states[0],
        packed=pack(states, {}),
    )
    return frozen_explorer_html(frozen)


def first_explorer(html: str) -> str:
    """Find the first frozen explorer in the HTML of a page; empty if there is none."""
    found = re.search(
        r'<div class="explorer frozen".*?</script></div>', html, re.DOTALL
    )
    return found[0] if found else ""


def _row_of_digits(words: str, images: np.ndarray) -> str:
    """Write the first images in one row, with a gap of one pixel between them."""
    row = np.zeros((8, _SHOWN, 9))
    row[:, :, :8] = images[:_SHOWN].reshape(_SHOWN, 8, 8).swapaxes(0, 1)
    ink = np.nan_to_num(row.reshape(8, -1)[:, :-1].clip(0, 1))
    image = Image.fromarray((255 * (1 - ink)).astype(np.uint8))
    source = image_address(image, "png", optimize=True)
    attributes = f'alt="{words}, {_SHOWN} digits" src="{source}"'
    return f'<p class="digits"><span>{words}</span><img {attributes}></p>'


def _result_sentence(r2: float, wide: float) -> str:
    """Describe what the network trained with this loss scale paints."""
    if np.isnan(r2):
        return "Nothing: scaled gradients passed 65,504, and every weight is NaN."
    if r2 < 0.05:
        seen = "One picture for all digits: small gradients became 0."
    else:
        seen = "As good as FP32." if r2 > 0.95 * wide else "Some digits are told apart."
    return f"{seen} R² {r2:z.2f}; FP32 has {wide:.2f}."


def _card(lesson: Path, exported: Path, guide: str) -> str:
    """Make a lesson's entry: its question, its minutes, and its beginning."""
    import nbformat

    notebook = nbformat.read(lesson, as_version=4)  # type: ignore[no-untyped-call]
    number = int(lesson.stem[:2])
    title = escape(title_of(notebook))
    picture = ""
    if exported.exists():
        title = f'<a href="{exported.name}">{title}</a>'
        picture = _thumbnail(exported.with_suffix(".png"))
    part = _PARTS[max(first for first in _PARTS if first <= number)]
    note = f"{number} · {part}"
    row = re.search(rf"(?m)^\| {number} · [^|]*\| *([\d–]+) *\| *([^|]*?) *\|", guide)
    if row:
        note += f" · {row[1]} minutes; needs {escape(row[2])}"
    return (
        f'<li>{picture}<p class="note">{note}</p><h3>{title}</h3>'
        f"<p>{escape(beginning(notebook))}</p></li>"
    )


def _thumbnail(figure: Path) -> str:
    """Make a small picture of the one that links to a lesson show; empty if there is none."""
    if not figure.exists():
        return ""
    image = Image.open(figure).convert("RGB")
    image.thumbnail((_THUMB, _THUMB))
    source = image_address(image, "webp", quality=15, method=6)
    return f'<img class="thumb" alt="" src="{source}">'
