"""Callbacks for Lightning and transformers that watch a training run.

Both watch a run from its first step to its last, print progress, and end with the report. A
training run that is resumed or started again is watched anew. Tried with Lightning from 2.5 and
transformers from 4.46.
"""

import math
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mplab.common.installation import require_packages
from mplab.health.digest import Digest
from mplab.health.measures import rank
from mplab.health.reports import Report
from mplab.health.watch import Health
from mplab.numbers.checks import one_of


def lightning_callback(
    *,
    say_every: int = 50,
    told: Callable[[str], None] = print,
    on_nonfinite: Literal["report", "raise"] = "report",
    digest: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Make a callback for `lightning.pytorch.Trainer` that watches a run and all its optimizers.

    Its attribute `health` is the watch of the latest run, `report` the report at its end.
    When several processes train together, every one needs the callback: each watches its own part,
    and at the end the first one prints the findings of all, with the rank where each began.
    Validation between steps is not watched.

    Args:
        say_every: steps between two lines of progress; 0 for none.
        told: called with each line, and at the end with the report.
        on_nonfinite: "raise" ends the run with FloatingPointError after a step whose loss is not
            finite, and names the operation.
        digest: a file for the digests of the run, as in `mplab.health.Digest`.
        options: options of `mplab.health.Health`.

    Raises:
        ValueError: `on_nonfinite` is neither "report" nor "raise".
        ModuleNotFoundError: Lightning is not installed.

    Examples:
        trainer = lightning.Trainer(callbacks=[lightning_callback(every=10)])
    """
    require_packages("lightning_callback", "lightning")
    from lightning.pytorch import Callback  # type: ignore[import-not-found,unused-ignore]

    kind = type("HealthCallback", (_ForLightning, Callback), {})
    settings = _Settings(say_every, told, on_nonfinite, digest, options)
    return kind(lightning_callback, settings)


def transformers_callback(
    *,
    say_every: int = 50,
    told: Callable[[str], None] = print,
    on_nonfinite: Literal["report", "raise"] = "report",
    digest: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Make a callback for `transformers.Trainer`, like `lightning_callback`.

    The loss is the one that the model returns: the sum over micro-batches if each was divided by
    the number of tokens in all of them, else the mean. Steps whose model returns no loss are not
    recorded. After an error in the training, `close()` removes the hooks and makes the report;
    within `except` or `finally` it knows the error.

    Args:
        say_every: steps between two lines of progress; 0 for none.
        told: called with each line, and at the end with the report.
        on_nonfinite: as in `lightning_callback`.
        digest: as in `lightning_callback`.
        options: options of `mplab.health.Health`.

    Raises:
        ModuleNotFoundError: transformers is not installed.

    Examples:
        trainer.add_callback(transformers_callback(every=10))
    """
    require_packages("transformers_callback", "transformers")
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

    kind = type("HealthCallback", (_ForTransformers, TrainerCallback), {})
    settings = _Settings(say_every, told, on_nonfinite, digest, options)
    return kind(transformers_callback, settings)


class _Settings(NamedTuple):
    """The arguments of a callback."""

    say_every: int
    told: Callable[[str], None]
    on_nonfinite: str
    digest: str | os.PathLike[str] | None
    options: dict[str, Any]


class _Watching:
    """A watch from a trainer's callbacks; its errors never reach the trainer."""

    def __init__(self, make: Callable[..., Any], settings: _Settings) -> None:
        chosen = settings.on_nonfinite
        one_of(make.__name__, "on_nonfinite", chosen, ("report", "raise"))
        self._make = make
        self._settings = settings
        self._first = rank() == 0
        self._digest: Digest | None = None
        self.health: Health | None = None
        self.report: Report | None = None
        self._said: set[str] = set()
        self._losses: list[Tensor] = []
        self._handles: list[Any] = []

    def __reduce__(self) -> Any:
        """Pickle as a fresh callback, for trainers that start processes."""
        given = self._settings._asdict()
        return partial(self._make, **given.pop("options"), **given), ()

    def _begin(self, model: nn.Module, optimizer: Any, scaler: Any) -> None:
        self.close()
        options = dict(self._settings.options)
        if isinstance(scaler, torch.amp.GradScaler):
            options.setdefault("scaler", scaler)
        self.health = Health(model, optimizer, **options).__enter__()
        self.report = None
        self._said = set()
        self._losses = []
        path = self._settings.digest
        if path is not None:
            self._digest = Digest(model, optimizer, path=path).__enter__()

    def _step(self, divisor: int) -> None:
        """Record a step from the losses of its micro-batches."""
        health = self.health
        if health is None or not self._losses:
            return
        health.step(sum(map(float, self._losses)) / divisor)
        self._losses = []
        try:
            self._say(health)
        except Exception as error:  # in `told`
            health._stop(error)
        step = health.steps[-1]
        if self._settings.on_nonfinite == "raise" and not math.isfinite(step.loss):
            origins = "; ".join(map(str, step.origins))
            self._end(gather=False)
            raise FloatingPointError(
                f"health: the loss of step {len(health.steps) - 1} is {step.loss}: "
                f"{origins or 'trace_every=1 would say where'}."
            )

    def _say(self, health: Health) -> None:
        """Print a line every `say_every` steps, and each problem once, in its first sentence."""
        number = len(health.steps)
        every = self._settings.say_every
        due = bool(every) and number % every == 0
        step = health.steps[-1]
        if not (self._first and every and (due or step.origins or number == 3)):
            return
        report = health.report()
        if due:
            codes = ", ".join(report.codes) or "no problems found"
            self._settings.told(f"health, {health.line()}; {codes}")
        for f in report.findings:
            if f.level == "problem" and f.code not in self._said:
                self._said.add(f.code)
                self._settings.told(f"health, {f.code}: {f.observed}")

    def close(self, *, gather: bool = False) -> Report | None:
        """Remove all hooks; return the report, if this ended the run."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._digest is not None:
            self._digest.__exit__(None, None, None)
            self._digest = None
        if self.health is None or self.report is not None:
            return None
        # A trainer that came to its end gathers.
        self.health.__exit__(*((None,) * 3 if gather else sys.exc_info()))
        self.report = self.health.report(gather=gather)
        return self.report

    def pause(self, *args: Any, **given: Any) -> None:
        """Pause the watch, if there is one; the arguments are the trainer's."""
        if self.health is not None:
            self.health.pause()

    def resume(self, *args: Any, **given: Any) -> None:
        """Continue likewise."""
        if self.health is not None:
            self.health.resume()

    def on_train_end(self, *args: Any, **given: Any) -> None:
        """Make the report, as both trainers ask."""
        self._end()

    def _end(self, *, gather: bool = True) -> None:
        report = self.close(gather=gather)
        if report is None or not self._first:
            return
        try:
            self._settings.told(repr(report))
        except Exception as error:
            report.evidence.error = f"{type(error).__name__}: {error}"


class _ForLightning(_Watching):
    _done = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        optimizers = trainer.optimizers
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._begin(module, optimizers[0] if optimizers else None, scaler)
        self._done = trainer.global_step

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach())
        # Lightning has divided by the micro-batches.
        if trainer.global_step > self._done:
            count = 1 if module.automatic_optimization else len(self._losses)
            self._done = trainer.global_step
            self._step(max(1, count))

    on_validation_start = _Watching.pause
    on_validation_end = _Watching.resume

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._end(gather=False)  # the other processes may still train


class _ForTransformers(_Watching):
    _summed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model = given["model"]
        optimizer = given.get("optimizer")
        inner = getattr(optimizer, "optimizer", optimizer)
        self._begin(model, inner, getattr(optimizer, "scaler", None))
        hook = model.register_forward_hook(self._passed, with_kwargs=True)
        self._handles.append(hook)

    def _passed(self, model: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Keep the loss that the model returns."""
        if torch.compiler.is_compiling() or not (
            model.training and torch.is_grad_enabled()
        ):
            return
        loss = output.get("loss") if isinstance(output, dict) else output
        loss = loss[0] if isinstance(loss, tuple) and loss else loss
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach())
            self._summed = kwargs.get("num_items_in_batch") is not None

    on_step_begin = _Watching.resume

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._step(1 if self._summed else max(1, len(self._losses)))
        self.pause()  # an evaluation may come
