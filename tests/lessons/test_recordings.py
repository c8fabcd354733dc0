"""Recordings: their schema, their checksum, and their words for lessons."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from record import Request, store

from mplab.lessons.recordings import Recording, first, load


def small(**changes):
    asked = Request(torch.device("cpu"), Path(), ["larger"], rehearse=True)
    origin = asked.provenance(seconds=1.0) | {"date": "2026-01-02 00:00 UTC"}
    data = {"parameters": 3, "runs": [{"loss": [1.5, float("nan")]}]}
    return replace(Recording("larger", origin, data, True), **changes)


def test_a_recording_comes_back_as_it_was_saved(tmp_path):
    path = store(small(), tmp_path)
    assert path.name == "larger-cpu.json"
    back = load("larger-cpu", where=tmp_path)
    assert back.data == {"parameters": 3, "runs": [{"loss": [1.5, "nan"]}]}
    assert back.provenance == small().provenance
    assert load("larger", where=tmp_path) == back == first("larger", where=tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"parameters":3', '"parameters":4'),
        ("1.5", "1.25"),
        (',"sha256":"', ',"none":"'),
        ('"complete":true', '"complete":true '),
    ],
)
def test_an_edited_recording_is_refused_but_white_space_is_not_an_edit(
    tmp_path, old, new
):
    path = store(small(), tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    if new.strip() == old:
        assert load("larger", where=tmp_path).complete
        return
    with pytest.raises(ValueError, match=r"got one that was changed|unknown fields"):
        load("larger", where=tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"part": "unheard-of"},
        {"data": {"parameters": 3}},
        {"data": {"parameters": "3", "runs": []}},
        {"data": {"parameters": 3, "runs": [], "more": 1}},
        {"provenance": {"device": "CPU"}},
        {"complete": 1},
    ],
)
def test_what_is_not_in_the_schema_is_neither_written_nor_read(tmp_path, changes):
    with pytest.raises(ValueError, match="must be a recording of version 1"):
        store(small(**changes), tmp_path)
    path = store(small(), tmp_path)
    tree = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(tree))
    with pytest.raises(ValueError, match="must be a recording of version 1"):
        load("larger", where=tmp_path)


def test_foreign_files_and_names_are_refused_and_a_missing_one_says_how_to_make_it(
    tmp_path,
):
    for text in ("", "[]", "{}", '{"mplab recording": 99}', "\x00"):
        (tmp_path / "casts-x.json").write_text(text)
        with pytest.raises(ValueError, match=r"load: casts-x.json must be a recording"):
            load("casts-x", where=tmp_path)
    with pytest.raises(
        ValueError, match=r"0\. .*python data/record.py --only larger --out"
    ):
        load("larger", where=tmp_path)
    with pytest.raises(ValueError, match="must be that of one recording"):
        load("../secret", where=tmp_path)
    with pytest.raises(ValueError, match="first: part must be one of casts"):
        first("castz", where=tmp_path)  # None would look as if nothing were recorded


def test_a_lesson_shows_what_is_real_then_a_gpu_s_then_what_is_complete(tmp_path):
    for rehearsal, no_gpu, unfinished in product((True, False), repeat=3):
        name = f"NVIDIA {rehearsal:d}{no_gpu:d}{unfinished:d}"
        origin = {"device": name, "rehearsal": rehearsal, "cuda": not no_gpu}
        origin = small().provenance | origin
        store(small(provenance=origin, complete=not unfinished), tmp_path)
        found = first("larger", where=tmp_path)
        assert found.provenance == origin
        assert found.name == f"larger-{name.lower().replace(' ', '-')}"
    assert first("speed", where=tmp_path) is None


def test_the_words_say_where_and_when():
    assert small().words == (
        "recorded on CPU on 2026-01-02, a rehearsal with tiny sizes"
    )
    assert small(complete=False).words.endswith(", unfinished")
