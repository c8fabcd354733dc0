"""Record a simulated training step once, and run it again as straight-line code.

A simulated step looks up the format of each operation, and in a fixed loop finds the same formats
each time. A tape below the simulation records the operations that really ran and the roundings
between them, and makes a function of them, without autograd and without look-ups.

A step is replayed only if it is known to do the same each time. Models and losses with unknown
parts might branch in Python. A step that reads a value, or memory that it did not make, is not
recorded. Shapes, memory and modes are checked before each step. And before a program is used, it
must agree with an ordinary step on the next batch, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from mplab.simulation.tags import Counter, Rounder, intercept_rounding

_KNOWN = ("torch.nn.", "torch._C.", "mplab.training.")

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
    kinds = [
        f"_{kind}_hooks"
        for kind in ("forward", "forward_pre", "backward", "backward_pre")
    ]
    hooked = any(getattr(hooks, f"_global{kind}") for kind in kinds)
    for part in model.modules():
        hooked = (
            hooked
            or any(getattr(part, kind) for kind in kinds)
            or "forward" in vars(part)
        )
        called = [
            type(part),
            *(value for value in vars(part).values() if callable(value)),
        ]
        if hooked or not all(map(_is_known, called)):
            return False
    for p in model.parameters():
        if p.device.type != "cpu" or p._backward_hooks or p._post_accumulate_grad_hooks:
            return False
    return _is_known(loss)


def _is_watched() -> bool:
    """Whether an active mode or hook would see a difference between program and step."""
    modes = (
        _get_current_dispatch_mode() is not None or torch._C._len_torch_function_stack()
    )
    return bool(modes or torch._C._autograd._top_saved_tensors_default_hooks(True))


# Recording a step ------------------------------------------------------------------------
class _Line(NamedTuple):
    """An operation or a rounding: its text, the tensors in it, and whether it is a view."""

    text: str
    used: list[str]
    made: list[str]
    is_view: bool = False


def _memory(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _place(t: Tensor) -> tuple[Any, ...]:
    """The position and layout of a tensor in its memory."""
    return t.storage_offset(), t.shape, t.stride(), t.dtype


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the operations below all other modes, and the roundings.

    A tensor is identified by its memory and its place and shape there. All memory that is seen is
    kept until the end, so that no address is reused. `lasting` are parameters and buffers, which
    have the same memory in each step.
    """

    def __init__(self, inputs: Sequence[Tensor], lasting: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[_Line] = []
        self.constants: dict[str, Any] = {}
        self.counters: dict[int, Counter] = {}
        self.refusal = ""
        # By memory, then by place and shape in it.
        self._names: dict[int, dict[Any, str]] = {}
        self._kept: list[Any] = []
        self._lasting: set[int] = set()
        self._used: list[str] = []
        self._off = False
        self.inputs = [self._name(t, f"x{i}") for i, t in enumerate(inputs)]
        for t in lasting:
            self._last(t)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        before, self._off = self._off, True
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
            self._used = []
            given = [self._text(a) for a in args]
            given += [f"{key}={self._text(value)}" for key, value in kwargs.items()]
            out = func(*args, **kwargs)
            self._write(func, args, kwargs, given, out)
        return out

    def _write(
        self, func: Any, args: Any, kwargs: Any, given: list[str], out: Any
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
        is_view = not func._schema.is_mutable and any(
            _memory(t) in self._names for t in tensors
        )
        made = [self._made(t, func._schema.is_mutable) for t in results or ()]
        fresh = [label for label in made if label]
        if not fresh and not func._schema.is_mutable:
            return
        text = (
            f"{self._constant(func._op, name.partition('::')[2])}({', '.join(given)})"
        )
        if fresh:
            text = f"{', '.join(label or '_' for label in made)}{'' if single else ','} = {text}"
        self.lines.append(_Line(text, self._used, fresh, is_view))

    def _made(self, t: Any, mutable: bool) -> str:
        """Name a result, unless it is a known tensor or a view of lasting memory."""
        if not isinstance(t, Tensor):
            return ""
        where = self._names.get(_memory(t))
        if where is not None and _place(t) in where:
            return ""
        if where is not None and mutable:
            self._refuse("an operation writes to a part of its result")
        if where is not None and _memory(t) in self._lasting:
            self._last(t)
            return ""
        return self._name(t, f"t{len(self._kept)}")

    def _name(self, t: Tensor, name: str) -> str:
        self._kept.append(t.untyped_storage())
        self._names.setdefault(_memory(t), {})[_place(t)] = name
        return name

    def _last(self, t: Tensor) -> None:
        """Make a constant of a tensor whose memory is the same in each step."""
        with self._unseen():
            self._lasting.add(_memory(t))
            self._name(t, self._constant(t.detach(), "w"))

    def _constant(self, value: Any, hint: str) -> str:
        known = (name for name, other in self.constants.items() if other is value)
        name = next(known, f"{hint}_{len(self.constants)}")
        self.constants[name] = value
        return name

    def _text(self, value: Any) -> str:
        """An argument as Python code."""
        if isinstance(value, Tensor):
            return self.name_of(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._text, value))}]"
        finite = type(value) is float and isfinite(value)
        plain = finite or value is None or type(value) in (bool, int, str)
        return repr(value) if plain else self._constant(value, "k")

    def name_of(self, t: Tensor) -> str:
        """The name of a tensor that the step made, received, or finds in lasting memory."""
        where = self._names.get(_memory(t), {})
        if _place(t) not in where and _memory(t) in self._lasting:
            self._last(t)
        name = where.get(_place(t), "")
        if not name:
            self._refuse("an operation reads memory that the step did not make")
        self._used.append(name)
        return name

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
            if _memory(out) not in self._names:
                self._last(out)
            self._used = []
            call = [self.name_of(x), self.name_of(out), "None"]
            if counter is not None:
                self.counters[id(counter)] = counter
                call[2] = self._constant(counter, "count")
            line = f"{self._constant(rounder, f'round_{rounder.fmt.name}')}({', '.join(call)})"
            self.lines.append(_Line(line, self._used, []))
        with self._unseen():
            return rounder(x, out, counter)

    def program(self, results: Sequence[Tensor | None]) -> str:
        """The code of a function that returns `results`, and deletes other tensors after use."""
        self._used = []
        wanted = ["None" if t is None else self.name_of(t) for t in results]
        body, needed = [f"return {', '.join(wanted)},"], set(wanted)
        for line in reversed(self.lines):
            if line.is_view and needed.isdisjoint(line.made):
                continue  # autograd made it, and nothing uses it
            mine = dict.fromkeys(line.used + line.made)
            over = [
                name for name in mine if name.startswith("t") and name not in needed
            ]
            body += [f"del {', '.join(over)}"] if over else []
            body.append(line.text)
            needed |= {*line.used, *line.made}
        body.append(f"def program({', '.join(self.inputs)}):")
        return "\n    ".join(reversed(body)) + "\n"


# Running it again ------------------------------------------------------------------------
class Replay:
    """Record a step, check the recording against the step once, then replay it.

    The results are those of the step; where this is not certain, the step itself runs.

    Args:
        step: forward and backward pass: returns the loss, and leaves gradients in `.grad`.
        model: the model whose parameters and buffers the step uses.
    """

    def __init__(self, step: Callable[..., Tensor], model: nn.Module) -> None:
        self.step, self.model = step, model
        self.source = ""
        """The code of the program; empty until there is one."""
        self.refusal = ""
        """Why there will be no program."""
        self.proved = False
        self._program: Callable[..., Any]
        self._counters: list[Counter] = []
        self._parameters, self._parts = list(model.parameters()), list(model.modules())
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
        if not self.source:
            return self._record(inputs, found)
        if found != self._found:
            return self.step(*inputs)
        return self._run(inputs) if self.proved else self._prove(inputs)

    def _find(self, inputs: Sequence[Tensor]) -> Any:
        """The state that must be the same as when the step was recorded."""
        return (
            [(t.shape, t.stride(), t.dtype) for t in inputs],
            [t.data_ptr() for t in self._lasting],
            [p.requires_grad for p in self._parameters],
            [part.training for part in self._parts],
            torch.is_grad_enabled(),
        )

    def _run(self, inputs: Sequence[Tensor]) -> Tensor:
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            loss, *gradients = self._program(*inputs)
        for p, gradient in zip(self._parameters, gradients, strict=True):
            p.grad = gradient
        return loss  # type: ignore[no-any-return]

    def _record(self, inputs: Sequence[Tensor], found: Any) -> Tensor:
        """Run the step and record it."""
        tape = _Tape(inputs, self._lasting)
        with tape, intercept_rounding(tape.round):
            loss = self.step(*inputs)
        gradients = [p.grad for p in self._parameters]
        text = tape.program([loss, *gradients])
        self.refusal = tape.refusal
        if not self.refusal:
            space = dict(tape.constants)
            exec(compile(text, "<replay>", "exec"), space)
            self._program, self.source = space["program"], text
            self._counters, self._found = list(tape.counters.values()), found
        return loss

    def _prove(self, inputs: Sequence[Tensor]) -> Tensor:
        """Run the program and then the step, and compare everything that they leave."""
        before = self._state()
        ours = self._run(inputs), self._state()
        random, lasting, counts, _ = before
        torch.set_rng_state(random)
        with torch.no_grad():
            for t, saved in zip(self._lasting, lasting, strict=True):
                t.copy_(saved)
        for counter, (total, counted, tally) in zip(
            self._counters, counts, strict=True
        ):
            counter.total, counter.tally = total, tally
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
