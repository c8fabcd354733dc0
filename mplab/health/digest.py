"""Digests: a few numbers for each tensor of a run, to compare it with another run.

The hooks read tensors and change none of them: a run with digests has the bits of one without.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numba import types
from torch import Tensor, nn

from mplab.health.measures import (
    Known,
    Watch,
    local,
    rank,
    register_hook,
    require_optimizer,
    several_processes,
    together,
    unseen,
    watched_modules,
    without_errors,
)
from mplab.numbers.checks import integer
from mplab.numbers.compiled import compiled, readable
from mplab.simulation.operations import tensors_in

VERSION = 2

SAMPLED = 8
"""Values kept of each tensor, at even distances; smaller tensors are kept whole."""

_CHUNK = 1 << 16
"""Positions with weights of their own; the next positions reuse them, times a factor."""

_FACTOR = 0x2545F4914F6CDD1D
"""Any odd number, so that chunks that change places change the sum."""

_WEIGHTS = (
    np.random.PCG64(0).random_raw(_CHUNK) >> np.uint64(32) | np.uint64(1)
).astype(np.int32)
"""Odd, and the same on every machine: NumPy keeps its generators' streams stable."""

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype that reads a number's bits, by its size in bytes."""


class Site(NamedTuple):
    """A place in a step at which a tensor is recorded.

    Attributes:
        direction: "start", "forward", "backward" or "update".
        layer: the module's name; empty for the model.
        kind: the module's class.
        what: "input", "output", or the name of a parameter or buffer.
        call: how often the layer ran before in the same step.
        dtype: torch's name of the dtype.
        shape: the tensor's shape.
    """

    direction: str
    layer: str
    kind: str
    what: str
    call: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def place(self) -> tuple[str, str, str, int]:
        """The part that identifies the same site in another run."""
        return self.direction, self.layer, self.what, self.call

    def __str__(self) -> str:
        layer = f"{self.layer or 'the model'} ({self.kind})"
        what = f"the {self.what} of {layer}"
        if self.what not in ("input", "output"):
            what = f'"{self.what}" of {layer}'
        words = {
            "start": f"{what} before the first step",
            "backward": f"the gradient with respect to {what}",
            "update": f"{what} after the update",
        }.get(self.direction, what)
        return f"{words}, call {self.call + 1}" if self.call else words


@dataclass
class Record:
    """The digests of a run.

    Attributes:
        sites: all sites that occurred.
        steps: by number, the sites in the order in which they ran, int64 of shape (rows,), and
            the numbers of each, int64 of shape (rows, 2 + SAMPLED).
        error: an error of the watch, which has recorded nothing since.
    """

    sites: list[Site] = field(default_factory=list)
    steps: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    error: str = ""


def numbers_of(t: Tensor) -> Tensor:
    """Compute the digest of a tensor, the same on any device: int64 of shape (2 + SAMPLED,).

    The first is the sum of the tensor's bits, read as integers: when a few numbers change, it
    changes by as many units in the last place. The second is the same sum with an odd weight for
    each position: any change of one number changes it. The others are the bits of some numbers.
    Integer sums wrap around at 2^64, so no order of summation changes them.
    """
    if t.is_sparse:
        t = t.coalesce()
        numbers = numbers_of(t.values())
        numbers[1] += numbers_of(t.indices())[1]
        return numbers
    t = local(t)
    bits = t.resolve_neg().reshape(-1).contiguous().view(BITS[t.itemsize])
    distance = max(1, (bits.numel() - 1) // (SAMPLED - 1))
    # An even distance would stay in few columns.
    distance -= distance > 1 and distance % 2 == 0
    some = bits[::distance][:SAMPLED]
    numbers = torch.zeros(2 + SAMPLED, dtype=torch.int64, device=bits.device)
    numbers[2 : 2 + len(some)] = some
    narrow = bits.view(torch.int32) if bits.itemsize == 8 else bits
    if bits.device.type == "cpu":
        _on_processor(narrow.itemsize)(narrow.numpy(), _WEIGHTS, numbers.numpy())
    else:
        _elsewhere(narrow, numbers)
    if bits.itemsize == 8:
        numbers[0] = bits.sum()
    return numbers


def _elsewhere(bits: Tensor, numbers: Tensor) -> None:
    """Compute the two sums on any device, by torch."""
    weights = torch.from_numpy(_WEIGHTS).to(bits.device)
    numbers[0] = bits.sum()
    for part in torch.split(bits, len(weights)):
        sums = (part.long() * weights[: len(part)]).sum()
        numbers[1] = numbers[1] * _FACTOR + sums


@cache
def _on_processor(itemsize: int) -> Callable[..., None]:
    """Compile the loop for integers of a width: the two sums in one pass over memory."""

    def sums(bits: Any, weights: Any, numbers: Any) -> None:
        plain = total = np.int64(0)
        for begin in range(0, len(bits), len(weights)):
            some = bits[begin : begin + len(weights)]  # a slice: fewer checks
            part = np.int64(0)
            for i in range(len(some)):
                plain += some[i]
                part += np.int64(some[i]) * np.int64(weights[i])
            total = total * _FACTOR + part
        numbers[0], numbers[1] = plain, total

    bits = readable(types.Integer.from_bitwidth(8 * itemsize), 1)
    weights = readable(types.int32, 1)
    return compiled((bits, weights, types.int64[::1]), sums, itemsize)


class Digest(Watch):
    """Record a few numbers for each tensor that a run computes, for `compare`.

    Tensors are recorded in the order in which they are computed: inputs, outputs and buffers of
    each module, gradients with respect to inputs, outputs and weights, and weights after each
    update. A step ends with an update of the optimizer; a step that a loss scaler skips belongs to
    the next one. In evaluation mode without gradients nothing is recorded.

    A run with digests has the bits of one without. On one CPU thread, for a GPT of two layers and
    width 256 on 512 tokens in FP32, it takes 1.2 times as long, with `every=10` 1.04 times, and
    writes 16 kB for each step. Equal bits give equal digests on any machine and any number of
    threads. A difference is missed with a chance of 2^-31. When several processes train together,
    each records its own part. Modules compiled by `torch.compile` are recorded from outside. Names
    are those of the model within `DataParallel`, its distributed twin and `torch.compile`.

    Args:
        model: the model whose modules are recorded.
        optimizer: the optimizer whose updates end the steps.
        every: record each `every`-th step.
        first_step: the number of the first step: of a run that goes on from a checkpoint, that of
            the whole run's step beside which it is to be laid.
        path: a file for the digests, made when the `with` begins; each step is appended when it
            ends, so a killed process leaves all earlier steps. "%r" becomes the process's rank.

    Raises:
        TypeError: `every` or `first_step` is no integer, or `optimizer` not one optimizer.
        ValueError: `every` is below 1 or `first_step` below 0, the optimizer is of another model,
            or several processes would write to one path.
        OSError: the file cannot be written when the `with` begins.

    Examples:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Digest(model, optimizer) as digest:
        ...     model(torch.ones(4, 2)).square().mean().backward()
        ...     optimizer.step()
        >>> [str(site) for site in digest.record.sites][2:4]
        ['the input of the model (Linear)', 'the output of the model (Linear)']
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 1,
        first_step: int = 0,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        require_optimizer("Digest", optimizer, model)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        self.model = model
        self.optimizer = optimizer
        self.every = integer("Digest", "every", every, least=1)
        self.first_step = integer("Digest", "first_step", first_step, least=0)
        self.path: Path | None = None
        if path is not None:
            name = os.fspath(path)
            if several_processes() and "%r" not in name:
                raise ValueError(
                    f"Digest: path must hold %r, for the rank, where several processes train; got "
                    f"{name}. Write run-%r.json."
                )
            self.path = Path(name.replace("%r", str(rank())))
        self._file: Any = None
        self.record = Record()

    def __enter__(self) -> Self:
        self._require_closed()
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
            self._write({"mplab digest": VERSION})
        self.record = Record()
        self._ids: dict[Site, int] = {}
        self._number = self.first_step
        self._depth = 0
        self._kinds = {
            _without_compile(n): type(m).__name__ for n, m in self.model.named_modules()
        }
        self._stopped = False
        self._clear()
        hold = self._handles.append
        for full, module, _ in watched_modules(self.model):
            before = partial(self._before, _without_compile(full))
            after = partial(self._after, _without_compile(full))
            hold(module.register_forward_pre_hook(before, with_kwargs=True))
            hold(module.register_forward_hook(after))
        for name, p in self.model.named_parameters():
            self._see("start", *_layer_and_name(name), p)
            if p.requires_grad:
                hook = partial(self._accumulated, name)
                hold(p.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        for name, buffer in self.model.named_buffers():
            self._see("start", *_layer_and_name(name), buffer)
        hold(self.optimizer.register_step_pre_hook(self._updating))
        hold(self.optimizer.register_step_post_hook(self._updated))
        return self

    def __exit__(self, *error: object) -> None:
        self._remove_hooks()
        if error[0] is not None and self._rows:
            self._end_step()  # the one in which the run broke off
        self._stopped = True
        if self._file is not None:
            # A full disk must not stop the run.
            with suppress(OSError), self._file as file:
                file.write(json.dumps({"error": self.record.error}) + "\n")

    def _write(self, entry: dict[str, Any]) -> None:
        """Append a line to the file."""
        if self._file is not None:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()

    def _stop(self, error: Exception) -> None:
        """Stop: an error of the watch must not stop training."""
        self.record.error = f"{type(error).__name__}: {error}"
        self._stopped = True

    def _clear(self) -> None:
        """Forget the step before."""
        self._rows: list[tuple[Site, Tensor]] = []
        self._runs: Counter[str] = Counter()
        self._places: set[tuple[str, str, str, int]] = set()
        self._known = Known()

    # What is seen ---------------------------------------------------------------------------

    @without_errors
    def _see(
        self, direction: str, layer: str, what: str, t: Tensor, call: int = 0
    ) -> None:
        if not self._is_due():
            return
        while (direction, layer, what, call) in self._places:
            call += 1
        self._places.add((direction, layer, what, call))
        dtype = str(t.dtype).removeprefix("torch.")
        shape = tuple(t.shape)
        site = Site(
            direction,
            layer,
            self._kinds.get(layer, ""),
            what,
            call,
            dtype,
            shape,
        )
        with unseen():
            self._rows.append((site, numbers_of(t)))

    def _is_due(self) -> bool:
        """Whether this step is recorded."""
        return self._number % self.every == 0

    def _looks(self) -> bool:
        """Whether a forward pass belongs to the training."""
        training = self.model.training or torch.is_grad_enabled()
        return training and self._is_due()

    def _pass(self, layer: str, what: str, tree: Any) -> None:
        """Record the new tensors that enter or leave a module."""
        for number, t in enumerate(tensors_in(tree), start=1):
            if t.layout is not torch.strided or t.is_meta:
                continue
            if self._known.get(t):
                continue
            self._known.put(t, True)
            part = what if number == 1 else f"{what} {number}"
            call = self._runs[layer] - 1
            self._see("forward", layer, part, t, call)
            if t.requires_grad and not t.is_leaf:
                hook = partial(self._see, "backward", layer, part, call=call)
                register_hook(t, hook)  # type: ignore[no-untyped-call]

    @without_errors
    def _before(self, layer: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._looks():
            self._runs[layer] += 1
            self._pass(layer, "input", (args, kwargs))

    @without_errors
    def _after(self, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        if not self._looks():
            return
        for name, buffer in module._buffers.items():
            if buffer is not None:
                self._see("forward", layer, name, buffer, self._runs[layer] - 1)
        self._pass(layer, "output", output)

    @without_errors
    def _accumulated(self, name: str, p: Tensor) -> None:
        if p.grad is not None:
            self._see("backward", *_layer_and_name(name), p.grad)

    @without_errors
    def _updating(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth += 1  # a step that calls its base class's step nests

    @without_errors
    def _updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                self._see("update", *_layer_and_name(name), p)
        self._end_step()

    @without_errors
    def _end_step(self) -> None:
        if self._rows:
            ids = [self._ids.setdefault(site, len(self._ids)) for site, _ in self._rows]
            rows = together([numbers for _, numbers in self._rows]).cpu().numpy()
            new = list(self._ids)[len(self.record.sites) :]
            self.record.steps[self._number] = np.array(ids), rows
            self.record.sites += new
            self._write(
                {"step": self._number, "new": new, "sites": ids, "rows": rows.tolist()}
            )
        self._number += 1
        self._clear()


def _layer_and_name(name: str) -> tuple[str, str]:
    """Split the name of a parameter or buffer into its module and its name there."""
    layer, _, what = _without_compile(name).rpartition(".")
    return layer, what


def _without_compile(name: str) -> str:
    """Leave out the part of a name that `torch.compile` adds.

    Examples:
        >>> _without_compile("_orig_mod.0.weight"), _without_compile("0._orig_mod")
        ('0.weight', '0')
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
