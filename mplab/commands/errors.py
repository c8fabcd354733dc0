"""What a command cannot do as it was asked."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right: printed as one line, without a traceback."""


def require_device(name: str) -> None:
    """Ask torch for a device before anything else is done.

    Raises:
        UserError: it is not there.
    """
    import torch

    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"--device {name} needs a CUDA device; there is none here")
    try:
        torch.empty(0, device=name)
    except RuntimeError as error:
        raise UserError(f"--device {name}: {error}") from error
