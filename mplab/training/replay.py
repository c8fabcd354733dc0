"""Record a simulated training step once, and run the recorded operations again.

A simulated step looks up the format of each operation, and in a fixed loop finds the same formats
each time. A tape below the simulation records the operations that really ran and the roundings
between them, and runs them again, without autograd and without look-ups.

A step is replayed only if it is known to do the same each time. Models and losses with unknown
parts might branch in Python. A step that reads a value, or memory that it did not make, is not
recorded. Shapes, memory and modes are checked before each step. And before a program is used, it
must agree with an ordinary step on the next batch, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from mplab.simulation.rounders import Counter, Rounder, intercept_rounding

_KNOWN = ("torch.nn.", "torch._C.", "mplab.training.")

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)

_OF_SHAPES_ALONE = ("aten::_fused_sdp_choice",)
"""Operations that return no tensor and depend only on shapes."""


# What may be replayed --------------------------------------------------------------------
def _is_known(thing: Any) -> bool:
    """Whether a class or a function comes from torch's networks or from `mplab.training`."""
    return f"{getattr(thing, '__module__', None)}.".startswith(_KNOWN)


def is_straight(model: nn.Module, loss: Any) -> bool:
    """Whether a step has no Python code of its own that could decide differently next time.

    That is, the model consists of torch's own modules on a CPU, without hooks, and the loss is
    from `torch.nn.functional`, or both belong to a task in this package.

    Examples:
        >>> is_straight(nn.Linear(2, 2), nn.functional.mse_loss)
        True
        >>> is_straight(nn.Linear(2, 2), max)  # of somebody's own
        False
    """
    if not _is_known(loss) or any(getattr(hooks, f"_global{kind}") for kind in _HOOKS):
        return False
    for part in model.modules():
        own = vars(part)
        called = [type(part), *filter(callable, own.values())]
        hooked = "forward" in own or any(getattr(part, kind) for kind in _HOOKS)
        if hooked or not all(map(_is_known, called)):
            return False
    for p in model.parameters():
        if p.device.type != "cpu" or p._backward_hooks or p._post_accumulate_grad_hooks:
            return False
    return True


def _is_watched() -> bool:
    """Whether an active mode or hook would see a difference between program and step."""
    modes = (
        _get_current_dispatch_mode() is not None or torch._C._len_torch_function_stack()
    )
    return bool(modes or torch._C._autograd._top_saved_tensors_default_hooks(True))


# Recording a step ------------------------------------------------------------------------
class _Operation(NamedTuple):
    """An operation or a rounding; tensors and other arguments are places in a list of values."""

    call: Callable[..., Any]
    given: list[int]
    named: dict[str, int]
    made: int | list[int | None] | None
    """Where its result goes, or each of its results; None if nothing new is made."""
    is_pure: bool = False
    """Whether it may be left out if nobody uses what it makes."""
    over: Sequence[int] = ()
    """The values that nobody needs after it."""

    def used(self) -> set[int]:
        return {*self.given, *self.named.values()}

    def new(self) -> set[int]:
        made = self.made if isinstance(self.made, list) else [self.made]
        return {place for place in made if place is not None}


class Program(NamedTuple):
    """Operations in order, on a list of values that begins with the inputs."""

    steps: list[_Operation]
    values: list[Any]
    results: list[int | None]

    def __call__(self, *inputs: Tensor) -> list[Any]:
        """Run the operations, and return the results; None stays None."""
        values = self.values.copy()
        values[: len(inputs)] = inputs
        for call, given, named, made, _, over in self.steps:
            names = {name: values[i] for name, i in named.items()} if named else {}
            out = call(*[values[i] for i in given], **names)
            if isinstance(made, int):
                values[made] = out
            elif made:
                for i, value in zip(made, out, strict=True):
                    if i is not None:
                        values[i] = value
            for i in over:
                values[i] = None
        return [None if i is None else values[i] for i in self.results]


def _listed(*items: Any) -> list[Any]:
    return list(items)


def _memory(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _layout(t: Tensor) -> tuple[Any, ...]:
    """The position and layout of a tensor in its memory."""
    return t.storage_offset(), t.shape, t.stride(), t.dtype


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the operations below all other modes, and the roundings.

    A tensor is identified by its memory and its layout there. All memory that is seen is kept until
    the end, so that no address is reused. `lasting` are parameters and buffers, which have the same
    memory in each step.
    """

    below_simulations = True

    def __init__(self, inputs: Sequence[Tensor], lasting: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[_Operation] = []
        self.values: list[Any] = []
        self.counters: dict[int, Counter] = {}
        self.refusal = ""
        # By memory, then by layout in it.
        self._places: dict[int, dict[Any, int]] = {}
        self._kept: list[Any] = []
        self._lasting: set[int] = set()
        self._passing: set[int] = set()  # what is made and used within a step
        self._off = False
        for t in inputs:
            self._place(t, None)
        for t in lasting:
            self._last(t)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        before = self._off
        self._off = True
        try:
            yield
        finally:
            self._off = before

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._off or self.refusal:
            return func(*args, **kwargs)
        with self._unseen():
            given = [self._argument(a) for a in args]
            named = {name: self._argument(value) for name, value in kwargs.items()}
            out = func(*args, **kwargs)
            self._write(func, given, named, out)
        return out

    def _write(
        self, func: Any, given: list[int], named: dict[str, int], out: Any
    ) -> None:
        """Record one operation, unless it is a view that is already known."""
        name = func._schema.name
        single = isinstance(out, Tensor)
        results = [out] if single else out if isinstance(out, list | tuple) else None
        if name in _OF_SHAPES_ALONE:
            return
        if results is None and out is not None:
            self._refuse(f"{name} gives a value to Python")
        tensors = [t for t in results or () if isinstance(t, Tensor)]
        mutable = func._schema.is_mutable
        is_view = not mutable and any(_memory(t) in self._places for t in tensors)
        made = [self._made(t, mutable) for t in results or ()]
        if mutable or any(place is not None for place in made):
            self.operations.append(
                _Operation(func._op, given, named, made[0] if single else made, is_view)
            )

    def _made(self, t: Any, mutable: bool) -> int | None:
        """Give a result a place, unless it is a known tensor or a view of lasting memory."""
        if not isinstance(t, Tensor):
            return None
        known = self._places.get(_memory(t))
        if known is not None and _layout(t) in known:
            return None
        if known is not None and mutable:
            self._refuse("an operation writes to a part of its result")
        if known is not None and _memory(t) in self._lasting:
            self._last(t)
            return None
        place = self._place(t, None)
        self._passing.add(place)
        return place

    def _keep(self, value: Any) -> int:
        """Give a value that is the same in each step a place."""
        self.values.append(value)
        return len(self.values) - 1

    def _place(self, t: Tensor, value: Any) -> int:
        self._kept.append(t.untyped_storage())
        place = self._keep(value)
        self._places.setdefault(_memory(t), {})[_layout(t)] = place
        return place

    def _last(self, t: Tensor) -> None:
        """Keep a tensor whose memory is the same in each step."""
        with self._unseen():
            self._lasting.add(_memory(t))
            self._place(t, t.detach())

    def _argument(self, value: Any) -> int:
        """The place of an argument; a list that holds tensors is made anew in each step."""
        if isinstance(value, Tensor):
            return self.place_of(value)
        if not isinstance(value, list | tuple) or not any(
            isinstance(item, Tensor) for item in value
        ):
            return self._keep(value)
        items = [self._argument(item) for item in value]
        place = self._keep(None)
        self._passing.add(place)
        self.operations.append(_Operation(_listed, items, {}, place, is_pure=True))
        return place

    def place_of(self, t: Tensor) -> int:
        """The place of a tensor that the step made, received, or finds in lasting memory."""
        if _layout(t) not in self._places.get(_memory(t), {}):
            if _memory(t) not in self._lasting:
                self._refuse("an operation reads memory that the step did not make")
                return self._keep(None)
            self._last(t)
        return self._places[_memory(t)][_layout(t)]

    def _refuse(self, why: str) -> None:
        self.refusal = self.refusal or why

    def round(
        self, rounder: Rounder, x: Tensor, out: Tensor, counter: Counter | None
    ) -> Tensor:
        """Record a rounding, which no mode sees, and carry it out."""
        if rounder.stream is not None:
            self._refuse("roundings are random")
        if not (self._off or self.refusal):
            # A copy of a weight, kept by the simulation.
            if _memory(out) not in self._places:
                self._last(out)
            if counter is not None:
                self.counters[id(counter)] = counter
            given = [self.place_of(x), self.place_of(out), self._keep(counter)]
            self.operations.append(_Operation(rounder, given, {}, None))
        with self._unseen():
            return rounder(x, out, counter)

    def program(self, results: Sequence[Tensor | None]) -> Program:
        """The program that gives `results`, and drops each other tensor after its last use."""
        wanted = [None if t is None else self.place_of(t) for t in results]
        needed = {*wanted}
        steps = list[_Operation]()
        for operation in reversed(self.operations):
            if operation.is_pure and needed.isdisjoint(operation.new()):
                continue  # a view that autograd made, and nothing uses
            places = operation.used() | operation.new()
            over = (places & self._passing) - needed
            steps.append(operation._replace(over=list(over)))
            needed |= places
        return Program(steps[::-1], self.values, wanted)


# Running it again ------------------------------------------------------------------------
class Replay:
    """Record a step, check the recording against the step once, then replay it.

    The results are those of the step; where this is not certain, the step itself runs.

    Args:
        step: forward and backward pass: returns the loss, and leaves gradients in `.grad`.
        model: the model whose parameters and buffers the step uses.
    """

    def __init__(self, step: Callable[..., Tensor], model: nn.Module) -> None:
        self.step = step
        self.model = model
        self.program: Program | None = None
        self.refusal = ""
        """Why there will be no program."""
        self.proved = False
        self._counters: list[Counter] = []
        self._parameters = list(model.parameters())
        self._parts = list(model.modules())
        self._lasting = [*self._parameters, *model.buffers()]
        self._found: Any = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Run the step, and return its loss."""
        if (
            self.refusal
            or _is_watched()
            or any(p.grad is not None for p in self._parameters)
        ):
            return self.step(*inputs)
        found = self._find(inputs)
        if self.program is None:
            return self._record(inputs, found)
        if found != self._found:
            return self.step(*inputs)
        if self.proved:
            return self._run(self.program, inputs)
        return self._prove(self.program, inputs)

    def _find(self, inputs: Sequence[Tensor]) -> Any:
        """The state that must be the same as when the step was recorded."""
        return (
            [(t.shape, t.stride(), t.dtype) for t in inputs],
            [t.data_ptr() for t in self._lasting],
            [p.requires_grad for p in self._parameters],
            [part.training for part in self._parts],
            torch.is_grad_enabled(),
        )

    def _run(self, program: Program, inputs: Sequence[Tensor]) -> Tensor:
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            loss, *gradients = program(*inputs)
        for p, gradient in zip(self._parameters, gradients, strict=True):
            p.grad = gradient
        return loss  # type: ignore[no-any-return]

    def _record(self, inputs: Sequence[Tensor], found: Any) -> Tensor:
        """Run the step and record it."""
        tape = _Tape(inputs, self._lasting)
        with tape, intercept_rounding(tape.round):
            loss = self.step(*inputs)
        program = tape.program([loss, *(p.grad for p in self._parameters)])
        self.refusal = tape.refusal
        if not self.refusal:
            self.program = program
            self._found = found
            self._counters = list(tape.counters.values())
        return loss

    def _prove(self, program: Program, inputs: Sequence[Tensor]) -> Tensor:
        """Run the program and then the step, and compare everything that they leave."""
        before = self._state()
        ours = self._run(program, inputs), self._state()
        random, lasting, counts, _ = before
        torch.set_rng_state(random)
        with torch.no_grad():
            for t, saved in zip(self._lasting, lasting, strict=True):
                t.copy_(saved)
        for counter, (total, counted, tally) in zip(
            self._counters, counts, strict=True
        ):
            counter.total = total
            counter.tally = tally
            counter.counts[:] = counted
        for p in self._parameters:
            p.grad = None
        theirs = self.step(*inputs), self._state()
        self.proved = _bits(ours) == _bits(theirs)
        if not self.proved:
            self.refusal = "the program and the step did not agree"
        return theirs[0]

    def _state(self) -> tuple[Any, ...]:
        """Everything that a step changes; gradients are not copied, as they are made anew."""
        counts = [(c.total, c.counts.copy(), replace(c.tally)) for c in self._counters]
        lasting = [t.detach().clone() for t in self._lasting]
        return (
            torch.get_rng_state(),
            lasting,
            counts,
            [p.grad for p in self._parameters],
        )


def _bits(value: Any) -> Any:
    """Numbers as bytes, so that NaN equals itself and −0 is not 0."""
    if isinstance(value, Tensor):
        return (
            value.shape,
            value.stride(),
            value.detach().contiguous().numpy().tobytes(),
        )
    if isinstance(value, list | tuple):
        return [_bits(v) for v in value]
    return value.tobytes() if hasattr(value, "tobytes") else value
