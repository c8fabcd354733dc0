"""How torch's own half-precision kernels on a CPU round, where they do not round just once.

`mplab.simulation` computes in float32 and rounds each result once. Some kernels round between
their steps, or add float32 numbers in another order. A replica does so too, step by step, on
float32 tensors and through the one door: `simulated(..., native=True)` runs the replicas in
place of the operations, and `mplab.simulation.audit` counts how many results they explain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mplab.numbers.formats import BF16, FP16, Format, Overflow, Rounding
from mplab.simulation import _kernel_steps
from mplab.simulation._products import holds_here, own_kernels


class Replica(NamedTuple):
    """What a kernel does between its input and its last rounding."""

    compute: Callable[..., Any]
    """A function of `mplab.simulation._kernel_steps`."""
    formats: tuple[Format, ...] = (FP16, BF16)
    partial: bool = False
    """Whether it explains many but not all bits, so that it is for the audit alone."""

    @property
    def how(self) -> str:
        """The same in words."""
        written = getattr(self.compute, "func", self.compute).__doc__ or ""
        return written[:1].lower() + written.partition(".\n")[0].rstrip(".")[1:]


REPLICAS: dict[str, tuple[Replica, ...]] = {
    "mm": (Replica(_kernel_steps.mm, (FP16,)), Replica(_kernel_steps.mm_in_pairs, (BF16,))),
    "addmm": (
        Replica(_kernel_steps.addmm, (FP16,)),
        Replica(_kernel_steps.addmm_in_pairs, (BF16,)),
    ),
    "bmm": (Replica(_kernel_steps.bmm, (FP16,)),),
    "convolution": (Replica(_kernel_steps.convolution, (FP16,)),),
    "convolution_backward": (Replica(_kernel_steps.convolution_backward, (FP16,)),),
    "add": (Replica(_kernel_steps.add),),
    "sub": (Replica(_kernel_steps.sub),),
    "rsub": (Replica(_kernel_steps.rsub),),
    "pow": (
        Replica(_kernel_steps.power, (FP16,)),
        Replica(_kernel_steps.power_by_squares, (BF16,)),
    ),
    "sqrt": (Replica(_kernel_steps.sqrt, (FP16,)),),
    "rsqrt": (Replica(_kernel_steps.rsqrt),),
    "erf": (Replica(_kernel_steps.erf, partial=True),),
    "nan_to_num": tuple(
        Replica(partial(_kernel_steps.nan_to_num, fmt), (fmt,)) for fmt in (FP16, BF16)
    ),
    "xlogy": (Replica(_kernel_steps.xlogy),),
    "gelu": (Replica(_kernel_steps.gelu, (FP16,)), Replica(_kernel_steps.flushed_gelu, (BF16,))),
    "gelu_backward": (
        Replica(_kernel_steps.gelu_backward, (FP16,)),
        Replica(_kernel_steps.flushed_gelu_backward, (BF16,)),
    ),
    "glu_backward": (Replica(_kernel_steps.glu_backward),),
    "sigmoid_backward": (Replica(_kernel_steps.sigmoid_backward, (FP16,)),),
    "logit_backward": (Replica(_kernel_steps.logit_backward),),
    "mse_loss": (Replica(_kernel_steps.mse_loss),),
    "mse_loss_backward": (Replica(_kernel_steps.mse_loss_backward),),
    "smooth_l1_loss": (Replica(_kernel_steps.smooth_l1_loss, (FP16,)),),
    "huber_loss": (Replica(_kernel_steps.smooth_l1_loss, (BF16,)),),
    "huber_loss_backward": (Replica(_kernel_steps.huber_loss_backward),),
    "max_pool2d_with_indices_backward": (Replica(_kernel_steps.max_pool_backward),),
    "avg_pool2d_backward": (Replica(_kernel_steps.avg_pool_backward),),
    "embedding_dense_backward": (Replica(_kernel_steps.embedding_backward),),
    "index_put": (Replica(_kernel_steps.index_put),),
    "prod": (Replica(_kernel_steps.prod),),
    "logsumexp": (Replica(_kernel_steps.logsumexp),),
    "_softmax": (Replica(_kernel_steps.softmax),),
    "_log_softmax": (Replica(_kernel_steps.log_softmax),),
    "native_layer_norm_backward": (Replica(_kernel_steps.layer_norm_backward, partial=True),),
    "native_batch_norm": (Replica(_kernel_steps.batch_norm, partial=True),),
    "_scaled_dot_product_flash_attention_for_cpu": (
        Replica(_kernel_steps.attention, partial=True),
    ),
}
"""By the name of the operation below autograd; at most one replica for a format."""


def replica_of(name: str, fmt: Format) -> Replica | None:
    """The replica of an operation in a format, if there is one.

    Examples:
        >>> replica_of("sigmoid_backward", FP16).how
        'rounds each step: r(g · r(1 − y)) · y'
        >>> replica_of("sigmoid_backward", BF16) is None
        True
    """
    return next((found for found in REPLICAS.get(name, ()) if fmt in found.formats), None)


def native(name: str, operation: Any, into: Callable[..., Tensor]) -> Any:
    """The replica of an operation as a function of its arguments, or the operation itself.

    Args:
        name: of the operation, below autograd.
        operation: what to call where there is no replica.
        into: an `mplab.simulation.marks.Rounder`.
    """
    replica = replica_of(name, into.fmt)  # type: ignore[attr-defined]
    if replica is None or replica.partial:
        return operation

    def rounded(t: Tensor) -> Tensor:
        return into(t, torch.empty_like(t), None)

    def run(*args: Any, **kwargs: Any) -> Any:
        out = replica.compute(rounded, *args, **kwargs)
        return operation(*args, **kwargs) if out is None else out

    return run


def require_native(fmt: Format, rounding: Rounding, overflow: Overflow) -> None:
    """Refuse what `simulated(..., native=True)` cannot keep.

    Raises:
        ValueError: torch has no kernels that round to this format, or so.
        RuntimeError: this machine's kernels add in another order than the replicas.
    """
    ieee = rounding is Rounding.TIES_TO_EVEN and overflow is Overflow.IEEE
    if fmt not in (FP16, BF16) or not ieee:
        raise ValueError(
            f"simulated: native must be False unless torch has kernels for the format and they "
            f"round as asked; got {fmt.name}, {rounding.name}, {overflow.name}. Use FP16 or BF16, "
            f"to nearest, without saturation."
        )
    if holds_here(fmt.torch_dtype):
        return
    with own_kernels():
        cured = holds_here(fmt.torch_dtype)
    cure = (
        "Set torch.backends.mkldnn.enabled = False: then torch multiplies by its own kernels, "
        "which we know"
        if cured
        else "Run mplab audit to see which"
    )
    raise RuntimeError(
        f"simulated: native must be False on this machine, whose {fmt.name} kernels add in another "
        f"order than those we know. {cure}."
    )
