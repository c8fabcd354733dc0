"""The clinic: twelve broken training runs, and the observables that tell look-alikes apart.

Each case is a small run of `mplab.health.broken_runs`, treated in one of three ways: as reported,
with the cure, and with the remedy that people usually try. What decides is an observable, not the
loss: several faults hide behind a loss that falls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from mplab.health import broken_runs as runs
from mplab.health.broken_runs import TREATMENTS, Outcome, Treatment
from mplab.numbers.checks import quoted


@dataclass(frozen=True)
class Case:
    """One broken run.

    Attributes:
        name: how the case is called.
        complaint: what its user saw.
        observable: what to measure, in words.
        healthy: the least and the greatest value of the observable in a healthy run.
        finding: what the health report calls the fault.
        cure: what helps.
        remedy: what people try, which does not help.
        looks_like: the case or state it is confused with.
        make: the run, by treatment.
    """

    name: str
    complaint: str
    observable: str
    healthy: tuple[float, float]
    finding: str
    cure: str
    remedy: str
    looks_like: str
    make: Callable[[Treatment], Outcome]

    def run(self, treatment: Treatment) -> Outcome:
        """The run under a treatment; the same one each time.

        Raises:
            ValueError: an unknown treatment.
        """
        if not isinstance(treatment, str) or treatment not in TREATMENTS:
            raise ValueError(
                f"run: treatment must be one of {', '.join(TREATMENTS)}; got "
                f"{quoted(treatment)}. Choose one of them."
            )
        return _run(self, treatment)

    def broken(self) -> Outcome:
        """As it was reported."""
        return self.run("broken")

    def fixed(self) -> Outcome:
        """With the cure."""
        return self.run("fixed")

    def wrong_fix(self) -> Outcome:
        """With the remedy that does not help."""
        return self.run("wrong")

    def is_healthy(self, outcome: Outcome) -> bool:
        """Whether the observable lies where it should; NaN does not.

        Raises:
            TypeError: `outcome` is none.
        """
        if not isinstance(outcome, Outcome):
            raise TypeError(
                f"is_healthy: outcome must be an Outcome; got {quoted(outcome)}. Pass what run() "
                "gave."
            )
        low, high = self.healthy
        return low <= outcome.observed <= high


@cache
def _run(case: Case, treatment: Treatment) -> Outcome:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return case.make(treatment)


def scale_too_high() -> Outcome:
    """The healthy twin of `endless-backoff`: only the first scale, 2^30, is too high."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return runs.high_scale()


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "no-loss-scale",
            "FP16 autocast: no error, no NaN, and a loss that hardly moves",
            "share of zeros among the gradients of the last step",
            (0.0, 0.1),
            "gradient-underflow",
            "a gradient scaler, or BF16",
            "a learning rate a thousand times larger",
            "frozen-weights",
            runs.no_loss_scale,
        ),
        Case(
            "endless-backoff",
            "every step is skipped, and the scale falls and falls",
            "steps of 20 whose unscaled loss is finite",
            (20, 20),
            "overflow-forward",
            "standardise the input before it is cast",
            "a smallest scale of 128",
            "a first scale that is too high",
            runs.endless_backoff,
        ),
        Case(
            "half-adam",
            "model.half(): the scaler refuses, and without it all is NaN after one step",
            "weights that are not finite after step 0",
            (0, 0),
            "half-parameters",
            "FP32 weights, autocast and a scaler",
            "a learning rate a thousand times smaller",
            "second-step",
            runs.half_adam,
        ),
        Case(
            "clip-before-unscale",
            "AMP with clipping learns far more slowly than FP32",
            "gradient norm that the optimizer receives; 1 was asked for",
            (0.99, 1.01),
            "clip-before-unscale",
            "unscale_, then clip, then step",
            "a larger limit: 65536",
            "a learning rate that is too small",
            runs.clip_before_unscale,
        ),
        Case(
            "second-step",
            "weeks without trouble, then NaN for ever after one odd batch",
            "weights that are not finite at the end",
            (0, 0),
            "step-beside-scaler",
            "scaler.step alone",
            "a learning rate a hundred times smaller",
            "half-adam",
            runs.second_step,
        ),
        Case(
            "hand-norm",
            "some tokens have no influence; no NaN anywhere",
            "rows of 64 that leave the norm as zeros",
            (0, 0),
            "hidden-infinity",
            "square and mean in FP32, cast after",
            "a larger eps",
            "tokens that carry no information",
            runs.hand_norm,
        ),
        Case(
            "attention-logits",
            "NaN after the softmax, in FP16 only",
            "results of attention that are not finite, of 512",
            (0, 0),
            "overflow-forward",
            "shrink q before the product, widen after it",
            "softmax in FP32, after the product in FP16",
            "endless-backoff",
            runs.attention,
        ),
        Case(
            "frozen-weights",
            "pure BF16 stops improving early; the gradients look fine",
            "share of nonzero updates after which a weight kept its bits",
            (0.0, 0.5),
            "stagnant-weights",
            "FP32 master weights",
            "a loss scale of 65536",
            "no-loss-scale",
            runs.frozen_weights,
        ),
        Case(
            "positions",
            "long inputs behave as if all their places were one",
            "different angles among 64 positions",
            (64, 64),
            "rounded-integers",
            "compute the angles outside autocast",
            ".float() on both operands, inside autocast",
            "a network too small for long inputs",
            runs.positions,
        ),
        Case(
            "loss-meter",
            "the logged loss falls smoothly, validation does not",
            "logged mean ÷ true mean after 2,000 steps",
            (0.99, 1.01),
            "low-precision-loss",
            "add FP32 numbers, or loss.item()",
            ".float() on the finished sum",
            "a run that learns",
            runs.loss_meter,
        ),
        Case(
            "one-block",
            "the same loss to the last digit in every step",
            "different losses in 8 steps",
            (8, 8),
            "stale-casts",
            "enter autocast anew for each forward pass",
            "a learning rate ten times larger",
            "frozen-weights",
            runs.one_block,
        ),
        Case(
            "stale-amax",
            "FP8 is fine, until one spike spoils the steps that follow",
            "steps of 40 in which over half of an FP8 input became zero",
            (0, 0),
            "stale-fp8-scale",
            "a scale from the tensor itself",
            "a longer history of largest values",
            "a spike that spoils its own step",
            runs.stale_amax,
        ),
    )
}
"""The twelve cases by name."""
