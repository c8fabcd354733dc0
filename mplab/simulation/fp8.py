"""Linear layers whose three matrix products take operands of eight bits or fewer.

Weights and everything between the layers keep their own format; `mplab.simulation.casts` says
how operands are cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from mplab.numbers.formats import Format
from mplab.scaling.amax import CurrentScaling, DelayedScaling, FixedScaling
from mplab.scaling.quantized import amax_of, multiply_and_round
from mplab.simulation.casts import Cast, Scaling, apply_hadamard, scaling_with_formats
from mplab.simulation.places import Thread, this_thread


class Fp8Linear(nn.Linear):
    """`nn.Linear` with the operands of its matrix products in eight bits or fewer.

    output = input · weightᵀ, grad_input = grad_output · weight, and grad_weight =
    grad_outputᵀ · input: each operand is multiplied by its scale and cast, with saturation;
    products are summed in float32 and divided by the scales. The gradients pass straight through
    the casts, as if these were the identity. The bias is added in float32 and its gradient is not
    cast. Parameters stay as they are, usually float32. The result has the dtype of the input;
    within autocast the dtype of autocast, within `simulated` its format; the products do not
    change.

    With current scaling an infinity in an operand makes the result NaN. With delayed scaling
    or none it saturates, as on the hardware, so that a loss scaler does not see it. Delayed
    scales are learnt while `training` is True; a checkpoint that reruns a forward pass
    counts its tensors twice. Stochastic rounding and random signs draw from torch's generator for
    the CPU, as dropout does: `torch.manual_seed` makes a run reproducible, and its checkpoint
    needs `torch.get_rng_state`.

    In evaluation `nn.TransformerEncoderLayer` reads the weights of its linear layers without
    calling them, unless `convert_linears` converted them.

    Args:
        in_features: as in `nn.Linear`.
        out_features: as in `nn.Linear`.
        bias: as in `nn.Linear`.
        scaling: how operands are cast: a name in `SCALINGS`, such as "current", "mxfp8" or
            "nvfp4", or a `Scaling` of your own.
        forward_format: format of input and weight; None takes the scaling's.
        backward_format: format of grad_output; likewise.
        amax_history_len: history length of delayed scaling.
        real: multiply with `torch._scaled_mm`, which reads FP8 itself, instead of float32
            products of FP8 values, for E4M3 and E5M2 with one scale per tensor. Many CPUs have
            no fast kernel for it: a product may take ten times as long as in float32.
        device: as in `nn.Linear`.
        dtype: as in `nn.Linear`.

    Attributes:
        how: the `Scaling` by which operands are cast.
        on_cast: None, or called after each cast with the operand's name ("input", "weight" or
            "grad_output", with blocks also those cast anew, such as "input for grad_weight"),
            the float32 matrix, the cast matrix divided by the scale, and the scale: a scalar,
            or with blocks the scale of each number.

    Raises:
        ValueError: an unknown scaling; a format that lacks signs or zero, or does not fit in
            float32; a format or scaling that torch has no product for, if `real`.

    Exactness:
        The operands are bit-exact with `quantize`. Sums are those of float32 products in
        torch; simulated and real agree bit for bit where all sums are exact
        (tests/simulation/test_fp8.py).

    Source:
        See `SCALINGS`.

    Examples:
        >>> layer = Fp8Linear(4, 2)
        >>> layer(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        scaling: str | Scaling = "current",
        forward_format: Format | None = None,
        backward_format: Format | None = None,
        amax_history_len: int = 16,
        real: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        chosen = scaling_with_formats(
            "Fp8Linear", scaling, forward_format, backward_format, real
        )
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._set_casts(chosen, amax_history_len, real)

    @classmethod
    def holding(
        cls, layer: nn.Linear, scaling: Scaling, length: int, real: bool
    ) -> Self:
        """Make a layer of the parameters, hooks and buffers that another one holds.

        They stay the same objects, so that an optimizer made before still steps them. It breaks if
        nn.Module keeps state outside its __dict__.
        """
        new = cls.__new__(cls)
        new.__dict__ = dict(layer.__dict__)
        new._set_casts(scaling, length, real)
        return new

    def _set_casts(self, scaling: Scaling, length: int, real: bool) -> None:
        """Set how operands are cast."""
        self.how = scaling
        self.real = real
        self.on_cast: Callable[[str, Tensor, Tensor, Tensor], None] | None = None
        self.scalings = {
            role: _scale_of_tensors(cast, length)
            for role, cast in scaling.casts().items()
        }

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to an input of shape (..., in_features)."""
        if input.shape[-1:] != (self.in_features,) or not input.is_floating_point():
            raise ValueError(  # real products are padded, and would multiply another shape
                f"Fp8Linear: input must be floating point of shape (..., {self.in_features}); got "
                f"{input.dtype}, {tuple(input.shape)}. Look at the layer before."
            )
        output: Tensor = _Linear.apply(input, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return output

    def scale_of(self, role: str, tensor: Tensor) -> float:
        """The scale for an operand in the role "input", "weight" or "grad_output".

        1 for an operand in blocks, because each block has its own scale.
        """
        scaling = self.scalings[role]
        # In evaluation a learnt scale stays as it is, as a batch norm's statistics do.
        learnt = isinstance(scaling, DelayedScaling) and not self.training
        if learnt or isinstance(scaling, FixedScaling):
            return scaling.scale
        return scaling.update(float(amax_of(tensor)))

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{super().extra_repr()}, {self.words()}"

    def words(self) -> str:
        """Formats and scaling of the operands, in a few words."""
        forward = self.how.input.fmt.name
        backward = self.how.grad_output.fmt.name
        kind = "real" if self.real else "simulated"
        return f"{forward}/{backward}, {self.how.name} scaling, {kind}"

    # Only delayed scaling has a state; otherwise checkpoints are those of nn.Linear.

    def get_extra_state(self) -> dict[str, Any]:
        """The state of the scalings, for `state_dict`."""
        return {role: scaling.state_dict() for role, scaling in self._delayed.items()}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Load the state of the scalings."""
        for role, scaling in self._delayed.items():
            scaling.load_state_dict(state[role])

    @property
    def _delayed(self) -> dict[str, DelayedScaling]:
        scalings = self.scalings.items()
        return {role: s for role, s in scalings if isinstance(s, DelayedScaling)}

    def _save_to_state_dict(
        self, destination: Any, prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self._delayed:
            del destination[prefix + "_extra_state"]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # the caller passes its own copy of the mapping; what is missing stays as it is
        state_dict.setdefault(prefix + "_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _scale_of_tensors(
    cast: Cast, length: int
) -> FixedScaling | CurrentScaling | DelayedScaling:
    """Make the scaling of whole tensors; blocks get their scales when they are cast."""
    if cast.scale is DelayedScaling:
        return DelayedScaling(cast.fmt, amax_history_len=length)
    return CurrentScaling(cast.fmt) if cast.scale is CurrentScaling else FixedScaling()


# The three products ----------------------------------------------------------------------
class _Linear(torch.autograd.Function):
    """A linear layer; an operand with one scale is cast once, and saved as cast for backward."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, layer: Fp8Linear
    ) -> Tensor:
        dtype = _dtype_of_products(input)
        thread = this_thread()
        with _simulation_off(input.device.type, thread):
            inputs = _operand(layer, "input", input.reshape(-1, input.shape[-1]))
            weights = _operand(layer, "weight", weight)
            output = _product(layer, inputs, weights, "input", "weight")
            if bias is not None:
                output += bias
            ctx.save_for_backward(inputs.matrix, weights.matrix)
            ctx.scales = (inputs.scale, weights.scale)
            ctx.dtypes = (input.dtype, weight.dtype)
            ctx.layer = layer
            ctx.shape = input.shape
            ctx.bias = bias
            ctx.thread = thread
        # outside: a simulation rounds and counts this
        shape = (*input.shape[:-1], weight.shape[0])
        return output.to(dtype).reshape(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layer = ctx.layer
        bias = ctx.bias
        kept = zip(
            (layer.how.input, layer.how.weight),
            ctx.saved_tensors,
            ctx.scales,
            strict=True,
        )
        inputs, weights = (_Operand(*one) for one in kept)
        grad_input = grad_weight = grad_bias = None
        # This may be another thread than forward.
        with _simulation_off(grad.device.type, ctx.thread):
            grad = grad.reshape(-1, grad.shape[-1])
            back = _operand(layer, "grad_output", grad)
            if ctx.needs_input_grad[0]:
                names = "grad_output", "weight for grad_input"
                product = _product(layer, back, weights.t(), *names)
                grad_input = product.to(ctx.dtypes[0]).reshape(ctx.shape)
            if ctx.needs_input_grad[1]:
                names = "grad_output for grad_weight", "input for grad_weight"
                product = _product(
                    layer,
                    back.t(),
                    inputs.t(),
                    *names,
                    with_hadamard=layer.how.hadamard,
                )
                grad_weight = product.to(ctx.dtypes[1])
            if ctx.needs_input_grad[2]:
                grad_bias = grad.float().sum(0).to(bias.dtype)
        return grad_input, grad_weight, grad_bias, None


def _dtype_of_products(x: Tensor) -> torch.dtype:
    """The dtype of matrix products here, which autocast or a simulation may decide.

    Policy and layer have a say, so a product is tried: an empty one, of which nothing is counted.
    With gradients, because a checkpoint may run this in a backward pass.
    """
    rows = torch.empty((0, 1), dtype=x.dtype, device=x.device)
    with torch.enable_grad():
        return (rows @ rows.t()).dtype


@contextmanager
def _simulation_off(device_type: str, thread: Thread) -> Iterator[None]:
    """Turn off autocast and `simulated` inside."""
    outer = thread.innermost
    thread.innermost = None
    try:
        with torch.autocast(device_type, enabled=False):
            yield
    finally:
        thread.innermost = outer


class _Operand(NamedTuple):
    """An operand of a product: already cast, or to be cast in blocks along the summed axis."""

    cast: Cast
    matrix: Tensor
    scale: float

    def t(self) -> _Operand:
        """Transposed."""
        return self._replace(matrix=self.matrix.t())


def _operand(layer: Fp8Linear, role: str, x: Tensor) -> _Operand:
    """Cast a matrix; one in blocks is cast later, for each product."""
    x = x.float()
    cast = layer.how.casts()[role]
    scale = layer.scale_of(role, x)
    if cast.block is not None:
        return _Operand(cast, x, scale)
    factor = torch.tensor(scale, dtype=x.dtype, device=x.device)
    low = multiply_and_round(
        x, factor, cast.fmt, rounding=cast.rounding, stream=cast.stream()
    )
    if layer.on_cast is not None:
        layer.on_cast(role, x, low / factor, factor)
    return _Operand(cast, low.to(cast.fmt.torch_dtype) if layer.real else low, scale)


def _product(
    layer: Fp8Linear,
    left: _Operand,
    right: _Operand,
    *names: str,
    with_hadamard: bool = False,
) -> Tensor:
    """The product left · rightᵀ of two named operands, summed along the last axis of both."""
    pair = [left.matrix, right.matrix]
    if with_hadamard:
        pair = apply_hadamard(*pair)
    a, b = (
        x.cast.in_blocks(matrix) for x, matrix in zip((left, right), pair, strict=True)
    )
    for name, operand, x, low in zip(names, (left, right), pair, (a, b), strict=True):
        if layer.on_cast is not None and operand.cast.block is not None:
            layer.on_cast(name, x, low, operand.cast.factors(x))
    if layer.real and a.numel():
        return _real_product(a, b, (left.scale, right.scale))
    factor = 1 / (left.scale * right.scale)
    product = a.float() @ b.t().float()
    return product * factor


def _real_product(a: Tensor, b: Tensor, scales: tuple[float, float]) -> Tensor:
    """The product a · bᵀ by torch in FP8, sides padded to the multiples of 16 that CUDA wants."""
    rows = a.shape[0]
    columns = b.shape[0]
    # Torch pads no FP8, but bytes; a byte of zeros is 0.0.
    a, b = (
        F.pad(x.view(torch.uint8), (0, -x.shape[1] % 16, 0, -x.shape[0] % 16))
        .contiguous()
        .view(x.dtype)
        for x in (a, b)
    )
    inverse = [
        torch.tensor(1 / scale, dtype=torch.float32, device=a.device)
        for scale in scales
    ]
    product: Tensor = torch._scaled_mm(
        a, b.t(), scale_a=inverse[0], scale_b=inverse[1], out_dtype=torch.float32
    )
    return product[:rows, :columns].contiguous()
