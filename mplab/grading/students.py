"""What a release holds for students who start: a page, and a cell that installs mplab."""

import base64
import zlib
from pathlib import Path

import nbformat

from mplab.grading.folder import Course

_PAGE = Path(__file__).parent / "course" / "START.md"

_CELL = """\
# Where nothing is installed, as in Colab: run this first.
from importlib.util import find_spec
from pathlib import Path

if getattr(find_spec("mplab"), "origin", None) is None:
    INSTALL
if not Path("checks.json").exists():  # the notebook came alone; these are its public cases
    import base64, zlib

    Path("checks.json").write_bytes(zlib.decompress(base64.b64decode("CHECKS")))"""

_UNKNOWN = 'raise ModuleNotFoundError("mplab is not installed here: START.md says how")'


def add_start(course: Course, name: str) -> None:
    """Put START.md and the first cell into `release/NAME`.

    The cell installs `c.Course.install` of the settings, an address or a wheel. It writes the
    public cases beside the notebook if they are not there, because Colab opens a notebook alone.
    """
    release = course.root / "release" / name
    what = str(course.config().Course.get("install", "") or "")
    command = f'%pip install --quiet "{what}"' if what else _UNKNOWN
    table = (release / "checks.json").read_bytes()
    packed = base64.b64encode(zlib.compress(table, 9)).decode()
    source = _CELL.replace("INSTALL", command).replace("CHECKS", packed)
    for path in sorted(release.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        mark = {"grade_id": f"{path.stem}-start", "schema_version": 3, "locked": True}
        mark |= {"grade": False, "solution": False, "task": False}
        metadata = {"nbgrader": mark, "jupyter": {"source_hidden": True}}
        cell = nbformat.v4.new_code_cell(source, id="mplab-start", metadata=metadata)
        others = [other for other in notebook.cells if other.id != cell.id]
        notebook.cells = [cell, *others]
        nbformat.write(notebook, path)
    page = _PAGE.read_text(encoding="utf-8").replace("NAME", name)
    page = page.replace("INSTALL", what or "ask your teacher for the address of mplab")
    (release / "START.md").write_text(page, encoding="utf-8")
