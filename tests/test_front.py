"""The fronts: what each offers, and what a room says that lacks its packages."""

import re
import subprocess
import sys
from importlib import import_module

import pytest
from cases import LESSONS_WITHOUT_TORCH, run_script
from fronts import offered

import mplab
from mplab.common.fronts import IN_LESSONS

NUMBERS = """
    BF16 E4M3 E5M2 FORMATS FP4_E2M1 FP6_E2M3 FP6_E3M2 FP8_E4M3 FP8_E4M3FNUZ FP8_E5M2 FP8_E5M2FNUZ
    FP8_E8M0 FP16 FP32 FP64 TF32 Event Fields Format Overflow Rounding Specials Stream Tally
    Tininess decode encode events fields format_of next_down next_up round_to
    set_threads tally ulp values
"""
FRONTS = {
    "numbers": NUMBERS,
    "arithmetic": """
        add subtract multiply divide sqrt fma remainder raised Rules
        exp exp2 log log2 sin cos tanh
        matmul dot sum cumsum norm mean variance softmax Accumulation ORDERS
        Factors lu solve_triangular Refinement refine backward_error condition
        Weights METHODS
        ARCHITECTURES MatrixUnit mma unit_of FloatArray distinct_sums
    """,
    "scaling": """
        LossScaler DoublingScaler FlooredScaler KerasScaler NudgedScaler GradScaler
        LossScaleLimits Trace ScalerStep simulate_scaler scaler_steps
        ScaleRule scale_for FixedScaling CurrentScaling DelayedScaling
        MX_BLOCK Quantized amax_of quantize dequantize fake_quantize hadamard
    """,
    "course": """
        check EXERCISES Exercise Misconception but Arguments HashedValue Verdict equal Digits
        load_digits
    """,
    "simulation": """
        simulated explain Explanation Policy Run POLICIES
        CUDA_AUTOCAST CPU_AUTOCAST KERAS_MIXED EVERYTHING
        Fp8Linear convert_linears conversion SCALINGS Scaling Cast
        AS_WRITTEN
    """,
    "training": """
        train TASKS RECIPES Task Split Recipe Watcher History gather
        load_runs ExponentHistogram exponent_histogram
    """,
    "health": "Health Report Finding Digest Comparison compare",
    "pictures": """
        Picture RunningSum Window bit_fields by_seed code_table decimal_digits follow
        gradient_exponents headroom health loss_curves loss_meter loss_scale
        number_lines parting precision_map results_table
        rounding_profile running_sums scaling_windows sensitivity
    """,
    "explorers": """
        BitExplorer Explorer NumberLine RangeMap RoundingLab
    """,
    "grading": "Graded Part load_public encode_value decode_value",
}
"""What users have in hand. A name that leaves needs a line in CHANGELOG.md."""

every_front = pytest.mark.parametrize("room", FRONTS)


@every_front
def test_a_front_offers_these_names_and_no_others(room):
    front = import_module(f"mplab.{room}")
    names = offered(front)
    assert sorted(names) == sorted(FRONTS[room].split()), "FRONTS lists each name"
    files = {
        name.rpartition(".")[2]
        for name in sys.modules
        if name.startswith(f"mplab.{room}.")
    }
    assert not files & set(names), (
        "a file of this name takes its place when it is imported"
    )


@every_front
def test_the_first_sentence_of_a_front_says_what_it_is_for(room):
    sentence = import_module(f"mplab.{room}").__doc__.partition("\n")[0]
    assert sentence.endswith(".")
    assert len(sentence.split()) <= 20


def test_the_door_offers_the_numbers_the_check_of_an_exercise_and_the_rooms():
    assert set(mplab.__all__) == {*NUMBERS.split(), "check"} - {"set_threads"}
    assert set(dir(mplab)) == {*mplab.__all__, *FRONTS}
    assert [name for name in dir(mplab) if not hasattr(mplab, name)] == []


@pytest.mark.parametrize(
    "name",
    ["pictures.canvas", "explorers.chart", "grading.exercises"],
)
def test_short_names_of_rooms_of_the_course_give_the_same_modules(name):
    """Notebooks and assignments from before the course had a room of its own say these."""
    room = name.partition(".")[0]
    assert getattr(mplab, room) is import_module(f"mplab.course.{room}")
    file = import_module(f"mplab.{name}")
    assert file is import_module(f"mplab.course.{name}")
    assert file.__spec__.name == file.__name__  # so that it can be reloaded


@pytest.mark.parametrize("front", IN_LESSONS)
def test_a_name_that_moved_to_a_lesson_says_where_it_is(front):
    for name in IN_LESSONS[front]:
        with pytest.raises(ImportError) as told:
            exec(f"from {front} import {name}")
        where = r"in (mplab\.lessons\.[\w.]+\w)(?:.*\((\w+)\))?"
        module, other = re.search(where, str(told.value)).groups()
        assert front == "mplab" or hasattr(import_module(module), other or name)


def test_what_is_not_offered_gives_python_s_own_error():
    code = "import mplab\nfor name in {!r}:\n    try: getattr(mplab, name)\n"
    code += "    except AttributeError as error: print(error)"
    names = ["simulate", "policies", "widgets", "reductions", "commands"]
    said = [f"module 'mplab' has no attribute '{name}'" for name in names]
    assert run_script(code.format(names)).splitlines() == said


# What an installation lacks

BARE = """
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacking())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in {packages!r} else found(name)
"""
HEAVY = {"torch", "tqdm", "matplotlib", "ipywidgets", "jupyterlab"}
FIRST_CELLS = """
import json
from mplab.common.files import course_folder
for path in sorted(course_folder("lessons").glob("*.ipynb")):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    try: exec("".join(next(c for c in cells if c["cell_type"] == "code")["source"]), {})
    except ModuleNotFoundError as error: assert error.name == "torch", error
    else: print(int(path.name[:2]))
"""


def without(*packages):
    """The start of a script that runs as if these packages were not installed."""
    return BARE.format(packages=set(packages))


def test_numbers_arithmetic_course_and_the_rules_of_scaling_need_no_torch():
    code = without(*HEAVY) + (
        "import mplab, numpy\n"
        "from mplab import FP16, arithmetic, course, grading, scaling\n"
        "x = numpy.ones(2)\n"
        "print(mplab.round_to(0.1, FP16), arithmetic.dot(x, x, accumulator_format=FP16))\n"
        "print(scaling.LossScaler().scale, course.load_digits().images.shape)\n"
    )
    assert run_script(code).split("\n")[:2] == [
        "0.0999755859375 2.0",
        "65536.0 (1797, 8, 8)",
    ]


@pytest.mark.slow
def test_the_guide_names_the_lessons_that_need_no_torch_and_their_code_runs_without_it():
    code = without("torch") + FIRST_CELLS
    assert [int(n) for n in run_script(code).split()] == LESSONS_WITHOUT_TORCH, (
        "lessons/README.md says which need no PyTorch"
    )


TORCH = ["simulation", "training.train", "health"]
TORCH += ["scaling.GradScaler", "scaling.quantize", "pictures.precision_map"]


@pytest.mark.parametrize(
    ("missing", "extra", "rooms"),
    [
        ("torch", "torch", TORCH),
        ("matplotlib", "lab", ["pictures.number_lines"]),
        ("ipywidgets", "lab", ["explorers"]),
    ],
)
def test_a_room_that_lacks_a_package_says_in_one_line_what_to_install(
    missing, extra, rooms
):
    code = without(missing) + "import mplab\n"
    for room in rooms:
        code += (
            f"try: mplab.{room}\nexcept ModuleNotFoundError as error: print(error)\n"
        )
    said = run_script(code).splitlines()
    words = "which is not installed. Install it: "
    for line, room in zip(said, rooms, strict=True):
        where = line.replace("mplab.course.", "mplab.")
        assert where.startswith(f"mplab.{room} needs {missing}, {words}")
        assert line.endswith(f"pip install 'mplab[{extra}]'")


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("train --list", "torch", "torch"),
        *[
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("grade init x", "nbgrader", "grade"),
                ("export-html", "pdoc", "docs"),
                ("lab", "jupyterlab", "lab"),
            )
        ],
    ],
)
def test_a_command_that_lacks_a_package_says_in_one_line_what_to_install(
    command, missing, extra, tmp_path
):
    code = without(missing) + (
        f"from mplab.commands.main import main\nraise SystemExit(main({command.split()!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"needs {missing}, which is not installed" in done.stderr
    assert done.stderr.startswith(f"mplab {command.split()[0]}: ")
    assert done.stderr.endswith(f"pip install 'mplab[{extra}]'\n")
    assert list(tmp_path.iterdir()) == []
