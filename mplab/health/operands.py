"""Repeat the casts of torchao's layers in FP8 and MXFP8, with the functions of the layer."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mplab.health.simulations import format_of_dtype
from mplab.numbers.formats import Format

_AGAIN = {"input": "grad_weight", "weight": "grad_input", "grad_output": "grad_weight"}
"""The second product that reads an operand, summed along the operand's other axis."""


class Operand(NamedTuple):
    """An operand as it was cast; all but the first two are arguments of `measures.casts_of`."""

    name: str
    scaling: str
    x: Tensor
    low: Tensor
    factor: Tensor
    fmt: Format | None


def is_torchao(layer: nn.Module) -> bool:
    """Whether this is one of torchao's linear layers whose casts are known here."""
    named = type(layer).__name__ in ("Float8Linear", "MXFP8Linear")
    return named and type(layer).__module__.startswith("torchao.")


def operands(layer: Any, role: str, x: Tensor) -> Iterator[Operand]:
    """Cast an operand as its layer casts it for its two products.

    Args:
        layer: a layer for which `is_torchao` is True.
        role: "input", "weight" or "grad_output".
        x: the operand, before its cast.
    """
    if type(x) not in (Tensor, nn.Parameter) or not x.numel():
        return  # a subclass may be cast already
    x = x.detach().reshape(-1, x.shape[-1])
    second = f"{role} for {_AGAIN[role]}"
    if type(layer).__name__ == "MXFP8Linear":
        yield _in_blocks(layer, role, x)
        if not (layer.wgrad_with_hp and _AGAIN[role] == "grad_weight"):
            yield _in_blocks(layer, second, x.t().contiguous())
        return
    first, again = (
        getattr(layer.config, f"cast_config_{name.replace(' ', '_')}")
        for name in (role, second)
    )
    if role == "input" and torch.is_autocast_enabled():  # as the layer does
        x = x.to(torch.get_autocast_dtype("cuda"))
    if first.scaling_type.name != "DISABLED":
        yield _in_rows(layer, first, role, x, -1)
    # One cast serves both products.
    whole = again.scaling_granularity.name == "TENSORWISE"
    if again.scaling_type.name != "DISABLED" and not (whole and again == first):
        yield _in_rows(layer, again, second, x, 0)


def _in_rows(layer: Any, how: Any, name: str, x: Tensor, axis: int) -> Operand:
    """Cast with one scale, or with one for each row along an axis."""
    from torchao.float8.float8_scaling_utils import (
        get_maybe_axiswise_dim,
        hp_tensor_to_float8_dynamic,
    )

    found = hp_tensor_to_float8_dynamic(
        x,
        how.target_dtype,
        layer.linear_mm_config,
        scaling_granularity=how.scaling_granularity,
        axiswise_dim=get_maybe_axiswise_dim(axis, how.scaling_granularity),
        round_scales_to_power_of_2=layer.config.round_scales_to_power_of_2,
    )
    low = found._data.float() / found._scale
    fmt = format_of_dtype(how.target_dtype)
    return Operand(
        name, how.scaling_granularity.name.lower(), x, low, found._scale, fmt
    )


def _in_blocks(layer: Any, name: str, x: Tensor) -> Operand:
    """Cast with one scale for 32 numbers along the last axis."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    dtype = torch.float8_e4m3fn
    found = MXTensor.to_mx(x.contiguous(), dtype, 32, layer.scale_calculation_mode)
    factor = found.scale.float().reciprocal().repeat_interleave(32, -1)
    return Operand(
        name,
        "mxfp8",
        x,
        found.dequantize(torch.float32),
        factor,
        format_of_dtype(dtype),
    )
