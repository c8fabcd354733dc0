"""`mplab bench`: what rounding costs, beside a copy and beside other libraries.

All contenders of one size run in turn, round after round, in one process; a row is the
median over rounds of the CPU time on one thread, and the median of its ratio to the
copy of the same round.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from mplab.hardware._timing import CPU_TIME, Call, compared, in_turn
from mplab.numbers import threads
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, Format, Rounding
from mplab.numbers.rounding import Stream, Tally, round_to
from mplab.numbers.tables import Table

FORMATS = (FP16, BF16, FP8_E4M3, FP8_E5M2)

SIZES = (1, 10**3, 10**5, 10**7)


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


def ours(x: np.ndarray, fmt: Format) -> Iterable[tuple[str, Call]]:
    """This library's rows for float32 `x`."""
    out, wide = np.empty_like(x), x.astype(np.float64)
    wide_out, stream, counts = np.empty_like(wide), Stream(0), Tally()
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
    return np.random.default_rng(0).standard_normal(size).astype(np.float32)


def contenders(size: int) -> tuple[Contenders, list[Missing]]:
    """Everything to be measured at one size, on standard normal float32 numbers."""
    x = _numbers(size)
    wide, missing = x.astype(np.float64), []
    found: Contenders = {
        ("copy", ""): partial(np.copyto, np.empty_like(x), x),
        ("copy float64", ""): partial(np.copyto, np.empty_like(wide), wide),
    }
    for fmt in FORMATS:
        for name, call in (*ours(x, fmt), *peers(x, fmt)):
            found[name, fmt.name] = call
        try:
            found["gfloat", fmt.name] = gfloat_peer(x, fmt)
        except ImportError as error:
            missing = [Missing("gfloat", f"{error}; pip install gfloat")]
    return found, missing


def measure(size: int, *, rounds: int, seconds: float) -> tuple[list[Row], list[Missing]]:
    """Measure every contender in turn, `rounds` times or for about `seconds`, at least 3 times."""
    found, missing = contenders(size)
    repeats = max(1, min(10**3, 10**6 // size))  # the caches are warm at every size but the last
    times = in_turn(found, rounds=rounds, seconds=seconds, clock=CPU_TIME, repeats=repeats)
    rows = []
    for (name, fmt), taken in times.items():
        copies = times["copy float64" if "float64" in name else "copy", ""]
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
