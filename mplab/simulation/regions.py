"""Notice where a program turns autocast off, and where a checkpoint reruns a forward pass.

No mode learns of `with torch.autocast("cuda", enabled=False)`, which changes nothing where
autocast is off already. So its two methods are wrapped as long as any simulation is active.

A checkpoint also enters autocast before it reruns a part in the backward pass. The mode that sees
functions is not active there, because each look at a tensor would pass through it: a step took 1.4
times as long. It is put back for that part, and the mode below autograd gets the node in which the
part runs: without gradients nothing else tells a rerun from a backward pass.

`custom_fwd(cast_inputs=…)` asks torch whether autocast is on, and whether a tensor lies on its
device; no mode learns of that either. Its two questions are answered for a simulation: yes, on the
device that the policy imitates. If a newer torch asks otherwise, it casts nothing, as without them.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp import autocast_mode
from torch.amp.autocast_mode import autocast
from torch.overrides import TorchFunctionMode

from mplab.simulation.dispatch import Mode
from mplab.simulation.tags import this_graph

_ENTER = autocast.__enter__
_EXIT = autocast.__exit__

_IS_ENABLED = torch.is_autocast_enabled
_CAST = autocast_mode._cast

_ATTRIBUTE = "_mplab_leave"

_count_function_modes = torch._C._len_torch_function_stack

_lock = threading.Lock()

_active = 0


def _begin_rerun(mode: Mode) -> Callable[[], None]:
    """Begin a part that a checkpoint reruns, even without gradients; return how to end it."""
    before = mode.rerun_node
    mode.rerun_node = torch._C._current_autograd_node()
    unseen = not _count_function_modes()
    if unseen:
        TorchFunctionMode.__enter__(mode.functions)  # type: ignore[no-untyped-call]

    def leave() -> None:
        mode.rerun_node = before
        if unseen:
            TorchFunctionMode.__exit__(mode.functions, None, None, None)  # type: ignore[no-untyped-call]

    return leave


def _enter(region: Any) -> Any:
    entered = _ENTER(region)  # type: ignore[no-untyped-call]
    mode = this_graph().innermost
    if not isinstance(mode, Mode):
        return entered
    # a checkpoint restores the autocast state that it found: off, unless torch's own is on
    if sys._getframe(1).f_globals.get("__name__") == "torch.utils.checkpoint":
        setattr(region, _ATTRIBUTE, _begin_rerun(mode))
    elif not region._enabled:
        mode.enter_region()
        setattr(region, _ATTRIBUTE, mode.leave)
    return entered


def _exit(region: Any, *error: Any) -> Any:
    leave = region.__dict__.pop(_ATTRIBUTE, None)
    if leave is not None:
        leave()
    return _EXIT(region, *error)


def _is_enabled(*device: str) -> bool:
    mode = this_graph().innermost
    caller = sys._getframe(1)
    if caller.f_code.co_name == "decorate_fwd" and isinstance(mode, Mode):
        casts = caller.f_locals.get("cast_inputs") is not None
        return casts and device == (mode.policy.kernels,)
    return _IS_ENABLED(*device)


def _cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor) and isinstance(this_graph().innermost, Mode):
        device = value.device.type
    return _CAST(value, device, dtype)


def _set(enter: Any, leave: Any, enabled: Any, cast: Any) -> None:
    autocast.__enter__ = enter  # type: ignore[method-assign]
    autocast.__exit__ = leave  # type: ignore[method-assign]
    torch.is_autocast_enabled = enabled
    autocast_mode._cast = cast


def watch() -> None:
    """Wrap autocast's methods for one more simulation."""
    global _active
    with _lock:
        _active += 1
        _set(_enter, _exit, _is_enabled, _cast)


def forget() -> None:
    """End one simulation; after the last, restore autocast's methods."""
    global _active
    with _lock:
        _active -= 1
        if not _active:
            _set(_ENTER, _EXIT, _IS_ENABLED, _CAST)
