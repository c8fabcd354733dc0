"""Record sums of a device's matrix unit, so that a wrong model can be corrected later.

Besides counting where a model is wrong, it keeps operands as codes together with the device's
results: `sweeps` walk through the corners of the arithmetic one exponent at a time, `samples` are
random sums, and some of the sums on which the model of Hopper is wrong are kept whole.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from parts.part import Found, Setting, attempt

from mplab.arithmetic.architectures import ARCHITECTURES, unit_of
from mplab.arithmetic.matrix_units import mma
from mplab.lessons.l06.probes import PROBES, on_cuda, partner, product
from mplab.numbers.codes import encode
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, Format
from mplab.numbers.rounding import round_to

FORMATS = (FP16, BF16, TF32, FP8_E4M3, FP8_E5M2)

_ROWS, _DEPTH = 128, 64

_KEPT = 32
"""Number of wrong sums that are kept for each format."""

_WIDE = 2048
"""Rows and columns of the products that measure the interval of promotion: enough tiles to fill the
device, so that no kernel splits the sums to keep it busy."""


def tensorcores(to: Setting) -> Found:
    """The probes, sweeps and samples, the interval of promotion, and random blocks.

    A block is one element of a product of (128, 64) and (64, 128) matrices, whose inputs have
    exponents over a wide range; the model of every architecture computes it, too.
    """
    asked = [
        probe
        for probe in PROBES
        if not probe.scales and {*_pair(probe)} <= {*FORMATS, float}
    ]
    yield "probes", [_probe(probe, to.cuda) for probe in asked]
    yield "sweeps", list(_sweeps(to))
    yield "samples", {fmt.name: attempt(_samples, fmt, to) for fmt in FORMATS}
    yield "promotion", _promotion(to)
    blocks: dict[str, Any] = {}
    for fmt in FORMATS:
        blocks[fmt.name] = row = {
            "blocks": 0,
            "differing": {},
            "wrong": [],
            "problem": "",
        }
        row |= attempt(_random_blocks, fmt, to, row)
        yield "blocks", blocks
    yield "kernels", {fmt.name: attempt(_kernels, fmt, to) for fmt in FORMATS}


def _pair(probe: Any) -> tuple[Any, ...]:
    """The formats that a probe multiplies."""
    fmt = probe.input_format
    return fmt if isinstance(fmt, tuple) else (fmt,)


def _probe(probe: Any, cuda: bool) -> dict[str, Any]:
    row = {
        "terms": probe.terms,
        "shows": probe.shows,
        "model": probe.answer,
        "answer": None,
        "problem": "" if cuda else "no CUDA device",
    }
    return row | attempt(lambda: {"answer": on_cuda(probe)} if cuda else {})


# Sums with their operands ------------------------------------------------------------------
def answers(
    left: np.ndarray, right: np.ndarray, fmt: Format, to: Setting
) -> np.ndarray:
    """The device's sums of products, one for each of at most 128 rows.

    Args:
        left: values of the format, shape (sums, terms).
        right: values of its partner, of the same shape.
        fmt: the format of `left`.
        to: the setting, whose device multiplies.
    """
    count, terms = left.shape
    depth = -(-terms // _DEPTH) * _DEPTH
    padded = np.zeros((2, _ROWS, depth))
    padded[0, :count, :terms], padded[1, :count, :terms] = left, right
    a, b = (torch.from_numpy(m).float().to(to.device) for m in padded)
    return np.asarray(product(a, b.t(), fmt).diagonal().double().cpu().numpy()[:count])


def kept(
    left: np.ndarray, right: np.ndarray, results: np.ndarray, fmt: Format
) -> list[list[str]]:
    """Sums in hexadecimal: the codes of both operands, and those of the results in FP32."""
    rows = zip(left, right, results, strict=True)
    return [
        [_hex(a, fmt), _hex(b, partner(fmt)), _hex(np.atleast_1d(r), FP32)]
        for a, b, r in rows
    ]


def _hex(x: np.ndarray, fmt: Format) -> str:
    digits = -(-fmt.bits // 4)
    return "".join(f"{int(code):0{digits}x}" for code in np.atleast_1d(encode(x, fmt)))


def _samples(fmt: Format, to: Setting) -> dict[str, Any]:
    """Random sums that fill one step of the unit, and four."""
    count = 8 if to.rehearse else _ROWS
    result = dict[str, Any]()
    terms = unit_of("hopper", fmt).terms
    for steps in (1, 4):
        random = np.random.default_rng(steps)
        left, right = (
            _spread((count, terms * steps), f, random) for f in (fmt, partner(fmt))
        )
        # in every other sum all but the last four terms cancel, so that their small bits show
        left[1::2, 1:-4:2], right[1::2, 1:-4:2] = -left[1::2, :-4:2], right[1::2, :-4:2]
        found = answers(left, right, fmt, to)
        result[f"{steps} step" + "s" * (steps > 1)] = kept(left, right, found, fmt)
    return result


def _spread(
    shape: tuple[int, int], fmt: Format, random: np.random.Generator
) -> np.ndarray:
    """Random values of a format over a wide range of exponents."""
    spread = min(4.0, fmt.emax / 8)
    wide = random.standard_normal(shape) * 2.0 ** random.uniform(-spread, spread, shape)
    return np.asarray(round_to(wide, fmt))


# Sweeps ------------------------------------------------------------------------------------
Terms = list[tuple[float, float]]
"""Pairs of factors, in the order in which they are added."""


class Sweep(NamedTuple):
    """Sums that differ in one exponent."""

    terms: str
    """The sum in words; `|` where the next step of the unit begins."""
    formats: tuple[Format, ...]
    exponents: range

    def make(self, k: int, fmt: Format) -> Terms | None:
        """The sum for an exponent; None where the format has no such factors."""
        step = unit_of("hopper", fmt).terms
        words = self.terms.replace("k-1", str(k - 1)).replace("k", str(k))
        terms: Terms = []
        for word in re.split(r", | (?=\|)|(?<=\|) ", words):
            if word == "|":
                terms += [(0.0, 0.0)] * (-len(terms) % step)
            elif word == "0 * largest":
                terms.append((0.0, 2.0 ** partner(fmt).emax))
            else:
                exponent = word.partition("^")[2].strip("()")
                factors = _power(int(exponent or 0), fmt)
                if factors is None:
                    return None
                sign = -1 if word.startswith("-") else 1
                terms.append((sign * factors[0], factors[1]))
        return terms * step if "a step of" in words else terms


def _power(k: int, fmt: Format) -> tuple[float, float] | None:
    """Factors of a format and its partner whose product is 2^k."""
    low = fmt.emin - fmt.precision + 1
    other = partner(fmt)
    least = other.emin - other.precision + 1
    found = [e for e in range(low, fmt.emax + 1) if least <= k - e <= other.emax]
    if not found:
        return None
    first = min(found, key=lambda e: abs(2 * e - k))  # as even as possible
    return 2.0**first, 2.0 ** (k - first)


_ALL = FORMATS
_LONG = (BF16, TF32)

SWEEPS = (
    Sweep("1, 2^k, -1", _ALL, range(0, -34, -1)),
    Sweep("1, -2^k, -2^(k-1), -1", _ALL, range(0, -34, -1)),
    Sweep("1, 2^k, 2^(k-1) | -1", _ALL, range(0, -34, -1)),
    Sweep("1 | 2^k | -1", _ALL, range(0, -34, -1)),
    Sweep("2^k | 1 | -2^k", _ALL, range(0, 34)),
    Sweep("0 * largest, 2^k", _ALL, range(4, -124, -1)),
    Sweep("2^k", _LONG, range(-100, -170, -1)),
    Sweep("a step of 2^k", _LONG, range(-100, -170, -1)),
    Sweep("2^-126, 2^k", _LONG, range(-120, -170, -1)),
    Sweep("2^-126 | 2^k", _LONG, range(-120, -170, -1)),
    Sweep("2^k, 2^k", _LONG, range(100, 132)),
    Sweep("2^k, 2^k, -2^k, -2^k", _LONG, range(100, 132)),
)
"""The corners of one step: bits kept, cutting, chaining, zeros, the floor, and the top."""


def _sweeps(to: Setting) -> Iterator[dict[str, Any]]:
    """Each sweep in each of its formats, with operands and results."""
    for sweep in SWEEPS:
        for fmt in sweep.formats:
            made = [(k, sweep.make(k, fmt)) for k in sweep.exponents]
            sums = [(k, terms) for k, terms in made if terms is not None][:_ROWS]
            row = {
                "terms": sweep.terms,
                "format": fmt.name,
                "exponents": [k for k, _ in sums],
            }
            yield row | attempt(_ask_sums, [terms for _, terms in sums], fmt, to)


def _ask_sums(sums: list[Terms], fmt: Format, to: Setting) -> dict[str, Any]:
    left, right = np.moveaxis(np.array(sums), -1, 0)
    return {"sums": kept(left, right, answers(left, right, fmt, to), fmt)}


# Against the models ------------------------------------------------------------------------
def _random_blocks(fmt: Format, to: Setting, row: dict[str, Any]) -> dict[str, Any]:
    """Count the elements of products that each model gets wrong, in a row; keep some of Hopper's.

    The products have 100,000 elements together; a rehearsal takes one of them.
    """
    for seed in range(1 if to.rehearse else -(-100_000 // _ROWS**2)):
        if to.left() <= 0:
            break
        random = np.random.default_rng(seed)
        left = _spread((_ROWS, _DEPTH), fmt, random)
        right = _spread((_DEPTH, _ROWS), partner(fmt), random)
        a, b = (torch.from_numpy(m).float().to(to.device) for m in (left, right))
        answer = product(a, b, fmt).double().cpu().numpy()
        row["blocks"] += answer.size
        formats = fmt, partner(fmt)
        for name in (
            name for name, units in ARCHITECTURES.items() if fmt.name in units
        ):
            model = mma(left, right, architecture=name, input_format=formats)
            wrong = np.argwhere(answer != model)
            row["differing"][name] = row["differing"].get(name, 0) + len(wrong)
            if name == "hopper" and to.cuda:
                i, j = wrong[: _KEPT - len(row["wrong"])].T
                row["wrong"] += kept(left[i], right.T[j], answer[i, j], fmt)
    return row


def _promotion(to: Setting) -> dict[str, Any]:
    """Find after how many products FP8 sums leave the matrix unit, without fast accumulation.

    The sum begins with 1, and 2^-14 comes at one later place: it is lost inside the unit, and
    survives once the first sum has been added outside. With fast accumulation it should never
    survive; where it does, the kernel cut the sum into pieces, and the other row says nothing.
    """
    if not to.cuda:
        return {"problem": "no CUDA device"}
    places = (*range(16, 513, 16), 768, 1023)
    result: dict[str, Any] = {}
    for name, fast in (("precise", False), ("fast", True)):
        # What was found with the other accumulation stays.
        result |= attempt(
            lambda name, fast: {name: [p for p in places if _survives(p, fast, to)]},
            name,
            fast,
        )
    return result


def _survives(place: int, fast: bool, to: Setting) -> bool:
    """Whether 2^-14 at a place of a sum is not lost."""
    wide = _ROWS if to.rehearse else _WIDE
    a = torch.zeros(wide, 1024, device=to.device)
    b = torch.zeros(1024, wide, device=to.device)
    a[:, 0], b[0] = 1.0, 1.0
    a[:, place], b[place] = 2.0**-7, 2.0**-7
    return float(product(a, b, FP8_E4M3, fast=fast)[0, 0]) != 1.0


def _kernels(fmt: Format, to: Setting) -> dict[str, Any]:
    """The names of the kernels that a product of blocks runs: they tell which unit computed it."""
    if not to.cuda:
        return {"problem": "no CUDA device"}
    a, b = (
        torch.ones(shape, device=to.device)
        for shape in ((_ROWS, _DEPTH), (_DEPTH, _ROWS))
    )
    product(a, b, fmt)
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=both) as profile:
        product(a, b, fmt)
        torch.cuda.synchronize()
    found = {
        event.name for event in profile.events() if event.device_type.name == "CUDA"
    }
    names = sorted(
        name[:120] for name in found if not re.search("elementwise|Mem(cpy|set)", name)
    )
    return {"names": names[:8]}
