"""Casts to low formats on a device, compared with the simulator's."""

from typing import Any

import numpy as np
import torch
from parts.part import Found, Setting, attempt
from torch import Tensor

from mplab.numbers.codes import values
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, Format, Overflow
from mplab.numbers.rounding import round_to
from mplab.numbers.tensors import round_tensor

_CAST_FORMATS = (FP16, BF16, FP8_E4M3, FP8_E5M2)


def casts(to: Setting) -> Found:
    """Compare the device's casts with the simulator's: all float32 inputs, and float64 midpoints.

    A rehearsal takes 2^12 inputs of every fourth chunk of 2^24.
    """
    yield "overflow", {fmt.name: _overflow(fmt, to.device) for fmt in _CAST_FORMATS}
    yield "midpoints", {fmt.name: _midpoints(fmt, to) for fmt in _CAST_FORMATS}
    size = 1 << (12 if to.rehearse else 24)
    starts = list(range(0, 1 << 32, 1 << (26 if to.rehearse else 24)))
    # A hash of the chunk's number (2^32 over the golden ratio, as Knuth has it) takes inputs from
    # anywhere in each chunk; the last start is where BF16 overflows.
    if to.rehearse:
        starts = [start | (start >> 24) * 0x9E3779B1 & 0xFFF000 for start in starts] + [
            0x7F7FF000
        ]
    found: dict[str, Any] = {}
    for fmt in _CAST_FORMATS:
        found[fmt.name] = row = {
            "inputs": 0,
            "differing": {},
            "first": {},
            "checksums": [],
        }
        row |= attempt(_against_the_device, fmt, starts, size, to, row)
        yield "formats", found
    # Recordings of this version have it; no kernel is compiled any more.
    yield "compiled", {}


_KEPT = 32
"""Number of differing inputs that are kept, with their results."""


def _inputs(start: int, size: int, device: torch.device) -> Tensor:
    """The float32 numbers whose codes begin at `start`."""
    # Codes from 2^31 on, those of negative numbers, wrap to negative integers.
    bits = torch.arange(start, start + size, device=device).to(torch.int32)
    return bits.view(torch.float32)


def _against_the_device(
    fmt: Format, starts: list[int], size: int, to: Setting, row: dict[str, Any]
) -> dict[str, Any]:
    """Compare the device's casts of chunks with ours under both overflow rules; fill the row."""
    for start in starts:
        if to.left() <= 0:
            break
        x = _inputs(start, size, to.device)
        native = x.to(fmt.torch_dtype)
        row["inputs"] += size
        for rule in (Overflow.IEEE, Overflow.SATURATE):
            ours = round_tensor(x, fmt, overflow=rule)
            _count(rule.name, x, native.float(), ours, row)
        row["checksums"].append(checksum(native))
    return row


def _count(name: str, x: Tensor, theirs: Tensor, ours: Tensor, row: Any) -> None:
    """Add to the counts how many numbers differ, and keep some of them."""
    same = (ours.view(torch.int32) == theirs.view(torch.int32)) | (
        ours.isnan() & theirs.isnan()
    )
    wrong = int((~same).sum())
    row["differing"][name] = row["differing"].get(name, 0) + wrong
    examples = row["first"].setdefault(name, [])
    if wrong and len(examples) < _KEPT:
        places = torch.nonzero(~same)[: _KEPT - len(examples), 0]
        codes = [
            f"0x{code & 0xFFFFFFFF:08X}"
            for code in x.view(torch.int32)[places].tolist()
        ]
        values = theirs[places].tolist(), ours[places].tolist()
        examples += map(list, zip(codes, *values, strict=True))


def checksum(t: Tensor) -> str:
    """Sum the codes of a tensor, each multiplied by an odd number that depends on its position.

    Examples:
        >>> checksum(torch.tensor([1.0, 2.0], dtype=torch.float16))
        '0000278dde6c7c00'
    """
    kind = torch.uint8 if t.itemsize == 1 else torch.int16
    codes = t.view(kind).to(torch.int64) & (0xFF if t.itemsize == 1 else 0xFFFF)
    places = torch.arange(t.numel(), device=t.device) * 2654435761 | 1
    return f"{int((codes * places).sum()) & (2**64 - 1):016x}"


def _overflow(fmt: Format, device: torch.device) -> list[list[float]]:
    """Cast numbers at and past the end of the range; return them and the results."""
    largest = fmt.max_finite
    half = (2.0 ** (fmt.emax + 1 - fmt.precision)) / 2
    inputs = [
        largest,
        largest + half,
        largest + 1.5 * half,
        2 * largest,
        1e38,
        torch.inf,
    ]
    x = torch.tensor([*inputs, torch.nan], dtype=torch.float32, device=device)
    return [x.tolist(), x.to(fmt.torch_dtype).float().tolist()]


def _midpoints(fmt: Format, to: Setting) -> dict[str, Any]:
    """float64 inputs halfway between values of the format, and their float64 neighbours."""
    finite = np.unique(values(fmt))
    finite = finite[np.isfinite(finite)].astype(np.float64)
    middle = (finite[1:] + finite[:-1]) / 2
    middle = middle[:: 64 if to.rehearse else 1]
    x = np.concatenate(
        [middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]
    )
    native = (
        torch.from_numpy(x).to(to.device).to(fmt.torch_dtype).double().cpu().numpy()
    )
    ours = np.asarray(round_to(x, fmt))
    wrong = np.flatnonzero((native != ours) & ~(np.isnan(native) & np.isnan(ours)))
    first = (
        [float(v) for v in (x[wrong[0]], native[wrong[0]], ours[wrong[0]])]
        if len(wrong)
        else []
    )
    return {"inputs": len(x), "differing": len(wrong), "first": first}
