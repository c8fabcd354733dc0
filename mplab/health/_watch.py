"""The health of a live training run, from hooks: in FP32, simulated, or real mixed precision.

The hooks look at outputs, gradients, the optimizer and the scaler, and change none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from mplab.health._findings import diagnose
from mplab.health._tracing import Origin, Tracer, format_of_dtype
from mplab.health._vitals import (
    casts_of,
    counts_of,
    norm_of,
    total,
    ulps,
    unseen,
    wide_updates,
    witness,
)
from mplab.health.records import Casts, Evidence, Shares, Step, added
from mplab.health.reports import Report
from mplab.numbers.formats import FP16, FP32, Format, require_format
from mplab.simulation.dispatch import OUTSIDE
from mplab.simulation.fp8 import Fp8Linear
from mplab.simulation.marks import mark_of

_push: Callable[[Tracer], Any] = Tracer.__enter__

_pop: Callable[[Tracer, Any, Any, Any], Any] = Tracer.__exit__

_SAMPLED = 1 << 18
"""Updates of one parameter whose median is taken, at most."""


class Health:
    """Watch a training run, and say what is wrong with it.

    Enter it before the first step, and call `step` after each one. Real automatic mixed
    precision, plain FP32 and `mplab.simulation.simulated` inside the `with` are all seen.
    Steps 0 and 1, every `trace_every`-th, and one after trouble are traced: each operation's
    numbers are looked at, so that the report can name the one that made an infinity.

    Cost on one CPU thread, for the two networks on digits: about 3 times a simulated run, and 3 to
    6 times one in FP32, whose steps take milliseconds; with `every=10` about 2 times either, with
    `trace_every=1` 3 to 9 times. A run in real FP16 took 1.2 to 1.9 times as long on processors
    that imitate FP16; the faster its own steps are, the more the watch weighs.

    Args:
        model: whose modules are watched.
        optimizer: whose updates are watched.
        fmt: the format by which gradients of an FP32 run are judged.
        scaler: `torch.amp.GradScaler`, whose calls are watched; for another scaler, tell
            `step` the scale and whether it skipped.
        every: take shares of gradients and updates in each `every`-th step.
        trace_every: how often to trace.
        weight_format: the format that FP32 tensors of weights are rounded to by hand.

    Examples:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Health(model, optimizer) as health:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         loss = (model(torch.ones(4, 3)) - 1).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         health.step(loss)
        >>> health.report().codes
        []
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        fmt: Format = FP16,
        scaler: Any = None,
        every: int = 1,
        trace_every: int = 50,
        weight_format: Format | None = None,
    ) -> None:
        if min(every, trace_every) < 1:
            raise ValueError(
                f"Health: every and trace_every must be at least 1; got {every} and "
                f"{trace_every}. Use 1 for each step."
            )
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise TypeError(
                f"Health: scaler must be a torch.amp.GradScaler; got {type(scaler).__name__}. "
                "Tell step the scale, and whether it skipped."
            )
        self.model, self.optimizer = model, optimizer
        self.fmt, self.weight_format = require_format("Health", fmt), weight_format
        self.scaler: Any = scaler if scaler is not None and scaler.is_enabled() else None
        self.every, self.trace_every = every, trace_every
        self.steps: list[Step] = []
        self.seen = Evidence(scaler=self.scaler is not None)
        self._tracer = Tracer()
        self._handles: list[Any] = []
        self._parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._loss_sums: tuple[float, Tensor] | None = None
        self._trace_next = False
        self._moved = False
        self._cast_once: set[int] = set()
        self._clear()

    @classmethod
    def watcher(cls, **options: Any) -> Callable[[nn.Module, torch.optim.Optimizer], Health]:
        """A function of a model and an optimizer that begins to watch them.

        What it returns has `step(loss, scale, skipped)` and `close()`. All watches of one
        watcher are in its attribute `watches`, for their reports.

        Args:
            options: those of `Health`.
        """
        watches: list[Health] = []

        def watch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Health:
            watches.append(cls(model, optimizer, **options).__enter__())
            return watches[-1]

        watch.watches = watches  # type: ignore[attr-defined]
        return watch

    # Beginning and end ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._handles:
            raise RuntimeError("Health: a watch must be closed before it is entered again.")
        for name, module in self.model.named_modules():
            shown = self._shown(name, module)
            leaf = next(module.children(), None) is None
            before, after = partial(self._before, shown), partial(self._after, shown, leaf)
            self._handles += [
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after),
            ]
            if isinstance(module, Fp8Linear):
                module.on_cast = partial(self._cast, shown, module)
        for place, (_, p) in enumerate(self._parameters):
            hook = partial(self._accumulated, place)
            self._handles.append(p.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self._handles += [
                self.optimizer.register_step_pre_hook(self._before_update),
                self.optimizer.register_step_post_hook(self._after_update),
            ]
        if self.scaler is not None:
            self.scaler.unscale_ = partial(self._unscale, self.scaler.unscale_)
            self.scaler.step = partial(self._scaler_step, self.scaler.step)
        half = (n for n, p in self.model.named_parameters() if p.dtype == torch.float16)
        self.seen.half_parameters = list(half)
        self._set_tracing()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take all hooks away; the report stays."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for module in self.model.modules():
            if isinstance(module, Fp8Linear):
                module.on_cast = None
        if self.scaler is not None:
            for name in ("unscale_", "step"):
                self.scaler.__dict__.pop(name, None)
        self._stop_tracing()

    def _set_tracing(self) -> None:
        """Look at each operation of the coming step, or no longer."""
        number = len(self.steps)
        due = number < 2 or number % self.trace_every == 0 or self._trace_next
        wanted = due and bool(self._handles)  # a step may be told of after the watch was closed
        self._tracer.begin(number)
        if not wanted:
            self._stop_tracing()
        elif _get_current_dispatch_mode() is None:  # above another mode it would be lost
            _push(self._tracer)
            self._tracing = True

    def _stop_tracing(self) -> None:
        if self._tracing and _get_current_dispatch_mode() is self._tracer:
            _pop(self._tracer, None, None, None)
            self._tracing = False

    _tracing = False

    def _clear(self) -> None:
        """Forget what was collected in the step before."""
        self._flags: list[tuple[str, str, Tensor, Tensor]] = []
        self._shares: list[tuple[str, str, bool, Tensor]] = []
        self._casts: list[tuple[str, Casts, Tensor]] = []
        self._given: list[Tensor] = []
        self._raw: dict[int, Tensor] = {}
        self._norm: float | None = None
        self._before_weights: list[Tensor] | None = None
        self._wide: list[Tensor] | None = None
        self._updates = self._unscales = 0
        self._in_scaler = False
        self._scale: float | None = None
        self._skipped: bool | None = None
        self._ran = False

    def _shown(self, name: str, module: nn.Module) -> str:
        kind = type(module).__name__
        return f"{name} ({kind})" if name else kind

    # Modules --------------------------------------------------------------------------------

    def _before(self, name: str, module: nn.Module, args: Any) -> None:
        self._tracer.enter_module(name)
        with unseen():
            given = [t for t in args if isinstance(t, Tensor) and t.is_floating_point()]
            self._given.append(witness(given[0]) if given else torch.zeros(()))

    def _after(self, name: str, leaf: bool, module: nn.Module, args: Any, output: Any) -> None:
        self._tracer.leave_module()
        before = self._given.pop() if self._given else torch.zeros(())
        for t in output if isinstance(output, list | tuple) else (output,):
            if isinstance(t, Tensor) and t.is_floating_point() and t.layout is torch.strided:
                self._watch_output(name, leaf, before, t)

    def _watch_output(self, name: str, leaf: bool, before: Tensor, output: Tensor) -> None:
        self._ran = True
        with unseen():
            self._flags.append(("forward", name, before.to(output.device), witness(output)))
        if leaf and output.requires_grad:
            mark, low = mark_of(output), format_of_dtype(output.dtype)
            if mark is not None and mark.into is not None:
                low = mark.into.fmt
            what_if = low is None or low == FP32
            fmt = self.fmt if low is None or what_if else low
            hook = partial(self._gradient, name, fmt, what_if)
            output.register_hook(hook)  # type: ignore[no-untyped-call]

    def _gradient(self, name: str, fmt: Format, what_if: bool, gradient: Tensor) -> None:
        with unseen():
            found = witness(gradient)
            self._flags.append(("backward", name, found, found))
            if len(self.steps) % self.every == 0:
                self._shares.append((name, fmt.name, what_if, counts_of(gradient, fmt, what_if)))

    def _cast(self, name: str, layer: Fp8Linear, role: str, x: Tensor, scale: float) -> None:
        if len(self.steps) % self.every == 0:
            fmt = layer.formats[role]
            first = Casts(fmt.name, layer.scaling, scale, 0.0, 0, 0, 0)
            with unseen():
                self._casts.append((f"{name} {role}", first, casts_of(x, fmt, scale)))

    def _accumulated(self, place: int, p: Tensor) -> None:
        if p.grad is not None:
            with unseen():
                self._raw[place] = norm_of(p.grad)

    # Optimizer and scaler -------------------------------------------------------------------

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._tracer.updating = True
        self._updates += 1
        if self.scaler is not None and not self._in_scaler:
            self.seen.beside += 1
        found = getattr(optimizer, "found_inf", None)  # of a fused optimizer, which skips itself
        if found is not None and float(found):
            self._skipped = True
        if self._updates > 1:
            return
        plain = len(args) <= 1 and not kwargs  # without a closure; the first is the optimizer
        with unseen():
            scale = getattr(optimizer, "grad_scale", None)
            gradients = [p.grad for _, p in self._parameters if p.grad is not None]
            norm = total([norm_of(g) for g in gradients])
            self._norm = norm / float(scale) if norm is not None and scale is not None else norm
            if len(self.steps) % self.every == 0 and plain and scale is None:
                self._before_weights = [p.detach().clone() for _, p in self._parameters]
                self._wide = wide_updates(optimizer, [p for _, p in self._parameters])

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._tracer.updating = False

    def _unscale(self, original: Callable[..., Any], optimizer: Any) -> Any:
        with unseen():
            gradients = [p.grad for _, p in self._parameters if p.grad is not None]
            now, raw = total([norm_of(g) for g in gradients]), total(list(self._raw.values()))
        scale = float(self.scaler.get_scale())
        changed = now is not None and raw is not None and math.isfinite(raw) and now < 0.999 * raw
        if changed and not self._unscales and self.seen.clipped_scaled is None:
            assert now is not None and raw is not None
            self.seen.clipped_scaled = (raw, now, scale)
        self._unscales += 1
        return original(optimizer)

    def _scaler_step(
        self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._scale = float(self.scaler.get_scale())
        before, self._in_scaler = self._updates, True
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            self._in_scaler = False
            self._skipped = bool(self._skipped) or self._updates == before
            self.seen.unscaled_twice += self._unscales > 1
            self._unscales = 0

    # One step -------------------------------------------------------------------------------

    def step(
        self, loss: Tensor | float, scale: float | None = None, skipped: bool | None = None
    ) -> None:
        """Record the step that has just ended.

        Args:
            loss: without the loss scale.
            scale: of the loss in this step; known already where `scaler` is watched.
            skipped: whether the weights were left alone; known already likewise.
        """
        with unseen():
            self._meter(loss)
            factor = scale if scale is not None else self._scale or 1.0
            idle = self.optimizer is not None and not self._updates
            left = skipped if skipped is not None else bool(self._skipped) or idle
            raw = total(list(self._raw.values()))
            record = Step(float(loss), factor, left)
            record.gradient_norm = None if raw is None else raw / factor if factor else math.nan
            record.norm_at_optimizer = self._norm
            self._look_at_weights(record)
            record.layers = self._layers()
            record.fp8 = self._fp8()
            record.origins = self._origins(len(self.steps), loss)
            self._look_at_casts(record)
        if self._ran and not self._raw and self._parameters and not self._updates:
            self.seen.no_gradient += 1
        self._moved = bool(self._updates) and not left
        self.steps.append(record)
        trouble = bool(record.origins) or left or not math.isfinite(record.loss)
        self._trace_next = trouble and not self._tracing
        self._clear()
        self._set_tracing()

    def _meter(self, loss: Tensor | float) -> None:
        """Sum the loss exactly, and as `total += loss` would in its own format."""
        if isinstance(loss, Tensor) and loss.dtype in (torch.float16, torch.bfloat16):
            true, meter = self._loss_sums or (0.0, torch.zeros_like(loss.detach()))
            self._loss_sums = (true + float(loss), meter + loss.detach())
            fmt = format_of_dtype(loss.dtype)
            count = len(self.steps) + 1
            means = (s / count for s in (self._loss_sums[0], float(self._loss_sums[1])))
            self.seen.meters = (fmt.name if fmt else str(loss.dtype), *means)  # type: ignore[assignment]

    def _look_at_weights(self, record: Step) -> None:
        norms = [norm_of(p) for _, p in self._parameters]
        record.weight_norm = total(norms) or 0.0
        if not math.isfinite(record.weight_norm):
            bad = (~torch.isfinite(p) for _, p in self._parameters)
            record.nonfinite_weights = sum(int(b.sum()) for b in bad)
        buffers = [(n, b) for n, b in self.model.named_buffers() if b.is_floating_point()]
        if len(self.steps) % self.every == 0 and not self.seen.bad_buffers:
            self.seen.bad_buffers = [n for n, b in buffers if not math.isfinite(float(witness(b)))]
        if self._before_weights is None or self._wide is None:
            return
        ratios = []
        pairs = zip(self._parameters, self._before_weights, self._wide, strict=True)
        for (_, p), before, update in pairs:
            moving = (update != 0) & torch.isfinite(update)
            record.updated += int(moving.sum())
            record.unmoved += int((moving & (p.detach() == before)).sum())
            fmt = self.weight_format or format_of_dtype(p.dtype) or FP32
            ratio = (update.abs() / ulps(before, fmt))[moving]
            ratios.append(ratio[:: max(1, len(ratio) // _SAMPLED)])
        together = torch.cat(ratios)
        record.update_ulps = float(together.median()) if len(together) else None

    def _layers(self) -> dict[str, Shares]:
        if not self._shares:
            return {}
        rows = torch.stack(_together([counts for *_, counts in self._shares])).tolist()
        pairs = zip(self._shares, rows, strict=True)
        layers = added((name, Shares(fmt, what_if, *row)) for (name, fmt, what_if, _), row in pairs)
        named = enumerate(self.model.named_modules())
        order = {self._shown(name, module): i for i, (name, module) in named}
        return dict(sorted(layers.items(), key=lambda item: order.get(item[0], 0)))

    def _fp8(self) -> dict[str, Casts]:
        if not self._casts:
            return {}
        rows = torch.stack(_together([counts for *_, counts in self._casts])).tolist()
        pairs = zip(self._casts, rows, strict=True)
        return added(
            (name, Casts(*first[:3], amax, *map(int, counts)))
            for (name, first, _), (amax, *counts) in pairs
        )

    def _origins(self, number: int, loss: Tensor | float) -> list[Origin]:
        """The operations that the tracer saw, else the modules that hooks saw."""
        origins = self._tracer.origins_of(loss)
        if self._flags:
            values = torch.stack(
                _together([torch.stack(flag[2:]) for flag in self._flags])
            ).tolist()
            previous = OUTSIDE
            for (phase, name, *_), (before, after) in zip(self._flags, values, strict=True):
                if math.isfinite(after) or phase in origins:
                    previous = name if phase == "backward" else OUTSIDE
                    continue
                if phase == "backward":
                    module = previous if previous != OUTSIDE else "the loss"
                else:
                    module = name if math.isfinite(before) else f"what comes before {name}"
                origins[phase] = Origin(number, phase, module, "", "infinity or NaN")
        return list(origins.values())

    def _look_at_casts(self, record: Step) -> None:
        """Whether a weight was used without being cast anew after it changed."""
        seen, tracer = self.seen, self._tracer
        seen.integers = seen.integers or tracer.integers
        if not (self._tracing and self._ran):
            return
        places = {p.data_ptr() for _, p in self._parameters}
        now = places & tracer.casts
        if self._moved and self._cast_once and tracer.low and not now:
            seen.stale.append(len(self.steps))
        self._cast_once |= now

    def report(self) -> Report:
        """What was observed, what it means, and what to check."""
        return Report(diagnose(self.steps, self.seen), list(self.steps), self.seen)


def _together(parts: list[Tensor]) -> list[Tensor]:
    """The same on one device, where a model spans several."""
    return [part.to(parts[0].device) for part in parts]
