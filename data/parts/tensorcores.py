"""Record sums of a device's matrix unit, so that a wrong model can be corrected later.

Besides counting where a model is wrong, it keeps operands as codes together with the device's
results: `sweeps` walk through the corners of the arithmetic one exponent at a time, `samples` are
random sums, and some of the sums on which the model of Hopper is wrong are kept whole.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from parts.part import Found, Setting, problem_of

from mplab.arithmetic.architectures import ARCHITECTURES, unit_of
from mplab.arithmetic.matrix_units import mma
from mplab.hardware.probes import PROBES, on_cuda, partner, product
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
    yield "samples", {fmt.name: _guarded(_samples, fmt, to) for fmt in FORMATS}
    yield "promotion", _promotion(to)
    blocks: dict[str, Any] = {}
    wanted = 1 if to.rehearse else -(-100_000 // _ROWS**2)
    for fmt in FORMATS:
        blocks[fmt.name] = row = {
            "blocks": 0,
            "differing": {},
            "wrong": [],
            "problem": "",
        }
        for seed in range(wanted):
            if to.left() <= 0:
                break
            try:
                _random_blocks(fmt, seed, to, row)
            except Exception as error:  # whatever it is, the other formats go on
                row["problem"] = problem_of(error)
                break
        yield "blocks", blocks
    yield "kernels", {fmt.name: _guarded(_kernels, fmt, to) for fmt in FORMATS}


def _guarded(
    call: Callable[[Format, Setting], dict[str, Any]], fmt: Format, to: Setting
) -> Any:
    try:
        return call(fmt, to)
    except Exception as error:  # whatever it is, the other formats go on
        return {"problem": problem_of(error)}


def _pair(probe: Any) -> tuple[Any, ...]:
    """The formats that a probe multiplies."""
    fmt = probe.input_format
    return fmt if isinstance(fmt, tuple) else (fmt,)


def _probe(probe: Any, cuda: bool) -> dict[str, Any]:
    answer: float | None = None
    problem = "" if cuda else "no CUDA device"
    if cuda:
        try:
            answer = on_cuda(probe)
        except Exception as error:  # whatever it is, the other probes go on
            problem = problem_of(error)
    model = {"terms": probe.terms, "shows": probe.shows, "model": probe.answer}
    return model | {"answer": answer, "problem": problem}


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
    make: Callable[[int, Format], Terms | None]
    """The sum for an exponent; None where the format has no such factors."""


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


def _sum(parts: Sequence[Any], k: int, fmt: Format) -> Terms | None:
    """A sum from signed exponents, "k" for the one that is swept, and "|" for the next step."""
    terms: Terms = []
    for part in parts:
        if part == "|":
            terms += [(0.0, 0.0)] * (-len(terms) % unit_of("hopper", fmt).terms)
            continue
        sign, exponent = part
        factors = _power(
            k if exponent == "k" else k - 1 if exponent == "k-1" else exponent, fmt
        )
        if factors is None:
            return None
        terms.append((sign * factors[0], factors[1]))
    return terms


def _sweep(
    words: str, formats: tuple[Format, ...], exponents: range, *parts: Any
) -> Sweep:
    return Sweep(words, formats, exponents, lambda k, fmt: _sum(parts, k, fmt))


def _zero_times_largest(k: int, fmt: Format) -> Terms | None:
    term = _power(k, fmt)
    return None if term is None else [(0.0, 2.0 ** partner(fmt).emax), term]


def _full(k: int, fmt: Format) -> Terms | None:
    return _sum([(1, "k")] * unit_of("hopper", fmt).terms, k, fmt)


_ALL = FORMATS
_LONG = (BF16, TF32)

SWEEPS = (
    _sweep("1, 2^k, -1", _ALL, range(0, -34, -1), (1, 0), (1, "k"), (-1, 0)),
    _sweep("1, -2^k, -2^(k-1), -1", _ALL, range(0, -34, -1),
           (1, 0), (-1, "k"), (-1, "k-1"), (-1, 0)),
    _sweep("1, 2^k, 2^(k-1) | -1", _ALL, range(0, -34, -1),
           (1, 0), (1, "k"), (1, "k-1"), "|", (-1, 0)),
    _sweep("1 | 2^k | -1", _ALL, range(0, -34, -1), (1, 0), "|", (1, "k"), "|", (-1, 0)),
    _sweep("2^k | 1 | -2^k", _ALL, range(0, 34), (1, "k"), "|", (1, 0), "|", (-1, "k")),
    Sweep("0 * largest, 2^k", _ALL, range(4, -124, -1), _zero_times_largest),
    _sweep("2^k", _LONG, range(-100, -170, -1), (1, "k")),
    Sweep("a step of 2^k", _LONG, range(-100, -170, -1), _full),
    _sweep("2^-126, 2^k", _LONG, range(-120, -170, -1), (1, -126), (1, "k")),
    _sweep("2^-126 | 2^k", _LONG, range(-120, -170, -1), (1, -126), "|", (1, "k")),
    _sweep("2^k, 2^k", _LONG, range(100, 132), (1, "k"), (1, "k")),
    _sweep("2^k, 2^k, -2^k, -2^k", _LONG, range(100, 132),
           (1, "k"), (1, "k"), (-1, "k"), (-1, "k")),
)  # fmt: skip
"""The corners of one step: bits kept, cutting, chaining, zeros, the floor, and the top."""


def _sweeps(to: Setting) -> Iterator[dict[str, Any]]:
    """Each sweep in each of its formats, with operands and results."""
    for sweep in SWEEPS:
        for fmt in sweep.formats:
            made = [(k, sweep.make(k, fmt)) for k in sweep.exponents]
            sums = [(k, terms) for k, terms in made if terms is not None][:_ROWS]
            row: dict[str, Any] = {"terms": sweep.terms, "format": fmt.name}
            yield (
                row
                | {"exponents": [k for k, _ in sums]}
                | _guarded(partial(_ask_sums, [terms for _, terms in sums]), fmt, to)
            )


def _ask_sums(sums: Sequence[Terms], fmt: Format, to: Setting) -> dict[str, Any]:
    pairs = np.array(sums)
    left, right = pairs[..., 0], pairs[..., 1]
    found = answers(left, right, fmt, to)
    return {"sums": kept(left, right, found, fmt)}


# Against the models ------------------------------------------------------------------------
def _random_blocks(fmt: Format, seed: int, to: Setting, row: dict[str, Any]) -> None:
    """Count the elements of one product that each model gets wrong; keep some of Hopper's."""
    random = np.random.default_rng(seed)
    left = _spread((_ROWS, _DEPTH), fmt, random)
    right = _spread((_DEPTH, _ROWS), partner(fmt), random)
    a, b = (torch.from_numpy(m).float().to(to.device) for m in (left, right))
    answer = product(a, b, fmt).double().cpu().numpy()
    row["blocks"] += answer.size
    for name, units in ARCHITECTURES.items():
        if fmt.name not in units:
            continue
        model = mma(left, right, architecture=name, input_format=(fmt, partner(fmt)))
        wrong = np.argwhere(answer != model)
        row["differing"][name] = row["differing"].get(name, 0) + len(wrong)
        if name == "hopper" and to.cuda:
            i, j = wrong[: _KEPT - len(row["wrong"])].T
            row["wrong"] += kept(left[i], right.T[j], answer[i, j], fmt)


def _promotion(to: Setting) -> dict[str, Any]:
    """Find after how many products FP8 sums leave the matrix unit, without fast accumulation.

    The sum begins with 1, and 2^-14 comes at one later place: it is lost inside the unit, and
    survives once the first sum has been added outside. With fast accumulation it should never
    survive; where it does, the kernel cut the sum into pieces, and the other row says nothing.
    """
    result: dict[str, Any] = {}
    if not to.cuda:
        return {"problem": "no CUDA device"}
    wide = _ROWS if to.rehearse else _WIDE
    for fast in (False, True):
        survives = []
        for place in (*range(16, 513, 16), 768, 1023):
            a = torch.zeros(wide, 1024, device=to.device)
            b = torch.zeros(1024, wide, device=to.device)
            a[:, 0], b[0] = 1.0, 1.0
            a[:, place], b[place] = 2.0**-7, 2.0**-7
            try:
                answer = float(product(a, b, FP8_E4M3, fast=fast)[0, 0])
            except Exception as error:
                # What was found with the other accumulation stays.
                return result | {"problem": problem_of(error)}
            if answer != 1.0:
                survives.append(place)
        result["fast" if fast else "precise"] = survives
    return result


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
