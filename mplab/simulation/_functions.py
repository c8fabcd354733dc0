"""Functions of torch seen above autograd, where they are still whole and say what was asked for.

`linear` or `l1_loss` reach the dispatch mode as the operations they are made of. `Functions` sees
the call, and for its time puts all those operations into one format. A few functions have a way
of their own here: those that torch computes in float32 inside whatever they are given, and those
that ask for float32, which leave no trace below since the tensors are float32 already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from mplab.numbers.formats import Format
from mplab.simulation._operands import Refused
from mplab.simulation._rules import Scope
from mplab.simulation.dispatch import Mode, Rules, rules_in
from mplab.simulation.marks import is_plain, mark_of
from mplab.simulation.policies import Policy, Run

_QUESTIONS = dict.fromkeys(
    ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"),
    lambda *_: False,
)

_OTHER_NAMES = {
    "matmul": ("__matmul__", "__rmatmul__"),
    "cross_entropy_loss": ("cross_entropy",),
    "linalg_matrix_norm": ("matrix_norm",),
}


@lru_cache(maxsize=1)
def _made_of_others() -> frozenset[str]:
    """The operations that torch takes apart before they come to the kernels."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return frozenset(name.partition("::")[2].partition(".")[0] for name in names)


def _callables(name: str) -> Iterator[Any]:
    """All that a user may call to run an operation."""
    rooms = (torch, functional, Tensor, torch._C._nn, torch._C._VariableFunctions)
    for spelling in (name, *_OTHER_NAMES.get(name, ())):
        for room in rooms:
            yield getattr(room, spelling, None)
    if name.startswith("linalg_"):
        yield getattr(torch.linalg, name.removeprefix("linalg_"), None)


@lru_cache(maxsize=1 << 10)
def whole_functions(policy: Policy) -> dict[Any, Rules]:
    """The functions that a policy runs as a whole, and the rules of their parts."""
    found: dict[Any, Rules] = {}
    for names, run in ((policy.lower, Run.LOWER), (policy.wide, Run.WIDE)):
        for name in names & _made_of_others():
            rules = rules_in(Scope(policy, True, f"listed: {name} {run.value}", run))
            found |= {function: rules for function in _callables(name) if callable(function)}
    return found


def _body(function: Any) -> Callable[..., Any]:
    """A function in Python that calls others, without its question whether a mode is on.

    With it, it would hand itself to the mode again instead of running.
    """
    copy = FunctionType(
        function.__code__,
        {**function.__globals__, **_QUESTIONS},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_transformations: Callable[[], Any] = torch._C._functorch.get_interpreter_stack


def _refuse_batched_gradients(stack: Any) -> None:
    """Raise for a gradient within a `vmap`: torch numbers its nodes otherwise than its operations.

    Without their numbers operations of the backward pass would be taken for each other.
    """
    kinds = [transformation.key().name for transformation in stack]
    if "Vmap" in kinds and "Grad" in kinds[kinds.index("Vmap") :]:
        raise ValueError(
            "simulated: torch.func.grad must not be within torch.func.vmap; got vmap of grad. "
            "Loop over the examples, or take the gradient of a vmap."
        )


def _refuse_compounds(types: Any) -> None:
    """Raise for kinds of tensors that hold others, of which the simulation knows no format."""
    for kind in types:
        if kind.__name__ in ("nested_tensor", "NestedTensor", "MaskedTensor", "DTensor"):
            raise ValueError(
                f"simulated: tensors must be dense float32; got a {kind.__name__}. Compute this "
                f"outside the with statement, or with padded tensors."
            )


class Functions(TorchFunctionMode):
    """Sees each function of torch that is called from Python."""

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self.mode, self.known = mode, known_functions(mode.policy)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return self._run(func, types, args, kwargs or {})
        except ValueError as error:
            refused = getattr(error, "refused", None)
            if not isinstance(refused, Refused) or not refused.by_autocast():
                raise
            raise ValueError(
                f"simulated: torch.autocast must not be active with it; got "
                f"torch.autocast({refused.device!r}, dtype={refused.dtype}), seen in "
                f"{refused.operation}. Leave autocast out: the simulation casts by its policy."
            ) from None

    def _run(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        stack = _transformations()
        if stack and len(stack) > 1:
            _refuse_batched_gradients(stack)
        if types or (args and isinstance(args[0], Tensor) and args[0].is_nested):
            _refuse_compounds(types or (torch.nested.nested_tensor,))
        how = self.known.get(func)
        if how is None:
            return func(*args, **kwargs)
        mode = self.mode
        before = mode.rules
        if before.scope.all is not None or mode.graph.innermost is not mode:
            off = before.scope.all is Run.WIDEST and mode.graph.innermost is mode  # autocast is
            how = how if off and how in _ASKING else _ENTERED.get(func, _call)
        if type(how) is not Rules:
            return how(self, func, args, kwargs)
        mode.rules = how
        try:
            return func(*args, **kwargs)
        finally:
            mode.rules = before

    def by(self, rules: Rules, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function whose parts all run by these rules."""
        mode = self.mode
        before, mode.rules = mode.rules, rules
        try:
            return func(*args, **kwargs)
        finally:
            mode.rules = before

    def rules(self, run: Run, why: str) -> Rules:
        """All operations alike."""
        return rules_in(Scope(self.mode.policy, True, why, run))

    def wide(self, t: Any, why: str) -> Any:
        """An FP32 copy of a tensor in a low format, as `.to(torch.float32)` makes; else itself."""
        if not _is_low(t) or self.mode.hands:
            return t
        return self._cast(t, Run.WIDE, why)

    def low(self, t: Any, why: str) -> Any:
        """A copy of an FP32 tensor in the low format, whose gradient is in it, too; else itself."""
        if not _is_wide(t):
            return t
        return self._cast(t, Run.LOWER, why)

    def _cast(self, t: Tensor, run: Run, why: str) -> Any:
        # not a clone, through which a gradient passes without an operation that would round it
        rules = self.rules(run, f"cast, as a product with 1: {why}")
        return self.by(rules, torch.mul, (t, 1), {})


# Functions with a way of their own ---------------------------------------------------------
def _is_plain(t: Any) -> bool:
    """Whether a tensor has memory that can be marked, and more than a scalar in it."""
    return is_plain(t) and t.dtype is torch.float32 and t.dim() > 0 and not _transformations()


def _format(t: Any) -> Format | None:
    """The low format of a tensor that has one."""
    mark = mark_of(t) if _is_plain(t) else None
    held = mark is not None and mark.into is not None and mark.made_by is None
    return mark.into.fmt if held else None  # type: ignore[union-attr]


def _is_low(t: Any) -> bool:
    return _format(t) is not None


def _is_wide(t: Any) -> bool:
    return _is_plain(t) and not _is_low(t)


def _call(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _enter(function: Any) -> Callable[..., Any]:
    """Functions are called in it that are seen, too."""
    body = _body(function)

    def enter(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with functions:
            return body(*args, **kwargs)

    return enter


_ENTERED = {f: _enter(f) for f in (functional.multi_head_attention_forward,)}


def _convert(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`.float()`, `.to(torch.float32)`, `.type(torch.float32)`: FP32 is asked for.

    So it is in `.to(x.dtype)`, which looks the same: all tensors are float32 here.
    """
    out = func(*args, **kwargs)
    asked = func is Tensor.float or any(a is torch.float32 for a in (*args, *kwargs.values()))
    return functions.wide(out, "float32 is asked for") if asked and out is args[0] else out


def _take_after(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`.type_as(other)`: the format of another tensor."""
    out = func(*args, **kwargs)
    if len(args) != 2 or out is not args[0]:
        return out
    change = functions.low if _is_low(args[1]) else functions.wide
    return change(out, "the format of another tensor is asked for")


def _compute_as_asked(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`softmax(x, dtype=torch.float32)` and the like: the input is widened first."""
    asked = any(a is torch.float32 for a in (*args[1:], kwargs.get("dtype")))
    if asked and args:
        args = (functions.wide(args[0], "float32 is asked for"), *args[1:])
    return func(*args, **kwargs)


def _normalize(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`rms_norm` of a low tensor: torch computes in float32 and rounds the result."""
    why = "rms_norm computes in FP32, its result is in the format of its input"
    wide = functions.wide(args[0], why) if args else None
    if not args or wide is args[0]:
        return func(*args, **kwargs)
    return functions.low(func(wide, *args[1:], **kwargs), why)


def _attend(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Attention where torch has no kernel for it: low inputs and result, FP32 between them.

    Source:
        `_scaled_dot_product_attention_math` in ATen/native/transformers/attention.cpp of torch.
    """
    why = "listed: scaled_dot_product_attention runs in the low format"
    lower = functions.rules(Run.LOWER, why)
    within = functions.rules(Run.WIDE, "the parts of scaled_dot_product_attention: FP32")
    try:
        choice = functions.by(within, torch._fused_sdp_choice, args, kwargs)
    except TypeError:  # wrong arguments: let the function itself say so
        return func(*args, **kwargs)
    if choice != SDPBackend.MATH.value or _transformations():
        return functions.by(lower, func, args, kwargs)
    args = [functions.low(a, why) for a in args]
    kwargs = {name: functions.low(a, why) for name, a in kwargs.items()}
    return functions.low(functions.by(within, func, args, kwargs), why)


def _recur(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`lstm`, `gru` and the like: autocast casts the weights and biases in their `linear`s."""
    place = 3 if len(args) > 3 and isinstance(args[3], list | tuple) else 2
    why = "linear runs in the low format"
    if len(args) > place and isinstance(args[place], list | tuple):
        weights = [functions.low(w, why) for w in args[place]]
        args = (*args[:place], weights, *args[place + 1 :])
    return func(*args, **kwargs)


def _hold_limits(functions: Functions, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`masked_fill(x, mask, torch.finfo(x.dtype).min)`: the limit of the format of x is meant.

    The dtype is float32, whose limit no other format holds. Real half tensors refuse to be filled
    with it, so nothing else can be meant.
    """
    fmt = _format(args[0]) if args else None
    if fmt is None:
        return func(*args, **kwargs)

    def held(value: Any) -> Any:
        beyond = isinstance(value, float) and abs(value) == _LARGEST
        return math.copysign(fmt.max_finite, value) if beyond else value

    return func(*map(held, args), **{name: held(value) for name, value in kwargs.items()})


_LARGEST = torch.finfo(torch.float32).max

_OWN_WAYS: tuple[tuple[Callable[..., Any], str], ...] = (
    (_convert, "float to type"),
    (_take_after, "type_as"),
    (_compute_as_asked, "softmax log_softmax sum mean cumsum"),
    (_normalize, "rms_norm"),
    (_recur, "lstm gru rnn_tanh rnn_relu"),
    (_hold_limits, "masked_fill masked_fill_ full_like fill_"),
)

_ASKING = (_convert, _take_after, _compute_as_asked, _normalize, _hold_limits)
"""Those that do not depend on autocast."""


@lru_cache(maxsize=1 << 10)
def known_functions(policy: Policy) -> dict[Any, Any]:
    """What is done otherwise than by looking at each operation: by rules, or in its own way."""
    found: dict[Any, Any] = {}
    for way, names in _OWN_WAYS:
        for name in names.split():
            found |= {function: way for function in _callables(name) if callable(function)}
    found |= whole_functions(policy) | _ENTERED
    if "scaled_dot_product_attention" in policy.lower:
        found[functional.scaled_dot_product_attention] = _attend
    return found
