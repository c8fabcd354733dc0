"""Assignments out, notebooks back through a sandbox, grades into nbgrader."""

from mplab.grading._exercises import Graded, Part, load_public
from mplab.grading._values import decode_value, encode_value

__all__ = [
    "Graded",
    "Part",
    "decode_value",
    "encode_value",
    "load_public",
]
