"""The numbers that hooks take from tensors, without a trace in what they watch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from mplab.numbers.formats import Format


@contextmanager
def unseen() -> Iterator[None]:
    """Compute without autograd, autocast or a simulation noticing."""
    with torch.no_grad():
        if _get_current_dispatch_mode() is None:
            yield
        else:
            with _disable_current_modes():
                yield


def witness(t: Tensor) -> Tensor:
    """A float32 scalar that is finite if all elements are; nothing waits for the device.

    Examples:
        >>> witness(torch.ones(2)), witness(torch.tensor([1.0, torch.inf]))
        (tensor(0.), tensor(nan))
    """
    if not t.numel():
        return torch.zeros((), device=t.device)
    low, high = torch.aminmax(t.detach() if t.itemsize > 1 else t.detach().float())
    return low.float() * 0 + high.float() * 0


def norm_of(t: Tensor) -> Tensor:
    """The Euclidean norm, in float32."""
    t = t.detach().coalesce().values() if t.is_sparse else t.detach()
    return torch.linalg.vector_norm(t, dtype=torch.float32)  # type: ignore[no-any-return]


def total(norms: list[Tensor]) -> float | None:
    """The norm of everything together, from the norms of its parts; None without parts."""
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else None


def counts_of(gradient: Tensor, fmt: Format, what_if: bool) -> Tensor:
    """The numbers of `Shares`."""
    size = gradient.detach().abs()
    zeros = size == 0
    if what_if:
        zeros = (size <= fmt.min_subnormal / 2) & ~zeros
    finite = size <= torch.finfo(size.dtype).max
    held = size > (fmt.min_subnormal / 2 if what_if else 0)
    parts = [
        zeros.sum(),
        ((size < fmt.min_normal) & held).sum(),
        ((size < 4 * fmt.min_subnormal) & held).sum(),
        ((size >= fmt.max_finite / 16) & finite).sum(),
        (~finite).sum(),
    ]
    return torch.stack([torch.full_like(parts[0], gradient.numel()), *parts])


def casts_of(operand: Tensor, fmt: Format, scale: float) -> Tensor:
    """The last four numbers of `Casts`, as float64."""
    size = operand.detach().abs()
    scaled = size * scale
    parts = [
        size.amax() if size.numel() else scaled.sum(),
        (size > 0).sum(),
        ((scaled <= fmt.min_subnormal / 2) & (size > 0)).sum(),
        (scaled > fmt.max_finite).sum(),
    ]
    return torch.stack([part.double() for part in parts])


def ulps(x: Tensor, fmt: Format) -> Tensor:
    """`mplab.ulp` on a tensor, as float64."""
    exponent = torch.frexp(x.detach().double()).exponent - 1
    exponent = exponent.clamp(fmt.emin, fmt.emax)
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent - fmt.precision + 1)


def wide_updates(optimizer: Any, parameters: list[Tensor]) -> list[Tensor] | None:
    """What a copy of the optimizer does to copies of its parameters in float64."""
    twin = copy.deepcopy(optimizer)
    wide: dict[int, Tensor] = {}
    for group, copied in zip(optimizer.param_groups, twin.param_groups, strict=True):
        for p, q in zip(group["params"], copied["params"], strict=True):
            state = twin.state.get(q, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
                    state[key] = value.double()
            q.data = p.detach().double()
            q.grad = None if p.grad is None else p.grad.detach().double()
            wide[id(p)] = q
    try:
        twin.step()
    except (RuntimeError, TypeError, ValueError):  # an optimizer that takes no float64
        return None
    return [
        wide[id(p)].detach() - p.detach().double()
        if id(p) in wide
        else torch.zeros_like(p, dtype=torch.float64)
        for p in parameters
    ]
