"""Answers to the exercises of lesson 11, right ones and wrong ones."""

import numpy as np


def times(n, peak, bandwidth, width):
    return 2 * n * n * n / peak, (n * n + n * n + n * n) * width / bandwidth


def by_limits(n, peak32, peak16, bandwidth):
    return max(times(n, peak32, bandwidth, 4)) / max(times(n, peak16, bandwidth, 2))


def by_rates(n, peak32, peak16, bandwidth):
    """By the rates that can be reached."""
    wide, low = (n / (1.5 * w) * bandwidth for w in (4, 2))
    return min(peak16, low) / min(peak32, wide)


def by_loop(shares, factors):
    return 1 / sum(
        s / f for s, f in zip(shares.tolist(), factors.tolist(), strict=True)
    )


RIGHT = {
    "extra_bytes": [2_031_616, 2 * 1024 * 1024 - 2 * 32 * 1024],
    "speed_up": [by_limits, by_rates],
    "step_speed_up": [by_loop, lambda s, f: s.sum() / (s @ (1 / f))],
}

WRONG = {
    "extra_bytes": [(0, "copy of all weights")],
    "speed_up": [
        (lambda n, p, q, b: q / p, "arithmetic is the limit"),
        (lambda n, p, q, b: 2.0, "memory is the limit"),
        (
            lambda n, p, q, b: sum(times(n, p, b, 4)) / sum(times(n, q, b, 2)),
            "same time",
        ),
        (lambda n, p, q, b: 1 / by_limits(n, p, q, b), "upside down"),
        (
            lambda n, p, q, b: max(times(n, p, b, 4)) / max(times(n, q, b, 4)),
            "half the bytes",
        ),
    ],
    "step_speed_up": [
        (lambda s, f: float(s @ f), "add times"),
        (lambda s, f: float(f.max()), "Only one part"),
        (lambda s, f: float(np.sum(s / f)), "the new time"),
        (lambda s, f: float(f.mean()), "different shares"),
        (lambda s, f: 1.0, "Add up"),
    ],
}
