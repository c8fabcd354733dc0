"""What the course brings along: its files, the digits, the checks of its exercises."""

from mplab.course.digits import Digits as Digits
from mplab.course.digits import load_digits as load_digits
from mplab.course.exercise import Arguments as Arguments
from mplab.course.exercise import Exercise as Exercise
from mplab.course.exercise import Misconception as Misconception
from mplab.course.exercise import Sealed as Sealed
from mplab.course.exercise import Verdict as Verdict
from mplab.course.exercise import equal as equal
from mplab.course.lessons import EXERCISES as EXERCISES
from mplab.course.lessons import check as check
