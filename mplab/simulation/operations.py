"""Torch's operations: their properties, and how each runs under a policy."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mplab.simulation.low_kernels import CHECKED_ARGUMENTS, KERNELS, OwnWay
from mplab.simulation.policies import Policy, Run, names_in

_LIKE_INPUT = names_in(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update
    cudnn_batch_norm native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    """
)
"""Run in the format of their input, whatever the format of weights and statistics."""

EXACT = names_in(
    """
    relu threshold_backward neg abs sign max min amax amin maximum minimum fmax fmin
    max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d
    clone copy _to_copy cat stack index index_select gather masked_select where take flip roll
    repeat bernoulli embedding tril triu sort topk kthvalue median mode im2col
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d pixel_shuffle pixel_unshuffle slice_backward select_backward
    zeros zeros_like new_zeros zero ones ones_like new_ones empty empty_like new_empty
    empty_strided new_empty_strided squeeze unsqueeze t transpose as_strided detach
    """
)
"""Results are values of the inputs, their negatives, 0 or 1: there is nothing to round."""

CONVERSIONS = frozenset({"_to_copy", "copy"})
"""Take tensors of any dtype."""

FILLS = names_in("full_like new_full fill rand_like randn_like")
"""Write numbers that may be none of a format's."""

COPIES = (
    CONVERSIONS
    | FILLS
    | names_in(
        "clone zeros_like ones_like empty_like new_zeros new_ones new_empty empty_strided "
        "new_empty_strided zero"
    )
)
"""Make memory rather than compute: no policy casts their inputs."""

MOVING = COPIES | names_in(
    "cat stack index index_select gather flip roll repeat set resize _local_scalar_dense "
    "is_same_size embedding mkldnn_rnn_layer mkldnn_rnn_layer_backward "
    "_scaled_mm _scaled_mm_v2 _scaled_grouped_mm"
)
"""Torch's own kernel runs, and nothing is rounded after it: it moves numbers, keeps its steps in a
form of its own, or takes FP8 alone."""

PRODUCTS = names_in(
    "mm bmm addmm baddbmm _addmm_activation convolution _convolution convolution_backward "
    "mkldnn_convolution mkldnn_convolution_backward"
)
"""Computed in float32 and rounded once, also where torch has a low kernel: in FP16 that takes ten
times as long, and differs by the order of its sums, of convolutions also as `KERNELS` says."""

CAST_WITHIN = names_in("_trilinear linalg_pinv")
"""Have a kernel above the devices, whose steps autocast casts."""

_REGIONS = {"_record_function_enter_new": 1, "_record_function_exit": -1}
"""Torch's profiler marks an optimizer's step by these, and ends it also when the step raises: a
hook after the step would not be called then."""

_UNSAFE_VIEWS = names_in("_unsafe_view unsafe_split unsafe_split_with_sizes")
"""Results share the memory of the input, though the schema does not say so."""

_QUICKER = {
    "aten::addmm": torch.addmm,
    "aten::detach": torch.detach,
    "aten::mm": torch.mm,
    "aten::mul.Tensor": torch.mul,
    "aten::relu": torch.relu,
    "aten::sum.dim_IntList": torch.sum,
    "aten::t": torch.t,
    "aten::view": torch.Tensor.view,
}
"""Callables that run the commonest operations in two thirds of the time, same arguments: without
them a step of an MLP takes 4 % longer."""

TORCH_S = ("aten", "prims", "mkldnn", "mkl", "quantized", "profiler")
"""The libraries of operations that are torch's own; a user's own may do anything."""

Keywords = dict[str, Any]
"""The arguments of a call that go by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:  # fields are read at every operation: slots are read faster than a tuple
    """The properties of an operation from its schema and from a policy."""

    name: str
    """Torch's, without the underscore at its end."""
    call: Any
    """Runs the operation, at half the cost of calling the object that names it."""
    positions: tuple[int, ...]
    """Arguments that are tensors or lists of tensors, and count for the format."""
    written: bool
    """Whether a format hangs on what is written to; no policy lists such an operation."""
    writes: tuple[tuple[int, str], ...]
    """The arguments that it writes to; the schemas of batch norms do not name theirs."""
    view: bool
    """Whether there is nothing to compute."""
    nests: int
    """1 or -1 if it begins or ends a region that torch's profiler knows, such as a step."""
    composite: bool
    """Whether it has no kernel of a device and is run as the operations it is made of."""
    parts: Any
    """The kernel that runs those, if low tensors are to be seen by each of them."""
    draws: bool
    """Whether it draws random numbers, which must not be drawn twice."""
    own: bool
    """Whether it is the program's own, and not torch's."""
    run: Run
    reason: str
    """Why it runs so."""
    listed: bool
    """Whether the policy, or a choice for a layer, names the operation."""
    dtype_at: int
    """Where the program may ask for the dtype of the result; past the end, if it may not."""
    rounded: tuple[tuple[int, str], ...]
    """Arguments that a low kernel rounds if they are Python numbers."""
    checked: tuple[tuple[int, str], ...]
    """The same for those that it refuses past the range of the format."""
    own_way: OwnWay | None
    """How a low kernel computes, if otherwise than in float32 with one rounding."""
    joins: bool
    """Whether integer tensors are converted to the dtype of the others first."""
    mark: str
    """What is special about the low kernel, in words, or what is not simulated of it."""


class Scope(NamedTuple):
    """A policy and where it applies: in modules, outside, or in a layer chosen by name."""

    policy: Policy
    inside: bool
    choice: str = ""
    """The choice for a layer in words."""
    wide: bool = False
    """Whether the choice is FP32, for all operations."""


def run_of(name: str, *, scope: Scope, written: bool) -> tuple[Run, str, bool]:
    """Find how an operation runs, why, and whether a policy or choice names it.

    Examples:
        >>> from mplab.simulation import CUDA_AUTOCAST
        >>> run_of("mm", scope=Scope(CUDA_AUTOCAST, inside=True), written=False)
        (<Run.LOWER: 'runs in the low format'>, 'listed: mm runs in the low format', True)
    """
    policy = scope.policy
    if policy.written:
        return Run.WIDEST, "as written", False
    copies = name.removesuffix("_") in COPIES or name.startswith(
        ("_foreach", "_amp", "_fused_a", "_fused_sgd")
    )
    if copies or written:
        return Run.WIDEST, "a copy is not cast", False
    if scope.wide:
        return Run.WIDE, f"{scope.choice}: FP32", True
    choice = f"{scope.choice}; " if scope.choice else ""
    for run, names in policy.lists():
        if name in names:
            return run, f"{choice}listed: {name} {run.value}", True
    run = policy.inside if scope.inside else policy.outside
    return run, f"{choice}not listed: {run.value}", False


COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd

_ABOVE_DEVICES = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional


def rule_of(operation: Any, scope: Scope) -> Rule:
    """Return the rule of an operation.

    Args:
        operation: a `torch._ops.OpOverload`.
        scope: where it runs.

    Examples:
        >>> import torch
        >>> from mplab.simulation import CUDA_AUTOCAST
        >>> rule = rule_of(
        ...     torch.ops.aten.addmm.default, Scope(CUDA_AUTOCAST, inside=True)
        ... )
        >>> rule.name, rule.positions, rule.run.name
        ('addmm', (0, 1, 2), 'LOWER')
    """
    schema = operation._schema
    library, _, name = schema.name.partition("::")
    base = name.removesuffix("_")
    arguments = list(enumerate(schema.arguments))
    # Attention's logsumexp is FP32 whatever the format: it must not decide.
    tensors = [
        (i, a)
        for i, a in arguments
        if "Tensor" in str(a.type) and a.name != "logsumexp"
    ]
    if base in _LIKE_INPUT:
        tensors = [
            (i, a) for i, a in tensors if a.name in ("input", "grad_out", "grad_output")
        ]
    positions = tuple(i for i, a in tensors if not a.kwarg_only)
    unnamed = () if schema.is_mutable else ("running_mean", "running_var")
    writes = [(i, a) for i, a in arguments if a.name in unnamed or _is_written(a)]
    written = any(_is_written(a) for _, a in tensors)
    # A schema marks what shares memory with its inputs: "!" where it writes, else a view.
    aliases = [result.alias_info for result in schema.returns]
    run, reason, listed = run_of(name, scope=scope, written=written)
    kernels = KERNELS[scope.policy.kernels]
    # the CPU runs one operation after the other
    looped = base.startswith("_foreach") and scope.policy.kernels == "cpu"
    keys = [COMPOSITE] if is_composite(operation) else []
    if looped or base in CAST_WITHIN:
        keys += [_ABOVE_DEVICES, EXPLICIT]
    parts = next((key for key in keys if _has_kernel(operation, key)), None)
    composite = parts is not None and not looped
    view = name in _UNSAFE_VIEWS or any(a and not a.is_write for a in aliases)
    random = torch.Tag.nondeterministic_seeded in operation.tags
    draws = random and "attention" not in base  # which draws only for dropout
    own = library not in TORCH_S
    marks = kernels.marks
    mark = marks.get(base) or marks.get(f"{base}.{operation._overloadname}", "")
    if own:
        mark = "inside not simulated: torch's own kernels run"
    return Rule(
        name=base,
        call=_QUICKER.get(operation.name(), operation._op),
        positions=positions,
        written=written,
        writes=tuple((i, a.name) for i, a in writes),
        view=(view and not composite) or library == "profiler",
        nests=_REGIONS.get(base, 0),
        composite=composite,
        parts=parts,
        draws=draws,
        own=own,
        run=run,
        reason=reason,
        listed=listed,
        dtype_at=next((i for i, a in arguments if a.name == "dtype"), len(arguments)),
        rounded=tuple(
            (i, a.name)
            for i, a in arguments
            if base in kernels.rounding and a.name != "dim"
        ),
        checked=tuple(
            (i, a.name)
            for i, a in arguments
            if base in kernels.checking and a.name in CHECKED_ARGUMENTS
        ),
        own_way=kernels.own_ways.get(base),
        joins=torch.Tag.pointwise in operation.tags,
        mark=mark,
    )


def argument(args: Any, kwargs: Keywords, i: int, name: str) -> Any:
    """An argument of a call, which may come by position or by name; None if it is left out."""
    return args[i] if i < len(args) else kwargs.get(name)


def asked_dtype(rule: Rule, args: Any, kwargs: Keywords) -> Any:
    """The dtype that is asked for; in inference mode `to` arrives whole, with it by position."""
    return argument(args, kwargs, rule.dtype_at, "dtype")


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results, those in lists included."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        for each in values.values():
            yield from tensors_in(each)
    elif isinstance(values, list | tuple):
        for each in values:
            yield from tensors_in(each)


def is_composite(operation: Any) -> bool:
    """Whether an operation has no kernel, and runs as the operations that it is made of.

    Torch's `_can_decompose` says so, too, of operations with a kernel, such as silu_backward, and
    of decompositions for compilers alone.
    """
    return _has_kernel(operation, COMPOSITE) and not _has_kernel(operation, "CPU")


def _has_kernel(operation: Any, key: Any) -> bool:
    name = operation.name()
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


class RuleTable(dict[Any, Rule | None]):
    """The rules of one scope by torch's operation, each made on first use.

    None stands for an operator of functions, which has no schema.
    """

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope

    def __missing__(self, operation: Any) -> Rule | None:
        rule = None
        if isinstance(operation, torch._ops.OpOverload):
            rule = rule_of(operation, self.scope)
        self[operation] = rule
        return rule


@lru_cache(maxsize=1 << 10)
def rules_in(scope: Scope) -> RuleTable:
    """The rules of a scope, the same for all contexts."""
    return RuleTable(scope)
