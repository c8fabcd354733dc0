"""Functions of torch that autocast runs as a whole: above autograd, where they are still whole.

`linear` or `l1_loss` reach the dispatch mode as the operations they are made of. `Functions` sees
the call, and for its time puts all those operations into one format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mplab.policies import Policy, Run, Scope
from mplab.simulation.dispatch import Mode, Rules, rules_in

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


_ENTERED = {f: _body(f) for f in (functional.multi_head_attention_forward, Tensor.backward)}
"""In these, too, functions are called that are run as a whole; a checkpoint does in backward."""


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
        self.mode, self.whole = mode, whole_functions(mode.policy)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        stack = _transformations()
        if stack and len(stack) > 1:
            _refuse_batched_gradients(stack)
        if types or (args and isinstance(args[0], Tensor) and args[0].is_nested):
            _refuse_compounds(types or (torch.nested.nested_tensor,))
        rules = self.whole.get(func)
        if rules is None:
            if func not in _ENTERED:
                return func(*args, **kwargs)
            with self:
                return _ENTERED[func](*args, **kwargs)
        mode = self.mode
        before = mode.rules
        if before.scope.all is not None or mode.graph.innermost is not mode:
            return func(*args, **kwargs)
        mode.rules = rules
        try:
            return func(*args, **kwargs)
        finally:
            mode.rules = before
