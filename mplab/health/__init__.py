"""What is wrong with a run: a watch on any loop, its findings, and the clinic's cases."""

from mplab.numbers.installation import needs

needs("mplab.health", "torch")

from mplab.health._digest import Digest
from mplab.health._findings import Finding
from mplab.health._watch import Health
from mplab.health.clinic import CASES, Case, scale_too_high
from mplab.health.comparison import Comparison, compare
from mplab.health.reports import Report

__all__ = [
    "CASES",
    "Case",
    "Comparison",
    "Digest",
    "Finding",
    "Health",
    "Report",
    "compare",
    "scale_too_high",
]
