"""What an optimizer's real step did to the weights, seen from before and after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mplab.health._tracing import format_of_dtype
from mplab.health._vitals import local, sample, ulps
from mplab.health.records import Step
from mplab.numbers.formats import FP32, Format

_SAMPLED = 1 << 14
"""Weights of one parameter that are all compared."""


class Movement:
    """Some weights before a step, and which of them had a reason to move.

    Args:
        optimizer: about to step; parameters that it does not have, or has with a learning
            rate of 0, are left out.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        moving = [
            (p, "tolerance_grad" in group)  # L-BFGS: it stays where it has converged
            for group in optimizer.param_groups
            if _rate(group) != 0
            for p in group["params"]
            if p.requires_grad
        ]
        self._parameters: list[Tensor] = [p for p, _ in moving]
        self._stops = [stops for _, stops in moving]
        self._before = [sample(local(p), _SAMPLED).clone() for p in self._parameters]
        self._pushed: list[Tensor | None] | None = None

    def look_at_gradients(self) -> None:
        """Which weights have a gradient that is a number and not zero."""
        self._pushed = []
        for p, stops, before in zip(self._parameters, self._stops, self._before, strict=True):
            gradient = None if p.grad is None or stops else local(p.grad)
            if gradient is not None and gradient.layout is torch.strided:
                some = sample(gradient, _SAMPLED)
                self._pushed.append(((some != 0) & torch.isfinite(some)).to(before.device))
            else:
                self._pushed.append(None)

    def tell(self, record: Step, weight_format: Format | None) -> None:
        """Write into the record of a step what moved, and how far."""
        ratios = []
        pushed = self._pushed or [None] * len(self._before)
        for p, before, push in zip(self._parameters, self._before, pushed, strict=True):
            after = sample(local(p), _SAMPLED)
            moved = (after != before) & torch.isfinite(after)
            expected = moved if push is None else moved | push
            record.updated += int(expected.sum())
            record.unmoved += int((expected & (after == before)).sum())
            fmt = weight_format or format_of_dtype(p.dtype) or FP32
            far = (after.double() - before.double()).abs() / ulps(before, fmt)
            ratios.append(far[expected].cpu())
        together = torch.cat(ratios) if ratios else torch.empty(0)
        record.update_ulps = float(together.median()) if len(together) else None


def _rate(group: dict[str, Any]) -> float:
    """The learning rate of a group; 1 where it is called otherwise."""
    rate = group.get("lr", 1.0)
    return 1.0 if rate is None else float(rate)
