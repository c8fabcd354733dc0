"""Answers to the exercises of lesson 07, right ones and wrong ones."""

import ml_dtypes
import numpy as np

from mplab import BF16, next_down, next_up, round_to


def one_by_one(w, delta):
    """With the neighbours: dead where w is nearer, or a tie and even."""
    flags = []
    for weight, update in zip(w.tolist(), delta.tolist(), strict=True):
        if update:
            other = float((next_up if update > 0 else next_down)(weight, BF16))
            gap = abs(other - weight)
            size = abs(update)
            even = int(mplab_code(weight)) % 2 == 0
            flags.append(size < gap / 2 or (size == gap / 2 and even))
    return np.float32(sum(flags) / len(flags)) if flags else 0.0  # as torch's mean


def mplab_code(x):
    return np.float64(x).astype(ml_dtypes.bfloat16).view(np.uint16)


def coin(x, r):
    """By the neighbours of the rounded number."""
    near = float(round_to(x, BF16))
    if near == x:
        return x
    low = near if near < x else float(next_down(near, BF16))
    high = float(next_up(low, BF16))
    return high if r * (high - low) < x - low else low


def nearly_equal(w, delta):
    asked = delta != 0
    still = np.isclose(round_to(w + delta, BF16), w)[asked]
    return float(still.mean()) if asked.any() else 0.0


RIGHT = {
    "largest_dead_update": [2.0**-8, 0.00390625],
    "dead_share": [one_by_one],
    "stochastic_round": [coin],
}

WRONG = {
    "stochastic_round": [
        (lambda x, r: coin(x, float(np.float32(r))), "share of the way"),
        (lambda x, r: coin(float(np.float32(x)), r), "share of the way"),
    ],
    "dead_share": [
        (nearly_equal, "w is still w"),
        (lambda w, d: one_by_one(w, round_to(d, BF16)), "w is still w"),
        (lambda w, d: one_by_one(abs(w), d), "w is still w"),
    ],
}
