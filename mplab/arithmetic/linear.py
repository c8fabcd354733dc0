"""Linear systems: factors in a low format, and iterative refinement to FP64 accuracy.

Factors and triangular solves round every operation, through the operations of the room. What a
solution is judged by, its residual b − a·x, is computed in integers, without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from mplab.arithmetic.operations import Rules, divide, multiply, sqrt, subtract
from mplab.arithmetic.reductions import matmul
from mplab.numbers.checks import one_of
from mplab.numbers.formats import Format
from mplab.numbers.inputs import as_float64
from mplab.numbers.rounding import require_values, round_to

_ENOUGH = 2.0**-52
"""Twice FP64's unit roundoff, which the rounding of a solution's entries alone can cost."""

_INNER = 1e-8
"""By how much GMRES reduces its residual: two steps give FP64's digits."""

_PATIENCE = 6
"""Steps after which backward errors must keep falling."""


class Factors(NamedTuple):
    """What elimination made of a matrix: a[permutation] ≈ lower @ upper.

    Attributes:
        lower: float64, shape (n, n), lower triangular, values of the format.
        upper: float64, shape (n, n), upper triangular, values of the format.
        permutation: integers, shape (n,): the row of `a` that stands in each place.
        reason: empty if all went well; else why elimination broke down, and then both
            triangles are unfinished.
    """

    lower: np.ndarray
    upper: np.ndarray
    permutation: np.ndarray
    reason: str


def lu(a: Any, fmt: Format, **rules: Unpack[Rules]) -> Factors:
    """Gaussian elimination with partial pivoting, every operation rounded.

    Products are rounded, then differences. The pivot is the entry of largest magnitude, of
    several the first. A pivot of zero, or a NaN or infinity beside a pivot, ends it, and the
    result says so: overflow is no exception.

    Args:
        a: values of `fmt`, shape (n, n), n at least 1.
        fmt: the format of every operand and result.
        **rules: see `Rules`.

    Returns:
        The factors, with ones on the diagonal of `lower`.

    Raises:
        TypeError: `a` holds no numbers, or a rule is unknown or of the wrong type.
        ValueError: `a` is not square, or an element is no value of `fmt`.

    Exactness:
        Every operation is correctly rounded: bit-exact with the oracle on the cases in
        tests/arithmetic/test_linear.py. To nearest, and without underflow, lower @ upper differs
        from the permuted `a` by at most γ · |lower| @ |upper|, with γ = n·u / (1 − n·u).

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
    order, reason = np.arange(len(rest)), ""
    for k in range(len(rest)):
        pivot = k + int(np.argmax(np.abs(rest[k:, k])))  # a NaN passes for the largest
        rest[[k, pivot]], order[[k, pivot]] = rest[[pivot, k]], order[[pivot, k]]
        if reason := _breakdown(rest[k, k:], k):
            break
        below, right = slice(k + 1, None), rest[k, k + 1 :]
        column = rest[below, k] = divide(rest[below, k], rest[k, k], fmt, **rules)
        products = multiply(column[:, None], right, fmt, **rules)
        rest[below, below] = subtract(rest[below, below], products, fmt, **rules)
    lower = np.tril(rest)
    np.fill_diagonal(lower, 1.0)
    return Factors(lower, np.triu(rest), order, reason)


def cholesky(a: Any, fmt: Format, **rules: Unpack[Rules]) -> Factors:
    """The factor of a symmetric matrix: a ≈ lower @ lower.T, every operation rounded.

    A pivot that is not positive, or not finite, ends it, and the result says so: `a` is then
    not positive definite, or no longer after rounding. See `lu` for arguments and errors.

    Returns:
        The factors, with `upper` the transpose of `lower`, and no permutation.

    Raises:
        ValueError: `a` is not symmetric; or as `lu`.

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, §10.1.

    Examples:
        >>> cholesky([[4.0, 2.0], [2.0, 3.0]], FP16).lower.tolist()
        [[2.0, 0.0], [1.0, 1.4140625]]
        >>> cholesky([[4.0, 2.0], [2.0, 1.0]], FP16).reason
        'the pivot of column 1 is 0.0'
    """
    rest = _square("cholesky", a, fmt)
    if (apart := np.argwhere((rest != rest.T) & ~np.isnan(rest))).size:
        i, j = apart[0].tolist()
        raise ValueError(
            f"cholesky: a must be symmetric; got {rest[i, j]} in row {i}, column {j}, and "
            f"{rest[j, i]} opposite. Use lu, or pass (a + a.T) / 2, rounded."
        )
    reason = ""
    for k in range(len(rest)):
        if reason := _breakdown(rest[k:, k], k, least=0.0):
            break
        rest[k, k] = sqrt(rest[k, k], fmt, **rules)
        below = slice(k + 1, None)
        column = rest[below, k] = divide(rest[below, k], rest[k, k], fmt, **rules)
        products = multiply(column[:, None], column, fmt, **rules)
        rest[below, below] = subtract(rest[below, below], products, fmt, **rules)
    lower = np.tril(rest)
    return Factors(lower, lower.T, np.arange(len(rest)), reason)


def _breakdown(line: np.ndarray, k: int, least: float = -np.inf) -> str:
    """Why elimination cannot go on with this row or column, which begins with the pivot."""
    if line[0] == 0 or line[0] < least:
        return f"the pivot of column {k} is {line[0]}"
    return "" if np.isfinite(line).all() else f"column {k} meets {line[~np.isfinite(line)][0]}"


def solve_triangular(
    t: Any, b: Any, fmt: Format, *, lower: bool, **rules: Unpack[Rules]
) -> np.ndarray:
    """The x of t·x = b for a triangular t, every operation rounded.

    Each unknown, once found, is taken out of all equations left. A zero on the diagonal gives
    what division by it gives.

    Args:
        t: values of `fmt`, shape (n, n), n at least 1; the other triangle is not used.
        b: values of `fmt`, shape (n,).
        fmt: the format of every operand and result.
        lower: whether the lower triangle counts; else the upper one.
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
        matrix, x = matrix[::-1, ::-1], x[::-1]
    for k in range(len(x)):
        x[k] = divide(x[k], matrix[k, k], fmt, **rules)
        products = multiply(matrix[k + 1 :, k], x[k], fmt, **rules)
        x[k + 1 :] = subtract(x[k + 1 :], products, fmt, **rules)
    return x if lower else x[::-1]


# Judging a solution ----------------------------------------------------------------------
def backward_error(a: Any, x: Any, b: Any) -> float:
    """How little a and b must change, relatively, for x to be their exact solution.

    The largest |b − a·x| over ‖a‖·‖x‖ + ‖b‖, in the ∞-norm: 0 for an exact solution, at most
    2^−53 for one whose entries were rounded to FP64, 1 at worst.

    Args:
        a: finite float64, shape (n, n), n at least 1.
        x: finite float64, shape (n,).
        b: finite float64, shape (n,).

    Raises:
        TypeError: an argument holds no numbers.
        ValueError: one of them is not finite, or of another shape.

    Exactness:
        Correctly rounded to float64: all sums and products are of integers.

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
    x, b = (_vector(name, n, _finite(name, n, v), matrix) for n, v in (("x", x), ("b", b)))
    return _System(matrix, b).judge(x)[2]


def condition(a: Any, p: float = 2) -> float:
    """‖a‖·‖a⁻¹‖: how much larger than the backward error the error of a solution can be.

    Infinite, or above 10^15, for a singular matrix.

    Args:
        a: finite float64, shape (n, n), n at least 1.
        p: which norm: 1, 2 or infinity.

    Exactness:
        Approximate, computed in float64: above 10^15 it only says that it is large.

    Examples:
        >>> condition([[1.0, 0.0], [0.0, 0.25]]), condition([[1.0, 2.0], [2.0, 4.0]], np.inf)
        (4.0, inf)
    """
    return float(np.linalg.cond(_matrix("condition", _finite("condition", "a", a)), p))


class _System:
    """A system a·x = b in integers, which judges solutions without any rounding."""

    def __init__(self, a: np.ndarray, b: np.ndarray) -> None:
        (self.a, self.unit_of_a), (self.b, self.unit_of_b) = _integers(a), _integers(b)
        self.norm_of_a = max(abs(self.a).sum(axis=1))

    def judge(self, x: np.ndarray) -> tuple[np.ndarray, int, float]:
        """The residual, its power of two, and the backward error of x.

        The residual b − a·x is the first times two to the power of the second; the first is
        rounded once, to float64 of at most 1. An x that is not finite has an infinite error.
        """
        if not np.isfinite(x).all():
            return x, 0, np.inf
        whole, unit_of_x = _integers(x)
        unit = min(self.unit_of_a + unit_of_x, self.unit_of_b)
        of_product, of_b = self.unit_of_a + unit_of_x - unit, self.unit_of_b - unit
        rest = (self.b << of_b) - ((self.a @ whole) << of_product)
        norms = self.norm_of_a * max(abs(whole)) << of_product
        largest, all_of_it = max(abs(rest)), norms + (max(abs(self.b)) << of_b)
        bits = largest.bit_length()
        error = largest / all_of_it if largest else 0.0
        return (rest / (1 << bits)).astype(np.float64), unit + bits, error


def _integers(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Python's integers, and the exponent of two that they are counted in: x without rounding."""
    significands, exponents = np.frexp(x)
    unit = int(exponents.min()) - 53
    whole = np.ldexp(significands, 53).astype(np.int64).astype(object)
    return whole << (exponents - 53 - unit).astype(object), unit


# Refinement ------------------------------------------------------------------------------
class Refinement(NamedTuple):
    """A solution, and how it was reached.

    Attributes:
        x: float64, shape (n,): the last solution; NaN if the factors broke down.
        backward_errors: float64, shape (steps + 1,): that of the first solution, and after
            each step; empty if the factors broke down. See `backward_error`.
        inner_steps: the steps that GMRES took in all of them.
        reason: why `x` is no better; empty if it has converged.
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
        """How many corrections followed the first solution."""
        return max(len(self.backward_errors) - 1, 0)


def refine(
    a: Any,
    b: Any,
    *,
    factor_format: Format,
    residual_format: Format | None = None,
    method: str = "classic",
    scale: bool = True,
    limit: int = 50,
) -> Refinement:
    """Solve a·x = b in FP64 with factors of a lower format, step by step.

    The factors come from `lu`, after `a` was rounded. Each step takes the residual and solves
    for a correction: "classic" by the factors alone, which fails once their errors outweigh what
    they know of `a`, near a condition number of 1/u; "gmres" by an iteration on `a` that the
    factors precondition. Inner steps near n say that the factors were no help.

    Args:
        a: finite float64, shape (n, n), n at least 1.
        b: finite float64, shape (n,).
        factor_format: of the factors.
        residual_format: what a, x and b are rounded to for the residual, and then each of its
            sums; FP32 or narrower. None: the residual is exact, rounded once to FP64.
        method: "classic" or "gmres".
        scale: multiply `a` by a power of two first, so that its largest entry is in [1, 2).
        limit: the most steps, not negative.

    Returns:
        The solution and its history. It has converged only if its backward error, computed
        without any rounding, is at most 2^−52.

    Raises:
        TypeError: `a` or `b` holds no numbers.
        ValueError: shapes do not fit, an element is not finite, or the method is unknown.

    Exactness:
        Backward errors are correctly rounded. Triangular solves and GMRES are float64's, whose
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
    power = 1 - int(np.frexp(np.abs(matrix).max())[1]) if scale else 0
    scaled = np.ldexp(matrix, power)
    factors = lu(round_to(scaled, factor_format), factor_format)
    if factors.reason:
        failure = f"factors in {factor_format.name} broke down: {factors.reason}"
        return Refinement(np.full(len(b), np.nan), np.empty(0), 0, failure)
    system, x, inner = _System(matrix, b), np.zeros(len(b)), 0
    residual, exponent, _ = system.judge(x)
    errors: list[float] = []
    with np.errstate(over="ignore", invalid="ignore"):  # `_verdict` tells
        while (reason := _verdict(errors, limit)) is None:
            correction = _solve(factors, residual)
            if errors and method == "gmres":
                correction, taken = _gmres(lambda v: _solve(factors, scaled @ v), correction)
                inner += taken
            x = x + np.ldexp(correction, exponent + power)
            residual, exponent, error = system.judge(x)
            errors.append(error)
            if residual_format is not None:
                residual, exponent = _low_residual(matrix, x, b, residual_format), 0
    return Refinement(x, np.array(errors), inner, reason)


def _verdict(errors: list[float], limit: int) -> str | None:
    """Why refinement ends with these backward errors: empty if it has converged; None: not yet."""
    if errors and errors[-1] <= _ENOUGH:
        return ""
    if errors and errors[-1] == np.inf:
        return "x is no longer finite"
    if len(errors) > _PATIENCE and errors[-1] > min(errors[:-3]) / 2:
        return "three steps no longer halve the backward error"
    return f"{limit} steps were too few" if len(errors) > limit else None


def _solve(factors: Factors, r: np.ndarray) -> np.ndarray:
    """What the factors give for a right-hand side, in float64.

    For a triangle LAPACK's elimination finds nothing to do, so that only substitution is left.
    """
    y = np.linalg.solve(factors.lower, r[factors.permutation])
    return np.linalg.solve(factors.upper, y)


def _low_residual(a: np.ndarray, x: np.ndarray, b: np.ndarray, fmt: Format) -> np.ndarray:
    """The residual b − a·x, as a sum in a format that begins with b."""
    terms, factors = np.column_stack([b, -a]), np.concatenate([[1.0], x])[:, None]
    low = round_to(terms, fmt), round_to(factors, fmt)
    return matmul(*low, accumulator_format=fmt)[:, 0]


def _gmres(operator: Callable[[np.ndarray], np.ndarray], r: np.ndarray) -> tuple[np.ndarray, int]:
    """The d of operator(d) = r, and how many steps were taken, n at most.

    Source:
        Saad and Schultz 1986, GMRES: a generalized minimal residual algorithm for solving
        nonsymmetric linear systems.
    """
    size, n, y = np.abs(r).max(), len(r), np.zeros(0)
    length = float(np.linalg.norm(r / size))
    basis, projected = np.zeros((n + 1, n)), np.zeros((n + 1, n))
    basis[0], aim = r / size / length, length * np.eye(n + 1)[0]
    for k in range(n):
        w = operator(basis[k])
        for _ in range(2):  # Gram-Schmidt twice: once leaves too much
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
    """A square matrix that is not empty."""
    if x.ndim != 2 or x.shape[0] != x.shape[1] or not x.size:
        raise ValueError(f"{function}: matrices must have a shape (n, n), n ≥ 1; got {x.shape}.")
    return x


def _vector(function: str, argument: str, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """A vector as long as a matrix."""
    if x.shape != matrix.shape[:1]:
        raise ValueError(
            f"{function}: {argument} must have the shape {matrix.shape[:1]}, as the matrix has "
            f"rows; got {x.shape}. Pass one column at a time."
        )
    return x


def _square(function: str, x: Any, fmt: Format) -> np.ndarray:
    """A copy of a square matrix of values of a format."""
    return np.array(_matrix(function, require_values(function, "matrix", x, fmt)))


def _finite(function: str, argument: str, x: Any) -> np.ndarray:
    """Numbers that are all finite, as float64."""
    array = as_float64(function, x, argument)
    if not np.isfinite(array).all():
        raise ValueError(
            f"{function}: {argument} must hold finite numbers; got "
            f"{array[~np.isfinite(array)].flat[0]}. Remove it, or scale what overflowed."
        )
    return array
