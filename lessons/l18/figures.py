"""Four bits: errors of MXFP4 and NVFP4 by magnitude, outliers and noise."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mplab import FP4_E2M1, Rounding, Stream
from mplab.course.pictures import canvas as c
from mplab.scaling import MX_BLOCK, ScaleRule, fake_quantize, hadamard

_MXFP4: dict[str, Any] = {"scale": ScaleRule.RCEIL, "block": MX_BLOCK}


_NVFP4: dict[str, Any] = {"scale": ScaleRule.NVFP4, "block": (16,)}


# Measured errors -------------------------------------------------------------------------
class FourBitErrors(NamedTuple):
    """Relative errors of ways to use four bits.

    Attributes:
        subject: what has an error.
        axis: the quantity along `x`.
        x: shape (n,).
        curves: the errors, of that shape, by way; in a variant's name, its change begins "with".
        binary: whether `x` holds powers of two.
    """

    subject: str
    axis: str
    x: np.ndarray
    curves: dict[str, np.ndarray]
    binary: bool = True


def _normal(seed: int, *shape: int) -> tuple[Tensor, torch.Generator]:
    """Normally distributed numbers, and the generator for more random ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator), generator


def _error(made: Tensor, exact: Tensor) -> float:
    """The norm of the error over the norm of the exact tensor."""
    return float((made - exact).norm() / exact.norm())


def measure_scale_errors(*, seed: int = 0) -> FourBitErrors:
    """The error of 4,096 normally distributed numbers, from small ones to large ones.

    Args:
        seed: of the numbers.

    Examples:
        >>> found = measure_scale_errors()
        >>> [f"{errors[0]:.2f}" for errors in found.curves.values()]
        ['0.12', '0.09', '1.00']
    """
    numbers, _ = _normal(seed, 4096)
    ways = {
        "MXFP4": _MXFP4,
        "NVFP4": _NVFP4,
        "NVFP4 without a tensor scale": {**_NVFP4, "tensor_scale": 1.0},
    }
    sizes = 2.0 ** np.arange(-16, 17)
    scaled = [numbers * size for size in sizes.tolist()]
    curves = {
        name: np.array([_error(fake_quantize(x, FP4_E2M1, **way), x) for x in scaled])
        for name, way in ways.items()
    }
    return FourBitErrors(
        "4,096 normally distributed numbers", "their standard deviation", sizes, curves
    )


def measure_outlier_errors(*, seed: int = 0) -> FourBitErrors:
    """The error of a product of matrices of which one element in 200 is an outlier.

    Both matrices enter four bits, plainly or after one Hadamard transform with random signs.

    Args:
        seed: of the matrices and the signs.
    """
    both, generator = _normal(seed, 2, 128, 512)
    outliers = torch.rand(both.shape, generator=generator) < 0.005
    signs = torch.randint(2, (16,), generator=generator) * 2 - 1
    sizes = 2.0 ** np.arange(9)
    curves: dict[str, list[float]] = {}
    for size in sizes.tolist():
        plain = torch.where(outliers, size * both, both)
        exact = plain[0] @ plain[1].T
        for name, way in (("MXFP4", _MXFP4), ("NVFP4", _NVFP4)):
            for words, given in (
                ("", plain),
                (" with Hadamard", hadamard(plain, signs)),
            ):
                a, b = (fake_quantize(x, FP4_E2M1, **way) for x in given)
                curves.setdefault(name + words, []).append(_error(a @ b.T, exact))
    found = {name: np.array(errors) for name, errors in curves.items()}
    return FourBitErrors(
        "a product of matrices", "outliers are multiplied by", sizes, found
    )


def measure_quiet_errors(*, noise: float = 0.0, seed: int = 0) -> FourBitErrors:
    """How far 15 weights are from their goals, when a noisy one shares their block of NVFP4.

    600 steps of gradient descent with the rate 1/50. A gradient is the distance from the goal; that
    of the sixteenth weight has noise of a magnitude of 10 to 20.

    Args:
        noise: the standard deviation of noise in the gradients of the 15 weights.
        seed: of the goals, of the noise and of the rounding.
    """
    goal, generator = _normal(seed, 16)
    steps = 600
    loud = torch.rand(steps, generator=generator) * 10 + 10
    shocks = loud * (torch.randint(2, (steps,), generator=generator) * 2 - 1)
    own = noise * torch.randn(steps, 16, generator=generator)
    own[:, 0] = shocks
    curves = {}
    for name, rounding in (
        ("to nearest", Rounding.TIES_TO_EVEN),
        ("stochastic", Rounding.STOCHASTIC),
    ):
        weights = torch.zeros(16)
        stream = Stream(seed)
        errors = [1.0]
        how: dict[str, Any] = {"rounding": rounding}
        if rounding is Rounding.STOCHASTIC:
            how["stream"] = stream
        for shock in own:
            gradient = weights - goal + shock
            weights = weights - fake_quantize(gradient, FP4_E2M1, **_NVFP4, **how) / 50
            errors.append(_error(weights[1:], goal[1:]))
        curves[name] = np.array(errors)
    return FourBitErrors(
        "15 quiet weights", "step", np.arange(steps + 1), curves, binary=False
    )


def measure_noisy_errors(*, seed: int = 0) -> FourBitErrors:
    """Where the 15 weights come to rest, against the noise of their own gradients.

    Args:
        seed: of the goals, of the noise and of the rounding.
    """
    sizes = 2.0 ** np.arange(-6, 1)
    runs = [measure_quiet_errors(noise=size, seed=seed) for size in sizes.tolist()]
    curves = {
        name: np.array([run.curves[name][-100:].mean() for run in runs])
        for name in runs[0].curves
    }
    quantity = "noise in the gradients of the quiet weights"
    return FourBitErrors("15 quiet weights", quantity, sizes, curves)


# The figures -----------------------------------------------------------------------------
def plot_four_bit_errors(found: FourBitErrors) -> c.Picture:
    """A line for each way; a variant is dashed.

    Args:
        found: from `measure_scale_errors`, `measure_outlier_errors` or `measure_quiet_errors`.

    Returns:
        A figure whose title says which line has the least error at worst, or at the end of steps,
        and which the largest.
    """
    ends = {
        name: float(errors.max() if found.binary else errors[-1])
        for name, errors in found.curves.items()
    }
    when = "at worst" if found.binary else "at the end"
    said = {name: f"{name} ({c.percent(end, 1.0)})" for name, end in ends.items()}
    order = [said[name] for name in sorted(ends, key=lambda name: ends[name])]
    claim = f"The error of {found.subject}, {when}: least with {order[0]}, most with {order[-1]}."
    return _plot(found, claim, f"In order: {c.listed(order)}.")


def plot_noisy_errors(found: FourBitErrors) -> c.Picture:
    """Both ways of rounding, against the noise.

    Args:
        found: from `measure_noisy_errors`.

    Returns:
        A figure whose title says up to which noise chance is the better way by a fifth.
    """
    nearest, chance = (found.curves[name] for name in ("to nearest", "stochastic"))
    helps = found.x[nearest > 1.2 * chance]
    claim = (
        f"Stochastic rounding comes nearer to the goals up to a noise of "
        f"{c.power_of_two(float(helps.max()))}; above it, noise does what chance did."
    )
    return _plot(found, claim, "A line falls with the noise, then both rise.")


def _plot(found: FourBitErrors, claim: str, details: str) -> c.Picture:
    kinds = list(dict.fromkeys(name.partition(" with")[0] for name in found.curves))
    lines = []
    for name, errors in found.curves.items():
        kind, variant, _ = name.partition(" with")
        own = c.NEUTRAL[kinds.index(kind)]
        look = own._replace(dash="dashed" if variant else "solid")
        face = "white" if variant else own.colour
        how = {"marker": own.marker if found.binary else "", "markerfacecolor": face}
        lines.append(c.Line(found.x, errors, name, look, how))
    every = np.log2(np.array(list(found.curves.values())))
    limits = np.exp2([np.floor(every.min()) - 0.1, np.ceil(every.max()) + 0.1])
    return c.line_chart(
        lines,
        found.axis,
        "relative error",
        claim,
        details,
        log="xy" if found.binary else "y",
        finish=lambda axes: axes.set_ylim(*limits),
    )
