"""Stochastic rounding with few random bits, and with those that the caller gives."""

import itertools
from fractions import Fraction

import gfloat.formats
import numpy as np
import pytest
import torch
from cases import assert_same_bits, breakpoints, sized
from oracle import random_array, table_of

import mplab
from mplab import FP8_E4M3, FP16, arithmetic, simulation
from mplab.numbers import Stream, Tally, events, round_to, set_threads, tally, tensors
from mplab.numbers.formats import Event, Overflow, Rounding, Tininess
from mplab.numbers.rounding import loop_options
from mplab.numbers.tensors import round_tensor

STOCHASTIC = {"rounding": Rounding.STOCHASTIC}


def given(random, bits):
    """Integers of some bits as a stream: at the top of the narrowest dtype that holds them."""
    width = next(width for width in (8, 16, 32) if width >= bits)
    return (np.asarray(random) << (width - bits)).astype(f"u{width // 8}")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name", sized(["FP8_E4M3", "FP16", "Binary8p1se", "MXINT8"], 16)
)
def test_given_bits_round_as_the_definition_says(name, dtype):
    fmt = mplab.FORMATS[name]
    x = breakpoints(fmt, dtype)[0][::3]
    place, rng = table_of(fmt).place(x), np.random.default_rng(0)
    for width, overflow in itertools.product((8, 16, 32), Overflow):
        bits = rng.integers(0, 2**width, x.size, f"u{width // 8}")
        bits[::5] = 2**width - 1  # which takes up all that the bits can
        random, rules = (
            bits.astype(np.int64) << (32 - width),
            {**STOCHASTIC, "overflow": overflow},
        )
        expected = place.round(Rounding.STOCHASTIC, overflow, random).astype(dtype)
        assert_same_bits(round_to(x, fmt, stream=bits, **rules), expected, x)
        raised = place.events(Rounding.STOCHASTIC, overflow, Tininess.AFTER, random)
        got, number = events(x, fmt, stream=bits, **rules), ~np.isnan(x)
        assert_same_bits(got[number], raised[number], x[number])
        counts = Tally()
        round_to(x, fmt, stream=bits, tally=counts, out=x.copy(), **rules)
        assert counts == tally(x, fmt, stream=bits, **rules)
        assert counts.overflow == int((raised & Event.OVERFLOW != 0).sum())


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 10])
def test_over_all_values_of_few_bits_the_mean_is_the_number_cut_to_them(bits):
    rng, every = np.random.default_rng(bits), np.arange(2**bits)
    cases = (FP8_E4M3, 1.0, 2.0**-3), (FP16, 2.0**-24, 2.0**-24), (FP16, 0, 2.0**-24)
    for fmt, low, gap in cases:
        for part in (2**bits - 1, *rng.integers(0, 2**bits, 5)):
            for rest in (0.0, 2.0**-12, 1 - 2.0**-12):
                for sign in (1, -1):
                    x = sign * (low + gap * (part + rest) / 2**bits)
                    got = round_to(
                        np.full(every.size, x),
                        fmt,
                        stream=given(every, bits),
                        **STOCHASTIC,
                    )
                    mean = sum(map(Fraction, got.tolist())) / every.size
                    cut = Fraction(low) + Fraction(gap) * int(part) / 2**bits
                    assert mean == sign * cut
                    assert 0 <= abs(Fraction(x)) - abs(mean) < Fraction(gap) / 2**bits


@pytest.mark.parametrize("bits", [1, 3, 8, 16, 31, 32])
def test_a_stream_of_few_bits_gives_the_first_of_the_thirty_two(bits):
    x = np.random.default_rng(0).uniform(-3, 3, 5000)
    random = random_array(7, 2, x.size) >> (32 - bits)
    stream = Stream(7, calls=2, bits=bits)
    got = round_to(x, FP8_E4M3, stream=stream, **STOCHASTIC)
    assert_same_bits(
        got, round_to(x, FP8_E4M3, stream=given(random, bits), **STOCHASTIC)
    )
    assert repr(stream) == f"Stream(7, calls=3{f', bits={bits}' if bits < 32 else ''})"


def test_few_bits_are_the_srff_of_gfloat():
    """Which it calls StochasticFastest."""
    theirs = gfloat.formats.format_info_ocp_e4m3
    x = np.random.default_rng(0).uniform(-500, 500, 200) * 2.0 ** np.arange(
        -20, 0
    ).repeat(10)
    x = x.astype(np.float32).astype(np.float64)
    for random in range(8):
        expected = [
            gfloat.round_float(
                theirs,
                a,
                gfloat.RoundMode.StochasticFastest,
                srbits=random,
                srnumbits=3,
            )
            for a in x.tolist()
        ]
        stream = given(np.full(x.size, random), 3)
        assert_same_bits(
            round_to(x, FP8_E4M3, stream=stream, **STOCHASTIC), np.array(expected), x
        )


def test_few_bits_reach_sums_and_simulations():
    """One bit never takes a quarter of a gap up; thirty-two do for some."""
    terms = np.array([2048.0] + 200 * [0.5])
    x = torch.full((200,), 2048.5)
    for bits, stays in ((1, True), (32, False)):
        rules = {**STOCHASTIC, "stream": Stream(1, bits=bits)}
        assert (
            arithmetic.sum(terms, accumulator_format=FP16, **rules) == 2048
        ) == stays
        with simulation.simulated(FP16, policy=simulation.EVERYTHING, **rules):
            assert bool((x + 0.0 == 2048).all()) == stays


@pytest.mark.parametrize("count", [1, 3])
def test_given_bits_do_not_depend_on_chunks_threads_or_layout(count):
    x = np.random.default_rng(0).uniform(-3, 3, 1_000_002).astype(np.float32)
    bits = np.random.default_rng(1).integers(0, 2**16, x.size, np.uint16)
    # Not divided further.
    pieces = [slice(i, i + 100_000) for i in range(0, x.size, 100_000)]
    each = [
        round_to(x[piece], FP16, stream=bits[piece], **STOCHASTIC) for piece in pieces
    ]
    expected, before = np.concatenate(each), set_threads(count)
    assert_same_bits(round_to(x, FP16, stream=bits, **STOCHASTIC), expected)
    set_threads(before)
    assert_same_bits(
        round_to(x[::-1], FP16, stream=bits[::-1], **STOCHASTIC), expected[::-1]
    )
    numbers, random = x.reshape(-1, 2).T, bits.reshape(-1, 2).T
    for order in ("<u2", ">u2"):
        got = round_to(numbers, FP16, stream=random.astype(order), **STOCHASTIC)
        assert_same_bits(got, expected.reshape(-1, 2).T)
    for stream in (random, torch.from_numpy(random.copy())):
        got = round_tensor(
            torch.from_numpy(x).view(-1, 2).T, FP16, stream=stream, **STOCHASTIC
        )
        assert_same_bits(got.numpy(), expected.reshape(-1, 2).T)


def test_the_expression_for_devices_takes_given_bits():
    x, bits = np.linspace(-3, 3, 999, dtype=np.float32), np.arange(999).astype(np.uint8)
    how = loop_options("test", FP8_E4M3, x.dtype, x.shape, stream=bits, **STOCHASTIC)
    result = torch.empty(999)
    tensors._run_expression(torch.from_numpy(x), result, **how)
    assert_same_bits(result.numpy(), round_to(x, FP8_E4M3, stream=bits, **STOCHASTIC))


@pytest.mark.parametrize("call", [round_to, events, tally])
def test_bits_of_another_kind_or_shape_are_refused(call):
    said = rf"^{call.__name__}: stream must be a Stream .*uint8, .* shape \(3,\); got"
    kinds = [np.zeros(3, dtype) for dtype in (np.int64, np.uint64, bool, float)]
    odd = (
        np.zeros(2, np.uint8),
        np.zeros((3, 1), np.uint8),
        np.ma.array([1, 2, 3], np.uint8),
    )
    for bits in (*odd, *kinds, torch.zeros(3, dtype=torch.uint8), [1, 2, 3]):
        with pytest.raises(ValueError, match=said):
            call(np.ones(3), FP16, stream=bits, **STOCHASTIC)


def test_a_stream_of_other_than_1_to_32_bits_is_refused():
    for bits in (0, 33, -1, 1.0, None, "8", 10**400):
        with pytest.raises((TypeError, ValueError)):
            Stream(5, bits=bits)
