"""Low-precision formats, bit for bit, and their effect on arithmetic and training.

This module offers the formats and `round_to`, which rounds to any of them. The other rooms, such
as `mplab.simulation` and `mplab.training`, are imported on first use. `mplab.course` holds the
tools of the course; `mplab.pictures`, `mplab.explorers` and `mplab.grading` are short names for
rooms in it.

- Round to a format, and count overflows and other events: `mplab.round_to`, `mplab.tally`,
  `mplab.events`; for tensors `mplab.numbers.tensors.round_tensor`.
- Read and write codes: `mplab.encode`, `mplab.decode`, `mplab.fields`, `mplab.values`,
  `mplab.ulp`; define a `mplab.Format` of your own.
- Compute in a format: `mplab.arithmetic.add` … `mplab.arithmetic.fma`, `mplab.arithmetic.dot`,
  `mplab.arithmetic.sum`, `mplab.arithmetic.FloatArray`.
- Solve a linear system in a format and refine its solution: `mplab.arithmetic.lu`,
  `mplab.arithmetic.refine`.
- Update weights that are stored in a format: `mplab.arithmetic.Weights` (round to nearest,
  stochastic, Kahan, FP32 master).
- Multiply matrices as a matrix unit does, bit for bit: `mplab.arithmetic.mma`.
- Store tensors in FP8, FP6 or FP4, also in blocks with MX scales: `mplab.scaling.quantize`,
  `mplab.scaling.dequantize`.
- Scale a loss by any rule: `mplab.scaling.GradScaler`, with the calls of `torch.amp.GradScaler`.
- Train any torch module in a low format: `mplab.simulation.simulated` around forward and
  backward; a `policy` chooses what stays FP32, or "as-written" the dtypes of `model.half()`.
- Train linear layers in FP8, FP6 or FP4, as MX or NVFP4: `mplab.simulation.convert_linears`,
  `mplab.simulation.conversion`.
- See which operation ran in which format, and why: `mplab.simulation.explain`,
  `mplab.pictures.precision_map`.
- Find which layers tolerate which format: `help(mplab.simulation)`, `mplab.pictures.sensitivity`.
- Diagnose a training run of your own: `mplab.health.Health`; in Lightning and transformers, a
  callback from `mplab.health.trainers`.
- Find where two runs diverge: `mplab.health.Digest` around each loop, then `mplab.health.compare`.
- Compare whole runs: `mplab.training.train`, `mplab.training.Recipe`, `mplab.training.gather`,
  `mplab.training.load_runs`.
- What a single lesson adds lies in its folder: FP64 products on low units in
  `mplab.lessons.l17.emulation`, differential equations in `mplab.lessons.l16.integration`, the
  memory and the stages of a training step in `mplab.lessons.l11.stages`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mplab.common.fronts import require_unmoved
from mplab.common.installation import VERSION as __version__  # noqa: F401
from mplab.numbers import *  # noqa: F403
from mplab.numbers import __all__ as _numbers

if TYPE_CHECKING:
    from mplab.course import (
        check,
        explorers as explorers,
        grading as grading,
        pictures as pictures,
    )

__all__ = [*(name for name in _numbers if name != "set_threads"), "check"]

_ROOMS = (
    "numbers",
    "arithmetic",
    "scaling",
    "simulation",
    "training",
    "health",
    "course",
)
_OF_THE_COURSE = ("pictures", "explorers", "grading")


class _ShortNames:
    """Imports `mplab.pictures` and the files in it as `mplab.course.pictures`: one module each."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        if top == "mplab" and rest.partition(".")[0] in _OF_THE_COURSE:
            return ModuleSpec(name, self)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.name.replace("mplab.", "mplab.course.", 1))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system had set that of the short name


# First: otherwise the folder of the room would give a second module of its file.
sys.meta_path.insert(0, _ShortNames())


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"mplab.{name}")
    if name in _OF_THE_COURSE:
        return import_module(f"mplab.course.{name}")
    if name == "check":  # imports all exercises
        return import_module("mplab.course").check
    require_unmoved("mplab", name)
    raise AttributeError(f"module 'mplab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, *_OF_THE_COURSE])
