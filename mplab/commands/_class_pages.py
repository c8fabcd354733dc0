"""What `mplab grade` shows of a class as pages: they load nothing, and run nothing."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from mplab.grading.feedback import POLICY
from mplab.grading.statistics import KNOWN, MISSED, OTHER, RIGHT, Statistics
from mplab.numbers.tables import Table
from mplab.pictures.pages import class_parts, page

if TYPE_CHECKING:
    from mplab.grading.folder import Course
    from mplab.grading.similarity import Similarity
    from mplab.grading.tries import Tries
    from mplab.pictures.canvas import Picture

_SHOWN = 50
"""Ids in one cell, and pairs with their texts."""

_CHARACTERS = 20_000
"""Of one text, those that a page shows."""

_STYLE = """<style>
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr));
        gap: 1rem; }
.pair > div { min-width: 0; } .pair p { margin: 0 0 .3rem; }
pre { margin: 0; padding: .5rem; border: 1px solid #c8c8cc; overflow: auto; max-height: 40rem;
      font-size: .8rem; unicode-bidi: plaintext; }
mark { background: #d9c7e8; color: inherit; }
</style>"""

_WORDS = """<p>These pairs of answers are more alike than is usual in this class. That is a reason
to read both, and nothing more: people who work together, or read the same page, write alike, too.
What all were given does not count, nor do the names that somebody chose, comments and blanks. What
both have, and few others, is marked.</p>"""


def statistics_page(found: Statistics, assignment: str) -> str:
    """The statistics of a class: figure and tables."""
    kinds = (RIGHT, KNOWN, OTHER, MISSED)
    bars: dict[str, dict[str, int]] = {}
    for count in (count for count in found.counts if count.part):
        bar = bars.setdefault(f"{count.exercise}: {count.part}", dict.fromkeys(kinds, 0))
        bar[count.kind] += count.number
    people = tuple(
        (state, str(len(ids)), ", ".join(ids[:_SHOWN]) + ", …" * (len(ids) > _SHOWN))
        for state, ids in found.people.items()
    )
    title = f"{assignment}: what the class did"
    parts: list[str | Picture | Table] = [f"<h1>{escape(title)}</h1>"]
    parts += [class_parts(bars)] if bars else []
    parts += ["<h2>The class</h2>", Table("", ("state", "students", "ids"), people)]
    parts += ["<h2>Exercises</h2>", _exercises(found), "<h2>Mistakes</h2>", _mistakes(found)]
    if found.tries:
        parts += ["<h2>Tried again</h2>", Table("", *_tries(found.tries))]
    return page(title, parts, head=POLICY + "\n")


def similarity_page(found: Similarity, course: Course, assignment: str) -> str:
    """The pairs of answers that are more alike than usual, side by side."""
    names = {s.id: f"{s.first_name} {s.last_name} ({s.id})" for s in course.roster()}
    title = f"{assignment}: answers to read side by side"
    rows = tuple(
        (f"{pair.exercise}", *(names.get(s, s) for s in pair.students), _percent(pair.share))
        for pair in found.pairs
    )
    head = ("exercise", "one", "other", "alike")
    parts: list[str | Picture | Table] = [_STYLE, f"<h1>{escape(title)}</h1>", _WORDS]
    parts += [Table("", head, rows) if rows else "<p>No pair is more alike than usual.</p>"]
    if found.left_out:
        rows = tuple((names.get(s, s), why) for s, why in found.left_out.items())
        parts += ["<h2>Not compared, or not whole</h2>", Table("", ("student", "why"), rows)]
    for pair in found.pairs[:_SHOWN]:
        parts.append(
            f"<h2>{escape(pair.exercise)}: {_percent(pair.share)} alike</h2><p>In this exercise, "
            f"pairs are shown from {_percent(pair.usual)} on.</p>"
        )
        both = zip(pair.students, pair.texts, pair.marks, strict=True)
        texts = [_text(names.get(student, student), text, marks) for student, text, marks in both]
        parts.append(f'<div class="pair">{"".join(texts)}</div>')
    return page(title, parts, head=POLICY + "\n")


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _text(name: str, text: str, marks: list[tuple[int, int]]) -> str:
    """An answer under its author's name, with what the other has, too, marked."""
    shown, done, out = text[:_CHARACTERS], 0, []
    for start, end in marks:
        out += [escape(shown[done:start]), f"<mark>{escape(shown[start:end])}</mark>"]
        done = end
    out += [escape(shown[done:]), " …" * (len(text) > _CHARACTERS)]
    return f"<div><p><b>{escape(name)}</b></p><pre>{''.join(out)}</pre></div>"


def _exercises(found: Statistics) -> Table:
    """The points of each exercise, those given by hand too."""
    states = ("all points", "some points", "no points", "to be graded by hand")
    rows: dict[tuple[str, float], dict[str, int]] = {}
    for count in (count for count in found.counts if count.exercise and not count.part):
        row = rows.setdefault((count.exercise, count.points), dict.fromkeys(states, 0))
        row[count.found] = count.number
    lines = tuple(
        (name, f"{points:g}", _mean(found, name), *map(str, row.values()))
        for (name, points), row in rows.items()
    )
    return Table("", ("exercise", "points", "mean", *states), lines)


def _mean(found: Statistics, name: str) -> str:
    return f"{found.means[name]:.2f}" if name in found.means else "–"


def _mistakes(found: Statistics) -> Table:
    """What was wrong, the most frequent first, in the words that the authors read."""
    wrong = [count for count in found.counts if count.kind in (KNOWN, OTHER)]
    lines = tuple(
        (c.exercise, c.part, str(c.number), c.found, "yes" if c.kind == KNOWN else "no")
        for c in sorted(wrong, key=lambda count: -count.number)
    )
    return Table("", ("exercise", "part", "submissions", "what they read", "known mistake"), lines)


def _tries(tries: list[Tries]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """What a technical failure has met."""
    head = ("student", "tries", "graded", "last reason")
    return head, tuple((t.student, str(t.times), _YES[t.graded], t.reason) for t in tries)


_YES = {True: "yes", False: "no"}
