import itertools
import math
from functools import partial

import cases
import numpy as np
import pytest
import torch
from cases import (
    DTYPES,
    RULES,
    SMALL,
    TABLED,
    assert_same_bits,
    breakpoints,
    formats,
    stream_for,
)
from exhaustive import REFERENCED, compare
from hypothesis import assume, given, strategies as st
from oracle import events_of, random_array, round_fraction, table_of

from mplab import (
    BF16,
    FORMATS,
    FP8_E4M3,
    FP8_E5M2,
    FP8_E8M0,
    FP16,
    FP32,
)
from mplab.arithmetic import add, sum as long_sum
from mplab.numbers import Stream, Tally, events, round_to, tally
from mplab.numbers.formats import Event, Overflow, Rounding, Tininess
from mplab.numbers.options import COUNTED
from mplab.numbers.parameters import rounding_parameters
from mplab.numbers.tensors import round_tensor
from mplab.simulation import simulated

NEAREST = (Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY)
# Every value, every midpoint and their neighbours --------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", cases.sized(TABLED, fast=[n for n in TABLED if n != "BF16"])
)
def test_breakpoints_round_as_the_definition_says(name, dtype, record_property):
    fmt = TABLED[name]
    table = table_of(TABLED[name])
    # Then there is nothing to round from, and the library knows.
    if not cases.holds(fmt, dtype):
        assert rounding_parameters(fmt, np.dtype(dtype)) is None
        return
    x, _ = breakpoints(fmt, dtype)
    place = table.place(x)
    random = random_array(7, 0, x.size)
    options = cases.FLUSHES if name in SMALL else cases.FLUSHES[:1]
    for (rounding, overflow), flush in itertools.product(RULES, options):
        rules = {"rounding": rounding, "overflow": overflow, **flush}
        got = round_to(x, fmt, stream=stream_for(rounding), **rules)
        expected = place.round(random=random, **rules)
        assert_same_bits(got, expected.astype(dtype), x)
    record_property("comparisons", x.size * len(RULES) * len(options))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", cases.sized(TABLED))
def test_events_and_tallies_are_those_of_the_definition(name, dtype, record_property):
    fmt = TABLED[name]
    table = table_of(TABLED[name])
    x, signaling = breakpoints(fmt, dtype)
    if fmt.bits > 16:
        x, signaling = (
            x[cases.near_the_ends(x, fmt)],
            signaling[cases.near_the_ends(x, fmt)],
        )
    place = table.place(x)
    random = random_array(7, 0, x.size)
    options = cases.FLUSHES if name in SMALL else cases.FLUSHES[:1]
    for (rounding, overflow), flush in itertools.product(RULES, options):
        rules = {"rounding": rounding, "overflow": overflow, **flush}
        for tininess in Tininess:
            got = events(
                x, fmt, stream=stream_for(rounding), tininess=tininess, **rules
            )
            expected = place.events(
                tininess=tininess, random=random, signaling=signaling, **rules
            )
            assert_same_bits(got, expected, x)
            if tininess is Tininess.AFTER:
                result = place.round(random=random, **rules)
                numbers = x if cases.holds(fmt, dtype) else place.x
                counts = tally(numbers, fmt, stream=stream_for(rounding), **rules)
                assert counts == tally_by_definition(place.x, result, expected, fmt)
    record_property("comparisons", 2 * x.size * len(RULES) * len(options))


def tally_by_definition(x, result, raised, fmt):
    """The predicates of `COUNTED`."""
    number = ~np.isnan(x)
    size = np.abs(result)
    predicates = {
        "total": np.ones(x.shape, bool), "exact": number & (result == x),
        "inexact": number & (result != x), "underflow": raised & Event.UNDERFLOW != 0,
        "flushed": number & (x != 0) & (result == 0),
        "subnormal": (size > 0) & (size < fmt.min_normal), "overflow": raised & Event.OVERFLOW != 0,
        "nan": ~number, "infinite": np.isinf(x),
    }  # fmt: skip
    assert predicates.keys() == COUNTED.keys()
    return Tally(**{name: int(met.sum()) for name, met in predicates.items()})


@pytest.mark.parametrize("name", cases.sized(cases.WIDER))
def test_wide_formats_round_as_fractions_say(name, record_property):
    fmt = cases.WIDER[name]
    x = cases.directed(cases.WIDER[name])
    with np.errstate(all="ignore"):
        narrow = np.unique(x.astype(np.float32))[::5]
    inputs = {np.float64: x} | (
        {np.float32: narrow} if name in ("FP32", "E7M23") else {}
    )
    for (dtype, numbers), (rounding, overflow) in itertools.product(
        inputs.items(), RULES
    ):
        rules = {"rounding": rounding, "overflow": overflow}
        random = random_array(7, 0, numbers.size).tolist()
        pairs = zip(numbers.tolist(), random, strict=True)
        expected = [round_fraction(a, fmt, random=r, **rules) for a, r in pairs]
        got = round_to(numbers, fmt, stream=stream_for(rounding), **rules)
        assert_same_bits(got, np.array(expected, dtype), numbers)
    record_property("comparisons", x.size * len(RULES) * len(inputs))


@pytest.mark.parametrize("name", cases.sized(cases.WIDER))
def test_wide_formats_raise_the_events_of_fractions(name):
    fmt = cases.WIDER[name]
    x = cases.directed(cases.WIDER[name])
    x = x[~np.isnan(x) & cases.near_the_ends(x, fmt)]
    x = x[np.linspace(0, x.size - 1, 1000).astype(int)]
    random = random_array(7, 0, x.size).tolist()
    for rounding, overflow, tininess in itertools.product(Rounding, Overflow, Tininess):
        rules = {"rounding": rounding, "overflow": overflow, "tininess": tininess}
        pairs = zip(x.tolist(), random, strict=True)
        expected = [events_of(a, fmt, random=r, **rules) for a, r in pairs]
        got = events(x, fmt, stream=stream_for(rounding), **rules)
        assert_same_bits(got, np.array(expected, np.uint8), x)


def test_fp32_from_float64_is_numpys_cast_in_every_exponent():
    rng = np.random.default_rng(2)
    bits = (np.arange(2048, dtype=np.uint64) << 52)[:, None] + rng.integers(
        0, 2**52, (2048, 200), np.uint64
    )
    ties = (bits >> 29 << 29) + (2**28 + rng.integers(-1, 2, bits.shape)).astype(
        np.uint64
    )
    x = np.concatenate([bits, ties, bits >> 29 << 29]).view(np.float64).ravel()
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        cast = x.astype(np.float32).astype(np.float64)
    assert_same_bits(round_to(x, FP32), cast, x)


UNDER_FLUSHING = """
import numpy as np, torch
from cases import *
from oracle import *
from mplab import Tininess, events, round_to

known = []
for fmt in TABLED.values():
    table = table_of(fmt)
    for dtype in DTYPES:
        x, signaling = breakpoints(fmt, dtype)
        ends = near_the_ends(x, fmt)
        x, signaling = x[ends], signaling[ends]
        place, random = table.place(x), random_array(7, 0, x.size)
        for rounding, overflow in RULES if holds(fmt, dtype) else ():
            expected = place.round(rounding, overflow, random).astype(dtype)
            raised = place.events(rounding, overflow, Tininess.AFTER, random, signaling=signaling)
            known.append((fmt, x, rounding, overflow, expected, raised))
numbers = directed(FP32)
numbers = numbers[~np.isnan(numbers)]
for rounding in Rounding:
    rules = {"rounding": rounding, "overflow": Overflow.IEEE}
    pairs = zip(numbers.tolist(), random_array(7, 0, numbers.size).tolist())
    expected = np.array([round_fraction(a, FP32, random=r, **rules) for a, r in pairs])
    raised = np.array([
        events_of(a, FP32, random=r, tininess=Tininess.AFTER, **rules)
        for a, r in zip(numbers.tolist(), random_array(7, 0, numbers.size).tolist())
    ], np.uint8)
    known.append((FP32, numbers, rounding, Overflow.IEEE, expected, raised))
assert torch.set_flush_denormal(True)
assert np.array([5e-324])[0] * 1.0 == 0.0 == np.array([1e-40], np.float32)[0] * np.float32(1)
total = 0
for fmt, x, rounding, overflow, expected, raised in known:
    rules = {"rounding": rounding, "overflow": overflow}
    assert_same_bits(round_to(x, fmt, stream=stream_for(rounding), **rules), expected)
    assert_same_bits(events(x, fmt, stream=stream_for(rounding), **rules), raised)
    total += x.size
print(total)
"""


@pytest.mark.full
def test_breakpoints_round_alike_where_the_processor_flushes_subnormals(
    record_property,
):
    record_property("comparisons", int(cases.run_script(UNDER_FLUSHING)))


@pytest.mark.full
@pytest.mark.parametrize("name", REFERENCED)
def test_every_float32_rounds_as_another_library_casts_it(name, record_property):
    found = compare(REFERENCED[name])
    record_property("inputs", found.inputs)
    assert found.differences == 0


# Choices that deserve a sentence each --------------------------------------------------


def test_a_number_that_becomes_nan_is_tallied_as_inexact():
    counts = tally(np.array([-1.0, -np.inf]), FP8_E8M0)
    assert counts == Tally(total=2, inexact=2, infinite=1)


@pytest.mark.parametrize(
    "name", ["FP16", "FP8_E4M3", "FP4_E2M1", "FP8_E8M0", "E9M3", "E5M10_LOW"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_signaling_nans_raise_invalid_and_quiet_ones_do_not(name, dtype):
    nans, signaling = cases.not_a_numbers(dtype)
    fmt = TABLED[name]
    assert np.isnan(round_to(nans, fmt)).all()
    assert_same_bits(events(nans, fmt), (signaling * Event.INVALID).astype(np.uint8))
    assert tally(nans, fmt) == Tally(total=nans.size, nan=nans.size)


# Rounding to odd -----------------------------------------------------------------------

DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


def through(wide, narrow, x, mode, on_the_way=Rounding.TO_ODD):
    """How many numbers become another value of `narrow` if they enter `wide` first."""
    twice = round_to(round_to(x, wide, rounding=on_the_way), narrow, rounding=mode)
    return differences(twice, round_to(x, narrow, rounding=mode))


@pytest.mark.parametrize(
    "fmt", [FP16, BF16, FP8_E4M3, FP8_E5M2], ids=lambda fmt: fmt.name
)
def test_fp32_to_odd_on_the_way_from_float64_costs_no_second_rounding(fmt):
    x = breakpoints(fmt, np.float64)[0]
    for mode in DETERMINISTIC:
        assert through(FP32, fmt, x, mode) == 0
    assert through(FP32, fmt, x, NEAREST[0], NEAREST[0]) >= fmt.max_code


# Tallies -------------------------------------------------------------------------------


def test_tallies_add_and_go_through_dictionaries():
    one = tally(np.array([1e-9, np.nan]), FP16)
    other = tally(np.array([1e9, 1.0, np.inf]), FP16)
    both = one + other
    assert both == Tally(5, 2, 2, 1, 1, 0, 1, 1, 1)
    assert Tally(**both.as_dict()) == both
    assert both.total == both.exact + both.inexact + both.nan
    one += other
    assert one == both
    assert list(both.as_dict()) == list(COUNTED)


@pytest.mark.parametrize(
    "size", [0, 1, 7, 4095, 4096, 4097, 8192, 131072, 262143, 262144, 300001]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tally_is_the_sum_of_events_across_blocks_and_chunks(size, dtype):
    rng = np.random.default_rng(size)
    x = (rng.standard_normal(size) * 2.0 ** rng.integers(-30, 20, size)).astype(dtype)
    x[::97], x[5::101], x[3::89] = np.nan, np.inf, 0.0
    counts = Tally(total=1)
    result = round_to(x, FP16, tally=counts)
    assert_same_bits(result, round_to(x, FP16))
    expected = tally_by_definition(x, result, events(x, FP16), FP16)
    assert counts == expected + Tally(total=1)
    assert tally(x, FP16) == expected


# Laws ----------------------------------------------------------------------------------


def rounded(x, fmt, rules):
    return float(round_to(x, fmt, stream=stream_for(rules["rounding"]), **rules))


@given(cases.roundings(), st.floats())
def test_rounding_is_monotone(case, other):
    x, fmt, rules = case
    for y in (other, math.nextafter(x, math.inf), x * 1.01):
        low, high = sorted([x, y])
        below = rounded(low, fmt, rules)
        above = rounded(high, fmt, rules)
        assert not below > above


@given(st.lists(st.floats(width=32), min_size=1, max_size=9), formats, cases.rules)
def test_float32_and_float64_input_give_the_same_result(numbers, fmt, rules):
    x = np.array(numbers, np.float32)
    stream = stream_for(rules["rounding"])
    wide = round_to(x.astype(np.float64), fmt, stream=stream, **rules)
    with np.errstate(over="ignore"):
        assume(((wide.astype(np.float32) == wide) | np.isnan(wide)).all())
    narrow = round_to(x, fmt, stream=stream_for(rules["rounding"]), **rules)
    assert_same_bits(narrow.astype(np.float64), wide, x)


# Agreement with others -----------------------------------------------------------------

CAST = [
    f for f in FORMATS.values() if f.dtype is not None and f not in (FP32, FP8_E8M0)
]


def cast(x, fmt):
    with np.errstate(all="ignore"):
        return x.astype(fmt.dtype).astype(x.dtype)


def inputs_for(fmt, dtype):
    """Breakpoints; without NaN where the format has none, which ml_dtypes casts to −0."""
    x = breakpoints(fmt, dtype)[0]
    return x if fmt.has_nan else x[~np.isnan(x)]


@pytest.mark.parametrize("fmt", CAST, ids=lambda fmt: fmt.name)
def test_numpy_and_ml_dtypes_casts_agree_from_float32_and_numpy_s_float16_from_float64(
    fmt,
):
    for dtype in (np.float32, np.float64) if fmt is FP16 else (np.float32,):
        x = inputs_for(fmt, dtype)
        assert_same_bits(round_to(x, fmt), cast(x, fmt), x)


def differences(one, other):
    return int(((one != other) & ~(np.isnan(one) & np.isnan(other))).sum())


def test_a_stream_is_refused_where_it_would_do_nothing():
    x = np.array([0.1])
    how = {"stream": Stream(1)}
    calls = [
        *(partial(f, x, FP8_E4M3, **how) for f in (round_to, tally, events)),
        partial(round_tensor, torch.tensor(x), FP8_E4M3, **how),
        partial(add, 0.5, 0.5, FP8_E4M3, **how),
        partial(long_sum, [0.5], accumulator_format=FP8_E4M3, **how),
        partial(simulated, FP8_E4M3, **how),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"stream must be None without Rounding\.STOCHASTIC"
        ):
            call()
