"""What an operation is given and gives: numbers of which formats, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mplab.simulation._rules import CONVERSIONS, Rule
from mplab.simulation.marks import IN_HAND, Mark, Rounder, mark_of, set_mark

_FLOAT32, _STRIDED = torch.float32, torch.strided


class Refused(NamedTuple):
    """What was refused: the operation, and the device and dtype of the tensor."""

    operation: str
    device: str
    dtype: torch.dtype

    def by_autocast(self) -> bool:
        """Whether an active autocast casts to this dtype; within its kernels it looks inactive."""
        active = torch.is_autocast_enabled(self.device)
        return active and torch.get_autocast_dtype(self.device) is self.dtype


def refuse(rule: Rule, t: Tensor) -> None:
    """Raise for numbers that cannot be simulated; let integers and scalars pass."""
    numbers = t.is_floating_point() or t.is_complex() or t.is_quantized
    if numbers and (t.is_nested or t.dim()) and rule.name not in CONVERSIONS:
        # a ValueError, since the operators of Tensor hide a TypeError
        error = ValueError(
            f"simulated: tensors must be dense float32; got {t.dtype}, {t.layout}, of shape "
            f"{tuple(t.shape)} in {rule.name}. Convert it with .float() or .to_dense(), or "
            f"compute this outside the with statement."
        )
        error.refused = Refused(rule.name, t.device.type, t.dtype)  # type: ignore[attr-defined]
        raise error


def tensors_of(rule: Rule, args: Any, kwargs: dict[str, Any]) -> Sequence[Tensor]:
    """The tensors that count for the format, those in lists included."""
    if rule.plain:
        return [t for t in args[: len(rule.positions)] if isinstance(t, Tensor)]
    found: list[Tensor] = []
    given = [args[i] for i in rule.positions if i < len(args)]
    for t in given + [kwargs.get(name) for name in rule.keywords]:
        if isinstance(t, Tensor):
            found.append(t)
        elif isinstance(t, list | tuple):
            found += [x for x in t if isinstance(x, Tensor)]
    return found


Met = tuple[Rounder | None, bool, bool, bool, bool]
"""What the inputs of an operation are, a plain tuple for speed: the low format among them; whether
one is in FP32, or two are in different low formats, which meet there; whether a number without
dimensions is among them; whether a tensor of numbers is, other than gradients in a user's hands;
and whether any number is. The first two give the widest format: FP32, or the low one."""


def meet(rule: Rule, tensors: Sequence[Tensor], *, gradients: bool) -> Met:
    """Look at the inputs: scalars do not count for the format.

    Outside a backward pass a gradient counts as FP32, since that of a weight is.
    """
    low: Rounder | None = None
    wide = scalars = computes = numbers = False
    for t in tensors:
        if t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
            refuse(rule, t)
            scalars = scalars or t.is_floating_point()
        elif not t.dim():
            scalars = True
        else:
            numbers = True
            mark = mark_of(t)
            if mark is None:
                wide = computes = True
                continue
            own = mark.made_by is None
            into = mark.into if gradients or own else None
            computes = computes or own
            if into is None:
                wide = True
            elif low is None:
                low = into
            elif low is not into and low.fmt != into.fmt:
                wide = True
    if low is not None and rule.name.startswith("_foreach"):
        raise ValueError(
            f"simulated: {rule.name} must be given FP32 tensors; got tensors in {low.fmt.name}. "
            f"Use a loop over the single operation."
        )
    return low, wide, scalars, computes, numbers or scalars


def results_of(out: Any) -> Sequence[Any]:
    """What an operation returned, as a sequence."""
    return (out,) if isinstance(out, Tensor) else out if isinstance(out, tuple | list) else ()


def keep_in_hand(out: Any) -> None:
    """Mark what was computed from gradients, or from scalars, as FP32 for good."""
    for t in results_of(out):
        if isinstance(t, Tensor) and t.dtype is _FLOAT32 and t.dim() and t.layout is _STRIDED:
            set_mark(t, Mark(None, IN_HAND))


def written_format(rule: Rule, args: Any, kwargs: dict[str, Any]) -> Rounder | None:
    """The format of the tensor that an operation writes to, which it keeps."""
    t = kwargs[rule.written] if isinstance(rule.written, str) else args[rule.written]
    if not isinstance(t, Tensor) or t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
        return None
    mark = mark_of(t)
    if mark is None or not t.dim():
        return None
    if mark.into is None or mark.made_by is not None:  # FP32, or a gradient in a user's hands
        set_mark(t, None if mark.made_by is None else Mark(None, IN_HAND))
        return None
    return mark.into
