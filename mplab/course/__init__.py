"""What the course brings along: its files, the digits, the checks of its exercises."""

from mplab.course.digits import Digits, load_digits
from mplab.course.exercise import Arguments, Exercise, Misconception, Sealed, Verdict, equal
from mplab.course.lessons import EXERCISES, check

__all__ = [
    "EXERCISES",
    "Arguments",
    "Digits",
    "Exercise",
    "Misconception",
    "Sealed",
    "Verdict",
    "check",
    "equal",
    "load_digits",
]
