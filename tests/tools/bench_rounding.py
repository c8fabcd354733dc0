"""What rounding costs, beside a copy and beside other libraries.

All contenders of one size run in turn, round after round, in one process; a row is the
median over rounds of the CPU time on one thread, and the median of its ratio to the
copy of the same round. What takes long is timed once, and set against the median copy.
Other libraries go to the format and back to float32, each as a user would.
"""

import os
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from turns import compared, in_turn, lap

from mplab.common.tables import Table
from mplab.numbers import threads
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, Rounding
from mplab.numbers.rounding import Stream, Tally, round_to

FORMATS = (FP16, BF16, FP8_E4M3, FP8_E5M2)

BLOCK = 10**8
"""Elements of one call; more are rounded block after block, which spares memory."""

THREADED = 10**7
"""Elements rounded on all cores."""

_SLOW = 0.05
"""Seconds of a call that is timed once, though it ran before."""

_LONG = 0.5
"""Seconds of a call that has no second one."""

_TURN = 1e-3
"""Seconds of a turn: short calls are repeated in it."""

_GFLOAT = 10**7
"""The most elements that gfloat is given: it takes 100 ns and as many bytes for each."""


class Row(NamedTuple):
    """One contender at one size: medians of CPU time, and of the ratio to the round's copy."""

    name: str
    fmt: str
    size: int
    nanoseconds: float
    ratio: float


def ours(x, out, wide, wide_out, fmt):
    """This library's rows."""
    into = partial(round_to, x, fmt, out=out)
    yield "round_to, out=", into
    yield "round_to", partial(round_to, x, fmt)
    yield "  toward zero", partial(into, rounding=Rounding.TOWARD_ZERO)
    yield "  toward positive", partial(into, rounding=Rounding.TOWARD_POSITIVE)
    yield "  stochastic", partial(into, rounding=Rounding.STOCHASTIC, stream=Stream(0))
    yield "  with tally", partial(into, tally=Tally())
    yield "  from float64", partial(round_to, wide, fmt, out=wide_out)


def peers(x, fmt):
    """The same rounding, ties to even, by other libraries."""
    name = "NumPy" if fmt is FP16 else "ml_dtypes"
    yield f"{name} astype", lambda: x.astype(fmt.dtype).astype(np.float32)
    tensor = torch.from_numpy(x)
    yield "torch to", lambda: tensor.to(fmt.torch_dtype).to(torch.float32)


def gfloat_peer(x, fmt):
    """The same rounding by gfloat; raises ImportError where it is not installed."""
    import gfloat
    from gfloat import formats

    names = ("binary16", "bfloat16", "ocp_e4m3", "ocp_e5m2")
    info = getattr(formats, f"format_info_{names[FORMATS.index(fmt)]}")
    return lambda: gfloat.round_ndarray(info, x)


def numbers(size):
    """Standard normal float32 numbers, which repeat after a million."""
    some = np.random.default_rng(0).standard_normal(min(size, 10**6)).astype(np.float32)
    return np.resize(some, size)


def contenders(size):
    """Everything to be measured at one size, and why gfloat cannot be, if so.

    Past `BLOCK` each block has numbers of its own, but shares with the others where the results
    go, and the float64.
    """
    x = numbers(size)
    first = x[:BLOCK]
    wide = first.astype(np.float64)
    shared = first.copy(), wide, wide.copy()  # no page is new to its first contender
    blocks = [_of_block(x[i : i + BLOCK], *shared) for i in range(0, size, BLOCK)]
    found, missing = blocks[0]
    if len(blocks) > 1:
        found = {
            key: partial(_one_by_one, [calls[key] for calls, _ in blocks])
            for key in found
        }
    return found, missing


def _one_by_one(calls):
    for call in calls:
        call()


def _of_block(x, out, wide, wide_out):
    found, missing = {}, ""
    found["copy", ""] = partial(np.copyto, out, x)
    found["copy float64", ""] = partial(np.copyto, wide_out, wide)
    for fmt in FORMATS:
        for name, call in (*ours(x, out, wide, wide_out, fmt), *peers(x, fmt)):
            found[name, fmt.name] = call
        if x.size <= _GFLOAT:
            try:
                found["gfloat", fmt.name] = gfloat_peer(x, fmt)
            except ImportError as error:
                missing = f"{error}; pip install gfloat"
    return found, missing


def fits(size):
    """Whether the machine has the memory for a size, and as much again."""
    wanted = 4 * size + 30 * min(size, BLOCK)
    try:
        return 2 * wanted <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system says
        return size <= BLOCK


def measure(size, *, rounds, seconds):
    """Measure every contender in turn, `rounds` times or for about `seconds`, at least 3 times."""
    for call in contenders(1)[0].values():
        call()  # compiles what is not
    found, missing = contenders(size)
    times = {key: [lap(call)] for key, call in found.items()}
    for key, call in found.items():
        # Else it counts; a first call may have asked for memory.
        if times[key][0] < _LONG:
            times[key] = [lap(call)]
    quick = {key: call for key, call in found.items() if times[key][0] < _SLOW}
    repeats = {key: max(1, int(_TURN / max(1e-6, times[key][0]))) for key in quick}
    times |= in_turn(quick, rounds=rounds, seconds=seconds, repeats=repeats, warm=0)
    rows = []
    for name, fmt in found:
        taken, copies = (
            times[name, fmt],
            times["copy float64" if "float64" in name else "copy", ""],
        )
        if len(taken) != len(copies):
            taken, copies = [median(taken)], [median(copies)]
        typical, ratio = compared(taken, copies)
        rows.append(Row(name, fmt, size, 1e9 * typical / size, ratio))
    return rows, missing


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


def table(rows):
    """The rows of one size as text: nanoseconds per element, and the ratio to the copy."""
    cells = {
        (row.name, row.fmt): f"{row.nanoseconds:8.3f} {row.ratio:6.2f}x" for row in rows
    }
    names = dict.fromkeys(row.name for row in rows if row.fmt)
    rest = [""] * (len(FORMATS) - 1)  # a copy has no format
    lines = [(name, cells[name, ""], *rest) for name in ("copy", "copy float64")]
    lines += [
        (name, *(cells.get((name, fmt.name), "") for fmt in FORMATS)) for name in names
    ]
    caption = f"{rows[0].size:,} elements: CPU ns per element, and ratio to a copy"
    return repr(
        Table(caption, ("", *(f"{fmt.name:>16}" for fmt in FORMATS)), tuple(lines))
    )
