"""Replay all reports and write their table into lessons/REPORTS.md.

python tests/reports/make_table.py
"""

import loops
import overflow
import precision
import underflow
from replay import REPORTS, row

from mplab.common.files import course_folder

TABLE = course_folder("lessons") / "REPORTS.md"
KINDS = (overflow, underflow, precision, loops)

PAGE = """\
## Reports from the field, replayed

{all} public bug reports of low-precision training, each rebuilt in some twenty lines that run on \
a CPU. Each row is measured: the number *in italics* in a run in FP32, in a run in real FP16 or \
BF16 (torch's autocast or low tensors), and under `mplab.simulation.simulated`; then what \
`mplab.health.Health` says of the last two, notes aside unless one is the right finding. ✓: the \
right finding is among these; ✗: it is not; silent: Health has a rule for this fault, and it did \
not speak; no rule: it has none, most often because the fault lies outside the model, the \
optimizer and the loss that it watches: an average of the weights, a counter. \
"ended-by-exception" is right where torch itself raises an error; refused: the simulation says \
that it cannot run this.

Of the real runs Health names the fault in {real}, of the simulated ones in {simulated}; it has no \
rule for {ruleless}. In {differing} reports the simulation does not do what the real run does. \
Where a thread leaves the cause open (FactSeg#6), the cause here is a usual one.

| report | what is wrong | FP32 | real | simulated | Health |
|---|---|---|---|---|---|
{rows}
"""


def page(rows):
    """The table of these rows, and what they come to."""
    cells = [line.split(" | ") for line in rows]
    health = [cell[5].split("; simulated: ") for cell in cells]
    return PAGE.format(
        all=len(rows),
        real=sum("✓" in said[0] for said in health),
        simulated=sum("✓" in said[-1] for said in health),
        ruleless=sum(rule is None for _, _, rule, _, _ in REPORTS),
        differing=sum(cell[3] != cell[4] for cell in cells),
        rows="\n".join(rows),
    )


if __name__ == "__main__":
    TABLE.write_text(page([row(*one) for one in REPORTS]), encoding="utf-8")
