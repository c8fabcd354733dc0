"""The formats of tensors, and simulations that are told not to count."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mplab.numbers.formats import FORMATS, Format
from mplab.simulation import places
from mplab.simulation.mode import Mode

LOW = (torch.float16, torch.bfloat16)


def format_of_dtype(dtype: torch.dtype) -> Format | None:
    """The format of a torch dtype; None where mplab has none.

    Examples:
        >>> format_of_dtype(torch.bfloat16).name
        'BF16'
    """
    return next((fmt for fmt in FORMATS.values() if fmt.torch_dtype == dtype), None)


def format_held_by(t: Tensor) -> Format | None:
    """The format that a tensor's numbers belong to, FP32 included; None where mplab has none."""
    return places.low_format_of(t) or format_of_dtype(t.dtype)


def low_format_of(t: Tensor) -> Format | None:
    """The format of a tensor of a low dtype, which in a simulation may be a narrower one's."""
    return places.low_format_of(t) if t.dtype in LOW else None


@contextmanager
def uncounted() -> Iterator[None]:
    """Let the simulations that are open compute without counting.

    Raises:
        RuntimeError: one of them rounds at random, and would draw other numbers later.
    """
    stack = _get_current_dispatch_mode_stack()
    modes = [mode for mode in stack if isinstance(mode, Mode)]
    for mode in modes:
        if any(rounder.stream is not None for rounder in mode.rounders.values()):
            raise RuntimeError("a simulation rounds at random")
    counting = [mode.tally for mode in modes]
    try:
        for mode in modes:
            mode.tally = False
        yield
    finally:
        for mode, counted in zip(modes, counting, strict=True):
            mode.tally = counted
