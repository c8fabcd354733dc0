"""Where torch's devices differ: random numbers of their own, and Apple's GPUs have no float64."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def forked_randomness(devices: Iterable[torch.device]) -> AbstractContextManager[None]:
    """Restore torch's random state afterwards, and that of GPUs, all of one kind."""
    others = [device for device in devices if device.type != "cpu"]
    kind = others[0].type if others else "cpu"
    return torch.random.fork_rng(others, device_type=kind)


def widest(x: Tensor) -> torch.dtype:
    """The widest dtype of the device of a tensor: float64, or float32 on Apple's GPUs."""
    return torch.float32 if x.is_mps else torch.float64
