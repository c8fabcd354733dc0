"""What the parts of `record.py` share: where they run, what they yield, how they fail."""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec

import torch

P = ParamSpec("P")

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


def attempt(
    measure: Callable[P, dict[str, Any]], *args: P.args, **kwargs: P.kwargs
) -> dict[str, Any]:
    """Measure something; an error becomes its result, so that the other measurements go on.

    Examples:
        >>> attempt(dict, answer=1), attempt(lambda: {"answer": 1 / 0})
        ({'answer': 1}, {'problem': 'ZeroDivisionError: division by zero'})
    """
    try:
        return measure(*args, **kwargs)
    except Exception as error:  # whatever it is
        return {"problem": problem_of(error)}
