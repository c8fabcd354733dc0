"""Repeat a backward pass with gradients of another size, to see what their size costs.

A power of two changes no bit of a gradient but by underflow and overflow. So two passes that begin
with numbers of two sizes differ by what the smaller one lost, and the remedy has been tried.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mplab.health.measures import (
    Watch,
    register_hook,
    several_processes,
    together,
)
from mplab.health.records import Evidence, Probe, Step
from mplab.simulation.mode import Mode

_LARGER = (24, 18, 12, 6)
"""The powers of two by which gradients are multiplied, until one leaves them finite."""

_SMALLER = (-24,)
"""For a run that skips: a scale that helps is hardly lower by more than that."""

_MOST_NODES = 1 << 16
"""Graphs of more nodes are not repeated."""

_PYTHON: Any = torch.autograd.function.BackwardCFunction

_FIRST_REPEAT = 20
"""A symptom that stays is probed again from this step on, at doubling distances."""


# Hearing of backward passes ---------------------------------------------------------------
# Nothing else in torch tells that a pass begins, and from which loss. `Tensor.backward` and all
# trainers look the function up when they call it; whoever has kept it is not heard.
_listeners: list[Callable[..., None]] = []
_backward = torch.autograd.backward


def _heard(tensors: Any, grad_tensors: Any = None, *args: Any, **more: Any) -> None:
    if not isinstance(tensors, Tensor | tuple):
        tensors = tuple(tensors)  # of a generator, which can be read but once
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    for hear in _listeners:
        hear(roots, grad_tensors)
    _backward(tensors, grad_tensors, *args, **more)


def listen(hear: Callable[..., None]) -> None:
    """Call `hear` before each backward pass, until `unlisten`."""
    _listeners.append(hear)
    torch.autograd.backward = _heard


def unlisten(hear: Callable[..., None]) -> None:
    """Undo `listen`."""
    if hear in _listeners:
        _listeners.remove(hear)
    if not _listeners and torch.autograd.backward is _heard:
        torch.autograd.backward = _backward


class Prober:
    """Repeats backward passes where a symptom asks for it, but none that might change the run.

    Args:
        seen: where it is noted what the passes showed, or why one was not repeated.
        parameters: the parameters whose gradients count, and their names.
    """

    def __init__(self, seen: Evidence, parameters: Mapping[Tensor, str]) -> None:
        self._seen = seen
        self._parameters = parameters
        self._exponents: tuple[int, ...] = ()
        self._tried: dict[tuple[int, ...], int] = {}

    def ask(self, steps: Sequence[Step]) -> None:
        """Decide from the latest steps whether the next backward pass is repeated."""
        self.cancel()
        exponents = _exponents(steps)
        last = self._tried.get(exponents, 0)
        if exponents and (not last or len(steps) >= max(_FIRST_REPEAT, 2 * last)):
            self._exponents = exponents
            self._hooked = False

            def noted(t: Tensor, hook: Any) -> Any:
                # a repeated pass would call the hook, too, and no node tells which hooks it has
                self._hooked = True
                return register_hook(t, hook)  # type: ignore[no-untyped-call]

            Tensor.register_hook = noted  # type: ignore[method-assign]

    def cancel(self) -> None:
        """Forget what was asked for."""
        self._exponents = ()
        Tensor.register_hook = register_hook  # type: ignore[method-assign]

    def run(self, step: int, roots: list[Tensor], starts: Any) -> None:
        """Repeat the backward pass that begins now, if it was asked for; errors end only this."""
        exponents = self._exponents
        self.cancel()
        if not exponents:
            return
        self._tried[exponents] = step
        try:
            if starts is None or isinstance(starts, Tensor):
                starts = [starts] * len(roots)
            refused = "a hook of a tensor" if self._hooked else _refusal(roots)
            if not refused:
                found = _probe(step, roots, starts, self._parameters, exponents)
                self._seen.probes.append(found)
            self._seen.unprobed = refused
        except Exception as error:  # also where memory is short
            self._seen.unprobed = f"{type(error).__name__}: {error}"


def _exponents(steps: Sequence[Step]) -> tuple[int, ...]:
    """The powers of two that would settle what the latest steps suggest; none for no symptom."""
    lately = [step.skipped and math.isfinite(step.loss) for step in steps[-3:]]
    if len(lately) == 3 and all(lately):
        return _SMALLER
    zeros = any(s.loses and s.has_many_zeros for s in steps[-1].gradients.values())
    return _LARGER if zeros and not lately[-1] else ()


def _refusal(roots: Sequence[Tensor]) -> str:
    """Why the graph behind these tensors must not run twice; empty if it may."""
    if several_processes():
        return "several processes"
    seen: set[Node] = set()
    nodes = [t.grad_fn for t in roots if t.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > _MOST_NODES:
            return "a large graph"
        if isinstance(node, _PYTHON):  # it may write into what it saved
            return f"a function in Python, {type(node).__name__}"
        if getattr(getattr(node, "variable", None), "_backward_hooks", None):
            return "a hook of a parameter"
        for name in _saved_by(type(node)):
            saved = getattr(node, name)
            for one in saved if isinstance(saved, list | tuple) else [saved]:
                # a checkpoint, which would run modules again
                if one is not None and one.unpack_hook is not None:
                    return "saved tensors that are made anew, as in a checkpoint"
        nodes += [after for after, _ in node.next_functions if after is not None]
    return ""


@cache
def _saved_by(kind: type[Node]) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]


@contextmanager
def _aside() -> Iterator[None]:
    """Leave random numbers and the counts of simulations as they are.

    Raises:
        RuntimeError: a simulation rounds at random, and would draw other numbers later.
    """
    stack = _get_current_dispatch_mode_stack()
    modes = [mode for mode in stack if isinstance(mode, Mode)]
    rounders = (rounder for mode in modes for rounder in mode.rounders.values())
    if any(rounder.stream is not None for rounder in rounders):
        raise RuntimeError("a simulation rounds at random")
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with (
        torch.random.fork_rng(range(torch.cuda.device_count()) if cuda else []),
        ExitStack() as after,
    ):
        for mode in modes:
            after.callback(setattr, mode, "tally", mode.tally)
            mode.tally = False
        after.callback(setattr, Watch, "repeating", False)
        Watch.repeating = True
        yield


def _probe(
    step: int,
    roots: Sequence[Tensor],
    given: Sequence[Tensor | None],
    parameters: Mapping[Tensor, str],
    exponents: Sequence[int],
) -> Probe:
    """Run the pass as it is, and with gradients 2^exponent times as large; the graph stays."""
    starts = [
        torch.ones_like(t) if g is None else g
        for t, g in zip(roots, given, strict=True)
    ]

    def gradients(factor: float) -> dict[Tensor, Tensor]:
        found = torch.autograd.grad(
            roots,
            list(parameters),
            [start * factor for start in starts],
            retain_graph=True,
            allow_unused=True,
        )
        pairs = zip(parameters, found, strict=True)
        return {p: g.float() / factor for p, g in pairs if g is not None}

    with _aside():
        plain = gradients(1.0)
        for exponent in exponents:
            other = gradients(2.0**exponent)
            off = together([(plain[p] - g).norm() for p, g in other.items()])
            sizes = together([g.norm() for g in other.values()])
            if sizes.isfinite().all():
                break
    gone = zip(plain, (2 * off > sizes).tolist(), strict=True)
    lost = [(p.numel(), parameters[p]) for p, is_gone in gone if is_gone]
    lost.sort(reverse=True)
    share = sum(n for n, _ in lost) / sum(p.numel() for p in plain)
    size = float(sizes.norm())
    error = float(off.norm())
    finite = math.isfinite(size)
    if exponent > 0:  # of smaller gradients it is asked whether they alone are finite
        finite = finite and math.isfinite(error)
    names = [name for _, name in lost]
    if size:
        error /= size
    return Probe(step, exponent, finite, error, names, share)
