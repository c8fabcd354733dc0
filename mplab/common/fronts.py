"""Lazy fronts: `lazy_loader`, and the command that installs what a name lacks."""

from collections.abc import Callable
from typing import Any

import lazy_loader

from mplab.common.installation import missing_message

IN_LESSONS = {
    "mplab": {"hardware": "l11.rooflines, .l06.probes and .recordings"},
    "mplab.arithmetic": {
        **dict.fromkeys(
            ["linear_bound", "probabilistic_bound", "roundings"], "l05.bounds"
        ),
        "update_trajectory": "l07.descent",
        "fit_by_gradient_descent": "l07.descent",
        "Descent": "l07.descent",
        **dict.fromkeys(["integrate", "step_is_lost"], "l16.integration"),
        **dict.fromkeys(
            ["matmul_fp64", "emulation_bound", "slice_bits", "split"], "l17.emulation"
        ),
        "reveal_order": "l19.orders",
    },
    "mplab.training": {
        "headroom": "l09.limits",
        **dict.fromkeys(["memory", "stage_times"], "l11.stages"),
    },
    "mplab.course.pictures": {
        "memory": "l11.figures (plot_memory)",
        "recorded_runs": "l11.figures",
    },
}
"""What moved out of the fronts of version 0.2, by its module in `mplab.lessons`."""


def require_unmoved(front: str, name: str) -> None:
    """Refuse a name that a front no longer offers because one lesson alone uses it."""
    module = IN_LESSONS.get(front, {}).get(name)
    if module:  # `from mplab.arithmetic import …` would replace an AttributeError by its own words
        raise ImportError(f"{front}.{name} is in mplab.lessons.{module} now.")


def lazily(
    front: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Let a front import each name of its stub, `__init__.pyi`, on first use.

    So a file of a room runs without packages that only other files of it need.

    Args:
        front: the `__name__` of the module that calls this.
        file: its `__file__`.

    Returns:
        Its `__getattr__`, `__dir__` and `__all__`.
    """
    load, names, offered = lazy_loader.attach_stub(front, file)

    def get(name: str) -> Any:
        require_unmoved(front, name)
        try:
            return load(name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "mplab"):
                raise
            message = f"{front}.{name} {missing_message(package)}"
            raise ModuleNotFoundError(message, name=package) from error

    return get, names, offered
