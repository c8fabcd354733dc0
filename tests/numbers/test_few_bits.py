"""Stochastic rounding with few random bits, as hardware has them."""

import numpy as np
import pytest
import torch
from cases import assert_same_bits, breakpoints
from oracle import random_array, table_of

from mplab import FP8_E4M3, FP16, Overflow, Rounding, Stream, arithmetic, round_to
from mplab.simulation import EVERYTHING, simulated

STOCHASTIC = {"rounding": Rounding.STOCHASTIC}


@pytest.mark.parametrize("bits", [1, 3, 8, 16, 31, 32])
def test_a_stream_of_few_bits_takes_the_first_of_the_thirty_two(bits):
    for fmt in (FP8_E4M3, FP16):
        x = breakpoints(fmt, np.float64)[0][::3]
        random = random_array(7, 2, x.size) >> (32 - bits) << (32 - bits)
        stream = Stream(7, calls=2, bits=bits)
        want = (
            table_of(fmt)
            .place(x)
            .round(overflow=Overflow.IEEE, random=random, **STOCHASTIC)
        )
        assert_same_bits(round_to(x, fmt, stream=stream, **STOCHASTIC), want, x)
    assert repr(stream) == f"Stream(7, calls=3{f', bits={bits}' if bits < 32 else ''})"


def test_few_bits_reach_sums_and_simulations():
    """One bit never takes a quarter of a gap up; thirty-two do for some."""
    terms = np.array([2048.0] + 200 * [0.5])
    x = torch.full((200,), 2048.5)
    for bits, stays in ((1, True), (32, False)):
        rules = {**STOCHASTIC, "stream": Stream(1, bits=bits)}
        total = arithmetic.sum(terms, accumulator_format=FP16, **rules)
        assert (total == 2048) == stays
        with simulated(FP16, policy=EVERYTHING, **rules):
            assert bool((x + 0.0 == 2048).all()) == stays
