"""What the parts of `record.py` share: where they run, what they yield, how they fail."""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

Found = Iterator[tuple[str, Any]]
"""Fields of a recording's data: the name of each, and its value so far."""


class Setting(NamedTuple):
    """Where and how large a recording is made."""

    device: torch.device
    rehearse: bool
    left: Callable[[], float]
    """Seconds that the part still has."""

    @property
    def cuda(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"


def problem_of(error: BaseException) -> str:
    """Describe an error in one line, without the names of the machine's folders.

    Examples:
        >>> problem_of(OSError("cannot read /root/secret/file.txt"))
        'OSError: cannot read …'
    """
    line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    return re.sub(r"(?<!\w)(?:[A-Za-z]:)?[\\/][\w.\\/-]+", "…", line)
