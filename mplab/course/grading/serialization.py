"""Serialize the values that may pass between a student's process and the grader.

A value is written as JSON with base64 for the elements of an array. Reading it runs none
of the writer's code: there is no pickle and no evaluation, the dtypes come from one table, and
depth, size and count have bounds.
"""

import base64
import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from mplab.numbers.formats import FORMATS, Format, Specials

MAX_BYTES = 1 << 20
"""The most bytes that the elements of one array may have."""

MAX_ITEMS = 20_000
"""The most values that one answer may hold; values in lists count one by one."""

MAX_DEPTH = 6

_MAX_TEXT = 10_000

_MAX_BITS = 256

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    )
}

_FORMAT = re.compile(
    r"([\w+-]{1,32}) ([0-9]{1,2}) ([0-9]{1,2}) (-?[0-9]{1,4}) ([A-Z_]{1,32}) ([01]) ([01])",
    re.ASCII,
)


class UnsupportedValue(ValueError):
    """A value that must not be serialized, or text that is no value."""


def encode_value(value: Any) -> Any:
    """Encode a value as an object that `json.dumps` accepts.

    Args:
        value: None, a Boolean, integer, float, string, array or scalar of NumPy, tensor of
            torch, format of mplab, or a list, tuple or dictionary of such.

    Raises:
        UnsupportedValue: the value is of another kind, or too large.

    Exactness:
        Exact, except for the payload of a float's NaN. A bfloat16 tensor becomes float32.

    Examples:
        >>> encode_value(0.75)
        {'float': '0x1.8000000000000p-1'}
        >>> decode_value(encode_value((1, np.float32([2.0, -0.0]))))
        (1, array([ 2., -0.], dtype=float32))
    """
    return _encode(value, MAX_DEPTH, [MAX_ITEMS])


def _encode(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1  # of the values; a list, because all levels count down the same number
    if depth < 0 or left[0] < 0:
        raise UnsupportedValue(
            f"more than {MAX_ITEMS} values, or nested more than {MAX_DEPTH} deep"
        )
    if type(value).__module__ == "torch" and hasattr(value, "detach"):
        value = _array_of(value)
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        raise UnsupportedValue(f"a {type(value).__name__[:80]}")
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind == "U":  # text, as np.where gives it
            return _encode(value.tolist(), depth, left)
        return _encode_array(np.asarray(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise UnsupportedValue(f"an integer of more than {_MAX_BITS} bits")
        return {"int": hex(value)}
    if isinstance(value, float):
        return {
            "float": float(value).hex() if math.isfinite(value) else str(float(value))
        }
    if isinstance(value, str):
        if len(value) > _MAX_TEXT:
            raise UnsupportedValue(f"a string of more than {_MAX_TEXT} characters")
        return {"text": value}
    if isinstance(value, Format):
        if value in FORMATS.values():
            return {"format": value.name}
        return {"facts": _encode_format(value)}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, depth - 1, left) for item in value]}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise UnsupportedValue("a dictionary whose keys are not all text")
        return {
            "dict": [
                [key, _encode(item, depth - 1, left)] for key, item in value.items()
            ]
        }
    raise UnsupportedValue(f"a {type(value).__name__[:80]}")


def _encode_format(fmt: Format) -> str:
    """Encode a format that is not in `FORMATS`; its name must be one word."""
    facts = (
        fmt.name,
        fmt.exponent_bits,
        fmt.precision,
        fmt.bias,
        fmt.specials.name,
        int(fmt.signed),
        int(fmt.has_zero),
    )
    text = " ".join(map(str, facts))
    if _FORMAT.fullmatch(text) is None or fmt.dtype_name is not None:
        raise UnsupportedValue(
            "a format of your own whose name is not one word, or with a dtype"
        )
    return text


def _array_of(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:  # NumPy has no bfloat16, none of eight bits, no complex halves
        wide = tensor.cfloat() if tensor.is_complex() else tensor.float()
        return np.asarray(wide.numpy())


def _encode_array(array: np.ndarray) -> dict[str, Any]:
    name = array.dtype.name
    if name not in _DTYPES or array.nbytes > MAX_BYTES:
        raise UnsupportedValue(
            f"an array of {str(array.dtype)[:80]} with {array.nbytes} bytes"
        )
    data = np.ascontiguousarray(array, _DTYPES[name]).tobytes()
    text = base64.b64encode(data).decode("ascii")
    return {"array": name, "shape": list(array.shape), "data": text}


def decode_value(data: Any) -> Any:
    """Decode what `encode_value` wrote; raise `UnsupportedValue` for anything else.

    Raises:
        UnsupportedValue: `data` is not, in every detail, something that `encode_value` writes.
    """
    try:
        value = decode_own(data)
        same = key_of(value) == json.dumps(data, sort_keys=True)
    except MemoryError:  # is no fault of the data
        raise
    except Exception as error:  # data of strangers may raise anything
        raise UnsupportedValue("data that encode_value does not write") from error
    if not same:
        raise UnsupportedValue("data that encode_value writes otherwise")
    return value


def decode_own(data: Any) -> Any:
    """Decode what the grader wrote by `encode_value`; of other data it may make anything."""
    if not isinstance(data, dict):
        return data
    if "array" in data:
        return _decode_array(**data)
    [(tag, body)] = data.items()
    if tag == "list":
        return [decode_own(item) for item in body]
    if tag == "tuple":
        return tuple(decode_own(item) for item in body)
    if tag == "dict":
        return {key: decode_own(item) for key, item in body}
    return _SCALARS[tag](body)


def _decode_format(body: str) -> Format:
    """Decode a format that is not in `FORMATS`, of which no number has many digits."""
    facts = _FORMAT.fullmatch(body)
    if facts is None:
        raise ValueError
    name, bits, precision, bias, specials, signed, has_zero = facts.groups()
    return Format(
        name,
        exponent_bits=int(bits),
        precision=int(precision),
        bias=int(bias),
        specials=Specials[specials],
        signed=signed == "1",
        has_zero=has_zero == "1",
    )


def _decode_array(array: str, shape: list[int], data: str) -> np.ndarray:
    raw = base64.b64decode(data)
    # An empty array may have any shape, and a Boolean any byte.
    if len(shape) > 8 or max(shape, default=0) > MAX_BYTES:
        raise ValueError
    if array == "bool" and raw.strip(b"\0\1"):
        raise ValueError
    return np.frombuffer(raw, _DTYPES[array]).reshape(shape).copy()


_SCALARS: dict[str, Callable[[str], Any]] = {
    "int": partial(int, base=16),
    "float": float.fromhex,
    "text": str,
    "format": FORMATS.__getitem__,
    "facts": _decode_format,
}


def key_of(value: Any) -> str:
    """Return a value's key in a table: equal for values that are equal bit by bit.

    Examples:
        >>> key_of(0.0) == key_of(-0.0)
        False
    """
    return json.dumps(encode_value(value), sort_keys=True)
