"""Answers to the exercises of lesson 13, right ones and wrong ones."""


def by_table(finite, zeros, lost, moved, repeats):
    flags = [finite < 1, zeros > 0.5, lost > 0.5, moved > 0.5 and repeats > 0.5, True]
    return [1, 2, 3, 4, 0][flags.index(True)]


RIGHT = {
    "norm_at_optimizer": [2.0**-14, 1 / 16384],
    "name_the_fault": [by_table],
}
