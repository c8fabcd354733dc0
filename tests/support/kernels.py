"""Which kernels ran on which formats: under torch's autocast, and under the simulation."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mplab import FP32

IGNORED = """
    _to_copy clone copy _unsafe_view unsafe_split empty_like zeros_like ones_like full_like fill
    new_empty_strided new_zeros
""".split()  # noqa: SIM905
"""Casts, views, and what only makes memory."""


class Observer(TorchDispatchMode):
    """Names of the kernels that make numbers, and which inputs are low if the result is.

    For a result in FP32 it does not matter where low inputs are widened, which is exact. Float64,
    in which some functions find a place on the way, counts as FP32.
    """

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))

        def low(values):
            leaves = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
            return [
                t.dtype.itemsize < 4
                for t in leaves
                if t.is_floating_point() and t.dim()
            ]

        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        view = any(
            r.alias_info and not r.alias_info.is_write for r in func._schema.returns
        )
        numbers = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        numbers = [t for t in numbers if t.is_floating_point()]
        if (
            numbers
            and numbers[0].dim()
            and low(args)
            and not view
            and name not in IGNORED
        ):
            self.seen.append((name, low(args) if low(numbers[0])[0] else FP32))
        return out


def kernels_in(rows, fmt):
    """The same of what a `Recorder` took down."""
    return [
        (row.operation, FP32 if row.format == FP32 else [f == fmt for f in row.inputs])
        for row in rows
        if row.shape and row.operation not in IGNORED and "adds into" not in row.rule
    ]
