"""Torch's operations: their properties, and how each runs under a policy."""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

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

COPIES = CONVERSIONS | names_in(
    "clone zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty "
    "rand_like randn_like empty_strided new_empty_strided zero fill"
)
"""Make memory rather than compute: no policy casts their inputs."""

_MOVING = COPIES | names_in(
    "cat stack index index_select gather flip roll repeat set resize _local_scalar_dense "
    "is_same_size embedding"
)
"""Operations that move numbers: torch's own kernel runs."""

_CLOSED = names_in(
    "mkldnn_rnn_layer mkldnn_rnn_layer_backward "
    "_scaled_mm _scaled_mm_v2 _scaled_grouped_mm"
)
"""Keep their steps in a form of their own, or take FP8 alone: torch's own kernels run."""

_PRODUCTS = names_in(
    "mm bmm addmm baddbmm _addmm_activation convolution _convolution convolution_backward "
    "mkldnn_convolution mkldnn_convolution_backward"
)
"""Computed in float32 and rounded once, also where torch has a low kernel: in FP16 that takes ten
times as long, and differs by the order of its sums alone."""

_REGIONS = {"_record_function_enter_new": 1, "_record_function_exit": -1}
"""Torch's profiler marks an optimizer's step by these, and ends it also when the step raises."""

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
"""Callables that run the commonest operations in two thirds of the time, same arguments."""

TORCH_S = ("aten", "prims", "mkldnn", "mkl", "quantized", "profiler")
"""The libraries of operations that are torch's own; a user's own may do anything."""

_OPAQUE = "inside not simulated: torch's own kernels run"

Keywords = dict[str, Any]
"""The arguments of a call that go by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:  # fields are read at every operation: slots are read faster than a tuple
    """The properties of an operation from its schema and from a policy."""

    operation: Any
    """Torch's object for it, an `OpOverload`."""
    name: str
    """Torch's, without the underscore at its end."""
    call: Any
    """Runs the operation, at half the cost of calling the object that names it."""
    positions: tuple[int, ...]
    """Arguments that are tensors or lists of tensors, and count for the format."""
    keywords: tuple[str, ...]
    """The same among arguments that go by name."""
    written: int | str | None
    """The argument that is written to, if any; no policy lists such an operation."""
    writes: tuple[tuple[int, str], ...]
    """All arguments that it writes to; the schemas of batch norms do not name theirs."""
    view: bool
    """Whether there is nothing to compute."""
    nests: int
    """1 or -1 if it begins or ends a region that torch's profiler knows, such as a step."""
    composite: bool
    """Whether it has no kernel and is run as the operations it is made of."""
    parts: Any
    """The kernel that runs those, if low tensors are to be seen by each of them."""
    converts: bool
    product: bool
    moves: bool
    """Whether torch's own kernel runs, which rounds nothing."""
    draws: bool
    """Whether it draws random numbers, which must not be drawn twice."""
    own: bool
    """Whether it is the program's own, and not torch's."""
    run: Run
    reason: str
    """Why it runs so."""
    listed: bool
    """Whether the policy, or a choice for a layer, names the operation."""
    dtype_at: int | None
    """Where the program may ask for the dtype of the result."""
    exact: bool
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
    simple: bool
    """Whether a low kernel does nothing but what a float32 kernel does, and rounds."""


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
        return Run.WIDE, scope.choice, True
    choice = f"{scope.choice}; " if scope.choice else ""
    for run, names in policy.lists():
        if name in names:
            return run, f"{choice}listed: {name} {run.value}", True
    run = policy.inside if scope.inside else policy.outside
    return run, f"{choice}not listed: {run.value}", False


COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd


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
    written = [a.name if a.kwarg_only else i for i, a in tensors if _is_written(a)]
    aliases = [result.alias_info for result in schema.returns]
    single = all(str(a.type) == "Tensor" and not a.kwarg_only for _, a in tensors)
    run, reason, listed = run_of(name, scope=scope, written=bool(written))
    # not operation._can_decompose(), which also includes decompositions for compilers alone, and
    # operations with a kernel, such as silu_backward
    has = partial(torch._C._dispatch_has_kernel_for_dispatch_key, operation.name())
    kernels = KERNELS[scope.policy.kernels]
    numbers = [
        (i, a.name)
        for i, a in arguments
        if any(kind in str(a.type) for kind in ("number", "float", "Tensor"))
    ]
    own_way = kernels.own_ways.get(base)
    if sum(a.is_out for a in schema.arguments) > 1:
        own_way = None
    plain = single and positions == tuple(range(len(positions)))
    rounds = base in kernels.rounding or base in kernels.checking
    call = _QUICKER.get(operation.name(), operation._op)
    if own_way is not None and written and isinstance(written[0], str):
        call = operation.overloadpacket  # for `out=`, which is filled afterwards
    composite = has(COMPOSITE) and not has("CPU")
    view = name in _UNSAFE_VIEWS or any(a and not a.is_write for a in aliases)
    # the CPU runs one operation after the other
    looped = base.startswith("_foreach") and scope.policy.kernels == "cpu"
    parts = COMPOSITE if composite else EXPLICIT if looped and has(EXPLICIT) else None
    random = torch.Tag.nondeterministic_seeded in operation.tags
    own = library not in TORCH_S
    return Rule(
        operation=operation,
        name=base,
        call=call,
        positions=positions,
        keywords=tuple(a.name for _, a in tensors if a.kwarg_only),
        written=written[0] if written else None,
        writes=tuple((i, a.name) for i, a in writes),
        view=(view and not composite) or library == "profiler",
        nests=_REGIONS.get(base, 0),
        composite=composite,
        parts=parts,
        converts=base in CONVERSIONS,
        product=base in _PRODUCTS,
        moves=base in _MOVING | _CLOSED,
        draws=random and "attention" not in base,  # which draws only for dropout
        own=own,
        run=run,
        reason=reason,
        listed=listed,
        dtype_at=next((i for i, a in arguments if a.name == "dtype"), None),
        exact=base in EXACT,
        rounded=tuple(numbers if base in kernels.rounding else ()),
        checked=tuple(
            (i, argument)
            for i, argument in numbers
            if base in kernels.checking and argument in CHECKED_ARGUMENTS
        ),
        own_way=own_way,
        joins=torch.Tag.pointwise in operation.tags,
        mark=_OPAQUE if own else kernels.marks.get(base, ""),
        simple=plain and not (writes or own_way or rounds),
    )


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


class RuleTable(dict[int, Rule]):
    """The rules of one scope by the operation's address, because its own hash is slow."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope
        # Kept alive, so that no other gets its address.
        self._operations: list[Any] = []

    def of(self, operation: Any) -> Rule:
        """Return the rule of an operation; it is made on first use."""
        rule = self.get(id(operation))  # modes look first, for speed
        if rule is None:
            self._operations.append(operation)
            rule = self[id(operation)] = rule_of(operation, self.scope)
        return rule


@lru_cache(maxsize=1 << 10)
def rules_in(scope: Scope) -> RuleTable:
    """The rules of a scope, the same for all contexts."""
    return RuleTable(scope)
