"""Answers to the exercises of lesson 11, right ones and wrong ones."""


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
