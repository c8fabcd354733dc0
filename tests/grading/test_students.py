"""What students get to start with."""

import json

import pytest
from cases import run_script
from classroom import code_cell, configure

from mplab.course.grading.releasing import add_start


def first_cell(course):
    book = json.loads((course.root / "release/a1/a1.ipynb").read_text())
    return book["cells"][0]


def test_a_release_says_how_to_start_and_its_first_cell_installs(course):
    place = course.root / "release/a1"
    assert not (place / "START.md").exists()  # it led to the cell, and the cell to it
    cell = first_cell(course)
    assert cell["metadata"]["nbgrader"]["locked"] is True
    assert "START.md" not in "".join(cell["source"])
    configure(course, "c.Course.install = 'https://files.example/mplab.whl'")
    add_start(course, place)
    source = "".join(first_cell(course)["source"])
    assert '    %pip install --quiet "https://files.example/mplab.whl"\n' in source
    page = (course.root / "release/a1/START.md").read_text(encoding="utf-8")
    assert 'jupyterlab "https://files.example/mplab.whl"' in page


def test_what_a_notebook_imports_besides_mplab_is_installed_as_well(course):
    """In an empty environment `import torch` failed, though START.md had been followed."""
    place = course.root / "release/a1"
    path = place / "a1.ipynb"
    book = json.loads(path.read_text())
    book["cells"] += [code_cell("import torch\nfrom mplab import pictures")]
    path.write_text(json.dumps(book))
    configure(course, "c.Course.install = 'mplab'")
    add_start(course, place)
    wanted = '"mplab" "torch" "matplotlib"\n'
    assert f"%pip install --quiet {wanted}" in "".join(first_cell(course)["source"])
    page = (place / "START.md").read_text(encoding="utf-8")
    assert f"jupyterlab {wanted[:-1]} " in page


@pytest.mark.slow
def test_the_notebook_alone_brings_its_public_cases_with_it(course, tmp_path):
    """Colab opens the notebook alone: the second cell could not find checks.json."""
    source = "".join(first_cell(course)["source"])
    program = (
        f"{source}\nfrom mplab.course.grading import load_public\nprint(load_public())"
    )
    assert "fields" in run_script(program, cwd=tmp_path)
    there = (course.root / "release/a1/checks.json").read_bytes()
    assert (tmp_path / "checks.json").read_bytes() == there
