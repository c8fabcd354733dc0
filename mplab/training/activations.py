"""Predict from shapes alone the memory that autograd keeps for the backward pass.

The prediction is a sum over layers that a reader can repeat by hand: an operation keeps its
input, its result or both, in the format it ran in, and a low copy of each weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


# A transformer's block ------------------------------------------------------------------
class Attention(nn.Module):
    """Causal self-attention between two projections, by torch's fused operation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        rows, length, width = x.shape
        parts = self.inward(x).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.outward(
            mixed.transpose(1, 2).reshape(rows, length, width)
        )
        return result


class Block(nn.Module):
    """One transformer block, pre-norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.wide, self.act = nn.Linear(width, 4 * width), nn.GELU()
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.narrow(self.act(self.wide(self.norm2(x))))
        return result


# Memory, predicted -----------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Value:
    """A tensor as the prediction sees it; one object stands for one piece of memory."""

    shape: tuple[int, ...]
    low: bool
    needs_gradient: bool = True
    batch: bool = False
    base: _Value | None = None
    """The tensor that this is a view of."""

    def elements(self) -> int:
        return math.prod(self.shape)


class _Prediction:
    """A walk through the modules that collects what autograd will keep."""

    def __init__(self, low_bytes: float | None, cuda: bool) -> None:
        self.low_bytes, self.cuda = low_bytes, cuda
        self.kept: dict[int, tuple[_Value, float]] = {}
        self.casts = 0.0

    @property
    def total(self) -> float:
        """Bytes of activations, without the casts of weights."""
        return sum(size for _, size in self.kept.values())

    def keep(self, value: _Value) -> None:
        """Count a tensor that autograd keeps; once, however often it is kept."""
        value = value.base or value
        size = self.low_bytes if value.low and self.low_bytes is not None else 4
        self.kept[id(value)] = (value, 0.0 if value.batch else size * value.elements())

    def keep_bytes(self, count: int) -> None:
        """Count other bytes that autograd keeps: indices or statistics."""
        value = _Value((count,), False)
        self.kept[id(value)] = (value, float(count))

    def lowered(self, x: _Value) -> _Value:
        """The input of a product: the tensor itself, or a copy in the low format."""
        if self.low_bytes is None or x.low:
            return x
        return _Value(x.shape, True, x.needs_gradient)

    def widened(self, x: _Value) -> _Value:
        return _Value(x.shape, False, x.needs_gradient) if x.low else x

    def cast_weight(self, weight: Tensor) -> None:
        self.casts += (self.low_bytes or 0) * weight.numel()

    def through(self, module: nn.Module, x: _Value) -> _Value:
        """Pass a tensor through a module, and count what is kept."""
        for kind, rule in _RULES.items():
            if isinstance(module, kind) and _known(module):
                return rule(self, module, x)
        raise ValueError(
            f"predicted_activations: modules must be one of "
            f"{', '.join(kind.__name__ for kind in _RULES)}, without dilation, pooling by squares "
            f"that overlap, or norms over several axes; got {type(module).__name__}. "
            "Measure this network instead."
        )

    def product(self, x: _Value, shape: tuple[int, ...]) -> _Value:
        self.keep(x)
        return _Value(shape, self.low_bytes is not None)


def _known(module: Any) -> bool:
    """Whether the rule of a module's kind holds for its options."""
    match module:
        case nn.Conv2d():
            return module.dilation == (1, 1) and not isinstance(module.padding, str)
        case nn.MaxPool2d():
            options = module.stride, module.padding, module.dilation, module.ceil_mode
            return options == (module.kernel_size, 0, 1, False) and isinstance(
                options[0], int
            )
        case nn.LayerNorm():
            return len(module.normalized_shape) == 1
    return True


def _linear(to: _Prediction, module: Any, x: _Value) -> _Value:
    if x.needs_gradient:  # else the weight is not needed again
        to.cast_weight(module.weight)
    return to.product(to.lowered(x), (*x.shape[:-1], module.out_features))


def _convolution(to: _Prediction, module: Any, x: _Value) -> _Value:
    to.cast_weight(module.weight)
    sizes = zip(
        x.shape[2:], module.padding, module.kernel_size, module.stride, strict=True
    )
    places = tuple((n + 2 * p - k) // s + 1 for n, p, k, s in sizes)
    return to.product(to.lowered(x), (x.shape[0], module.out_channels, *places))


def _keeps_result(to: _Prediction, module: Any, x: _Value) -> _Value:
    out = _Value(x.shape, x.low)
    to.keep(out)
    return out


def _keeps_input(to: _Prediction, module: Any, x: _Value) -> _Value:
    to.keep(x)
    return _Value(x.shape, x.low)


def _pooling(to: _Prediction, module: Any, x: _Value) -> _Value:
    to.keep(x)
    size = module.kernel_size
    out = _Value((*x.shape[:2], *(n // size for n in x.shape[2:])), x.low)
    to.keep_bytes(8 * out.elements())  # where each maximum was
    return out


def _layer_norm(to: _Prediction, module: Any, x: _Value) -> _Value:
    x = to.widened(x) if to.cuda else x
    to.keep(x)
    to.keep_bytes(4 * x.elements() // x.shape[-1])  # means
    to.keep_bytes(4 * x.elements() // x.shape[-1])  # reciprocal deviations
    return _Value(x.shape, x.low)


def _flatten(to: _Prediction, module: Any, x: _Value) -> _Value:
    """A view shares its input's memory: keeping the view keeps the input."""
    shape = (x.shape[0], x.elements() // x.shape[0])
    return _Value(shape, x.low, x.needs_gradient, x.batch, x.base or x)


def _attention(to: _Prediction, module: Attention, x: _Value) -> _Value:
    parts = to.through(module.inward, x)
    to.keep(parts)
    to.keep_bytes(4 * x.elements() // x.shape[-1] * module.heads)  # logarithms of sums
    return to.through(module.outward, _Value(x.shape, parts.low))


def _block(to: _Prediction, module: Block, x: _Value) -> _Value:
    y = to.through(module.attention, to.through(module.norm1, x))
    x = _Value(x.shape, x.low and y.low)
    y = x
    for part in (module.norm2, module.wide, module.act, module.narrow):
        y = to.through(part, y)
    return _Value(x.shape, x.low and y.low)


def _chain(to: _Prediction, module: nn.Sequential, x: _Value) -> _Value:
    for part in module:
        x = to.through(part, x)
    return x


_RULES: dict[type[nn.Module], Callable[[_Prediction, Any, _Value], _Value]] = {
    nn.Sequential: _chain,
    Block: _block,
    Attention: _attention,
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.ReLU: _keeps_result,
    nn.Sigmoid: _keeps_result,
    nn.Tanh: _keeps_result,
    nn.GELU: _keeps_input,
    nn.SiLU: _keeps_input,
    nn.MaxPool2d: _pooling,
    nn.LayerNorm: _layer_norm,
    nn.Flatten: _flatten,
}


def predicted_activations(
    model: nn.Module,
    shape: Sequence[int],
    *,
    low_bytes: float | None = None,
    loss: Callable[..., Tensor] = F.mse_loss,
    cuda: bool = False,
    checkpointed: bool = False,
) -> tuple[int, int]:
    """Predict how many bytes of activations and low copies of weights autograd keeps.

    The batch itself does not count; it is there anyway.

    Args:
        model: a network of modules that have a rule here.
        shape: shape of the input, which is FP32.
        low_bytes: bytes per element of the low format; None computes in FP32.
        loss: `mse_loss` or `cross_entropy` of torch.
        cuda: predict for autocast on CUDA, which runs norms in FP32, not for autocast on the CPU.
        checkpointed: each child of a `Sequential` keeps only its input.

    Returns:
        Bytes of activations and of copies.

    Raises:
        ValueError: a module or a loss without a rule. Convolutions with dilation, pooling by
            anything but adjacent squares, and norms over several axes have none.

    Exactness:
        Exact on CPU for the networks of tests/training/test_stages.py.

    Examples:
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> predicted_activations(
        ...     model, (10, 8)
        ... )  # 10 · 4 from ReLU and 10 · 2 for the loss
        (240, 0)
        >>> predicted_activations(model, (10, 8), low_bytes=2)
        (320, 16)
    """
    to = _Prediction(low_bytes, cuda)
    x = _Value(tuple(shape), False, needs_gradient=False, batch=True)
    if checkpointed:
        for part in children_of("predicted_activations", model):
            to.keep(x)
            x = _Prediction(low_bytes, cuda).through(part, x)
    else:
        x = to.through(model, x)
    wide = to.widened(x)
    if loss is F.mse_loss:
        to.keep(wide)
    elif loss is F.cross_entropy:
        to.keep(_Value(wide.shape, False))
        to.keep_bytes(4)  # the sum of the classes' weights
    else:
        raise ValueError(
            f"predicted_activations: loss must be mse_loss or cross_entropy; got {loss!r}. "
            "Measure it instead."
        )
    return round(to.total), round(to.casts)


def children_of(where: str, model: nn.Module) -> list[nn.Module]:
    """The parts of a Sequential, which can be recomputed one by one."""
    if not isinstance(model, nn.Sequential):
        raise ValueError(
            f"{where}: checkpointed must be False, or the model must be a Sequential; got a "
            f"{type(model).__name__}. Put its blocks in one."
        )
    return list(model)
