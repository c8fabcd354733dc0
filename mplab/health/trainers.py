"""Callbacks for Lightning, transformers and Keras 3 that watch a training run.

Each watches a run from its first step to its last, prints progress, and ends with the report. A
training run that is resumed or started again is watched anew. Tried with Lightning from 2.5,
transformers from 4.46 and Keras 3.15.
"""

import math
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from mplab.common.installation import require_packages
from mplab.health.digest import Digest
from mplab.health.measures import rank
from mplab.health.reports import Report
from mplab.health.watch import Health
from mplab.numbers.checks import one_of


def lightning_callback(**settings: Any) -> Any:
    """Make a callback for `lightning.pytorch.Trainer` that watches a run and all its optimizers.

    Its attribute `health` is the watch of the latest run, `report` the report at its end. The loss
    of a step is the one from which its backward passes began.
    When several processes train together, every one needs the callback: each watches its own part,
    and at the end the first one prints the findings of all, with the rank where each began.
    Validation between steps is not watched.

    Args:
        settings: `say_every`, the steps between two lines of progress, 50 or 0 for none; `told`,
            called with each line, with each new problem, and at the end with the report, `print`;
            `on_nonfinite="raise"` ends the run with FloatingPointError after a step whose loss is
            not finite, and names the operation; `digest`, a file for the digests of the run, as in
            `mplab.health.Digest`; all others are options of `mplab.health.Health`.

    Raises:
        ValueError: `on_nonfinite` is neither "report" nor "raise".
        ModuleNotFoundError: Lightning is not installed.

    Examples:
        trainer = lightning.Trainer(callbacks=[lightning_callback(every=10)])
    """
    require_packages("lightning_callback", "lightning")
    from lightning.pytorch import Callback  # type: ignore[import-not-found,unused-ignore]

    return _made(lightning_callback, _ForLightning, Callback, settings)


def transformers_callback(**settings: Any) -> Any:
    """Make a callback for `transformers.Trainer`, like `lightning_callback`.

    After an error in the training, `close()` removes the hooks and makes the report; within
    `except` or `finally` it knows the error.

    Args:
        settings: as for `lightning_callback`.

    Raises:
        ModuleNotFoundError: transformers is not installed.

    Examples:
        trainer.add_callback(transformers_callback(every=10))
    """
    require_packages("transformers_callback", "transformers")
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

    return _made(transformers_callback, _ForTransformers, TrainerCallback, settings)


def keras_callback(**settings: Any) -> Any:
    """Make a callback for `fit` of Keras 3 on torch, like `lightning_callback`.

    Steps that a `LossScaleOptimizer` skips are known. Weights have Keras's names.

    Args:
        settings: as for `lightning_callback`.

    Raises:
        ModuleNotFoundError: Keras is not installed.

    Examples:
        model.fit(x, y, callbacks=[keras_callback(every=10)])
    """
    require_packages("keras_callback", "keras")
    from keras.callbacks import Callback  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return _made(keras_callback, _ForKeras, Callback, settings)


def _made(
    make: Callable[..., Any], ours: type, theirs: type, settings: dict[str, Any]
) -> Any:
    """Make a callback of ours that is one of the trainer's, too."""
    callback = type("HealthCallback", (ours, theirs), {})(make.__name__, **settings)
    callback.again = partial(make, **settings)
    return callback


class _Watching:
    """A watch from a trainer's callbacks; its errors never reach the trainer."""

    again: Callable[[], Any]

    def __init__(
        self,
        name: str,
        *,
        say_every: int = 50,
        told: Callable[[str], None] = print,
        on_nonfinite: Literal["report", "raise"] = "report",
        digest: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        one_of(name, "on_nonfinite", on_nonfinite, ("report", "raise"))
        self._say_every = say_every
        self._told = told
        self._raises = on_nonfinite == "raise"
        self._path = digest
        self._options = options
        self._first = rank() == 0
        self._digest: Digest | None = None
        self.health: Health | None = None
        self.report: Report | None = None

    def __reduce__(self) -> Any:
        """Pickle as a fresh callback, for trainers that start processes."""
        return self.again, ()

    def _begin(self, model: nn.Module, optimizer: Any, scaler: Any) -> Health:
        self.close()
        options = dict(self._options)
        if isinstance(scaler, torch.amp.GradScaler):
            options.setdefault("scaler", scaler)
        health = self.health = Health(model, optimizer, **options).__enter__()
        self.report = None
        self._said: set[str] = set()
        if self._path is not None:
            self._digest = Digest(model, optimizer, path=self._path).__enter__()
        return health

    def _step(self, scale: float | None = None, skipped: bool | None = None) -> None:
        """Record a step that had a backward pass."""
        health = self.health
        if health is None or not health._roots:
            return
        health.step(scale=scale, skipped=skipped)
        try:
            self._say(health)
        except Exception as error:  # in `told`
            health._stop(error)
        step = health.steps[-1]
        if self._raises and not math.isfinite(step.loss):
            origins = "; ".join(map(str, step.origins))
            self._end(gather=False)
            raise FloatingPointError(
                f"health: the loss of step {len(health.steps) - 1} is {step.loss}: "
                f"{origins or 'trace_every=1 would say where'}."
            )

    def _say(self, health: Health) -> None:
        """Print a line every `say_every` steps, and each problem once, in its first sentence."""
        number = len(health.steps)
        every = self._say_every
        due = bool(every) and number % every == 0
        sick = health.steps[-1].origins or number == 3
        if not (self._first and every and (due or sick)):
            return
        report = health.report()
        if due:
            codes = ", ".join(report.codes) or "no problems found"
            self._told(f"health, {health.line()}; {codes}")
        for f in report.findings:
            if f.level == "problem" and f.code not in self._said:
                self._said.add(f.code)
                self._told(f"health, {f.code}: {f.observed}")

    def close(self, *, gather: bool = False) -> Report | None:
        """Remove all hooks; return the report, if this ended the run."""
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
        """Make the report, as all trainers ask."""
        self._end()

    def _end(self, *, gather: bool = True) -> None:
        report = self.close(gather=gather)
        if report is None or not self._first:
            return
        try:
            self._told(repr(report))
        except Exception as error:
            report.evidence.error = f"{type(error).__name__}: {error}"


class _ForLightning(_Watching):
    _done = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        optimizers = trainer.optimizers
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._begin(module, optimizers[0] if optimizers else None, scaler)
        self._done = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *args: Any, **given: Any) -> None:
        if trainer.global_step > self._done:
            self._done = trainer.global_step
            self._step()

    on_validation_start = _Watching.pause
    on_validation_end = _Watching.resume

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._end(gather=False)  # the other processes may still train


class _ForTransformers(_Watching):
    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        optimizer = given.get("optimizer")
        inner = getattr(optimizer, "optimizer", optimizer)
        self._begin(given["model"], inner, getattr(optimizer, "scaler", None))

    on_step_begin = _Watching.resume

    def on_step_end(self, *args: Any, **given: Any) -> None:
        self._step()
        self.pause()  # an evaluation may come


class _KerasOptimizer:
    """An optimizer of Keras in the words of torch's."""

    def __init__(self, optimizer: Any, weights: Any, scale: float) -> None:
        rate = float(optimizer.learning_rate)
        self.param_groups = [{"params": [w.value for w in weights], "lr": rate}]
        self.grad_scale = scale


def _call(
    health: Health, layer: Any, call: Callable[..., Any], *args: Any, **given: Any
) -> Any:
    """Call a layer of Keras under the watch."""
    name = f"{layer.path} ({type(layer).__name__})"
    health.enter_layer(name, layer, args)
    out = call(*args, **given)
    health.leave_layer(name, True, layer, args, out)
    return out


class _ForKeras(_Watching):
    model: Any
    _optimizer: Any = None
    _layers: Any = ()

    def on_train_begin(self, logs: Any = None) -> None:
        health = self._begin(self.model, None, None)
        # Keras's optimizers are not torch's, and its layers run beside torch's hooks
        self._optimizer = self.model.optimizer
        self._optimizer.apply = partial(self._update, health, self._optimizer.apply)
        self._layers = [
            layer
            for layer in self.model._flatten_layers(include_self=False)
            if not any(layer._flatten_layers(include_self=False))
        ]
        for layer in self._layers:
            watched = partial(_call, health, layer, layer.call)
            object.__setattr__(layer, "call", watched)

    def _update(
        self,
        health: Health,
        apply: Callable[..., Any],
        gradients: Any,
        weights: Any = None,
    ) -> None:
        inner = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        scale = getattr(self._optimizer, "dynamic_scale", None)
        self._scale = 1.0 if scale is None else float(scale.value)
        before = int(inner.iterations)
        weights = weights or self.model.trainable_weights
        held = _KerasOptimizer(inner, weights, self._scale)
        health._before_update(held, (held,), {})
        apply(gradients, weights)
        health._after_update(held, (held,), {})
        self._skipped = int(inner.iterations) == before

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step(self._scale, self._skipped)

    on_test_begin = _Watching.pause
    on_test_end = _Watching.resume

    def close(self, *, gather: bool = False) -> Report | None:
        """Give the optimizer and the layers back their own methods, too."""
        if self._optimizer is not None:
            self._optimizer.__dict__.pop("apply", None)
        for layer in self._layers:
            layer.__dict__.pop("call", None)
        return super().close(gather=gather)
