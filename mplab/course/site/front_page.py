"""Make the first page of `mplab export-html`, and the page for teachers."""

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from mplab.common.files import PICTURE
from mplab.common.words import superscript
from mplab.course.explorers.modules import BitExplorer, facts, joined, to_live_html
from mplab.course.site.frame import (
    FILES,
    address,
    page,
    repository,
)
from mplab.course.site.lesson_page import (
    TEXTS,
    beginning,
    markdown_to_html,
    title_of,
)
from mplab.course.site.stalled import stalled_explorer
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32

_PARTS = {
    1: "Start here", 2: "Numbers", 5: "Sums and updates", 8: "Training in few bits",
    13: "The clinic", 14: "Numerical analysis in few bits",
}  # fmt: skip
"""The parts of the course, by their first lesson."""

_ABOUT = (
    "Lessons that let you see what FP16, BF16 and FP8 do to numbers and to the training of "
    "networks, and a library that computes in them bit for bit."
)


def front_page(out: Path, lessons: Sequence[Path], guide: str) -> str:
    """Make the page that links to the others; a lesson that is not exported has no link.

    Args:
        out: the folder of the pages.
        lessons: the notebooks.
        guide: the instructor's guide, whose table has the minutes of each lesson.
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
            stalled=stalled_explorer(),
            begin=begin,
            bits=to_live_html(BitExplorer("0.1")),
            clone=f"git clone {repository()}\n" if repository() else "",
            lessons="\n".join(cards),
            spans="; ".join(spans),
        )
    )
    names = {
        "stalled.html": "Training stalled?",
        "#lessons": "Lessons",
        "#run": "Run it",
        "teaching.html": "Teach with it",
        "api/mplab.html": "Reference",
    }
    ways = [f'<a href="{where}">{name}</a>' for where, name in names.items()]
    title = "mplab: training in few bits"
    return page(title, body, ways=ways, kind="front", about=_ABOUT)


def text_page(text: str) -> str:
    """Make a page of a text that stands beside the lessons, with links to pages.

    Where the text has a picture, the page has the explorer of loss scales.
    """
    before, *rest = re.split(PICTURE, re.sub("^## ", "# ", text), maxsplit=1)
    html = markdown_to_html(before)
    if rest:
        html += stalled_explorer() + markdown_to_html(rest[-1])
    # Texts name their sections as GitHub does.
    html = re.sub(
        r'(?<=id="|f="#)[^"]*',
        lambda anchor: re.sub(r"[^\w-]", "", anchor[0]).lower(),
        html,
    )
    html = re.sub(r'href="(\d\d_\w+)\.ipynb', r'href="\1.html', html)
    elsewhere = r'<a href="(?!\d\d_|#|https?:|\w+\.html)[^"]*">(.*?)</a>'
    title = text.partition("\n")[0].strip("# ")
    html = re.sub(elsewhere, r"\1", html)
    return page(f"{title} · mplab", html, ways=_HOME, kind="text")


def other_pages(out: Path) -> dict[str, str]:
    """Make the search page for the pages in `out`, and the page for a wrong address."""
    entries: dict[str, str] = {}  # by their words: a front repeats what its rooms have
    first, *texts = (out / f"{name}.html" for name in (*TEXTS.values(), "index"))
    lessons = sorted(out.glob("[0-9]*.html"))
    for path in [first, *lessons, *texts, *sorted((out / "api").rglob("*.html"))]:
        where = path.relative_to(out).as_posix()
        html = path.read_text("utf-8")
        library = where.startswith("api")
        name = path.stem
        if not library:
            name = name.capitalize().replace("Index", "First page")
        if where[0].isdigit():
            name = f"Lesson {int(path.stem[:2])}"
        main = html.partition("<main")[2].partition("</main>")[0]
        for part in re.split(r'<(?:h[123]|section) id="', main)[1:]:
            anchor, _, rest = part.partition('"')
            heading, _, words = rest.partition("</h")
            title = anchor if library else _plain("<p" + heading).removesuffix(" #")
            words = _plain("<p" + (rest if library else words))
            link = f'<a href="{where}#{anchor}">{name} · {title}</a>'
            entries.setdefault(words, f"<li>{link}<p>{words}</p></li>")
    search = (FILES / "search.html").read_text("utf-8")
    lost = (FILES / "404.html").read_text("utf-8")
    return {
        "search.html": page(
            "mplab", search.format(entries="\n".join(entries.values())), ways=_HOME
        ),
        "404.html": page("mplab", lost.format(base=address()), ways=_HOME),
    }


_HOME = ['<a href="index.html">mplab</a>']


def _plain(html: str) -> str:
    """Return the words of HTML, still escaped; powers of two as in the text of lessons."""
    html = html.replace("<sup>−", "<sup>-")
    html = re.sub(r"<sup>(-?\d+)</sup>", lambda sup: superscript(int(sup[1])), html)
    no_text = r"<(script|style|svg|pre|summary)\b.*?</\1>"
    tag = r"<(?:\"[^\"]*\"|[^\">])+>"  # the address of a figure holds tags
    return " ".join(re.sub(f"(?s){no_text}|{tag}", " ", html).split())


_TICKS = range(0, 25, 8)
"""Of the axis of the race, as powers of two."""


def _race() -> str:
    """Write the race of sums as it ends when rounding to nearest: each at 2^precision."""
    runners = (FP8_E5M2, FP8_E4M3, BF16, FP16, FP32)
    rows = "".join(
        f'<li class="stopped" data-format="{fmt.name}" style="--log: {fmt.precision}">'
        f"<b>{fmt.name}</b><span></span>"
        f"<strong>{2**fmt.precision:,} + 1 = {2**fmt.precision:,}</strong></li>"
        for fmt in runners
    )
    ticks = "".join(
        f'<i style="--log: {octave}">2{superscript(octave)}</i>' for octave in _TICKS
    )
    formats = json.dumps([facts(fmt) for fmt in runners])
    return (
        (FILES / "race.html")
        .read_text("utf-8")
        .format(rows=rows, ticks=ticks, facts=formats)
    )


def _card(lesson: Path, exported: Path, guide: str) -> str:
    """Make a lesson's entry: its question, its minutes, and its beginning."""
    import nbformat

    notebook = nbformat.read(lesson, as_version=4)  # type: ignore[no-untyped-call]
    number = int(lesson.stem[:2])
    title = escape(title_of(notebook))
    picture = ""
    if exported.exists():
        title = f'<a href="{exported.name}">{title}</a>'
        picture = _thumbnail(exported.read_text("utf-8"))
    part = _PARTS[max(first for first in _PARTS if first <= number)]
    note = f"{number} · {part}"
    row = re.search(rf"(?m)^\| {number} · [^|]*\| *([\d–]+) *\| *([^|]*?) *\|", guide)
    if row:
        note += f" · {row[1]} minutes; needs {escape(row[2])}"
    return (
        f'<li>{picture}<p class="note">{note}</p><h3>{title}</h3>'
        f"<p>{escape(beginning(notebook))}</p></li>"
    )


_BOLD = "path{vector-effect:non-scaling-stroke}"
"""Lines are as thick in a small picture as in a large one."""


def _thumbnail(html: str) -> str:
    """Return the first figure of a page without its words, for a card; empty if there is none."""
    if not (figure := re.search(r'src="(data:image/svg[^"]*)"', html)):
        return ""
    source = re.sub("<text.*?</text>", "", figure[1])
    source = source.replace("<style>", f"<style>{_BOLD}", 1)
    return f'<img class="thumb" alt="" src="{source}">'
