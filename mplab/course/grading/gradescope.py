"""Write the zip that Gradescope takes as an assignment's autograder."""

import io
import json
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from mplab.common.files import course_folder, replace_file
from mplab.common.installation import PACKAGE
from mplab.course.grading.folder import Course

_SCRIPTS = Path(__file__).parent / "scripts"


def write_autograder(course: Course, name: str, path: Path, *, visibility: str) -> None:
    """Write an assignment's autograder. It holds the key: keep it secret.

    Args:
        course: the course.
        name: a released assignment.
        path: the zip to write.
        visibility: when students see points and hints, in Gradescope's words.

    Raises:
        ValueError: there is no such assignment, or it has not been released.
    """
    course.assignment(name)
    course.skeletons(name)
    wheel, content = _wheel()
    limits = dict(course.config().Limits)
    roster = [[s.id, s.email.casefold(), s.number] for s in course.roster()]
    settings = {"name": name, "visibility": visibility, "roster": roster}
    files: dict[str, bytes] = {
        "setup.sh": (_SCRIPTS / "setup.sh")
        .read_bytes()
        .replace(b"WHEEL", wheel.encode()),
        "run_autograder": (_SCRIPTS / "run_autograder").read_bytes(),
        wheel: content,
        "course/.mplab/key": course.key(),
        "course/settings.json": json.dumps(settings).encode(),
        "course/nbgrader_config.py": f"c = get_config()\nc.Limits.update({limits!r})\n".encode(),
    }
    places = [course.root / "checks" / name / "exercises.py"]
    places += (course.root / "release" / name).glob("*.ipynb")
    files |= {f"course/{p.relative_to(course.root)}": p.read_bytes() for p in places}
    files |= {
        f"course/source/{name}/{n}": data for n, data in course.files(name).items()
    }
    replace_file(path, _zipped(files))


def _zipped(files: dict[str, bytes]) -> bytes:
    """Pack files; the two scripts at the top are executable."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # It is dated 1980, so that equal files make an equal zip.
            entry = zipfile.ZipInfo(name)
            runs = "/" not in name and not name.endswith(".whl")
            entry.external_attr = (0o755 if runs else 0o644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _wheel() -> tuple[str, bytes]:
    """Build a wheel of this mplab, without solutions of assignments; return its name and content.

    Source:
        Python Packaging User Guide, "Binary distribution format".
    """
    installed = distribution("mplab")
    about = f"mplab-{installed.version}.dist-info"
    roots = {PACKAGE: "mplab"}
    roots |= {
        course_folder(name): f"mplab/_course/{name}" for name in ("lessons", "data")
    }
    files = {
        f"{to}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for root, to in roots.items()
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and not {"__pycache__", "assignments"} & set(path.relative_to(root).parts)
    }
    files[f"{about}/METADATA"] = (installed.read_text("METADATA") or "").encode()
    files[f"{about}/WHEEL"] = (
        b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = f"{about}/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record]).encode()
    return f"mplab-{installed.version}-py3-none-any.whl", _zipped(files)
