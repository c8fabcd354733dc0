"""Loss scaling for torch's optimizers, with any rule for the scale."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mplab.numbers.devices import widest
from mplab.scaling.loss import LossScaler


class Stepped(Protocol):
    """The part of an optimizer, or of a wrapper, that `GradScaler` uses."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of parameters whose gradients are unscaled."""

    @property
    def step(self) -> Callable[..., Any]:
        """The method that updates the parameters, unless the step is skipped."""


@dataclass
class _State:
    """The state of an optimizer since the last `update`."""

    found_nonfinite: bool | None  # None: there was no gradient
    total: float
    count: int
    stepped: bool = False


class GradScaler:
    """Loss scaling that unscales gradients and skips steps: a readable `torch.amp.GradScaler`.

    The calls of one step, in this order: `scale(loss).backward()`; if you clip or inspect
    gradients, `unscale_(optimizer)`; `step(optimizer)`; after all optimizers, `update()`. With the
    default rule every scale, gradient, skipped step and state equals that of torch on the random
    sequences of calls in tests/scaling/test_grad_scaler.py. Calls in a wrong order raise where
    torch raises, with RuntimeError in place of AssertionError.

    Left out: `enabled=False`, `update(new_scale)`, and the path of fused optimizers, which torch
    calls also on skipped steps; here they are stepped like the others.

    Args:
        rule: the rule for the scale, such as `LossScaler` or another one of `mplab.scaling`; None
            for `LossScaler()`, the rule of torch.

    Examples:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> scaler = GradScaler()
        >>> scaler.scale(weight.sum()).backward()
        >>> weight.grad
        tensor([65536.])
        >>> scaler.step(optimizer)
        >>> scaler.update()
        False
        >>> weight.data
        tensor([0.5000])
    """

    def __init__(self, rule: LossScaler | None = None) -> None:
        self.rule = LossScaler() if rule is None else rule
        self._scaled = False
        self._states: dict[int, _State] = {}

    def get_scale(self) -> float:
        """Return the scale of this step, a float32; torch keeps the first scale as passed."""
        return self.rule.scale

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss by the scale, or each tensor in nested lists, tuples or iterables."""
        if isinstance(outputs, Tensor):
            self._scaled = True
            factor = torch.tensor(self.rule.scale, dtype=torch.float32)
            return outputs * factor.to(outputs.device)
        scaled = map(self.scale, outputs)
        return type(outputs)(scaled) if isinstance(outputs, list | tuple) else scaled

    def unscale_(self, optimizer: Stepped) -> None:
        """Divide the gradients of an optimizer by the scale, in place, and look for infinities.

        Raises:
            RuntimeError: called before `scale`, twice, or after `step`.
            ValueError: a gradient is float16, and so are its weights: keep them in float32.
        """
        self._require_scaled("unscale_")
        state = self._states.get(id(optimizer))
        if state is not None:
            what = "a call after step()" if state.stepped else "a second call"
            raise RuntimeError(
                f"GradScaler.unscale_: must be called once for an optimizer, before its step(), in "
                f"each step; got {what}. Accumulate first, and end a step by update()."
            )
        gradients = [
            _dense(p) for group in optimizer.param_groups for p in group["params"]
        ]
        self._states[id(optimizer)] = self._unscaled(
            [g for g in gradients if g is not None]
        )

    def _unscaled(self, gradients: list[Tensor]) -> _State:
        """Divide by the scale, and return whether a gradient was infinite or NaN."""
        found = None if not gradients else False
        total = 0.0
        count = 0
        inverse = (
            torch.tensor(self.rule.scale, dtype=torch.float64).reciprocal().float()
        )
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        with torch.no_grad():
            for gradient in gradients:
                real = (
                    torch.view_as_real(gradient) if gradient.is_complex() else gradient
                )
                alike.setdefault((real.device, real.dtype), []).append(real)
            for (device, _), group in alike.items():
                nonfinite = torch.zeros(1, dtype=torch.float32, device=device)
                # the operation of torch's own scaler, on all at once: a twentieth of the time
                torch._amp_foreach_non_finite_check_and_unscale_(
                    group, nonfinite, inverse.to(device)
                )
                found = found or bool(nonfinite)
            for gradient in gradients if self.rule.wants_mean else ():
                total += float(gradient.abs().sum(dtype=widest(gradient)))
                count += gradient.numel()
        return _State(found, total, count)

    def step(self, optimizer: Stepped, *args: Any, **kwargs: Any) -> Any:
        """Step an optimizer, or skip the step; unscale its gradients first if not yet done.

        Returns:
            The result of `optimizer.step`; None if the step was skipped.

        Raises:
            RuntimeError: called before `scale`, twice, with a closure, or without gradients.
            ValueError: as in `unscale_`.
        """
        if "closure" in kwargs:
            raise RuntimeError(
                "GradScaler.step: closures are not supported; got one, whose loss would not be "
                "scaled. Call backward() before step()."
            )
        self._require_scaled("step")
        if id(optimizer) not in self._states:
            self.unscale_(optimizer)
        state = self._states[id(optimizer)]
        if state.stepped:
            raise RuntimeError(
                "GradScaler.step: must be called once for an optimizer in each step; got a second "
                "call. End a step by update()."
            )
        if state.found_nonfinite is None:
            raise RuntimeError(
                "GradScaler.step: the optimizer must have a gradient; got none in all of its "
                "parameters. Did backward() reach them, and are they those of the model?"
            )
        skip = state.found_nonfinite and self.rule.skips_nonfinite
        result = None if skip else optimizer.step(*args, **kwargs)
        state.stepped = True
        return result

    def update(self) -> bool:
        """End the step for all optimizers, and let the rule update the scale.

        Returns:
            Whether an infinite or NaN gradient was found, and its optimizer skipped.

        Raises:
            RuntimeError: called before `scale`, or before any `unscale_` or `step`.
        """
        self._require_scaled("update")
        known = [s for s in self._states.values() if s.found_nonfinite is not None]
        if not known:
            raise RuntimeError(
                "GradScaler.update: an optimizer must have been stepped or unscaled before; got "
                "none since the last update. Call step(optimizer), not optimizer.step()."
            )
        found = any(s.found_nonfinite for s in known)
        self._states = {}
        if not self.rule.wants_mean:
            return self.rule.update(found)
        mean = sum(s.total for s in known) / max(1, sum(s.count for s in known))
        return self.rule.update(found, mean_abs_gradient=mean)

    def _require_scaled(self, function: str) -> None:
        if not self._scaled:
            raise RuntimeError(
                f"GradScaler.{function}: the loss must be scaled before; got no call of scale(). "
                f"Use scaler.scale(loss).backward()."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rule, with the keys of torch; call it between steps."""
        return self.rule.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of this class or of `torch.amp.GradScaler`."""
        self.rule.load_state_dict(state_dict)


def _dense(parameter: Tensor) -> Tensor | None:
    """Return the gradient of a parameter; of a sparse gradient the stored numbers."""
    gradient = parameter.grad
    if gradient is None:
        return None
    if gradient.dtype == torch.float16:
        raise ValueError(
            "GradScaler: gradients must not be float16; got one, of shape "
            f"{tuple(gradient.shape)}. Keep the weights in float32 and use autocast, not half()."
        )
    return gradient._values() if gradient.is_sparse else gradient
