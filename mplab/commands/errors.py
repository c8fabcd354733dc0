"""Errors that a command reports to its user."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can correct: printed as one line, without a traceback."""


def require_device(name: str) -> None:
    """Check that torch has a device, before anything else is done.

    Raises:
        UserError: it has not.
    """
    import torch

    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"--device {name} needs a CUDA device; there is none here")
    try:
        torch.empty(0, device=name)
    except RuntimeError as error:
        raise UserError(f"--device {name}: {error}") from error
