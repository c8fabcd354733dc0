"""Answers to the exercises of lesson 16, right ones and wrong ones."""

from fractions import Fraction

import numpy as np

from mplab import BF16, round_to, values


def until_it_stays(k, room, dt, fmt):
    t = round_to(90.0, fmt)
    while True:
        cooler = round_to(t + dt * k * (room - t), fmt)
        if cooler == t:
            return t
        t = cooler


def strictly_below_half(k, room, dt, fmt):
    """The hottest of all temperatures, with the right gaps, but no ties."""
    t = np.unique(values(fmt))
    t = t[t <= round_to(90.0, fmt)]
    below = t[:-1]
    t = t[1:]
    lost = (t >= room) & (dt * k * (t - room) < (t - below) / 2)
    return t[lost].max()


def rest_negated(t, rest, step):
    """As Kahan wrote it: what arrived too much is taken off."""
    due = round_to(step - (-rest), BF16)
    new = round_to(t + due, BF16)
    return [new, -round_to(round_to(new - t, BF16) - due, BF16)]


def by_fractions(delta, ulp):
    steps = Fraction(delta) / Fraction(ulp)
    share = steps % 1
    return float(1 + share * (1 - share) / steps**2)


RIGHT = {
    "frozen_at": [until_it_stays],
    "kahan_step": [rest_negated],
    "variance_ratio": [by_fractions],
}

WRONG = {
    "frozen_at": [
        (strictly_below_half, "Round t"),
    ],
    "kahan_step": [
        (
            lambda t, rest, step: rest_negated(t, rest, round_to(step, BF16)),
            "four roundings, no more",
        ),
    ],
}
