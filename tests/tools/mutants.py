"""How many random faults in a room its fast tests notice: the power of the tests, measured.

python tests/tools/mutants.py scaling --count 25 --seed 0
python tests/tools/mutants.py course/grading

Each fault is one change as `mutations.py` makes them, in a copy of this folder. What survives is
printed: a change that changes nothing (an equivalent one), or a test that is missing.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutations import mutants

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "grade": "tests/grading/test_folder.py",
    "train": "tests/training/test_runs.py",
}
"""The tests of a command that are not in its room, but where what it runs is."""
TESTS = {"exercises": "course", "site": "commands"}
"""The folder of a room's tests where it is not called as the room."""


def notices(copy: Path, room: str, module: str = "") -> bool:
    """Whether a fast test of the room fails in the copy.

    The module's own tests are run first, because they notice most faults within seconds, and those
    of what is drawn; the fronts last: what they offer, and what a room says without its packages.
    """
    name = room.rpartition("/")[2]
    tests = f"tests/{TESTS.get(name, name)}"
    own = [f"{tests}/test_{each}.py" for each in (module, "drawn")]
    own += ELSEWHERE.get(module, "").split()
    if module and any((copy / test).exists() and _fail(copy, test) for test in own):
        return True
    return _fail(copy, tests, f"mplab/{room}", "tests/test_front.py")


def _fail(copy: Path, *tests: str) -> bool:
    """Whether one of the fast tests fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not (slow or browser or full)", *tests]
    # A program that a test starts in another folder imports the copy, too.
    here = os.environ | {"PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command, cwd=copy, env=here, capture_output=True, timeout=900
        )
    except subprocess.TimeoutExpired:  # an endless loop is noticed, too
        return True
    return done.returncode not in (0, 5)  # 5: all tests of a file are slow ones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room")
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faults = [
        (path.relative_to(ROOT), what, text)
        for path in sorted((ROOT / "mplab" / options.room).rglob("*.py"))
        for what, text in mutants(path.read_text(encoding="utf-8")).items()
    ]
    rng = random.Random(options.seed)
    chosen = rng.sample(faults, min(options.count, len(faults)))
    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        left = shutil.ignore_patterns(".git", ".venv", "artefacts", ".hypothesis")
        shutil.copytree(ROOT, copy, ignore=left)
        if notices(copy, options.room) or _fail(copy, *ELSEWHERE.values()):
            sys.exit("The tests fail without any fault.")
        for path, what, text in chosen:
            (copy / path).write_text(text, encoding="utf-8")
            seen = notices(copy, options.room, path.stem)
            shutil.copy2(ROOT / path, copy / path)
            noticed += seen
            print("noticed " if seen else "SURVIVES", f"{path}: {what}", flush=True)
    print(f"{options.room}, seed {options.seed}: {noticed} of {len(chosen)} noticed")


if __name__ == "__main__":
    main()
