"""The exercises on two runs: orders of a sum, a split by the batch, the first difference."""

from collections import Counter
from collections.abc import Callable
from itertools import permutations

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import BF16, round_to
from mplab.course.exercises.exercise import Exercise, known


# Orders ----------------------------------------------------------------------------------
def _sums(terms: np.ndarray) -> np.ndarray:
    """The sums of rows, from left to right, each rounded."""
    total = terms[:, 0]
    for term in terms.T[1:]:
        total = round_to(total + term, BF16)
    return np.asarray(total)


def _in_all_orders(x: np.ndarray) -> np.ndarray:
    return np.array(list(permutations(x)))


def _counted(sums: np.ndarray) -> dict[float, int]:
    return dict(Counter(sums.tolist()))


def _wide_sums(a: np.ndarray, b: np.ndarray) -> dict[float, int]:
    sums = _in_all_orders(round_to(a * b, BF16)).sum(axis=1)
    return _counted(np.asarray(round_to(sums, BF16)))


def _wide_products(a: np.ndarray, b: np.ndarray) -> dict[float, int]:
    terms = _in_all_orders(a * b)
    return _counted(_sums(np.hstack([np.zeros((len(terms), 1)), terms])))


def _distinct_orders(a: np.ndarray, b: np.ndarray) -> dict[float, int]:
    orders = set(permutations(round_to(a * b, BF16).tolist()))
    return _counted(_sums(np.array(sorted(orders))))


_ONES = np.ones(5)

_SUMS = tuple(
    tuple(map(np.array, case))
    for case in (
        ([256.0, 1.0, 1.0], _ONES[:3]),
        ([256.0, 1.0, -256.0], _ONES[:3]),
        ([1.0, 2.0, 3.0, 4.0], _ONES[:4]),
        ([256.0, 1.0, 1.0, 1.0, 1.0], _ONES),
        ([129.0, 1.0, -128.0], [1.0078125, 0.5, 1.0]),
        ([512.0, 1024.0, -3.0], [512.0, 1.0, 64.0]),
        ([3.0, 129.0, 1.0, -2.0], [85.0, 1.0078125, 0.5, 64.0]),
        (
            [512.0, 3.0, 1.0, -512.0, 0.75],
            [1.0, 0.5, 1.25, 1.0, 3.0],
        ),
    )
)


# A split that follows the batch ----------------------------------------------------------
class Kernel:
    """A product in FP32 whose sums are cut into fewer parts the more rows there are."""

    def __call__(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Multiply `x` by `w`."""
        x, w = np.asarray(x, np.float32), np.asarray(w, np.float32)
        rows, terms = x.shape
        parts = next(parts for most, parts in ((1, 16), (4, 8), (7, 6), (8, 4), (16, 2), (rows, 1))
                     if rows <= most)  # fmt: skip
        total = np.zeros((rows, w.shape[1]), np.float32)
        for c in range(parts):
            part = np.zeros_like(total)
            for k in range(c * terms // parts, (c + 1) * terms // parts):
                part = part + x[:, k, None] * w[k]
            total = total + part
        return total

    def __repr__(self) -> str:
        return "kernel"


Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _by_rows(rows: int) -> Callable[[Product, np.ndarray, np.ndarray], np.ndarray]:
    """Multiply `rows` rows at a time; the last call may have fewer."""

    def answer(kernel: Product, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        tiles = [x[k : k + rows] for k in range(0, len(x), rows)]
        return np.vstack([kernel(tile, w) for tile in tiles])

    return answer


_RNG = np.random.default_rng(19)

_X = _RNG.standard_normal((37, 64)).astype(np.float32)

_W = _RNG.standard_normal((64, 6)).astype(np.float32)

_PRODUCTS = tuple((Kernel(), _X[:rows], _W) for rows in (8, 1, 3, 9, 16, 37))

# The first difference --------------------------------------------------------------------
Record = list[tuple[str, np.ndarray]]


def _first(
    differ: Callable[[np.ndarray, np.ndarray], bool],
) -> Callable[[Record, Record], object]:
    def answer(a: Record, b: Record) -> object:
        pairs = enumerate(zip(a, b, strict=True))
        return next((k for k, ((_, x), (_, y)) in pairs if differ(x, y)), None)

    return answer


def _other_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.tobytes() != y.tobytes()


def _differences(case: tuple[Record, Record]) -> str:
    """How long two records are, and the first number in which each pair of them differs."""
    found = ""
    for k, ((name, x), (_, y)) in enumerate(zip(*case, strict=True)):
        for at in np.flatnonzero(x.view(np.uint32) != y.view(np.uint32))[:1]:
            found += f"\n    {k:<3}{name}[{at}]: {x[at]!s} and {y[at]!s}"
    return f"records of {len(case[0])} pairs, {'different in' if found else 'equal'}{found}"


def _losses(a: Record, b: Record) -> object:
    pairs = enumerate(zip(a, b, strict=True))
    return next(
        (k for k, (x, y) in pairs if x[0] == "loss" and _other_bits(x[1], y[1])), None
    )


def _recorded(*changes: tuple[int, np.ndarray]) -> Record:
    """Two steps of a run, with some tensors replaced."""
    names = ("input", "hidden", "output", "loss", "gradient", "weight")
    record = [
        (name, np.linspace(k - 1, k + 1, 1 if name == "loss" else 5, dtype=np.float32))
        for k, name in enumerate(names * 2)
    ]
    for place, tensor in changes:
        record[place] = record[place][0], np.asarray(tensor, np.float32)
    return record


def _near(place: int, at: int = 0) -> tuple[int, np.ndarray]:
    """A tensor of the run with one number moved by one ulp towards 0."""
    tensor = _recorded()[place][1].copy()
    tensor[at] = np.nextafter(tensor[at], np.float32(0))
    return place, tensor


_MILLI = np.array([0.001], np.float32)

_NAN = (1, np.array([1, np.nan, 3, 4, 5]))

_OTHER_NAN = (1, np.array([1, -np.nan, 3, 4, 5]))

_RECORDS = (
    (_recorded(), _recorded((2, -np.ones(5)))),
    (_recorded(), _recorded()),
    (_recorded(), _recorded(_near(8), _near(9), _near(11))),
    (_recorded(), _recorded(_near(5), _near(6), _near(7), _near(8))),
    (_recorded(_NAN), _recorded(_NAN, _near(4), _near(11))),
    (_recorded(_NAN), _recorded(_OTHER_NAN, _near(4))),
    (_recorded((1, np.zeros(5))), _recorded((1, -np.zeros(5)), _near(10))),
    (_recorded(), _recorded((7, _recorded()[7][1][::-1]), _near(9))),
    (_recorded(), _recorded(_near(0, 4))),
    (
        _recorded((3, _MILLI)),
        _recorded((3, np.nextafter(_MILLI, np.float32(1))), _near(8)),
    ),
)

EXERCISES: dict[str, Exercise] = {
    "count_orders": Exercise(
        answer=solutions.count_orders,
        reason="Each product is rounded to BF16, then each sum, in every order of the terms.",
        argument="a, b",
        cases=_SUMS,
        misconceptions=known(
            (_wide_sums, "The running sum is a number of BF16 after each addition."),
            (_wide_products, "Each product is rounded before it is added."),
            (
                _distinct_orders,
                "Equal terms can change places: three terms have six orders.",
            ),
        ),
        uses=("round_to",),
    ),
    "invariant_matmul": Exercise(
        answer=solutions.invariant_matmul,
        reason="Every call of the kernel must have 8 rows, and the result as many rows as x.",
        argument="kernel, x, w",
        cases=_PRODUCTS,
        misconceptions=known(
            (
                lambda kernel, x, w: kernel(x, w),
                "Neither a seed nor a flag helps: the kernel is deterministic, and looks at the "
                "number of rows.",
            ),
            (
                _by_rows(1),
                "That does not depend on the batch either, but has the bits for one row, not 8.",
            ),
            (
                _by_rows(8),
                "The last call has fewer rows than 8: fill it up.",
            ),
        ),
        uses=("Kernel",),  # the kernel that the cases pass
    ),
    "first_divergence": Exercise(
        answer=solutions.first_divergence,
        reason="Compare the bits of all tensors, in the order in which they were computed.",
        argument="a, b",
        cases=_RECORDS,
        show=_differences,
        misconceptions=known(
            (_losses, "A loss may be equal, or differ late: look at all tensors."),
            (
                _first(lambda x, y: not np.allclose(x, y, equal_nan=True)),
                "One ulp is a difference: compare bits.",
            ),
            (
                _first(lambda x, y: not np.array_equal(x, y)),
                "A NaN equals a NaN of the same bits, and -0 is not 0.",
            ),
        ),
    ),
}
