"""An optimizer whose weights and state are kept in FP32 or in a narrower format."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mplab.numbers.formats import FP32, Format, Rounding
from mplab.numbers.options import Stream
from mplab.numbers.tensors import round_tensor
from mplab.simulation.operations import tensors_in


class LowOptimizer:
    """Wrap a torch optimizer, and round its weights and arithmetic to given formats.

    The parameters stay float32 tensors and hold values of `weight_format`. Each operation of
    the optimizer rounds its result to `optimizer_format`, unless that has no dimensions; but a
    new weight is rounded once, to `weight_format`.

    Args:
        optimizer: a torch optimizer of float32 parameters; they are rounded at once.
        weight_format: the format of the weights.
        optimizer_format: format of the optimizer's arithmetic and state; FP32 leaves it to torch.
        update_rounding: one of `mplab.training.recipes.UPDATE_ROUNDINGS`.
        stream: random bits for stochastic rounding.

    Exactness:
        With nearest rounding and both formats FP16 or BF16, bit-exact with `torch.optim.Adam`
        on half or bfloat16 parameters, on the data of tests/training/test_optimizers.py. Not
        bit-exact where torch also rounds a scalar of the optimizer: SGD's learning rate, or an
        epsilon that counts.

    Source:
        Kahan's compensated summation and stochastic rounding of weights: Zamirai, Zhang,
        Aberger and De Sa 2020, "Revisiting BFloat16 Training", arXiv 2010.06192.

    Examples:
        >>> from mplab import BF16
        >>> weight = torch.ones(1, requires_grad=True)
        >>> sgd = LowOptimizer(torch.optim.SGD([weight], lr=1e-3), BF16)
        >>> weight.grad = torch.ones(1)
        >>> sgd.step()
        >>> weight.item()
        1.0
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        weight_format: Format,
        *,
        optimizer_format: Format = FP32,
        update_rounding: str = "nearest",
        stream: Stream | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.weight_format = weight_format
        self.optimizer_format = optimizer_format
        self.update_rounding = update_rounding
        self.stream = stream or Stream(0)
        self.parameters = [
            p for group in optimizer.param_groups for p in group["params"]
        ]
        self.errors: list[Tensor] = []
        self._enter_nearest(self.parameters)
        if update_rounding == "kahan":
            self.errors = [torch.zeros_like(p) for p in self.parameters]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups; `GradScaler` unscales the gradients of their parameters."""
        return self.optimizer.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights from their gradients, rounded to `optimizer_format` first."""
        for weight, error in zip(self.parameters, self.errors, strict=False):
            weight.add_(error)  # exact unless the two lie more than 24 bits apart
        if self.optimizer_format == FP32:
            self.optimizer.step()
        else:
            for gradient in (p.grad for p in self.parameters if p.grad is not None):
                round_tensor(gradient, self.optimizer_format, out=gradient)
            with _Rounding(self.optimizer_format, self.parameters):
                self.optimizer.step()
        if self.update_rounding == "stochastic":
            for weight in self.parameters:
                round_tensor(
                    weight,
                    self.weight_format,
                    rounding=Rounding.STOCHASTIC,
                    stream=self.stream,
                    out=weight,
                )
        elif self.errors:
            wanted = [weight.clone() for weight in self.parameters]
            self._enter_nearest(self.parameters)
            for error, new, weight in zip(
                self.errors, wanted, self.parameters, strict=True
            ):
                torch.sub(new, weight, out=error)
            self._enter_nearest(self.errors)
        else:
            self._enter_nearest(self.parameters)

    @torch.no_grad()
    def _enter_nearest(self, tensors: list[Tensor]) -> None:
        for t in tensors if self.weight_format != FP32 else []:
            round_tensor(t, self.weight_format, out=t)

    def state_dict(self) -> dict[str, Any]:
        """The state on which the next step depends, without the weights."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "errors": self.errors,
            "stream": [self.stream.seed, self.stream.calls],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        for error, saved in zip(self.errors, state["errors"], strict=True):
            error.copy_(saved)
        seed, calls = state["stream"]
        self.stream = Stream(seed, calls=calls, bits=self.stream.bits)


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Round the result of every operation, as an optimizer on low tensors does.

    Scalars stay FP32, as Adam's count of steps does in torch. The weights stay unrounded:
    `LowOptimizer` rounds them by its own rule.
    """

    def __init__(self, fmt: Format, weights: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fmt = fmt
        self.weights = {weight.data_ptr() for weight in weights}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        # A fused operation, or one on lists, does not return what it writes to.
        found = zip(args, func._schema.arguments, strict=False)
        for t in tensors_in([out, *(x for x, own in found if own.is_write)]):
            low = t.dtype == torch.float32 and t.dim() > 0
            if low and t.data_ptr() not in self.weights:
                round_tensor(t, self.fmt, out=t)
        return out
