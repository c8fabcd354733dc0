"""What a watch was given: which modules that means, and whether it is a number."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from torch import Tensor, nn


def watched_modules(
    model: nn.Module, layers: Sequence[str] | None
) -> list[tuple[str, nn.Module, bool]]:
    """The modules to watch: their names, and whether none in them is watched."""
    names = [name for name, _ in model.named_modules()]
    for name in layers or ():
        if name not in names:
            near = ", ".join(get_close_matches(name, names, n=3, cutoff=0.4))
            raise ValueError(
                f"Health: layers must be names in model.named_modules(); got {name!r}. "
                + (f"Near it: {near}." if near else f"The first: {', '.join(names[1:4])}.")
            )
    chosen: list[tuple[str, nn.Module, bool]] = []
    closed: list[str] = []
    for name, module in model.named_modules():
        if any(_within(name, outer) for outer in closed):
            continue
        compiled = "_orig_mod" in module._modules or module._compiled_call_impl is not None
        if compiled:
            closed.append(name)
        if layers is None or any(_within(name, layer) for layer in layers):
            chosen.append((name, module, compiled or next(module.children(), None) is None))
    return chosen


def _within(name: str, outer: str) -> bool:
    """Whether a module is another, or in it."""
    return not outer or name == outer or name.startswith(f"{outer}.")


def is_number(x: Any) -> bool:
    """Whether this is a number, or a tensor with one."""
    return x.numel() == 1 if isinstance(x, Tensor) else isinstance(x, float | int | np.number)


def described(x: Any) -> str:
    """What an argument is, in words."""
    if isinstance(x, Tensor):
        return f"a tensor of shape {tuple(x.shape)}"
    return repr(x) if x is None else f"a {type(x).__name__}"
