"""What a training run leaves behind, and its file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from mplab.course.files import replace_file
from mplab.numbers.checks import quoted
from mplab.numbers.rounding import Tally
from mplab.simulation.checks import path_of
from mplab.training.exponents import ExponentHistogram

_VERSION = 3

_SAMPLED = 8
"""Gradients kept of each recorded tensor."""


class Sample(NamedTuple):
    """A few gradients of a tensor, evenly spread over it, in three float64 arrays."""

    places: np.ndarray
    """Where they stand in the flattened tensor; int64."""
    exact: np.ndarray
    """What FP32 has at the same weights, without loss scale."""
    stored: np.ndarray
    """What the run has, times its loss scale, as in its backward pass."""


def sample(exact: Any, stored: Any) -> Sample:
    """Keep a few gradients of two tensors of one shape, at the same places.

    Args:
        exact: what FP32 has; a NumPy array or a torch tensor.
        stored: what the run has; likewise.

    Examples:
        >>> sample(np.arange(3.0), np.zeros(3)).exact
        array([0., 1., 2.])
    """
    wide, low = (
        np.asarray(x.detach().cpu().double() if hasattr(x, "detach") else x, np.float64).ravel()
        for x in (exact, stored)
    )
    count = min(_SAMPLED, wide.size, low.size)
    places = (np.arange(count) * wide.size + wide.size // 2) // max(1, count)
    return Sample(places, wide[places], low[places])


@dataclass(eq=False)
class History:
    """A training run: what was run, and what it measured.

    Args:
        task: the name of the task.
        recipe: the name of the recipe.
        compute_format: the name of the format of the operations that the recipe lowers.
        seed: of weights and batches.
        device: "cpu", or the name of the CUDA device.
        simulated: whether the low format was simulated.
        loss: training loss by step, without loss scale, float64 of shape (steps,).
        loss_scale: the scale that a step used, float64 of shape (steps,); 1 without scaling.
        skipped: whether the scaler skipped the update, bool of shape (steps,).
        metrics: on the test data after the last step, by name.
        gradients: by recorded step and layer, the gradients with respect to the layer's
            output as the run had them, divided by the loss scale.
        flushed: by recorded step and layer, how many of these gradients are zero although
            FP32 has a nonzero one at the same weights, and how many FP32 has.
        samples: by recorded step and layer, a few of these gradients one by one.
        tally: of a simulated run, what rounding did by "operation" and by "layer".
        environment: versions and platform.
        settings: all that decides what the recipe does, as `Recipe.settings` gives it.
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
        steps, skipped = len(self.loss), int(np.count_nonzero(self.skipped))
        return (
            f"<History: {self.task}, {self.recipe}, seed {self.seed}, on {self.device}: "
            f"{steps} steps, {skipped} skipped; {ended}>"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one file, whole or not at all.

        Raises:
            OSError: the file cannot be written; what was there is as it was.
            TypeError: `path` is no path.
        """
        path = path_of("History.save", "path", path)
        replace_file(path, json.dumps(self.to_json(), allow_nan=True).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a run that `save` wrote; the numbers come back bit for bit.

        Raises:
            OSError: the file cannot be read.
            TypeError: `path` is no path.
            ValueError: the file does not hold a History of this version.
        """
        path = path_of("History.load", "path", path)
        try:
            return read_history(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(
                f"History.load: {path} must hold a History of version {_VERSION}; got {error}. "
                f"Run the training again and save it."
            ) from error

    def to_json(self) -> dict[str, Any]:
        """The run as a JSON document: numbers in decimal digits that name them exactly."""
        return _to_json(self)

    @classmethod
    def from_json(cls, stored: Any) -> History:
        """The run in a JSON document that `to_json` made.

        Raises:
            ValueError: it does not hold a History of this version.
        """
        try:
            return read_history(stored)
        except ValueError as error:
            raise ValueError(
                f"History.from_json: stored must hold a History of version {_VERSION}; got "
                f"{error}. Pass what to_json returned."
            ) from error


def read_history(stored: Any) -> History:
    """The run in a JSON document, for those who say in their own name what is wrong with it.

    Raises:
        ValueError: it does not hold a History of this version; names neither it nor a function.
    """
    try:
        return _from_json(stored)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _to_json(history: History) -> dict[str, Any]:
    plain = {
        f.name: getattr(history, f.name).tolist()
        if isinstance(getattr(history, f.name), np.ndarray)
        else getattr(history, f.name)
        for f in fields(history)
    }
    plain["gradients"] = {
        str(step): {
            layer: [h.exponents.tolist(), h.counts.tolist(), h.zeros, h.nonfinite]
            for layer, h in layers.items()
        }
        for step, layers in history.gradients.items()
    }
    plain["samples"] = {
        str(step): {layer: [part.tolist() for part in kept] for layer, kept in layers.items()}
        for step, layers in history.samples.items()
    }
    plain["flushed"] = {str(step): layers for step, layers in history.flushed.items()}
    plain["tally"] = {
        kind: {name: asdict(counted) for name, counted in tallies.items()}
        for kind, tallies in history.tally.items()
    }
    return {"mplab history": _VERSION, **plain}


def _from_json(stored: Any) -> History:
    """The run in a JSON document; raises ValueError, TypeError or KeyError if it is none."""
    if not isinstance(stored, dict):
        raise TypeError(f"{quoted(stored)} is no document")
    stored = dict(stored)
    version = stored.pop("mplab history", None)
    if version != _VERSION:
        raise ValueError(f"no History of version {_VERSION}, but {version!r}")
    names = {f.name for f in fields(History)}
    if set(stored) != names:
        raise ValueError(f"fields {sorted(set(stored) ^ names)} missing or unknown")
    for name, kind in _PLAIN.items():
        if type(stored[name]) is not kind:
            raise TypeError(f"{name} is {quoted(stored[name])}, no {kind.__name__}")
    _require_values(stored, "metrics", float, int)
    _require_values(stored, "environment", str)
    loss, scale = (_list_of(stored.pop(name), float, int) for name in ("loss", "loss_scale"))
    skipped = _list_of(stored.pop("skipped"), bool)
    if not loss.shape == scale.shape == skipped.shape == (loss.size,):
        raise ValueError("loss, loss_scale and skipped differ in length")
    gradients = {
        int(step): {
            layer: ExponentHistogram(
                np.array(exponents, np.int64), np.array(counts, np.int64), zeros, nonfinite
            )
            for layer, (exponents, counts, zeros, nonfinite) in layers.items()
        }
        for step, layers in stored.pop("gradients").items()
    }
    flushed = {
        int(step): {layer: (int(lost), int(total)) for layer, (lost, total) in layers.items()}
        for step, layers in stored.pop("flushed").items()
    }
    samples = {
        int(step): {layer: _sample_from(kept) for layer, kept in layers.items()}
        for step, layers in stored.pop("samples").items()
    }
    tally = {
        kind: {name: Tally.from_dict(counted) for name, counted in tallies.items()}
        for kind, tallies in stored.pop("tally").items()
    }
    return History(
        loss=loss,
        loss_scale=scale,
        skipped=skipped,
        gradients=gradients,
        flushed=flushed,
        samples=samples,
        tally=tally,
        **stored,
    )


_PLAIN: dict[str, type] = {
    **dict.fromkeys(("task", "recipe", "compute_format", "device"), str),
    **{"seed": int, "simulated": bool, "settings": dict},
}
"""What JSON has of the fields that are stored as they are."""


def _require_values(stored: Any, name: str, *kinds: type) -> None:
    """Refuse a field that is no dictionary, or has values of another type."""
    if not all(type(value) in kinds for value in stored[name].values()):
        raise TypeError(f"{name} is {quoted(stored[name])}")


def _list_of(values: Any, *kinds: type) -> np.ndarray:
    """An array of a list whose members are all of these types; of the first of them."""
    if not isinstance(values, list) or not all(type(value) in kinds for value in values):
        raise TypeError(f"{quoted(values)} is no list of {kinds[0].__name__}")
    return np.array(values, kinds[0])


def _sample_from(kept: Any) -> Sample:
    """A sample from three lists of one length."""
    places, exact, stored = kept
    found = Sample(np.array(places, np.int64), np.array(exact, float), np.array(stored, float))
    if not found.places.shape == found.exact.shape == found.stored.shape == (len(places),):
        raise ValueError("the parts of a sample differ in length")
    return found
