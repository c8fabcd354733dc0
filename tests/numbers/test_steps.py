"""Steps with checked values in one call: the same bits and errors as by the long way."""

import itertools
import threading
from fractions import Fraction

import numpy as np
import pytest
from cases import COMMON, TABLED, assert_same_bits, not_a_numbers

from mplab import FP4_E2M1, FP8_E4M3, FP16, FP32, FP64, TF32
from mplab.arithmetic import add, divide, exp, fma, multiply, operations, sqrt, subtract
from mplab.numbers import decode, encode, steps
from mplab.numbers.codes import code_dtype, require_values

OPERATIONS = {add: 2, subtract: 2, multiply: 2, divide: 2, sqrt: 1, fma: 3, exp: 1}
ALL = {**TABLED, "FP32": FP32}
FAST = {*COMMON, "Binary8p1se", "MXINT8", "FP8_E8M0", "E5M0", "TF32", "FP32"}


@pytest.fixture
def by_the_long_way(monkeypatch):
    def call(function, *arguments):
        with monkeypatch.context() as patched:
            patched.setattr(operations, "_at_once", lambda *_: None)
            patched.setattr("mplab.numbers.codes._entered", lambda *_: None)
            return function(*arguments)

    return call


def operands_of(fmt, rng):
    """Values, special ones among them."""
    codes = rng.integers(0, 1 << fmt.bits, (3, 1200)).astype(code_dtype(fmt))
    x = decode(codes, fmt)
    return np.clip(x, -fmt.max_finite, None) if fmt is ALL["MXINT8"] else x


ARRANGED = {
    "contiguous": lambda x: x,
    "in steps": lambda x: x[:, ::3],
    "transposed": lambda x: x.reshape(3, 30, 40).transpose(0, 2, 1),
    "beside one another": lambda x: (x[0, :30], x[1, :40, None], x[2, 7:8]),
    "one number": lambda x: x[:, 5].tolist(),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in ALL],
)
def test_every_bit_is_that_of_the_long_way(name, by_the_long_way):
    fmt = ALL[name]
    x = operands_of(fmt, np.random.default_rng(1))
    finite = np.where(np.isfinite(x), x, fmt.max_finite)
    dtypes = (np.float64, np.float32) if fmt.fits(FP32) else (np.float64,)
    for numbers, arrange, dtype in itertools.product(
        (x, finite), ARRANGED.values(), dtypes
    ):
        given = arrange(numbers.astype(dtype))
        for operation, count in OPERATIONS.items():
            arguments = *given[:count], fmt
            with np.errstate(all="raise"):
                got = operation(*arguments)
            assert_same_bits(got, by_the_long_way(operation, *arguments))


NARROW = {name for name, fmt in ALL.items() if fmt.precision <= 11 and fmt.fits(FP32)}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST))
        for n in sorted(NARROW)
    ],
)
def test_float32_operands_give_the_bits_of_float64_and_none_waits_for_another(name):
    """They are computed in float32 where no result leaves its range, nor what a sum loses."""
    fmt = ALL[name]
    rng = np.random.default_rng(2)
    x = decode(np.arange(1 << min(fmt.bits, 16)).astype(code_dtype(fmt)), fmt)
    x = x[np.isfinite(x) & (np.abs(x) <= fmt.max_finite)]
    ordinary = x[(x == 0) | (np.abs(x) >= 2.0**-50) & (np.abs(x) < 2.0**60)]
    for numbers in (x, ordinary):
        a, b, c = rng.choice(numbers, (3, 6000))
        opposite, cancelling = 0.0 - a, 0.0 - multiply(a, b, fmt)
        half = np.arange(6000) % 2 == 0
        c = np.where(half & np.isin(cancelling, numbers), cancelling, c)
        b = np.where(~half & np.isin(opposite, numbers), opposite, b)
        for operation, count in OPERATIONS.items():
            wide = (a, b, c)[:count]
            narrow = [part.astype(np.float32) for part in wide]
            with np.errstate(all="raise"):
                assert_same_bits(operation(*narrow, fmt), operation(*wide, fmt))
            if operation in (add, subtract, multiply, fma) and numbers is ordinary:
                assert steps.take(operation.__name__, fmt, *narrow) is not None


@pytest.mark.parametrize("operation", [add, fma])
def test_operands_of_several_kinds_are_taken_or_refused_as_one_by_one(
    operation, by_the_long_way
):
    """A second try of float32 operands took what the checks refuse."""
    x = np.array([1, 2, 3], np.float32)
    rest = [x] * (OPERATIONS[operation] - 2)
    masked = np.ma.array(x, mask=[0, 1, 0])
    for other in (1.5, 2, [1, 2, 3], np.float64(0.5), np.arange(3), x[0], Fraction(1)):
        for pair in ((x, other), (other, x)):
            got = operation(*pair, *rest, FP16)
            assert_same_bits(got, by_the_long_way(operation, *pair, *rest, FP16))
    for other in (x > 1, masked, x + 0j, "one", x.astype(object) / 3):
        for pair in ((x, other), (other, x)):
            with pytest.raises((TypeError, ValueError)) as found:
                operation(*pair, *rest, FP16)
            with pytest.raises((TypeError, ValueError)) as expected:
                by_the_long_way(operation, *pair, *rest, FP16)
            assert str(found.value) == str(expected.value)


def test_what_is_no_value_is_refused_alike(by_the_long_way):
    for fmt, x in ((FP16, 0.1), (FP8_E4M3, np.inf), (FP4_E2M1, 7.0), (FP16, 2.0**-149)):
        for dtype in (np.float32, np.float64):
            given = np.ones(20, dtype)
            given[7] = x
            for call in (
                lambda g=given, f=fmt: encode(g, f),
                lambda g=given, f=fmt: add(g, np.ones_like(g), f),
                lambda g=given, f=fmt: fma(np.ones_like(g), np.ones_like(g), g, f),
                lambda g=given, f=fmt: require_values("dot", "a", g, f),
            ):
                with pytest.raises(ValueError, match="must hold values of") as found:
                    call()
                with pytest.raises(ValueError, match="must hold values of") as expected:
                    by_the_long_way(call)
                assert str(found.value) == str(expected.value)
    for codes in (np.array([16], np.uint8), np.array([-1])):
        with pytest.raises(ValueError, match=r"^decode: codes must lie in 0 \.\. 0xF"):
            decode(codes, FP4_E2M1)
    with pytest.raises(ValueError, match=r"0 \.\. 0x7FFFF"):
        decode(np.array([1 << 19], np.uint32), TF32)
    assert add(0.5, 0.25, FP16) == 0.75
    assert encode(0.1, FP64) == 0x3FB999999999999A


def test_special_numbers_raise_no_flag_that_numpy_would_warn_of():
    for dtype in (np.float64, np.float32):
        ends = np.array([0.0, -0.0, np.inf, -np.inf, -1.0], dtype)
        x = np.append(not_a_numbers(dtype)[0], ends)
        pairs = [part.ravel() for part in np.meshgrid(x, x)]
        with np.errstate(all="raise"):
            for size in (*range(1, 9), x.size**2):
                a, b = (np.resize(part, size) for part in pairs)
                for operation, count in OPERATIONS.items():
                    operation(*(a, b, a)[:count], FP16)


def test_a_wrong_number_of_one_thread_is_never_a_result_of_it():
    """All threads count in one place."""
    right = np.ones(5000)
    wrong = np.where(np.arange(5000) == 4000, 0.1, right)
    missed = []

    def work(x):
        for _ in range(200):
            try:
                encode(x, FP16)
            except ValueError:
                missed.append(x is not wrong)
            else:
                missed.append(x is not right)

    workers = [threading.Thread(target=work, args=(x,)) for x in 2 * [right, wrong]]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert missed == 800 * [False]
