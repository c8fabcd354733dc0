"""What the oracle judges: formats, options, and the inputs at which anything can change."""

import itertools
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from oracle import table_of

from mplab import (
    FORMATS,
    FP32,
    Format,
    Overflow,
    Rounding,
    Specials,
    Stream,
    round_to,
    ulp,
)
from mplab.common.files import course_folder

GUIDE = course_folder("lessons").joinpath("README.md").read_text(encoding="utf-8")
_RUNS = re.findall(
    r"(\d+)(?: to (\d+))?", re.search(r"Lessons (.*) need no PyTorch", GUIDE)[1]
)
LESSONS_WITHOUT_TORCH = [
    n for low, high in _RUNS for n in range(int(low), int(high or low) + 1)
]
"""As the guide names them."""

DTYPES = (np.float32, np.float64)
RULES = list(itertools.product(Rounding, Overflow))
FLUSHES = [
    {"flush_inputs": i, "flush_outputs": o}
    for i, o in itertools.product((False, True), repeat=2)
]

# Formats ---------------------------------------------------------------------------------

NO_ZERO = {"has_zero": False, "specials": Specials.NAN_ALL_ONES}
ODD_FORMATS = {fmt.name: fmt for fmt in (
    Format("E5M3", exponent_bits=5, precision=4, specials=Specials.NONE),
    Format("E2M1_IEEE", exponent_bits=2, precision=2),
    Format("E3M1", exponent_bits=3, precision=2, specials=Specials.NAN_ALL_ONES),
    Format("E5M0", exponent_bits=5, precision=1, specials=Specials.NONE),
    Format("E4M0", exponent_bits=4, precision=1, specials=Specials.NAN_ALL_ONES),
    Format("E3M0", exponent_bits=3, precision=1, specials=Specials.NAN_NEGATIVE_ZERO),
    Format("E8M0_ZERO", exponent_bits=8, precision=1, specials=Specials.NAN_ALL_ONES),
    Format("E1M3", exponent_bits=1, precision=4, specials=Specials.NONE),
    Format("E4M3_BIAS20", exponent_bits=4, precision=4, bias=20),
    Format("E4M3_BIAS-5", exponent_bits=4, precision=4, bias=-5),
    Format("E8M4", exponent_bits=8, precision=5),
    Format("E5M10_LOW", exponent_bits=5, precision=11, bias=121),
    Format("E4M6_LOWEST", exponent_bits=4, precision=7, bias=140),
    Format("E9M3", exponent_bits=9, precision=4),
    Format("E8M5_HIGH", exponent_bits=8, precision=6, bias=120),
    Format("E11M5", exponent_bits=11, precision=6),
    Format("UE4M4", exponent_bits=4, precision=5, signed=False),
    Format("UE5M2", exponent_bits=5, precision=3, signed=False, specials=Specials.NONE),
    Format("UE4M3_NOZERO", exponent_bits=4, precision=4, signed=False, **NO_ZERO),
)}  # fmt: skip
"""Formats that nobody ships, one for each corner of the definition."""

TABLED = {
    fmt.name: fmt
    for fmt in [*FORMATS.values(), *ODD_FORMATS.values()]
    if fmt.bits <= 20
}
SMALL = [name for name, fmt in TABLED.items() if fmt.bits <= 13]
WIDER = {fmt.name: fmt for fmt in (
    FP32, Format("E11M20", exponent_bits=11, precision=21),
    Format("E8M19", exponent_bits=8, precision=20, specials=Specials.NONE, bias=124),
    Format("E7M23", exponent_bits=7, precision=24, specials=Specials.NAN_ALL_ONES),
    Format("E7M24", exponent_bits=7, precision=25),
    Format("E9M20", exponent_bits=9, precision=21, signed=False),
)}  # fmt: skip
"""Formats of more than 20 bits, one for each path through the library."""


def stream_for(rounding):
    return Stream(7) if rounding is Rounding.STOCHASTIC else None


def holds(fmt, dtype):
    """Whether every value of the format is one of the dtype."""
    numbers = table_of(fmt).values
    with np.errstate(over="ignore", under="ignore"):
        return bool((numbers.astype(dtype).astype(np.float64) == numbers).all())


COMMON = (
    "FP16",
    "BF16",
    "FP8_E4M3",
    "FP8_E5M2",
    "FP8_E4M3FNUZ",
    "FP4_E2M1",
    "UE4M3_NOZERO",
)
"""Formats that stand for all where a case takes long: one of each kind of specials."""


def sized(names, least=17, fast=None):
    """Formats by name; those of `least` bits or more are for the slow tests, or all but `fast`.

    E5M10_LOW is slow too: FP16 has as many codes, and E4M6_LOWEST lies as low.
    """
    formats = {**TABLED, **WIDER}

    def is_slow(name):
        return (
            formats[name].bits >= least
            or name not in (fast or names)
            or name == "E5M10_LOW"
        )

    slow = pytest.mark.slow
    return [pytest.param(name, marks=slow if is_slow(name) else ()) for name in names]


# Inputs ----------------------------------------------------------------------------------


def _neighbours(a):
    zero = a.dtype.type(0)
    infinity = a.dtype.type(np.inf)
    return np.concatenate([a, np.nextafter(a, zero), np.nextafter(a, infinity)])


def not_a_numbers(dtype):
    """Quiet and signaling NaNs, with payloads at both ends, of both signs; and which signal."""
    integer, quiet, top = (
        (np.uint32, 1 << 22, 0x7F800000)
        if dtype == np.float32
        else (np.uint64, 1 << 51, 0x7FF0000000000000)
    )
    payloads = [quiet, quiet | 0x12345, 2 * quiet - 1, 1, quiet >> 1, quiet - 1]
    bits = np.array([top | p for p in payloads], integer)
    bits = np.concatenate(
        [bits, bits | np.array(1 << (8 * bits.itemsize - 1), integer)]
    )
    return bits.view(dtype), (bits & np.array(quiet, integer)) == 0


def breakpoints(fmt, dtype):
    """Every value and midpoint, their neighbours in float32 and float64, and what is special.

    Rounding is monotone, and constant between these, so they stand for all inputs. Quarter points
    are where tininess changes; the source's own subnormals are its narrow places.

    Returns:
        The inputs, and which of them are signaling NaNs.
    """
    table = table_of(fmt)
    values = table.values
    gaps = table.gaps
    limits = [np.finfo(t).max for t in DTYPES] + [np.finfo(t).tiny for t in DTYPES]
    floor = [2.0**e for e in (*range(-149, -120), -1074, -1060)]
    with np.errstate(over="ignore", under="ignore"):
        beyond = values[-1:] + gaps[-1:]
        inside = [values, values + gaps / 4, table.midpoints, values + gaps * 0.75]
        base = np.concatenate([*inside, beyond, limits, floor, [0.0, 1e300]])
        narrow = _neighbours(base.astype(np.float32))
        magnitudes = (
            narrow if dtype == np.float32 else np.append(_neighbours(base), narrow)
        )
    magnitudes = np.unique(np.abs(magnitudes))
    nans, signaling = not_a_numbers(dtype)
    x = np.concatenate([magnitudes, -magnitudes, nans])
    return x, np.append(np.zeros(2 * magnitudes.size, bool), signaling)


def directed(fmt):
    """float64 at values, midpoints and beside both, in every binade that matters to `fmt`."""
    rng = np.random.default_rng(1)
    p = fmt.precision
    ends = {*range(fmt.emin - p - 3, fmt.emin + 3), *range(fmt.emax - 1, fmt.emax + 3)}
    numbers = [0.0, 5e-324, 2.0**-1060, 2.0**-1022, 1.7976931348623157e308]
    for e in sorted(ends | {*range(fmt.emin, fmt.emax, 1 if fmt is FP32 else 17)}):
        kept = p if e >= fmt.emin else max(p - (fmt.emin - e), 0)  # bits that survive
        lost = 53 - kept
        heads = {
            2**52 >> lost,
            (2**53 - 1) >> lost,
            *((rng.integers(0, 2**52, 3) | 2**52) >> lost),
        }
        tails = {0, 1, 2**lost // 2 - 1, 2**lost // 2, 2**lost // 2 + 1, 2**lost - 1}
        for head, tail in itertools.product(heads, tails):
            if e - 52 >= -1074 and e <= 1023:
                numbers.append(math.ldexp((int(head) << lost) + tail, e - 52))
    x = np.unique(numbers)
    return np.concatenate([x, -x, [np.inf, -np.inf], not_a_numbers(np.float64)[0]])


def near_the_ends(x, fmt):
    """Where events change: below 4·min_normal, and above max_finite/4 with all that is special."""
    with np.errstate(invalid="ignore"):  # signaling NaNs
        size = np.abs(x).astype(np.float64)
    return ~((size > 4 * fmt.min_normal) & (size < fmt.max_finite / 4))


# Generated inputs ------------------------------------------------------------------------

formats = st.sampled_from([*FORMATS.values(), *ODD_FORMATS.values(), *WIDER.values()])
rules = st.fixed_dictionaries(
    {"rounding": st.sampled_from(Rounding), "overflow": st.sampled_from(Overflow)}
)


@st.composite
def near(draw, fmt):
    """A float64 in reach of the format, and often beside one of its values."""
    x = draw(st.floats(1, 2)) * 2.0 ** draw(
        st.integers(max(fmt.emin - fmt.precision - 2, -1022), min(fmt.emax + 1, 1023))
    )
    if draw(st.booleans()) and math.isfinite(x):
        x = float(round_to(x, fmt, rounding=Rounding.TOWARD_ZERO))
        x = draw(st.sampled_from([x, x + float(ulp(x, fmt)) / 2]))
        x = draw(
            st.sampled_from([x, math.nextafter(x, 0), math.nextafter(x, math.inf)])
        )
    return draw(st.sampled_from([x, -x]))


@st.composite
def roundings(draw, formats=formats):
    """A number, a format for it to enter, and how."""
    fmt = draw(formats)
    return draw(near(fmt)), fmt, draw(rules)


# Comparison ------------------------------------------------------------------------------


def assert_same_bits(got, expected, x=None):
    """Equal dtype, shape and bits, all NaNs being one; else the first differences."""
    got = np.asarray(got)
    expected = np.asarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    integer = np.dtype(f"u{got.itemsize}")
    one, other = (
        np.ascontiguousarray(a).view(integer).ravel() for a in (got, expected)
    )
    wrong = one != other
    if got.dtype.kind == "f":
        wrong &= ~(np.isnan(got) & np.isnan(expected)).ravel()
    where = np.flatnonzero(wrong)
    lines = [f"{where.size} of {one.size} differ"]
    for i in where[:5]:
        given = (
            ""
            if x is None
            else f"x = {x.flat[i].item()!r} ({float(x.flat[i]).hex()}), "
        )
        lines.append(
            f"[{i}] {given}expected {expected.flat[i].item()!r} (0x{other[i]:X}), "
            f"got {got.flat[i].item()!r} (0x{one[i]:X})"
        )
    if where.size:
        raise AssertionError("\n".join(lines))


def run_script(code, *, beside="", **options):
    """Run Python code in a process of its own that finds the library, the helpers and a test."""
    here = Path(__file__).parent
    environment = {**os.environ, **options.pop("env", {})}
    paths = [
        str(here.parents[1]), str(here), beside and str(Path(beside).parent),
        environment.get("PYTHONPATH", ""),
    ]  # fmt: skip
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
