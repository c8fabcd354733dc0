"""Torch's operations: their properties, rules under a policy, inputs and results."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mplab.simulation.low_kernels import CHECKED_ARGUMENTS, KERNELS, OwnWay
from mplab.simulation.policies import ATTENTION, Policy, Run, names_in
from mplab.simulation.tags import (
    ALWAYS_FP32,
    FormatTag,
    Rounder,
    holds_float32,
    set_tag,
    tag_of,
)

_FLOAT32 = torch.float32
_STRIDED = torch.strided

_PAIRED = names_in(
    "index_add index_add_ index_copy_ index_put_ index_reduce index_reduce_ scatter scatter_ put "
    "scatter_add_ scatter_reduce scatter_reduce_ masked_scatter masked_scatter_ put_ lerp lerp_ "
    "mm bmm addmm addbmm baddbmm mv addmv vdot convolution"
)
"""Take tensors of one dtype only, and autocast converts none. `index_put` and the like, which it
converts on CUDA or on the CPU, are not here."""

_PAIRED_CPU = names_in("index_put scatter_add dot linalg_cross")
"""The same where autocast for the CPU is followed, which converts fewer than that for CUDA."""

# What torch's operations are, whatever the policy ------------------------------------------
LIKE_INPUT = names_in(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update
    cudnn_batch_norm native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    """
)
"""Run in the format of their input, whatever the format of weights and statistics."""

ONE_RESULT = LIKE_INPUT | ATTENTION
"""Only the first result has the format; the others are statistics in FP32."""

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

UNSAFE_VIEWS = names_in("_unsafe_view unsafe_split unsafe_split_with_sizes")
"""Results share the memory of the input, though the schema does not say so."""

CONVERSIONS = frozenset({"_to_copy", "copy"})
"""Take tensors of any dtype."""

COPIES = CONVERSIONS | names_in(
    "clone zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty "
    "rand_like randn_like empty_strided new_empty_strided zero fill"
)
"""Make memory rather than compute: no policy casts their inputs."""


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


_PASSING = names_in(
    "add sub rsub cat stack sum clone copy slice_scatter select_scatter"
)
"""In the backward pass they pass a gradient on without computing anything."""


TORCH_S = ("aten", "prims", "mkldnn", "mkl", "quantized", "profiler")
"""The libraries of operations that are torch's own; a user's own may do anything."""

_OPAQUE = "inside not simulated: its result is rounded once"


# Rules: how a policy runs one operation ----------------------------------------------------
@dataclass(frozen=True, slots=True)
class Rule:  # fields are read at every operation: slots are read faster than a tuple
    """The properties of an operation from its schema and from a policy."""

    name: str
    call: Any
    """Runs the operation, at half the cost of calling the object that names it."""
    positions: tuple[int, ...]
    """Arguments that are tensors or lists of tensors, and count for the format."""
    keywords: tuple[str, ...]
    """The same among arguments that go by name."""
    written: int | str | None
    """The argument that is written to, if any; autocast lists no such operation."""
    view: bool
    composite: bool
    run: Run
    reason: str
    """Why it runs so."""
    listed: bool
    """Whether the policy, or a choice for a layer, names the operation."""
    exact: bool
    one_result: bool
    plain: bool
    """Whether the tensors are just the first arguments, one each."""
    makes_gradient_view: bool
    """Whether it may pass on a gradient that becomes a .grad, or comes from a scalar."""
    passes_gradient_on: bool
    """Whether its backward may compute nothing, so that no operation would cast the gradient."""
    paired: bool
    """Whether torch refuses tensors of several dtypes."""
    takes_any_dtype: bool
    """Whether it runs where the program turned autocast off, or as a part of a function of torch's:
    there tensors may be of any kind."""
    keeps_scalars_fp32: bool
    """Whether its results without dimensions stay FP32, since they may be losses: the policy lowers
    the operation, although no list names it."""
    rounded: tuple[tuple[int, str], ...]
    """Arguments that a low kernel rounds if they are Python numbers."""
    checked: tuple[tuple[int, str], ...]
    """The same for those that it refuses past the range of the format."""
    own_way: OwnWay | None
    """How a low kernel computes, if otherwise than in float32 with one rounding."""
    at_hand: bool
    """Whether torch's own low kernel gives the results, where it rounds as the simulation does."""
    joins: bool
    """Whether integer tensors are converted to the dtype of the others first."""
    mark: str
    """What is special about the low kernel, in words, or what is not simulated of it."""


class Scope(NamedTuple):
    """A policy and where it applies: in modules, outside, or in a layer chosen by name."""

    policy: Policy
    inside: bool
    choice: str = ""
    """The choice for a layer, or the function run as a whole, in words."""
    all: Run | None = None
    """How all operations run, if the choice decides it."""
    part: bool = False
    """Whether these are the parts of a function of torch's, which may take float64 on the way."""


def run_of(name: str, *, scope: Scope, written: bool) -> tuple[Run, str, bool]:
    """Find how an operation runs, why, and whether a policy or choice names it.

    Examples:
        >>> from mplab.simulation import CUDA_AUTOCAST
        >>> run_of("mm", scope=Scope(CUDA_AUTOCAST, inside=True), written=False)
        (<Run.LOWER: 'runs in the low format'>, 'listed: mm runs in the low format', True)
    """
    policy = scope.policy
    base = name.removesuffix("_")
    if scope.all is not None:
        return scope.all, scope.choice, True
    choice = f"{scope.choice}; " if scope.choice else ""
    lists = (
        (policy.lower, Run.LOWER),
        (policy.wide, Run.WIDE),
        (policy.output, Run.OUTPUT),
    )
    for names, run in lists:
        if name in names and not written:
            return run, f"{choice}listed: {name} {run.value}", True
    if base in COPIES or base.startswith(
        ("_foreach", "_amp", "_fused_a", "_fused_sgd")
    ):
        return (
            Run.WIDEST,
            "a copy is not cast: keeps the widest format of its inputs",
            False,
        )
    run = policy.inside if scope.inside else policy.outside
    return run, f"{choice}not listed: {run.value}", False


COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


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
    tensors = [
        (i, a)
        for i, a in enumerate(schema.arguments)
        if "Tensor" in str(a.type) and a.name != "logsumexp"
    ]
    if base in LIKE_INPUT:
        tensors = [
            (i, a) for i, a in tensors if a.name in ("input", "grad_out", "grad_output")
        ]
    positions = tuple(i for i, a in tensors if not a.kwarg_only)
    writes = [(i, a) for i, a in tensors if a.alias_info and a.alias_info.is_write]
    written = [a.name if a.kwarg_only else i for i, a in writes]
    aliases = [result.alias_info for result in schema.returns]
    single = all(str(a.type) == "Tensor" and not a.kwarg_only for _, a in tensors)
    run, reason, listed = run_of(name, scope=scope, written=bool(written))
    # not operation._can_decompose(), which also includes decompositions for compilers alone, and
    # operations with a kernel, such as silu_backward
    has = partial(torch._C._dispatch_has_kernel_for_dispatch_key, operation.name())
    kernels = KERNELS[scope.policy.kernels]
    numbers = [
        (i, a.name)
        for i, a in enumerate(schema.arguments)
        if any(kind in str(a.type) for kind in ("number", "float", "Tensor"))
    ]
    # A result that alone is cast has been computed in FP32.
    own_way = None if run is Run.OUTPUT else kernels.own_ways.get(base)
    if sum(a.is_out for a in schema.arguments) > 1:
        own_way = None
    call = _QUICKER.get(operation.name(), operation._op)
    if own_way is not None and written and isinstance(written[0], str):
        call = operation.overloadpacket  # for `out=`, which is filled afterwards
    return Rule(
        name=base,
        call=call,
        positions=positions,
        keywords=tuple(a.name for _, a in tensors if a.kwarg_only),
        written=written[0] if written else None,
        view=name in UNSAFE_VIEWS or any(a and not a.is_write for a in aliases),
        composite=has(COMPOSITE) and not has("CPU"),
        run=run,
        reason=reason,
        listed=listed,
        exact=base in EXACT,
        one_result=base in ONE_RESULT,
        plain=single and positions == tuple(range(len(positions))),
        makes_gradient_view=base in ("detach", "expand"),
        passes_gradient_on=base in _PASSING,
        paired=name in _PAIRED
        or (name in _PAIRED_CPU and scope.policy.kernels == "cpu"),
        takes_any_dtype=scope.part or (listed and run is Run.WIDEST),
        keeps_scalars_fp32=not listed and run is Run.LOWER,
        rounded=tuple(numbers if base in kernels.rounding else ()),
        checked=tuple(
            (i, argument)
            for i, argument in numbers
            if base in kernels.checking and argument in CHECKED_ARGUMENTS
        ),
        own_way=own_way,
        at_hand=base in kernels.at_hand,
        joins=torch.Tag.pointwise in operation.tags,
        mark=kernels.marks.get(base, "") if library in TORCH_S else _OPAQUE,
    )


Keywords = dict[str, Any]
"""The arguments of a call that go by name."""


# Inputs and results ----------------------------------------------------------------------
def refuse(rule: Rule, t: Tensor) -> None:
    """Reject tensors that cannot be simulated; integers and scalars pass."""
    numbers = t.is_floating_point() or t.is_complex() or t.is_quantized
    if numbers and t.dim() and not (rule.takes_any_dtype or rule.name in CONVERSIONS):
        raise ValueError(  # the operators of Tensor hide a TypeError
            f"simulated: tensors must be dense float32; got {t.dtype}, {t.layout}, of shape "
            f"{tuple(t.shape)} in {rule.name}. Convert it with .float() or .to_dense(), leave "
            f"torch.autocast out, or turn it off here: torch.autocast('cpu', enabled=False)."
        )


def tensors_of(rule: Rule, args: Any, kwargs: Keywords) -> Sequence[Tensor]:
    """The tensors that count for the format, those in lists included."""
    if rule.plain:
        return [t for t in args[: len(rule.positions)] if isinstance(t, Tensor)]
    found: list[Tensor] = []
    given = [args[i] for i in rule.positions if i < len(args)]
    for t in given + [kwargs.get(name) for name in rule.keywords]:
        if isinstance(t, Tensor):
            found.append(t)
        elif isinstance(t, list | tuple):
            found += [x for x in t if isinstance(x, Tensor)]
    return found


Operands = tuple[Rounder | None, bool, bool, bool, bool]
"""The inputs of an operation, as a plain tuple for speed: their low format; whether one is in FP32,
or two are in different low formats, which meet in FP32; whether one is a scalar; whether one has
dimensions and is not a gradient in a user's hands; and whether any holds floating-point numbers.
The first two give the widest format: FP32, or the low one. As in torch, scalars count for it only
if all inputs are scalars.
"""


def common_format(
    rule: Rule, tensors: Sequence[Tensor], *, gradients: bool
) -> Operands:
    """Find the formats of the inputs.

    Outside a backward pass a gradient counts as FP32, because a weight's gradient is FP32.
    """
    low: Rounder | None = None
    wide = scalars = computes = numbers = False
    for t in tensors:
        if t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
            refuse(rule, t)
            # an integer, too, may be past the range of the format
            scalars = scalars or not (t.dim() or t.dtype is torch.bool)
        elif not t.dim():
            scalars = True
        else:
            numbers = True
            tag = tag_of(t)
            if tag is None:
                wide = computes = True
                continue
            own = tag.made_by is None
            into = tag.into if gradients or own else None
            computes = computes or own
            if into is None:
                wide = True
            elif low is None:
                low = into
            elif low is not into and low.fmt != into.fmt:
                wide = True
    if scalars and not numbers:
        tags = [tag_of(t) for t in tensors if holds_float32(t)]
        found = [m.into if m and (gradients or not m.made_by) else None for m in tags]
        low = found[0] if found else None
        wide = any(r is None or low is None or r.fmt != low.fmt for r in found)
    if low is not None and rule.name.startswith("_foreach"):
        raise ValueError(
            f"simulated: {rule.name} must be given FP32 tensors; got tensors in {low.fmt.name}. "
            f"Use a loop over the single operation."
        )
    return low, wide, scalars, computes, numbers or scalars


def results_of(out: Any) -> Sequence[Any]:
    """The results of an operation, as a sequence."""
    if isinstance(out, Tensor):
        return (out,)
    return out if isinstance(out, tuple | list) else ()


def tag_as_fp32(out: Any) -> None:
    """Mark results computed from gradients or from scalars as FP32 for good."""
    for t in results_of(out):
        if holds_float32(t):
            set_tag(t, FormatTag(None, ALWAYS_FP32))


def written_format(rule: Rule, args: Any, kwargs: Keywords) -> Rounder | None:
    """The format of the tensor that an operation writes to; the tensor keeps it."""
    t = kwargs[rule.written] if isinstance(rule.written, str) else args[rule.written]
    tag = tag_of(t) if holds_float32(t) else None
    if tag is None:
        return None
    # FP32, or a gradient in a user's hands.
    if tag.into is None or tag.made_by is not None:
        set_tag(t, None if tag.made_by is None else FormatTag(None, ALWAYS_FP32))
        return None
    return tag.into
