"""Rounding float32 tensors to one format, with options that are checked once and with counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mplab.numbers import kernels
from mplab.numbers.formats import Format, Overflow, Rounding, Tininess
from mplab.numbers.options import Stream, Tally
from mplab.numbers.parameters import checked_keys, checked_parameters
from mplab.numbers.tensors import round_tensor
from mplab.numbers.threads import DIVISIBLE

_is_dense = torch.ops.aten.is_non_overlapping_and_dense
"""Whether a tensor fills its memory without holes, in some order of its dimensions."""


class Counter:
    """Counts of the roundings of one operation in one layer; loops add to the array."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.total = 0
        self.counts = np.zeros(8, np.int64)
        self.counts_at: int = self.counts.ctypes.data

    def result(self) -> Tally:
        """Everything counted so far."""
        counted = Tally() + self.tally
        counted.add_counts(self.total, self.counts)
        return counted


def rounding_parameters(
    function: str,
    fmt: Format,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.IEEE,
) -> Any:
    """Return the constants that rounding float32 tensors to a format needs.

    Raises:
        ValueError: the format does not fit in float32, or lacks signs or zero.
    """
    rules = (rounding, overflow, False, False, Tininess.AFTER)
    parameters = checked_parameters(function, fmt, np.dtype(np.float32), *rules)
    if parameters is None or not (fmt.signed and fmt.has_zero):
        raise ValueError(
            f"{function}: fmt must have signs and zero, and fit in float32; got {fmt.name}. "
            f"Use FP16, BF16, FP8_E4M3, FP8_E5M2 or the like."
        )
    return parameters


class Rounder:
    """Round tensors to one format, with options that are checked once."""

    def __init__(
        self, fmt: Format, rounding: Rounding, overflow: Overflow, stream: Stream | None
    ) -> None:
        if stream is None or rounding is not Rounding.STOCHASTIC:
            checked_keys("simulated", rounding, stream)
        self.parameters = rounding_parameters("simulated", fmt, rounding, overflow)
        self.fmt = fmt
        self.rounding = rounding
        self.overflow = overflow
        self.stream = stream

    def __call__(self, x: Tensor, out: Tensor, counter: Counter | None) -> Tensor:
        """Round `x` into `out`, which may be `x`: `round_tensor` without its checks."""
        size = x.numel()
        here = out is x
        x_at = x.data_ptr()
        # No memory: empty, on the meta device, or zeros of forward differentiation.
        if not x_at:
            return out if here else out.zero_()
        # What Python does around a loop costs more than the loop: most tensors of a step are small.
        plain = x.is_cpu and size < DIVISIBLE and not x.is_neg()
        if plain and not (x.is_contiguous() and (here or out.is_contiguous())):
            # dimensions in another order; random bits depend on the index in this order
            plain = (
                self.stream is None
                and (here or x.stride() == out.stride())
                and _is_dense(x)
            )
        if not plain:
            return round_tensor(
                x if here else x.detach(),
                self.fmt,
                rounding=self.rounding,
                overflow=self.overflow,
                stream=self.stream,
                out=out,
                tally=None if counter is None else counter.tally,
            )
        key0, key1 = (0, 0) if self.stream is None else self.stream.keys()(0)
        out_at = x_at if here else out.data_ptr()
        what = "round"
        counts_at = 0
        if counter is not None:
            what = "count"
            counts_at = counter.counts_at
            counter.total += size
        loop = kernels.loop_at(what, int(self.rounding), self.parameters.special_cases)
        loop(x_at, out_at, size, self.parameters.address, 0, key0, key1, counts_at)
        return out
