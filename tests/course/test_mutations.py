"""The checks of all exercises tell right answers from those that differ in one place."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="every mutant is a fork with limits"
    ),
]

TOOL = Path(__file__).parents[1] / "tools" / "mutations.py"

MEAN = """
def mean(x: list, least: float = 0.0) -> float:
    total = 0.0
    for value in x:
        if value > least:
            total += value
    return total / 2
"""


@pytest.fixture
def mutations():
    return importlib.import_module("mutations")


@pytest.mark.full
def test_every_check_kills_a_sample_of_mutants_or_they_are_named_with_a_reason():
    command = [sys.executable, TOOL, "--sample", "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mutant_has_one_change_and_a_name_that_stays_when_lines_move(mutations):
    found = mutations.mutants(MEAN)
    assert {
        "total = [0.0 → 1.0]",
        "for value in [x → reversed(list(x))]:",
        "if value [> → >=] least:",
        "if [value > least → True]:",
        "total [+ → -]= value",
        "return total [/ → *] 2",
        "return [total / 2 → 2 / total]",
        "return total / [2 → 3]",
    } <= found.keys()
    assert not any("float" in name for name in found), "annotations change nothing"
    assert found.keys() == mutations.mutants("import math\n" + MEAN).keys()
    assert len(set(found.values())) == len(found)
    named = mutations.mutants("y = [floor(x, FP16), True, abs(x) < 1]")
    assert "y = [[floor → ceil](x, FP16), True, abs(x) < 1]" in named
    assert "y = [floor(x, [FP16 → BF16]), True, abs(x) < 1]" in named
    assert "y = [floor(x, FP16), [True → False], abs(x) < 1]" in named
    assert "y = [floor(x, FP16), True, [abs(x) → x] < 1]" in named


@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # of fork, beside threads
def test_a_check_with_a_hole_is_found_out_and_so_is_a_wrong_excuse(mutations):
    def passes(text):
        space = {}
        exec(text, space)
        return space["mean"]([1.0, 2.0]) == 1.5

    excuses = {
        "if value > [least → 3]",
        "return total / [2 → 3]",
        "for value in [x → y]:",
    }
    subject = mutations.Subject("mean", [MEAN], lambda: passes)
    row = mutations.row_of(subject, excuses)
    assert "if [value > least → True]:" in row.passed
    assert "return total / [2 → 3]" not in row.passed and set(row.stale) == excuses
    assert row.killed > 0
    assert mutations.row_of(subject, set(row.passed)).passed == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_mutant_that_never_ends_is_killed(mutations):
    def passes(text):
        exec(text, {})
        return True

    status, seconds = mutations.tried(passes, "while True: pass", 0.2)
    assert status != 0
    assert seconds < 30
