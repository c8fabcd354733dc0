"""Watch the health of a training run by hooks: in FP32, simulated, or real mixed precision.

The hooks read outputs, gradients, weights and the scaler, and change none of them: a watched
run has the bits of an unwatched one. An error of the watch ends the watch, never the run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from heapq import nlargest
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.amp import GradScaler as AmpScaler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,
    _pop_mode,
    _push_mode,
)

from mplab.health import measures
from mplab.health.findings import diagnose, gathered
from mplab.health.measures import (
    largest_of,
    norm_of,
    register_hook,
    together,
    total,
    unseen,
    values_of,
    without_errors,
)
from mplab.health.probes import Prober, listen, unlisten
from mplab.health.records import (
    Casts,
    Evidence,
    Magnitudes,
    Origin,
    Step,
    added,
    magnitudes,
)
from mplab.health.reports import Report
from mplab.health.tracing import Tracer
from mplab.numbers.checks import integer
from mplab.numbers.formats import (
    FP16,
    FP32,
    Format,
)
from mplab.simulation.fp8 import Fp8Linear
from mplab.simulation.operations import tensors_in
from mplab.simulation.places import (
    low_format_of,
    this_thread,
)

_KEPT = 1 << 16
"""How many results of modules are remembered where `step()` is never called."""


class Health(measures.Watch):
    """Watch a training run, and say what is wrong with it.

    Enter it before the first step, and call `step` after each one. Real automatic mixed
    precision, plain FP32 and `mplab.simulation.simulated` inside the `with` are all seen.
    In a loop of your own, that is four lines:

        with Health(model, optimizer, scaler=scaler) as health:
            for batch in batches:
                ...
                health.step(loss)  # and at times print(health.line())
        health.report()

    `mplab.health.trainers` has callbacks for Lightning, transformers and Keras 3. Any other trainer
    needs a callback of its own that calls `health.__enter__()` before the first step,
    `health.step()` without a loss after each one, and `health.close()` at the end.

    Steps 0 and 1, every `trace_every`-th, and one after trouble are traced: each operation's
    numbers are checked, so that the report can name the operation that made an infinity.

    Of each layer without layers within, the report says how many powers of two its outputs and
    the gradients there were from the ends of their format: headroom to the largest finite number,
    footroom to the smallest; `mplab.pictures.headroom` draws them. A run in FP32 throughout is
    judged by FP16. In traced steps the products, powers and sums in the `forward` of other modules
    are measured, too.

    Of casts to eight bits, the share that became zero, the share that saturated, and the
    signal-to-noise ratio are measured: of `mplab.simulation.Fp8Linear` each operand, of all others,
    such as those of torchao's layers, in the traced steps.

    Zeros among gradients in FP16 or FP8 may be losses, and skipped steps may be no fault of the
    scale. Then the next backward pass is repeated with gradients of another size, before it runs
    as ever: the difference is what the size costs. That happens at most at steps 1, 20, 40, 80
    and so on, takes up to five backward passes and the memory of the gradients in FP32 twice, and
    changes no bit of the run. Passes through functions written in Python, checkpoints, compiled
    modules and hooks are not repeated, and none where several processes train.

    Cost on one CPU thread, for a Llama of four layers and width 256 on 256 tokens in BF16: 1.25
    times the steps' own CPU time, with `every=10` 1.1 times, traced steps included; where the
    processor has matrix units for BF16, and the steps take less, 1.4 and 1.15 times. Networks
    whose steps take milliseconds pay more.

    Where parameters are spread over processes, each process watches its own part. Compiled modules
    are watched from outside: results, gradients and weights. To see casts, do not compile.

    Args:
        model: the model whose modules are watched.
        optimizer: the optimizer that the loop steps. All others that update parameters of the
            model are watched, too, also within the backward pass. Without it, an optimizer that
            never runs is not missed.
        scaler: `torch.amp.GradScaler` or `mplab.scaling.GradScaler`, whose calls are watched;
            for another scaler, pass `step` the scale and whether it skipped.
        every: look at gradients of outputs, and at updates, in each `every`-th step; in the others
            only at the loss, the scale, the norms, and whether outputs are finite.
        trace_every: trace each `trace_every`-th step.

    Raises:
        TypeError: a number is no integer, or `optimizer` not one optimizer.
        ValueError: a number below 1, or an optimizer of another model.

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

        Layers in FP8:

        >>> from mplab.simulation import convert_linears
        >>> _ = torch.manual_seed(0)
        >>> layer = convert_linears(torch.nn.Linear(32, 8), scaling="mxfp8")
        >>> with Health(layer) as health:
        ...     layer(torch.randn(64, 32)).square().mean().backward()
        ...     health.step(0.0)
        >>> for operand, cast in health.steps[0].fp8.items():
        ...     print(f"{operand}: {cast.fmt}, {cast.flushed} zero, {cast.snr:.0f} dB")
        Fp8Linear input: FP8_E4M3, 0 zero, 31 dB
        Fp8Linear weight: FP8_E4M3, 0 zero, 31 dB
        Fp8Linear grad_output for grad_weight: FP8_E4M3, 0 zero, 31 dB
        Fp8Linear input for grad_weight: FP8_E4M3, 0 zero, 31 dB
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        scaler: Any = None,
        every: int = 1,
        trace_every: int = 50,
    ) -> None:
        super().__init__()
        if optimizer is not None:
            measures.require_optimizer("Health", optimizer, model)
        if isinstance(scaler, AmpScaler) and not scaler.is_enabled():
            scaler = None
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.every = integer("Health", "every", every, least=1)
        self.trace_every = integer("Health", "trace_every", trace_every, least=1)
        self.steps: list[Step] = []
        self.seen = Evidence()
        self._watched = [
            (_shown(name, module), module, leaf)
            for name, module, leaf in measures.watched_modules(model)
        ]
        self._branches = {name for name, _, leaf in self._watched if not leaf}
        self._tracer = Tracer(self.seen, self._narrowed, self._widened)
        self._names: dict[Tensor, str] = {
            p: name for name, p in model.named_parameters() if p.requires_grad
        }
        self._prober = Prober(self.seen, self._names)
        self._trace_next = False
        self._tracing = False
        self._moved = False
        # Parameters whose gradients were used by an update or refused by the scaler, and their size
        # as the latest backward pass began: a version would not tell of `.grad.data.zero_()`.
        self._spent: dict[Tensor, float] = {}
        self._mixed = False
        self._cast_once: dict[int, Format] = {}
        self._stopped = False
        # Modules whose results hold infinities that are meant.
        self._masks: set[str] = set()
        self._earlier: dict[str, float] = {}
        self._scaled: set[Any] = set()
        self._begin_step()

    # Beginning and end ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._require_closed()
        self._around = _get_current_dispatch_mode()
        for shown, module, leaf in self._watched:
            before = partial(self.enter_layer, shown)
            after = partial(self.leave_layer, shown, leaf)
            self._handles += [
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after, always_call=True),
            ]
            if isinstance(module, Fp8Linear):
                module.on_cast = partial(self._cast, shown, module)
        for p in self._names:
            handle = p.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            self._handles.append(handle)
        # Of all optimizers, because a loop may have others than the one it names.
        self._handles += [
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        listen(self._before_backward)
        # A scaler has no hooks, so that its methods are replaced until `close`.
        if self.scaler is not None:
            self.scaler.scale = partial(self._scaling, self.scaler.scale)
            self.scaler.unscale_ = partial(self._unscale, self.scaler.unscale_)
            self.scaler.step = partial(self._scaler_step, self.scaler.step)
        with unseen():
            self._finite: set[str] = set()  # names of buffers, once seen so
            self._look_at_buffers()
        self.seen.still = set(self._names.values())
        self.seen.wide_weights = all(p.element_size() >= 4 for p in self._names)
        groups = self.optimizer.param_groups if self.optimizer else ()
        held = {p for group in groups for p in group["params"]}
        masters = held - self._names.keys()
        self.seen.half_parameters = [
            n
            for p, n in self._names.items()
            if low_format_of(p) == FP16 and (p in held or not masters)
        ]
        self._begin_step()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception):
            self.seen.ended = f"{kind.__name__}: {error}"
        self.close()

    def _stop(self, error: Exception) -> None:
        """Stop: an error of the watch must not stop training."""
        self.seen.error = self.seen.error or f"{type(error).__name__}: {error}"
        self.pause()

    def pause(self) -> None:
        """Pause until `resume`, as for an evaluation between two steps."""
        self._stopped = True
        self._stop_tracing()

    def resume(self) -> None:
        """Continue after `pause`."""
        if self._stopped and not self.seen.error:
            self._stopped = False
            self._trace()

    def close(self) -> None:
        """Remove all hooks; the report stays."""
        self._remove_hooks()
        self._prober.cancel()
        unlisten(self._before_backward)
        for module in self.model.modules():
            if isinstance(module, Fp8Linear):
                module.on_cast = None
        if self.scaler is not None:
            for name in ("scale", "unscale_", "step"):
                self.scaler.__dict__.pop(name, None)
        self._stop_tracing(anywhere=True)

    def _forget(self) -> None:
        self._known = measures.Known()
        self._flags: list[tuple[str, str, Tensor]] = []
        self._outputs: list[measures.Row] = []
        self._gradients: list[measures.Row] = []
        self._casts: list[measures.Row] = []
        self._tracer.events = []

    def _begin_step(self) -> None:
        """Forget the observations of the step before, and decide what to look at in this one."""
        self._forget()
        self._raw: dict[Tensor, Tensor] = {}
        self._received: dict[Tensor, Tensor] = {}
        # A closure's last gradient may be zero, as L-BFGS converges, and its others not.
        self._first_norms: list[tuple[str, Tensor]] = []
        self._movement = measures.Movement()
        self._updates = 0
        self._unscales: Counter[Any] = Counter()
        self._in_scaler = False
        self._results: list[Tensor] = []  # of `scaler.scale`
        self._roots: list[Tensor] = []
        self._scale = 1.0
        self._skipped: bool | None = None
        self._ran: set[str] = set()

        number = len(self.steps)
        traced = number < 2 or number % self.trace_every == 0 or self._trace_next
        # A trace of weights that are not finite would blame any layer.
        spoilt = bool(self.steps and self.steps[-1].nonfinite_weights)
        # `step` may be called after `close`.
        self._due = traced and not spoilt and bool(self._handles)
        self._counting = number % self.every == 0
        self._tracer.begin(number)
        self._stop_tracing()
        self._trace()

    def _trace(self) -> None:
        if not self._due or self._stopped:
            return
        # On top of a mode that is left before it, the tracer would be lost; a simulation leaves it.
        top = _get_current_dispatch_mode()
        if top is self._around or top is this_thread().innermost:
            self._tracer.__enter__()  # type: ignore[no-untyped-call]
            self._tracing = True

    def _stop_tracing(self, *, anywhere: bool = False) -> None:
        above = []
        ends = (self._tracer, None)
        if anywhere and self._tracing:  # modes that were entered later stay
            while _get_current_dispatch_mode() not in ends:
                above.append(_pop_mode())
        if self._tracing and _get_current_dispatch_mode() is self._tracer:
            self._tracer.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._tracing = False
        for mode in reversed(above):
            _push_mode(mode)

    # Modules --------------------------------------------------------------------------------

    @without_errors
    def enter_layer(self, name: str, module: nn.Module, args: Any) -> None:
        """Attribute what follows to a layer; for layers that run beside torch's hooks."""
        self._tracer.enter_module(name)
        first = next(filter(measures.is_readable, args), None)
        if first is not None:
            # Now, because a layer may write into its input.
            with unseen():
                self._flags.append(("input", name, self._largest(first)))

    @without_errors
    def leave_layer(
        self, name: str, leaf: bool, module: nn.Module, args: Any, output: Any
    ) -> None:
        """Return to the layer around this one, and look at its result."""
        self._tracer.leave_module()
        if len(self._flags) > _KEPT and not self.steps:
            self._forget()
        if isinstance(output, dict):
            output = list(output.values())
        elif not isinstance(output, list | tuple):
            output = (output,)
        for t in output:
            if measures.is_readable(t):
                self.seen.passes += not self._ran
                self._ran.add(name)
                self._watch_output(name, leaf, t)

    def _watch_output(self, name: str, leaf: bool, output: Tensor) -> None:
        low = low_format_of(output)
        self._mixed = self._mixed or low is not None
        what_if = not self._mixed
        fmt = FP16 if what_if else low or FP32
        with unseen():
            largest = self._largest(output)
            meant = self._tracing and self._tracer.excuses(output)
            self._flags.append(("meant" if meant else "forward", name, largest))
            if leaf and self._counting:
                found = measures.magnitudes_of(name, output, largest, fmt, what_if)
                self._outputs.append(found)
        if leaf and (self._counting or self._due) and output.requires_grad:
            hook = partial(self._gradient, name, fmt, what_if)
            register_hook(output, hook)  # type: ignore[no-untyped-call]

    def _widened(self, module: str, operation: str, output: Tensor) -> None:
        """Look at a result in the forward pass of a module with others in it."""
        fmt = low_format_of(output)
        if fmt and module in self._branches:
            largest = largest_of(output)
            # A mask, as (1 - seen) * -1e9 or the format's least number, is no large result.
            if largest == FP16.max_finite or 1e9 < largest < math.inf:
                return
            name = f"{module} {operation}"
            found = measures.magnitudes_of(name, output, largest, fmt, False)
            self._outputs.append(found)

    def _largest(self, t: Tensor) -> Tensor:
        """`largest_of` a tensor; of one that several modules pass on it is taken once."""
        found: Tensor | None = self._known.get(t)
        if found is None:
            found = largest_of(t)
            self._known.put(t, found)
        return found

    @without_errors
    def _gradient(
        self, name: str, fmt: Format, what_if: bool, gradient: Tensor
    ) -> None:
        with unseen():
            largest = largest_of(gradient)
            self._flags.append(("backward", name, largest))
            if self._counting:
                found = measures.magnitudes_of(name, gradient, largest, fmt, what_if)
                self._gradients.append(found)

    @without_errors
    def _cast(
        self,
        name: str,
        layer: Fp8Linear,
        operand: str,
        x: Tensor,
        low: Tensor,
        factor: Tensor,
    ) -> None:
        if self._counting and x.numel():
            fmt = layer.how.casts()[operand.split()[0]].fmt
            with unseen():
                counts = measures.casts_of(x, low, factor, fmt)
            what = fmt.name, layer.how.name
            self._casts.append((f"{name} {operand}", what, counts))

    def _narrowed(self, phase: str, module: str, x: Tensor, low: Tensor) -> None:
        """Look at a cast to eight bits in a traced step, after whatever scale the program took."""
        fmt = low_format_of(low)
        assert fmt is not None
        counts = measures.casts_of(x, low.float(), torch.ones_like(x), fmt)
        start = f"{module} {phase} cast"
        number = sum(name.startswith(start) for name, *_ in self._casts) + 1
        self._casts.append((f"{start} {number}", (fmt.name, "program"), counts))

    @without_errors
    def _before_backward(self, roots: list[Tensor], starts: Any) -> None:
        self._roots += [
            t.detach()
            for t in roots
            if measures.is_readable(t) and t.numel() == 1 and not t.is_complex()
        ]
        self._prober.run(len(self.steps), roots, starts)
        with unseen():
            left = self._norms(self._spent)
            sizes = together(list(left.values())).tolist() if left else []
            pairs = zip(left, sizes, strict=True)
            self._spent = {p: size for p, size in pairs if size}

    @without_errors
    def _accumulated(self, p: Tensor) -> None:
        if p.grad is not None:
            with unseen():
                self._raw[p] = norm_of(p.grad)
        elif p in self._received:  # an optimizer in the backward pass has used it
            self._raw[p] = self._received[p]
        name = self._names[p]
        if p in self._raw and name in self.seen.still:
            self._first_norms.append((name, self._raw[p]))

    # Optimizer and scaler -------------------------------------------------------------------

    def _own(self, optimizer: Any) -> set[Tensor]:
        """The parameters that an optimizer updates; all, if it updates copies."""
        held = {p for group in optimizer.param_groups for p in group["params"]}
        own = held & self._names.keys()
        if not own and optimizer is self.optimizer:
            return set(self._names)
        return own

    @without_errors
    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        own = self._own(optimizer)
        if not own:
            return
        self._updates += 1
        self.seen.updates += 1
        # args begin with the optimizer; a closure computes the gradients within the step
        by_closure = len(args) > 1 or kwargs.get("closure") is not None
        self._tracer.by_closure = by_closure
        self._tracer.updating = True
        if self.scaler is not None and not self._in_scaler:
            known = optimizer is self.optimizer or optimizer in self._scaled
            if known:
                self._note(
                    "step-beside-scaler", "optimizer.step() ran outside scaler.step()."
                )
        # A fused optimizer skips by itself.
        found = getattr(optimizer, "found_inf", None)
        if found is not None and float(found):
            self._skipped = True
        elif self._counting:
            with unseen():
                self._movement.begin(optimizer)
        if not by_closure:
            self._measure_gradients(optimizer, own)

    @without_errors
    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        own = self._own(optimizer)
        if not own:
            return
        self._tracer.updating = False
        if self._tracer.by_closure:
            self._measure_gradients(optimizer, own)
        self._spent |= dict.fromkeys(own, 0.0)

    def _measure_gradients(self, optimizer: Any, own: set[Tensor]) -> None:
        """Record the gradients that the optimizer receives, before its first update in a step."""
        with unseen():
            scale = getattr(optimizer, "grad_scale", None)
            norms = self._norms(own - self._received.keys())
            self._look_for_spent(norms)
            for p, norm in norms.items():
                self._received[p] = norm if scale is None else norm / scale
                if p not in self._raw and self._names[p] in self.seen.still:
                    self._first_norms.append((self._names[p], norm))  # by hand
            self._movement.measure_gradients()

    def _norms(self, own: Container[Tensor]) -> dict[Tensor, Tensor]:
        return {
            p: norm_of(p.grad) for p in self._names if p in own and p.grad is not None
        }

    @without_errors
    def _before_unscale(self, optimizer: Any) -> None:
        own = self._own(optimizer)
        with unseen():
            norms = self._norms(own)
            pairs = [
                (norm, self._raw[p]) for p, norm in norms.items() if p in self._raw
            ]
            self._look_for_spent(norms)
            now = total([norm for norm, _ in pairs])
            raw = total([before for _, before in pairs])
        self._unscales[optimizer] += 1
        if now is None or raw is None or measures.several_processes():
            return  # several processes share their gradients
        shrunk = now < 0.999 * raw < math.inf  # by more than rounding
        first = self._unscales[optimizer] == 1
        if first and shrunk and (_are_clipped(pairs) or self._are_cut(norms)):
            scale = float(self.scaler.get_scale())
            self._note(
                "clip-before-unscale",
                f"The gradients' norm was {raw:.3g} after the backward pass and {now:.3g} when "
                f"unscale_ began: the optimizer gets {now / scale:.3g}, not {raw / scale:.3g}.",
            )

    def _are_cut(self, norms: Mapping[Tensor, Tensor]) -> bool:
        """Whether gradients that became smaller now end at one number, as values are clipped."""
        cut = [p for p, norm in norms.items() if norm < self._raw.get(p, norm)]
        with unseen():
            ends = {float(largest_of(p.grad)) for p in cut if p.grad is not None}
        return len(cut) > len(ends) == 1 and 0.0 not in ends

    def _look_for_spent(self, norms: Mapping[Tensor, Tensor]) -> None:
        """Note gradients of a step before to which those of this one were added."""
        sizes = [self._spent.pop(p, 0.0) for p in norms if p in self._raw]
        kept = [size for size in sizes if size]
        if self.scaler is not None and not all(map(math.isfinite, kept)):
            self._note(
                "uncleared-gradients",
                f"Infinite gradients of a skipped step were still there in step {len(self.steps)}.",
            )
        elif kept:
            self._note(
                "kept-gradients",
                f"The gradients of {len(kept)} parameters, which an update had used, were still "
                f"there as the backward pass of step {len(self.steps)} began.",
            )

    def _note(self, code: str, observed: str) -> None:
        self.seen.misuses.setdefault(code, []).append(observed)

    def _scaling(self, original: Callable[..., Any], outputs: Any) -> Any:
        scaled = original(outputs)
        with unseen():
            found = filter(measures.is_readable, tensors_in(scaled))
            self._results += [t.detach().sum() for t in found]
        return scaled

    def _unscale(self, original: Callable[..., Any], optimizer: Any) -> Any:
        self._before_unscale(optimizer)
        before = self._tracer.updating
        self._tracer.updating = True  # it runs in no module
        try:
            return original(optimizer)
        finally:
            self._tracer.updating = before

    def _scaler_step(
        self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        before = self._updates
        self._in_scaler = True
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            self._in_scaler = False
            self._after_scaled(optimizer, self._updates == before)

    @without_errors
    def _after_scaled(self, optimizer: Any, refused: bool) -> None:
        self._scale = float(self.scaler.get_scale())  # `update` will change it
        self._scaled.add(optimizer)
        own = self._own(optimizer)
        # Of several optimizers that a scaler steps, one may skip and the next one not.
        if own:
            self._skipped = bool(self._skipped) or refused
        if refused:
            self._spent |= dict.fromkeys(own, 0.0)
        if self._unscales.pop(optimizer, 0) > 1:
            self._note("unscaled-twice", "unscale_ was called twice before an update.")

    # One step -------------------------------------------------------------------------------

    def step(
        self,
        loss: Tensor | float | None = None,
        scale: float | None = None,
        skipped: bool | None = None,
    ) -> None:
        """Record the step that has just ended.

        Args:
            loss: the loss without the loss scale; if left out, the sum of those from which the
                backward passes of this step began, divided by the scale. Without either, nothing
                is recorded.
            scale: the loss scale of this step; already known if `scaler` is watched.
            skipped: whether the weights were left alone; already known likewise.
        """
        if loss is None and not self._roots:
            return
        if scale is None:
            scale = self._scale
        if skipped is None:
            skipped = self._skipped
        if skipped is None and self.optimizer is not None and not self._stopped:
            skipped = not self._updates  # by no scaler: the loop did not update
            self.seen.idle += skipped
        with unseen():
            value = self._loss(loss, float(scale))
        record = Step(value, float(scale), bool(skipped))
        if loss is None:
            loss = self._roots[-1]
        self._record(record, loss)
        self._moved = bool(self._updates) and not record.skipped
        self.steps.append(record)
        self._date_back()
        if not self._stopped and self._handles:
            self._prober.ask(self.steps)
        failed = record.skipped or not math.isfinite(record.loss)
        trouble = failed or bool(record.origins)
        self._trace_next = trouble and not self._tracing
        self._begin_step()

    def _loss(self, told: Tensor | float | None, scale: float) -> float:
        """The loss without the scale, from what was told and from where backward passes began."""
        if told is None:
            return sum(map(float, self._roots)) / (scale or 1.0)
        if isinstance(told, Tensor):
            told = told.detach()
        value = float(told)
        if self.scaler is None or not self._updates or scale < 4:
            return value
        began = sum(map(float, self._roots))
        if not (value and 0.5 < began / value < 2):
            return value
        scaled = sum(map(float, self._results))
        # It is 1 where what `scale` returned was dropped.
        if scaled and scale * began / scaled > 1.2:
            self._note("scaled-loss", "step() was given the loss times the scale.")
            return value / scale
        self._note(
            "loss-not-scaled",
            f"The backward pass began from the loss itself, at a scale of {scale:g}.",
        )
        return value

    def _date_back(self) -> None:
        """Name the operation in the step where trouble began: the traced step after it shows it."""
        if len(self.steps) < 2:
            return
        earlier = self.steps[-2].origins
        exact = {o.phase: o for o in self.steps[-1].origins if o.operation}
        for k, vague in enumerate(earlier):
            found = exact.get(vague.phase)
            if found is None or vague.operation:
                continue
            if found.module == vague.module or "operation" in vague.module:
                sizes = vague.sizes or found.sizes
                earlier[k] = found._replace(step=vague.step, sizes=sizes)

    @without_errors
    def _record(self, record: Step, loss: Tensor | float) -> None:
        """Fill in the observations of this step."""
        if self._tracer.error is not None:
            raise self._tracer.error
        with unseen():
            if isinstance(loss, Tensor):
                low = low_format_of(loss)
                self.seen.low_loss = low.name if low else ""
            raw = total(list(self._raw.values()))
            if raw is not None:
                record.gradient_norm = raw / record.scale if record.scale else math.nan
            record.norm_at_optimizer = total(list(self._received.values()))
            self._measure_weights(record)
            if not record.skipped and not math.isfinite(record.gradient_norm or 0.0):
                pairs = ((n, self._raw.get(p, n)) for p, n in self._received.items())
                if any(now.isfinite() and not raw.isfinite() for now, raw in pairs):
                    self.seen.replaced.append(len(self.steps))
            for name, norm in self._first_norms:
                if float(norm):
                    self.seen.still.discard(name)
            record.outputs = self._joined(self._outputs)
            # In the order of the forward pass, too.
            gradients = self._joined(self._gradients)
            record.gradients = dict(reversed(gradients.items()))
            record.fp8 = added(
                (name, Casts(*kind, *row[:2], *map(int, row[2:5]), *row[5:]))
                for name, kind, row in measures.read(self._casts)
            )
            record.origins = self._origins(record, loss)
            self._measure_casts()
        if self._ran and self._names and not (self._raw or self._received):
            if self._gradients and not self._updates:  # for an update that is not seen
                self.seen.still.clear()
            else:
                self.seen.no_gradient += self._counting

    def scalars(self) -> dict[str, float]:
        """The numbers of the latest step by name, for any logger; empty before the first.

        Numbers not observed in this step are left out. Infinity and NaN are kept.

        Examples:
            >>> health = Health(torch.nn.Linear(1, 1))
            >>> health.step(0.5)
            >>> health.scalars()["loss"]
            0.5
        """
        return self.steps[-1].scalars() if self.steps else {}

    def line(self) -> str:
        """The latest step in one line, to print on the way; empty before the first."""
        if not self.steps:
            return ""
        step = self.steps[-1]
        words = f"step {len(self.steps)}: loss {step.loss:.4g}"
        if step.gradient_norm is not None:
            words += f", gradient norm {step.gradient_norm:.4g}"
        if step.scale != 1:
            words += f", scale {step.scale:g}"
        found = [*step.outputs.items(), *step.gradients.items()]
        room = [(s.headroom, name) for name, s in found if not s.what_if]
        room = [each for each in room if math.isfinite(each[0])]
        if room:
            least, name = min(room)
            words += f", least room {least:.1f} in {name}"
        return words

    def _measure_weights(self, record: Step) -> None:
        norms = [norm_of(p) for p in self._names]
        record.weight_norm = total(norms) or 0.0
        if not math.isfinite(record.weight_norm):
            bad = (~torch.isfinite(values_of(p)) for p in self._names)
            record.nonfinite_weights = sum(int(b.sum()) for b in bad)
        if self._counting:
            self.seen.bad_buffers = self.seen.bad_buffers or self._look_at_buffers()
            record.updated, record.unmoved = self._movement.count()
            rates = self._movement.rates
            self.seen.resting += bool(rates) and not any(rates)

    def _look_at_buffers(self) -> list[str]:
        """Those with a NaN, or an infinity where there was none: a mask has its from the first."""
        bad = []
        for name, buffer in self.model.named_buffers():
            if not measures.is_readable(buffer):
                continue
            largest = largest_of(buffer)
            if largest.isfinite():
                self._finite.add(name)
            elif largest.isnan() or name in self._finite:
                bad.append(name)
        return bad

    def _joined(self, rows: list[measures.Row]) -> dict[str, Magnitudes]:
        """Make the records of each layer and join them."""
        # FP32 beside a low format is judged by itself, from the next step on
        found = [one for one in measures.read(rows) if not (self._mixed and one[1][1])]
        return added((n, magnitudes(*kind, *row)) for n, kind, row in found)

    def _origins(self, record: Step, loss: Tensor | float) -> list[Origin]:
        """The origins that the tracer found, else the modules that the hooks found."""
        finite = math.isfinite(record.loss)
        blamed, given, results = self._read_flags(finite)
        if finite and not math.isfinite(record.gradient_norm or 0.0):
            for p, norm in self._raw.items():
                if not norm.isfinite():
                    where = f"{self._names[p]}, or an operation after it,"
                    blamed.setdefault("backward", where)
        origins = self._tracer.origins_of(loss)
        for phase, module in blamed.items():
            made = Origin(len(self.steps), phase, module, "", "infinity or NaN")
            origins.setdefault(phase, made)
        if "forward" in origins:
            found = origins["forward"]
            told = _told(found.module, given, results, self._earlier)
            origins["forward"] = found._replace(sizes=told)
        elif results:
            self._earlier = results
        return list(origins.values())

    def _read_flags(
        self, finite: bool
    ) -> tuple[dict[str, str], dict[str, float], dict[str, float]]:
        """The first module to blame in each phase, and the size of each one's input and output."""
        blamed: dict[str, str] = {}
        given: dict[str, float] = {}
        results: dict[str, float] = {}
        masked = False
        above = "The loss"  # in the backward pass, the module before
        latest = ""
        # Reading waits for the device.
        flags = self._flags if self._counting or self._due or not finite else []
        values = together([size for *_, size in flags]).tolist() if flags else []
        for (phase, name, _), size in zip(flags, values, strict=True):
            bad = not math.isfinite(size)
            if phase == "input":
                given[name] = size
            elif phase in ("forward", "meant"):
                latest = name
                results[name] = size
                here = math.isfinite(given.get(name, 0.0))
                known = phase == "meant" or (finite and name in self._masks)
                if size == math.inf and known and (here or masked):
                    masked = True
                    self._masks.add(name)
                elif bad:
                    where = (
                        name if here else f"The data, or an operation before {name},"
                    )
                    blamed.setdefault("forward", where)
            elif bad:
                blamed.setdefault(phase, above)
            else:
                above = name
        if latest and not finite:
            where = f"An operation after {latest}, such as the loss,"
            blamed.setdefault("forward", where)
        return blamed, given, results

    def _measure_casts(self) -> None:
        """Record what casts did, and whether a changed weight was used without a new one."""
        tracer = self._tracer
        if not (self._tracing and self._ran):
            return
        owners = {p.data_ptr(): n.rpartition(".")[0] for p, n in self._names.items()}
        now = {place: fmt for place, fmt in tracer.casts.items() if place in owners}
        ran = {name.partition(" (")[0] for name in self._ran}
        missing = tracer.low and not now
        for place, fmt in self._cast_once.items():
            missing = missing or (
                fmt.precision < 8 and place not in now and owners.get(place) in ran
            )
        if self._moved and self._cast_once and missing:
            self.seen.stale.append(len(self.steps))
        self._cast_once |= now

    def report(self, *, gather: bool = False) -> Report:
        """Report what was observed, what it means, and what to check.

        Args:
            gather: collect the findings of all processes that train together, each from the
                process in which trouble began first. Every process must call this.
        """
        found = diagnose(self.steps, self.seen)
        if gather and measures.several_processes():
            found = gathered(self.steps, found)
        return Report(found, list(self.steps), replace(self.seen))


def _told(
    module: str,
    given: dict[str, float],
    results: dict[str, float],
    earlier: dict[str, float],
) -> str:
    """Say how large the numbers in and below a module were, and its output before."""
    if module not in results:
        return ""
    inside = module.partition(" (")[0] + "."
    finite = [
        (size, name.removeprefix(inside))
        for name, size in results.items()
        if name.startswith(inside) and math.isfinite(size)
    ]
    parts = [f"input {given.get(module, 0.0):.2g}"]
    parts += [f"{name} {size:.2g}" for size, name in nlargest(2, finite)]
    parts.append(f"output {results[module]:.2g}")
    if module in earlier:
        parts.append(f"{earlier[module]:.2g} before")
    return ", ".join(parts)


def _shown(name: str, module: nn.Module) -> str:
    kind = type(module).__name__
    return f"{name} ({kind})" if name else kind


def _are_clipped(norms: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether gradients with these norms, now and before, were scaled to a total norm.

    Then all have the same share left. A mask leaves another for each parameter; an average over
    micro-batches, processes or tokens leaves the inverse of a whole number, and a weight that
    somebody chose one of two digits.
    """
    shares = [float(now / before) for now, before in norms if before > 0]
    if not shares or not min(shares) or max(shares) > 1.01 * min(shares):
        return False
    parts = round(1 / shares[0])
    averaged = parts <= 1 << 16 and abs(parts * shares[0] - 1) <= 1e-6
    return not averaged and abs(float(f"{shares[0]:.2g}") / shares[0] - 1) > 1e-6
