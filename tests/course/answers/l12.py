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
    history = deque(maxlen=length)
    scales = []
    for amax in amaxes.tolist():
        scales.append(halving(max(history)) if history else 1.0)
        history.append(amax)
    return scales


def by_the_library(amaxes, length):
    scaling = DelayedScaling(FP8_E4M3, amax_history_len=length)
    return np.array([scaling.update(amax) for amax in amaxes.tolist()])


def filled_with_ones(amaxes, length):
    """A history that begins with ones instead of empty."""
    history = deque([1.0] * length, maxlen=length)
    scales = [1.0]
    for amax in amaxes.tolist()[:-1]:
        history.append(amax)
        scales.append(halving(max(history)))
    return scales


def without_zero(amaxes, length):
    """By significand and exponent, which say nothing of 0."""
    largest = [max(amaxes[max(0, i - length) : i]) for i in range(1, len(amaxes))]
    parts = map(math.frexp, largest)
    return [1.0, *(2.0 ** (9 - e - (m > 0.875)) for m, e in parts)]


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
    "delayed_scales": [
        (filled_with_ones, "at most `length` tensors"),
        (without_zero, "at most `length` tensors"),
    ],
    "fp8_scale": [
        (lambda amax: halving(float(np.float32(amax))), "or float32, is rounded"),
        (
            lambda amax: (
                2.0 ** math.floor(math.log2(448) - math.log2(amax)) if amax else 1.0
            ),
            "at most 448",
        ),
    ],
}
