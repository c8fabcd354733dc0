"""Rules that find faults in a watched run: what was observed, what it means, what to check.

Each rule looks at an observation, not at whether the loss falls: several faults hide behind a
falling loss.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from mplab.common.words import plural
from mplab.health.records import (
    Casts,
    Evidence,
    Magnitudes,
    Origin,
    Step,
    pooled_gradients,
)
from mplab.numbers.formats import FORMATS


class Finding(NamedTuple):
    """One finding: its code, its level ("problem", "watch" or "note"), and three sentences."""

    code: str
    level: str
    observed: str
    means: str
    check: str


_LEVELS = ("problem", "watch", "note")


def _at(level: str, code: str, observed: str, means: str, check: str) -> Finding:
    return Finding(code, level, observed, means, check)


_problem, _watch, _note = (partial(_at, level) for level in _LEVELS)


# Rules -----------------------------------------------------------------------------------
_Rule = Callable[[Sequence[Step], Evidence], Iterator[Finding]]


def _loss(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    """Whether the unscaled loss is finite: the rule to teach first."""
    bad = [i for i, step in enumerate(steps) if not math.isfinite(step.loss)]
    poisoned = next((i for i, step in enumerate(steps) if step.nonfinite_weights), None)
    if bad and (poisoned is None or bad[0] <= poisoned):
        # the weights that an overflow reached spoil all that comes later
        early = [steps[i] for i in bad if poisoned is None or i <= poisoned]
        origin = _culprit(early, "forward")
        where = f" {origin}." if origin else ""
        means = "The number is made in the forward pass, where no loss scale has acted"
        if any(step.scale != 1 for step in steps):
            means += ": a lower scale changes nothing"
        means += "."
        check = (
            "Look at the inputs and the range of that operation; scale the input down, or run "
            "this part in FP32. A minimum scale or nan_to_num only hides it."
        )
        first = steps[0].loss
        last = steps[bad[0] - 1].loss
        if bad[0] and abs(last) > 10 * abs(first) > 0:
            means = f"Before, the loss grew from {first:.3g} to {last:.3g}: the updates diverge."
            check = "Lower the learning rate or warm it up; look at the sign of the loss; clip."
        yield _problem(
            "overflow-forward",
            f"The unscaled loss was not finite in {len(bad)} of {len(steps)} steps, first in "
            f"step {bad[0]}.{where}",
            means,
            check,
        )
    elif bad or "uncleared-gradients" in seen.misuses:  # which says why it skips
        return
    elif sum(step.skipped for step in steps) > seen.idle:
        yield _skips(steps, seen)


def _culprit(steps: Iterable[Step], phase: str) -> Origin | None:
    """The most precise of the origins in these steps: the most frequent of them, first seen.

    An operation says more than a cast, whose input grew elsewhere, and a cast more than a module.
    """
    found = [o for step in steps for o in step.origins if o.phase == phase]
    times = Counter((o.module, o.operation) for o in found)

    def precision(o: Origin) -> tuple[bool, bool, int, int]:
        computes = o.operation != "_to_copy"
        return bool(o.operation), computes, times[o.module, o.operation], -o.step

    return max(found, key=precision, default=None)


def _skips(steps: Sequence[Step], seen: Evidence) -> Finding:
    """Overflow in the backward pass alone, which a lower scale usually cures."""
    count = sum(step.skipped for step in steps) - seen.idle
    went = [i for i, step in enumerate(steps) if not step.skipped]
    start = last = len(steps)  # how many were skipped at either end
    if went:
        start = went[0]
        last = len(steps) - 1 - went[-1]
    scale = steps[-1].scale
    observed = f"{count} of {len(steps)} steps were skipped; the loss was finite in all of them."
    origin = _culprit(steps[len(steps) - last :], "backward")
    never = [p.step for p in seen.probes if p.exponent < 0 and not p.finite]
    # an overflow is an infinity first
    nan = last >= 3 and origin is not None and origin.what == "NaN"
    if last and (never or nan or (last >= 5 and scale < 1)):
        shown = (
            f"The last {last} were skipped in a row, down to a scale of {scale:.3g}."
        )
        if never:
            shown = f"In step {never[-1]} gradients 2^24 times smaller were no better."
        return _problem(
            "backward-never-finite",
            f"{observed} {shown}",
            "A gradient is infinite or NaN at any scale: it is made in the backward pass.",
            f"{origin}." if origin else "Watch another step to see the operation.",
        )
    means = "Only the scaled backward pass overflowed; the scaler lowers the scale until it fits."
    many = 4 * count > len(steps) > 10
    if start <= 5 and start < len(steps) and not many:
        check = "Nothing. Step a schedule of learning rates only where the optimizer stepped."
        return _note("scale-finds-its-level", observed, means, check)
    found = scale / 2
    if start < len(steps):
        found = steps[start].scale
    check = f"Begin with a scale of {found:g}. Is this a resumed run? Load the scaler's state, too."
    grew = any(a.scale < b.scale for a, b in pairwise(steps))
    if grew and count > 2 * start:
        check = (
            "Give the scaler a longer growth_interval: it raises the scale too often."
        )
    return _watch("scale-finds-its-level", observed, means, check)


def _weights(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    first = next((i for i, step in enumerate(steps) if step.nonfinite_weights), None)
    if first is not None:
        step = steps[first]
        if step.gradient_norm is not None and math.isfinite(step.gradient_norm):
            phase, gradients = "update", "finite"
            made = "The update itself made them."
        else:
            phase, gradients = "backward", "not finite"
            made = "An overflow reached the weights."
        origin = next((o for o in step.origins if o.phase == phase), None)
        check = "Check the optimizer's eps, and who calls step."
        if not math.isfinite(step.loss):
            check = "See the finding about the loss, which was not finite before."
        elif origin:
            check = f"{origin}."
        yield _problem(
            "nonfinite-weights",
            f"After step {first}, whose gradients were {gradients}, "
            f"{plural(step.nonfinite_weights, 'weight')} had no finite value.",
            f"From here on every loss is NaN. {made}",
            check,
        )
    if seen.bad_buffers:
        yield _problem(
            "nonfinite-buffers",
            f"Buffers hold infinity or NaN: {', '.join(seen.bad_buffers[:3])}.",
            "A skipped step protects parameters, not running statistics; evaluation is NaN.",
            "Reset the statistics, and find the batch that overflowed.",
        )
    if seen.half_parameters:
        yield _problem(
            "half-parameters",
            f"{len(seen.half_parameters)} parameters are in FP16: {seen.half_parameters[0]}, …",
            "There are no FP32 master weights: a scaler refuses them, Adam's eps 1e-8 and the "
            "squares of small gradients become 0, and small updates are lost.",
            "Keep parameters in FP32, and use autocast with a scaler instead of model.half().",
        )
    if seen.no_gradient:
        yield _problem(
            "no-gradients",
            f"In {seen.no_gradient} steps seen no parameter had a gradient.",
            "backward() was not called, or the loss does not depend on them: a fault of the loop "
            "or the graph, not of precision.",
            "Look for loss.backward(), detach(), no_grad, or a model other than the optimizer's.",
        )
    if seen.idle:
        yield Finding(
            "no-update",
            "problem" if 2 * seen.idle > len(steps) else "note",
            f"In {seen.idle} of {len(steps)} steps the optimizer did not run.",
            "The weights stayed as they were.",
            "Call health.step() once after each optimizer.step(), and give Health the scaler if "
            "one skips steps.",
        )


def _training(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    """Faults of the loop that leave every number finite."""
    lost = seen.no_gradient or next(_underflow(steps, seen), None)
    finite = any(math.isfinite(step.loss) for step in steps)
    if seen.error or len(steps) < 3 or lost or not finite:
        return
    if seen.still and seen.passes:
        yield _watch(
            "zero-gradients",
            f"Zero or missing in every step: the gradients of {_some(sorted(seen.still))}.",
            "Nothing trains them: dead, saturated or unused units, zeros as input, weights that "
            "their cast makes 0, or a detach.",
            "Look at what these layers receive, and at what becomes of their results.",
        )


def _some(names: Sequence[str]) -> str:
    first = ", ".join(names[:3])
    return f"{first} and {len(names) - 3} more" if len(names) > 3 else first


def _underflow(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    """Gradients lost below a format: shown by a pass with larger ones, else suspected."""
    probes = [p for p in seen.probes if p.exponent > 0 and p.finite]
    pooled = pooled_gradients(steps)
    real = {name: s for name, s in pooled.items() if s.loses and s.total}
    if real and not probes:
        yield from _suspected_underflow(steps, seen, real)
    elif real:
        probe = max(probes, key=lambda p: p.error)
        if probe.error <= 0.02 and probe.share <= 0.02:
            return
        grave = probe.error > 0.1 or probe.share > 0.25
        most = f" More than half is lost of {_some(probe.lost)}." if probe.lost else ""
        yield _at(
            "problem" if grave else "note",
            "gradient-underflow",
            f"In step {probe.step} the backward pass was also run with gradients "
            f"2^{probe.exponent} times as large: the whole gradient differs by "
            f"{probe.error:.1%}.{most}",
            "So much is lost below the smallest numbers of the format, before .grad sees it. "
            "A flat loss here is no convergence.",
            "Use a loss scale, or a larger one, or BF16. A larger learning rate cannot help.",
        )


def _suspected_underflow(
    steps: Sequence[Step], seen: Evidence, layers: dict[str, Magnitudes]
) -> Iterator[Finding]:
    """Zeros beside numbers near the format's end, where no backward pass could be repeated."""
    nothing = all(s.zeros == s.total for s in layers.values()) and any(
        step.loss and math.isfinite(step.loss) for step in steps
    )
    for name, s in layers.items():
        # a layer of exact zeros beside others is cut off
        if (s.has_many_zeros and s.footroom < 0) or nothing:
            over = "larger gradients overflow elsewhere" if seen.probes else ""
            why = seen.unprobed or over or "the run was too short"
            yield _watch(
                "gradient-underflow",
                f"{s.zeros / s.total:.0%} of the gradients of {name} are zero in {s.fmt}, and the "
                "others near its smallest number.",
                f"Small gradients may be lost; no repeated backward pass could show it: {why}.",
                "Use a loss scale, or a larger one, or BF16. A larger learning rate cannot help.",
            )
            return


def _hidden(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    finite = [step for step in steps if math.isfinite(step.loss)]
    origin = _culprit(finite, "forward")
    if origin is not None:
        yield _problem(
            "hidden-infinity",
            f"{origin}, though the loss is finite.",
            "A later operation hid it, as 1/inf = 0 does: features silently become zero.",
            "Compute that operation in FP32, or scale its input down first.",
        )


_MISUSES: dict[str, tuple[int, str, str, str]] = {
    "loss-not-scaled": (
        3,
        "problem",
        "The scaler divided gradients by a scale that they never had.",
        "Call scaler.scale(loss).backward().",
    ),
    "scaled-loss": (
        3,
        "watch",
        "A log of it rises and falls with the scale; this report has divided it.",
        "Log the loss before scaler.scale, and pass that to step().",
    ),
    "clip-before-unscale": (
        1,
        "problem",
        "Something clipped gradients that were still multiplied by the scale.",
        "Order: scaler.unscale_(optimizer), clip, scaler.step(optimizer), scaler.update().",
    ),
    "uncleared-gradients": (
        1,
        "problem",
        "The next gradients are added to them, so that every step is skipped and the scale falls.",
        "Call optimizer.zero_grad() in each step, whether the scaler skipped it or not.",
    ),
    "kept-gradients": (
        3,
        "problem",
        "Each update follows the sum of all gradients so far.",
        "Call optimizer.zero_grad() after each update.",
    ),
    "unscaled-twice": (
        1,
        "problem",
        "Each call divides what earlier micro-batches accumulated by the scale again.",
        "Call unscale_, step and update once for each window of micro-batches.",
    ),
    "step-beside-scaler": (
        1,
        "problem",
        "Good steps are made twice or with scaled gradients, and skipped steps are made, too.",
        "Call only scaler.step(optimizer).",
    ),
}


"""Faults in a loop's calls: how often it is one, its level, what it means, what helps."""


def _scaler(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    for code, (least, level, means, check) in _MISUSES.items():
        told = seen.misuses.get(code, [])
        if len(told) >= least:
            times = f" This was seen {len(told)} times." if len(told) > 1 else ""
            yield _at(level, code, f"{told[0]}{times}", means, check)
    if seen.replaced:
        yield _problem(
            "replaced-gradients",
            f"Gradients were not finite after backward() in {len(seen.replaced)} steps, first in "
            f"step {seen.replaced[0]}, and finite at the optimizer.",
            "Something made numbers of them, as nan_to_num does: momentum and weight decay still "
            "move the weights.",
            "Skip such a step: use a gradient scaler, or leave optimizer.step() out.",
        )


def _stagnation(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    # An infinite weight keeps its bits, whatever its update.
    moving = [step for step in steps if step.updated and not step.nonfinite_weights]
    late = moving[-max(1, len(moving) // 3) :]
    unmoved = sum(s.unmoved for s in late)
    updated = sum(s.updated for s in late)
    if seen.resting > max(2, len(moving)):
        yield _problem(
            "stagnant-weights",
            f"In {seen.resting} steps seen each learning rate was 0.",
            "No weight moves by such an update.",
            "Look at the schedule of learning rates, and at how often it is stepped.",
        )
        return
    if (
        seen.wide_weights
        and len(moving) >= 3
        and all(s.unmoved == s.updated for s in moving)
    ):
        yield _problem(
            "stagnant-weights",
            f"No weight changed a bit in any of {len(moving)} steps seen, though gradients came.",
            "Each update is 0, or below half a unit in the last place of an FP32 weight.",
            "Print an update. Look at the learning rate, and at what the optimizer divides by: "
            "made from scaled gradients, a square is too large by the square of the scale.",
        )
    if seen.wide_weights or unmoved <= 0.5 * updated:
        return
    yield _problem(
        "stagnant-weights",
        f"Of the weights with an update that should move them, {unmoved / updated:.0%} kept their "
        f"bits (last {len(late)} steps seen).",
        "Updates below half a unit in the last place are lost when rounded to nearest.",
        "Keep FP32 master weights, or use stochastic rounding or Kahan summation; with these, bits "
        "may wait. A loss scale cannot help: the gradients are there.",
    )


def _numbers(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    if seen.stale:
        yield _problem(
            "stale-casts",
            f"In {len(seen.stale)} steps, first step {seen.stale[0]}, the forward pass used "
            "low-precision copies made before the weights changed.",
            "One autocast block holds several steps, and caches its copies of the weights.",
            "Enter autocast anew for each forward pass; update the weights outside.",
        )
    if seen.integers:
        where, largest, name, before, after = seen.integers
        yield _at(
            "problem" if 4 * after <= 3 * before else "note",
            "rounded-integers",
            f"Whole numbers up to {largest:g} were cast to {name} in {where}: of {before} "
            f"different ones {after} were left.",
            f"{name} holds every whole number only up to {2 ** FORMATS[name].precision}.",
            "If they are positions, time steps or indices, compute with them outside autocast.",
        )
    if seen.angles and seen.angles.error >= 0.5:
        where, name, largest, error = seen.angles
        yield _at(
            "problem" if error > 3 else "watch",
            "rounded-angles",
            f"A sine or cosine in {where} had arguments up to {largest:.4g} in {name}, which are "
            f"off by up to {error:.2g}.",
            "So large a part of a turn makes the result of the largest ones arbitrary.",
            "Compute angles in FP32, outside autocast.",
        )
    if seen.sums and seen.sums.error > 0.01:
        where, name, count, error = seen.sums
        yield _at(
            "problem" if error > 0.1 else "watch",
            "low-precision-sum",
            f"After {count:g} additions in place a sum in {name} was off by {error:.1%} of its "
            f"norm ({where}).",
            "Each addition rounds, and parts below half a unit in the last place are lost.",
            "Keep the sum in FP32; of losses, add loss.item().",
        )
    elif seen.low_loss and 4 * len(steps) >= 2 ** FORMATS[seen.low_loss].precision:
        yield _note(
            "low-precision-loss",
            f"The loss arrives in {seen.low_loss}, and {len(steps)} of them were seen.",
            "A sum of so many in this format, as `total += loss` makes it, rounds each time.",
            "Add loss.item(), a Python float.",
        )


def _fp8(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    """Operands in eight bits that are zero for the most part, because their scale does not fit."""
    for name in sorted({name for step in steps for name in step.fp8}):
        casts = [
            (i, step.fp8[name]) for i, step in enumerate(steps) if name in step.fp8
        ]
        lost = [(i, c) for i, c in casts if 2 * c.flushed > c.nonzero and _is_lost(c)]
        if not lost:
            continue
        first, cast = lost[0]
        fits = FORMATS[cast.fmt].max_finite / cast.scale
        observed = (
            f"{name} lost more than half of its numbers to zero in {len(lost)} of {len(casts)} "
            f"steps seen, first in step {first}: scale {cast.scale:.3g}, for numbers up to "
            f"{fits:.3g}; the largest was {cast.amax:.3g}."
        )
        if cast.scaling == "delayed":
            yield _at(
                "problem" if len(lost) > 1 else "note",
                "stale-fp8-scale",
                observed,
                "The history of largest magnitudes still holds a spike, or has not seen such small "
                "numbers yet.",
                "Use current scaling or a shorter history, and look at the batch with the spike. A "
                "longer history makes it last.",
            )
        else:
            yield _problem(
                "no-fp8-scale",
                observed,
                "Nothing brings these numbers into the format's range.",
                "Use a scale from the tensor itself (current scaling); for gradients too small "
                "for that, a loss scale.",
            )


def _is_lost(cast: Casts) -> bool:
    """Whether zeros are a symptom: there is no scale, or it leaves room for larger numbers."""
    unused = FORMATS[cast.fmt].max_finite / cast.scale > 8 * cast.amax
    return cast.scaling == "none" or (unused and cast.fmt.startswith("FP8"))


def _watching(steps: Sequence[Step], seen: Evidence) -> Iterator[Finding]:
    """Report what the watch could not see, so that a report does not promise too much."""
    if seen.error:
        yield _watch(
            "watch-stopped",
            f"The watch met an error of its own and stopped: {seen.error}",
            "The run was not affected; later steps were not watched.",
            "Watch with other options, and tell the authors of mplab.",
        )
    if seen.ended:
        first = seen.ended.strip().partition("\n")[0]
        yield _note(
            "ended-by-exception",
            f"The run ended by an exception in step {len(steps)}: {first[:200]}",
            "It is an error of the program; what is found below comes from the steps before.",
            "Read the traceback first.",
        )
    elif not steps:
        yield _problem(
            "no-steps",
            f"step() was never called; {seen.passes or 'no'} forward passes and "
            f"{seen.updates or 'no'} updates were seen since the watch began.",
            "Without steps nothing is recorded, so nothing can be found.",
            "Call health.step(loss) after each optimizer step.",
        )
    elif (seen.updates or seen.still) and not seen.passes and not seen.error:
        yield _note(
            "modules-unseen",
            f"No forward pass of the watched modules was seen in {len(steps)} steps.",
            "Another object ran: a compiled, wrapped or copied model.",
            "Give Health the object that the loop calls.",
        )


_RULES: tuple[_Rule, ...] = (
    _watching,
    _loss,
    _weights,
    _scaler,
    _numbers,
    _hidden,
    _underflow,
    _fp8,
    _stagnation,
    _training,
)


def diagnose(steps: Sequence[Step], seen: Evidence) -> list[Finding]:
    """The findings about a run, the gravest first."""
    return _gravest_first(finding for rule in _RULES for finding in rule(steps, seen))


def _gravest_first(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda f: _LEVELS.index(f.level))


def gathered(steps: Sequence[Step], found: list[Finding]) -> list[Finding]:
    """Collect the findings of all processes, each from the process whose trouble began first.

    An infinity or NaN in the gradients of one process makes the weights of all NaN, so the others
    see a fault only in the next step. All processes must call this.
    """
    bad = (i for i, s in enumerate(steps) if s.origins or not math.isfinite(s.loss))
    mine = (next(bad, math.inf), torch.distributed.get_rank(), found)
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    merged: dict[str, Finding] = {}
    for _, rank, theirs in sorted(every, key=lambda each: each[:2]):
        for f in theirs:
            if not all(f in others for *_, others in every):
                f = f._replace(observed=f"Rank {rank} first: {f.observed}")
            merged.setdefault(f.code, f)
    return _gravest_first(merged.values())
