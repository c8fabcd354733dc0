"""Assignments out, notebooks back through a sandbox, grades into nbgrader."""

from mplab.grading.exercises import Graded, Part, load_public
from mplab.grading.serialization import decode_value, encode_value

__all__ = [
    "Graded",
    "Part",
    "decode_value",
    "encode_value",
    "load_public",
]
