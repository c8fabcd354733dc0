"""Linear systems: factors in a low format, and iterative refinement to FP64 accuracy.

Factorisations and triangular solves round every operation, by `mplab.arithmetic.operations`. The
residual b − a·x, by which a solution is judged, is computed in integers without any rounding.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from mplab.arithmetic.operations import (
    Rules,
    divide,
    multiply,
    operate,
    subtract,
)
from mplab.arithmetic.reductions import matmul
from mplab.numbers.checks import integer, one_of
from mplab.numbers.codes import require_values
from mplab.numbers.formats import Format, FormatLike, format_of
from mplab.numbers.inputs import as_float64
from mplab.numbers.rounding import round_to

_ENOUGH = 2.0**-52
"""Backward error to reach: 2u of FP64; rounding the entries of x alone can cost as much."""

_INNER = 1e-8
"""Factor by which GMRES reduces its residual: two steps reach FP64's digits."""

_PATIENCE = 6
"""Number of steps after which backward errors must keep falling."""


class Factors(NamedTuple):
    """The triangular factors of a matrix: a[permutation] ≈ lower @ upper.

    Attributes:
        lower: float64, shape (n, n), lower triangular, values of the format.
        upper: float64, shape (n, n), upper triangular, values of the format.
        permutation: integers, shape (n,): the row of `a` at each position.
        reason: empty on success; else why elimination broke down, with both triangles
            unfinished.
    """

    lower: np.ndarray
    upper: np.ndarray
    permutation: np.ndarray
    reason: str


def lu(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Factors:
    """Factor a matrix by Gaussian elimination with partial pivoting, every operation rounded.

    Products are rounded, then differences. The pivot is the entry of largest magnitude, the first
    one if there are several. A zero pivot, or a NaN or infinity in the column or row of a pivot,
    ends the elimination without an exception; `reason` says why.

    Args:
        a: values of `fmt`, shape (n, n), n at least 1.
        fmt: the format of every operand and result.
        **rules: see `Rules`.

    Returns:
        The factors, with ones on the diagonal of `lower`.

    Raises:
        TypeError: `a` holds no numbers, or a rule is unknown or of the wrong type.
        ValueError: `a` is not square, or an element is not a value of `fmt`.

    Exactness:
        Every operation is correctly rounded: bit-exact with the oracle on the cases in
        tests/arithmetic/test_linear.py. To nearest, without underflow and for n·u < 1,
        lower @ upper differs from the permuted `a` by at most γ · |lower| @ |upper|, with
        γ = n·u / (1 − n·u).

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, §9.1 and Theorem 9.3.

    Examples:
        >>> factors = lu([[1.0, 2.0], [3.0, 4.0]], FP16)
        >>> factors.lower.tolist(), factors.permutation.tolist()
        ([[1.0, 0.0], [0.333251953125, 1.0]], [1, 0])
        >>> lu([[1.0, 2.0], [2.0, 4.0]], FP16).reason
        'the pivot of column 1 is 0.0'
    """
    rest = _square("lu", a, fmt)
    order = np.arange(len(rest))
    reason = ""
    for k in range(len(rest)):
        pivot = k + int(np.argmax(np.abs(rest[k:, k])))  # a NaN passes for the largest
        rest[[k, pivot]] = rest[[pivot, k]]
        order[[k, pivot]] = order[[pivot, k]]
        reason = _breakdown(rest[k, k:], k)
        if reason:
            break
        below = slice(k + 1, None)
        right = rest[k, k + 1 :]
        column = rest[below, k] = divide(rest[below, k], rest[k, k], fmt, **rules)
        products = column[:, None], right
        rest[below, below] = _without(rest[below, below], products, fmt, rules)
    lower = np.tril(rest)
    np.fill_diagonal(lower, 1.0)
    return Factors(lower, np.triu(rest), order, reason)


def _without(
    x: np.ndarray, factors: tuple[Any, Any], fmt: FormatLike, rules: Rules
) -> Any:
    """Subtract the product of two factors, both operations rounded."""
    product = operate(multiply, factors, fmt, rules)
    return operate(subtract, (x, product), fmt, rules)


def _breakdown(line: np.ndarray, k: int) -> str:
    """Say why elimination must stop at this row or column, which begins with the pivot."""
    if line[0] == 0:
        return f"the pivot of column {k} is {line[0]}"
    if not np.isfinite(line).all():
        return f"column {k} meets {line[~np.isfinite(line)][0]}"
    return ""


def solve_triangular(
    t: Any, b: Any, fmt: FormatLike, *, lower: bool, **rules: Unpack[Rules]
) -> np.ndarray:
    """Solve t·x = b for a triangular t, every operation rounded.

    Each unknown, once known, is eliminated from the remaining equations. A zero on the diagonal
    gives the result of a division by zero.

    Args:
        t: values of `fmt`, shape (n, n), n at least 1; the other triangle is not used.
        b: values of `fmt`, shape (n,).
        fmt: the format of every operand and result.
        lower: True to use the lower triangle, False for the upper one.
        **rules: see `Rules`.

    Returns:
        float64, shape (n,), values of `fmt`.

    Exactness:
        Every operation is correctly rounded, as in `lu`.

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, §8.1.

    Examples:
        >>> solve_triangular([[4.0, 0.0], [1.0, 3.0]], [2.0, 1.0], FP16, lower=True)
        array([0.5       , 0.16662598])
    """
    name = "solve_triangular"
    matrix = _square(name, t, fmt)
    x = np.array(_vector(name, "b", require_values(name, "b", b, fmt), matrix))
    if not lower:
        matrix = matrix[::-1, ::-1]
        x = x[::-1]
    for k in range(len(x)):
        x[k] = divide(x[k], matrix[k, k], fmt, **rules)
        products = matrix[k + 1 :, k], x[k]
        x[k + 1 :] = _without(x[k + 1 :], products, fmt, rules)
    return x if lower else x[::-1]


# Judging a solution ----------------------------------------------------------------------
def backward_error(a: Any, x: Any, b: Any) -> float:
    """Compute the backward error of x: the relative change of a and b that makes x exact.

    It is the largest |b − a·x| over ‖a‖·‖x‖ + ‖b‖, in the ∞-norm: 0 for an exact solution, at most
    2^−53 for a solution whose entries were rounded to FP64, 1 at worst. ‖a‖ comes from the largest
    columns, ‖x‖ from the smallest: where columns differ much, it may be tiny though x is far off.

    Args:
        a: finite float64, shape (n, n), n at least 1.
        x: finite float64, shape (n,).
        b: finite float64, shape (n,).

    Raises:
        TypeError: an argument holds no numbers.
        ValueError: an argument is not finite, or its shape does not fit.

    Exactness:
        Correctly rounded to float64: all sums and products are computed in integers.

    Source:
        Rigal and Gaches 1967; Higham 2002, Accuracy and Stability of Numerical Algorithms,
        Theorem 7.1.

    Examples:
        >>> a, b = [[3.0, 1.0], [1.0, 2.0]], [5.0, 5.0]
        >>> backward_error(a, [1.0, 2.0], b), backward_error(a, [1.0, 2.5], b)
        (0.0, 0.06666666666666667)
    """
    name = "backward_error"
    matrix = _matrix(name, _finite(name, "a", a))
    x, b = (
        _vector(name, n, _finite(name, n, v), matrix) for n, v in (("x", x), ("b", b))
    )
    return _System(matrix, b, np.zeros(len(b), int)).residual_and_backward_error(x)[2]


def condition(a: Any, p: float = 2) -> float:
    """Compute the condition number ‖a‖·‖a⁻¹‖, which limits the ratio of error to backward error.

    It is infinite, or above 10^15, for a singular matrix.

    Args:
        a: finite float64, shape (n, n), n at least 1.
        p: the norm: 1, 2 or infinity.

    Exactness:
        Approximate, computed in float64: a result above 10^15 only tells that it is large.

    Examples:
        >>> (
        ...     condition([[1.0, 0.0], [0.0, 0.25]]),
        ...     condition([[1.0, 2.0], [2.0, 4.0]], np.inf),
        ... )
        (4.0, inf)
    """
    one_of("condition", "p", p, (1, 2, np.inf))
    return float(np.linalg.cond(_matrix("condition", _finite("condition", "a", a)), p))


class _System:
    """A system a·x = b in integers, to judge solutions without any rounding.

    They are judged as they are, and with column j of `a` multiplied by 2^powers[j] and x[j] divided
    by it; the larger backward error counts.
    """

    def __init__(self, a: np.ndarray, b: np.ndarray, powers: np.ndarray) -> None:
        (self.a, self.unit_of_a), (self.b, self.unit_of_b) = _integers(a), _integers(b)
        columns = (powers - powers.min()).astype(object)
        self.apart = max(columns)
        self.shifts_of_x = self.apart - columns
        sizes = abs(self.a)
        self.norm_of_a = max(sizes.sum(axis=1)) << self.apart
        self.norm_of_scaled = max((sizes << columns).sum(axis=1))

    def residual_and_backward_error(
        self, x: np.ndarray
    ) -> tuple[np.ndarray, int, float]:
        """Return r and e with residual b − a·x = r·2^e, and the backward error of x.

        r is rounded once, to float64 of at most 1 in size. An x that is not finite has an
        infinite backward error.
        """
        if not np.isfinite(x).all():
            return x, 0, np.inf
        whole, unit_of_x = _integers(x)
        unit = min(self.unit_of_a + unit_of_x, self.unit_of_b)
        of_product = self.unit_of_a + unit_of_x - unit
        of_b = self.unit_of_b - unit
        rest = (self.b << of_b) - ((self.a @ whole) << of_product)
        sizes = abs(whole)
        of_scaled = self.norm_of_scaled * max(sizes << self.shifts_of_x)
        norms = min(self.norm_of_a * max(sizes), of_scaled) << of_product
        largest = max(abs(rest))
        all_of_it = norms + (max(abs(self.b)) << of_b + self.apart)
        bits = largest.bit_length()
        error = (largest << self.apart) / all_of_it if largest else 0.0
        return (rest / (1 << bits)).astype(np.float64), unit + bits, error


def _integers(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Write x exactly as Python integers times a power of two; return both."""
    significands, exponents = np.frexp(x)
    unit = int(exponents.min()) - 53
    whole = np.ldexp(significands, 53).astype(np.int64).astype(object)
    return whole << (exponents - 53 - unit).astype(object), unit


# Refinement ------------------------------------------------------------------------------
class Refinement(NamedTuple):
    """A solution of a linear system, with the history of its refinement.

    Attributes:
        x: float64, shape (n,): the last solution; NaN if the factors broke down.
        backward_errors: float64, shape (steps + 1,): of the first solution, and after each
            step; empty if the factors broke down. See `backward_error`; if `refine` scaled the
            columns, that of the scaled equations counts where it is larger.
        inner_steps: the number of GMRES steps, over all corrections.
        reason: why `x` is not better; empty if it has converged.
    """

    x: np.ndarray
    backward_errors: np.ndarray
    inner_steps: int
    reason: str

    @property
    def converged(self) -> bool:
        """Whether the backward error of `x` is at most 2^−52."""
        return not self.reason

    @property
    def steps(self) -> int:
        """Number of corrections after the first solution."""
        return max(len(self.backward_errors) - 1, 0)


@np.errstate(under="ignore")
def refine(
    a: Any,
    b: Any,
    *,
    factor_format: FormatLike,
    residual_format: FormatLike | None = None,
    method: str = "classic",
    scale: bool = True,
    limit: int = 50,
) -> Refinement:
    """Solve a·x = b to FP64 accuracy by iterative refinement with low-precision factors.

    The factors come from `lu` of the rounded `a`. Each step solves for a correction from the
    residual: "classic" with the factors alone, which fails near a condition number (of the scaled
    `a`) of 1/u, where their errors are too large; "gmres" by an iteration on `a` preconditioned by
    the factors. A number of inner steps near n means that the factors did not help.

    Args:
        a: finite float64, shape (n, n), n at least 1.
        b: finite float64, shape (n,).
        factor_format: the format of the factors.
        residual_format: the format, FP32 or narrower, of a, x and b in the residual, and of its
            sums; a and x are scaled there, too, and b must not leave its range. None: the residual
            is exact, rounded once to FP64.
        method: "classic" or "gmres".
        scale: multiply each column of `a` by a power of two first, so that its largest entry
            is in [1, 2), and the entries of x by the same afterwards.
        limit: the maximum number of steps, not negative.

    Returns:
        The solution and its history. It has converged only if its backward error, computed
        without any rounding, is at most 2^−52. Without `scale` that says little where columns
        of `a` differ much in size.

    Raises:
        TypeError: `a` or `b` holds no numbers.
        ValueError: shapes do not fit, an element is not finite, or the method is unknown.

    Exactness:
        Backward errors are correctly rounded. Triangular solves and GMRES run in float64; their
        last digits depend on the machine.

    Source:
        Carson and Higham 2017, A new analysis of iterative refinement and its application to
        accurate solution of ill-conditioned sparse linear systems; Carson and Higham 2018,
        Accelerating the solution of linear systems by iterative refinement in three precisions.

    Examples:
        >>> a, b = np.array([[3.0, 1.0], [1.0, 2.0]]) / 7, np.ones(2)
        >>> found = refine(a, b, factor_format=BF16)
        >>> found.x, found.converged
        (array([1.4, 2.8]), True)
        >>> refine(1e6 * a, b, factor_format=FP16, scale=False).reason
        'factors in FP16 broke down: column 0 meets inf'
    """
    matrix = _matrix("refine", _finite("refine", "a", a))
    b = _vector("refine", "b", _finite("refine", "b", b), matrix)
    one_of("refine", "method", method, ("classic", "gmres"))
    limit = integer("refine", "limit", limit)
    powers = (1 - np.frexp(np.abs(matrix).max(axis=0))[1]) * bool(scale)
    scaled = np.ldexp(matrix, powers)
    factor_format = format_of(factor_format, function="refine")
    factors = lu(round_to(scaled, factor_format), factor_format)
    if factors.reason:
        failure = f"factors in {factor_format.name} broke down: {factors.reason}"
        return Refinement(np.full(len(b), np.nan), np.empty(0), 0, failure)
    system = _System(matrix, b, powers)
    x = np.zeros(len(b))
    inner = 0
    residual, exponent, _ = system.residual_and_backward_error(x)
    errors: list[float] = []
    with np.errstate(over="ignore", invalid="ignore"):  # `_verdict` reports them
        while (reason := _verdict(errors, limit)) is None:
            correction = _solve(factors, residual)
            if errors and method == "gmres":
                correction, steps = _gmres(
                    lambda v: _solve(factors, scaled @ v), correction
                )
                inner += steps
            x = x + np.ldexp(correction, exponent + powers)
            residual, exponent, error = system.residual_and_backward_error(x)
            errors.append(error)
            if residual_format is not None:
                y = np.ldexp(x, -powers)
                residual = _low_residual(scaled, y, b, residual_format)
                exponent = 0
    return Refinement(x, np.array(errors), inner, reason)


def _verdict(errors: list[float], limit: int) -> str | None:
    """Say why refinement ends: "" if it has converged, None if it goes on."""
    if errors and errors[-1] <= _ENOUGH:
        return ""
    if errors and errors[-1] == np.inf:
        return "x is no longer finite"
    if len(errors) > _PATIENCE and errors[-1] > min(errors[:-3]) / 2:
        return "three steps no longer halve the backward error"
    return f"{limit} steps were too few" if len(errors) > limit else None


def _solve(factors: Factors, r: np.ndarray) -> np.ndarray:
    """Solve with the factors for a right-hand side, in float64.

    In a triangle LAPACK has nothing to eliminate, so only substitution is left.
    """
    y = np.linalg.solve(factors.lower, r[factors.permutation])
    return np.linalg.solve(factors.upper, y)


def _low_residual(
    a: np.ndarray, x: np.ndarray, b: np.ndarray, fmt: Format
) -> np.ndarray:
    """Compute the residual b − a·x with sums in a format; each sum begins with b."""
    terms = np.column_stack([b, -a])
    factors = np.concatenate([[1.0], x])[:, None]
    low = round_to(terms, fmt), round_to(factors, fmt)
    return matmul(*low, accumulator_format=fmt)[:, 0]


def _gmres(
    operator: Callable[[np.ndarray], np.ndarray], r: np.ndarray
) -> tuple[np.ndarray, int]:
    """Solve operator(d) = r for d by GMRES; return d and the number of steps, at most n.

    Source:
        Saad and Schultz 1986, GMRES: a generalized minimal residual algorithm for solving
        nonsymmetric linear systems.
    """
    size = np.abs(r).max()
    n = len(r)
    y = np.zeros(0)
    length = float(np.linalg.norm(r / size))
    basis = np.zeros((n + 1, n))
    projected = np.zeros((n + 1, n))
    basis[0], aim = r / size / length, length * np.eye(n + 1)[0]
    for k in range(n):
        w = operator(basis[k])
        for _ in range(2):  # Gram-Schmidt twice: once is not orthogonal enough
            shares = basis[: k + 1] @ w
            projected[: k + 1, k] += shares
            w = w - shares @ basis[: k + 1]
        projected[k + 1, k] = left = np.linalg.norm(w)
        if not np.isfinite(left):  # also where r is zero or not finite
            break
        within = projected[: k + 2, : k + 1]
        y = np.linalg.lstsq(within, aim[: k + 2])[0]
        if left == 0 or np.linalg.norm(aim[: k + 2] - within @ y) <= _INNER * length:
            break
        basis[k + 1] = w / left
    return size * (y @ basis[: len(y)]), k + 1


# Arguments -------------------------------------------------------------------------------
def _matrix(function: str, x: np.ndarray) -> np.ndarray:
    """Return a matrix if it is square and not empty, or raise."""
    if x.ndim != 2 or x.shape[0] != x.shape[1] or not x.size:
        raise ValueError(
            f"{function}: matrices must have a shape (n, n), n ≥ 1; got {x.shape}."
        )
    return x


def _vector(
    function: str, argument: str, x: np.ndarray, matrix: np.ndarray
) -> np.ndarray:
    """Return a vector if it is as long as the matrix has rows, or raise."""
    if x.shape != matrix.shape[:1]:
        raise ValueError(
            f"{function}: {argument} must have the shape {matrix.shape[:1]}, as the matrix has "
            f"rows; got {x.shape}. Pass one column at a time."
        )
    return x


def _square(function: str, x: Any, fmt: Format) -> np.ndarray:
    """Copy a square matrix of values of a format."""
    return np.array(_matrix(function, require_values(function, "matrix", x, fmt)))


def _finite(function: str, argument: str, x: Any) -> np.ndarray:
    """Convert to float64; raise if an element is not finite."""
    array = as_float64(function, x, argument)
    if not np.isfinite(array).all():
        raise ValueError(
            f"{function}: {argument} must hold finite numbers; got "
            f"{array[~np.isfinite(array)].flat[0]}. Remove it, or scale what overflowed."
        )
    return array
