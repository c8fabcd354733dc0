"""The tools of the course: exercises and their checks, figures, explorers, grading, its pages."""

from mplab.common.digits import Digits as Digits, load_digits as load_digits
from mplab.course.exercises.exercise import (
    Arguments as Arguments,
    Exercise as Exercise,
    HashedValue as HashedValue,
    Misconception as Misconception,
    Verdict as Verdict,
    but as but,
    equal as equal,
)
from mplab.course.exercises.lessons import EXERCISES as EXERCISES, check as check
