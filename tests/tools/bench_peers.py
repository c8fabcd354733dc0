"""Libraries that round to low formats: what is wrong, and what an element costs.

Exactness is counted on enumerated cases: every value and midpoint of the format
inside its range, and their neighbours, from float32 and from float64, ties to
even. The right result is found by counting the midpoints below a number,
without any library's rounding. The next column shows what becomes of twice the
largest finite value. Times are nanoseconds an element for a million float32
around 1: medians of CPU time on one thread. Each library is called in the
fastest documented way that compiles nothing: gfloat with torch tensors, pychop
with one chunk.
"""

import sys
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import numpy as np
import torch
from summary import processor
from turns import in_turn

from mplab.common.tables import Table
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16
from mplab.numbers.rounding import round_to
from mplab.scaling.amax import ScaleRule
from mplab.scaling.quantized import MX_BLOCK, quantize

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cases import breakpoints
from oracle import table_of

FORMATS = (FP16, BF16, FP8_E4M3, FP8_E5M2)
SIZE = 10**6
PACKAGES = ("mplab", "numpy", "torch", "ml_dtypes", "gfloat", "pychop", "torchao")


def by_cast(fmt, x):
    return x.astype(fmt.dtype).astype(x.dtype)


def by_torch(fmt, x):
    tensor = torch.from_numpy(x)
    return tensor.to(fmt.torch_dtype).to(tensor.dtype).numpy()


def by_torchao(fmt, x):
    from torchao.float8.float8_utils import to_fp8_saturated

    tensor = torch.from_numpy(x)
    return to_fp8_saturated(tensor, fmt.torch_dtype).to(tensor.dtype).numpy()


def by_gfloat(fmt, x):
    import gfloat
    from gfloat import formats

    names = ("binary16", "bfloat16", "ocp_e4m3", "ocp_e5m2")
    info = getattr(formats, f"format_info_{names[FORMATS.index(fmt)]}")
    return gfloat.round_ndarray(info, torch.from_numpy(x)).numpy()


def by_pychop(fmt, x):
    from pychop import Chop

    bits = {"exp_bits": fmt.exponent_bits, "sig_bits": fmt.precision - 1}
    return np.asarray(Chop(**bits, chunk_size=x.size)(x))


PEERS = {
    "mplab round_to": (lambda fmt, x: round_to(x, fmt), FORMATS),
    "NumPy astype": (by_cast, (FP16,)),
    "ml_dtypes astype": (by_cast, (BF16, FP8_E4M3, FP8_E5M2)),
    "torch to": (by_torch, FORMATS),
    "torchao to_fp8_saturated": (by_torchao, (FP8_E4M3, FP8_E5M2)),
    "gfloat round_ndarray": (by_gfloat, FORMATS),
    "pychop Chop": (by_pychop, FORMATS),
}


def nearest(fmt, x):
    """The values nearest to numbers inside the range, ties to even, by counting midpoints."""
    table, size = table_of(fmt), np.abs(x).astype(np.float64)
    below = np.searchsorted(table.midpoints, size)
    tie = np.isin(size, table.midpoints)
    return np.copysign(table.values[below + (tie & (below % 2 == 1))], x)


def wrong_of(call, fmt, dtype):
    """How many of the enumerated cases a library rounds wrongly, and of how many."""
    x = breakpoints(fmt, dtype)[0]
    with np.errstate(all="ignore"):
        x = np.ascontiguousarray(x[np.abs(x) <= fmt.max_finite])
        got = np.asarray(call(fmt, x), np.float64)
    same = got.view(np.int64) == nearest(fmt, x).view(np.int64)
    return f"{np.count_nonzero(~same):,} of {x.size:,}"


def past_the_end(call, fmt):
    with np.errstate(all="ignore"):
        return f"{float(call(fmt, np.full(2, 2 * fmt.max_finite, np.float32))[0]):g}"


def measure(*, rounds=9):
    """Rows of the table: library, format, wrong from float32 and float64, past the end, time."""
    x = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    calls, rows = {}, {}
    for name, (call, formats) in PEERS.items():
        for fmt in formats:
            try:
                wrong = [wrong_of(call, fmt, t) for t in (np.float32, np.float64)]
                rows[name, fmt.name] = [*wrong, past_the_end(call, fmt)]
                calls[name, fmt.name] = partial(call, fmt, x)
            except ImportError as error:
                print(f"{name}: not measured: {error}", file=sys.stderr)
                break
    blocks = torch.from_numpy(x[: SIZE // 32 * 32]).reshape(-1, 32)
    how = {"scale": ScaleRule.RCEIL, "block": MX_BLOCK}
    calls["mplab quantize", "MXFP8"] = partial(quantize, blocks, FP8_E4M3, **how)
    try:
        from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

        rceil = ScaleCalculationMode.RCEIL
        calls["torchao to_mx", "MXFP8"] = partial(
            to_mx, blocks, torch.float8_e4m3fn, 32, rceil
        )
    except ImportError as error:
        print(f"torchao to_mx: not measured: {error}", file=sys.stderr)
    out = np.empty_like(x)
    calls["a copy", ""] = partial(np.copyto, out, x)
    taken = in_turn(calls, rounds=rounds, seconds=60)
    return [
        (
            name,
            fmt,
            *rows.get((name, fmt), ["", "", ""]),
            f"{1e9 * median(t) / SIZE:.2f}",
        )
        for (name, fmt), t in taken.items()
    ]


def versions():
    known = []
    for package in PACKAGES:
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            known.append(f"{package} not installed")
    return ", ".join(known)


def table(rows):
    header = (
        "library",
        "format",
        "wrong, float32",
        "wrong, float64",
        "2·max gives",
        "ns",
    )
    caption = f"{date.today()}; {processor().found}; {versions()}"
    return Table(caption, header, tuple(rows))
