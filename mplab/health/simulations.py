"""The formats of tensors: what their dtypes say, and for simulated ones what their tags say.

No other file of this room asks for tags.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mplab.numbers.formats import FORMATS, Format
from mplab.simulation.dispatch import LayeredMode
from mplab.simulation.tags import low_rounder, rounder_of, tag_of

LOW = (torch.float16, torch.bfloat16)


def is_plain(t: object) -> TypeGuard[Tensor]:
    """Whether this is a tensor that has a storage."""
    return isinstance(t, Tensor) and t.layout is torch.strided


def format_of_dtype(dtype: torch.dtype) -> Format | None:
    """The format of a torch dtype; None where mplab has none.

    Examples:
        >>> format_of_dtype(torch.bfloat16).name
        'BF16'
    """
    return next((fmt for fmt in FORMATS.values() if fmt.torch_dtype == dtype), None)


def format_held_by(t: Tensor) -> Format | None:
    """The format that a tensor's numbers belong to, FP32 included; None where mplab has none."""
    rounder = rounder_of(t)
    return format_of_dtype(t.dtype) if rounder is None else rounder.fmt


def low_format_of(t: Tensor) -> Format | None:
    """The low format of a tensor, real or simulated; None for a wide one."""
    rounder = low_rounder(t)
    if rounder is not None:
        return rounder.fmt
    return format_of_dtype(t.dtype) if t.dtype in LOW else None


def may_be_rounded(t: Tensor) -> bool:
    """Whether a simulation may round this tensor in place, which no counter of writes shows."""
    return tag_of(t) is not None


def is_low(t: Tensor) -> bool:
    """Whether a tensor is in a low format, or a gradient of one."""
    return t.dtype in LOW or rounder_of(t) is not None


def unseen_casts(
    inputs: Sequence[Tensor], out: object
) -> Iterator[tuple[Tensor, Tensor]]:
    """The wide inputs of a simulated low result, which were cast unseen, and those casts."""
    made_by = rounder_of(out)
    for t in inputs if made_by is not None else ():
        if made_by is not None and t.dtype is torch.float32 and t.dim():
            yield t, t.to(made_by.fmt.torch_dtype)


def overflows(inputs: Sequence[Tensor], out: Tensor) -> bool:
    """Whether a simulation, which casts unseen, made an infinity of a finite input."""
    made_by = rounder_of(out)
    return made_by is not None and any(
        float(t.detach().abs().max()) > made_by.fmt.max_finite
        for t in inputs
        if t.dtype is torch.float32 and t.numel()
    )


@contextmanager
def uncounted() -> Iterator[None]:
    """Let the simulations that are open compute without counting.

    Raises:
        RuntimeError: one of them rounds at random, and would draw other numbers later.
    """
    stack = _get_current_dispatch_mode_stack()
    modes = [mode for mode in stack if isinstance(mode, LayeredMode)]
    if any(mode.outside.into.stream is not None for mode in modes):
        raise RuntimeError("a simulation rounds at random")
    counting = [mode.tally for mode in modes]
    try:
        for mode in modes:
            mode.tally = False
        yield
    finally:
        for mode, counted in zip(modes, counting, strict=True):
            mode.tally = counted
