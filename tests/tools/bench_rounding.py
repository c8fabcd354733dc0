"""What rounding costs, beside a copy.

All contenders of one size run in turn, round after round, in one process; a row is the
median over rounds of the CPU time on one thread, and the median of its ratio to the
copy of the same round. Other libraries stand in `bench_peers`.
"""

from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
from turns import compared, in_turn, lap

from mplab.numbers import threads
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, Rounding
from mplab.numbers.options import Stream, Tally
from mplab.numbers.rounding import round_to

FORMATS = (FP16, BF16, FP8_E4M3, FP8_E5M2)

THREADED = 10**7
"""Elements rounded on all cores."""

_TURN = 1e-3
"""Seconds of a turn: short calls are repeated in it."""


def numbers(size):
    """Standard normal float32 numbers, which repeat after a million."""
    some = np.random.default_rng(0).standard_normal(min(size, 10**6)).astype(np.float32)
    return np.resize(some, size)


def contenders(size):
    """Everything to be measured at one size, by name and format."""
    x = numbers(size)
    out = x.copy()
    wide = x.astype(np.float64)
    wide_out = wide.copy()
    found = {
        ("copy", ""): partial(np.copyto, out, x),
        ("copy float64", ""): partial(np.copyto, wide_out, wide),
    }
    for fmt in FORMATS:
        into = partial(round_to, x, fmt, out=out)
        ways = {
            "round_to, out=": into,
            "round_to": partial(round_to, x, fmt),
            "  toward zero": partial(into, rounding=Rounding.TOWARD_ZERO),
            "  toward positive": partial(into, rounding=Rounding.TOWARD_POSITIVE),
            "  stochastic": partial(
                into, rounding=Rounding.STOCHASTIC, stream=Stream(0)
            ),
            "  with tally": partial(into, tally=Tally()),
            "  from float64": partial(round_to, wide, fmt, out=wide_out),
        }
        found |= {(name, fmt.name): call for name, call in ways.items()}
    return found


def measure(size, *, rounds, seconds):
    """Measure every contender in turn, `rounds` times or for about `seconds`, at least 3 times.

    A row is the time of an element, and its ratio to the copy.
    """
    found = contenders(size)
    for call in found.values():
        call()  # compiles what is not
    repeats = {
        key: max(1, int(_TURN / max(1e-6, lap(call)))) for key, call in found.items()
    }
    times = in_turn(found, rounds=rounds, seconds=seconds, repeats=repeats)
    rows = []
    for name, fmt in found:
        copies = times["copy float64" if "float64" in name else "copy", ""]
        row = compared(name, fmt, times[name, fmt], copies)
        rows.append(row._replace(seconds=row.seconds / size))
    return rows


def measure_threaded(*, rounds):
    """Wall nanoseconds per element on all cores: a copy cut into pieces, and `round_to`."""
    x = numbers(THREADED)
    out = np.empty_like(x)

    def copy_piece(begin, end):
        np.copyto(out[begin:end], x[begin:end])

    calls = {"copy": lambda: threads.parallel(copy_piece, THREADED, wrap=THREADED + 1)}
    calls |= {fmt.name: partial(round_to, x, fmt, out=out) for fmt in FORMATS}
    times = in_turn(calls, rounds=rounds, clock=perf_counter)
    return {name: 1e9 * median(taken) / THREADED for name, taken in times.items()}
