"""Answers to the exercises of lesson 12, right ones and wrong ones."""

import math
from collections import deque

import numpy as np

from mplab import FP8_E4M3, round_to
from mplab.scaling import DelayedScaling, scale_for


def halving(amax):
    """By trying."""
    if amax == 0:
        return 1.0
    scale = 2.0**100
    while amax * scale > 448:
        scale /= 2
    return scale


def flushed():
    """The largest number that a scale of 2^-6 flushes, found among all multiples of 2^-20."""
    numbers = np.arange(1, 2**18) * 2.0**-20
    return float(numbers[round_to(numbers * 2.0**-6, FP8_E4M3) == 0].max())


def with_a_deque(amaxes, length):
    history, scales = deque(maxlen=length), []
    for amax in amaxes.tolist():
        scales.append(halving(max(history)) if history else 1.0)
        history.append(amax)
    return scales


def by_the_library(amaxes, length):
    scaling = DelayedScaling(FP8_E4M3, amax_history_len=length)
    return np.array([scaling.update(amax) for amax in amaxes.tolist()])


def of_past(pick):
    """A scale from another choice among the magnitudes up to each step."""

    def scales(amaxes, length):
        found = [pick(amaxes.tolist(), k, length) for k in range(len(amaxes))]
        return np.array([1.0 if x is None else halving(x) for x in found])

    return scales


RIGHT = {
    "flushed_by_stale_scale": [0.0625, flushed()],
    "fp8_scale": [halving],
    "delayed_scales": [with_a_deque],
}

BY_LIBRARY = {
    "fp8_scale": [
        lambda amax: scale_for(amax, FP8_E4M3) and halving(amax)
    ],  # it takes float32
    "delayed_scales": [by_the_library],
}

WRONG = {
    "flushed_by_stale_scale": [(0.06, "undo the scale")],
    "fp8_scale": [
        (lambda a: 448 / a if a else 1.0, "rounds when it"),
        (
            lambda a: 2.0 ** (8 - math.floor(math.log2(a))) if a else 1.0,
            "the top saturates",
        ),
        (lambda a: 2.0 ** math.ceil(math.log2(448 / a)) if a else 1.0, "lies past 448"),
        (
            lambda a: 2.0 ** math.floor(math.log2(448 / a)) if a else 1.0,
            "Just past 3.5",
        ),
        (lambda a: halving(a) / (2 if a * halving(a) == 448 else 1), "may be reached"),
        (lambda a: 1 / halving(a), "would divide"),
    ],
    "delayed_scales": [
        (
            of_past(lambda a, k, n: max(a[max(0, k + 1 - n) : k + 1])),
            "counts from the next",
        ),
        (of_past(lambda a, k, n: max(a[:k]) if k else None), "are forgotten"),
        (of_past(lambda a, k, n: a[k - 1] if k else None), "not the latest"),
        (
            of_past(lambda a, k, n: max(a[max(0, k - n - 1) : k]) if k else None),
            "too many",
        ),
        (of_past(lambda a, k, n: a[k]), "current scaling"),
    ],
}
