"""Which answers of a class are more alike than its answers usually are.

That is a reason to read both, and no more: who works together, and who meets the same page,
writes alike, too.
"""

from __future__ import annotations

import builtins
import hashlib
import keyword
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from nbformat import NotebookNode
from numpy.typing import NDArray

from mplab.grading._notebooks import Refused, read_submission
from mplab.grading.autograding import submitted_students
from mplab.grading.folder import Course

OWN = "further cells"
"""The name of what stands in cells that are nobody's answer."""

_GRAM, _WINDOW = 6, 5
"""Tokens of a fingerprint, and fingerprints of which one is kept."""

_CHARACTERS = 200_000
"""Of one answer, those that are compared: as many as a cell may have."""

_LEAST = 0.5
"""The share of the smaller of two answers that must be in both, whatever the class shares."""

_LEFT = 1 / 64
"""Less that is left of an answer makes no difference."""

_DISJOINT = (_WINDOW + 1) / 2 / _GRAM
"""Fingerprints are that dense, and overlap: what they tell together, over their sum."""

_BLOCK = 4096  # fingerprints that are compared at once

_TOKEN = re.compile(
    r"(?P<skipped>\s+|#[^\n]*)"
    r"|(?P<string>'''(?:\\.|[^\\])*?(?:'''|\Z)|\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)"
    r"|'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?)"
    r"|(?P<name>\.?[^\W\d]\w*)|\d[\w.]*|.",
    re.DOTALL,
)
"""A token of Python, in any text: what is not closed ends with the line or the text."""

_FIXED = {*keyword.kwlist, *dir(builtins)}


class Prints(NamedTuple):
    """Fingerprints of a text: their hashes, and the first and the last character of each."""

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Pair(NamedTuple):
    """Two answers that are more alike than the class's usually are.

    `share` is how much of the smaller one is in the other, where what is rare counts more; `usual`
    is the share above which a pair of this exercise is told. The marks are the spans of each text
    that are in both, and rare.
    """

    exercise: str
    students: tuple[str, str]
    share: float
    usual: float
    texts: tuple[str, str]
    marks: tuple[list[tuple[int, int]], list[tuple[int, int]]]


class Similarity(NamedTuple):
    """The pairs to read, the most alike first, and who was not compared, or not whole."""

    pairs: list[Pair]
    left_out: dict[str, str]


def similarity(course: Course, assignment: str) -> Similarity:
    """Compare the answers of a class as they were handed in, each with each.

    What stands in the release counts for nothing.

    Args:
        course: the course.
        assignment: a released assignment.

    Raises:
        ValueError: it has not been released.
    """
    skeletons = course.skeletons(assignment)
    texts: dict[str, dict[str, str]] = {}
    left_out: dict[str, str] = {}
    for student in submitted_students(course, assignment)[0]:
        try:
            folder = course.root / "submitted" / student / assignment
            notebooks = read_submission(folder, skeletons).notebooks
        except (Refused, OSError) as reason:
            left_out[student] = f"not compared: {reason}"
            continue
        for exercise, text in answers(notebooks).items():
            if len(text) > _CHARACTERS:
                left_out[student] = f"only the first {_CHARACTERS:,} characters of {exercise}"
            texts.setdefault(exercise, {})[student] = text[:_CHARACTERS]
    released = answers(skeletons)
    given = {mark for text in released.values() for mark in prints(text, window=1).hashes.tolist()}
    pairs = [pair for name, found in texts.items() for pair in alike(name, found, given)]
    return Similarity(sorted(pairs, key=lambda pair: (-pair.share, pair[:2])), left_out)


def answers(notebooks: Mapping[str, NotebookNode]) -> dict[str, str]:
    """The code of each answer, and that of all further cells as one; none of locked cells."""
    found: dict[str, list[str]] = {}
    for cell in (cell for notebook in notebooks.values() for cell in notebook.cells):
        mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and not mark.get("locked"):
            name = str(mark.get("grade_id", OWN)).removesuffix("-answer")
            found.setdefault(name, []).append(cell.source)
    return {name: "\n\n".join(cells) for name, cells in found.items()}


def prints(text: str, *, gram: int = _GRAM, window: int = _WINDOW) -> Prints:
    """The fingerprints of a program: of every `window` runs of `gram` tokens, the least hash.

    Names count as one, but for keywords, Python's own and those after a point; so do strings.
    Comments, blanks and lines count for nothing. Any text can be a program.

    Exactness:
        Two texts that share `gram + window - 1` tokens in a row share a fingerprint; texts that
        share none of `gram` do not, but for a chance of about 2⁻⁶⁴ a pair of runs.

    Source:
        Schleimer, Wilkerson & Aiken, "Winnowing: Local Algorithms for Document Fingerprinting",
        SIGMOD 2003, section 3.
    """
    known: dict[str, int] = {}
    spans, codes = [], []
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "skipped":
            kind = _kind(token)
            if kind not in known:
                digest = hashlib.blake2b(kind.encode("utf-8", "replace"), digest_size=8).digest()
                known[kind] = int.from_bytes(digest)
            spans.append(token.span())
            codes.append(known[kind])
    if len(codes) < gram:
        nothing = np.zeros(0, np.int64)
        return Prints(nothing.astype(np.uint64), nothing, nothing)
    runs = np.lib.stride_tricks.sliding_window_view(np.array(codes, np.uint64), gram)
    hashes = np.zeros(len(runs), np.uint64)
    for column in runs.T:  # as splitmix64 does: each step is one-to-one, and mixes
        hashes = (hashes ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(29)
    windows = np.lib.stride_tricks.sliding_window_view(hashes, min(window, len(hashes)))
    last = windows.shape[1] - 1 - windows[:, ::-1].argmin(axis=1)  # of equal ones, the last
    kept = np.unique(last + np.arange(len(windows)))
    places = np.array(spans)
    return Prints(hashes[kept], places[kept, 0], places[kept + gram - 1, 1])


def _kind(token: re.Match[str]) -> str:
    """What a token counts as."""
    word = token[0]
    if token.lastgroup == "string":
        return "a string"
    free = token.lastgroup == "name" and word not in _FIXED and word[0] != "."
    return "a name" if free else word


def alike(exercise: str, texts: Mapping[str, str], given: set[int]) -> list[Pair]:
    """The pairs of an exercise that are more alike than the class's usually are.

    A fingerprint counts the more, the fewer have it: log₂ of the class over those who do, in bits.
    The share of a pair is how much of the smaller answer is in the other. A pair is told if

    - both have twice the bits in common that chance gives one of all pairs, so that short answers
      that many give are not told;
    - at least half of the smaller answer is shared;
    - less of it is left than is usual here: −log₂ of what is left lies above the far fence of all
      pairs, the upper quartile and three times the distance of the quartiles.

    Args:
        exercise: its name.
        texts: by student.
        given: hashes that count for nothing, of what all were given.

    Source:
        Tukey, Exploratory Data Analysis (1977), section 2D, for the fence.
    """
    found = {name: _without(prints(text), given) for name, text in texts.items()}
    found = {name: own for name, own in found.items() if len(own.hashes)}
    if len(found) < 2:
        return []
    sets = [np.unique(own.hashes) for own in found.values()]
    hashes, counts = np.unique(np.concatenate(sets), return_counts=True)
    weights = np.log2(len(found) / counts)
    totals = np.array([weights[np.searchsorted(hashes, own)].sum() for own in sets])
    common = np.zeros((len(found), len(found)))
    shared = np.flatnonzero(counts > 1)
    for block in (shared[k : k + _BLOCK] for k in range(0, len(shared), _BLOCK)):
        has = np.array([np.isin(hashes[block], own) for own in sets], float)
        common += (has * weights[block]) @ has.T
    one, other = np.triu_indices(len(found), 1)
    least, both = np.minimum(totals[one], totals[other]), common[one, other]
    shares = np.divide(both, least, out=np.zeros(len(one)), where=least > 0)
    odd = -np.log2(1 - shares + _LEFT)
    low, high = np.quantile(odd, (0.25, 0.75))
    usual = max(_LEAST, 1.0 + _LEFT - 0.5 ** (high + 3 * (high - low)).item())
    told = (shares > usual) & (_DISJOINT * both > 2 * np.log2(len(one)))
    rare, names = set(hashes[(counts > 1) & (weights >= 1)].tolist()), list(found)
    pairs = []
    for k in np.flatnonzero(told):
        a, b = (names[i[k]] for i in (one, other))
        marks = rare & set(found[a].hashes.tolist()) & set(found[b].hashes.tolist())
        spans = (_spans(found[a], marks), _spans(found[b], marks))
        share = min(1.0, float(shares[k]))
        pairs.append(Pair(exercise, (a, b), share, usual, (texts[a], texts[b]), spans))
    return pairs


def _without(own: Prints, given: set[int]) -> Prints:
    """The fingerprints that are not among those given to all."""
    kept = np.array([mark not in given for mark in own.hashes.tolist()], bool)
    return Prints(*(column[kept] for column in own))


def _spans(own: Prints, hashes: set[int]) -> list[tuple[int, int]]:
    """Where fingerprints with these hashes lie; those that touch as one."""
    spans: list[tuple[int, int]] = []
    for mark, start, end in zip(*(column.tolist() for column in own), strict=True):
        if mark in hashes and spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], end)
        elif mark in hashes:
            spans.append((start, end))
    return spans
