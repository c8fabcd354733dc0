"""Find the exercises of all lessons, and check an answer to one of them."""

import warnings
from collections import UserDict
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from typing import Any

from mplab.common.files import course_folder
from mplab.course.exercises.exercise import TIME_LIMIT, Exercise, Verdict, verdict_on


class _Found(UserDict[str, Exercise]):
    """The exercises in `lessons/lNN/exercises.py`, imported on first use.

    They cannot be imported earlier, because they import this room.
    """

    def __init__(self) -> None:
        pass  # `data` is a cached property

    @cached_property
    def data(self) -> dict[str, Exercise]:  # type: ignore[override]
        found: dict[str, Exercise] = {}
        try:
            folder = course_folder("lessons")
        except FileNotFoundError:  # the sandbox of a submission hides the lessons
            return found
        for file in sorted(folder.glob("l[0-9][0-9]/exercises.py")):
            lesson = file.parent.name
            module = import_module(f"mplab.lessons.{lesson}.exercises")
            if hasattr(module, "EXERCISES"):
                found |= module.EXERCISES
            else:
                warnings.warn(f"{file} has no EXERCISES yet", stacklevel=2)
        return found


EXERCISES = _Found()
"""The exercises by name."""


def check(name: str, answer: Any, *, seconds: float = TIME_LIMIT) -> Verdict:
    """Check the answer to an exercise.

    Args:
        name: the name of the exercise.
        answer: your answer: a function, or a value.
        seconds: time limit of a function for all cases; `math.inf` sets no limit. A loop in
            Python is stopped then; a single call into compiled code only after it returns.

    Returns:
        A verdict that prints itself. A stub that still raises `NotImplementedError` counts as
        not attempted, not as wrong.

    Raises:
        ValueError: no exercise has this name.

    Examples:
        >>> check("flush_threshold", 2.0**-24)
        flush_threshold: not yet.
          yours    = 2^-24
          2^-24 is a number of FP16, so it survives, and so does any number near it.
    """
    if name not in EXERCISES:
        near = get_close_matches(name, EXERCISES)
        raise ValueError(
            f"check: name must be an exercise; got {name!r}. "
            f"{'Near it' if near else 'For one'}: {', '.join(near or list(EXERCISES)[:3])}."
        )
    return verdict_on(name, EXERCISES[name], answer, seconds=seconds)
