"""Print what each attack gets from nbgrader as it comes, and from mplab: `python report.py`.

Takes several minutes. With names as arguments, only those attacks.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

from payloads import ATTACKS, SECRET, UNSAFE, Attack
from stage import Listener, make_control, make_course, run_class, run_control


def is_run(attack: Attack) -> bool:
    """Whether the control may run an attack."""
    return attack.control != UNSAFE and not attack.control.startswith(("stock has", "follows"))


def controls(root: Path, attacks: list[Attack]) -> list[str]:
    """In words, what stock nbgrader makes of each attack."""
    course = make_control(root)
    rows = []
    with Listener() as listener:
        for number, attack in enumerate(attacks):
            if not is_run(attack):
                rows.append(attack.control)
                continue
            calls = listener.calls
            outcome, traces = run_control(course, attack, number, listener.port)
            if listener.calls > calls:
                traces += " network"
            words = f"{outcome:g} points" if isinstance(outcome, float) else str(outcome)
            rows.append(words + (f", {traces.strip()}" if traces.strip() else ""))
    return rows


def main() -> None:
    names = sys.argv[1:]
    attacks = [attack for attack in ATTACKS if not names or attack.name in names]
    os.environ["MPLAB_SECRET"] = SECRET
    with tempfile.TemporaryDirectory() as folder:
        before = controls(Path(folder, "control"), attacks)
        results = run_class(make_course(Path(folder, "course"), len(attacks)), attacks)
    print("| attack | nbgrader as it comes | expected | got |\n|---|---|---|---|")
    for attack, control, result in zip(attacks, before, results, strict=False):
        remark = f", {result.remark}" if result.remark else ""
        got = f"{result.score:g} points{remark}" + (f", {result.traces}" if result.traces else "")
        print(f"| {attack.name} | {control} | {attack.points:g} points | {got} |")


if __name__ == "__main__":
    main()
