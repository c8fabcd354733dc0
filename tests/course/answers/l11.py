"""Answers to the exercises of lesson 11, right ones and wrong ones."""


def by_rates(n, peak32, peak16, bandwidth):
    """By the rates that can be reached."""
    wide, low = (n / (1.5 * w) * bandwidth for w in (4, 2))
    return min(peak16, low) / min(peak32, wide)


def by_one_limit(n, peak32, peak16, bandwidth):
    """As if what limits FP32 limited the other, too."""
    return peak16 / peak32 if n / peak32 > 6 / bandwidth else 2.0


RIGHT = {
    "extra_bytes": [2_031_616, 2 * 1024 * 1024 - 2 * 32 * 1024],
    "speed_up": [by_rates],
    "step_speed_up": [lambda s, f: s.sum() / (s @ (1 / f))],
}

WRONG = {
    "speed_up": [
        (by_one_limit, "the longer of arithmetic and memory"),
    ],
}
