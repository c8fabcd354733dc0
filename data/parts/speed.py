"""Times on a device: a copy, products, rounding, simulated steps."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from parts.part import Found, Setting, attempt
from torch import Tensor

from mplab.lessons.l06.probes import tf32
from mplab.lessons.l11.rooflines import seconds_of
from mplab.lessons.l11.stages import stage_times
from mplab.numbers.formats import BF16, FP8_E4M3, FP16, FP32, TF32, Format
from mplab.numbers.tensors import round_tensor
from mplab.training.tasks import TASKS


def speed(to: Setting) -> Found:
    """Copy bandwidth, matrix products by size and format, rounding, and a simulated step."""
    count = 1 << (16 if to.rehearse else 27)
    x = torch.randn(count, device=to.device)
    out = torch.empty(count, device=to.device)
    copied = 8 * count / _seconds_of(partial(out.copy_, x), to)
    yield "copy", {"bytes": 4 * count, "bytes_per_second": copied}
    rows: list[dict[str, Any]] = []
    for n in (16, 32) if to.rehearse else (256, 512, 1024, 2048, 4096, 8192):
        for fmt in (FP32, TF32, FP16, BF16, FP8_E4M3):
            if to.left() > 0:
                row = {"size": n, "format": fmt.name}
                rows.append(row | attempt(_matmul, n, fmt, to))
        yield "matmul", rows
    rounding: dict[str, Any] = {}
    for fmt in (FP16, BF16, FP8_E4M3):
        rounding[fmt.name] = attempt(_rounding_rate, x, out, fmt, copied, to)
        yield "round_to", rounding
    steps: list[dict[str, Any]] = []
    for task in TASKS:
        for recipe in ("fp32", "fp16-scaled", "amp-fp16"):
            if to.left() > 0:
                row = {"task": task, "recipe": recipe}
                steps.append(row | attempt(_step, task, recipe, to))
        yield "steps", steps


def _seconds_of(call: Callable[[], object], to: Setting, *, rounds: int = 20) -> float:
    """The median time of a call, after three to warm up."""
    rounds = 3 if to.rehearse else rounds
    return seconds_of(call, to.device, rounds=rounds, warm=3)


def _rounding_rate(
    x: Tensor, out: Tensor, fmt: Format, copied: float, to: Setting
) -> dict[str, float]:
    """Bytes that rounding reads and writes per second, and the ratio to a copy's."""
    taken = _seconds_of(partial(round_tensor, x, fmt, out=out), to, rounds=5)
    rate = 8 * x.numel() / taken
    return {"bytes_per_second": rate, "share_of_copy": rate / copied}


def _matmul(n: int, fmt: Format, to: Setting) -> dict[str, float]:
    """A square product: its rate, and operations for each byte that it must move."""
    a, b = (torch.randn(n, n, device=to.device) for _ in range(2))
    width = 1 if fmt.bits == 8 else 4 if fmt in (FP32, TF32) else 2
    with tf32(fmt == TF32):
        taken = _seconds_of(_product_call(a, b, fmt), to)
    work = 2 * n**3
    moved = (
        2 * width * n * n + max(2, width) * n * n
    )  # FP8 products are written in BF16
    return {"seconds": taken, "per_second": work / taken, "per_byte": work / moved}


def _product_call(a: Tensor, b: Tensor, fmt: Format) -> Callable[[], object]:
    """The product alone, its inputs in the format already."""
    if fmt in (FP32, TF32):
        return lambda: a @ b
    dtype = fmt.torch_dtype
    if fmt.bits == 8:
        low = a.to(dtype)
        right = b.t().contiguous().to(dtype).t()
        one = torch.ones((), device=a.device)
        return lambda: torch._scaled_mm(
            low,
            right,
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
    left = a.to(dtype)
    other = b.to(dtype)
    return lambda: left @ other


def _step(task: str, recipe: str, to: Setting) -> dict[str, Any]:
    """Time a step of a task: plain, simulated, or in real low precision."""
    steps = 2 if to.rehearse else 10
    times = stage_times(task, recipe, steps=steps, device=to.device.type)
    return {"seconds": times.seconds, "total": math.fsum(times.seconds.values())}
