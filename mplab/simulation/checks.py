"""What the rooms that compute with torch check of their arguments, in the name of who was asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mplab.numbers.checks import integer, named_format, quoted
from mplab.numbers.formats import Overflow, Rounding, Tininess
from mplab.numbers.rounding import checked_facts

LARGEST_SEED = 2**64 - 1
"""Of torch's generators and of `Stream`."""


def function_of(function: str, argument: str, value: Any, *, optional: bool = False) -> Any:
    """What can be called, or None where it is `optional`."""
    if not callable(value) and not (optional and value is None):
        rule = "a function" + ", or None" * optional
        raise TypeError(
            f"{function}: {argument} must be {rule}; got {quoted(value)}. Pass its name, without "
            f"calling it."
        )
    return value


def items(function: str, argument: str, values: Any, what: str) -> list[Any]:
    """The members of a list or the like; a string or a mapping is none."""
    try:
        if isinstance(values, str | bytes | Mapping | type):
            raise TypeError
        return list(values)
    except TypeError:
        raise TypeError(
            f"{function}: {argument} must be a list of {what}; got {quoted(values)}. "
            f"Put a single one into a list."
        ) from None


def seed_of(function: str, seed: Any) -> int:
    """A seed that torch's generators and `Stream` take."""
    advice = "Seeds go from 0 to 2^64-1."
    return integer(function, "seed", seed, most=LARGEST_SEED, advice=advice)


# Formats -----------------------------------------------------------------------------------
def facts_of(
    function: str,
    argument: str,
    fmt: Any,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.IEEE,
) -> Any:
    """What rounding float32 tensors to a format needs to know.

    Raises:
        TypeError: `fmt` is no format.
        ValueError: it does not fit in float32, or lacks signs or zero.
    """
    rules = (rounding, overflow, False, False, Tininess.AFTER)
    named_format(function, argument, fmt)
    facts = checked_facts(function, fmt, np.dtype(np.float32), *rules)
    if facts is None or not (fmt.signed and fmt.has_zero):
        raise ValueError(
            f"{function}: {argument} must have signs and zero, and fit in float32; got "
            f"{fmt.name}. Use FP16, BF16, FP8_E4M3, FP8_E5M2 or the like."
        )
    return facts


# Places ------------------------------------------------------------------------------------
def device_of(function: str, device: Any, *, here: bool = True) -> torch.device:
    """A device that holds numbers, and where `here`, one that this machine has."""
    rule = f"{function}: device must be one that torch can use here; got {quoted(device)}"
    if not isinstance(device, str | torch.device):
        raise TypeError(f"{rule}. Use 'cpu'.")
    try:
        found = torch.empty(0, device=device).device if here else torch.device(device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
        words = str(error).splitlines()[0][:200]
        raise ValueError(f"{rule} ({words}). Use 'cpu'.") from error
    if found.type == "meta":
        raise ValueError(f"{rule}, which holds no numbers. Use 'cpu'.")
    return found


def path_of(function: str, argument: str, value: Any, what: str = "file") -> Path:
    """The path of a file or of a folder."""
    rule = f"{function}: {argument} must be the path of a {what}; got {quoted(value)}"
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{rule}. Pass a str or a pathlib.Path.")
    if not os.fspath(value) or "\0" in os.fspath(value):
        raise ValueError(f"{rule}. Name the {what}.")
    return Path(value)
