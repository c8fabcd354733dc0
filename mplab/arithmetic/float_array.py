"""An array whose operations round to its format, and which prints the code of each value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mplab.arithmetic import operations, reductions
from mplab.numbers.codes import encode, in_hex, require_values
from mplab.numbers.formats import Format, FormatLike, Rounding, format_of
from mplab.numbers.inputs import as_float64
from mplab.numbers.rounding import round_to

_SHOWN = 8
"""Number of elements that `repr` prints."""


def _unwrapped(x: Any) -> Any:
    return x.values if isinstance(x, FloatArray) else x


def _matmul(a: Any, b: Any, fmt: Format) -> np.ndarray:
    left = require_values("matmul", "a", a, fmt)
    right = require_values("matmul", "b", b, fmt)
    product = reductions.matmul(
        left if left.ndim != 1 else left[None, :],
        right if right.ndim != 1 else right[:, None],
        accumulator_format=fmt,
        product_format=fmt,
    )
    return product.reshape(left.shape[:-1] + right.shape[1:])


def _named(name: str, method: Callable[..., Any]) -> Any:
    """Give a method the name that it has in the class, by which it is stored and shown."""
    method.__name__ = name
    method.__qualname__ = f"FloatArray.{name}"
    return method


def _operator(
    name: str, operation: Callable[..., Any], *, swapped: bool = False
) -> Any:
    """Make the method of an operator, which rounds its results to the format of the array."""

    def method(self: FloatArray, other: Any) -> FloatArray:
        if isinstance(other, FloatArray) and other.fmt != self.fmt:
            raise TypeError(
                f"FloatArray: operands must have one format; got {self.fmt.name} and "
                f"{other.fmt.name}. Convert one of them: x.to({self.fmt.name})."
            )
        operands = [self.values, _unwrapped(other)]
        if swapped:
            operands.reverse()
        return FloatArray(operation(*operands, self.fmt), self.fmt)

    return _named(name, method)


def _comparison(name: str, symbol: str, compare: Callable[[Any, Any], Any]) -> Any:
    """Make the method of a comparison, which rounds nothing."""

    def method(self: FloatArray, other: Any) -> Any:
        return compare(self.values, as_float64(symbol, _unwrapped(other)))

    return _named(name, method)


class FloatArray:
    """An array of one format, whose +, −, ×, ÷ and @ round at every step.

    Formats are never mixed silently: convert with `to`. The other operand may be a Python float or
    a NumPy array if all its elements are values of the format. `x @ y` and `x.sum()` accumulate
    in the format, from left to right, with products rounded; see `mplab.arithmetic` for more.

    Comparisons round nothing, and take the numbers that `round_to` takes. NumPy's functions would
    compute in float64, and therefore raise TypeError: pass them `x.values` if you want float64.

    Args:
        values: values of `fmt`: a FloatArray, an array or nested lists of floats.
        fmt: the format.

    Raises:
        TypeError: the values are not numbers, or are a masked array, whose mask would be lost.
        ValueError: a value does not belong to the format; use `FloatArray.rounded`.

    Exactness:
        Every operation is correctly rounded, ties to even.

    Examples:
        >>> x = FloatArray.rounded([0.1, 0.2], FP16)
        >>> x
        FloatArray, FP16:
          0.09998 (0x2E66)  0.2 (0x3266)
        >>> x[0] + x[1]
        FloatArray, FP16:
          0.2998 (0x34CC)
        >>> x + FloatArray([1.0, 2.0], BF16)
        Traceback (most recent call last):
        TypeError: FloatArray: operands must have one format; got FP16 and BF16. Convert one of \
them: x.to(FP16).
    """

    __array_ufunc__ = None  # NumPy leaves operators to this class, and its ufuncs raise
    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("fmt", "values")

    def __init__(self, values: Any, fmt: FormatLike) -> None:
        self.fmt = format_of(fmt, function="FloatArray")
        self.values = np.array(
            require_values("FloatArray", "values", _unwrapped(values), self.fmt)
        )
        self.values.flags.writeable = False

    @classmethod
    def rounded(
        cls, values: Any, fmt: FormatLike, *, rounding: Rounding = Rounding.TIES_TO_EVEN
    ) -> FloatArray:
        """Round numbers to a format.

        Args:
            values: a FloatArray, an array or nested lists of floats.
            fmt: the format to round to.
            rounding: the direction, any but `STOCHASTIC`, which needs a stream: use `round_to`.
        """
        return cls(round_to(_unwrapped(values), fmt, rounding=rounding), fmt)

    def to(
        self, fmt: FormatLike, *, rounding: Rounding = Rounding.TIES_TO_EVEN
    ) -> FloatArray:
        """Round to another format."""
        return FloatArray.rounded(self, fmt, rounding=rounding)

    @property
    def codes(self) -> Any:
        """The code of each element."""
        return encode(self.values, self.fmt)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, as in NumPy."""
        return self.values.shape

    @property
    def T(self) -> FloatArray:
        """The transpose."""
        return FloatArray(self.values.T, self.fmt)

    def sum(self, *, order: str = "sequential") -> FloatArray:
        """Sum all elements, every step in the format."""
        total = reductions.sum(self.values, accumulator_format=self.fmt, order=order)
        return FloatArray(total, self.fmt)

    def sqrt(self) -> FloatArray:
        """Return the square roots."""
        return FloatArray(operations.sqrt(self.values, self.fmt), self.fmt)

    __add__ = __radd__ = _operator("__add__", operations.add)
    __sub__ = _operator("__sub__", operations.subtract)
    __rsub__ = _operator("__rsub__", operations.subtract, swapped=True)
    __mul__ = __rmul__ = _operator("__mul__", operations.multiply)
    __truediv__ = _operator("__truediv__", operations.divide)
    __rtruediv__ = _operator("__rtruediv__", operations.divide, swapped=True)
    __matmul__ = _operator("__matmul__", _matmul)
    __rmatmul__ = _operator("__rmatmul__", _matmul, swapped=True)

    def __neg__(self) -> FloatArray:
        return FloatArray(round_to(-self.values, self.fmt), self.fmt)

    def __pos__(self) -> FloatArray:
        return self

    def __abs__(self) -> FloatArray:
        return FloatArray(np.abs(self.values), self.fmt)

    def __getitem__(self, index: Any) -> FloatArray:
        return FloatArray(self.values[index], self.fmt)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[FloatArray]:
        return iter([self[i] for i in range(len(self))])

    def __bool__(self) -> bool:
        return bool(self.values)

    def __float__(self) -> float:
        return float(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(
            f"FloatArray: NumPy would compute in float64, not in {self.fmt.name}. Use x @ y, "
            f"x.sum() or mplab.arithmetic, or, to compute in float64, x.values."
        )

    __eq__ = _comparison("__eq__", "==", operator.eq)
    __ne__ = _comparison("__ne__", "!=", operator.ne)
    __lt__ = _comparison("__lt__", "<", operator.lt)
    __le__ = _comparison("__le__", "<=", operator.le)
    __gt__ = _comparison("__gt__", ">", operator.gt)
    __ge__ = _comparison("__ge__", ">=", operator.ge)

    def __repr__(self) -> str:
        digits = 4 + (self.fmt.precision > 12) * 5
        shown = self.values.ravel()[:_SHOWN]
        words = [f"{value:.{digits}g} ({self._code_of(value)})" for value in shown]
        rest = self.values.size - len(words)
        shape = f", shape {self.shape}" if self.values.ndim > 1 or rest else ""
        more = f"  and {rest} more" if rest else ""
        return f"FloatArray, {self.fmt.name}{shape}:\n  " + "  ".join(words) + more

    def _code_of(self, value: float) -> str:
        if np.isnan(value) and not self.fmt.has_nan:  # FP6 and FP4 keep NaN as a mark
            return "no code"
        return in_hex(int(encode(value, self.fmt)), self.fmt)
