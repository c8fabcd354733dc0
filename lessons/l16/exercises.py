"""The exercises on time steps: where a state freezes, compensation, and what chance costs."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, Format, encode, round_to, ulp, values
from mplab.course.exercise import Arguments, Exercise, known

_HOT = 90.0


# Where a cup stops -----------------------------------------------------------------------
def _frozen_at(
    k: float, room: float, dt: float, fmt: Format, *, twice: bool = False
) -> float:
    def cooler(t: float) -> float:
        step = dt * k * (t - room)
        return float(round_to(t - (round_to(step, fmt) if twice else step), fmt))

    t = float(round_to(_HOT, fmt))
    while (new := cooler(t)) != t:
        t = new
    return t


Lost = Callable[[np.ndarray, np.ndarray, Format], Any]
"""Whether steps from temperatures are lost."""


def _hottest(
    lost: Lost,
    *,
    step: Callable[
        [float, float, float, np.ndarray], np.ndarray
    ] = lambda k, room, dt, t: dt * k * (t - room),
) -> Callable[[float, float, float, Format], float]:
    """The hottest temperature whose step is lost; the coolest if none is."""

    def answer(k: float, room: float, dt: float, fmt: Format) -> float:
        ordered = np.unique(values(fmt))
        t = ordered[(ordered >= room) & (ordered <= round_to(_HOT, fmt))]
        return float(max(t[lost(step(k, room, dt, t), t, fmt)], default=t[0]))

    return answer


def _within(ties: Lost = lambda step, t, fmt: True) -> Lost:
    """A step is lost below half an ulp, and at exactly half if `ties` says so."""

    def lost(step: np.ndarray, t: np.ndarray, fmt: Format) -> Any:
        limit = ulp(t, fmt) / 2
        return (step < limit) | ((step == limit) & ties(step, t, fmt))

    return lost


def _even(step: np.ndarray, t: np.ndarray, fmt: Format) -> Any:
    return np.asarray(encode(t, fmt)) % 2 == 0


_half = _within(_even)


_CUPS = (
    Arguments((0.125, 20.0, 1.0, FP16)),
    Arguments((0.125, 20.0, 0.125, FP16)),
    Arguments((0.125, 20.0, 2.0**-6, FP16)),
    Arguments((0.125, 20.0, 0.125, BF16)),
    Arguments((0.125, 20.0, 0.25, BF16)),
    Arguments((0.25, 4.0, 0.5, BF16)),
    Arguments((0.125, 20.0, 1.0, FP8_E4M3)),
    Arguments((0.25, 20.0, 1.0, FP8_E4M3)),
    Arguments((0.0625, 24.0, 1.0, FP8_E4M3)),
    Arguments((0.25, 16.0, 0.5, FP8_E5M2)),
    Arguments((0.125, 16.0, 1.0, BF16)),
    Arguments((0.125, 20.0, 2.0**-8, BF16)),
    Arguments((0.125, 0.0, 1.0, FP16)),
    Arguments((0.125, 20.0, 0.5, FP8_E5M2)),  # 90 is stored as 96, and would go to 80
    Arguments(
        (0.125, 20.0, 1.0, FP8_E5M2)
    ),  # a step of 7.5 from 80 is lost, one of 8 is not
)


# Compensation ----------------------------------------------------------------------------
def _kahan_step(
    t: float,
    rest: float,
    step: float,
    *,
    handed_on: float = 1.0,
    twice: float = 0.0,
    sign: float = 1.0,
    of_the_step: bool = False,
    exact: bool = False,
    shortened: bool = False,
) -> tuple[float, float]:
    def fl(x: float) -> float:
        return float(round_to(x, BF16))

    owed = (lambda x: x) if shortened else fl
    due = owed(step + handed_on * rest)
    new = fl(t + due + twice * rest)
    gone = fl(new - t)
    left = (step if of_the_step else due) - gone
    return new, sign * (step + rest - (new - t) if exact else fl(left))


_STEPS = tuple(
    Arguments(case)
    for case in (
        (64.0, 0.0, 0.625),
        (64.0, 0.0, 0.375),
        (64.0, 0.0, 0.125),
        (64.0, 0.125, 0.0625),
        (64.0, 0.25, 2.0**-10),  # too small to change the lost part
        (64.0, 0.25, 2.0**-9),
        (64.0, -0.125, -(2.0**-11)),
        (64.0, -0.125, -(2.0**-10)),
        (20.5, 0.03125, -0.046875),
        (20.5, -0.03125, -0.1),
        (1.0, 2.0**-9, 0.1),
        (1.5, 0.001953125, 0.3 + 2.0**-20),
        (-3.0, 0.0078125, 0.005),
        (1.25, 0.00665283203125, 104.5),  # the step is larger than what it is added to
        (1.75, 0.00016117095947265625, 65.5),
        (2.0**-17, 2.0**-26, 2.0**-19 + 2.0**-27),
    )
)


# Chance ----------------------------------------------------------------------------------
def _variance_ratio(delta: float, ulp: float) -> float:
    share = math.fmod(delta, ulp) / ulp
    return 1.0 + share * (1.0 - share) * (ulp / delta) ** 2


def _as_nearest(delta: float, ulp: float) -> float:
    return (round(delta / ulp) * ulp / delta) ** 2


_WALKS = tuple(
    Arguments(case)
    for case in ((0.125, 1.0), (0.5, 1.0), (1.0, 1.0), (0.75, 1.0), (2.0**-10, 2.0**-7),
                 (1.5, 1.0), (2.25, 1.0), (3.0, 0.5), (2.0**-9, 2.0**-8), (0.6875, 0.125),
                 (3.0, 4.0))
)  # fmt: skip


EXERCISES: dict[str, Exercise] = {
    "frozen_at": Exercise(
        answer=_frozen_at,
        reason="Round t - dt·k·(t - room) to nearest, again and again, until t no longer changes.",
        argument="k, room, dt, fmt",
        cases=_CUPS,
        misconceptions=known(
            (
                _hottest(_within(lambda step, t, fmt: False)),
                "Half an ulp is a tie, and an even significand keeps it: that freezes, too.",
            ),
            (
                _hottest(_within()),
                "Half an ulp is a tie: an odd significand goes on to its even neighbour.",
            ),
            (
                _hottest(_half),
                "Below a power of two the next number is half an ulp away.",
            ),
            (
                _hottest(_half, step=lambda k, room, dt, t: dt * k * t),
                "A cup loses k times its distance from the room, not k times its temperature.",
            ),
            (
                partial(_frozen_at, twice=True),
                "Round the sum alone: the step is not stored.",
            ),
        ),
        uses=("round_to", "next_up", "next_down", "ulp", "values"),
    ),
    "kahan_step": Exercise(
        answer=_kahan_step,
        reason="due = step + lost; new = t + due; lost = due - (new - t): four roundings, no more.",
        argument="t, lost, step",
        cases=_STEPS,
        misconceptions=known(
            (
                partial(_kahan_step, handed_on=0.0),
                "The lost part must go into the next step, or it is lost for good.",
            ),
            (partial(_kahan_step, sign=-1.0), "The lost part has the wrong sign."),
            (
                partial(_kahan_step, exact=True),
                "The lost part, too, is stored in BF16: only eight bits of it are kept.",
            ),
            (
                partial(_kahan_step, shortened=True),
                "step + lost is rounded to BF16 first.",
            ),
            (
                partial(_kahan_step, of_the_step=True),
                "Due is step + lost, not the step alone.",
            ),
        ),
        uses=("round_to",),
    ),
    "variance_ratio": Exercise(
        answer=_variance_ratio,
        reason="The mean square of a rounded step over delta²: which two steps, how often each?",
        argument="delta, ulp",
        cases=_WALKS,
        tolerance=1e-12,
        misconceptions=known(
            (lambda delta, ulp: 1.0, "The mean is right; the mean square is not."),
            (
                lambda delta, ulp: ulp / delta,
                "That holds up to one ulp; a longer step leaves only its fraction to chance.",
            ),
            (
                lambda delta, ulp: (ulp / delta) ** 2,
                "Not every step moves by an ulp: a share delta/ulp of them does.",
            ),
            (
                lambda delta, ulp: delta / ulp,
                "That is the inverse: short steps are worse.",
            ),
            (_as_nearest, "That is rounding to nearest."),
        ),
    ),
}
