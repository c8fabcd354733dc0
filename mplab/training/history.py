"""The history of a training run, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mplab.common.files import replace_file
from mplab.numbers.checks import quoted
from mplab.numbers.options import Tally
from mplab.training.exponents import ExponentHistogram

_VERSION = 3

MALFORMED = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What reading a document raises that is no History."""

_SAMPLED = 8
"""Number of gradients kept from each recorded tensor."""


class Sample(NamedTuple):
    """A few gradients of a tensor, evenly spread over it, in three arrays."""

    places: np.ndarray
    """Indices in the flattened tensor; int64."""
    exact: np.ndarray
    """The FP32 gradients at the same weights, without loss scale; float64."""
    stored: np.ndarray
    """The run's gradients, times its loss scale, as in its backward pass; float64."""


def sample(exact: Any, stored: Any) -> Sample:
    """Keep a few gradients of two tensors of one shape, at the same places.

    Args:
        exact: the FP32 gradients; a NumPy array, or a tensor on the CPU without gradient.
        stored: the run's gradients; likewise.

    Examples:
        >>> sample(np.arange(3.0), np.zeros(3)).exact
        array([0., 1., 2.])
    """
    wide, low = (np.asarray(x, np.float64).ravel() for x in (exact, stored))
    count = min(_SAMPLED, wide.size)
    places = (np.arange(count) * wide.size + wide.size // 2) // max(1, count)
    return Sample(places, wide[places], low[places])


@dataclass(eq=False)
class History:
    """The settings and measurements of a training run.

    Args:
        task: the name of the task.
        recipe: the name of the recipe.
        compute_format: the name of the format of the operations that the recipe lowers.
        seed: seed of weights and batches.
        device: "cpu", or the name of the CUDA device.
        simulated: whether the low format was simulated.
        loss: training loss by step, without loss scale, float64 of shape (steps,).
        loss_scale: the scale that a step used, float64 of shape (steps,); 1 without scaling.
        skipped: whether the scaler skipped the update, bool of shape (steps,).
        metrics: the metrics on the test data after the last step, by name.
        gradients: by recorded step and layer, the gradients with respect to the layer's
            output as the run had them, divided by the loss scale.
        flushed: by recorded step and layer, how many of these gradients are zero although
            FP32 has a nonzero one at the same weights, and how many nonzero ones FP32 has.
        samples: by recorded step and layer, a few of these gradients one by one.
        tally: for a simulated run, counts of the roundings by "operation" and by "layer".
        environment: versions and platform.
        settings: all options of the recipe, as `Recipe.settings` gives them.
    """

    task: str
    recipe: str
    compute_format: str
    seed: int
    device: str
    simulated: bool
    loss: np.ndarray
    loss_scale: np.ndarray
    skipped: np.ndarray
    metrics: dict[str, float] = field(default_factory=dict)
    gradients: dict[int, dict[str, ExponentHistogram]] = field(default_factory=dict)
    flushed: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)
    samples: dict[int, dict[str, Sample]] = field(default_factory=dict)
    tally: dict[str, dict[str, Tally]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        ended = ", ".join(f"{name} {value:.3f}" for name, value in self.metrics.items())
        steps = len(self.loss)
        skipped = int(np.count_nonzero(self.skipped))
        return (
            f"<History: {self.task}, {self.recipe}, seed {self.seed}, on {self.device}: "
            f"{steps} steps, {skipped} skipped; {ended}>"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one file, whole or not at all.

        Raises:
            OSError: the file cannot be written; an older file stays as it was.
        """
        replace_file(path, json.dumps(self.to_json(), allow_nan=True).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a run that `save` wrote; the numbers come back bit for bit.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file does not hold a History of this version.
        """
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except MALFORMED as error:
            raise ValueError(
                f"History.load: {path} must hold a History of version {_VERSION}; got "
                f"{type(error).__name__}: {error}. Run the training again and save it."
            ) from error

    def to_json(self) -> dict[str, Any]:
        """The run as a JSON document, with enough decimal digits to restore each number."""
        return {"mplab history": _VERSION, **_plain(vars(self))}

    @classmethod
    def from_json(cls, stored: Any) -> History:
        """Read the run from a JSON document that `to_json` made.

        Raises:
            One of `MALFORMED`: the document does not hold a History of this version.
        """
        stored = dict(stored)
        version = stored.pop("mplab history", None)
        if version != _VERSION:
            raise ValueError(f"version {quoted(version)}")
        names = {f.name for f in fields(cls)}
        if set(stored) != names:
            raise ValueError(f"fields {sorted(set(stored) ^ names)} missing or unknown")
        stored["settings"] = settings_from(stored["settings"])
        recorded: dict[str, Callable[[Any], Any]] = {
            "gradients": _histogram_from,
            "samples": _sample_from,
            "flushed": lambda counts: (int(counts[0]), int(counts[1])),
        }
        for name, found in recorded.items():
            stored[name] = {
                int(step): {layer: found(kept) for layer, kept in layers.items()}
                for step, layers in stored[name].items()
            }
        stored["tally"] = {
            kind: {name: Tally(**counted) for name, counted in tallies.items()}
            for kind, tallies in stored["tally"].items()
        }
        columns = {"loss": np.float64, "loss_scale": np.float64, "skipped": np.bool_}
        for name, dtype in columns.items():
            stored[name] = np.array(stored[name], dtype)
        if {stored[name].shape for name in columns} != {(len(stored["skipped"]),)}:
            raise ValueError("loss, loss_scale and skipped differ in length")
        return cls(**stored)


def _plain(value: Any) -> Any:
    """Arrays, counts and tuples as JSON has them; the keys of a dict as text."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Tally):
        return asdict(value)
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _histogram_from(kept: Any) -> ExponentHistogram:
    exponents, counts = (np.array(numbers, np.int64) for numbers in kept[:2])
    return ExponentHistogram(exponents, counts, *kept[2:])


def settings_from(stored: dict[str, Any]) -> dict[str, Any]:
    """Drop former options of recipes, which changed no number, from stored settings.

    `native=True` did change some, so that such a run is another one.
    """
    former = "device", "checkpointing"
    kept = {name: x for name, x in stored.items() if name not in former}
    return {name: x for name, x in kept.items() if (name, x) != ("native", False)}


def _sample_from(kept: Any) -> Sample:
    """A sample from three lists of one length."""
    places, exact, stored = kept
    found = Sample(
        np.array(places, np.int64), np.array(exact, float), np.array(stored, float)
    )
    if {part.shape for part in found} != {(len(places),)}:
        raise ValueError("the parts of a sample differ in length")
    return found
