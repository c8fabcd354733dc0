"""An array that computes in its format: every operation rounds, every value shows its code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mplab.arithmetic import _operations, reductions
from mplab.numbers.codes import encode
from mplab.numbers.formats import Format, Rounding, require_format
from mplab.numbers.rounding import require_values, round_to

_SHOWN = 8
"""Elements that `repr` prints before it cuts."""


class FloatArray:
    """Numbers of one format whose +, −, ×, ÷ and @ round at every step.

    Formats are never mixed silently: convert with `to`. Python floats and NumPy arrays join in
    where all their elements are values of the format. `x @ y` and `x.sum()` accumulate in the
    format, from left to right, products rounded; see `mplab.arithmetic` for other ways. NumPy's
    functions that add or multiply would do so in float64, and are refused; the others, such as
    `np.max` and `np.where`, take the values.

    Args:
        values: values of `fmt`: a FloatArray, an array or nested lists of floats.
        fmt: the format.

    Raises:
        TypeError: the values are no floating-point numbers.
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
        TypeError: +: both operands must have one format; got FP16 and BF16. Convert one of \
them: x.to(FP16).
    """

    __array_ufunc__ = None  # so that NumPy leaves mixed operations to this class
    __slots__ = ("fmt", "values")
    fmt: Format
    values: np.ndarray

    def __init__(self, values: Any, fmt: Format) -> None:
        self.fmt = require_format("FloatArray", fmt)
        array = values.values if isinstance(values, FloatArray) else np.asarray(values)
        self.values = np.array(require_values("FloatArray", "values", array, self.fmt))
        self.values.flags.writeable = False

    @classmethod
    def rounded(
        cls, values: Any, fmt: Format, *, rounding: Rounding = Rounding.TIES_TO_EVEN
    ) -> FloatArray:
        """The nearest values of a format.

        Args:
            values: a FloatArray, an array or nested lists of floats.
            fmt: the format to enter.
            rounding: the direction, any but `STOCHASTIC`.
        """
        array = values.values if isinstance(values, FloatArray) else np.asarray(values)
        return cls(round_to(array, fmt, rounding=rounding), fmt)

    def to(self, fmt: Format, *, rounding: Rounding = Rounding.TIES_TO_EVEN) -> FloatArray:
        """These numbers rounded to another format."""
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
        """The sum of all elements, every step in the format."""
        total = reductions.sum(self.values, accumulator_format=self.fmt, order=order)
        return FloatArray(total, self.fmt)

    def sqrt(self) -> FloatArray:
        """The square roots."""
        return FloatArray(_operations.sqrt(self.values, self.fmt), self.fmt)

    # Operators ---------------------------------------------------------------------------

    def _other(self, sign: str, other: Any) -> Any:
        if isinstance(other, FloatArray):
            if other.fmt != self.fmt:
                raise TypeError(
                    f"{sign}: both operands must have one format; got {self.fmt.name} and "
                    f"{other.fmt.name}. Convert one of them: x.to({self.fmt.name})."
                )
            return other.values
        return float(other) if isinstance(other, int) else other

    def _combined(
        self, sign: str, operation: Callable[..., Any], other: Any, *, swapped: bool = False
    ) -> FloatArray:
        operands = (self.values, self._other(sign, other))
        return FloatArray(operation(*operands[:: -1 if swapped else 1], self.fmt), self.fmt)

    def __add__(self, other: Any) -> FloatArray:
        return self._combined("+", _operations.add, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> FloatArray:
        return self._combined("-", _operations.subtract, other)

    def __rsub__(self, other: Any) -> FloatArray:
        return self._combined("-", _operations.subtract, other, swapped=True)

    def __mul__(self, other: Any) -> FloatArray:
        return self._combined("*", _operations.multiply, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> FloatArray:
        return self._combined("/", _operations.divide, other)

    def __rtruediv__(self, other: Any) -> FloatArray:
        return self._combined("/", _operations.divide, other, swapped=True)

    def __matmul__(self, other: Any) -> FloatArray:
        values = np.asarray(self._other("@", other))
        left = self.values if self.values.ndim > 1 else self.values[None, :]
        right = values if values.ndim > 1 else values[:, None]
        product = reductions.matmul(
            left, right, accumulator_format=self.fmt, product_format=self.fmt
        )
        shape = self.shape[:-1] + values.shape[1:]
        return FloatArray(product.reshape(shape), self.fmt)

    def __neg__(self) -> FloatArray:
        return FloatArray(round_to(-self.values, self.fmt), self.fmt)

    def __abs__(self) -> FloatArray:
        return FloatArray(np.abs(self.values), self.fmt)

    # As a container ----------------------------------------------------------------------

    def __getitem__(self, index: Any) -> FloatArray:
        return FloatArray(self.values[index], self.fmt)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[FloatArray]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.values)

    def __float__(self) -> float:
        return float(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any, options: Any
    ) -> Any:
        if function in _IN_FLOAT64:
            name = f"{function.__module__}.{function.__name__}"
            raise TypeError(
                f"{name}: arguments must not be FloatArrays, which round at every step; got "
                f"{self.fmt.name}. Use x @ y, x.sum() or mplab.arithmetic, or, to compute in "
                f"float64, {name}(x.values)."
            )
        return function(*_plain(arguments), **_plain(options))

    def __eq__(self, other: object) -> Any:
        return self.values == self._other("==", other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        digits = 4 + (self.fmt.precision > 12) * 5
        width = -(-self.fmt.bits // 4)
        shown = self.values.ravel()[:_SHOWN]
        words = [
            f"{value:.{digits}g} "
            + ("(no code)" if value != value and not self.fmt.has_nan else f"(0x{code:0{width}X})")
            for value, code in zip(shown, self._codes_of(shown), strict=True)
        ]
        rest = self.values.size - len(words)
        shape = f", shape {self.shape}" if self.values.ndim > 1 or rest else ""
        more = f"  and {rest} more" if rest else ""
        return f"FloatArray, {self.fmt.name}{shape}:\n  " + "  ".join(words) + more

    def _codes_of(self, values: np.ndarray) -> list[int]:
        if not self.fmt.has_nan:  # FP6 and FP4 keep NaN as a mark that has no code
            values = np.where(np.isnan(values), self.fmt.min_normal, values)
        return [int(code) for code in np.atleast_1d(encode(values, self.fmt))]


_IN_FLOAT64 = frozenset(
    {
        *(np.sum, np.mean, np.average, np.median, np.std, np.var, np.prod, np.cumsum, np.cumprod),
        *(np.dot, np.vdot, np.inner, np.outer, np.tensordot, np.einsum, np.convolve, np.correlate),
        *(np.cross, np.kron, np.trace, np.diff, np.linalg.norm, np.nansum, np.nanmean),
        *(np.trapezoid, np.interp, np.cov, np.corrcoef),
    }
)
"""Functions of NumPy whose results would be rounded once at the end, if at all."""


def _plain(arguments: Any) -> Any:
    """Arguments with the values of every FloatArray in its place."""
    if isinstance(arguments, FloatArray):
        return arguments.values
    if isinstance(arguments, list | tuple):
        plain = [_plain(argument) for argument in arguments]
        return plain if isinstance(arguments, list) else tuple(plain)
    if isinstance(arguments, dict):
        return {name: _plain(argument) for name, argument in arguments.items()}
    return arguments
