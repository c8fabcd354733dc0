"""What keeps the library in its shape: who may import whom, budgets, and words."""

import ast
import re
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from size import code_tokens

import mplab

PACKAGE = Path(mplab.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))
OF_LESSONS = sorted(ROOT.glob("lessons/l[0-9][0-9]/*.py"))

TABLE = {
    "common": "",
    "numbers": "common",
    "arithmetic": "common numbers",
    "scaling": "common numbers",
    "simulation": "common numbers scaling",
    "training": "common numbers scaling simulation",
    "health": "common numbers simulation",
    "course/exercises": "common numbers",
    "course/pictures": "common numbers arithmetic scaling simulation training health",
    "course/explorers": "common numbers training course/pictures",
    "course/grading": "common numbers course/exercises",
    "course/site": "common numbers training course/exercises course/pictures course/explorers",
    "commands": "common numbers arithmetic scaling simulation training health course/exercises "
    "course/pictures course/explorers course/grading course/site",
}
"""The rooms, and those that each may import, lazily or not: first the library's, then those of the
course. Beside them stands `__init__.py`."""
LAST = "commands"
HEAVY = {"torch", "matplotlib", "numba", "IPython", "ipywidgets", "jupyterlab", "tqdm"}
IMPORT_BUDGET = 1.0
"""CPU time of `import mplab` after NumPy and ml_dtypes, in the time that Python and these take."""

STATEMENTS = 60
"""Of a function, at most."""
TOKENS_PER_LINE = 8.5
"""Of mplab/ as a whole. Httpx holds 6.2, gfloat 6.8: a folded line takes longer to read."""

LIBRARY = [room for room in TABLE if not room.startswith("course/") and room != LAST]
TOKENS = {
    " ".join(f"mplab/{room}" for room in LIBRARY): 103_000,
    "mplab lessons data": 336_200,
    "tests": 357_000,
}
"""Tokens of Python without comments and docstrings, as the last step that set them left them: of
the library, of all that a learner gets, of the tests. They may grow by `SLACK`."""
SLACK = 1.02
IMPORTS_PER_FILE = 9.6


def name_of(path):
    """The dotted name within mplab: that of a file, or of the folder of an __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


LESSONS = PACKAGE / "lessons"
APART = (PACKAGE, LESSONS, PACKAGE / "course")
MODULES = {name_of(p): p for p in FILES if p.parent not in APART}
FRONTS = {"course", *(room.replace("/", ".") for room in TABLE)}


def wrong(of, names):
    """What is wrong by `of` with each of the names, where anything is."""
    return {str(name): found for name in names if (found := of(name))}


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(nodes, name):
    """Dotted names that nodes of the file `name` import anywhere, also inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if name.endswith(".pyi"):
                continue  # `lazy_loader` lets a stub import from its own room alone
            assert node.level == 0, f"{name}:{node.lineno} imports relatively"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            files = [name for name in inner if name.removeprefix("mplab.") in MODULES]
            yield from files  # `from mplab.numbers import codes` asks for the file, not the front
            if len(files) < len(inner):
                yield node.module


def modules(path):
    """Modules of mplab that `path` imports, fronts too; `mplab` itself is ""."""
    names = {
        name.removeprefix("mplab").lstrip(".")
        for name in read(path).imported
        if ours(name)
    }
    return names & {"", "course", *MODULES}


def ours(name):
    """Whether a dotted name lies in mplab."""
    return name.partition(".")[0] == "mplab"


def room_of(module):
    """The room of a module."""
    first, second = (*module.split("."), "")[:2]
    return f"course/{second}" if first == "course" else first


class Read(NamedTuple):
    """What the tests ask of a file."""

    imported: list[str]
    functions: dict[str, int]


@cache  # a tree is large, so each file is parsed once and not kept
def read(path):
    """The answers for one file."""
    nodes = list(ast.walk(parse(path)))
    functions = {}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            held = sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1
            functions[node.name] = max(held, functions.get(node.name, 0))
    return Read(list(imported_modules(nodes, path.name)), functions)


@cache
def tokens_of(path):
    """The line of each token of a file's code."""
    return code_tokens(path.read_text(encoding="utf-8"))


def test_the_package_holds_the_rooms_of_the_table_and_no_other_code():
    entries = {path.name for path in PACKAGE.iterdir()} - {"__pycache__", "_course"}
    first = {room.partition("/")[0] for room in TABLE}
    assert entries == {*first, "lessons", "__init__.py", "__main__.py", "py.typed"}
    within = {path.name for path in (PACKAGE / "course").iterdir()} - {"__pycache__"}
    rooms = {room.partition("/")[2] for room in TABLE if room.startswith("course/")}
    assert within == {*rooms, "__init__.py"}


def test_contributors_read_the_table_as_it_is():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)` \| (.*) \| (.*) \|$", text, re.M)
    for room, sentence, allowed in rows:
        assert (
            parse(MODULES[room.replace("/", ".")])
            .body[0]
            .value.value.startswith(sentence)
        )
        assert allowed == ("all" if room == LAST else TABLE[room] or "–")
    assert [room for room, *_ in rows] == list(TABLE)
    assert text.count("\n") <= 80


def test_the_table_has_no_circle():
    for room, allowed in TABLE.items():
        earlier = list(TABLE)[: list(TABLE).index(room)]
        assert set(allowed.split()) <= set(earlier), room


def test_a_file_imports_only_from_its_own_room_and_those_in_the_table():
    def arrows(module):
        home = room_of(module)
        found = {room_of(other) for other in modules(MODULES[module])}
        return found - {home, *TABLE[home].split()}

    assert wrong(arrows, MODULES) == {}, "arrows that the table does not allow"


def test_no_permission_in_the_table_is_unused():
    used = {room: set() for room in TABLE}
    for module, path in MODULES.items():
        used[room_of(module)] |= {room_of(other) for other in modules(path)}
    unused = {
        room: set(TABLE[room].split()) - used[room] for room in TABLE if room != LAST
    }
    assert {room: names for room, names in unused.items() if names} == {}


def test_code_imports_files_and_never_a_front_or_mplab_itself():
    assert wrong(lambda module: modules(MODULES[module]) & {"", *FRONTS}, MODULES) == {}


def test_the_checks_of_exercises_need_no_more_than_numpy():
    allowed = {"numpy", "mplab"}
    room = "course/exercises"
    paths = [path for module, path in MODULES.items() if room_of(module) == room]
    for path in [*paths, *(path for path in OF_LESSONS if path.name == "exercises.py")]:
        names = {name.partition(".")[0] for name in read(path).imported}
        assert names - allowed <= sys.stdlib_module_names, path
        assert "numbers.tensors" not in modules(path), path


def test_a_lesson_s_code_lies_in_a_folder_that_merges_with_the_learner_s():
    assert [p.name for p in ROOT.glob("lessons/l*/__init__.py")] == []
    notebooks = {f"l{path.name[:2]}" for path in ROOT.glob("lessons/*.ipynb")}
    assert {path.parent.name for path in OF_LESSONS} == notebooks, (
        "a folder lNN and a notebook NN_….ipynb beside it come together"
    )


def test_the_library_imports_lessons_only_where_it_finds_them():
    """A lesson stands on the library; commands show what lessons hold, and exercises are found."""
    asking = [
        p for p in FILES if any("mplab.lessons" in name for name in read(p).imported)
    ]
    names = {name_of(path) for path in asking} - {"course.exercises.lessons"}
    assert {room_of(name) for name in names} <= {LAST}


def test_only_commands_read_a_command_line():
    readers = {
        module for module, path in MODULES.items() if "argparse" in read(path).imported
    }
    assert {room_of(module) for module in readers} == {LAST}


def test_importing_what_every_submission_imports_imports_nothing_heavy():
    """Cases of exercises that rounded at import brought 100 MB of compiler to each of them."""
    code = "import mplab.course.grading, sys; print(*{n.partition('.')[0] for n in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stdout.split())


def test_importing_mplab_takes_little_cpu_time(record_property):
    code = """
from time import process_time
import numpy, ml_dtypes
before = process_time()
import mplab
print(process_time() / before - 1)
"""
    command = [sys.executable, "-c", code]
    ratios = []
    while len(ratios) < 7 and sum(each < IMPORT_BUDGET for each in ratios) < 4:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        ratios.append(float(done.stdout))
    record_property(
        "import mplab, times Python with NumPy", f"{statistics.median(ratios):.2f}"
    )
    assert sum(each < IMPORT_BUDGET for each in ratios) == 4, (
        "the median of seven is higher"
    )


def test_no_tensor_of_python_numbers_takes_torch_s_default_dtype():
    """A program that sets the default to float64 or float16 must get the same numbers."""
    makers = "tensor as_tensor scalar_tensor zeros ones full empty arange linspace eye rand randn"
    made = {f"torch.{maker}" for maker in makers.split()}
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in made:
                options = {keyword.arg for keyword in node.keywords}
                assert options & {"dtype", None}, f"{path}:{node.lineno} lacks a dtype"


def files_below(place):
    return [
        path
        for path in (ROOT / place).rglob("*.py*")
        if path.suffix in (".py", ".pyi") and "/." not in str(path)
    ]


def test_library_course_and_tests_hold_no_more_tokens_than_their_budgets(
    record_property,
):
    held = {}
    for places in TOKENS:
        files = [path for place in places.split() for path in files_below(place)]
        held[places] = sum(len(tokens_of(path)) for path in files)
        record_property(
            f"tokens of {places}", f"{held[places]:,} of {TOKENS[places]:,}"
        )
    over = {
        places: count
        for places, count in held.items()
        if count > SLACK * TOKENS[places]
    }
    assert over == {}, "take something away, or say in the commit what this is worth"


def test_scripts_and_style_sheets_hold_few_lines():
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".js", ".css")]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= 3_300


def test_a_line_holds_few_tokens(record_property):
    tokens = [tokens_of(path) for path in files_below("mplab")]
    lines = sum(len(set(starts)) for starts in tokens)
    density = sum(map(len, tokens)) / lines
    record_property("tokens a line", f"{density:.2f}")
    assert density <= TOKENS_PER_LINE


def test_a_file_imports_few_others_on_average():
    files = [*FILES, *OF_LESSONS]
    counts = [
        len(re.findall(r"(?m)^\s*(?:from [\w.]+ )?import ", p.read_text()))
        for p in files
    ]
    assert statistics.mean(counts) <= IMPORTS_PER_FILE


def test_no_function_is_long():
    def long(path):
        return {f: n for f, n in read(path).functions.items() if n > STATEMENTS}

    assert wrong(long, [*FILES, *OF_LESSONS]) == {}


def test_the_field_s_words_are_used():
    def others(path):
        # Torch's name.
        text = path.read_text(encoding="utf-8").replace("set_flush_denormal", "")
        return re.findall(r"(?i)mantissa\w*|denormal\w*", text)

    assert wrong(others, FILES) == {}


def test_no_import_survives_that_nobody_could_follow():
    """`import_module` hides an import from the table: `mplab` has it, and the last room.

    `lazy_loader` imports what the stub of a front writes, and the exercises of lessons are found.
    """
    found = [
        path for path in FILES if "import_module" in path.read_text(encoding="utf-8")
    ]
    found = [path for path in found if path.name != "lessons.py"]
    assert {path.parent for path in found} == {PACKAGE, PACKAGE / LAST}
