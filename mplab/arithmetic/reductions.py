"""Sums, dot and matrix products, norm, mean, variance and softmax, rounded at every step.

Long sums show the effect of a format: the same numbers give other results in another accumulator
or in another order. Terms are values of FP32 or of any narrower format, so that float64 holds
each product exactly. `mplab.lessons.l05.bounds` bounds the error.
"""

import math
import re
from itertools import pairwise
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import numpy as np

from mplab.arithmetic.operations import (
    add,
    divide,
    exp,
    multiply,
    slowly,
    sqrt,
    subtract,
)
from mplab.numbers.checks import integer, one_of, quoted
from mplab.numbers.codes import require_values
from mplab.numbers.formats import (
    FP32,
    Format,
    FormatLike,
    Overflow,
    Rounding,
    format_of,
)
from mplab.numbers.options import Stream
from mplab.numbers.parameters import LoopOptions, loop_options
from mplab.numbers.rounding import round_to


class Accumulation(TypedDict, total=False):
    """The options of every reduction, all of them keywords, only the first one required.

    `accumulator_format`: the format of every running sum. `product_format`: the format of
    products; None (the default): they enter the sum exactly, as in a fused multiply-add, or, in
    pairwise order, are rounded once to the accumulator. `output_format`: the format of the
    result; None: that of the accumulator. `order`: "sequential" (the default), "reversed",
    "pairwise" (neighbours, then neighbouring sums), "blocked(k)" (k terms each, then their sums),
    "kahan" (compensated; in a signed format). `rounding`, `overflow`, `stream`: as in
    `mplab.round_to`.
    """

    accumulator_format: Required[FormatLike]
    product_format: FormatLike | None
    output_format: FormatLike | None
    order: str
    rounding: Rounding
    overflow: Overflow
    stream: Stream | None


ORDERS = ("sequential", "reversed", "pairwise", "blocked(k)", "kahan")

_BLOCKED = re.compile(r"blocked\(([1-9][0-9]{0,999})\)")


def matmul(
    a: Any, b: Any, *, split_k: int = 1, **accumulation: Unpack[Accumulation]
) -> np.ndarray:
    """Multiply matrices a @ b, rounded at every step.

    NaN and infinities follow IEEE 754; an empty sum is +0, even if the format has no zero.

    Args:
        a: values of FP32 or narrower, shape (M, K).
        b: values of FP32 or narrower, shape (K, N).
        split_k: number of parts of the K terms, 1 to K; part c starts at c·K // split_k. Each
            part is summed separately, as by a kernel that uses idle processors; then the parts
            are added in order, in the accumulator.
        **accumulation: see `Accumulation`.

    Returns:
        float64, shape (M, N), every element a value of the output format.

    Raises:
        TypeError: `a` or `b` holds no numbers, or an option is unknown or of the wrong type.
        ValueError: shapes do not fit; an element is not a value of FP32; the order is unknown.

    Exactness:
        Every product, addition and output is correctly rounded, in every mode: bit-exact with
        the step-by-step oracle on the cases in tests/arithmetic/test_reductions.py. Results
        do not depend on the number of threads, stochastic ones included.

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, §3.1, §4.1, §4.3.

    Examples:
        >>> a, b = np.ones((1, 4096)), np.ones((4096, 1))
        >>> [
        ...     float(matmul(a, b, accumulator_format=f)[0, 0])
        ...     for f in (FP32, FP16, BF16, FP8_E4M3)
        ... ]
        [4096.0, 2048.0, 256.0, 16.0]
    """
    left = require_values("matmul", "a", a, FP32)
    right = require_values("matmul", "b", b, FP32)
    k = require_product("matmul", left, right)[1]
    integer("matmul", "split_k", split_k, least=1, most=max(k, 1))
    if split_k == 1:
        return accumulate("matmul", left, right, **accumulation)[0]
    ends = [c * k // split_k for c in range(split_k + 1)]
    rules, each, output = _inner_and_outer(accumulation)
    parts = [
        accumulate("matmul", left[:, begin:end], right[begin:end], **rules)[0]
        for begin, end in pairwise(ends)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part, rules["accumulator_format"], **each)
    return np.asarray(round_to(total, output, **each))


def dot(a: Any, b: Any, **accumulation: Unpack[Accumulation]) -> np.float64:
    """Compute the inner product of two vectors, rounded at every step. See `matmul`.

    Examples:
        >>> x = np.array([1.0, 2.0**-11, 2.0**-11])
        >>> ones = np.ones(3)
        >>> float(dot(x, ones, accumulator_format=FP16))
        1.0
        >>> float(dot(x, ones, accumulator_format=FP16, order="reversed"))
        1.0009765625
    """
    left = require_values("dot", "a", a, FP32)
    right = require_values("dot", "b", b, FP32)
    if left.ndim != 1 or left.shape != right.shape:
        raise ValueError(
            f"dot: a and b must be vectors of one length; got shapes {left.shape} and "
            f"{right.shape}. For matrices, use matmul."
        )
    product = accumulate("dot", left[None, :], right[:, None], **accumulation)[0]
    return np.float64(product[0, 0])


def sum(
    x: Any, *, axis: int | None = None, **accumulation: Unpack[Accumulation]
) -> Any:
    """Sum all elements, or along an axis, rounded at every step. See `matmul`.

    `product_format` has no effect. The first term, too, is rounded to the accumulator.

    Args:
        x: values of FP32 or narrower, any shape.
        axis: the axis to sum along; None: all elements, in row-major order.
        **accumulation: see `Accumulation`.

    Returns:
        float64 of the shape of `x` without the axis.

    Examples:
        >>> sum(np.ones((3, 300)), axis=1, accumulator_format=BF16)
        array([256., 256., 256.])
        >>> float(sum(np.ones(300), accumulator_format=BF16, order="pairwise"))
        300.0
    """
    lanes, shape = _lanes("sum", x, axis)
    return _summed("sum", lanes, accumulation)[0].reshape(shape)[()]


def distinct_sums(
    x: Any, fmt: FormatLike, *, orders: int = 1000, seed: int = 0
) -> np.ndarray:
    """Sum the same numbers in many random orders, and return the different results.

    Every step is rounded to nearest. The count of results, and the last minus the first, show how
    much the sum depends on the order.

    Args:
        x: values of FP32 or narrower, any shape.
        fmt: the format of the running sums.
        orders: number of orders to try, at least 1.
        seed: the seed of the orders.

    Returns:
        float64, shape (count,), ascending; +0 and −0 count as one sum, and so do all NaNs.

    Exactness:
        Each sum is that of `sum` in sequential order.

    Examples:
        >>> distinct_sums([2048.0, 1.0, 1.0], FP16)
        array([2048., 2050.])
    """
    terms = require_values("distinct_sums", "x", x, FP32).ravel()
    count = integer("distinct_sums", "orders", orders, least=1)
    lanes = np.repeat(terms[:, None], count, axis=1)
    lanes = np.random.default_rng(seed).permuted(lanes, axis=0)
    return np.unique(_summed("distinct_sums", lanes, {"accumulator_format": fmt})[0])


def cumsum(
    x: Any, *, axis: int | None = None, **accumulation: Unpack[Accumulation]
) -> np.ndarray:
    """Compute running sums, rounded at every step.

    Args:
        x: values of FP32 or narrower, any shape.
        axis: the axis to sum along; None: all elements, in row-major order.
        **accumulation: see `Accumulation`; the order must be sequential, reversed (running sums
            from the end) or kahan.

    Returns:
        float64 of the shape of `x`; flat if `axis` is None.

    Examples:
        >>> cumsum(np.ones(5), accumulator_format=FP4_E2M1)
        array([1., 2., 3., 4., 4.])
    """
    lanes, shape = _lanes("cumsum", x, axis)
    order = accumulation.get("order", "sequential")
    one_of("cumsum", "order", order, ("sequential", "reversed", "kahan"))
    running = _summed("cumsum", lanes, accumulation, traced=True)[1]
    running = running[::-1] if order == "reversed" else running
    if axis is None:
        return running[:, 0].copy()
    return np.moveaxis(running.reshape(len(lanes), *shape), 0, axis)


def norm(
    x: Any, *, axis: int | None = None, **accumulation: Unpack[Accumulation]
) -> Any:
    """Compute the Euclidean norm: the root of the sum of squares, all in the accumulator.

    Squares overflow and underflow in these formats; nothing is scaled.

    Examples:
        >>> x = np.array([192.0, 256.0])
        >>> (
        ...     float(norm(x, accumulator_format=FP16)),
        ...     float(norm(x, accumulator_format=BF16)),
        ... )
        (inf, 320.0)
    """
    lanes, shape = _lanes("norm", x, axis)
    rules, each, output = _inner_and_outer(accumulation)
    total = _each_with_itself("norm", lanes, rules)
    root = sqrt(total, rules["accumulator_format"], **each)
    return round_to(root, output, **each).reshape(shape)[()]


def mean(
    x: Any, *, axis: int | None = None, **accumulation: Unpack[Accumulation]
) -> Any:
    """Compute the mean: the sum, divided by the count with one rounding. An empty mean is NaN.

    The count is exact even where the accumulator could not hold it.

    Examples:
        >>> float(mean(np.full(100_000, 2.0), accumulator_format=FP16))
        0.04095458984375
    """
    lanes, shape = _lanes("mean", x, axis)
    rules, each, output = _inner_and_outer(accumulation)
    total = _summed("mean", lanes, rules)[0]
    result = _quotient(total, lanes.shape[0], rules["accumulator_format"], each)
    return round_to(result, output, **each).reshape(shape)[()]


def variance(
    x: Any,
    *,
    axis: int | None = None,
    ddof: int = 0,
    method: str = "two-pass",
    **accumulation: Unpack[Accumulation],
) -> Any:
    """Compute the variance, rounded at every step.

    "two-pass": deviations from the rounded mean, each rounded to the accumulator, then the mean
    of their squares. "one-pass": the mean of the squares minus the square of the mean, which
    suffers cancellation and may be negative. NaN where count − ddof is not positive.

    Args:
        x: values of FP32 or narrower, any shape.
        axis: the axis; None: all elements.
        ddof: an integer to subtract from the count in the divisor.
        method: "two-pass" or "one-pass" (with ddof = 0).
        **accumulation: see `Accumulation`.

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, §1.9.

    Examples:
        >>> x = np.array([100.0, 101.0, 102.0])
        >>> for method in ("two-pass", "one-pass"):
        ...     print(float(variance(x, method=method, accumulator_format=FP16)))
        0.66650390625
        0.0
    """
    lanes, shape = _lanes("variance", x, axis)
    ddof = integer("variance", "ddof", ddof, least=-math.inf)
    rules, each, output = _inner_and_outer(accumulation)
    fmt = rules["accumulator_format"]
    count = lanes.shape[0]
    if method == "two-pass" and fmt.precision > 26:
        raise ValueError(
            f"variance: accumulator_format must have at most 26 bits of precision, so that float64 "
            f"holds squares of deviations; got {fmt.name} with {fmt.precision}. Use FP32."
        )
    centre = _quotient(_summed("variance", lanes, rules)[0], count, fmt, each)
    if method == "two-pass":
        entered = round_to(lanes, fmt, **each)
        deviations = subtract(entered, centre, fmt, **each)
        squares = _each_with_itself("variance", deviations, rules)
        result = _quotient(squares, count - ddof, fmt, each)
    elif method == "one-pass" and ddof == 0:
        squares = _each_with_itself("variance", lanes, rules)
        mean_square = _quotient(squares, count, fmt, each)
        square = multiply(centre, centre, fmt, **each)
        result = subtract(mean_square, square, fmt, **each)
    else:
        raise ValueError(
            f"variance: method must be 'two-pass', or 'one-pass' with ddof=0; got "
            f"{quoted(method)} with ddof={ddof}. Leave method out."
        )
    return round_to(result, output, **each).reshape(shape)[()]


def softmax(
    x: Any, *, axis: int = -1, shift: bool = True, **accumulation: Unpack[Accumulation]
) -> np.ndarray:
    """Compute softmax, exp(x) over the sum of exp(x) along an axis, in the accumulator.

    Args:
        x: values of FP32 or narrower, with at least one axis; rounded to the accumulator first.
        axis: the axis along which the results add up to about 1.
        shift: subtract the largest element first; without it exp overflows early.
        **accumulation: see `Accumulation`.

    Returns:
        float64 of the shape of `x`.

    Exactness:
        Every step is correctly rounded.

    Examples:
        >>> x = np.array([12.0, 11.0])
        >>> softmax(x, accumulator_format=FP16)
        array([0.73095703, 0.26879883])
        >>> softmax(x, accumulator_format=FP16, shift=False)
        array([nan,  0.])
    """
    lanes, shape = _lanes("softmax", x, axis, all_of_them=False)
    rules, each, output = _inner_and_outer(accumulation)
    fmt = rules["accumulator_format"]
    entered = round_to(lanes, fmt, **each)
    if shift and lanes.size:
        entered = subtract(entered, entered.max(axis=0), fmt, **each)
    powers = exp(entered, fmt, **each)
    total = _summed("softmax", powers, rules)[0]
    shares = round_to(divide(powers, total, fmt, **each), output, **each)
    return np.moveaxis(shares.reshape(len(lanes), *shape), 0, axis)


# Steps that several reductions share -----------------------------------------------------
def require_product(
    function: str, left: np.ndarray, right: np.ndarray
) -> tuple[int, int, int]:
    """Return M, K and N of matrices of shapes (M, K) and (K, N), or raise."""
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise ValueError(
            f"{function}: a and b must have shapes (M, K) and (K, N); got {left.shape} and "
            f"{right.shape}. Reshape them."
        )
    return (*left.shape, right.shape[1])


def _inner_and_outer(
    accumulation: Accumulation,
) -> tuple[Accumulation, dict[str, Any], Any]:
    """Return the options of inner sums, those of each operation, and the format of the result."""
    accumulator = format_of(
        accumulation.get("accumulator_format"), function="accumulator_format"
    )
    output = accumulation.get("output_format")
    if output is None:
        output = accumulator
    inner: dict[str, Any] = {**accumulation, "accumulator_format": accumulator}
    inner["output_format"] = None
    each = {k: inner[k] for k in ("rounding", "overflow", "stream") if k in inner}
    return inner, each, output  # type: ignore[return-value]


def _summed(
    function: str,
    lanes: np.ndarray,
    accumulation: Accumulation,
    *,
    traced: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Sum each lane; see `accumulate`."""
    rules: Accumulation = {**accumulation, "product_format": None}
    return accumulate(function, np.ones((1, len(lanes))), lanes, **rules, traced=traced)


def _quotient(
    total: np.ndarray, count: int, fmt: Format, each: dict[str, Any]
) -> np.ndarray:
    """Divide totals by an exact count, rounded once."""
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = total / count if count > 0 else total * np.nan
    if (
        fmt.precision + count.bit_length() > 51
    ):  # see `divide`: float64 may reach a midpoint
        wide, _ = slowly(lambda q: q / count, wide, [total])
    return np.asarray(round_to(wide, fmt, **each))


def _each_with_itself(
    function: str, lanes: np.ndarray, accumulation: Accumulation
) -> np.ndarray:
    """Sum the squares of each lane; the square of an FP32 value is exact in float64."""
    squares = lanes * lanes
    fmt = accumulation.get("product_format")
    if fmt is not None:
        squares = round_to(squares, fmt, **_inner_and_outer(accumulation)[1])
    return _summed(function, squares, accumulation)[0]


def _lanes(
    function: str, x: Any, axis: int | None, *, all_of_them: bool = True
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Arrange elements as (terms, sums), and return the shape of the sums; no axis: one sum."""
    array = require_values(function, "x", x, FP32)
    if axis is None and all_of_them:
        return array.reshape(-1, 1), ()
    # NumPy has its own errors for a wrong axis.
    np.add.accumulate(np.empty((0,) * array.ndim), axis)  # type: ignore[arg-type]
    moved = np.moveaxis(array, axis, 0)  # type: ignore[arg-type]
    count = int(np.prod(moved.shape[1:]))
    return np.ascontiguousarray(moved.reshape(moved.shape[0], count)), moved.shape[1:]


def require_signs(function: str, argument: str, fmt: Format) -> None:
    """Raise if a format has no negative numbers, for what Kahan's additions lose has a sign."""
    if not fmt.signed:
        raise ValueError(
            f"{function}: {argument} must be signed for Kahan's sums; got {fmt.name}. Use another."
        )


# Calls of the compiled loops -------------------------------------------------------------
class _Order(NamedTuple):
    name: str
    block: int


def parsed_order(function: str, order: str) -> _Order:
    """Parse an order of summation into its name and the length of its blocks (0: one block).

    Raises:
        ValueError: the order is unknown.

    Examples:
        >>> parsed_order("sum", "blocked(128)")
        _Order(name='blocked', block=128)
    """
    blocked = _BLOCKED.fullmatch(order) if isinstance(order, str) else None
    if blocked:
        return _Order("blocked", int(blocked[1]))
    if isinstance(order, str) and order in ORDERS and order != "blocked(k)":
        return _Order(order, 0)
    raise ValueError(
        f"{function}: order must be one of {', '.join(ORDERS)}; got {quoted(order)}. "
        f"For blocks of 32 terms, write 'blocked(32)'."
    )


def accumulate(
    function: str,
    a: np.ndarray,
    b: np.ndarray,
    *,
    accumulator_format: FormatLike,
    product_format: FormatLike | None = None,
    output_format: FormatLike | None = None,
    order: str = "sequential",
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.IEEE,
    stream: Stream | None = None,
    traced: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute a @ b and, if traced (one row only), its running sums, in the output format.

    Callers must ensure that the terms are values of FP32. For the options see `Accumulation`.
    """
    from mplab.arithmetic import loops

    parsed = parsed_order(function, order)
    accumulator = format_of(accumulator_format, function=function)
    if accumulator.emax > 450 or accumulator.emin - accumulator.precision < -450:
        raise ValueError(
            f"{function}: accumulator_format must lie well within float64; got {accumulator!r}. "
            f"Use a format with exponents from -450 to 450."
        )

    options: Any = {"rounding": rounding, "overflow": overflow, "stream": stream}

    def step(named: FormatLike) -> LoopOptions:
        fmt = format_of(named, function=function)
        return loop_options(function, fmt, np.dtype(np.float64), **options)

    if parsed.name == "kahan":
        require_signs(function, "accumulator_format", accumulator)
    if parsed.name == "reversed":
        a = a[:, ::-1]
        b = b[::-1]
    sums, running = loops.run(
        np.ascontiguousarray(a),
        np.ascontiguousarray(b),
        order=parsed.name,
        block=min(parsed.block or a.shape[1], max(a.shape[1], 1)),
        addition=step(accumulator),
        product=None if product_format is None else step(product_format),
        traced=traced,
    )
    if output_format is not None:
        sums = round_to(sums, output_format, **options)
        running = round_to(running, output_format, **options)
    return sums, running
