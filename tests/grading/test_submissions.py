"""A submission is rebuilt from the text of its cells; nothing else of it counts."""

import base64
import copy
import json
import os
import time
import warnings

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from mplab.course.grading import submissions
from mplab.course.grading.sanitise import rendered_markdown
from mplab.course.grading.submissions import (
    RawCell,
    RejectedSubmission,
    answers_of,
    images_in,
    marked,
    possible_lost_points,
    read_cells,
    read_regular,
    read_submission,
    rebuild,
)


def cell(kind, name="", source="", **mark):
    metadata = {"nbgrader": {"grade_id": name, **mark}} if name else {}
    make = new_code_cell if kind == "code" else new_markdown_cell
    return make(source, metadata=metadata)


def skeleton():
    cells = [
        cell("markdown", source="title"),
        cell("code", "setup", "import mplab", locked=True, solution=False, grade=False),
        cell("code", "one-answer", "stub 1", solution=True, grade=False),
        cell("code", "one", "check 1", grade=True, solution=False, points=3),
        cell("code", "two-answer", "stub 2", solution=True, grade=False),
        cell("code", "two", "check 2", grade=True, solution=False, points=2),
    ]
    return new_notebook(cells=cells)


def raw(notebook):
    return [
        RawCell(
            c.cell_type, c.source, c.metadata.get("nbgrader", {}).get("grade_id", "")
        )
        for c in notebook.cells
    ]


def sources(cells):
    return [c.source for c in rebuild(skeleton(), cells).cells]


ANSWERED = [RawCell("code", {"one-answer": "A1", "two-answer": "A2"}.get(c.grade_id, c.source),
                    c.grade_id) for c in raw(skeleton())]  # fmt: skip
FULL = ["title", "import mplab", "A1", "check 1", "A2", "check 2"]


CHECKS = [c for c in ANSWERED if c.grade_id in ("one", "two")]
FORGED = [c._replace(source="pass") if c.grade_id in ("one", "setup") else c
          for c in ANSWERED]  # fmt: skip
REPAIR = RawCell("code", "repair", "")


def without(*names):
    return [c for c in ANSWERED if c.grade_id not in names]


@pytest.mark.parametrize(("cells", "wanted"), [
    (FORGED, FULL),
    (CHECKS + without("one", "two"), FULL),  # never before its answer
    ([*ANSWERED, *CHECKS], [*FULL[:3], "A2", "check 1", "check 2"]),
    ([*ANSWERED[:3], REPAIR, *ANSWERED[3:]], [*FULL[:3], "repair", *FULL[3:]]),
    (without("one"), FULL),
    (without("two"), FULL),
    (without("setup"), ["import mplab", "title", *FULL[2:]]),  # follows nothing: it comes first
    (without("one-answer"), [*FULL[:2], "stub 1", *FULL[3:]]),
    (without("two-answer"), [*FULL[:4], "stub 2", FULL[5]]),
])  # fmt: skip
def test_answers_are_taken_and_checks_come_from_the_release(cells, wanted):
    """A missing cell is put back, and what stands between an answer and its check stays there."""
    assert sources(cells) == wanted


def test_of_copies_the_last_is_the_answer_and_the_others_still_run():
    again = [*ANSWERED[:3], RawCell("code", "A1 again", "one-answer"), *ANSWERED[3:]]
    rebuilt = rebuild(skeleton(), again)
    assert [c.source for c in rebuilt.cells][2:5] == ["A1", "A1 again", "check 1"]
    marks = [c.metadata.get("nbgrader", {}).get("grade_id") for c in rebuilt.cells]
    assert marks[2:4] == [None, "one-answer"]


def test_what_may_have_cost_an_honest_submission_points_is_told():
    def told(cells):
        return " ".join(possible_lost_points(skeleton(), cells))

    assert told(ANSWERED) == told([*ANSWERED, RawCell("code", "more", "")]) == ""
    # A check that is put back.
    assert told(without("one")) == ""
    unmarked = [c._replace(grade_id="") if c.source == "A1" else c for c in ANSWERED]
    assert (
        told(unmarked)
        == "No cell is marked as one-answer: deleted, or pasted elsewhere."
    )
    again = [*ANSWERED, RawCell("code", "old", "two-answer")]
    assert (
        told(again)
        == "More than one cell is marked as two-answer: the last one counts."
    )
    assert (
        told(ANSWERED[::-1]) == "The cells stand in another order than in the release."
    )


def test_no_metadata_output_tag_or_id_of_a_submission_survives():
    notebook = skeleton()
    for c in notebook.cells:
        c.metadata["tags"] = ["skip-execution"]
        c["evil"] = 1
        if c.metadata.get("nbgrader"):
            c.metadata.nbgrader.update(points=99, grade=False, locked=False)
    notebook.metadata["evil"] = 1
    cells = read_cells(json.dumps(notebook).encode())
    rebuilt = rebuild(skeleton(), cells)
    assert "evil" not in json.dumps(rebuilt)
    assert "skip-execution" not in json.dumps(rebuilt)
    assert [c.metadata for c in rebuilt.cells] == [c.metadata for c in skeleton().cells]
    nbformat.validate(rebuilt)


@pytest.mark.parametrize("content", [
    b"", b"\xff\xfe", b"[1]", b"null", b'{"cells": {}}', b'{"cells": []}', b"[" * 100_000,
    b'{"nbformat": 3, "cells": []}', b'{"nbformat": 3, "worksheets": 1}',
    b'{"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": 3}]}]}',
    b'{"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "x"}]}]}',
    json.dumps({"nbformat": 4, "cells": [{}] * 501}).encode(),
    json.dumps({"nbformat": 4, "cells": [{"source": "x" * 200_001}]}).encode(),
], ids=range(13))  # fmt: skip
def test_what_is_no_notebook_is_refused_with_a_reason(content):
    with pytest.raises(RejectedSubmission, match=r"notebook|cell"):
        read_cells(content)


def test_odd_cells_become_plain_text():
    odd = [
        1,
        {"source": 7},
        {"source": ["a\0", 3, "b"], "metadata": []},
        {
            "cell_type": "raw",
            "source": "\ud800",
            "metadata": {"nbgrader": {"grade_id": []}},
        },
    ]
    content = json.dumps({"nbformat": 4, "cells": odd}).encode()
    assert read_cells(content) == [
        RawCell("markdown", "", ""),
        RawCell("markdown", "a\ufffdb", ""),
        RawCell("markdown", "\ufffd", ""),
    ]


def lay(folder, notebook=None):
    folder.mkdir(exist_ok=True)
    (folder / "a1.ipynb").write_text(nbformat.writes(notebook or skeleton()))
    return folder


def test_a_notebook_that_is_a_link_is_refused(tmp_path):
    folder = lay(tmp_path / "s")
    (folder / "a1.ipynb").rename(tmp_path / "other")
    (folder / "a1.ipynb").symlink_to(tmp_path / "other")
    with pytest.raises(RejectedSubmission, match="link"):
        read_submission(folder, {"a1": skeleton()})


def test_own_hard_links_are_no_harm(tmp_path):
    folder = lay(tmp_path / "s")
    (tmp_path / "backup").hardlink_to(folder / "a1.ipynb")
    assert read_submission(folder, {"a1": skeleton()})[0].keys() == {"a1"}


def test_answers_that_lost_their_marks_are_found_by_the_name_of_their_function(
    tmp_path,
):
    release = skeleton()
    release.cells[2].source = "def f(x):\n    raise NotImplementedError"
    bare = new_notebook(cells=[
        cell("code", source="import mplab"), cell("code", source="def f(x):\n    return 1"),
        cell("code", source="def f(x):\n    return 2"), cell("code", source="x = 'def f(x)'"),
    ])  # fmt: skip
    notebooks, notes = read_submission(lay(tmp_path, bare), {"a1": release})
    assert marked(notebooks["a1"])["one-answer"].source.endswith("return 2")
    assert notes[0].endswith("because marks were lost: one-answer.")
    assert notes[1].startswith("No cell is marked as two-answer")


IMAGES = {
    "image/png": b"\x89PNG\r\n\x1a\n.", "image/jpeg": b"\xff\xd8\xff.", "image/gif": b"GIF89a.",
    "image/webp": b"RIFF\n\0\0\0WEBPVP8 ",
}  # fmt: skip


def test_images_pasted_into_a_written_answer_are_taken_by_content_and_nothing_else():
    named = {f"{i}.png": {"image/svg+xml": base64.b64encode(data).decode()}
             for i, data in enumerate(IMAGES.values())}  # fmt: skip
    script = base64.b64encode(b"<svg onload='x()'/>").decode()
    bad = {"a.svg": {"image/svg+xml": script}, "b.png": {"image/png": script}, "c": {"x": 1},
           'd".png': named["0.png"], "e.png": [], "f.png": {"image/png": "é"}}  # fmt: skip
    release = skeleton()
    release.cells.append(
        cell("markdown", "words", "?", grade=True, solution=True, points=1)
    )
    given = cell("markdown", "words", '![a"b](attachment:0.png) ![c](attachment:a.svg)')
    given.attachments = named | bad
    text = json.dumps({"nbformat": 4, "cells": [given]}).encode()
    rebuilt = marked(rebuild(release, read_cells(text)))["words"]
    before = answers_of("a1", new_notebook(cells=[rebuilt]))
    changed = copy.deepcopy(rebuilt)  # JupyterLab calls each pasted picture image.png
    changed.attachments["0.png"] = rebuilt.attachments["1.png"]
    assert answers_of("a1", new_notebook(cells=[changed])) != before
    kinds = {name: list(entry) for name, entry in rebuilt.attachments.items()}
    assert kinds == {f"{i}.png": [kind] for i, kind in enumerate(IMAGES)}
    page = rendered_markdown(rebuilt.source, rebuilt.attachments)
    assert page.count("<img") == 1 and "[picture: c]" in page
    assert f'src="data:image/png;base64,{named["0.png"]["image/svg+xml"]}"' in page
    assert 'alt="a&quot;b"' in page or 'alt="a&amp;quot;b"' in page


def test_a_submission_that_reaches_a_limit_is_taken(tmp_path, monkeypatch):
    cells = [{"source": "x" * 200_000}, *[{}] * 499]
    assert len(read_cells(json.dumps({"nbformat": 4, "cells": cells}).encode())) == 500
    path = tmp_path / "a1.ipynb"
    path.write_bytes(b"x" * 100)
    assert len(read_regular(path, 100)) == 100
    with pytest.raises(RejectedSubmission, match=r"'a1\.ipynb' has more than 0 MiB"):
        read_regular(path, 99)
    picture = base64.b64encode(IMAGES["image/png"]).decode()
    found = {name: {"image/png": picture} for name in "abc"}
    monkeypatch.setattr(submissions, "_IMAGE_CHARACTERS", 2 * len(picture))
    assert list(images_in(found)) == ["a", "b"]


def test_each_of_many_attachments_costs_the_same():
    """40,000 took 91 seconds."""
    many = {str(i): {"image/png": "iVBORw0KGgo="} for i in range(40_000)}
    start = time.thread_time()
    assert len(images_in(many)) == len(many)
    assert time.thread_time() - start < 10


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_hard_link_to_another_s_file_is_refused_and_the_other_keeps_the_file(
    tmp_path,
):
    victim, thief = lay(tmp_path / "victim"), lay(tmp_path / "thief")
    (thief / "a1.ipynb").unlink()
    (thief / "a1.ipynb").hardlink_to(victim / "a1.ipynb")
    os.chown(thief, 12345, 12345)
    with pytest.raises(RejectedSubmission, match="hard link"):
        read_submission(thief, {"a1": skeleton()})
    read_submission(victim, {"a1": skeleton()})


def test_one_renamed_notebook_is_recognised_and_two_are_not(tmp_path):
    folder = lay(tmp_path / "s")
    (folder / "a1.ipynb").rename(folder / "a1 (1).ipynb")
    found = read_submission(folder, {"a1": skeleton()})
    assert found[0].keys() == {"a1"}
    (folder / "b.ipynb").write_text("{}")
    found = read_submission(folder, {"a1": skeleton(), "c": skeleton()})
    assert found[0].keys() == {"a1"}  # a browser's name for a second download
    (folder / "a1 (1).ipynb").rename(folder / "mine.ipynb")
    with pytest.raises(RejectedSubmission, match=r"no notebook a1\.ipynb"):
        read_submission(folder, {"a1": skeleton()})
    (folder / "mine.ipynb").rename(folder / "a1.ipynb")
    (folder / "b.ipynb").rename(folder / "final.ipynb")
    [note] = read_submission(folder, {"a1": skeleton()})[1]
    assert note == "Not graded: 'final.ipynb', a further notebook."


def test_an_answer_in_a_new_cell_at_the_end_counts_where_the_stub_was_left(tmp_path):
    """It was "not attempted", without a remark."""
    release = skeleton()
    stub = "def f(x):\n    raise NotImplementedError"
    release.cells[2].source = stub
    done = copy.deepcopy(release)
    done.cells.append(cell("code", source="def f(x):\n    return 2"))
    notebooks, notes = read_submission(lay(tmp_path, done), {"a1": release})
    cells = [c.source for c in notebooks["a1"].cells]
    assert cells.index("def f(x):\n    return 2") < cells.index("check 1")
    assert marked(notebooks["a1"])["one-answer"].source.endswith("return 2")
    assert notes[0].endswith("because marks were lost: one-answer.")
    # Who wrote there is taken at their word.
    done.cells[2].source = "def f(x):\n    return 1"
    notebooks, notes = read_submission(lay(tmp_path, done), {"a1": release})
    assert marked(notebooks["a1"])["one-answer"].source.endswith("return 1")


def stripped(notebook):
    """A notebook as Colab and Deepnote save it, without ids and metadata of cells."""
    book = copy.deepcopy(notebook) | {"nbformat_minor": 0}
    for each in book["cells"]:
        each["metadata"] = {"id": "Ab3"}
        each.pop("id", None)
    return book


def with_words():
    """A release with a function, a value and a written answer."""
    release = skeleton()
    release.cells[2].source = "def f(x):\n    raise NotImplementedError"
    release.cells[4].source = "# u = ...\nraise NotImplementedError"
    question = cell("markdown", source="Why?")
    words = cell(
        "markdown", "words", "YOUR ANSWER HERE", grade=True, solution=True, points=1
    )
    release.cells += [question, words]
    return release


ADDED = new_code_cell("u = 0.25")

PASTED = base64.b64encode(IMAGES["image/png"]).decode().ljust(300_000, "A")
COLAB = f" ![b](data:image/png;base64,{PASTED})"
"""A picture as Colab pastes it, of more characters than a cell may have."""


@pytest.mark.parametrize("minor", [3, 4])
def test_a_notebook_that_lost_all_marks_keeps_values_words_and_pictures(
    tmp_path, minor
):
    release = with_words()
    done = copy.deepcopy(release)
    done.cells[2].source = "def f(x):\n    return 1"
    done.cells[4].source = "u = 0.5"
    picture = base64.b64encode(IMAGES["image/png"]).decode()
    done.cells[-1] |= {
        "source": "Because",
        "attachments": {"p": {"image/png": picture}},
    }
    done.cells += [new_markdown_cell(f"it rounds.{COLAB}")]
    done.cells.insert(4, ADDED)
    done.cells.insert(0, new_markdown_cell("Open in Colab"))
    book = stripped(done)
    if minor == 3:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            book = nbformat.convert(nbformat.from_dict(book), 3)
    (tmp_path / "a1.ipynb").write_text(json.dumps(book))
    notebooks, notes = read_submission(tmp_path, {"a1": release})
    found = marked(notebooks["a1"])
    assert found["one-answer"].source.endswith("return 1")
    assert found["two-answer"].source == "u = 0.5"
    assert found["words"].source == f"Because\n\nit rounds.{COLAB}"
    assert (found["words"].get("attachments") is not None) == (minor == 4)
    page = rendered_markdown(found["words"].source)
    assert page.count('<img alt="b" src="data:image/png;base64,') == 1
    assert [c.source for c in notebooks["a1"].cells].count("u = 0.25") == 1
    assert notes == [
        "Found by name or place, because marks were lost: one-answer, two-answer, words."
    ]


def test_what_stands_elsewhere_is_not_taken_for_an_answer_by_its_place(tmp_path):
    release = with_words()
    done = stripped(release)
    del done["cells"][4], done["cells"][-1]
    done["cells"].append(dict(ADDED))
    (tmp_path / "a1.ipynb").write_text(json.dumps(done))
    notebooks, notes = read_submission(tmp_path, {"a1": release})
    assert marked(notebooks["a1"])["two-answer"].source == release.cells[4].source
    assert marked(notebooks["a1"])["words"].source == "YOUR ANSWER HERE"
    assert "No cell is marked as" in notes[0]
