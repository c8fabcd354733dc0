"""What a watch was given: which modules that means, and whether it is a number."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mplab.numbers.checks import instance, integer, quoted, switch
from mplab.numbers.formats import Format
from mplab.scaling.grad_scaler import GradScaler


def require_model(function: str, model: Any) -> nn.Module:
    """What is called in the loop."""
    rule, advice = "a torch.nn.Module", "Give the object that is called in the loop."
    return instance(function, "model", model, nn.Module, rule, advice)  # type: ignore[no-any-return]


def require_optimizer(function: str, optimizer: Any, model: nn.Module) -> torch.optim.Optimizer:
    """What updates some parameters of the model, or copies of them in another dtype."""
    kind, advice = torch.optim.Optimizer, "Give the optimizer that it wraps."
    instance(function, "optimizer", optimizer, kind, "a torch.optim.Optimizer", advice)
    trained = {id(p): p.dtype for p in model.parameters() if p.requires_grad}
    updated = {id(p): p.dtype for group in optimizer.param_groups for p in group["params"]}
    same = set(trained.values()) == set(updated.values())  # else it may hold FP32 master weights
    if same and not trained.keys() & updated.keys():
        raise ValueError(
            f"{function}: optimizer must update parameters of the model; got "
            f"{type(optimizer).__name__} with {len(updated)} others. Make it from "
            f"model.parameters(), after all that replaces them, such as a copy or fully_shard."
        )
    return optimizer  # type: ignore[no-any-return]


def watched_scaler(scaler: Any) -> Any:
    """The scaler whose calls are to be watched, if there is one that scales."""
    if scaler is None or isinstance(scaler, GradScaler):
        return scaler
    rule, advice = "a GradScaler of torch.amp or mplab.scaling", "Tell step the scale, and whether "
    advice += "it skipped."
    instance("Health", "scaler", scaler, torch.amp.GradScaler, rule, advice)
    return scaler if scaler.is_enabled() else None


def watched_modules(
    model: nn.Module, layers: Sequence[str] | None
) -> list[tuple[str, nn.Module, bool]]:
    """The modules to watch: their names, and whether none in them is watched."""
    names = [name for name, _ in model.named_modules()]
    words = isinstance(layers, list | tuple | set | frozenset) and all(
        isinstance(name, str) for name in layers
    )
    if layers is not None and not words:
        raise TypeError(
            f"Health: layers must be a list of names of modules, or None; got {quoted(layers)}. "
            "Put one in a list."
        )
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
    """Whether this is a number that float64 holds, or a tensor with one; Booleans are none."""
    if isinstance(x, Tensor):
        return x.numel() == 1 and x.dtype != torch.bool and not x.is_complex()
    if isinstance(x, np.number):
        return not isinstance(x, np.complexfloating)
    if isinstance(x, bool) or not isinstance(x, float | int):
        return False
    return isinstance(x, float) or abs(x) <= sys.float_info.max


def described(x: Any) -> str:
    """What an argument is, in words."""
    if isinstance(x, Tensor):
        return f"a tensor of shape {tuple(x.shape)}"
    return repr(x) if x is None else f"a {type(x).__name__}"


def is_true(skipped: Any) -> bool:
    """What `step` was told of the weights: True or False, in a tensor or not."""
    if isinstance(skipped, Tensor) and skipped.dtype == torch.bool and skipped.numel() == 1:
        return bool(skipped)
    return switch("step", "skipped", skipped)


def require_options(every: object, trace_every: object, weight_format: object) -> None:
    """Refuse what is no number of steps, and no format."""
    for name, number in (("every", every), ("trace_every", trace_every)):
        integer("Health", name, number, least=1, advice="Use 1 for each step.")
    if weight_format is not None and not isinstance(weight_format, Format):
        raise TypeError(
            f"Health: weight_format must be an mplab Format or None; got {quoted(weight_format)}. "
            "Leave it out for FP32."
        )
