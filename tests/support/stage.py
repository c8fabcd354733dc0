"""A course with a class in it: honest students, attackers, and a control without protection."""

import json
import multiprocessing
import os
import shutil
import socket
import threading
import warnings
from typing import NamedTuple

import nbformat
import psutil
from classroom import book, code_cell, fill_in, grade_id, released
from payloads import SECRET

from mplab.course.grading.autograding import autograde
from mplab.course.grading.feedback import write_feedback
from mplab.course.grading.folder import create_course

LIMITS = {
    "memory": 3 << 30, "resident": 400 << 20, "cell_seconds": 4.0, "total_seconds": 40.0,
    "cpu_seconds": 30, "disk_bytes": 32 << 20,
}  # fmt: skip
HONEST = ("s000", "s999")  # before all attackers and after them


class Listener:
    """Something on the loopback network that nobody should be able to call."""

    def __enter__(self):
        self.calls = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self):
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.calls += 1

    def __exit__(self, *_):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def student_of(number):
    return f"s{number + 1:03d}"


def make_course(root, count, *, marker=""):
    """A released course in whose secret places the secret stands."""
    course = create_course(root)
    exercises = root / "checks" / "a1" / "exercises.py"
    exercises.write_text(exercises.read_text() + f"\nWARM = '# {marker}'\n# {SECRET}\n")
    source = root / "source" / "a1" / "a1.ipynb"
    source.write_text(
        source.read_text().replace("### BEGIN SOLUTION", f"### BEGIN SOLUTION {SECRET}")
    )
    (root / ".mplab" / "key.txt").write_text(SECRET)
    ids = [*HONEST, *(student_of(n) for n in range(count))]
    lines = [f"{i},=HYPERLINK({SECRET}),<b>{i}</b>,{i}@example.org" for i in ids]
    (root / "roster.csv").write_text(
        "id,first_name,last_name,email\n" + "\n".join(lines) + "\n"
    )
    config = root / "nbgrader_config.py"
    config.write_text(config.read_text() + f"c.Limits.update({LIMITS!r})\n")
    released(course)
    return course


def submit(course, student, attack, *, port=0):
    """Lay an attacker's submission, or an honest one, where collection would."""
    notebook = book(course)
    if attack is None or attack.solved:
        fill_in(course, notebook)
    if attack is not None:
        if attack.edit:
            attack.edit(notebook)
        if attack.code:
            notebook["cells"].insert(0, code_cell(attack.code))
    text = json.dumps(notebook).replace(f"SOLUTION {SECRET}", "SOLUTION")
    text = text.replace("ROOT", str(course.root)).replace("PORT", str(port))
    folder = course.root / "submitted" / student / "a1"
    folder.mkdir(parents=True)
    (folder / "a1.ipynb").write_text(text)
    for name, content in (attack.files if attack else {}).items():
        (folder / name).write_text(content)
    if attack is not None and attack.place:
        attack.place(folder, course.root)


class Result(NamedTuple):
    """What came of an attack."""

    score: float | None
    traces: str
    remark: str


def traces_of(course, student):
    """HARMED or the secret, wherever a student's part of the course holds them."""
    found = set()
    for step in ("autograded", "feedback"):
        for path in (course.root / step / student).rglob("*"):
            if path.is_file():
                text = path.read_text(errors="replace")
                found |= {
                    word for word in ("HARMED", SECRET) if word in shown(path, text)
                }
    return " ".join(sorted(found))


def shown(path, text):
    """What a graded notebook shows, without the attacker's own source; other files whole."""
    if path.suffix != ".ipynb":
        return "" if path.suffix in (".py", ".pth", ".html") else text
    return json.dumps([c.get("outputs") for c in json.loads(text)["cells"]])


def run_class(course, attacks, *, jobs=2):
    """Grade everybody; one result per attack, and one for each honest student after them."""
    with Listener() as listener:
        for student in HONEST:
            submit(course, student, None)
        for number, attack in enumerate(attacks):
            submit(course, student_of(number), attack, port=listener.port)
        lines = {
            line.student: line for line in autograde(course, "a1", jobs=jobs, log=str)
        }
        write_feedback(course, "a1")
        assert listener.calls == 0
    ids = [*(student_of(n) for n in range(len(attacks))), *HONEST]
    return [Result(lines[i].score, traces_of(course, i), lines[i].remark) for i in ids]


def survivors(marker):
    """Processes of a course's sandboxes that are still there."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if marker in line:
            found.append(line[:200])
    return found


# The control: nbgrader as it comes -----------------------------------------------------------

CONTROL_CHECKS = {
    "fields": "expected = {(0x3C, 5, 2): (0, 15, 0), (0xFF, 4, 3): (1, 15, 7)}\n"
    "for case, want in expected.items():\n    assert fields_of(*case) == want",
    "value": "expected = {(0x3C, 5, 2): 1.0, (1, 5, 2): 2.0**-16}\n"
    "for case, want in expected.items():\n    assert value_of(*case) == want",
    "max_finite": "2.0 * min(max_finite(5, 10) / 65504.0, 1.0)",
    "encode": "expected = {(1.0, 5, 2): 0x3C, (1.125, 5, 2): 0x3C}\n"
    "for case, want in expected.items():\n    assert encode_nearest(*case) == want",
    "finite_codes": "assert finite_codes == 496",
}


def make_control(root):
    """The same assignment with classic test cells, for nbgrader without any of mplab.grading."""
    course = create_course(root)
    path = root / "source" / "a1" / "a1.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        name = grade_id(cell)
        if name in CONTROL_CHECKS:
            hidden = "### BEGIN HIDDEN TESTS\n{}\n### END HIDDEN TESTS"
            cell.source = hidden.format(CONTROL_CHECKS[name])
        cell.source = cell.source.replace(
            "### BEGIN SOLUTION", f"### BEGIN SOLUTION {SECRET}"
        )
        if name == "a1-setup":
            cell.source = "import math"
    nbformat.write(notebook, path)
    (root / "checks" / "a1" / "exercises.py").write_text(f"# {SECRET}\n")
    (root / "nbgrader_config.py").write_text(
        f"c = get_config()\nc.CourseDirectory.root = {str(root)!r}\n"
    )
    (root / ".mplab" / "key.txt").write_text(SECRET)
    in_process(_release_control, course)
    return course


def in_process(function, *arguments, seconds=90.0):
    """Call in a forked process with a limit of time; None if it failed or took longer."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=_call, args=(theirs, function, arguments))
    worker.start()
    theirs.close()
    try:
        return mine.recv() if mine.poll(seconds) else None
    except EOFError:
        return None
    finally:
        for process in [*psutil.Process(worker.pid).children(recursive=True), worker]:
            process.kill()
        worker.join()


def _call(pipe, function, arguments):
    import logging

    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    pipe.send(function(*arguments))


def _release_control(course):
    from nbgrader.converters import GenerateAssignment

    directory = course.directory(assignment_id="a1")
    GenerateAssignment(coursedir=directory, config=course.config()).start()
    return True


def _grade_control(course, student, home):
    from nbgrader.converters import Autograde, GenerateFeedback

    os.environ |= {
        "HOME": str(home),
        "MPLAB_SECRET": SECRET,
        "IPYTHONDIR": str(home / "ipython"),
    }
    directory = course.directory(assignment_id="a1", student_id=student)
    try:
        Autograde(coursedir=directory, config=course.config(), force=True).start()
        GenerateFeedback(
            coursedir=directory, config=course.config(), force=True
        ).start()
    except Exception as error:
        return f"aborted: {type(error).__name__}"
    with course.gradebook() as gradebook:
        return float(gradebook.find_submission("a1", student).score)


def gave_in(attack, outcome, traces):
    """Whether stock nbgrader fell for an attack as it is written there."""
    score = outcome if isinstance(outcome, float) else None
    return {
        "score": score is not None and score > attack.points,
        "partial": score is not None and score > attack.points,
        "loses": score is not None and score < attack.points,
        "batch": str(outcome).startswith("aborted"),
        "harm": bool(traces.strip()) or str(outcome).startswith("aborted"),
    }[attack.control]


def run_control(course, attack, number, port):
    """What stock nbgrader makes of an attack: points or a failure, and the traces it leaves."""
    student = student_of(number)
    home = course.root / "home"
    home.mkdir(exist_ok=True)
    if not (course.root / "submitted" / "s000").exists():
        submit(course, "s000", None)
    submit(course, student, attack, port=port)
    outcome = in_process(_grade_control, course, student, home)
    traces = traces_of(course, student)
    if attack.name == "markup in feedback":
        page = course.root / "feedback" / student / "a1" / "a1.html"
        traces += (
            " script"
            if page.exists() and "<script>alert(1)" in page.read_text()
            else ""
        )
    harmed = list(course.root.rglob("HARMED"))
    for path in harmed:
        path.unlink()
    shutil.rmtree(course.root / "submitted" / student, ignore_errors=True)
    return ("aborted" if outcome is None else outcome), traces + (
        " file" if harmed else ""
    )
