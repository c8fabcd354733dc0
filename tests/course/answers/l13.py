"""Answers to the exercises of lesson 13, right ones and wrong ones."""


def by_table(finite, zeros, lost, moved, repeats):
    flags = [finite < 1, zeros > 0.5, lost > 0.5, moved > 0.5 and repeats > 0.5, True]
    return [1, 2, 3, 4, 0][flags.index(True)]


def stale_before_lost(finite, zeros, lost, moved, repeats):
    found = by_table(finite, zeros, 0.0, moved, repeats)
    return found or by_table(finite, zeros, lost, moved, repeats)


def stale_before_zeros(finite, zeros, lost, moved, repeats):
    found = by_table(finite, 0.0, 0.0, moved, repeats)
    return found or by_table(finite, zeros, lost, moved, repeats)


def by_largest(finite, zeros, lost, moved, repeats):
    shares = [zeros, lost, min(moved, repeats)]
    if finite < 1:
        return 1
    return 2 + shares.index(max(shares)) if max(shares) > 0.5 else 0


RIGHT = {
    "norm_at_optimizer": [2.0**-14, 1 / 16384],
    "name_the_fault": [by_table],
}

WRONG = {
    "name_the_fault": [
        (by_largest, "in the order given"),
        (stale_before_zeros, "in the order given"),
        (stale_before_lost, "in the order given"),
    ],
}
