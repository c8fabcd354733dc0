"""The numbers that hooks take from tensors, without a trace in what they watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from mplab.numbers.formats import Format

_SAMPLED = 1 << 16
"""Gradients of one layer in one pass that are all counted."""


_P = ParamSpec("_P")


def harmless(
    look: Callable[Concatenate[Any, _P], None],
) -> Callable[Concatenate[Any, _P], None]:
    """A hook that never raises into the run, and is nothing to `torch.compile`.

    The watch that it belongs to has `_stopped`, and `_stop` for an error.
    """

    @wraps(look)
    def hook(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if torch.compiler.is_compiling() or self._stopped:
            return
        try:
            look(self, *args, **kwargs)
        except Exception as error:
            self._stop(error)

    return cast(Callable[Concatenate[Any, _P], None], hook)


def asleep(kind: type) -> Any:
    """A watch that looks at nothing, in the hooks of a copied model."""
    watch: Any = object.__new__(kind)
    watch._stopped = True
    return watch


@contextmanager
def unseen() -> Iterator[None]:
    """Compute without autograd, autocast or a simulation noticing."""
    with torch.no_grad():
        if _get_current_dispatch_mode() is None:
            yield
        else:
            with _disable_current_modes():
                yield


def several_processes() -> bool:
    """Whether several processes train together."""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def local(t: Tensor) -> Tensor:
    """What this process holds of a tensor that is spread over several; no process waits."""
    shard = getattr(t, "to_local", None)
    return t.detach() if shard is None else shard().detach()


def sample(t: Tensor, most: int) -> Tensor:
    """A tensor of at most so many elements, or about a quarter as many of a larger one; a view.

    They are whole rows at even distances.

    Examples:
        >>> sample(torch.arange(12).view(6, 2), 11)
        tensor([[ 0,  1],
                [10, 11]])
    """
    if t.numel() <= most:
        return t
    rows = t.flatten(0, -2) if t.dim() > 1 and t.is_contiguous() else t
    rows = rows if len(rows) > 1 else rows.squeeze()
    return rows[:: -(-4 * t.numel() // most)]


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
    """The Euclidean norm, in float32; of what this process holds."""
    t = local(t)
    t = t.coalesce().values() if t.is_sparse else t
    return torch.linalg.vector_norm(t, dtype=torch.float32)  # type: ignore[no-any-return]


def total(norms: list[Tensor]) -> float | None:
    """The norm of everything together, from the norms of its parts; None without parts."""
    return float(torch.linalg.vector_norm(together(norms))) if norms else None


def together(parts: list[Tensor]) -> Tensor:
    """Tensors of one shape as one, on one device, where a model spans several."""
    return torch.stack([part.to(parts[0].device) for part in parts])


def counts_of(gradient: Tensor, fmt: Format, what_if: bool) -> Tensor:
    """The numbers of `Shares`, of some rows where there are many."""
    size = sample(gradient.detach(), _SAMPLED).abs()
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
    return torch.stack([torch.full_like(parts[0], size.numel()), *parts])


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
