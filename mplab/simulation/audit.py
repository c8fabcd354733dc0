"""`mplab audit`: which simulated operations give the bits of torch's own half-precision kernels.

Simulated means: computed by torch in float32 from values of the format, and rounded once. For
each operation that differs, a row says in how many cases, and how many of these an explanation
accounts for: a replica that gives the kernel's bits (`mplab.simulation._replicas`), or a last bit
of the float32 computation, in which every order of summation and every library of functions
differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mplab.numbers.codes import encode
from mplab.numbers.formats import BF16, FP16, FP32, Format
from mplab.numbers.tensors import round_tensor
from mplab.simulation._replicas import replica_of
from mplab.simulation.audit_cases import Case, cases
from mplab.simulation.policies import CUDA_AUTOCAST

FORMATS = {"FP16": FP16, "BF16": BF16}

UNITS = (1, 2, 4, 8, 16, 32, 64)
"""Float32 ulps that are tried as the distance between two float32 computations."""


class Row(NamedTuple):
    """One operation on one set of inputs in one format."""

    operation: str
    fmt: str
    inputs: str
    autocast: str
    """Where autocast on CUDA, and so the simulation, runs it: "low", "FP32" or "as its inputs"."""
    tested: int
    differing: int
    ulps: int
    """The largest difference, in steps from one value of the format to the next."""
    first: str
    """The first differing case: codes of the inputs where they can be told, and of both results."""
    explained: int
    """Differing cases that the explanation accounts for."""
    explanation: str


class Refused(NamedTuple):
    """An operation that torch has no kernel for, on this device and in this format."""

    operation: str
    fmt: str
    reason: str


def audit(
    formats: Sequence[Format] = (FP16, BF16), *, device: str = "cpu", quick: bool = False
) -> Iterator[Row | Refused]:
    """Compare all operations of `mplab.simulation.audit_cases`.

    Args:
        formats: of FP16 and BF16.
        device: where torch computes, both in float32 and in the format.
        quick: fewer inputs.

    Yields:
        A row for each operation and set of inputs.

    Exactness:
        Codes are compared, all NaNs being one and zeros of both signs two.

    Examples:
        >>> next(audit([FP16])).operation
        'sigmoid'
    """
    for fmt in formats:
        for case in cases(fmt, quick=quick):
            try:
                yield compare(case, fmt, device=device)
            except (RuntimeError, NotImplementedError) as error:
                yield Refused(case.title, fmt.name, str(error).partition("\n")[0][:100])


def compare(case: Case, fmt: Format, *, device: str = "cpu") -> Row:
    """Compare one operation, simulated, with torch's own kernel."""
    args = [a.to(device) if isinstance(a, Tensor) else a for a in case.args]
    args = [[t.to(device) for t in a] if _is_list(a) else a for a in args]
    real = _results(case.operation(*_as(args, fmt.torch_dtype), **case.kwargs))
    wide = _results(case.operation(*_as(args, torch.float32), **case.kwargs))
    kept = [i for i, t in enumerate(real) if t is not None and t.dtype == fmt.torch_dtype]
    native = torch.cat([_codes(real[i]) for i in kept])
    float32 = torch.cat([wide[i].reshape(-1) for i in kept])
    simulated = _codes(_rounded(float32, fmt))
    wrong = _differ(native, simulated, fmt)
    explained, explanation = 0, ""
    if bool(wrong.any()):
        explained, explanation = _explain(case, args, kept, native, float32, wrong, fmt)
    steps = (_order(native, fmt) - _order(simulated, fmt)).abs()[wrong]
    return Row(
        case.title,
        fmt.name,
        case.inputs,
        "FP32"
        if case.name in CUDA_AUTOCAST.wide
        else "low"
        if case.name in CUDA_AUTOCAST.lower
        else "as its inputs",
        native.numel(),
        int(wrong.sum()),
        int(steps.max()) if len(steps) else 0,
        _first(args, native, simulated, wrong, fmt),
        explained,
        explanation,
    )


def _is_list(a: Any) -> bool:
    return isinstance(a, list) and bool(a) and isinstance(a[0], Tensor)


def _as(args: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """Floating-point tensors, and names of a dtype, in `dtype`."""
    cast: list[Any] = []
    for a in args:
        if isinstance(a, Tensor) and a.is_floating_point():
            cast.append(a.to(dtype))
        else:
            cast.append(dtype if isinstance(a, torch.dtype) else a)
    return cast


def _results(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple | list) else [out]


def _rounded(x: Tensor, fmt: Format) -> Tensor:
    return round_tensor(x.float().contiguous(), fmt, fuse=False).to(fmt.torch_dtype)


def _codes(t: Tensor) -> Tensor:
    """Codes as non-negative int32."""
    return t.contiguous().reshape(-1).view(torch.int16).int() & 0xFFFF


def _is_nan(codes: Tensor, fmt: Format) -> Tensor:
    return (codes & 0x7FFF) > int(encode(np.inf, fmt))


def _differ(one: Tensor, other: Tensor, fmt: Format) -> Tensor:
    return (one != other) & ~(_is_nan(one, fmt) & _is_nan(other, fmt))


def _order(codes: Tensor, fmt: Format) -> Tensor:
    """Integers in the order of the values: neighbours differ by 1, the two zeros by 0."""
    size = (codes & 0x7FFF).long()
    return torch.where(codes >= 0x8000, -size, size)


def _first(
    args: Sequence[Any], native: Tensor, simulated: Tensor, wrong: Tensor, fmt: Format
) -> str:
    if not bool(wrong.any()):
        return ""
    place = int(wrong.nonzero()[0])
    inputs = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    elementwise = all(a.numel() == native.numel() for a in inputs)
    given = [f"{int(_codes(a.to(fmt.torch_dtype))[place]):04X}" for a in inputs if elementwise]
    where = f"({', '.join(given)})" if given else f"[{place}]"
    return f"{where}: torch {int(native[place]):04X}, simulated {int(simulated[place]):04X}"


# Explanations ----------------------------------------------------------------------------
def _explain(
    case: Case, args: Sequence[Any], kept: Sequence[int], native: Tensor, float32: Tensor,
    wrong: Tensor, fmt: Format,
) -> tuple[int, str]:  # fmt: skip
    """How many of the differing cases are accounted for, and by what."""
    left, parts = wrong.clone(), []
    replica = replica_of(case.name, fmt)
    if replica is not None:
        out = replica.compute(lambda t: round_tensor(t, fmt), *args, **case.kwargs)
        if out is not None:
            given = _results(out)
            codes = _codes(_rounded(torch.cat([given[i].reshape(-1) for i in kept]), fmt))
            same = wrong & ~_differ(codes, native, fmt)
            broken = int((~wrong & _differ(codes, native, fmt)).sum())
            parts.append(f"{replica.how}: {int(same.sum()):,}")
            if broken:
                parts[-1] += f" (wrong in {broken:,} that agreed)"
            left &= ~same
    if bool(left.any()):
        units, near = _units(native, float32, left, fmt)
        if 2 * int(near.sum()) > int(left.sum()):  # else it may be chance
            parts.append(f"{units} float32 ulp{'s' * (units > 1)} apart: {int(near.sum()):,}")
            left &= ~near
    if bool(left.any()) and case.terms:
        near = _within_bound(case, args, kept, native, fmt) & left
        if int(near.sum()):
            parts.append(f"float32 sum in another order: {int(near.sum()):,}")
            left &= ~near
    return int(wrong.sum()) - int(left.sum()), "; ".join(parts)


def _between(native: Tensor, low: Tensor, high: Tensor, fmt: Format) -> Tensor:
    """Whether a number between two others could have been rounded to this."""
    place = _order(native, fmt)
    ends = [_order(_codes(_rounded(x, fmt)), fmt) for x in (low, high)]
    inside = (torch.minimum(*ends) <= place) & (place <= torch.maximum(*ends))
    return inside & ~_is_nan(native, fmt)


def _units(native: Tensor, float32: Tensor, left: Tensor, fmt: Format) -> tuple[int, Tensor]:
    """The fewest float32 ulps that account for the most of what is left, and for which."""
    low = high = float32
    best, found = 0, torch.zeros_like(left)
    for units in range(1, UNITS[-1] + 1):
        low = torch.nextafter(low, torch.full_like(low, -torch.inf))
        high = torch.nextafter(high, torch.full_like(high, torch.inf))
        if units in UNITS:
            near = _between(native, low, high, fmt) & left & float32.isfinite()
            if int(near.sum()) > int(found.sum()):
                best, found = units, near
    return best, found


def _within_bound(
    case: Case, args: Sequence[Any], kept: Sequence[int], native: Tensor, fmt: Format
) -> Tensor:
    """Whether some order of float32 additions could have given this.

    The sum of the absolute values of n terms, times n unit roundoffs, bounds the error to
    first order.
    """
    exact = _results(case.operation(*_as(args, torch.float64), **case.kwargs))
    sizes = [a.abs() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    bound = _results(case.operation(*_as(sizes, torch.float64), **case.kwargs))
    middle = torch.cat([exact[i].reshape(-1) for i in kept])
    reach = torch.cat([bound[i].reshape(-1) for i in kept]) * case.terms * FP32.unit_roundoff
    return _between(native, middle - reach, middle + reach, fmt)


# The command -----------------------------------------------------------------------------
def table(rows: Sequence[Row | Refused]) -> str:
    """The rows as text: those that agree in one paragraph, the others one by one."""
    lines = []
    for fmt in dict.fromkeys(row.fmt for row in rows):
        mine = [row for row in rows if row.fmt == fmt and isinstance(row, Row)]
        same = [row for row in mine if not row.differing]
        tested = sum(row.tested for row in same)
        lines.append(f"{fmt}: {len(same)} of {len(mine)} equal torch's kernel bit for bit")
        names = ", ".join(f"{row.operation} ({row.inputs})" for row in same)
        lines += [f"  equal on {tested:,} results: {names}", ""]
        head = f"  {'operation':<34}{'inputs':<18}{'autocast':<15}"
        lines.append(f"{head}{'tested':>12}{'differ':>11}{'ulps':>7}{'explained':>11}")
        for row in (row for row in mine if row.differing):
            start = f"  {row.operation:<34}{row.inputs:<18}{row.autocast:<15}"
            share = f"{100 * row.explained / row.differing:.6g} %"
            lines.append(f"{start}{row.tested:>12,}{row.differing:>11,}{row.ulps:>7,}{share:>11}")
            lines.append(f"      {row.explanation or 'not explained'}")
            lines.append(f"      first {row.first}")
        refused = [row for row in rows if row.fmt == fmt and isinstance(row, Refused)]
        lines += [f"  {row.operation}: no kernel: {row.reason}" for row in refused]
        lines.append("")
    return "\n".join(lines)
