"""An oracle for whole runs: the simulation, computing by torch's own half-precision kernels.

`simulated` takes an operation's float32 result and rounds it. Here the operation runs in torch's
half precision on the same operands instead. What is left of the simulation is all it decides:
which operation runs in which format, on what, and in which order. That is torch.amp's bit for
bit, on every processor.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_map

from mplab.simulation import dispatch, functions
from mplab.training import engines


def in_half(rule):
    """A rule that runs an operation in half precision wherever its result is low."""

    def call(*args, **kwargs):
        # Of the method that runs the operation.
        into = sys._getframe(1).f_locals.get("into")
        low = None if into is None else into.fmt.torch_dtype
        if low not in (torch.float16, torch.bfloat16):
            return rule.call(*args, **kwargs)

        def halved(t):
            number = (
                isinstance(t, torch.Tensor) and t.dtype is torch.float32 and t.dim()
            )
            return t.to(low) if number else t

        given = [
            tree_map(halved, a) if i in rule.positions else a
            for i, a in enumerate(args)
        ]
        kwargs = {
            name: halved(a) if name in rule.keywords else a
            for name, a in kwargs.items()
        }
        return tree_map(
            lambda t: (
                t.float() if isinstance(t, torch.Tensor) and t.dtype is low else t
            ),
            rule.call(*given, **kwargs),
        )

    return (
        rule
        if rule.view or rule.written is not None
        else replace(rule, call=call, own_way=None)
    )


@contextmanager
def half_kernels():
    """Let simulations compute so, and replay no training step."""
    rule_of = dispatch.rule_of
    caches = (dispatch.rules_in, functions.known_functions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            dispatch, "rule_of", lambda *args, **named: in_half(rule_of(*args, **named))
        )
        patch.setattr(engines, "is_straight", lambda model, loss: False)
        try:
            for cache in caches:
                cache.cache_clear()
            yield
        finally:
            for cache in caches:
                cache.cache_clear()
