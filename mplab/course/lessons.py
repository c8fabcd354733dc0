"""The checks of the exercises: one file for each group of lessons, one door for all."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from mplab.course._amp import EXERCISES as AMP
from mplab.course._clinic import EXERCISES as CLINIC
from mplab.course._eight_bits import EXERCISES as EIGHT_BITS
from mplab.course._emulation import EXERCISES as EMULATION
from mplab.course._events import EXERCISES as EVENTS
from mplab.course._floats import EXERCISES as FLOATS
from mplab.course._formulas import EXERCISES as FORMULAS
from mplab.course._four_bits import EXERCISES as FOUR_BITS
from mplab.course._gradients import EXERCISES as GRADIENTS
from mplab.course._loss_scales import EXERCISES as LOSS_SCALES
from mplab.course._matrix_units import EXERCISES as MATRIX_UNITS
from mplab.course._policies import EXERCISES as POLICIES
from mplab.course._rounding import EXERCISES as ROUNDING
from mplab.course._sums import EXERCISES as SUMS
from mplab.course._systems import EXERCISES as SYSTEMS
from mplab.course._time_steps import EXERCISES as TIME_STEPS
from mplab.course._training import EXERCISES as TRAINING
from mplab.course._two_runs import EXERCISES as TWO_RUNS
from mplab.course._updates import EXERCISES as UPDATES
from mplab.course.exercise import TIME_LIMIT, Exercise, Verdict, as_float, verdict_on
from mplab.numbers.checks import quoted

EXERCISES: dict[str, Exercise] = {
    **TRAINING,
    **FLOATS,
    **ROUNDING,
    **EVENTS,
    **SUMS,
    **MATRIX_UNITS,
    **UPDATES,
    **POLICIES,
    **EIGHT_BITS,
    **GRADIENTS,
    **LOSS_SCALES,
    **AMP,
    **CLINIC,
    **FORMULAS,
    **SYSTEMS,
    **EMULATION,
    **TIME_STEPS,
    **FOUR_BITS,
    **TWO_RUNS,
}
"""The exercises by name."""


def check(name: str, answer: Any, *, seconds: float = TIME_LIMIT) -> Verdict:
    """Check the answer to an exercise.

    Args:
        name: the exercise.
        answer: what it asks for: a function, or a value.
        seconds: how long a function may take for all cases; `math.inf` sets no limit. A loop in
            Python is stopped then; a single call into compiled code is not before it returns.

    Returns:
        A verdict that prints itself. A stub that still raises `NotImplementedError` is not
        wrong, only not attempted.

    Raises:
        ValueError: there is no exercise of this name; `seconds` is not positive.

    Examples:
        >>> check("flush_threshold", 2.0**-24)
        flush_threshold: not yet.
          yours    = 2^-24
          2^-24 is itself a number of FP16, so it survives; so does what is nearer to it.
    """
    if not isinstance(name, str) or name not in EXERCISES:
        raise ValueError(_unknown(name))
    limit = as_float(seconds)
    if not limit > 0:
        raise ValueError(
            f"check: seconds must be positive; got {quoted(seconds)}. Leave it out for "
            f"{TIME_LIMIT:g}."
        )
    return verdict_on(name, EXERCISES[name], answer, seconds=limit)


def _unknown(name: object) -> str:
    """That there is no such exercise, and those of nearly this name, or all of a first few."""
    near = get_close_matches(name, EXERCISES) if isinstance(name, str) else []
    return (
        f"check: name must be an exercise; got {quoted(name)}. "
        f"{'Near it' if near else 'For one'}: {', '.join(near or list(EXERCISES)[:3])}."
    )
