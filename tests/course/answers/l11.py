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
    "claims": [
        [1 / (0.4 + 0.6 / 16), 1.125, 16],
        (2.29, 18 / 16, 16),
        [2.3, 1.125, 16.0],
    ],
    "step_speed_up": [lambda s, f: s.sum() / (s @ (1 / f))],
}

WRONG = {
    "claims": [
        ([16.0, 0.5, 32.0], "the article's"),
        ([2.29, 0.5, 16], "stay in FP32"),
        ([2.29, 9 / 8, 32], "16 bits"),
    ],
    "speed_up": [
        (by_one_limit, "the longer of arithmetic and memory"),
    ],
}
