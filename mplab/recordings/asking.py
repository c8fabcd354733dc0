"""What `mplab record` asks a device about numbers: its casts, and its matrix unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mplab.codes import values
from mplab.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, TF32, Format, Overflow
from mplab.probe import PROBES, on_cuda
from mplab.rounding import round_to
from mplab.tensorcore import ARCHITECTURES, mma
from mplab.tensors import round_tensor

Found = Iterator[tuple[str, Any]]
"""Fields of a recording's data, each as it is known so far."""


class Setting(NamedTuple):
    """Where and how large a recording is made."""

    device: torch.device
    rehearse: bool
    left: Callable[[], float]
    """Seconds of the part's budget that are left."""

    @property
    def cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"


_CAST_FORMATS = (FP16, BF16, FP8_E4M3, FP8_E5M2)


def casts(to: Setting) -> Found:
    """All float32 inputs through the device's conversion and the simulator; midpoints of float64.

    A rehearsal takes 2^10 inputs of each chunk of 2^24.
    """
    yield "overflow", {fmt.name: _overflow(fmt, to.device) for fmt in _CAST_FORMATS}
    yield "midpoints", {fmt.name: _midpoints(fmt, to) for fmt in _CAST_FORMATS}
    size = 1 << (10 if to.rehearse else 24)
    starts = list(range(0, 1 << 32, 1 << 24))
    if to.rehearse:  # anywhere in each chunk; and where BF16 overflows
        starts = [start | (start >> 24) * 0x9E3779B1 & 0xFFFC00 for start in starts] + [0x7F7FFC00]
    formats: dict[str, Any] = {}
    for fmt in _CAST_FORMATS:
        formats[fmt.name] = result = {
            "inputs": 0,
            "differing": {"IEEE": 0, "SATURATE": 0},
            "first": {},
            "checksums": [],
        }
        for start in starts:
            if to.left() <= 0:
                break
            _cast_chunk(fmt, start, size, to.device, result)
        yield "formats", formats


def _cast_chunk(fmt: Format, start: int, size: int, device: torch.device, result: Any) -> None:
    """Compare one chunk of inputs under both overflow rules; add to the counts."""
    bits = torch.arange(start, start + size, device=device).to(torch.int32)  # wraps past 2^31
    x = bits.view(torch.float32)
    native = x.to(fmt.torch_dtype)
    wide = native.float()
    result["inputs"] += size
    for rule in (Overflow.IEEE, Overflow.SATURATE):
        ours = round_tensor(x, fmt, overflow=rule)
        same = (ours.view(torch.int32) == wide.view(torch.int32)) | (ours.isnan() & wide.isnan())
        wrong = int((~same).sum())
        result["differing"][rule.name] += wrong
        if wrong and rule.name not in result["first"]:
            place = int(torch.nonzero(~same)[0])
            code = int(bits[place]) & 0xFFFFFFFF
            result["first"][rule.name] = [f"0x{code:08X}", float(wide[place]), float(ours[place])]
    result["checksums"].append(checksum(native))


def checksum(t: Tensor) -> str:
    """A sum over the codes of a tensor, each multiplied by an odd number of its place.

    Examples:
        >>> checksum(torch.tensor([1.0, 2.0], dtype=torch.float16))
        '0000278dde6c7c00'
    """
    kind = torch.uint8 if t.itemsize == 1 else torch.int16
    codes = t.view(kind).to(torch.int64) & (0xFF if t.itemsize == 1 else 0xFFFF)
    places = torch.arange(t.numel(), device=t.device) * 2654435761 | 1
    return f"{int((codes * places).sum()) & (2**64 - 1):016x}"


def _overflow(fmt: Format, device: torch.device) -> list[list[float]]:
    """What numbers at and past the end of the range become."""
    largest = fmt.max_finite
    half = (2.0 ** (fmt.emax + 1 - fmt.precision)) / 2
    inputs = [largest, largest + half, largest + 1.5 * half, 2 * largest, 1e38, torch.inf]
    x = torch.tensor([*inputs, torch.nan], dtype=torch.float32, device=device)
    return [x.tolist(), x.to(fmt.torch_dtype).float().tolist()]


def _midpoints(fmt: Format, to: Setting) -> dict[str, Any]:
    """float64 inputs halfway between values of the format, and their float64 neighbours."""
    finite = np.unique(values(fmt))
    finite = finite[np.isfinite(finite)].astype(np.float64)
    middle = (finite[1:] + finite[:-1]) / 2
    middle = middle[:: 64 if to.rehearse else 1]
    x = np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
    native = torch.from_numpy(x).to(to.device).to(fmt.torch_dtype).double().cpu().numpy()
    ours = np.asarray(round_to(x, fmt))
    wrong = np.flatnonzero((native != ours) & ~(np.isnan(native) & np.isnan(ours)))
    first = (
        [float(v) for v in (x[wrong[0]], native[wrong[0]], ours[wrong[0]])] if len(wrong) else []
    )
    return {"inputs": len(x), "differing": len(wrong), "first": first}


# The matrix unit ---------------------------------------------------------------------------

_MATRIX_FORMATS = (FP16, BF16, TF32, FP8_E4M3, FP8_E5M2)
_ROWS, _DEPTH = 128, 64


def tensorcores(to: Setting) -> Found:
    """The probes, random blocks in five formats, and the interval of promotion.

    A block is one element of a product of (128, 64) and (64, 128) matrices, whose inputs have
    exponents over a wide range; every architecture's model answers it, too.
    """
    yield "probes", [_probe(probe, to.cuda) for probe in PROBES]
    yield "promotion", _promotion(to)
    blocks: dict[str, Any] = {}
    wanted = 1 if to.rehearse else -(-100_000 // _ROWS**2)
    for fmt in _MATRIX_FORMATS:
        blocks[fmt.name] = row = {"blocks": 0, "differing": {}, "first": [], "problem": ""}
        for seed in range(wanted):
            if to.left() <= 0:
                break
            try:
                _random_blocks(fmt, seed, to, row)
            except (RuntimeError, ValueError) as error:
                row["problem"] = str(error).partition("\n")[0][:200]
                break
        yield "blocks", blocks


def _probe(probe: Any, cuda: bool) -> dict[str, Any]:
    answer: float | None = None
    problem = "" if cuda else "no CUDA device"
    if cuda:
        try:
            answer = on_cuda(probe)
        except (RuntimeError, TypeError, ValueError) as error:
            problem = str(error).partition("\n")[0][:200]
    model = {"terms": probe.terms, "shows": probe.shows, "model": probe.answer}
    return model | {"answer": answer, "problem": problem}


def product(a: Tensor, b: Tensor, fmt: Format, *, fast: bool = True) -> Tensor:
    """The device's own product of float32 tensors that hold values of a format.

    On a CPU it is FP32's, which is no matrix unit's.

    Raises:
        RuntimeError: the device cannot multiply this format.
    """
    if a.device.type != "cuda":
        return a @ b
    if fmt == TF32:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return a @ b
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
    dtype = fmt.torch_dtype
    if fmt.bits == 16:
        return torch.mm(a.to(dtype), b.to(dtype), out_dtype=torch.float32)
    # the kernel multiplies E4M3 by either, but not E5M2 by E5M2
    other = FP8_E4M3.torch_dtype
    right = b.t().contiguous().to(other).t()
    one = torch.ones((), device=a.device)
    result: Tensor = torch._scaled_mm(
        a.to(dtype), right, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast
    )
    return result


def _random_blocks(fmt: Format, seed: int, to: Setting, row: dict[str, Any]) -> None:
    """One product; how many elements each model misses."""
    random = np.random.default_rng(seed)
    spread = min(4.0, fmt.emax / 8)
    other = FP8_E4M3 if fmt.bits == 8 else fmt
    left, right = (
        np.asarray(
            round_to(
                random.standard_normal(shape) * 2.0 ** random.uniform(-spread, spread, shape), f
            )
        )
        for shape, f in (((_ROWS, _DEPTH), fmt), ((_DEPTH, _ROWS), other))
    )
    if fmt == FP8_E5M2:  # a subnormal of E4M3 would be none in the format that holds both
        right[np.abs(right) < other.min_normal] = 0
    a, b = (torch.from_numpy(m).float().to(to.device) for m in (left, right))
    answer = product(a, b, fmt).double().cpu().numpy()
    row["blocks"] += answer.size
    for name, units in ARCHITECTURES.items():
        if fmt.name not in units:
            continue
        model = mma(left, right, architecture=units[fmt.name], input_format=_holding(fmt))
        wrong = np.argwhere(answer != model)
        row["differing"][name] = row["differing"].get(name, 0) + len(wrong)
        if len(wrong) and name == "hopper" and not row["first"]:
            i, j = (int(n) for n in wrong[0])
            row["first"] = [seed, i, j, float(answer[i, j]), float(model[i, j])]


def _holding(fmt: Format) -> Format:
    """The format itself; for E5M2, which is multiplied by E4M3, one that holds both."""
    return Format("E5M3", exponent_bits=5, precision=4) if fmt == FP8_E5M2 else fmt


def _promotion(to: Setting) -> dict[str, Any]:
    """After how many products FP8 sums leave the matrix unit, without fast accumulation.

    The sum begins with 1, and 2^-14 comes at one later place: it is lost inside the unit, and
    survives once the first sum was added outside.
    """
    result: dict[str, Any] = {}
    if not to.cuda:
        return {"problem": "no CUDA device"}
    for fast in (False, True):
        survives = []
        for place in (*range(16, 513, 16), 768, 1023):
            a = torch.zeros(_ROWS, 1024, device=to.device)
            b = torch.zeros(1024, _ROWS, device=to.device)
            a[:, 0], b[0] = 1.0, 1.0
            a[:, place], b[place] = 2.0**-7, 2.0**-7
            try:
                answer = float(product(a, b, FP8_E4M3, fast=fast)[0, 0])
            except RuntimeError as error:
                return {"problem": str(error).partition("\n")[0][:200]}
            if answer != 1.0:
                survives.append(place)
        result["fast" if fast else "precise"] = survives
    return result
