"""Answers that are more alike than usual: what is found, what is not, and what it costs."""

import json
import random
import re
import time
from itertools import pairwise

import pytest

from mplab.commands._class_pages import similarity_page
from mplab.grading.folder import Course
from mplab.grading.similarity import alike, answers, prints, similarity

WAYS = [  # of one function, statement by statement
    ["    sign = int(x < 0) << 7\n", "    sign = 0\n    if x < 0:\n        sign = 2 ** (e + t)\n",
     "    s = 1 if str(x)[0] == '-' else 0\n    sign = s * 2 ** (e + t)\n"],
    ["    bias = 2 ** (e - 1) - 1\n", "    bias = (1 << (e - 1)) - 1\n",
     "    half = pow(2, e - 1)\n    bias = half - 1\n"],
    ["    top = (2**e - 1) << t\n", "    top = (2 ** e - 1) * 2 ** t\n",
     "    infinity = ((1 << e) - 1) << t\n    top = infinity\n"],
    ["    if math.isnan(x):\n        return top + 1\n", "    if x != x:\n        return top | 1\n"],
    ["    if math.isinf(x):\n        return sign + top\n",
     "    if x in (math.inf, -math.inf):\n        code = top\n        return code + sign\n"],
    ["    low = max(math.frexp(x)[1] - 1, 1 - bias)\n",
     "    m, k = math.frexp(abs(x))\n    low = k - 1\n    if low < 1 - b:\n        low = 1 - b\n",
     "    low = 1 - bias\n    while 2.0 ** (low + 1) <= abs(x):\n        low += 1\n"],
    ["    steps = round(math.ldexp(abs(x), t - low))\n",
     "    scaled = abs(x) / 2.0 ** (low - t)\n    steps = round(scaled)\n"],
    ["    return sign + min(steps, top)\n", "    return min(top, steps) + sign\n"],
]  # fmt: skip
STUB = "def encode(x, e, t):\n    '''Round.'''\n    raise NotImplementedError\n"


def program(rng):
    lines = [rng.choice(ways) for ways in WAYS]
    first = rng.sample(lines[:5], 5)  # their order is free
    return "def encode(x, e, t):\n    '''Round.'''\n" + "".join(first + lines[5:])


def disguised(text):
    """Other names, comments and blanks."""
    for old, new in {"sign": "vz", "bias": "b", "top": "oben", "low": "hoch"}.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text.replace("\n", "  # mine\n\n").replace(" << ", "<<").replace("'''Round.'''", '""')


def told(texts, given=STUB):
    marks = set(prints(given, window=1).hashes.tolist())
    return {pair.students for pair in alike("encode", texts, marks)}


@pytest.mark.parametrize("size", [10, 30, 100])
@pytest.mark.parametrize("seed", range(3))
def test_disguised_copies_are_found_and_few_others(size, seed):
    rng = random.Random(seed)
    texts = {f"s{i:03}": program(rng) for i in range(size)}
    texts["s002"] = disguised(texts["s001"])
    own = (f"z{k} = q[{k}] + {k} * w.a{k}({k})\n" for k in range(30))
    texts["s004"] = texts["s003"] + "".join(own)
    found = told(texts)
    assert {("s001", "s002"), ("s003", "s004")} <= found
    assert len(found) <= 2 + size**2 / 250  # of some programs chance itself makes twins


SHORT = ["count = 496", "count = 2 * 31 * 8", "count = 2**9 - 2**4",
         "count = (2**5 - 1) * 2**3 * 2",
         "count = sum(math.isfinite(value(c, 5, 3)) for c in range(512))",
         "count = len([c for c in range(2**9) if math.isfinite(value(c, 5, 3))])",
         "every = [value(c, 5, 3) for c in range(512)]\n"
         "count = sum(abs(v) < math.inf for v in every)"]  # fmt: skip


@pytest.mark.parametrize("size", [2, 10, 30, 100])
def test_short_answers_that_many_give_are_not_told(size):
    for seed in range(3):
        rng = random.Random(seed)
        assert told({f"s{i}": rng.choice(SHORT) for i in range(size)}, "") == set()


def test_what_all_were_given_does_not_count():
    rng = random.Random(0)
    texts = {f"s{i}": program(rng) for i in range(8)} | {"a": STUB, "b": STUB}
    assert ("a", "b") not in told(texts)
    given = program(rng)
    both = {"a": given, "b": disguised(given)}
    assert told(texts | both) == {("a", "b")}
    assert told(texts | both, given) == set()


def test_a_shared_run_is_found_and_only_that():
    """The guarantee of winnowing, on all places and lengths of a run."""
    gram, window = 4, 3
    for length in range(1, 12):
        for before in range(8):
            run = " ".join(f"{k}" for k in range(100, 100 + length))
            a = " ".join(f"{k}" for k in range(before)) + f" {run} 55 56 57 58 59"
            b = f"61 62 63 {run} 71 72 73 74"
            a, b = (set(prints(t, gram=gram, window=window).hashes.tolist()) for t in (a, b))
            if length >= gram + window - 1:
                assert a & b
            elif length < gram:
                assert not a & b


def test_names_strings_and_blanks_do_not_count_and_the_rest_does():
    def marks(text):
        return prints(text, gram=3, window=1).hashes.tolist()

    text = "def f(x):\n    return len(x.size) + 'a'  # why\n"
    assert marks(text) == marks('def g(y) :\n\treturn len( y.size ) + """b\n"""')
    for other in (
        text.replace("len", "sum"),
        text.replace("size", "shape"),
        text.replace("+", "-"),
    ):
        assert marks(text) != marks(other)


N = 15_000
HOSTILE = {"quotes": "'''\\" * N, "nested": "(" * N, "names": "a " * N, "one": "x" * N,
           "escaped": '"\\' * N, "comment": "#" * N, "points": "." * N, "lines": "\n" * N,
           "surrogates": "\ud800 " * N, "mixed": "'\"\"\"\\" * N, "zero": "\0" * N,
           "unclosed": "f(" + "'" * 9, "nothing": ""}  # fmt: skip


def cpu(text):
    """The processor time of its fingerprints; the least of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        prints(text)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_text_takes_time_in_proportion_to_its_length(kind):
    assert cpu(HOSTILE[kind] * 10) < 40 * cpu(HOSTILE[kind]) + 0.01


def test_hostile_texts_cost_only_themselves():
    rng = random.Random(0)
    honest = {f"s{i}": program(rng) for i in range(20)}
    honest["s2"] = disguised(honest["s1"])
    texts = honest | {kind: text[:2000] for kind, text in HOSTILE.items()}
    assert ("s1", "s2") in told(honest) & told(texts)


def test_spans_mark_what_is_in_both():
    rng = random.Random(0)
    texts = {f"s{i}": program(rng) for i in range(20)}
    texts["s2"] = "z = 5\n" * 20 + disguised(texts["s1"])
    pair = next(p for p in alike("encode", texts, set()) if p.students == ("s1", "s2"))
    for text, spans in zip(pair.texts, pair.marks, strict=True):
        assert all(0 <= a[0] < a[1] < b[0] for a, b in pairwise(spans))
        assert sum(end - start for start, end in spans) > 0.4 * len(
            text.removeprefix("z = 5\n" * 20)
        )
    assert pair.marks[1][0][0] > 100


@pytest.fixture
def course(tmp_path):
    cells = [cell("setup", "import math", locked=True), cell("encode-answer", STUB, solution=True)]
    write(tmp_path / "release" / "a1", cells)
    (tmp_path / "roster.csv").write_text("id,first_name,last_name,email\n" + "".join(
        f"s{i:02},<script>alert({i})</script>,B,\n" for i in range(30)))  # fmt: skip
    rng = random.Random(3)
    for i in range(30):
        hand_in(tmp_path, i, program(rng))
    return Course(tmp_path)


def cell(name, source, **mark):
    return {"cell_type": "code", "source": source, "outputs": [], "execution_count": None,
            "metadata": {"nbgrader": {"grade_id": name, **mark}}}  # fmt: skip


def write(folder, cells, text=""):
    folder.mkdir(parents=True, exist_ok=True)
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (folder / "a1.ipynb").write_text(text or json.dumps(notebook))


def hand_in(root, number, source, more=(), text=""):
    cells = [cell("encode-answer", source, solution=True), *more]
    write(root / "submitted" / f"s{number:02}" / "a1", cells, text)


@pytest.mark.slow
def test_a_class_with_hostile_submissions_is_compared(course):
    root = course.root
    copied = (root / "submitted/s01/a1/a1.ipynb").read_text()
    own = json.loads(copied)["cells"][0]["source"]
    hand_in(root, 2, disguised(own))
    hand_in(root, 5, "x" * 10_000_000)
    hand_in(root, 6, "", text="[" * 100_000)
    hand_in(root, 7, f"'\ud800</pre><script>alert(1)</script>'\n{own}")
    hand_in(root, 8, own, [{"cell_type": "code", "source": "((" * 90_000}] * 4)
    found = similarity(course, "a1")
    students = {pair.students for pair in found.pairs}
    assert {("s01", "s02"), ("s01", "s07"), ("s01", "s08"), ("s02", "s08")} <= students
    assert found.left_out["s05"] == "not compared: a cell has more than 200,000 characters"
    assert found.left_out["s06"].startswith("not compared: the notebook is not valid JSON")
    assert found.left_out["s08"] == "only the first 200,000 characters of further cells"
    page = similarity_page(found, course, "a1")
    assert "default-src 'none'" in page[: page.index("<title>")]
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for word in ("cheat", "plagiar", "copied", "copies", "suspic"):
        assert word not in page.lower()
    assert page.encode()


def test_only_what_is_the_student_s_own_is_compared(course):
    skeletons = course.skeletons("a1")
    assert answers(skeletons) == {"encode": STUB}
