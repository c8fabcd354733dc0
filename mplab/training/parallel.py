"""Data-parallel training: processes that `torchrun` started share each batch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed


def processes() -> int:
    """The number of processes that train together; 1 outside a process group.

    Examples:
        >>> processes(), rank()
        (1, 0)
    """
    return distributed.get_world_size() if _grouped() else 1


def rank() -> int:
    """The rank of this process; process 0 writes files and shows progress."""
    return distributed.get_rank() if _grouped() else 0


def _grouped() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def mean(value: torch.Tensor) -> float:
    """The mean of a scalar over all processes."""
    if processes() == 1:
        return float(value)
    total = value.detach().double().clone()
    distributed.all_reduce(total)
    return float(total) / processes()


def from_first(value: Any) -> Any:
    """Broadcast the value of process 0 to all processes."""
    box = [value]
    if processes() > 1:
        distributed.broadcast_object_list(box, src=0)
    return box[0]


@contextmanager
def process_group(*, timeout: float = 600.0) -> Iterator[None]:
    """Join the processes that `torchrun` started, if it did; NCCL on GPUs, Gloo on CPUs.

    Args:
        timeout: seconds after which a process stops waiting for another.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or _grouped():
        yield
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group(
        "nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout)
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()
