"""What crosses between a student's process and the grader: every value exactly, nothing else."""

import json
from dataclasses import replace
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mplab import FP8_E4M3, Format, Specials
from mplab.course.grading.serialization import (
    MAX_BYTES,
    MAX_ITEMS,
    UnsupportedValue,
    decode_value,
    encode_value,
    key_of,
)

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=20,
)


def through(value):
    return decode_value(json.loads(json.dumps(encode_value(value))))


def same(a, b):
    """Equal bit by bit, types included: Python writes plain values so that they differ."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return repr(a) == repr(b)


@given(PLAIN)
def test_a_plain_value_arrives_as_it_left(value):
    try:
        encoded = encode_value(value)
    except UnsupportedValue:
        return  # beyond the depth
    assert same(decode_value(json.loads(json.dumps(encoded))), value)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64",
                                   ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 2)])
def test_an_array_arrives_bit_by_bit(dtype, shape):
    rng = np.random.default_rng(1)
    dtype = np.dtype(dtype)
    raw = rng.integers(
        0, 2 if dtype.kind == "b" else 256, (*shape, dtype.itemsize), np.uint8
    )
    array = np.frombuffer(raw.tobytes(), dtype).reshape(shape)
    assert same(through(array), array)


def test_a_tensor_a_format_and_a_scalar_arrive():
    torch = pytest.importorskip("torch")
    assert same(through(torch.tensor([1.0, -0.0])), np.array([1, -0.0], np.float32))
    assert through(torch.tensor([1.5], dtype=torch.bfloat16))[0] == 1.5
    assert through(FP8_E4M3) is FP8_E4M3
    assert same(through(np.float16(0.1)), np.array(np.float16(0.1)))
    assert through(np.where(True, "ok", "bad")) == through(np.str_("ok")) == "ok"
    assert through(np.array(["ok", "bad"])) == ["ok", "bad"]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_tensor_of_complex_numbers_is_not_taken_for_its_real_parts():
    torch = pytest.importorskip("torch")
    for dtype in (torch.complex32, torch.complex64):
        with pytest.raises(UnsupportedValue):
            encode_value(torch.tensor([1 + 2j], dtype=dtype))


@pytest.mark.parametrize("fmt", [
    Format("E3M4", exponent_bits=3, precision=5),
    Format("e4m5-fn", exponent_bits=4, precision=6, bias=9, specials=Specials.NAN_ALL_ONES),
    Format("U5", exponent_bits=3, precision=3, specials=Specials.NONE, signed=False,
           has_zero=False),
    Format("BF16", exponent_bits=6, precision=4),
], ids=str)  # fmt: skip
def test_a_format_that_no_table_names_arrives_with_all_its_facts(fmt):
    there = through(fmt)
    assert there == fmt and repr(there) == repr(fmt)


@pytest.mark.parametrize("value", [
    Format("two words", exponent_bits=3, precision=5), replace(FP8_E4M3, name="mine"),
    object(), {1: 2}, np.array([object()]), 1j,
    np.zeros(3, "M8[s]"), len, type, {1.0}, b"1",
    np.ones(2, complex), -(1 << 300), slice(None), range(3), np.array([b"a"]), np.longdouble(1),
    np.ma.masked, np.ma.array([1.0, 2.0], mask=[0, 1]),
], ids=lambda v: type(v).__name__)  # fmt: skip
def test_what_may_not_cross_is_refused_by_the_sender(value):
    with pytest.raises(UnsupportedValue):
        encode_value(value)


def test_the_most_that_may_cross_does_and_one_more_does_not():
    """For each limit: a value that reaches it, and what would be beyond."""
    most = [None] * (MAX_ITEMS - 1)  # the list counts, too
    nested = [[[[[[1]]]]]]
    for value, beyond in (
        (most, [*most, None]),
        (nested, [nested]),
        ("x" * 10_000, "x" * 10_001),
        ((1 << 256) - 1, 1 << 256),
        (np.zeros(MAX_BYTES, np.uint8), np.zeros(MAX_BYTES + 1, np.uint8)),
    ):
        assert same(through(value), value)
        with pytest.raises(UnsupportedValue):
            encode_value(beyond)


FORGED = r"""
1
"1"
[]
{}
{"eval": "1"}
{"int": 3}
{"int": "3"}
{"int": "0x10000000000000000000000000000000000000000000000000000000000000000"}
{"float": "1.0"}
{"float": "0x1.8p+99999"}
{"float": "0x1.ffffffffffffffffffffffffffffffffp+0"}
{"float": "nan "}
{"text": 3}
{"format": "FP128"}
{"list": {}}
{"list": [{"list": [{"list": [{"list": [{"list": [{"list": [{"list": [null]}]}]}]}]}]}]}
{"list": [1]}
{"list": "ab"}
{"list": [], "tuple": []}
{"tuple": {}}
{"dict": [["a"]]}
{"dict": [[1, null]]}
{"facts": "E3M4 3 5 3 IEEE 1"}
{"facts": "E3M4 3 5 3 EASY 1 1"}
{"facts": "E3M4 3 1 3 IEEE 1 1"}
{"facts": "E9M40 9 41 3 NONE 1 1"}
{"facts": "E3M4 ٣ 5 3 IEEE 1 1"}
{"facts": ["E3M4"]}
{"facts": "a_name_that_is_longer_than_32_letters 3 5 3 IEEE 1 1"}
{"facts": "E3M4 3 5 9999 IEEE 1 1"}
{"facts": "x 5 5 1 IEEE 9 9"}
{"array": "object", "shape": [1], "data": "AAAAAAAAAAA="}
{"array": ["float64"], "shape": [1], "data": "AAAAAAAAAAA="}
{"array": "bool", "shape": [1], "data": "Ag=="}
{"array": "float64", "shape": [-1], "data": ""}
{"array": "float64", "shape": [true], "data": "AAAAAAAAAAA="}
{"array": "float64", "shape": [2], "data": "AAAAAAAAAAA="}
{"array": "float64", "shape": [1], "data": "AAAAAAAAAAA"}
{"array": "float64", "shape": [1], "data": "AAAA\nAAAAAAA="}
{"array": "float64", "shape": [1], "data": "%"}
{"array": "float64", "shape": [1], "data": 5}
{"array": "float64", "shape": [1,1,1,1,1,1,1,1,1], "data": "AAAAAAAAAAA="}
{"array": "float64", "shape": [1000000000000000000000000000000], "data": ""}
{"array": "float64", "shape": [0,999999,999999,999999,999999,999999,999999,999999], "data": ""}
{"array": "float64", "shape": 1, "data": "AAAAAAAAAAA="}
"""
"""Lines of JSON that no value has."""


def test_forged_text_is_refused_by_the_receiver():
    lines = map(json.loads, FORGED.strip().splitlines())
    large = {
        "array": "int8",
        "shape": [2, MAX_BYTES // 2 + 1],
        "data": "AAAA" * (MAX_BYTES // 3 + 1),
    }
    long = {"list": [None] * MAX_ITEMS}, {"text": "x" * 10_001}, large
    for data in (
        *lines,
        *long,
        object(),
        b"1",
        1j,
        1.5,
        {5: "x"},
        {None: "x"},
        np.ones(2),
    ):
        with pytest.raises(UnsupportedValue):
            decode_value(data)
            pytest.fail(repr(data)[:200])


def test_running_out_of_memory_is_no_fault_of_the_data(monkeypatch):
    monkeypatch.setattr("base64.b64decode", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        decode_value(encode_value(np.ones(1)))


def test_keys_tell_zeros_types_and_shapes_apart():
    values = [0.0, -0.0, 0, False, None, "0", [0], (0,), np.zeros(1), np.zeros((1, 1))]
    assert len({key_of(value) for value in values}) == len(values)
