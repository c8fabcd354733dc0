"""Answers to the exercises of lesson 10, right ones and wrong ones."""

import numpy as np
import torch

from mplab import FP16, round_to

DTYPES = {24: torch.float32, 11: torch.float16, 8: torch.bfloat16}


def by_promotion(operation, inputs, lower, wide, low):
    """By torch's own type promotion."""
    if operation in lower:
        return low
    if operation in wide:
        return 24
    found = DTYPES[inputs[0]]
    for p in inputs[1:]:
        found = torch.promote_types(found, DTYPES[p])
    return next(p for p, dtype in DTYPES.items() if dtype == found)


def first_lost():
    n = 1
    while np.isfinite(round_to(float((16 * n) ** 2), FP16)):
        n += 1
    return n


def scaled(x):
    """In FP16 but for the mean, divided by the largest first."""
    largest = np.abs(x).max()
    if not largest:
        return 0.0
    share = x / largest
    return float(largest) * float(np.sqrt((share * share).astype(np.float64).mean()))


def low_or_wide(operation, inputs, lower, wide, low):
    """As if a region knew no formats but FP32 and its own."""
    if operation in lower:
        return low
    return 24 if operation in wide or set(inputs) != {low} else low


def by_bfloat16(x):
    """Widens the range, and loses digits."""
    return torch.from_numpy(x).bfloat16().double().square().mean().sqrt()


def mean_in_fp16(x):
    """Scaled, but added in FP16, by halves: 70,000 ones are infinite."""
    largest = float(np.abs(x).max())
    if not largest:
        return 0.0
    with np.errstate(over="ignore"):
        squares = np.mean((x / np.float16(largest)) ** 2, dtype=np.float16)
    return largest * float(np.sqrt(squares))


RIGHT = {
    "first_lost_cosine": [16, first_lost()],
    "result_precision": [by_promotion],
    "safe_rms": [scaled],
}

WRONG = {
    "result_precision": [
        (low_or_wide, "one format of all inputs"),
        (
            lambda o, i, lower, wide, low: by_promotion(o, i, wide, lower, low),
            "the lists first",
        ),
    ],
    "safe_rms": [
        (by_bfloat16, "no number its digits"),
        (mean_in_fp16, "no square may leave"),
        (lambda x: float(np.abs(x.astype(float)).mean()), "no square may leave"),
        (lambda x: float(np.sqrt((x.astype(float) ** 2).sum())), "no square may leave"),
    ],
}
