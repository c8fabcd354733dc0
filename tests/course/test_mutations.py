"""The checks of all exercises tell right answers from those that differ in one place."""

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


@pytest.mark.full
def test_every_check_kills_a_sample_of_mutants_or_they_are_named_with_a_reason():
    command = [sys.executable, TOOL, "--sample", "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
