"""Regions of a program in which it turns autocast off, seen while a simulation is active.

torch tells no mode of `with torch.autocast("cuda", enabled=False)`, which changes nothing where
autocast is off already. So its two methods are wrapped as long as any simulation is active.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from torch.amp.autocast_mode import autocast

from mplab.simulation.dispatch import Mode
from mplab.simulation.marks import this_graph

_ENTER, _EXIT = autocast.__enter__, autocast.__exit__
_ATTRIBUTE = "_mplab_mode"

_lock = threading.Lock()
_active = 0


def _enter(region: Any) -> Any:
    entered = _ENTER(region)  # type: ignore[no-untyped-call]
    mode = this_graph().innermost
    # a checkpoint restores what it found, and outside of torch's own autocast that is none
    own = sys._getframe(1).f_globals.get("__name__") != "torch.utils.checkpoint"
    if own and not region._enabled and isinstance(mode, Mode):
        mode.enter_region()
        setattr(region, _ATTRIBUTE, mode)
    return entered


def _exit(region: Any, *error: Any) -> Any:
    mode = region.__dict__.pop(_ATTRIBUTE, None)
    if mode is not None:
        mode.leave()
    return _EXIT(region, *error)


def _set(enter: Any, leave: Any) -> None:
    autocast.__enter__, autocast.__exit__ = enter, leave  # type: ignore[method-assign]


def watch() -> None:
    """Begin to look, for one simulation more."""
    global _active
    with _lock:
        _active += 1
        _set(_enter, _exit)


def forget() -> None:
    """One simulation less; after the last, torch is as it was."""
    global _active
    with _lock:
        _active -= 1
        if not _active:
            _set(_ENTER, _EXIT)
