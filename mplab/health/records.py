"""The records of a run under observation, which `Health` fills in and the findings read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from mplab.numbers.formats import FORMATS
from mplab.simulation.places import OUTSIDE


class Origin(NamedTuple):
    """Where a number that is not finite came from.

    Attributes:
        step: the step of the run, from 0.
        phase: "forward", "backward" or "update".
        module: the module's name in the model.
        operation: torch's operation, below autograd; empty where only the module is known.
        what: "infinity", "NaN", or "infinity or NaN".
        sizes: the largest magnitudes around it, in words.
    """

    step: int
    phase: str
    module: str
    operation: str
    what: str
    sizes: str = ""

    def __str__(self) -> str:
        where = self.module if self.module == OUTSIDE else f"in {self.module}"
        by = f"Operation {self.operation} {where}" if self.operation else self.module
        what = {"infinity": "an infinity", "NaN": "a NaN"}.get(self.what, self.what)
        part = self.phase if self.phase == "update" else f"{self.phase} pass"
        sizes = f" ({self.sizes})" if self.sizes else ""
        return f"{by} made {what} in the {part} of step {self.step}{sizes}"


class Rounded(NamedTuple):
    """What a low format did to numbers of which each digit counts.

    Attributes:
        module: where.
        fmt: the format's name.
        size: the largest angle, or the number of additions.
        error: in radians, or as a share of the sum's norm.
    """

    module: str
    fmt: str
    size: float
    error: float


class RoundedIntegers(NamedTuple):
    """Whole numbers that a format could not hold, when they were cast to it.

    Attributes:
        module: where they were cast.
        largest: the largest of them.
        fmt: the format's name.
        before: how many different numbers there were.
        after: how many different numbers were left.
    """

    module: str
    largest: float
    fmt: str
    before: int
    after: int


class Probe(NamedTuple):
    """What a backward pass with gradients of another size showed.

    Attributes:
        step: the step of the run.
        exponent: the power of two by which the gradients were multiplied.
        finite: whether they were finite.
        error: how far the whole gradient was from that, as a share of its norm.
        lost: the parameters whose own gradient was off by more than half, the largest first.
        share: the share of all weights that these hold.
    """

    step: int
    exponent: int
    finite: bool
    error: float
    lost: list[str]
    share: float


class Magnitudes(NamedTuple):
    """How the numbers of a layer, its outputs or the gradients there, fit into a format.

    Attributes:
        fmt: the format's name.
        what_if: the run computed in FP32, and the format is the one it is judged by.
        largest: the largest magnitude; infinity if a number is infinite or NaN.
        least: a hundredth of the root mean square, of a sample of a large tensor. All smaller
            numbers together hold at most 1 % of the tensor's norm. Infinity if all are zero.
        total: the number of elements of the sample.
        zeros: how many of them are 0 in the format.
    """

    fmt: str
    what_if: bool
    largest: float
    least: float
    total: int = 0
    zeros: int = 0

    @property
    def headroom(self) -> float:
        """Powers of two from the largest magnitude to the largest finite number of the format."""
        return _exponent(FORMATS[self.fmt].max_finite) - _exponent(self.largest)

    @property
    def footroom(self) -> float:
        """Powers of two from the smallest positive number of the format to `least`."""
        return _exponent(self.least) - _exponent(FORMATS[self.fmt].min_subnormal)

    @property
    def loses(self) -> bool:
        """Whether the run computed in a format as narrow as FP16, which loses small numbers."""
        return FORMATS[self.fmt].emin > FORMATS["BF16"].emin and not self.what_if

    @property
    def has_many_zeros(self) -> bool:
        """Whether at least 2 % of the numbers are zero in the format."""
        return 50 * self.zeros >= self.total > 0

    def plus(self, other: Magnitudes) -> Magnitudes:
        """Join two records."""
        return Magnitudes(
            self.fmt,
            self.what_if,
            max(self.largest, other.largest),
            min(self.least, other.least),
            self.total + other.total,
            self.zeros + other.zeros,
        )


def magnitudes(
    fmt: str, what_if: bool, total: int, largest: float, norm: float, nonzero: float
) -> Magnitudes:
    """The record of what was measured; NaN, without order, is infinite."""
    sizes = (largest, norm / math.sqrt(max(1, total)) / 100)
    largest, least = (x if math.isfinite(x) else math.inf for x in sizes)
    return Magnitudes(
        fmt,
        what_if,
        largest or 0.0,
        least or math.inf,
        total,
        total - int(nonzero),
    )


def _exponent(size: float) -> float:
    if not math.isfinite(size):
        return math.inf
    return math.log2(size) if size else -math.inf


class Casts(NamedTuple):
    """How an operand of a layer in eight bits or fewer fitted into its format.

    Attributes:
        fmt: the format's name.
        scaling: how its scale is found, such as "current", "delayed" or "none"; "program" where
            the numbers are seen after the program has scaled them.
        scale: the factor before the cast; the smallest of several.
        amax: the largest magnitude, without the scale.
        nonzero: the number of nonzero elements.
        flushed: how many of the nonzero elements became zero.
        saturated: how many were too large to be rounded, and became the largest finite number.
        signal: the sum of squares of the finite elements.
        noise: the sum of squares of what the cast changed in them.
    """

    fmt: str
    scaling: str
    scale: float
    amax: float
    nonzero: int
    flushed: int
    saturated: int
    signal: float
    noise: float

    @property
    def snr(self) -> float | None:
        """The signal-to-noise ratio in dB, infinite without noise; None without a signal."""
        if not self.signal:
            return None
        return 10 * math.log10(self.signal / self.noise) if self.noise else math.inf

    def plus(self, other: Casts) -> Casts:
        """Add the counts of two records."""
        sums = (a + b for a, b in zip(self[4:], other[4:], strict=True))
        scale = min(self.scale, other.scale)
        amax = max(self.amax, other.amax)
        return Casts(self.fmt, self.scaling, scale, amax, *sums)  # type: ignore[arg-type]


@dataclass
class Step:
    """The observations of one step; None where there was nothing to observe.

    Attributes:
        loss: the loss without the loss scale.
        scale: the loss scale of this step.
        skipped: whether the weights were left alone.
        gradient_norm: over all parameters right after the backward pass, without the scale.
        norm_at_optimizer: the gradient norm that the optimizer received.
        weight_norm: over all parameters after the step.
        unmoved: weights that kept their bits, of those with an update.
        updated: weights with an update: their gradient was finite and not zero at a learning
            rate that was not zero. Large parameters are sampled by rows.
        nonfinite_weights: the number of weights that are not finite after the step.
        origins: where numbers that are not finite came from.
        outputs: magnitudes of each layer's output.
        gradients: magnitudes of the gradients at each layer's output.
        fp8: by layer and operand, the casts to eight bits or fewer.
    """

    loss: float
    scale: float
    skipped: bool
    gradient_norm: float | None = None
    norm_at_optimizer: float | None = None
    weight_norm: float = 0.0
    unmoved: int = 0
    updated: int = 0
    nonfinite_weights: int = 0
    origins: list[Origin] = field(default_factory=list)
    outputs: dict[str, Magnitudes] = field(default_factory=dict)
    gradients: dict[str, Magnitudes] = field(default_factory=dict)
    fp8: dict[str, Casts] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """The observed numbers of the step, by name."""
        numbers = {k: x for k, x in vars(self).items() if isinstance(x, int | float)}
        for kind, found in (("output", self.outputs), ("gradient", self.gradients)):
            for name, sizes in found.items():
                numbers[f"{kind}_headroom/{name}"] = sizes.headroom
                numbers[f"{kind}_footroom/{name}"] = sizes.footroom
                numbers[f"{kind}_zeros/{name}"] = sizes.zeros / max(1, sizes.total)
        for name, cast in self.fp8.items():
            for what in ("flushed", "saturated"):
                numbers[f"{what}/{name}"] = getattr(cast, what) / max(1, cast.nonzero)
        return {name: float(x) for name, x in numbers.items()}


@dataclass
class Evidence:
    """The observations of a run besides its steps.

    Attributes:
        half_parameters: names of parameters in FP16.
        wide_weights: whether all weights are in FP32 or wider.
        no_gradient: the number of steps in which no parameter had a gradient.
        probes: backward passes that were repeated with gradients of another size.
        unprobed: why one could not be repeated.
        idle: steps in which the optimizer did not run, though no scaler skipped them.
        resting: steps whose updates had a learning rate of 0 throughout.
        misuses: by the code of a finding, what was seen of it, once for each time.
        stale: steps whose forward pass used older copies of changed weights.
        integers: whole numbers that a cast changed.
        low_loss: the low format in which the loss was told; empty for a wide one.
        angles: the sine or cosine whose argument was rounded most.
        sums: the sum that lost most by being added up in a low format.
        bad_buffers: buffers that are not finite.
        passes: observed forward passes of the model, or of parts of it.
        updates: observed calls of the optimizer.
        replaced: steps whose gradients became finite before the optimizer.
        still: parameters whose gradient was zero or missing in every step.
        ended: the exception that ended the run.
        error: an error of the watch itself, which has looked at nothing since.
    """

    half_parameters: list[str] = field(default_factory=list)
    wide_weights: bool = False
    no_gradient: int = 0
    probes: list[Probe] = field(default_factory=list)
    unprobed: str = ""
    idle: int = 0
    resting: int = 0
    misuses: dict[str, list[str]] = field(default_factory=dict)
    stale: list[int] = field(default_factory=list)
    integers: RoundedIntegers | None = None
    low_loss: str = ""
    angles: Rounded | None = None
    sums: Rounded | None = None
    bad_buffers: list[str] = field(default_factory=list)
    passes: int = 0
    updates: int = 0
    replaced: list[int] = field(default_factory=list)
    still: set[str] = field(default_factory=set)
    ended: str = ""
    error: str = ""


Counted = TypeVar("Counted", Magnitudes, Casts)


def added(pairs: Iterable[tuple[str, Counted]]) -> dict[str, Counted]:
    """Add up the records that have the same name; where the format changed, only later ones."""
    sums: dict[str, Counted] = {}
    for name, new in pairs:
        same = name in sums and sums[name][:2] == new[:2]
        sums[name] = sums[name].plus(new) if same else new
    return sums


def pooled_gradients(steps: Sequence[Step]) -> dict[str, Magnitudes]:
    """Join the gradients of each layer in all steps, without skipped ones."""
    return added(
        pair for step in steps if not step.skipped for pair in step.gradients.items()
    )


def magnitudes_by_layer(
    steps: Sequence[Step],
) -> dict[str, tuple[list[Magnitudes], list[Magnitudes]]]:
    """List for each layer the magnitudes of its outputs, and of its gradients unless skipped."""
    layers: dict[str, tuple[list[Magnitudes], list[Magnitudes]]] = {}
    for step in steps:
        for name, sizes in step.outputs.items():
            outputs, gradients = layers.setdefault(name, ([], []))
            outputs.append(sizes)
            if name in step.gradients and not step.skipped:
                gradients.append(step.gradients[name])
    return layers


def least_headroom(seen: Sequence[Magnitudes]) -> float:
    """The least room of all steps before an overflow; -infinity if each overflowed."""
    room = [sizes.headroom for sizes in seen]
    return min((x for x in room if x > -math.inf), default=min(room, default=math.inf))
