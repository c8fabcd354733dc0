"""Intercept torch functions above autograd, where a call is still whole and names its dtype.

`linear` or `l1_loss` reach the dispatch mode as the operations they are made of. `Functions` sees
the call, and runs all these operations in one format. A few functions have a handler of their own:
functions that torch computes in float32 for inputs of any format, and functions that ask for a
dtype, or make a tensor of one, because below autograd all tensors are float32.
"""

import math
import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from mplab.numbers.formats import Format
from mplab.simulation.dispatch import Mode, RuleTable, rules_in
from mplab.simulation.operations import Keywords, Scope
from mplab.simulation.policies import Policy, Run
from mplab.simulation.tags import (
    FormatTag,
    Rounder,
    has_storage,
    holds_float32,
    is_dense,
    is_plain,
    low_rounder,
    set_tag,
    tag_of,
)

_OTHER_NAMES = {
    "matmul": ("__matmul__", "__rmatmul__"),
    "cross_entropy_loss": ("cross_entropy",),
    "linalg_matrix_norm": ("matrix_norm",),
}


@cache
def _made_of_others() -> frozenset[str]:
    """The operations that torch decomposes before they reach the kernels."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(
        "CompositeImplicitAutograd"
    )
    return frozenset(name.partition("::")[2].partition(".")[0] for name in names)


def _callables(name: str) -> list[Any]:
    """Everything that a user may call to run an operation."""
    rooms = [torch, functional, Tensor, torch._C._nn, torch._C._VariableFunctions]
    found = [
        getattr(room, spelling, None)
        for room in rooms
        for spelling in (name, *_OTHER_NAMES.get(name, ()))
    ]
    package, _, rest = name.partition("_")
    if package in ("linalg", "special"):
        found.append(getattr(getattr(torch, package), rest, None))
    return [function for function in found if callable(function)]


def whole_functions(policy: Policy) -> dict[Any, RuleTable]:
    """The functions that a policy runs as a whole, and the rules of their parts."""
    found: dict[Any, RuleTable] = {}
    for names, run in ((policy.lower, Run.LOWER), (policy.wide, Run.WIDE)):
        for name in names & _made_of_others():
            why = f"listed: {name} {run.value}"
            rules = rules_in(Scope(policy, True, why, run, part=name in _IN_FLOAT64))
            found |= dict.fromkeys(_callables(name), rules)
    return found


_IN_FLOAT64 = ("quantile", "nanquantile")
"""Since torch 2.14 they find the place of a quantile in float64."""

_STORING = ("torch.", "mplab.")
"""The packages whose code sees the stored dtype."""

_transformations: Callable[[], Any] = torch._C._functorch.get_interpreter_stack


def _refuse_batched_gradients(stack: Any) -> None:
    """Reject a gradient within a `vmap`: torch numbers its nodes and operations differently.

    Without their numbers, operations of the backward pass would be mistaken for each other.
    """
    kinds = [transformation.key().name for transformation in stack]
    if "Vmap" in kinds and "Grad" in kinds[kinds.index("Vmap") :]:
        raise ValueError(
            "simulated: torch.func.grad must not be within torch.func.vmap; got vmap of grad. "
            "Loop over the examples, or take the gradient of a vmap."
        )


def _refuse_compounds(kinds: list[str]) -> None:
    """Reject tensors that hold other tensors, because the simulation cannot tell their format."""
    for kind in kinds:
        if kind in ("nested_tensor", "NestedTensor", "MaskedTensor", "DTensor"):
            raise ValueError(
                f"simulated: tensors must be dense float32; got a {kind}. Compute this outside "
                f"the with statement, or with padded tensors."
            )


class Functions(TorchFunctionMode):
    """Intercept each torch function that is called from Python.

    Args:
        mode: sees the operations below autograd.
        rounders: the rounder of each format of the simulation.
    """

    def __init__(self, mode: Mode, rounders: Mapping[Format, Rounder]) -> None:
        super().__init__()
        self.mode = mode
        self.handlers = known_functions(mode.policy)
        self.rounders = {  # nobody can ask for a format that torch lacks; FP32 is no request
            fmt.torch_dtype: rounder
            for fmt, rounder in rounders.items()
            if fmt.torch_dtype not in (None, torch.float32)
        }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        stack = _transformations()
        if stack and len(stack) > 1:
            _refuse_batched_gradients(stack)
        if types:
            _refuse_compounds([kind.__name__ for kind in types])
        elif args and isinstance(args[0], Tensor) and args[0].is_nested:
            _refuse_compounds(["nested_tensor"])  # a plain Tensor by its class
        handler = self.handlers.get(func)
        if handler is None:
            return func(*args, **kwargs)
        mode = self.mode
        before = mode.rules
        innermost = mode.graph.innermost is mode
        if before.scope.all is not None or not innermost:
            # A part of a function that runs as a whole is run as it is. Where autocast is off,
            # what does not depend on it goes on; attention hands its parts on in any case.
            off = innermost and before.scope.all is Run.WIDEST
            if not (
                handler is _attend_by_heads or (off and handler in _WITHOUT_AUTOCAST)
            ):
                return func(*args, **kwargs)
        if type(handler) is RuleTable:
            return self.call_by(handler, func, args, kwargs)
        return handler(self, func, args, kwargs)

    def call_by(
        self,
        rules: RuleTable,
        func: Any,
        args: Any,
        kwargs: Keywords,
        into: Rounder | None = None,
    ) -> Any:
        """Call a function with all its parts run by these rules, and `into` as the low format."""
        mode = self.mode
        place = mode.place
        before = mode.rules
        if into is not None and into is not place.into:
            mode.place = place._replace(into=into)
        mode.rules = rules
        try:
            return func(*args, **kwargs)
        finally:
            mode.place = place
            mode.rules = before

    def rules_for(self, run: Run, why: str) -> RuleTable:
        """Rules that run all operations alike."""
        return rules_in(Scope(self.mode.policy, True, why, run))

    def rounder_for(self, dtype: Any) -> Rounder | None:
        """Find the rounder for a dtype, if the simulation has one and a user's program asks.

        The code of torch and of this package sees the stored dtype, and gets what it asks for.
        """
        rounder = self.rounders.get(dtype)
        if rounder is None or _transformations():
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals is globals():
            frame = frame.f_back
        stored = f"{frame.f_globals.get('__name__')}.".startswith(_STORING)
        return None if stored else rounder

    def shown_dtype(self, t: Any) -> torch.dtype | None:
        """The dtype that a tensor stands for, if it differs from the stored dtype."""
        fmt = _format(t)
        dtype: torch.dtype | None = None if fmt is None else fmt.torch_dtype
        return None if self.rounder_for(dtype) is None else dtype

    def to(self, t: Any, into: Rounder | None, why: str) -> Any:
        """Convert a tensor to a low format or FP32, as `.to(dtype)` does; no copy without need."""
        fmt = None if into is None else into.fmt
        unchanged = not _can_be_tagged(t) or _format(t) == fmt
        if unchanged or (fmt is None and self.mode.lowers_all):
            return t
        # not a clone, through which a gradient passes without an operation that would round it
        run = Run.WIDE if into is None else Run.LOWER
        rules = self.rules_for(run, f"cast, as a product with 1: {why}")
        return self.call_by(rules, torch.mul, (t, 1), {}, into)

    def to_low(self, t: Any, why: str) -> Any:
        """Convert a tensor to the low format, unless it is in one; its gradient, too."""
        return t if _is_low(t) else self.to(t, self.mode.place.into, why)


# Functions with a handler of their own ----------------------------------------------------
def _can_be_tagged(t: Any) -> bool:
    """Whether a tensor has memory of its own that may hold a low format."""
    return holds_float32(t) and not _transformations()


def _low_rounder(t: Any) -> Rounder | None:
    """The rounder that made the numbers of a tensor."""
    return low_rounder(t) if _can_be_tagged(t) else None


def _format(t: Any) -> Format | None:
    """The low format of a tensor that has one."""
    rounder = _low_rounder(t)
    return None if rounder is None else rounder.fmt


def _is_low(t: Any) -> bool:
    return _low_rounder(t) is not None


def _first(kind: type, args: Any, kwargs: Keywords) -> Any:
    """The first argument of a type."""
    for a in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(a, kind):
            return a
    return None


def _asked_for(dtype: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')} is asked for"


def _in_float32(args: Any, kwargs: Keywords) -> tuple[Any, Keywords]:
    """Replace each dtype among the arguments by float32."""

    def stored(a: Any) -> Any:
        return torch.float32 if isinstance(a, torch.dtype) else a

    return tuple(map(stored, args)), {name: stored(a) for name, a in kwargs.items()}


_by_heads: Any = functional.multi_head_attention_forward

_attention_by_heads = FunctionType(
    _by_heads.__code__,
    {**_by_heads.__globals__, "has_torch_function": lambda _: False},
    argdefs=_by_heads.__defaults__,
)
"""A copy without the check whether a mode is active: with it, the function would hand itself to the
mode again instead of running."""


def _take_float64(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """Run a function of torch's whose parts may take float64."""
    rules = rules_in(functions.mode.rules.scope._replace(part=True))
    return functions.call_by(rules, func, args, kwargs)


def _attend_by_heads(
    functions: Functions, func: Any, args: Any, kwargs: Keywords
) -> Any:
    """`multi_head_attention_forward`: the functions that it calls are intercepted, too."""
    with functions:
        return _attention_by_heads(*args, **kwargs)


def _show_dtype(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`x.dtype`, as it would be under autocast."""
    return functions.shown_dtype(args[0]) or func(*args, **kwargs)


def _show_result_type(
    functions: Functions, func: Any, args: Any, kwargs: Keywords
) -> Any:
    """`result_type(x, y)`: computed for empty tensors of the dtypes that x and y stand for."""

    def stand_in(t: Any) -> Any:
        dtype = functions.shown_dtype(t)
        if dtype is None:
            return t
        return torch.empty([0] * t.dim(), dtype=dtype, device=t.device)

    kwargs = {name: stand_in(a) for name, a in kwargs.items()}
    return func(*map(stand_in, args), **kwargs)


_NAMED = {
    Tensor.float: torch.float32,
    Tensor.half: torch.float16,
    Tensor.bfloat16: torch.bfloat16,
}


def _convert(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`.float()`, `.half()`, `.to(…)`, `.type(…)`, `.type_as(other)`: convert to a format."""
    if len(args) + len(kwargs) == 1 and func is Tensor.type:
        return _show_result_type(functions, func, args, kwargs)
    other = _first(Tensor, args[1:], kwargs)
    if other is not None:
        asked = other.dtype
        into = _low_rounder(other)
        why = "the format of another tensor is asked for"
    else:
        asked = _NAMED.get(func) or _first(torch.dtype, args, kwargs)
        into = functions.rounder_for(asked)
        why = _asked_for(asked)
    if into is None and asked is not torch.float32:
        return func(*args, **kwargs)
    if into is not None:
        func = Tensor.float if func in _NAMED else func
        args, kwargs = _in_float32(args, kwargs)
    t = func(*args, **kwargs)
    if into is not None and _can_be_tagged(t) and t.is_leaf and t.requires_grad:
        # else it would share the one copy that autocast makes of a weight, and the gradients of
        # all its casts would be added in the low format
        t = functions.call_by(functions.rules_for(Run.WIDE, why), torch.mul, (t, 1), {})
    return functions.to(t, into, why)


def _make(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`zeros(n, dtype=x.dtype)` and the like: torch makes them; they are stored in float32."""
    if func is Tensor.new_tensor and "dtype" not in kwargs:
        kwargs = kwargs | {"dtype": functions.shown_dtype(args[0])}
    if kwargs.get("dtype") is torch.float32 and _is_low(_first(Tensor, args, kwargs)):
        why = "float32 is asked for"
        wide = functions.call_by(functions.rules_for(Run.WIDE, why), func, args, kwargs)
        return functions.to(wide, None, why)  # `as_tensor` gave the low tensor itself
    into = functions.rounder_for(kwargs.get("dtype"))
    converts = func in (torch.as_tensor, torch.asarray) and args and is_plain(args[0])
    if into is not None and converts:
        return _convert(functions, Tensor.to, args, kwargs)
    out = func(*args, **kwargs)
    if into is None or "out" in kwargs:
        return out
    stored = out.detach().float()
    set_tag(stored, FormatTag(into))
    return stored.requires_grad_(out.requires_grad)


def _copy_deeply(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`copy.deepcopy(x)`: the copied memory holds the same format."""
    out = func(*args, **kwargs)
    into = _low_rounder(args[0])
    if into is not None:
        set_tag(out, FormatTag(into))
    return out


def _compute_as_asked(
    functions: Functions, func: Any, args: Any, kwargs: Keywords
) -> Any:
    """`softmax(x, dtype=torch.float32)` and the like: the input is cast first."""
    asked = _first(torch.dtype, args, kwargs)
    into = None if _transformations() else functions.rounders.get(asked)
    if asked is torch.float64 and args and isinstance(args[0], Tensor):
        with torch.autocast(args[0].device.type, enabled=False):
            return func(*args, **kwargs)
    if not args or (into is None and asked is not torch.float32):
        return func(*args, **kwargs)
    why = _asked_for(asked)
    args = (functions.to(args[0], into, why), *args[1:])
    if into is None:
        return func(*args, **kwargs)
    return functions.call_by(
        functions.rules_for(Run.LOWER, why), func, *_in_float32(args, kwargs), into
    )


def _reinterpret_bits(
    functions: Functions, func: Any, args: Any, kwargs: Keywords
) -> Any:
    """`x.view(torch.int16)`: reject it, because the codes of a half tensor are not stored."""
    asked = _first(torch.dtype, args, kwargs)
    own = None if asked is None else functions.shown_dtype(args[0])
    if own is None:
        return func(*args, **kwargs)
    if asked is not own:
        raise ValueError(
            f"simulated: view must not ask for the codes of a simulated tensor; got {asked} for "
            f"{own}, which is stored in float32. Use mplab.encode."
        )
    args, kwargs = _in_float32(args, kwargs)
    return func(*args, **kwargs)


def _normalize(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`rms_norm` of a low tensor: torch computes in float32 and rounds the result."""
    why = "rms_norm computes in FP32, its result is in the format of its input"
    wide = functions.to(args[0], None, why) if args else None
    if not args or wide is args[0]:
        return func(*args, **kwargs)
    return functions.to_low(func(wide, *args[1:], **kwargs), why)


def _attend(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """Attention where torch has no kernel for it: low inputs and result, FP32 in between.

    Source:
        `_scaled_dot_product_attention_math` in ATen/native/transformers/attention.cpp of torch.
    """
    why = "listed: scaled_dot_product_attention runs in the low format"
    lower = functions.rules_for(Run.LOWER, why)
    within = functions.rules_for(
        Run.WIDE, "the parts of scaled_dot_product_attention: FP32"
    )
    try:
        choice = functions.call_by(within, torch._fused_sdp_choice, args, kwargs)
    except TypeError:  # wrong arguments: let the function itself say so
        return func(*args, **kwargs)
    if choice != SDPBackend.MATH.value or _transformations():
        return functions.call_by(lower, func, args, kwargs)

    def widened(a: Any) -> Any:
        return functions.to(functions.to_low(a, why), None, within.scope.choice)

    args = [*map(widened, args)]
    kwargs = {name: widened(a) for name, a in kwargs.items()}
    return functions.to_low(functions.call_by(within, func, args, kwargs), why)


def _multiply(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`linear`: autocast casts the input first, and torch decomposes it by the copy's strides."""
    lower = functions.rules_for(Run.LOWER, "listed: linear runs in the low format")
    if args and _can_be_tagged(args[0]) and not (_is_low(args[0]) or is_dense(args[0])):
        args = (functions.call_by(lower, torch.clone, args[:1], {}), *args[1:])
    return functions.call_by(lower, func, args, kwargs)


def _recur(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`lstm`, `gru` and the like: autocast casts the weights and biases in their `linear`s."""
    # (input, state, weights), or of a packed sequence (data, sizes, state, weights)
    position = 3 if len(args) > 3 and isinstance(args[3], list | tuple) else 2
    why = "linear runs in the low format"
    if len(args) > position and isinstance(args[position], list | tuple):
        weights = [functions.to_low(w, why) for w in args[position]]
        args = (*args[:position], weights, *args[position + 1 :])
    return func(*args, **kwargs)


def _fill_with_limits(
    functions: Functions, func: Any, args: Any, kwargs: Keywords
) -> Any:
    """`masked_fill(x, mask, torch.finfo(x.dtype).min)`: fill with the limit of x's format.

    Where x shows float32, no low format holds the limit of its dtype. Real half tensors refuse to
    be filled with it, so the program can only mean the limit of x's format.
    """
    fmt = _format(args[0]) if args else None
    shown = args and functions.shown_dtype(args[0])
    if fmt is None or shown or kwargs.get("dtype") not in (None, fmt.torch_dtype):
        return _make(functions, func, args, kwargs)

    def limited(value: Any) -> Any:
        beyond = isinstance(value, float) and abs(value) == _LARGEST
        return math.copysign(fmt.max_finite, value) if beyond else value

    kwargs = {name: limited(value) for name, value in kwargs.items()}
    return _make(functions, func, [*map(limited, args)], kwargs)


def _register_hook(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`x.register_hook(…)`: the gradient is in the format of x."""
    into = _low_rounder(args[0])
    if into is not None:
        functions.mode.cast_before_hooks(args[0], into)
    return func(*args, **kwargs)


def _pass_to_hooks(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`x.view_as(y)`: so torch passes a module's result to its hooks of the backward pass."""
    out = func(*args, **kwargs)
    into = _low_rounder(out)
    tag = tag_of(out) if into is not None else None
    if into is not None and tag is not None:
        tag.on_use = partial(_cast_for_hooks, functions.mode, into)
    return out


def _cast_for_hooks(mode: Mode, into: Rounder, t: Tensor) -> bool:
    """Cast the gradient of a module's result once if hooks see it; other results may follow."""
    # Torch's own name, since nothing else tells a hooked result. Were it another, hooks of modules
    # would see float32 again: tests/simulation/test_dispatch.py looks.
    node: Any = t.grad_fn
    if type(node).__name__ == "BackwardHookFunctionBackward":
        seen = vars(node).setdefault("cast_for_hooks", set())
        if t.output_nr not in seen:
            seen.add(t.output_nr)
            mode.cast_before_hooks(t, into)
    return False


def _differentiate(functions: Functions, func: Any, args: Any, kwargs: Keywords) -> Any:
    """`torch.autograd.grad`: the gradient of a low tensor is in its format.

    A backward pass casts a gradient only where an operation takes it.
    """

    def cast(t: Any, gradient: Any) -> Any:
        own = isinstance(t, Tensor) and has_storage(t)
        into = _low_rounder(t) if own else None
        why = "the gradient of a low tensor is asked for"
        return gradient if into is None else functions.to(gradient, into, why)

    _, inputs = args  # as torch spells them: a tuple each
    return tuple(map(cast, inputs, func(*args, **kwargs)))


_LARGEST = torch.finfo(torch.float32).max

_HANDLERS: tuple[tuple[Callable[..., Any], str], ...] = (
    (_show_result_type, "result_type"),
    (_convert, "float half bfloat16 to type type_as"),
    (
        _make,
        "tensor as_tensor asarray new_tensor empty zeros ones full eye arange linspace logspace "
        "rand randn randint empty_strided empty_like zeros_like ones_like rand_like randn_like "
        "randint_like new_empty new_empty_strided new_zeros new_ones new_full",
    ),
    (_reinterpret_bits, "view"),
    (_copy_deeply, "__deepcopy__"),
    (
        _compute_as_asked,
        "softmax log_softmax softmin special_softmax special_log_softmax sum nansum mean nanmean "
        "cumsum cumprod norm linalg_norm linalg_vector_norm linalg_matrix_norm",
    ),
    (_normalize, "rms_norm"),
    (_recur, "lstm gru rnn_tanh rnn_relu"),
    (_fill_with_limits, "masked_fill masked_fill_ full_like fill_"),
    (_take_float64, " ".join(_IN_FLOAT64)),
)

_WITHOUT_AUTOCAST = (
    _show_dtype,
    _register_hook,
    _pass_to_hooks,
    _differentiate,
    *(handler for handler, _ in _HANDLERS if handler is not _recur),
)
"""Handlers that do not depend on autocast."""


@lru_cache(maxsize=1 << 10)
def known_functions(policy: Policy) -> dict[Any, Any]:
    """The functions that are intercepted, each with the rules of its parts or its own handler."""
    found: dict[Any, Any] = {}
    for handler, names in _HANDLERS:
        for name in names.split():
            found |= dict.fromkeys(_callables(name), handler)
    found |= whole_functions(policy)
    found[Tensor.dtype.__get__] = _show_dtype  # type: ignore[attr-defined]
    found[torch.autograd.grad] = _differentiate
    found[Tensor.register_hook] = _register_hook
    found[Tensor.view_as] = _pass_to_hooks
    found[_by_heads] = _attend_by_heads
    if "scaled_dot_product_attention" in policy.lower:
        found[functional.scaled_dot_product_attention] = _attend
    if "linear" in policy.lower:
        found[functional.linear] = _multiply
    return found
