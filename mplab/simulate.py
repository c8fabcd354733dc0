"""Any torch module in a low format: float32 tensors that hold only values of that format.

What autocast does with dtypes, `simulated` does by rounding. It shows what a format does to
training without the hardware for it, and counts what it did.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.backends import mha
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from mplab.dispatch import OUTSIDE, Mode
from mplab.formats import Format, Overflow, Rounding
from mplab.marks import Rounder, this_graph
from mplab.rounding import Stream, Tally

_push: Callable[[Mode], Any] = TorchDispatchMode.__enter__
_pop: Callable[[Mode, Any, Any, Any], Any] = TorchDispatchMode.__exit__


class simulated:
    """Run torch code in a low format as autocast on CUDA would, forward and backward.

    Inside the `with` statement the tensors stay float32. Matrix products and convolutions
    round their inputs and results to `fmt`; losses, softmax, norms, exp, log, pow and sums
    run in FP32; everything else in the widest format of its inputs. Scalars, `.grad`, loss
    scaling, clipping and the optimizer stay FP32. `backward()` belongs inside, too.

    Seen in parts, where autocast takes the whole: losses and similarities made of several
    operations, such as `l1_loss`, `kl_div` or `cosine_similarity`, when both inputs are low,
    and LSTM cells and GRUs. `.float()` on a float32 tensor does nothing, so it does not widen.

    Args:
        fmt: the format; at most float32.
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: what lies past the largest finite value.
        stream: source of random bits.
        tally: count what each rounding did, at some cost in time.
        model: gives the layers their names; if omitted, the outermost module that is called.

    Raises:
        ValueError: `fmt` does not fit in float32, or lacks signs or zero; inside, a tensor that
            is neither dense float32, nor integer, nor a scalar.
        RuntimeError: `backward()` is called after the context of its forward pass ended.

    Exactness:
        Each result is the float32 result of torch, correctly rounded. Bit-exact with torch's
        own half kernels on the operations and data of tests/test_dispatch.py; kernels that
        round between their steps, such as `sigmoid_backward`, differ.

    Source:
        `mplab.policies`.

    Examples:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 2)
        >>> with simulated(FP16) as sim:
        ...     layer(torch.ones(1, 2)).sum().backward()
        >>> sorted(sim.by_operation)
        ['addmm', 'cast', 'cast backward', 'mm backward', 'sum backward']
    """

    def __init__(
        self,
        fmt: Format,
        *,
        rounding: Rounding = Rounding.TIES_TO_EVEN,
        overflow: Overflow = Overflow.IEEE,
        stream: Stream | None = None,
        tally: bool = True,
        model: nn.Module | None = None,
    ) -> None:
        self._mode = Mode(Rounder(fmt, rounding, overflow, stream), tally)
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._entered: list[str] = []
        self._stepping: list[Optimizer] = []
        self._handles: list[Any] = []
        self._outer: Mode | None = None
        self._fastpath = True
        if model is not None:
            self._name(model)

    @property
    def by_operation(self) -> dict[str, Tally]:
        """What the roundings did, by operation; of the backward pass "… backward"."""
        return self._tallies(0)

    @property
    def by_layer(self) -> dict[str, Tally]:
        """What the roundings did, by module; in the backward pass "… backward"."""
        return self._tallies(1)

    def _tallies(self, which: int) -> dict[str, Tally]:
        sums: dict[str, Tally] = {}
        for key, counter in (self._mode.counters or {}).items():
            sums[key[which]] = sums.get(key[which], Tally()) + counter.result()
        return sums

    def __enter__(self) -> Self:
        mode = self._mode
        if self._handles:
            raise RuntimeError("simulated: a context must be left before it is entered again.")
        mode.graph = graph = this_graph()
        graph.skip()
        self._outer, graph.innermost = graph.innermost, mode
        mode.epoch += 1
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        if mode.counters is not None:
            self._handles += [
                register_module_forward_pre_hook(self._before_module),
                register_module_forward_hook(self._after_module, always_call=True),
            ]
        self._fastpath = mha.get_fastpath_enabled()
        mha.set_fastpath_enabled(False)  # one operation for a whole layer, as autocast refuses
        _push(mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        mode = self._mode
        if self._stepping:  # an optimizer's step was broken off
            _push(mode)
        _pop(mode, kind, error, traceback)
        mode.graph.innermost = self._outer
        mha.set_fastpath_enabled(self._fastpath)
        for handle in self._handles:
            handle.remove()
        self._handles, self._stepping, self._entered, mode.layer = [], [], [], OUTSIDE
        self._guard_backward()

    def _guard_backward(self) -> None:
        """Make `backward()` of the last result an error once no context is active."""
        latest = self._mode.latest() if self._mode.latest is not None else None
        if latest is None or latest.grad_fn is None:
            return
        graph = self._mode.graph

        def check(_: Tensor) -> None:
            if graph.innermost is None:
                raise RuntimeError(
                    "simulated: backward() must run inside the with statement; got a call after "
                    "it ended, where gradients would be plain FP32. Indent it."
                )

        latest.register_hook(check)  # type: ignore[no-untyped-call]

    # An optimizer works in FP32: the mode steps aside, which costs nothing for each operation.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        mode = self._mode
        if any(optimizer is other for other in self._stepping):
            raise RuntimeError(
                "simulated: an optimizer's step must end before its next one; got an exception in "
                "the last one. Leave the with statement and enter it again."
            )
        ours = mode.graph is this_graph() and mode.graph.innermost is mode
        closure = len(args) > 1 or kwargs
        if ours and not closure and _get_current_dispatch_mode() is mode:
            self._stepping.append(optimizer)
            _pop(mode, None, None, None)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._stepping and self._stepping[-1] is optimizer:
            _push(self._mode)
            self._stepping.pop()
            self._mode.epoch += 1  # weights may have changed through .data, unseen

    # Names of layers

    def _before_module(self, module: nn.Module, args: Any) -> None:
        if self._mode.graph is not this_graph():
            return
        if module not in self._names:
            self._name(module)
        self._entered.append(self._names[module])
        self._mode.layer = self._names[module]

    def _after_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._entered and self._mode.graph is this_graph():
            self._entered.pop()
            self._mode.layer = self._entered[-1] if self._entered else OUTSIDE

    def _name(self, root: nn.Module) -> None:
        """Name the modules in `root`; a second model's names begin with its class."""
        taken = set(self._names.values())
        prefix, number = "", 1
        names = dict(root.named_modules())
        while any(prefix + name in taken for name in names):
            number += 1
            prefix = f"{type(root).__name__} {number}: "
        for name, module in names.items():
            self._names.setdefault(module, prefix + (name or type(root).__name__))
