"""Casts of a linear layer's operands to low formats, and a table of named scalings.

A scaling gives for each role the format, the scale, the block and the rounding, and says whether
the operands of the weight's gradient go through a random Hadamard transform.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mplab.numbers.checks import one_of, quoted
from mplab.numbers.formats import (
    FP4_E2M1,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E5M2,
    Format,
    Rounding,
)
from mplab.numbers.options import Stream
from mplab.scaling.amax import CurrentScaling, DelayedScaling, FixedScaling, ScaleRule
from mplab.scaling.quantized import fake_quantize, hadamard, scales_of
from mplab.simulation.rounders import rounding_parameters

ROLES = ("input", "weight", "grad_output")
"""The operands of the three products; each is read by two of them."""

_OF_WHOLE_TENSORS = (FixedScaling, CurrentScaling, DelayedScaling)

_REAL = (FP8_E4M3, FP8_E5M2)


@dataclass(frozen=True)
class Cast:
    """How an operand is cast to a format.

    Args:
        fmt: the format.
        scale: with blocks, the `ScaleRule` for the scale of each block; without, the class that
            finds the scale of the whole tensor: `FixedScaling` for no scale, `CurrentScaling` or
            `DelayedScaling`.
        block: its rows, and its elements along the axis that the product sums (None: all of them).
            An operand in blocks is cast anew for each of its two products; where a block is a
            square, both read the same values, except with stochastic rounding.
        rounding: the direction. Random bits come from torch's generator for the CPU.

    Raises:
        ValueError: the format lacks signs or zero, or does not fit in float32; the block does not
            fit the scale.

    Examples:
        >>> Cast(FP8_E4M3, ScaleRule.RATIO, (1, None)).block  # a scale for each row
        (1, None)
    """

    fmt: Format
    scale: ScaleRule | type[FixedScaling | CurrentScaling | DelayedScaling]
    block: tuple[int, int | None] | None = None
    rounding: Rounding = Rounding.TIES_TO_EVEN

    def __post_init__(self) -> None:
        rounding_parameters("Cast", self.fmt)
        fitting = _OF_WHOLE_TENSORS if self.block is None else tuple(ScaleRule)
        if self.scale not in fitting:
            raise ValueError(
                f"Cast: scale must be a ScaleRule with a block such as (1, 32), without one "
                f"FixedScaling, CurrentScaling or DelayedScaling; got {quoted(self.scale)} and "
                f"{quoted(self.block)}. (1, None) is a scale for each row."
            )

    def stream(self) -> Stream | None:
        """Random bits for one tensor, if the rounding needs some."""
        if self.rounding is not Rounding.STOCHASTIC:
            return None
        return Stream(int(torch.randint(2**63 - 1, (), device="cpu")))

    def in_blocks(self, x: Tensor) -> Tensor:
        """Cast a matrix for a product, unless it has one scale and so was cast once for all.

        Incomplete blocks are padded with zeros.
        """
        if self.block is None:
            return x
        padded, block = self._padded(x)
        found = fake_quantize(
            padded,
            self.fmt,
            scale=self.scale,  # type: ignore[arg-type]
            block=block,
            rounding=self.rounding,
            stream=self.stream(),
        )
        return found[: x.shape[0], : x.shape[1]]

    def factors(self, x: Tensor) -> Tensor:
        """The scale of each number of a matrix in blocks, applied before rounding."""
        padded, block = self._padded(x)
        found, _ = scales_of("Cast", padded, self.fmt, self.scale, block, None)  # type: ignore[arg-type]
        factors = found.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        return factors[: x.shape[0], : x.shape[1]]

    def _padded(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Pad a matrix with zeros to whole blocks; return it and the shape of a block."""
        assert self.block is not None
        down, along = self.block
        rows, columns = x.shape
        block = (down, max(1, columns) if along is None else along)
        return F.pad(x, (0, -columns % block[1], 0, -rows % block[0])), block


@dataclass(frozen=True)
class Scaling:
    """How the three operands of a linear layer are cast.

    Args:
        name: the scaling's name.
        input: the cast of the layer's input.
        weight: the cast of the layer's weight.
        grad_output: the cast of the gradient with respect to the layer's output.
        hadamard: apply a Hadamard transform with random signs to both operands of the weight's
            gradient, in groups of 16 along the summed axis, before they are cast: it spreads
            outliers, and the product stays the same except for the casts. The signs come from
            torch's generator for the CPU.
        keep_ends: `convert_linears` leaves the first and the last layer of a model as they are,
            unless it is given a filter.

    Raises:
        ValueError: `hadamard` for operands without blocks, which are cast once for all products.

    Examples:
        >>> from dataclasses import replace
        >>> mx = SCALINGS["mxfp4"]
        >>> random = replace(mx.grad_output, rounding=Rounding.STOCHASTIC)
        >>> mine = replace(mx, name="mine", grad_output=random, hadamard=True)
    """

    name: str
    input: Cast
    weight: Cast
    grad_output: Cast
    hadamard: bool = False
    keep_ends: bool = False

    def __post_init__(self) -> None:
        if self.hadamard and None in (self.input.block, self.grad_output.block):
            raise ValueError(
                "Scaling: hadamard must be False where input or grad_output have no blocks; got "
                "True. Give their casts a ScaleRule and a block."
            )

    def casts(self) -> dict[str, Cast]:
        """The casts by role."""
        return {role: getattr(self, role) for role in ROLES}

    def is_real(self) -> bool:
        """Whether torch itself has these products: E4M3 and E5M2, with one scale per tensor."""
        return all(c.block is None and c.fmt in _REAL for c in self.casts().values())


def scaling_with_formats(
    where: str,
    scaling: str | Scaling,
    forward_format: Format | None,
    backward_format: Format | None,
    real: bool,
) -> Scaling:
    """Look up a scaling by name, or take the one given; replace its formats with those given."""
    found = scaling
    if not isinstance(found, Scaling):
        found = SCALINGS[one_of(where, "scaling", scaling, SCALINGS)]
    if forward_format is not None:
        found = replace(
            found,
            input=replace(found.input, fmt=forward_format),
            weight=replace(found.weight, fmt=forward_format),
        )
    if backward_format is not None:
        cast = replace(found.grad_output, fmt=backward_format)
        found = replace(found, grad_output=cast)
    if real and not found.is_real():
        raise ValueError(
            f"{where}: real must be False for anything but FP8_E4M3 and FP8_E5M2 with one "
            f"scale for a tensor; got {found.input.fmt.name}, {found.grad_output.fmt.name}, "
            f"{found.name!r}. Simulate it: real=False."
        )
    return found


def apply_hadamard(*operands: Tensor) -> list[Tensor]:
    """Apply one Hadamard transform with random signs to matrices, zero-padded to its size."""
    signs = 2 * torch.randint(2, (16,), device="cpu") - 1
    return [
        hadamard(F.pad(x, (0, -x.shape[1] % 16)), signs.to(x.device)) for x in operands
    ]


# The table -------------------------------------------------------------------------------
def _alike(name: str, cast: Cast, **other: Any) -> Scaling:
    """Make a scaling that casts all three operands alike, except those in `other`."""
    return Scaling(name, **{**dict.fromkeys(ROLES, cast), **other})


def _fp8(name: str, *options: Any) -> Scaling:
    """Make a scaling in E4M3, with gradients in E5M2."""
    return _alike(name, Cast(FP8_E4M3, *options), grad_output=Cast(FP8_E5M2, *options))


_SCALINGS = (
    _fp8("current", CurrentScaling),
    _fp8("delayed", DelayedScaling),
    _fp8("none", FixedScaling),
    _fp8("block", ScaleRule.MX, (1, 32)),
    _alike("fp8-rowwise", Cast(FP8_E4M3, ScaleRule.POWER_OF_TWO, (1, None))),
    _alike(
        "fp8-blockwise",
        Cast(FP8_E4M3, ScaleRule.RATIO, (1, 128)),
        weight=Cast(FP8_E4M3, ScaleRule.RATIO, (128, 128)),
    ),
    _alike("mxfp8", Cast(FP8_E4M3, ScaleRule.RCEIL, (1, 32))),
    _alike("mxfp6", Cast(FP6_E3M2, ScaleRule.RCEIL, (1, 32))),
    _alike("mxfp4", Cast(FP4_E2M1, ScaleRule.RCEIL, (1, 32))),
    _alike(
        "nvfp4",
        Cast(FP4_E2M1, ScaleRule.NVFP4, (1, 16)),
        weight=Cast(FP4_E2M1, ScaleRule.NVFP4, (16, 16)),
        grad_output=Cast(FP4_E2M1, ScaleRule.NVFP4, (1, 16), Rounding.STOCHASTIC),
        hadamard=True,
        keep_ends=True,
    ),
)

SCALINGS: dict[str, Scaling] = {scaling.name: scaling for scaling in _SCALINGS}
"""The scalings by name.

The first four use E5M2 in the backward pass. The first three have one scale per tensor, computed
from the tensor itself or from earlier tensors, or no scale.

| scaling | as in |
|---|---|
| current, delayed, none | Micikevicius et al., arXiv 2209.05433 |
| block | OCP Microscaling Formats v1.0: the top of a block may saturate |
| fp8-rowwise | torchao's recipe "rowwise": a power of two for each row that is summed |
| fp8-blockwise | DeepSeek-V3, arXiv 2412.19437: tiles of 1×128, weights 128×128 |
| mxfp8 | arXiv 2506.08027: E4M3 in both directions, scales rounded so that nothing saturates |
| mxfp6 | MX with E3M2, the wider range of the two; scales as for mxfp8 |
| mxfp4 | MX with E2M1; scales as for mxfp8 |
| nvfp4 | arXiv 2509.25149; of the layers kept wide there, only the first and the last |
"""
