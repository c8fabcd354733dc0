"""What the course brings along: its files, the digits, the checks of its exercises."""

from mplab.course.digits import Digits as Digits, load_digits as load_digits
from mplab.course.exercise import (
    Arguments as Arguments,
    Exercise as Exercise,
    HashedValue as HashedValue,
    Misconception as Misconception,
    Verdict as Verdict,
    but as but,
    equal as equal,
)
from mplab.course.lessons import EXERCISES as EXERCISES, check as check
