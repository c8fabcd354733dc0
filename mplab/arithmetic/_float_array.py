"""An array that computes in its format: every operation rounds, every value shows its code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mplab.arithmetic import _checks, _numpy_functions, operations, reductions
from mplab.numbers.codes import encode
from mplab.numbers.formats import Format, Rounding, require_format
from mplab.numbers.rounding import round_to

_SHOWN = 8
"""Elements that `repr` prints before it cuts."""


class _ArrayUfunc:
    """What NumPy asks the class for when it meets a FloatArray, and an object for: None.

    NumPy's ufuncs look at the class. Masked arrays look at the object, and with None leave their
    operators to it; else they would compute in float64.
    """

    def __get__(self, array: FloatArray | None, owner: type[FloatArray]) -> Any:
        return owner._ufunc if array is None else None


class FloatArray:
    """Numbers of one format whose +, −, ×, ÷ and @ round at every step.

    Formats are never mixed silently: convert with `to`. Python floats and NumPy arrays join in
    where all their elements are values of the format. `x @ y` and `x.sum()` accumulate in the
    format, from left to right, products rounded; see `mplab.arithmetic` for other ways.

    Comparisons round nothing, and take any numbers. Functions of NumPy that move or choose
    values, such as `np.concatenate`, `np.clip` and `np.where`, give FloatArrays, and all floats
    that they take must be values of the format. Those that compare, such as `np.argmax`, give
    what NumPy gives. All others, which would compute in float64, are refused. `np.add` is `+`,
    and so on.

    Args:
        values: values of `fmt`: a FloatArray, an array or nested lists of floats.
        fmt: the format.

    Raises:
        TypeError: the values are no numbers, or a masked array, whose mask would be lost.
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

    __array_ufunc__ = _ArrayUfunc()
    __slots__ = ("fmt", "values")
    fmt: Format
    values: np.ndarray

    def __init__(self, values: Any, fmt: Format) -> None:
        self.fmt = require_format("FloatArray", fmt)
        given = values.values if isinstance(values, FloatArray) else _plain(values)
        self.values = np.array(_checks.operand("FloatArray", "values", given, self.fmt))
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
        return cls._entered("FloatArray.rounded", values, fmt, rounding)

    @classmethod
    def _entered(cls, function: str, values: Any, fmt: Format, rounding: Rounding) -> FloatArray:
        require_format(function, fmt)
        if rounding is Rounding.STOCHASTIC:
            raise ValueError(
                f"{function}: rounding must not be STOCHASTIC, which needs a stream; got it. "
                f"Use round_to(values, fmt, rounding=rounding, stream=...) first."
            )
        _checks.require_rules(function, {"rounding": rounding}, ["rounding"])
        given = _checks.numbers(function, "values", _plain(values))
        return cls(round_to(np.asarray(given), fmt, rounding=rounding), fmt)

    def to(self, fmt: Format, *, rounding: Rounding = Rounding.TIES_TO_EVEN) -> FloatArray:
        """These numbers rounded to another format."""
        return FloatArray._entered("FloatArray.to", self, fmt, rounding)

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
        return FloatArray(operations.sqrt(self.values, self.fmt), self.fmt)

    # Operators ---------------------------------------------------------------------------

    def _other(self, sign: str, other: Any) -> Any:
        if isinstance(other, FloatArray):
            if other.fmt != self.fmt:
                raise TypeError(
                    f"{sign}: both operands must have one format; got {self.fmt.name} and "
                    f"{other.fmt.name}. Convert one of them: x.to({self.fmt.name})."
                )
            return other.values
        if isinstance(other, np.ma.MaskedArray):
            raise TypeError(
                f"{sign}: operands must have no mask, which would be lost; got a masked array. "
                f"Fill it first: m.filled(0.0)."
            )
        return other

    def _combined(
        self, sign: str, operation: Callable[..., Any], other: Any, *, swapped: bool = False
    ) -> FloatArray:
        operands = (self.values, self._other(sign, other))
        return FloatArray(operation(*operands[:: -1 if swapped else 1], self.fmt), self.fmt)

    def __add__(self, other: Any) -> FloatArray:
        return self._combined("+", operations.add, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> FloatArray:
        return self._combined("-", operations.subtract, other)

    def __rsub__(self, other: Any) -> FloatArray:
        return self._combined("-", operations.subtract, other, swapped=True)

    def __mul__(self, other: Any) -> FloatArray:
        return self._combined("*", operations.multiply, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> FloatArray:
        return self._combined("/", operations.divide, other)

    def __rtruediv__(self, other: Any) -> FloatArray:
        return self._combined("/", operations.divide, other, swapped=True)

    def __matmul__(self, other: Any) -> FloatArray:
        return self._product(self.values, self._operand("b", other))

    def __rmatmul__(self, other: Any) -> FloatArray:
        return self._product(self._operand("a", other), self.values)

    def _operand(self, argument: str, other: Any) -> np.ndarray:
        return _checks.operand("matmul", argument, self._other("@", other), self.fmt)

    def _product(self, left: np.ndarray, right: np.ndarray) -> FloatArray:
        flat = left.ndim in (1, 2) and right.ndim in (1, 2)
        if not flat or left.shape[-1] != right.shape[0]:
            raise ValueError(
                f"matmul: a and b must be vectors or matrices, a as wide as b is high; got shapes "
                f"{left.shape} and {right.shape}. Reshape them."
            )
        product = reductions.matmul(
            left if left.ndim > 1 else left[None, :],
            right if right.ndim > 1 else right[:, None],
            accumulator_format=self.fmt,
            product_format=self.fmt,
        )
        return FloatArray(product.reshape(left.shape[:-1] + right.shape[1:]), self.fmt)

    def __neg__(self) -> FloatArray:
        return FloatArray(round_to(-self.values, self.fmt), self.fmt)

    def __pos__(self) -> FloatArray:
        return self

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
        name = f"{function.__module__}.{function.__name__}"
        if not _numpy_functions.takes(function, options):
            raise _numpy_functions.refused(name, self.fmt.name)
        return self._taken(name, function, function, arguments, options)

    def _ufunc(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        if ufunc in _numpy_functions.UFUNCS_OF_THE_FORMAT and method == "__call__" and not options:
            on_the_left, on_the_right = _numpy_functions.UFUNCS_OF_THE_FORMAT[ufunc]
            if isinstance(inputs[0], FloatArray):
                return getattr(inputs[0], on_the_left)(*inputs[1:])
            return getattr(inputs[1], on_the_right)(inputs[0])
        if not _numpy_functions.ufunc_takes(ufunc, method, options):
            raise _numpy_functions.refused(name, self.fmt.name)
        return self._taken(name, ufunc, getattr(ufunc, method), inputs, options)

    def _taken(self, name: str, listed: Any, call: Any, arguments: Any, options: Any) -> Any:
        """What a function of NumPy gives for the values, in the format if it is values."""
        self._require_one_format(name, (arguments, options))
        plain, named = _plain(arguments), _plain(options)
        if listed not in _numpy_functions.GIVING_VALUES:
            return call(*plain, **named)
        for number in filter(_is_float, _leaves((plain, named))):
            _checks.operand(name, "arguments", number, self.fmt)
        return self._of_the_format(name, call(*plain, **named))

    def _of_the_format(self, name: str, answer: Any) -> Any:
        """The same answer, arrays of floats as FloatArrays; indices and counts as they are."""
        if isinstance(answer, list | tuple):
            parts = [self._of_the_format(name, part) for part in answer]
            if hasattr(answer, "_make"):  # a named tuple
                return answer._make(parts)
            return parts if isinstance(answer, list) else tuple(parts)
        if not _is_float(answer):
            return answer
        return FloatArray(_checks.operand(name, "arguments", answer, self.fmt), self.fmt)

    def _require_one_format(self, name: str, arguments: Any) -> None:
        for other in _leaves(arguments):
            if isinstance(other, FloatArray) and other.fmt != self.fmt:
                raise TypeError(
                    f"{name}: arguments must have one format; got {self.fmt.name} and "
                    f"{other.fmt.name}. Convert one of them: x.to({self.fmt.name})."
                )

    # Comparisons -------------------------------------------------------------------------

    def _compared(self, sign: str, compare: Callable[..., Any], other: Any) -> Any:
        """A comparison with any numbers; what is no number differs from all of them."""
        other = self._other(sign, other)
        try:
            if isinstance(other, str):
                raise TypeError(f"{sign}: other must be a number or an array; got a string.")
            numbers = _checks.wide(sign, "other", other)
        except TypeError:
            if sign not in ("==", "!="):
                raise
            return np.full(self.shape, sign == "!=")[()]
        return compare(*_checks.broadcast(sign, ("self", "other"), (self.values, numbers)))

    def __eq__(self, other: object) -> Any:
        return self._compared("==", operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._compared("!=", operator.ne, other)

    def __lt__(self, other: Any) -> Any:
        return self._compared("<", operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compared("<=", operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._compared(">", operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._compared(">=", operator.ge, other)

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


def _is_float(x: Any) -> bool:
    return isinstance(x, float) or (
        isinstance(x, np.ndarray | np.generic) and np.issubdtype(x.dtype, np.floating)
    )


def _leaves(arguments: Any) -> Iterator[Any]:
    """Every argument, also those in lists and mappings."""
    if isinstance(arguments, list | tuple | dict):
        for argument in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from _leaves(argument)
    else:
        yield arguments
