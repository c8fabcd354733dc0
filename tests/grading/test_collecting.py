"""What a student hands in costs that student alone; the newest counts, by the platform's time."""

import json
import os
import stat
import struct
import tracemalloc
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from classroom import ROSTER, bring, forget, packed, submit, with_students

from mplab.course.grading import collecting
from mplab.course.grading.collecting import collect
from mplab.course.grading.journal import team_owners
from mplab.course.grading.submissions import RejectedSubmission

HONEST = {"s02/a1.ipynb": "honest"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return with_students(tmp_path_factory.mktemp("collecting") / "course")


@pytest.fixture
def course(made):
    """One course for all: what a test brings in or changes is gone before the next."""
    yield made
    (made.root / "roster.csv").write_text(ROSTER, encoding="utf-8")
    forget(made)


def taken(course):
    root = course.root / "submitted"
    files = [p for p in root.rglob("*") if p.is_file() and p.name != "timestamp.txt"]
    return {str(p.relative_to(root)): p.read_text() for p in files}


def stamp(course, student):
    return course.read("received", "a1", student).get("time", "")


def changed(content, marker, offset, new):
    start = content.find(marker) + offset
    return content[:start] + new + content[start + len(new) :]


ENTRY = struct.pack(
    "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 33, *[0] * 3, 1, *[0] * 6
)
ENTRY += b"a"
END = struct.Struct("<4s4H2IH")
GOOD = packed({"a1.ipynb": "x" * 1000})
BROKEN = {
    "directory": changed(GOOD, b"PK\1\2", 0, b"XXXX"),
    "end": GOOD[:-10],
    "deflate": changed(GOOD, b"a1.ipynb", 8, b"\xff" * 6),
    "checksum": changed(GOOD, b"PK\1\2", 16, b"\0\0\0\0"),
    "version 9.9": changed(GOOD, b"PK\1\2", 6, b"\x63"),
    "method 99": changed(GOOD, b"PK\1\2", 10, b"\x63"),
    "encrypted": changed(GOOD, b"PK\1\2", 8, b"\1"),
    "LZMA": changed(
        packed({"a1.ipynb": "x" * 99}, zipfile.ZIP_LZMA), b"a1.ipynb", 12, b"\xff" * 9
    ),
    "no zip": b"PK but no more",
    "two ends": GOOD + END.pack(b"PK\5\6", 0, 0, 0, 0, 0, 0, 0),
    "50,000 files": ENTRY * 50_000 + END.pack(
        b"PK\5\6", 0, 0, 50_000, 50_000, len(ENTRY) * 50_000, 0, 0),
}  # fmt: skip


def test_nothing_of_a_zip_gets_outside_and_no_link_gets_in(course):
    link = zipfile.ZipInfo("s04/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16

    known = course.root / ".mplab/received"

    def places():
        found = course.root.parent.rglob("*")
        return {
            p for p in found if "submitted" not in str(p) and known not in p.parents
        }

    made = {course.root / "d.zip", course.root / "people.csv"}
    before = places() | made | {known, known / "a1"}
    collected = bring(course, {
        "../s01/a1.ipynb": "x", "/etc/evil": "x", "s01/../../x": "x", "s02\\..\\..\\x": "x",
        "ѕ01/a1.ipynb": "look-alike", "s01\u200b/a1.ipynb": "x", "s010/a1.ipynb": "x",
        "s03/CON:<>|.ipynb": "x", "s03/.hidden": "x", link: "/etc/passwd",
    })  # fmt: skip
    assert taken(course) == {"s03/a1/CON____.ipynb": "x"}
    assert len(collected.left_out) == 7 and len(collected.problems) == 4
    assert places() <= before
    assert {p.stem for p in known.rglob("*.json")} <= {"s01", "s02", "s03", "s04"}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_zip_costs_its_student_alone_with_a_reason(course, name):
    collected, most = peak(lambda: bring(course, {"s01.zip": BROKEN[name], **HONEST}))
    assert collected.students == ["s01", "s02"]
    assert taken(course) == {"s02/a1/a1.ipynb": "honest"}
    assert "it " in collected.problems[0] and len(collected.problems) == 2
    assert "RuntimeError" not in collected.problems[0]
    assert most < 30


def test_what_would_be_unpacked_whole_before_the_first_byte_is_not_begun(course):
    bomb = packed({"a1.ipynb": bytes(30 << 20)}, zipfile.ZIP_BZIP2)
    collected, most = peak(lambda: bring(course, {"s01.zip": bomb}))
    assert "unusual method" in collected.problems[0] and most < 10


def test_a_broken_zip_does_not_displace_what_came_in_before(course):
    bring(course, {"s01.zip": GOOD})
    collected = bring(course, {"s01.zip": BROKEN["deflate"]})
    assert "what came in before stays" in collected.problems[1]
    assert taken(course) == {"s01/a1/a1.ipynb": "x" * 1000}


def test_two_files_of_one_name_cost_one_of_them(course):
    names = {"sub/a1": "deeper", "a1": "mine", "ü": "1", "ö": "2"}
    inner = packed({f"{name}.ipynb": text for name, text in names.items()})
    collected = bring(course, {"s01.zip": inner, **HONEST})
    assert taken(course) == {
        "s01/a1/a1.ipynb": "mine", "s01/a1/_.ipynb": "1", "s02/a1/a1.ipynb": "honest"
    }  # fmt: skip
    assert sum("has this name" in problem for problem in collected.problems) == 2


def test_of_many_problems_of_one_student_the_first_are_told(course):
    inner = packed({f"{i}/a1.ipynb": "x" for i in range(25)})
    problems = bring(course, {"s01.zip": inner}).problems
    assert problems[20] == "s01: 4 more of the same kind" and len(problems) == 22


def peak(function):
    """The most memory that Python held meanwhile, in MiB."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1] >> 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_bomb_inside_a_zip_is_left_before_it_is_unpacked_whole(course):
    """Of 400 MiB that lie in 400 KiB, no more is unpacked than a student may hand in."""
    bomb = packed(
        {"a1.ipynb": "mine"} | {f"f{i}.ipynb": bytes(19 << 20) for i in range(21)}
    )
    assert len(bomb) < 1 << 20
    collected, most = peak(lambda: bring(course, {"s01.zip": bomb, **HONEST}))
    assert most < 150
    size = sum(
        p.stat().st_size
        for p in (course.root / "submitted/s01").rglob("*")
        if p.is_file()
    )
    assert 50 << 20 < size <= 64 << 20
    assert any("more than 64 MiB in all" in problem for problem in collected.problems)
    root = course.root / "submitted"
    assert [(root / f"s0{i}/a1/a1.ipynb").read_text() for i in (1, 2)] == [
        "mine",
        "honest",
    ]


@pytest.mark.slow
def test_a_notebook_of_any_size_is_taken_without_its_outputs(course):
    """It was "there is no notebook", or left out by name, and 0 in the export."""
    cell = {"cell_type": "code", "source": ["x = 'outputs': [\\"]}
    large = cell | {
        "outputs": [{"text": ["x" * (25 << 20)]}, {"data": "]" * (90 << 20)}]
    }
    book = {"metadata": {"widgets": {"state": "}" * (9 << 20)}}, "cells": [large, cell]}
    files = {"s01/A1.IPYNB": json.dumps(book), "s02/a1.ipynb": "x" * (21 << 20)}
    collected = bring(course, files)
    assert peak(lambda: collect(course, "a1", course.root / "d.zip"))[1] < 100
    left = json.loads(taken(course)["s01/a1/A1.ipynb"])
    assert left == {
        "metadata": {"widgets": {}},
        "cells": [cell | {"outputs": []}, cell],
    }
    assert "s02: 's02/a1.ipynb': it has more than 20 MiB" in collected.problems
    assert collected.left_out == ["s02"]
    assert "more than 20 MiB" in course.read("received", "a1", "s02")["reason"]


@pytest.mark.slow
def test_a_notebook_that_is_too_large_leaves_room_for_the_others(course):
    """Two copies of 30 MiB and one of 70 took the good notebook with them."""
    files = {"s01/Backup.ipynb": "x" * (70 << 20), "s01/a1.ipynb": "mine"}
    files |= {f"s02/copy{i}.ipynb": "x" * (30 << 20) for i in (1, 2)}
    bring(course, files | {"s02/a1.ipynb": "hers"})
    assert taken(course) == {"s01/a1/a1.ipynb": "mine", "s02/a1/a1.ipynb": "hers"}


@pytest.mark.slow
def test_a_flat_bomb_counts_with_what_it_unpacks_to_although_it_is_left_out(course):
    """Each file is too large to be taken; three of them, and the rest is not looked at."""
    inner = packed(
        {"a1.ipynb": "mine"} | {f"f{i}.ipynb": bytes(21 << 20) for i in range(5)}
    )
    problems = bring(course, {"s01.zip": inner}).problems
    assert [("20 MiB" in p, "64 MiB" in p) for p in problems[:4]] == [
        *[(True, False)] * 3, (False, True)
    ]  # fmt: skip
    assert taken(course) == {"s01/a1/a1.ipynb": "mine"}


@pytest.mark.slow
def test_a_large_notebook_that_is_cut_off_leaves_the_one_before(course):
    bring(course, {"s01/a1.ipynb": "mine"})
    start = '{"cells": [{"source": "x", "outputs": ["'
    collected = bring(course, {"s01/a1.ipynb": start + "x" * (21 << 20)})
    assert "s01: 's01/a1.ipynb': it is cut off" in collected.problems
    assert taken(course) == {"s01/a1/a1.ipynb": "mine"}


@pytest.mark.slow
def test_outputs_are_dropped_also_where_little_room_is_left(course):
    text = '{"cells": [{"outputs": ["%s"]}]}'
    files = {f"s01/b{i}.ipynb": text % ("x" * (19 << 20)) for i in range(3)}
    bring(course, files | {"s01/c/a1.ipynb": text % ("x" * (10 << 20))})
    assert taken(course)["s01/a1/a1.ipynb"] == '{"cells": [{"outputs": []}]}'


def test_reading_what_one_hands_in_has_its_time_in_all(course, monkeypatch):
    """A thousand sparse files of a terabyte would each take theirs."""
    monkeypatch.setattr("mplab.course.grading.collecting._STUDENT_SECONDS", 0)
    files = {f"s01/{name}.ipynb": "mine" for name in ("a1", "b")}
    (problem, *_) = bring(course, files).problems
    assert "and what follows: " in problem and "too long to read" in problem


def test_of_two_folders_of_one_student_the_newer_counts(course):
    files = {
        "s01/a1.ipynb": "new",
        "s01-x/a1.ipynb": "old",
        "s01-x/more.ipynb": "old too",
    }
    collected = bring(course, files, dates={"s01/a1.ipynb": (2026, 1, 3, 12, 0, 0)})
    assert collected.students == ["s01"]
    assert taken(course) == {"s01/a1/a1.ipynb": "new"}
    assert collected.problems[0] == "'s01-x': of s01 as well; 's01' is newer and counts"
    dates = {"s02/a1.ipynb": (2026, 1, 3, 12, 0, 0)}  # only what counts is read
    told = bring(course, {"s02-old.zip": BROKEN["end"], **HONEST}, dates=dates).problems
    assert len(told) == 2 and "'s02' is newer" in told[0]


def test_of_canvas_s_versions_of_a_notebook_the_newer_counts(course):
    collected = bring(course, {
        "ekbo_11_9_a1-1.ipynb": "old", "ekbo_11_23_a1.ipynb": "new", "ekbo_11_26_b-3.ipynb": "x",
    })  # fmt: skip
    assert taken(course) == {"s02/a1/a1.ipynb": "new", "s02/a1/b.ipynb": "x"}
    assert "when 1 came in is not known" in collected.problems[0]
    # Canvas refuses a page under the number of an older one.
    assert course.read("received", "a1", "s02")["label"] == "ekbo_11_23_a1.ipynb"
    # A notebook's name may end so.
    (named := course.root / "source/a1/a1-2.ipynb").touch()
    bring(course, {"ekcy_12_27_a1-2.ipynb": "x", "ekcy_12_28_a1.ipynb": "y"})
    named.unlink()
    assert taken(course).keys() >= {"s03/a1/a1-2.ipynb", "s03/a1/a1.ipynb"}


def test_a_newer_delivery_of_which_nothing_can_be_taken_does_not_count(course):
    dates = {"s01-x.zip": (2026, 2, 2, 2, 2, 2)}
    bring(course, {"s01/a1.ipynb": "old", "s01-x.zip": BROKEN["end"]}, dates=dates)
    assert taken(course) == {"s01/a1/a1.ipynb": "old"}


# When did it come in? ------------------------------------------------------------------------
def test_a_folder_of_one_s_own_is_not_asked_for_times(course, tmp_path):
    """Gradescope shows what collect says to each student."""
    (tmp_path / "in/s01").mkdir(parents=True)
    (tmp_path / "in/s01/a1.ipynb").write_text("mine")
    assert collect(course, "a1", tmp_path / "in").problems == []


def test_no_time_that_a_student_or_a_zip_states_is_a_time_of_handing_in(course):
    """Moodle writes the time of the teacher's click into its zips: everybody was late."""
    early = "2020-01-01 00:00:00 UTC\n"
    collected = bring(course, {
        "s01/a1.ipynb": "x", "s01/timestamp.txt": early, "s01/.timestamp.txt": early,
        "s02.zip": packed({"a1.ipynb": "x", "timestamp.txt": early}),
        "ekcy_5_6_a1.ipynb": "x", "ekcy_5_7_timestamp.txt": early, "s04/a1.ipynb": "x",
    }, dates={"s04/a1.ipynb": (2026, 1, 3, 9, 0, 0)})  # fmt: skip
    assert {stamp(course, student) for student in collected.students} == {""}
    assert "when 4 came in is not known" in collected.problems[-1]


WORKSHEET = (
    "\ufeffIdentifier,Full name,Status,Last modified (submission),Last modified (grade)\n"
    'Participant 123,Ada Löwe,Submitted,"Friday, 2 January 2026, 1:30 PM",-\n'
    'Participant 124,Cy Ek,No submission,-,-\n'
)  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected"), [
    ("w.csv", WORKSHEET, datetime(2026, 1, 2, 13, 30).astimezone(UTC)),
    ("t.csv", "id,time\ns01,2026-01-02 13:30 +0200\n", datetime(2026, 1, 2, 11, 30, tzinfo=UTC)),
    ("c.json", json.dumps([{"user_id": 123, "submitted_at": "2026-01-02T13:30:00Z"},
                           {"user_id": 9, "submitted_at": None}]),
     datetime(2026, 1, 2, 13, 30, tzinfo=UTC)),
], ids=["moodle", "own", "canvas"])  # fmt: skip
def test_the_platform_s_list_of_times_counts(course, name, text, expected):
    files = {"loweada_123_7_a1.ipynb": "x"} if name == "c.json" else {
        "Ada Löwe_123_assignsubmission_file_/a1.ipynb": "x"}  # fmt: skip
    bring(course, files)
    collected = bring(course, files, times=text, name=name)  # of what is here already
    assert stamp(course, "s01") == expected.strftime("%Y-%m-%d %H:%M:%S UTC")
    rest = [p for p in collected.problems if "read as times in" not in p]
    assert rest == []


@pytest.mark.parametrize("text", [
    "name,when\nx,y\n", "id,time\ns01,soon\n", "id,time\ns01,05/11/26 10:15\n",
    "id,time\ns01,05.11.2026 10:15\n", "id,time\ns01,5-11-2026\n", "{", '{"a": 1}', "[1]",
])  # fmt: skip
def test_a_list_of_times_that_cannot_be_read_is_refused(course, text):
    name = "t.csv" if "\n" in text else "t.json"
    with pytest.raises(ValueError, match="--times must be Moodle's grading worksheet"):
        bring(course, HONEST, times=text, name=name)


def test_canvas_s_word_that_one_was_late_is_written_down(course):
    bring(course, {"ekbo_LATE_11_22_a1.ipynb": "x", "ekcy_5_6_a1.ipynb": "x"})
    records = [course.read("received", "a1", student) for student in ("s02", "s03")]
    assert [record["late"] for record in records] == [True, False]
    assert stamp(course, "s02") == ""  # its names hold no time


def test_in_the_exchange_the_file_system_s_time_counts_and_not_the_name_s(
    course, tmp_path
):
    for claimed, text in (("2020-01-01", "old"), ("2019-01-01", "new")):
        folder = tmp_path / f"s01+a1+{claimed} 00:00:00.000000 UTC+x"
        folder.mkdir()
        (folder / "a1.ipynb").write_text(text)
        (folder / "timestamp.txt").write_text(f"{claimed} 00:00:00 UTC\n")
        os.utime(folder / "a1.ipynb", (0, 0))
        seconds = (folder / "timestamp.txt").stat().st_ctime
        while (folder / "a1.ipynb").stat().st_ctime == seconds and text == "old":
            os.utime(folder / "a1.ipynb", (0, 0))
    (tmp_path / "s02+a2+2020-01-01 00:00:00 UTC+x").mkdir()
    collected = collect(course, "a1", tmp_path)
    assert collected.students == ["s01"]
    assert taken(course) == {"s01/a1/a1.ipynb": "new"}
    written = datetime.fromtimestamp(seconds, UTC)
    record = course.read("received", "a1", "s01")
    assert abs(datetime.fromisoformat(record["time"][:19]).replace(tzinfo=UTC) - written
               ).total_seconds() < 60  # fmt: skip
    course.write("received", "a1", "s01", record | {"time": "the first"})
    collect(course, "a1", tmp_path)
    assert stamp(course, "s01") == "the first"


def test_in_the_exchange_nobody_hands_in_for_another(course, tmp_path, monkeypatch):
    """A folder under another's name was once that student's, and for a team the newest."""
    (course.root / "roster.csv").write_text(
        ROSTER + "nobody,No,Body,\n", encoding="utf-8"
    )
    (course.root / "teams.csv").write_text("team,id\nred,s01\nred,nobody\n")
    submit(course, "s01", "{}")
    folder = tmp_path / "nobody+a1+2026-01-01 00:00:00.000000 UTC+x"
    folder.mkdir()
    (folder / "a1.ipynb").write_text("x")
    link = tmp_path / "nobody+a1+2027-01-01 00:00:00.000000 UTC+x"
    link.symlink_to(folder)
    collected = collect(course, "a1", tmp_path)
    assert collected.students == [] and len(collected.left_out) == 2
    told = "it belongs to another account"
    assert all(told in line for line in collected.problems)
    assert team_owners(course, "a1") == {"s01": "s01", "nobody": "s01"}
    # the folder is theirs, and not what is in it
    link.unlink()
    monkeypatch.setattr(collecting, "_is_of", lambda *_: True)
    look = os.fstat

    def of_another(file):
        seen = look(file)
        return os.stat_result((*seen[:4], 77, *seen[5:]))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", of_another)
        collected = collect(course, "a1", tmp_path)
    assert any(f"a1.ipynb': {told}" in line for line in collected.problems)


def test_a_link_or_a_pipe_put_in_the_place_of_a_file_is_not_opened(course, tmp_path):
    """With a look at the name and then an open by name, a fast student got the course's key."""
    folder = tmp_path / "s01+a1+2026-01-01 00:00:00.000000 UTC+x"
    folder.mkdir()
    for name in ("a1.ipynb", "pipe.ipynb"):
        (folder / name).write_text("mine")
    file, pipe = collecting._folder_files(tmp_path)  # looked at, and not opened yet
    for name in ("a1.ipynb", "pipe.ipynb"):
        (folder / name).unlink()
    (folder / "a1.ipynb").symlink_to(course.root / ".mplab" / "key")
    os.mkfifo(folder / "pipe.ipynb")
    with pytest.raises(RejectedSubmission, match="it is a link or cannot be read"):
        file.open()
    with pytest.raises(RejectedSubmission, match="it is not an ordinary file"):
        pipe.open()


def test_notebooks_are_taken_whatever_a_browser_called_them_and_nothing_else(course):
    configs = (
        "nbgrader_config.py",
        "jupyter_notebook_config.json",
        "ipython_config.py",
        "a.pth",
    )
    files = dict.fromkeys(
        [*configs, ".ipynb_checkpoints/c.ipynb", ".a.ipynb", "b.zip"], "x"
    )
    files |= {
        "a1.ipynb.txt": "mine",
        "submission_secret.txt": "s",
        "sub/b.ipynb.json": "other",
    }
    outer = bring(course, {f"s01/{name}": text for name, text in files.items()})
    before = taken(course)
    bring(course, {"s01.zip": packed(files)})
    assert before == taken(course) == {
        "s01/a1/a1.ipynb": "mine", "s01/a1/submission_secret.txt": "s", "s01/a1/b.ipynb": "other",
    }  # fmt: skip
    told = "s01: left out, not a notebook: "
    assert any(line.startswith(told) and configs[0] in line for line in outer.problems)


def test_a_repair_by_the_teacher_stays_until_the_student_hands_in_something_else(
    course,
):
    for _ in range(2):
        bring(course, {"s01/a1.ipynb": "broken"})
    place = course.root / "submitted/s01/a1/a1.ipynb"
    place.write_text("repaired")
    for _ in range(2):
        told = bring(course, {"s01/a1.ipynb": "broken"}).problems
        assert "s01: submitted/s01/a1 was changed here and stays" in told
        assert place.read_text() == "repaired"
    told = " ".join(bring(course, {"s01/a1.ipynb": "new"}).problems)
    assert (
        place.read_text() == "new"
        and "handed in again; what was changed here is in" in told
    )
    (kept,) = (course.root / ".mplab/replaced").rglob("*.ipynb")
    assert kept.read_text() == "repaired"


def test_of_two_files_of_one_student_side_by_side_the_newer_counts(course):
    files = {"s01_a1.ipynb": "old", "s01_a1 (1).ipynb": "new", "s02_a1.ipynb": "x"}
    dates = {"s01_a1 (1).ipynb": (2026, 1, 3, 0, 0, 0)}
    told = " ".join(bring(course, files, dates=dates).problems)
    assert "'s01_a1.ipynb': of s01 as well; 's01_a1 (1).ipynb' is newer" in told
    assert taken(course) == {"s01/a1/s01_a1 (1).ipynb": "new", "s02/a1/a1.ipynb": "x"}


def test_notebooks_of_one_assignment_side_by_side_belong_together(course):
    second = course.root / "source/a1/b.ipynb"
    second.write_text("{}")
    third = second.with_name("a_b.ipynb")  # whose name ends in another's
    third.write_text("{}")
    bring(course, {"s01_a1.ipynb": "x", "s01_b.ipynb": "y", "s02_a_b.ipynb": "z"})
    second.unlink()
    third.unlink()
    stored = {"s01/a1/a1.ipynb": "x", "s01/a1/b.ipynb": "y", "s02/a1/a_b.ipynb": "z"}
    assert taken(course) == stored


def test_a_newer_file_that_cannot_be_taken_is_not_called_older(course):
    files = {"s01_a1.ipynb": "x", "s01_data.csv": "y"}
    dates = {"s01_data.csv": (2026, 1, 3, 0, 0, 0)}
    told = " ".join(bring(course, files, dates=dates).problems)
    assert "left out, not a notebook: 's01_data.csv'" in told and "newer" not in told
    assert taken(course) == {"s01/a1/a1.ipynb": "x"}


def test_a_submission_that_was_replaced_and_comes_again_is_told(course):
    """The download may be an old one."""
    (course.root / ".mplab/replaced/now").mkdir(parents=True)
    (course.root / ".mplab/replaced/now/s01-a1-1").symlink_to("gone")
    told = [bring(course, {"s01/a1.ipynb": text}).problems for text in "xyx"]
    assert [" ".join(lines).count("an old one?") for lines in told] == [0, 0, 1]


NAMESAKES = (
    ROSTER.replace("email\n", "email,number\n") + "s05,Ada,Lowe,,77\ns06,Di,Wu,,\n"
)


@pytest.mark.parametrize(("name", "owner"), [
    ("s01_ Evil_9_assignsubmission_file_/a1.ipynb", None),
    ("s01_LATE_5_6_a1.ipynb", None),
    ("ekbo_11_9_x_77_assignsubmission_file_a1.ipynb", None),  # on Canvas, after "ekbo_11_9_"
    ("ekbo_11_9_-AdaLöwe_5_assignsubmission_file_a1.ipynb", None),
    ("Red - A-Bo Ek_9_assignsubmission_file_/a1.ipynb", "s02"),
    ("Ada Lowe_77_assignsubmission_file_/a1.ipynb", None),  # 77 is no number of Moodle
    ("lowe_ada_77_9_a1.ipynb", "s05"),
    ("x s02_1_assignsubmission_file_/a1.ipynb", None),
    ("Di Wu_1_assignsubmission_file_/a1.ipynb", None),  # two of one name
    ("Participant_77_assignsubmission_file_/a1.ipynb", None),
])  # fmt: skip
def test_a_name_chosen_on_a_platform_takes_nobody_else_s_place(course, name, owner):
    (course.root / "roster.csv").write_text(NAMESAKES, encoding="utf-8")
    assert bring(course, {name: "x"}).students == [owner] * (owner is not None)
    both = {f"Bo Ek_{n}_assignsubmission_file_/a1.ipynb": "x" for n in (9, 10)}
    collected = bring(course, both)
    assert collected.students == []
    assert "people of one name as s02: none counts" in collected.problems[0]


def test_an_entry_without_a_name_and_a_file_that_vanishes_cost_their_delivery_alone(
    course, tmp_path, monkeypatch
):
    inner = packed({"a1.ipynb": "mine", "x": "no name"}).replace(b"x", b"/", 2)
    for content in (inner, packed({"": "x", "/": "y", ".": "z"})):
        collected = bring(course, {"s01.zip": content, "": "x", **HONEST})
        assert collected.students == ["s01", "s02"]
        assert taken(course)["s02/a1/a1.ipynb"] == "honest"
    place = tmp_path / "place"
    for student in ("s02", "s03"):
        (place / student).mkdir(parents=True)
        (place / student / "a1.ipynb").write_text("x")
    look = Path.lstat

    def lost(path):
        if path.match("s02/a1.ipynb"):
            raise FileNotFoundError(path)
        return look(path)

    monkeypatch.setattr(Path, "lstat", lost)
    collected = collect(course, "a1", place)
    assert (
        collected.students == ["s02", "s03"] and taken(course)["s03/a1/a1.ipynb"] == "x"
    )
    assert "it cannot be read (FileNotFoundError)" in collected.problems[0]
