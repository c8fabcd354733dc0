"""Assignments out, notebooks back through a sandbox, grades into nbgrader."""

from mplab.course.grading.exercises import (
    Graded as Graded,
    Part as Part,
    load_public as load_public,
)
from mplab.course.grading.serialization import (
    decode_value as decode_value,
    encode_value as encode_value,
)
