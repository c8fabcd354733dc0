"""Values as text: what may cross between a student's process and the grader, and nothing else.

A value is written as JSON with base64 for the elements of an array. Reading it runs no code
of whoever wrote it: there is no pickle and no evaluation, the dtypes are those of one table,
and depth, size and count have bounds.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any

import ml_dtypes
import numpy as np

from mplab.numbers.checks import quoted
from mplab.numbers.formats import FORMATS, Format, Specials

MAX_BYTES = 1 << 20
"""The most bytes that the elements of one array may have."""

MAX_ITEMS = 20_000
"""The most values, those in lists counted one by one, that one answer may hold."""

MAX_DEPTH = 6

_MAX_TEXT = 10_000

_MAX_BITS = 256

_DTYPES: dict[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64"),
        )
    },
    **{
        name: np.dtype(getattr(ml_dtypes, name))
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    },
}

_FLOAT = re.compile(r"-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}|-?inf|nan", re.ASCII)

_INTEGER = re.compile(r"-?0x[0-9a-f]{1,64}", re.ASCII)

_FACTS = re.compile(
    r"([\w+-]{1,32}) ([0-9]{1,2}) ([0-9]{1,2}) (-?[0-9]{1,4}) ([A-Z_]{1,32}) ([01]) ([01])",
    re.ASCII,
)


class Foreign(ValueError):
    """A value outside what may cross, or text that is no value."""


def encode_value(value: Any) -> Any:
    """Write a value as what `json.dumps` takes.

    Args:
        value: None, a Boolean, integer, float, string, array or scalar of NumPy, tensor of
            torch, format of mplab, or a list, tuple or dictionary of such.

    Raises:
        Foreign: the value is of another kind, or too large.

    Exactness:
        Exact, but for the payload of a float's NaN. A bfloat16 tensor becomes float32.

    Examples:
        >>> encode_value(0.75)
        {'float': '0x1.8000000000000p-1'}
        >>> decode_value(encode_value((1, np.float32([2.0, -0.0]))))
        (1, array([ 2., -0.], dtype=float32))
    """
    return _encode(value, MAX_DEPTH, [MAX_ITEMS])


def _encode(value: Any, depth: int, room: list[int]) -> Any:
    room[0] -= 1
    if depth < 0 or room[0] < 0:
        raise Foreign(
            f"encode_value: value must be nested at most {MAX_DEPTH} deep and hold at most "
            f"{MAX_ITEMS} values; got more. Hand in less."
        )
    if type(value).__module__ == "torch" and hasattr(value, "detach"):
        value = _array_of(value)
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        raise Foreign(_refused(value))
    if isinstance(value, np.ndarray | np.generic):
        return _encode_array(np.asarray(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise Foreign(
                f"encode_value: value must have at most {_MAX_BITS} bits if it is an integer; got "
                f"{value.bit_length()} bits. Hand in a float."
            )
        return {"int": hex(value)}
    if isinstance(value, float):
        return {"float": float(value).hex() if math.isfinite(value) else str(float(value))}
    if isinstance(value, str):
        if len(value) > _MAX_TEXT:
            raise Foreign(
                f"encode_value: value must have at most {_MAX_TEXT} characters if it is a string; "
                f"got {len(value)}. Cut it."
            )
        return {"text": value}
    if isinstance(value, Format):
        return {"format": value.name} if value in FORMATS.values() else {"facts": _facts_of(value)}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, depth - 1, room) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, _encode(item, depth - 1, room)] for key, item in value.items()]}
    raise Foreign(_refused(value))


def _refused(value: object) -> str:
    """That a value is of no kind that may cross."""
    return (
        "encode_value: value must be None, a Boolean, number, string, array, tensor or format, or "
        f"a list, tuple or dictionary by strings of such; got a {type(value).__name__[:80]}. "
        "Convert it first."
    )


def _facts_of(fmt: Format) -> str:
    """What makes a format that no table names; its name is one word."""
    flags = int(fmt.signed), int(fmt.has_zero)
    facts = (fmt.name, fmt.exponent_bits, fmt.precision, fmt.bias, fmt.specials.name, *flags)
    text = " ".join(map(str, facts))
    if _FACTS.fullmatch(text) is None or fmt.dtype_name is not None:
        raise Foreign(
            "encode_value: value must have a name of one word and no dtype if it is a format of "
            f"your own; got {fmt.name[:40]!r}. Rename it."
        )
    return text


def _array_of(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) in ("torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"):
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def _encode_array(array: np.ndarray) -> dict[str, Any]:
    name = array.dtype.name
    if name not in _DTYPES or array.nbytes > MAX_BYTES:
        raise Foreign(
            f"encode_value: value must be of a number type and at most {MAX_BYTES} bytes if it is "
            f"an array; got {str(array.dtype)[:80]} with {array.nbytes} bytes. Convert it first."
        )
    data = np.ascontiguousarray(array, _DTYPES[name]).tobytes()
    text = base64.b64encode(data).decode("ascii")
    return {"array": name, "shape": list(array.shape), "data": text}


def decode_value(data: Any) -> Any:
    """Read what `encode_value` wrote; whatever else it is given, it raises `Foreign`.

    Raises:
        Foreign: `data` is not, in every detail, something that `encode_value` writes.
    """
    return _decode(data, MAX_DEPTH, [MAX_ITEMS])


def _decode(data: Any, depth: int, room: list[int]) -> Any:
    room[0] -= 1
    if depth < 0 or room[0] < 0:
        raise _misread("be nested less deeply, or hold fewer values", "more")
    if data is None or isinstance(data, bool):
        return data
    if not isinstance(data, dict):
        raise _misread("be tagged values", f"a {type(data).__name__[:80]}")
    if set(data) == {"array", "shape", "data"}:
        return _decode_array(data)
    if len(data) != 1:
        raise _misread("have one tag for each value", f"{len(data)}")
    [(tag, body)] = data.items()
    if tag in ("list", "tuple") and isinstance(body, list):
        items = [_decode(item, depth - 1, room) for item in body]
        return items if tag == "list" else tuple(items)
    if tag == "dict" and isinstance(body, list):
        return dict(_decode_pair(pair, depth, room) for pair in body)
    if not isinstance(body, str):
        raise _misread("hold numbers and texts as strings", f"a {type(body).__name__[:80]}")
    return _decode_text(tag, body)


def _misread(rule: str, given: str) -> Foreign:
    """That `data` breaks a rule."""
    return Foreign(f"decode_value: data must {rule}; got {given}. Pass what encode_value wrote.")


def _decode_text(tag: Any, body: str) -> Any:
    if tag == "int" and _INTEGER.fullmatch(body):
        return int(body, 16)
    if tag == "float" and _FLOAT.fullmatch(body):
        try:
            return float.fromhex(body)
        except OverflowError as error:
            raise _misread("hold floats of float64", "one out of range") from error
    if tag == "text" and len(body) <= _MAX_TEXT:
        return body
    if tag == "format" and body in FORMATS:
        return FORMATS[body]
    if tag == "facts" and (facts := _FACTS.fullmatch(body)):
        return _format_of(*facts.groups())
    raise _misread("have a known tag and a body of its kind", quoted(tag))


def _format_of(name: str, *facts: str) -> Format:
    bits, precision, bias, specials, signed, has_zero = facts
    try:
        return Format(
            name,
            exponent_bits=int(bits),
            precision=int(precision),
            bias=int(bias),
            specials=Specials[specials],
            signed=signed == "1",
            has_zero=has_zero == "1",
        )
    except (KeyError, ValueError) as error:
        raise _misread("hold facts of a format", "facts that contradict one another") from error


def _decode_pair(pair: Any, depth: int, room: list[int]) -> tuple[str, Any]:
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
        raise _misread("hold a string and a value for each entry of a dictionary", "another entry")
    return pair[0], _decode(pair[1], depth - 1, room)


def _decode_array(data: dict[str, Any]) -> np.ndarray:
    name, shape, text = data["array"], data["shape"], data["data"]
    if not isinstance(name, str) or name not in _DTYPES:
        raise _misread("have a dtype of numbers for each array", quoted(name))
    if not isinstance(shape, list) or len(shape) > 8:
        raise _misread("have a list of at most 8 sizes as a shape", quoted(shape))
    if not all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape):
        raise _misread("have sizes in a shape", quoted(shape))
    if not isinstance(text, str) or len(text) > 2 * MAX_BYTES:
        raise _misread("hold elements as text of bounded length", f"a {type(text).__name__[:80]}")
    dtype = _DTYPES[name]
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _misread("hold elements in base64", "other text") from error
    if len(raw) != math.prod(shape) * dtype.itemsize or len(raw) > MAX_BYTES:
        raise _misread("hold as many elements as the shape says", f"{len(raw)} bytes")
    if name == "bool" and raw.strip(b"\0\1"):
        raise _misread("hold 0 or 1 for a Boolean", "another byte")
    try:
        return np.frombuffer(raw, dtype).reshape(shape).copy()
    except ValueError as error:  # no element, and sizes beyond what NumPy counts
        raise _misread("have a shape within bounds", quoted(shape)) from error


def key_of(value: Any) -> str:
    """The text that stands for a value in a table: equal for equal values, bit by bit.

    Examples:
        >>> key_of(0.0) == key_of(-0.0)
        False
    """
    return json.dumps(encode_value(value), sort_keys=True)
