"""Linear layers whose three matrix products take FP8 operands, forward and backward.

Weights and everything between the layers keep their own format; FP8 is what a product reads.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from mplab.numbers.checks import integer, one_of, quoted, switch
from mplab.numbers.formats import FP8_E4M3, FP8_E5M2, Format
from mplab.scaling.amax import CurrentScaling, DelayedScaling, FixedScaling, ScaleRule
from mplab.scaling.quantized import MX_BLOCK, amax_of, fake_quantize, multiply_and_round
from mplab.simulation.checks import device_of, facts_of, function_of
from mplab.simulation.dispatch import Mode
from mplab.simulation.marks import Graph, Mark, Rounder, mark_of, set_mark, this_graph

__all__ = ["SCALINGS", "Fp8Linear", "convert_linears"]

SCALINGS = ("current", "delayed", "none", "block")
"""Where the scale of an operand comes from: itself, those before it, nowhere; or its blocks."""

SLOW = 10
"""A real product on the CPU is slow if it takes so many times as long as in float32."""

_LONG = 0.1
"""Seconds of CPU time from which on a real product is compared."""

_told = False

_ROLES = ("input", "weight", "grad_output")

_REAL = (FP8_E4M3, FP8_E5M2)

_Scaling = FixedScaling | CurrentScaling | DelayedScaling


class _How:
    """How operands become FP8, checked in the name of `where`."""

    def __init__(
        self,
        where: str,
        scaling: str,
        forward_format: Format,
        backward_format: Format,
        amax_history_len: int,
        real: bool,
    ) -> None:
        facts_of(where, "forward_format", forward_format)
        facts_of(where, "backward_format", backward_format)
        self.scaling: str = one_of(where, "scaling", scaling, SCALINGS)
        self.forward, self.backward = forward_format, backward_format
        self.length = integer(where, "amax_history_len", amax_history_len, least=1)
        self.real = switch(where, "real", real)
        if real and (scaling == "block" or not {self.forward, self.backward} <= set(_REAL)):
            raise ValueError(
                f"{where}: real must be False for anything but FP8_E4M3 and FP8_E5M2 with one "
                f"scale for a tensor; got {self.forward.name}, {self.backward.name}, "
                f"{scaling!r}. Simulate it: real=False."
            )


class Fp8Linear(nn.Linear):
    """`nn.Linear` with the operands of its matrix products in FP8.

    output = input · weightᵀ, grad_input = grad_output · weight, and grad_weight =
    grad_outputᵀ · input: each operand is multiplied by its scale and cast, with saturation;
    products are summed in float32 and divided by the scales. The bias is added in float32 and
    its gradient is not cast. Parameters stay as they are, usually float32. The result has the
    dtype of the input; within autocast that of autocast, within `simulated` its format, while
    the products are as they are without.

    With current scaling an infinity in an operand makes the result NaN. With delayed scaling
    or none it saturates, as on the hardware, so that a loss scaler does not see it. Delayed
    scales are learnt while `training` is True; a checkpoint that runs a forward pass again
    counts its tensors twice.

    Args:
        in_features: as in `nn.Linear`.
        out_features: as in `nn.Linear`.
        bias: as in `nn.Linear`.
        scaling: "current", "delayed", "none", or "block": an E8M0 scale for every 32 elements
            that are summed, as in MXFP8.
        forward_format: of input and weight.
        backward_format: of grad_output.
        amax_history_len: of delayed scaling.
        real: multiply with `torch._scaled_mm`, which reads FP8 itself, instead of float32
            products of FP8 values. Not every CPU has a fast kernel for it: a product that takes
            `SLOW` times as long as in float32 there, or longer, is reported in a warning, once.
        device: as in `nn.Linear`.
        dtype: as in `nn.Linear`.

    Attributes:
        on_cast: None, or called before each cast with the role ("input", "weight" or
            "grad_output"), the float32 matrix, and its scale; not for blocks, which have many.

    Raises:
        TypeError: an argument of another type.
        ValueError: an unknown scaling; a format that lacks signs or zero, or does not fit in
            float32; a format or scaling that torch has no product for, if
            `real`.

    Exactness:
        The operands are bit-exact with `quantize`. Sums are those of float32 products in
        torch; simulated and real agree bit for bit where all sums are exact
        (tests/simulation/test_fp8.py).

    Source:
        Micikevicius et al., FP8 Formats for Deep Learning, arXiv 2209.05433: E4M3 forward
        and E5M2 for gradients.

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
        scaling: str = "current",
        forward_format: Format = FP8_E4M3,
        backward_format: Format = FP8_E5M2,
        amax_history_len: int = 16,
        real: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        where = "Fp8Linear"
        inward = integer(where, "in_features", in_features)
        outward = integer(where, "out_features", out_features)
        switch(where, "bias", bias)
        _check_place(device, dtype)
        how = _How(where, scaling, forward_format, backward_format, amax_history_len, real)
        super().__init__(inward, outward, bool(bias), device=device, dtype=dtype)
        self._choose(how)

    @classmethod
    def from_linear(
        cls,
        layer: nn.Linear,
        *,
        scaling: str = "current",
        forward_format: Format = FP8_E4M3,
        backward_format: Format = FP8_E5M2,
        amax_history_len: int = 16,
        real: bool = False,
    ) -> Self:
        """A linear layer with its operands in FP8; its parameters and hooks stay the same objects.

        Args:
            layer: an `nn.Linear`, and no subclass, which may compute otherwise.
            scaling: as in `Fp8Linear`.
            forward_format: as in `Fp8Linear`.
            backward_format: as in `Fp8Linear`.
            amax_history_len: as in `Fp8Linear`.
            real: as in `Fp8Linear`.

        Raises:
            TypeError: `layer` is anything else.
            ValueError: as in `Fp8Linear`.

        Examples:
            >>> plain = nn.Linear(4, 2)
            >>> Fp8Linear.from_linear(plain).weight is plain.weight
            True
        """
        if type(layer) is not nn.Linear:
            raise TypeError(
                f"Fp8Linear.from_linear: layer must be an nn.Linear; got a "
                f"{type(layer).__name__}. Convert the linear layers in it."
            )
        where = "Fp8Linear.from_linear"
        how = _How(where, scaling, forward_format, backward_format, amax_history_len, real)
        return cls._made_from(layer, how)

    @classmethod
    def _made_from(cls, layer: nn.Linear, how: _How) -> Self:
        new = cls.__new__(cls)
        new.__dict__ = dict(layer.__dict__)
        new._choose(how)
        return new

    def _choose(self, how: _How) -> None:
        """Set how operands become FP8."""
        self.scaling, self.real = how.scaling, how.real
        self.on_cast: Callable[[str, Tensor, float], None] | None = None
        self.formats = dict(zip(_ROLES, (how.forward, how.forward, how.backward), strict=True))
        self.scalings = {
            role: _scaling_of(how.scaling, fmt, how.length) for role, fmt in self.formats.items()
        }

    def forward(self, input: Tensor) -> Tensor:
        """The layer of an input (..., in_features)."""
        tensor = isinstance(input, Tensor)
        if not tensor or input.shape[-1:] != (self.in_features,) or not input.is_floating_point():
            given = f"{input.dtype}, {tuple(input.shape)}" if tensor else quoted(input)
            raise (ValueError if tensor else TypeError)(
                f"Fp8Linear: input must be floating point of shape (..., {self.in_features}); got "
                f"{given}. Look at the layer before."
            )
        output: Tensor = _Linear.apply(input, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        mode = this_graph().innermost
        if isinstance(mode, Mode):  # which saw none of it
            mode.keep(output)
        return output

    def scale_of(self, role: str, tensor: Tensor) -> float:
        """The scale for an operand in the role "input", "weight" or "grad_output"."""
        one_of("Fp8Linear.scale_of", "role", role, _ROLES)
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            given = tensor.dtype if isinstance(tensor, Tensor) else quoted(tensor)
            raise TypeError(
                f"Fp8Linear.scale_of: tensor must be a floating-point tensor; got {given}. "
                f"Convert it with float()."
            )
        scaling = self.scalings[role]
        learnt = isinstance(scaling, DelayedScaling) and not self.training
        if learnt or isinstance(scaling, FixedScaling):
            return scaling.scale
        return scaling.update(float(amax_of(tensor)))

    def extra_repr(self) -> str:
        """What `print` shows."""
        forward, backward = self.formats["input"].name, self.formats["grad_output"].name
        kind = "real" if self.real else "simulated"
        return f"{super().extra_repr()}, {forward}/{backward}, {self.scaling} scaling, {kind}"

    # Only delayed scaling has a state; otherwise checkpoints are those of nn.Linear.

    def get_extra_state(self) -> dict[str, Any]:
        """The state of the scalings, for `state_dict`."""
        return {role: scaling.state_dict() for role, scaling in self.scalings.items()}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take over the state of the scalings; of another kind of scaling there is none."""
        if self.scaling != "delayed":
            return
        if not isinstance(state, Mapping) or set(state) != set(_ROLES):
            raise ValueError(
                f"Fp8Linear.set_extra_state: state must have the keys {', '.join(_ROLES)}; got "
                f"{quoted(state)}. Use what get_extra_state() returned."
            )
        for role, scaling in self.scalings.items():
            try:
                scaling.load_state_dict(state[role])
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"Fp8Linear.set_extra_state: state must be that of delayed scaling; got for "
                    f"{role} what gives {error}"
                ) from error

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.scaling != "delayed":
            del destination[prefix + "_extra_state"]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # the caller passes its own copy of the mapping; what is missing stays as it is
        state_dict.setdefault(prefix + "_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *rest)


def convert_linears(
    model: nn.Module,
    *,
    scaling: str = "current",
    forward_format: Format = FP8_E4M3,
    backward_format: Format = FP8_E5M2,
    amax_history_len: int = 16,
    real: bool = False,
    filter: Callable[[str, nn.Linear], bool] | None = None,
) -> nn.Module:
    """Replace the linear layers of a model by `Fp8Linear`, in place.

    Parameters, buffers and hooks stay the same objects, so an optimizer made before goes on.
    Subclasses of `nn.Linear` are left alone, such as the projection in
    `nn.MultiheadAttention`, whose weight is used without calling the layer.

    Args:
        model: any module; if it is a linear layer itself, only the return value is converted.
        scaling: as in `Fp8Linear`.
        forward_format: as in `Fp8Linear`.
        backward_format: as in `Fp8Linear`.
        amax_history_len: as in `Fp8Linear`.
        real: as in `Fp8Linear`.
        filter: of a layer's name and the layer, whether to convert it; None converts all.

    Returns:
        The model.

    Raises:
        TypeError: `model` is no module.
        ValueError: as in `Fp8Linear`; there is no layer to convert, and none that is converted.

    Examples:
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> convert_linears(model, filter=lambda name, layer: name != "2")
        Sequential(
          (0): Fp8Linear(in_features=8, out_features=4, bias=True, FP8_E4M3/FP8_E5M2, \
current scaling, simulated)
          (1): ReLU()
          (2): Linear(in_features=4, out_features=2, bias=True)
        )
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"convert_linears: model must be an nn.Module; got {type(model).__name__}. "
            f"Put single layers into nn.Sequential."
        )
    where = "convert_linears"
    how = _How(where, scaling, forward_format, backward_format, amax_history_len, real)
    function_of(where, "filter", filter, optional=True)
    made: dict[nn.Module, Fp8Linear] = {}  # a layer may have several names
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if type(layer) is not nn.Linear or (filter is not None and not filter(name, layer)):
            continue
        if layer not in made:
            made[layer] = Fp8Linear._made_from(layer, how)
        if not name:
            return made[layer]
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made[layer])
    if not made and not any(isinstance(layer, Fp8Linear) for layer in model.modules()):
        raise _nothing_to_convert(model)
    return model


def _nothing_to_convert(model: nn.Module) -> ValueError:
    linear = [
        (name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)
    ]
    found = [f"{name or 'model'} ({type(layer).__name__})" for name, layer in linear]
    kinds = sorted({type(layer).__name__ for layer in model.modules()})
    got = f"linear layers {', '.join(found)}" if found else f"{', '.join(kinds)} only"
    advice = "Look at filter; subclasses stay." if found else "Give it a model with linear layers."
    return ValueError(
        f"convert_linears: model must have an nn.Linear itself that filter lets pass; got {got}. "
        f"{advice}"
    )


def _check_place(device: Any, dtype: Any) -> None:
    """Refuse a device or a dtype that parameters cannot have."""
    without_numbers = isinstance(device, str | torch.device) and str(device) == "meta"
    if device is not None and not without_numbers:
        device_of("Fp8Linear", device)
    wide = isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1
    if dtype is not None and not wide:
        raise TypeError(
            f"Fp8Linear: dtype must be a floating-point torch.dtype of 16 bits or more, or None; "
            f"got {quoted(dtype)}. Leave it out for float32."
        )


def _scaling_of(scaling: str, fmt: Format, length: int) -> _Scaling:
    if scaling == "delayed":
        return DelayedScaling(fmt, amax_history_len=length)
    return CurrentScaling(fmt) if scaling == "current" else FixedScaling()


# The three products ----------------------------------------------------------------------
class _Linear(torch.autograd.Function):
    """A linear layer; each operand is cast once, and kept for the backward pass as it was cast."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, layer: Fp8Linear
    ) -> Tensor:
        kind = input.device.type
        lowered = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if lowered else input.dtype
        into, graph = _format_of_products(input.device), this_graph()
        with _plainly(kind, graph):
            rows = _operand(layer, "input", input.reshape(-1, input.shape[-1]))
            wide = _operand(layer, "weight", weight)
            output = _product(layer, rows, wide)
            if bias is not None:
                output += bias
            if into is not None:
                into(output, output, None)
                set_mark(output, Mark(into))
            ctx.save_for_backward(rows.matrix, wide.matrix)
            ctx.scales, ctx.dtypes = (rows.scale, wide.scale), (input.dtype, weight.dtype)
            ctx.layer, ctx.shape, ctx.bias, ctx.graph = layer, input.shape, bias, graph
            return output.to(dtype).reshape(*input.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layer, bias = ctx.layer, ctx.bias
        kept = zip(("input", "weight"), ctx.saved_tensors, ctx.scales, strict=True)
        rows, wide = (_Operand(*one) for one in kept)
        grad_input = grad_weight = grad_bias = None
        with _plainly(grad.device.type, ctx.graph):  # this may be another thread than forward
            grad = grad.reshape(-1, grad.shape[-1])
            back = _operand(layer, "grad_output", grad)
            if ctx.needs_input_grad[0]:
                product = _product(layer, back, wide.t())
                grad_input = product.to(ctx.dtypes[0]).reshape(ctx.shape)
            if ctx.needs_input_grad[1]:
                grad_weight = _product(layer, back.t(), rows.t()).to(ctx.dtypes[1])
            if ctx.needs_input_grad[2]:
                grad_bias = grad.float().sum(0).to(bias.dtype)
        return grad_input, grad_weight, grad_bias, None


def _format_of_products(device: torch.device) -> Rounder | None:
    """The door that `simulated`, where it is active, puts matrix products through."""
    if this_graph().innermost is None:
        return None
    rows, columns = torch.empty((0, 1), device=device), torch.empty((1, 0), device=device)
    mark = mark_of(rows @ columns)  # of no numbers, so that nothing is counted
    return None if mark is None else mark.into


@contextmanager
def _plainly(device_type: str, graph: Graph) -> Iterator[None]:
    """Neither autocast nor `simulated` reach inside."""
    outer, graph.innermost = graph.innermost, None
    try:
        with torch.autocast(device_type, enabled=False):
            yield
    finally:
        graph.innermost = outer


class _Operand(NamedTuple):
    """A matrix as a product reads it: in FP8, or to be cast in blocks along the axis summed."""

    role: str
    matrix: Tensor
    scale: float

    def t(self) -> _Operand:
        """Transposed."""
        return self._replace(matrix=self.matrix.t())


def _operand(layer: Fp8Linear, role: str, x: Tensor) -> _Operand:
    """Cast a matrix, unless its blocks have to wait for the product."""
    x = x.float()
    scale, fmt = layer.scale_of(role, x), layer.formats[role]
    if layer.scaling == "block":
        return _Operand(role, x, scale)
    if layer.on_cast is not None:
        layer.on_cast(role, x, scale)
    cast = multiply_and_round(x, torch.tensor(scale, device=x.device), fmt)
    return _Operand(role, cast.to(fmt.torch_dtype) if layer.real else cast, scale)


def _product(layer: Fp8Linear, left: _Operand, right: _Operand) -> Tensor:
    """The product left · rightᵀ, summed along the last axis of both."""
    if layer.scaling == "block":
        a, b = (_in_blocks(x.matrix, layer.formats[x.role]) for x in (left, right))
        return a @ b.t()
    a, b = left.matrix, right.matrix
    if layer.real and a.numel():
        begun = time.process_time()
        product = _real_product(a, b, (left.scale, right.scale))
        if a.is_cpu and not _told and time.process_time() - begun > _LONG:
            _warn_if_slow(a, b)
        return product
    return (a.float() @ b.t().float()) * (1 / (left.scale * right.scale))


def _in_blocks(x: Tensor, fmt: Format) -> Tensor:
    """A matrix in MXFP8 and back, its last axis padded to whole blocks."""
    size = x.shape[-1]
    padded = F.pad(x, (0, -size % MX_BLOCK[0]))
    return fake_quantize(padded, fmt, scale=ScaleRule.MX, block=MX_BLOCK)[:, :size]


def _real_product(a: Tensor, b: Tensor, scales: tuple[float, float]) -> Tensor:
    """The product a · bᵀ by torch in FP8, sides padded to the multiples of 16 that CUDA wants."""
    rows, columns = a.shape[0], b.shape[0]
    a, b = (
        F.pad(x.view(torch.uint8), (0, -x.shape[1] % 16, 0, -x.shape[0] % 16))
        .contiguous()
        .view(x.dtype)
        for x in (a, b)
    )
    inverse = [torch.tensor(1 / scale, dtype=torch.float32, device=a.device) for scale in scales]
    product: Tensor = torch._scaled_mm(
        a, b.t(), scale_a=inverse[0], scale_b=inverse[1], out_dtype=torch.float32
    )
    return product[:rows, :columns].contiguous()


def _warn_if_slow(a: Tensor, b: Tensor) -> None:
    """Compare a real product with float32's, the best of three each, since others compute, too."""
    global _told
    real = _seconds(lambda: _real_product(a, b, (1.0, 1.0)))
    wide = _seconds(lambda: a.float() @ b.t().float())
    if real < max(_LONG, SLOW * wide):
        return
    _told = True
    warnings.warn(
        f"Fp8Linear: real=True takes long on this CPU: {real:.2g} s for a product that takes "
        f"{wide:.2g} s in float32. Simulate it: real=False.",
        stacklevel=2,
    )


def _seconds(product: Callable[[], Tensor]) -> float:
    """The least CPU time of three calls."""
    spans = []
    for _ in range(3):
        begun = time.process_time()
        product()
        spans.append(time.process_time() - begun)
    return min(spans)
