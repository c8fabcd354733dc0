"""`mplab bench`: what rounding costs, beside a copy and beside other libraries.

All contenders of one size run in turn, round after round, in one process; a row is the
median over rounds of the CPU time on one thread, and the median of its ratio to the
copy of the same round. What takes long is timed once, and set against the median copy.
Other libraries go to the format and back to float32, each as a user would.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from mplab.hardware._timing import CPU_TIME, Call, compared, in_turn, lap
from mplab.numbers import threads
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, Format, Rounding
from mplab.numbers.rounding import Stream, Tally, round_to
from mplab.numbers.tables import Table

FORMATS = (FP16, BF16, FP8_E4M3, FP8_E5M2)

SIZES = tuple(10**k for k in range(9))

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
    """One contender at one size."""

    name: str
    fmt: str
    size: int
    nanoseconds: float
    """Median CPU time per element."""
    ratio: float
    """Median ratio to the copy of the same round."""


class Missing(NamedTuple):
    """A peer that cannot be measured here, and why."""

    name: str
    reason: str


Contenders = dict[tuple[str, str], Call]


class Arrays(NamedTuple):
    """Numbers of one call, and where results go: all contenders share them."""

    x: np.ndarray
    out: np.ndarray
    wide: np.ndarray
    wide_out: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> Arrays:
        """Those for float32 `x`."""
        wide = x.astype(np.float64)
        return cls(x, x.copy(), wide, wide.copy())  # no page is new to its first contender


def ours(arrays: Arrays, fmt: Format) -> Iterable[tuple[str, Call]]:
    """This library's rows."""
    x, out, wide, wide_out = arrays
    stream, counts = Stream(0), Tally()
    into = partial(round_to, x, fmt, out=out)
    yield "round_to, out=", into
    yield "round_to", partial(round_to, x, fmt)
    yield "  toward zero", partial(into, rounding=Rounding.TOWARD_ZERO)
    yield "  toward positive", partial(into, rounding=Rounding.TOWARD_POSITIVE)
    yield "  stochastic", partial(into, rounding=Rounding.STOCHASTIC, stream=stream)
    yield "  with tally", partial(into, tally=counts)
    yield "  from float64", partial(round_to, wide, fmt, out=wide_out)


def peers(x: np.ndarray, fmt: Format) -> Iterable[tuple[str, Call]]:
    """The same rounding, ties to even, by other libraries."""
    dtype = fmt.dtype
    name = "NumPy" if fmt is FP16 else "ml_dtypes"
    yield f"{name} astype", lambda: x.astype(dtype).astype(np.float32)
    import torch

    tensor, torch_dtype = torch.from_numpy(x), fmt.torch_dtype
    yield "torch to", lambda: tensor.to(torch_dtype).to(torch.float32)


def gfloat_peer(x: np.ndarray, fmt: Format) -> Call:
    """The same rounding by gfloat; raises ImportError where it is not installed."""
    import gfloat
    from gfloat.formats import (
        format_info_bfloat16,
        format_info_binary16,
        format_info_ocp_e4m3,
        format_info_ocp_e5m2,
    )

    info = {
        "FP16": format_info_binary16,
        "BF16": format_info_bfloat16,
        "FP8_E4M3": format_info_ocp_e4m3,
        "FP8_E5M2": format_info_ocp_e5m2,
    }[fmt.name]
    return lambda: gfloat.round_ndarray(info, x)


def _numbers(size: int) -> np.ndarray:
    some = np.random.default_rng(0).standard_normal(min(size, 10**6)).astype(np.float32)
    return np.resize(some, size)


def contenders(size: int) -> tuple[Contenders, list[Missing]]:
    """Everything to be measured at one size, on standard normal float32 numbers.

    They repeat after a million. Past `BLOCK` each block has numbers of its own, but shares
    with the others where the results go, and the float64.
    """
    x = _numbers(size)
    first = Arrays.of(x[:BLOCK])
    blocks = [_of_block(first._replace(x=x[i : i + BLOCK])) for i in range(0, size, BLOCK)]
    found, missing = blocks[0]
    if len(blocks) > 1:
        found = {key: partial(_one_by_one, [calls[key] for calls, _ in blocks]) for key in found}
    return found, missing


def _one_by_one(calls: list[Call]) -> None:
    for call in calls:
        call()


def _of_block(arrays: Arrays) -> tuple[Contenders, list[Missing]]:
    x, missing = arrays.x, []
    found: Contenders = {
        ("copy", ""): partial(np.copyto, arrays.out, x),
        ("copy float64", ""): partial(np.copyto, arrays.wide_out, arrays.wide),
    }
    for fmt in FORMATS:
        for name, call in (*ours(arrays, fmt), *peers(x, fmt)):
            found[name, fmt.name] = call
        if x.size > _GFLOAT:
            continue
        try:
            found["gfloat", fmt.name] = gfloat_peer(x, fmt)
        except ImportError as error:
            missing = [Missing("gfloat", f"{error}; pip install gfloat")]
    return found, missing


def fits(size: int) -> bool:
    """Whether the machine has the memory for a size, and as much again."""
    wanted = 4 * size + 30 * min(size, BLOCK)
    try:
        return 2 * wanted <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system says
        return size <= BLOCK


def measure(size: int, *, rounds: int, seconds: float) -> tuple[list[Row], list[Missing]]:
    """Measure every contender in turn, `rounds` times or for about `seconds`, at least 3 times."""
    for call in contenders(1)[0].values():
        call()  # compiles what is not
    found, missing = contenders(size)
    times = {key: [lap(call, 1, CPU_TIME)] for key, call in found.items()}
    for key, call in found.items():
        if times[key][0] < _LONG:  # else it counts; a first call may have asked for memory
            times[key] = [lap(call, 1, CPU_TIME)]
    quick = {key: call for key, call in found.items() if times[key][0] < _SLOW}
    repeats = {key: max(1, int(_TURN / max(1e-6, times[key][0]))) for key in quick}
    times |= in_turn(quick, rounds=rounds, seconds=seconds, clock=CPU_TIME, repeats=repeats, warm=0)
    rows = []
    for name, fmt in found:
        taken, copies = times[name, fmt], times["copy float64" if "float64" in name else "copy", ""]
        if len(taken) != len(copies):
            taken, copies = [median(taken)], [median(copies)]
        typical, ratio = compared(taken, copies)
        rows.append(Row(name, fmt, size, 1e9 * typical / size, ratio))
    return rows, missing


def measure_threaded(size: int, *, rounds: int) -> dict[str, float]:
    """Wall nanoseconds per element on all cores: a copy cut into pieces, and `round_to`."""
    x = _numbers(size)
    out = np.empty_like(x)

    def copy_piece(begin: int, end: int) -> None:
        np.copyto(out[begin:end], x[begin:end])

    calls: dict[str, Call] = {"copy": lambda: threads.parallel(copy_piece, size, wrap=size + 1)}
    for fmt in FORMATS:
        calls[fmt.name] = partial(round_to, x, fmt, out=out)
    times = in_turn(calls, rounds=rounds)
    return {name: 1e9 * median(taken) / size for name, taken in times.items()}


def table(rows: list[Row]) -> str:
    """The rows of one size as text: nanoseconds per element, and the ratio to the copy."""
    cells = {(row.name, row.fmt): f"{row.nanoseconds:8.3f} {row.ratio:6.2f}x" for row in rows}
    names = dict.fromkeys(row.name for row in rows if row.fmt)
    rest = [""] * (len(FORMATS) - 1)  # a copy has no format
    lines = [(name, cells[name, ""], *rest) for name in ("copy", "copy float64")]
    lines += [(name, *(cells.get((name, fmt.name), "") for fmt in FORMATS)) for name in names]
    caption = f"{rows[0].size:,} elements: CPU ns per element, and ratio to a copy"
    return repr(Table(caption, ("", *(f"{fmt.name:>16}" for fmt in FORMATS)), tuple(lines)))
