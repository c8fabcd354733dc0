"""What keeps the library in its shape: who may import whom, budgets, and words."""

import ast
import re
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import mplab

PACKAGE = Path(mplab.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

NUMBER_CORE = ("formats", "facts", "inputs", "codes", "threads", "compiled", "kernels", "rounding")
ORDER = """
    formats facts inputs codes threads compiled kernels rounding
    arithmetic loops reductions bounds floatarray updates
    tensors tensorcore probe scaling loss_rules grad_scaler quantize data
    policies tables
    simulation simulation.marks simulation.products simulation.steps simulation.replicas
    simulation.operands simulation.dispatch simulation.regions simulation.functions
    simulation.explanation
    simulation.operations
    simulate audit fp8
    health.vitals health.tracing health.records health.findings health.reports health.watch
    health
    history broken_runs clinic
    training.recipes training.tasks training.optimizers training.parallel training.engines
    training.loop training.headroom training.activations training.stages training
    recordings.files recordings.asking recordings.matrices recordings.racing recordings.record
    recordings rooflines
    pictures.ranges pictures.steps pictures.canvas pictures.training pictures.report
    pictures.costs pictures.clinic pictures.health pictures.stages pictures.precision
    pictures.scaling pictures.gradients pictures.eight_bits pictures.formats pictures.rounding
    pictures.events pictures.arithmetic pictures.matrix_units pictures.updates
    pictures.rooflines pictures.recorded pictures
    widgets.explorer widgets.svg widgets.entry widgets.range_map widgets.accumulator_race
    widgets.matrix_step widgets.update_stagnation widgets.clinic widgets.speed_up
    widgets.bit_explorer widgets.number_line widgets.rounding_lab widgets.scaler_timeline
    widgets.training_theatre widgets.amax_history widgets.policy_explorer widgets
    checks.core checks.floats checks.rounding checks.events checks.training checks.sums
    checks.matrix_units checks.updates checks.clinic checks.amp checks.gradients
    checks.loss_scales checks.policies checks.eight_bits checks
    grading.values grading.isolation grading.inside grading.walls grading.sandbox
    grading.exercises grading.notebooks grading.running grading.course grading.execute
    grading.releasing grading.feedback grading.autograding grading.collecting grading.exporting
    grading.plugin grading.benchmark grading.provisioner grading.commands grading
    doctor websocket bench_steps bench training.runs export cli __main__
""".split()  # noqa: SIM905
"""Each module imports only from those before it, lazily or not."""
HEAVY = {"torch", "matplotlib", "numba", "IPython", "ipywidgets", "jupyterlab", "tqdm"}
IMPORT_BUDGET = 1.0
"""CPU time of `import mplab` after NumPy and ml_dtypes, in the time that Python and these take."""

FILE_LINES, FUNCTION_LINES = 600, 60


def name_of(path):
    """The dotted name within mplab: that of a file, or of the folder of an __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


ROOMS = {name_of(path): path for path in FILES if name_of(path)}  # the front door imports any

every_room = pytest.mark.parametrize("room", ROOMS)
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: name_of(path) or "mplab")


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(nodes, name):
    """Dotted names that nodes of the file `name` import anywhere, also inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports relatively"
            yield node.module
            if node.module == "mplab":
                yield from (f"mplab.{alias.name}" for alias in node.names)


def rooms(path):
    """Modules of mplab that `path` imports."""
    names = {name.removeprefix("mplab.") for name in read(path).imported}
    return names & set(ROOMS)


def public_definitions(tree):
    """Public functions, classes, and methods of public classes, with their dotted names."""
    todo = [("", node) for node in tree.body]
    while todo:
        prefix, node = todo.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            todo += [(f"{node.name}.", child) for child in node.body]


def code_lines(function):
    """Lines of a function without its docstring: documentation is no complexity."""
    first, *rest = function.body
    documented = ast.get_docstring(function, clean=False) is not None
    body = (rest or [first]) if documented else function.body
    return function.end_lineno - body[0].lineno + 1 + (function.body[0].lineno - function.lineno)


class Read(NamedTuple):
    """What the tests ask of a file."""

    imported: list[str]
    documented: bool
    undocumented: list[str]
    lengths: dict[str, int]


@cache  # a tree is large, so each file is parsed once and not kept
def read(path):
    """The answers for one file."""
    tree = parse(path)
    nodes = list(ast.walk(tree))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Read(
        list(imported_modules(nodes, path.name)),
        bool(ast.get_docstring(tree)),
        [name for name, node in public_definitions(tree) if not ast.get_docstring(node)],
        {node.name: code_lines(node) for node in functions},
    )


def test_every_module_has_its_place_in_the_order():
    assert set(ROOMS) == set(ORDER)


@every_room
def test_a_module_imports_only_from_earlier_modules(room):
    allowed = set(ORDER[: ORDER.index(room)])
    assert rooms(ROOMS[room]) <= allowed


CHECKS = [room for room in ROOMS if room.partition(".")[0] == "checks"]


@pytest.mark.parametrize("room", CHECKS)
def test_exercise_checks_need_only_the_number_core(room):
    path = ROOMS[room]
    assert rooms(path) <= {*NUMBER_CORE, *CHECKS}
    outside = {name.split(".")[0] for name in read(path).imported} - {"mplab", "numpy"}
    assert outside <= sys.stdlib_module_names


def test_importing_mplab_imports_nothing_heavy():
    code = "import mplab, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
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
    record_property("import mplab, times Python with NumPy", f"{statistics.median(ratios):.2f}")
    assert sum(each < IMPORT_BUDGET for each in ratios) == 4, "the median of seven is higher"


@every_file
def test_every_module_and_public_name_has_a_docstring(path):
    assert read(path).documented, "the module has none"
    assert read(path).undocumented == []


@every_file
def test_no_file_and_no_function_is_long(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= FILE_LINES
    assert {
        name: lines for name, lines in read(path).lengths.items() if lines > FUNCTION_LINES
    } == {}


@every_file
def test_the_field_s_words_are_used(path):
    text = path.read_text(encoding="utf-8").replace("set_flush_denormal", "")  # torch's name
    assert re.findall(r"(?i)mantissa\w*|denormal\w*", text) == []


@every_file
def test_no_import_survives_that_nobody_could_follow(path):
    """`import_module` hides an import from the test of the order, so only the front door has it."""
    found = "import_module" in path.read_text(encoding="utf-8")
    assert found == (path == PACKAGE / "__init__.py")


def test_the_readers_of_source_would_see_a_violation(tmp_path):
    """The tests above can fail: their readers find what they look for."""
    path = tmp_path / "sample.py"
    path.write_text(
        "from mplab import widgets\n"
        "def f():\n    import mplab.cli\n    from mplab.tensors import round_tensor\n"
        "class A:\n    def method(self): ...\n    def _private(self): ...\n"
    )
    assert {"mplab.widgets", "mplab.cli", "mplab.tensors"} <= set(read(path).imported)
    assert set(read(path).undocumented) == {"f", "A", "A.method"}


def test_every_name_that_a_tab_offers_is_there():
    offered = [name for name in dir(mplab) if not name.startswith("_")]
    assert [name for name in offered if not hasattr(mplab, name)] == []
    assert not {"Any", "annotations", "import_module"} & set(offered)
