"""The array that computes in its format."""

import numpy as np
import pytest
from cases import assert_same_bits

import mplab
from mplab import BF16, FP4_E2M1, FP8_E4M3, FP16, FP32
from mplab.arithmetic import FloatArray, _operations, reductions


def test_operators_are_the_functions_of_the_format():
    rng = np.random.default_rng(0)
    a, b = (mplab.round_to(rng.standard_normal(50), FP16) for _ in range(2))
    x, y = FloatArray(a, FP16), FloatArray(b, FP16)
    for got, function in [
        (x + y, _operations.add),
        (x - y, _operations.subtract),
        (x * y, _operations.multiply),
        (x / y, _operations.divide),
    ]:
        assert got.fmt == FP16
        assert_same_bits(got.values, function(a, b, FP16))
    assert_same_bits((-x).values, -a)
    assert_same_bits(abs(x).sqrt().values, _operations.sqrt(np.abs(a), FP16))


@pytest.mark.slow
def test_products_of_matrices_round_every_product_and_every_sum():
    rng = np.random.default_rng(1)
    a, b = mplab.round_to(rng.standard_normal((4, 9)), FP16), np.ones((9, 2))
    how = {"accumulator_format": FP16, "product_format": FP16}
    got = FloatArray(a, FP16) @ FloatArray(b, FP16)
    assert_same_bits(got.values, reductions.matmul(a, b, **how))
    assert (FloatArray(a, FP16) @ b[:, 0]).shape == (4,)
    assert (FloatArray(a[0].copy(), FP16) @ b[:, 0]).shape == ()
    assert float(FloatArray(np.ones(3000), FP16).sum()) == 2048.0
    assert float(FloatArray(np.ones(3000), FP16).sum(order="pairwise")) == 3000.0


def test_formats_are_not_mixed_silently():
    x, y = FloatArray([1.0], FP16), FloatArray([1.0], BF16)
    for operation in (lambda: x + y, lambda: y @ x, lambda: x / y, lambda: x == y):
        with pytest.raises(TypeError, match="both operands must have one format; got"):
            operation()
    assert float((x + y.to(FP16))[0]) == 2.0


def test_floats_and_arrays_join_in_where_they_belong_to_the_format():
    x = FloatArray([1.0, 2.0], FP16)
    assert (1.5 - x).values.tolist() == [0.5, -0.5]
    assert (2 * x).values.tolist() == [2.0, 4.0]
    assert (np.array([1.0, 4.0]) / x).values.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"add: b must hold values of FP16; got 0\.1"):
        x + 0.1


def test_values_that_are_none_of_the_format_are_refused_or_rounded():
    with pytest.raises(ValueError, match=r"FloatArray: values must hold values of FP8_E4M3"):
        FloatArray([0.1], FP8_E4M3)
    assert FloatArray.rounded([0.1], FP8_E4M3).codes.tolist() == [0x1D]


def test_it_prints_values_with_codes():
    assert repr(FloatArray([1.0, -0.0], FP8_E4M3)) == "FloatArray, FP8_E4M3:\n  1 (0x38)  -0 (0x80)"
    assert "shape (20,)" in repr(FloatArray(np.zeros(20), FP16))
    assert repr(FloatArray(np.zeros(20), FP16)).endswith("and 12 more")
    with np.errstate(invalid="ignore"):
        mark = FloatArray([0.0], FP4_E2M1) / FloatArray([0.0], FP4_E2M1)
    assert repr(mark) == "FloatArray, FP4_E2M1:\n  nan (no code)"


def test_it_cannot_be_changed_and_behaves_as_a_container():
    x = FloatArray([[1.0, 2.0], [3.0, 4.0]], FP32)
    assert len(x) == 2 and [row.values.tolist() for row in x] == [[1.0, 2.0], [3.0, 4.0]]
    assert x.T.values.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert np.asarray(x).sum() == 10.0
    assert (x == x).all()
    with pytest.raises(ValueError, match="read-only"):
        x.values[0, 0] = 5.0


@pytest.mark.parametrize("function", [np.sum, np.mean, np.linalg.norm, lambda x: np.dot(x, x)])
def test_functions_of_numpy_that_would_add_in_float64_are_refused(function):
    x = FloatArray([2048.0, 1.0, 1.0], FP16)
    with pytest.raises(TypeError, match=r"^numpy.*: arguments must not be FloatArrays.*x\.sum\(\)"):
        function(x)
    assert float(x.sum()) == 2048.0 and function(x.values) > 0


def test_functions_of_numpy_that_round_nothing_take_the_values():
    x = FloatArray([3.0, 1.0], FP16)
    assert np.max(x) == 3 and np.argmin(x) == 1 and np.array_equal(x, [3.0, 1.0])
    assert np.concatenate([x, x]).tolist() == [3, 1, 3, 1]
    assert np.where(x == 1.0, x, 0.0).tolist() == [0, 1]


def test_a_single_number_is_true_unless_it_is_zero():
    assert FloatArray(1.0, FP16) and not FloatArray(0.0, FP16)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(FloatArray([1.0, 2.0], FP16))
