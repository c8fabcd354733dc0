"""Reveal the order in which a function adds, from its results alone."""

from collections.abc import Callable
from operator import itemgetter
from random import Random
from typing import Any

import numpy as np

from mplab.numbers.checks import integer


def reveal_order(
    f: Callable[[np.ndarray], Any],
    n: int,
    *,
    large: float = 2.0**100,
    unit: float = 1.0,
) -> Any:
    """Reveal the order in which a function adds n terms, as a tree of their numbers.

    All terms are `unit` except two: +large and −large. A unit that is added to one of these is
    lost. So the result counts the units that are added after the two have cancelled, and that
    tells how many terms the smallest sum with both of them has. Each term of a sum is compared with
    one of them taken at random: about 2n calls for a sum one by one in any order, n·log2(n) for a
    balanced tree, and at most n·(n−1)/2.

    Args:
        f: a function of n numbers, float64 of shape (n,), that returns their sum. For a product,
            let it multiply by ones; for a kernel in a low format, let it convert them.
        n: number of terms, at least 1.
        large: a number that the accumulator holds and that does not change when n units are added.
        unit: a number whose multiples up to n the accumulator holds.

    Returns:
        For a term its number, from 0; for a sum the tuple of its parts: two, or as many as a
        matrix unit adds at once.

    Raises:
        ValueError: the results show that `f` does not add each term once, or that its order
            depends on the numbers. Not every such function is detected.

    Exactness:
        Exact for functions that add each term once, in an order independent of the numbers.

    Source:
        Xie, Gao, Wang and Xue 2025, Revealing floating-point accumulation orders in
        software/hardware implementations (FPRev), USENIX ATC.

    Examples:
        >>> reveal_order(lambda x: (x[0] + x[1]) + (x[2] + x[3]), 4)
        ((0, 1), (2, 3))
        >>> reveal_order(lambda x: np.cumsum(x[::-1])[-1], 4)
        (0, (1, (2, 3)))
    """
    problem = "reveal_order: f must add each term once, in one order; got"
    cure = "Choose another n, large or unit."

    def size(i: int, j: int) -> int:
        """Count the terms of the smallest sum that holds both of these."""
        terms = np.full(n, unit)
        terms[i], terms[j] = large, -large
        later = float(f(terms)) / unit
        if later not in range(n - 1):
            raise ValueError(f"{problem} {later:g} of {n} units, two masked. {cure}")
        return n - int(later)

    everything = list(range(integer("reveal_order", "n", n, least=1)))
    random = Random(0)
    whole: list[Any] = []
    waiting = [
        (everything, whole)
    ]  # no recursion: a tree may be as deep as it has terms
    while (
        waiting
    ):  # for the largest partial sums that hold only these terms, to join a sum
        terms, into = waiting.pop()
        first = random.choice(terms)
        others = [j for j in terms if j != first]
        sizes = {j: size(first, j) for j in others}
        found: Any = first
        held = {first}
        for count in sorted(set(sizes.values())):
            joined = [j for j in others if sizes[j] == count]
            if count > len(held) + len(joined):  # it also holds terms from elsewhere
                waiting.append(([j for j in terms if j not in held], into))
                break
            if count < len(held) + len(joined):
                raise ValueError(
                    f"{problem} sums of {count} terms that hold more. {cure}"
                )
            held |= {*joined}
            found = [found]
            waiting.append((joined, found))
        into.append(found)
    if len(whole) > 1:
        raise ValueError(f"{problem} {len(whole)} sums. {cure}")
    return _tree(whole[0])


class _Tree(tuple[Any, ...]):
    """A tuple that prints at any depth; Python's own stops at a thousand."""

    def __repr__(self) -> str:
        words: list[str] = []
        waiting: list[Any] = [self]
        while waiting:
            node = waiting.pop()
            if isinstance(node, tuple):
                parts = [word for part in reversed(node) for word in (part, ", ")]
                waiting += [")", *parts[:-1], "("]
            else:
                words.append(str(node))
        return "".join(words)


def _tree(root: Any) -> Any:
    """Make nested lists of any depth into trees, parts in the order of their first terms."""
    if not isinstance(root, list):
        return root
    nodes = [root]
    for node in nodes:  # grows as it is read
        nodes += [part for part in node if isinstance(part, list)]
    made: dict[int, tuple[int, _Tree]] = {}  # with the first term of each
    for node in reversed(nodes):
        parts = [made[id(x)] if isinstance(x, list) else (x, x) for x in node]
        parts.sort(key=itemgetter(0))
        made[id(node)] = parts[0][0], _Tree(part for _, part in parts)
    return made[id(root)][1]
