"""Which operation runs in which format under mixed precision, as data.

A `Policy` is a table of operations and of layers. Names are those of torch's operations below
autograd, where `mplab.simulate` sees them. The tables are `CUDA_AUTOCAST`, `CPU_AUTOCAST`,
`KERAS_MIXED` and `EVERYTHING`, and what you derive from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from mplab.formats import Format, require_format


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Run(Enum):
    """In what an operation runs; the low format is that of the context or of the layer."""

    LOWER = "runs in the low format"
    WIDE = "runs in FP32"
    WIDEST = "runs in the widest format of its inputs"
    OUTPUT = "runs in FP32, its result in the low format"


# What torch's operations are, whatever the policy ------------------------------------------

LIKE_INPUT = _names(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update
    cudnn_batch_norm native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    """
)
"""Run in the format of their input, whatever that of the weights and statistics."""

ATTENTION = _names(
    """
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    """
)
"""What `scaled_dot_product_attention` becomes."""

ONE_RESULT = LIKE_INPUT | ATTENTION
"""Only the first result has the format; the others are statistics in FP32."""

EXACT = _names(
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

UNSAFE_VIEWS = _names("_unsafe_view unsafe_split unsafe_split_with_sizes")
"""Results share the memory of the input, though the schema does not say so."""

CONVERSIONS = frozenset({"_to_copy", "copy"})
"""Take tensors of any dtype."""

COMPLEX = _names("complex polar view_as_complex _fft_r2c _fft_c2c linalg_eig _linalg_eigvals")
"""Make complex numbers, which no format of the simulation holds."""

COPIES = CONVERSIONS | _names(
    "clone zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty "
    "rand_like randn_like empty_strided new_empty_strided zero fill"
)
"""Make memory rather than compute: no policy casts their inputs."""

# Policies ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """Which operation and which layer runs in which format.

    Under every policy losses, tensors without dimensions, `.grad`, loss scaling, clipping and
    the optimizer stay FP32, and an operation in place keeps the format of what it writes to.

    Args:
        name: how the policy is called.
        source: where its table is from.
        lower: operations that round their inputs to the low format and run in it.
        wide: operations that run in FP32.
        output: operations that run in FP32 and round their result to the low format.
        inside: what other operations do in a module.
        outside: what they do outside all modules.
        layers: for names, patterns or classes of modules, the format that their operations
            take for the low one; FP32 for all operations in FP32.

    Examples:
        >>> policy = CUDA_AUTOCAST.with_layers({"head": FP32, "*.norm": FP32})
        >>> policy
        CUDA_AUTOCAST.with_layers({'head': FP32, '*.norm': FP32})
        >>> "_softmax" in CUDA_AUTOCAST.wide, "_softmax" in CPU_AUTOCAST.wide
        (True, False)
    """

    name: str
    source: str
    lower: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    output: frozenset[str] = frozenset()
    inside: Run = Run.WIDEST
    outside: Run = Run.WIDEST
    layers: tuple[tuple[str | type, Format], ...] = ()

    def __repr__(self) -> str:
        layers = ", ".join(f"{name_of(key)!r}: {fmt.name}" for key, fmt in self.layers)
        return self.name + (f".with_layers({{{layers}}})" if layers else "")

    def with_layers(self, formats: Mapping[str | type, Format]) -> Policy:
        """The same policy with formats of their own for some layers, and all within them.

        Of two choices for one layer the later counts; of two for a layer and one within it, the
        inner one.

        Args:
            formats: to a name such as `"head"`, a pattern such as `"*.norm"` or a class of
                modules, the low format there, or FP32.

        Raises:
            TypeError: a key is neither a name nor a class, or a value no format.

        Examples:
            >>> CPU_AUTOCAST.with_layers({"left": FP16, "right": BF16, "fusion": FP32})
            CPU_AUTOCAST.with_layers({'left': FP16, 'right': BF16, 'fusion': FP32})
        """
        for key, fmt in formats.items():
            if not isinstance(key, str | type):
                raise TypeError(
                    f"with_layers: formats must be by name or class of modules; got the key "
                    f"{key!r}. Use the module's name, as model.named_modules() says it."
                )
            require_format("with_layers", fmt)
        return replace(self, layers=(*self.layers, *formats.items()))

    def with_operations(self, *, lower: Iterable[str] = (), wide: Iterable[str] = ()) -> Policy:
        """The same policy with some operations in the low format, or in FP32.

        Args:
            lower: names of operations below autograd, such as `_softmax`.
            wide: the same.

        Examples:
            >>> wider = CPU_AUTOCAST.with_operations(wide=["_softmax", "_log_softmax"])
            >>> "_softmax" in wider.wide
            True
        """
        low, fp32 = frozenset(lower), frozenset(wide)
        return replace(
            self,
            lower=(self.lower | low) - fp32,
            wide=(self.wide | fp32) - low,
            output=self.output - low - fp32,
        )

    def choice(self, name: str, module: object) -> tuple[str, Format] | None:
        """What was chosen for a module itself: the key that it fits, as text, and the format."""
        fitting = [(key, fmt) for key, fmt in self.layers if fits(key, name, module)]
        return (name_of(fitting[-1][0]), fitting[-1][1]) if fitting else None


def fits(key: str | type, name: str, module: object) -> bool:
    """Whether a key of `Policy.layers` means this module.

    Examples:
        >>> fits("*.norm", "block.norm", None), fits("norm", "block.norm", None)
        (True, False)
    """
    return fnmatchcase(name, key) if isinstance(key, str) else isinstance(module, key)


def name_of(key: str | type) -> str:
    """A key of `Policy.layers` as text."""
    return key if isinstance(key, str) else key.__name__


LOSSES = _names(
    """
    nll_loss_forward nll_loss2d_forward smooth_l1_loss huber_loss mse_loss
    multilabel_margin_loss_forward soft_margin_loss multi_margin_loss binary_cross_entropy
    binary_cross_entropy_with_logits hinge_embedding_loss kl_div l1_loss margin_ranking_loss
    cosine_embedding_loss poisson_nll_loss triplet_margin_loss nll_loss nll_loss2d
    multilabel_margin_loss
    """
)
"""Losses on the lists of both autocasts."""

_PRODUCTS = ATTENTION | _names(
    """
    mm bmm baddbmm addmm addbmm conv_tbc convolution _convolution mkldnn_convolution
    mkldnn_rnn_layer _prelu_kernel prelu linear matmul linalg_vecdot
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    scaled_dot_product_attention
    """
)

CUDA_AUTOCAST = Policy(
    name="CUDA_AUTOCAST",
    source="AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE and "
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE in ATen/autocast_mode.h of torch 2.13. Beyond "
    "them binary_cross_entropy, which autocast refuses on CUDA, and lstm, gru and the like, which "
    "become _cudnn_rnn.",
    lower=_PRODUCTS
    | _names(
        """
        mv addmv addr cudnn_convolution cudnn_convolution_transpose _thnn_fused_lstm_cell
        _thnn_fused_gru_cell _cudnn_rnn einsum chain_matmul linalg_multi_dot
        lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
        lstm gru rnn_tanh rnn_relu
        """
    ),
    wide=LOSSES
    | _names(
        """
        acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh tan
        softplus native_layer_norm native_group_norm _fused_rms_norm
        layer_norm group_norm rms_norm softmax log_softmax cosine_similarity pdist cdist
        frobenius_norm nuclear_norm linalg_matrix_norm
        dist _pdist_forward _cdist_forward _euclidean_dist
        renorm logsumexp norm linalg_vector_norm prod sum cumprod cumsum _softmax _log_softmax
        upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
        _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
        upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
        upsample_bicubic2d _upsample_bicubic2d_aa
        """
    ),
)
"""What `torch.autocast("cuda")` does: products low; losses, softmax, norms and sums in FP32."""

CPU_AUTOCAST = Policy(
    name="CPU_AUTOCAST",
    source="The kernels that torch 2.13 registers for AutocastCPU, and what they were seen to do: "
    "tests/test_autocast.py observes each of them.",
    lower=_PRODUCTS | _names("_addmm_activation"),
    wide=LOSSES
    | _names(
        """
        cross_entropy_loss ctc_loss cdist quantile nanquantile stft adaptive_avg_pool3d pinverse
        grid_sampler max_pool3d inverse qr svd orgqr _lu_with_info lu_solve
        linalg_cond linalg_matrix_rank linalg_tensorinv linalg_tensorsolve linalg_inv
        linalg_cholesky linalg_solve linalg_svd linalg_svdvals linalg_eigh linalg_eigvalsh
        linalg_eigvals fake_quantize_per_tensor_affine
        prod trace _cdist_forward _euclidean_dist grid_sampler_2d grid_sampler_3d
        _adaptive_avg_pool3d avg_pool3d adaptive_max_pool3d max_pool3d_with_indices
        fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d
        reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
        _ctc_loss linalg_qr linalg_cholesky_ex linalg_inv_ex linalg_lstsq
        linalg_householder_product _linalg_svd _linalg_eigh _linalg_solve_ex cholesky
        cholesky_inverse cholesky_solve geqrf ormqr triangular_solve linalg_lu_solve
        linalg_eig _linalg_eigvals fake_quantize_per_tensor_affine_cachemask
        """
    ),
)
"""What `torch.autocast("cpu")` does: softmax, layer norm, exp, pow and sums follow their input."""

KERAS_MIXED = Policy(
    name="KERAS_MIXED",
    source="keras 3: DTypePolicy and Layer.__call__, which cast the inputs and variables of each "
    "layer to the compute dtype; LayerNormalization, GroupNormalization and Embedding, which turn "
    "that off and cast their result; BatchNormalization, which keeps its variables in float32; "
    "Loss, whose dtype is float32.",
    wide=LOSSES | {"cross_entropy_loss"},
    output=_names("native_layer_norm native_group_norm _fused_rms_norm embedding"),
    inside=Run.LOWER,
)
"""What Keras' `mixed_float16` and `mixed_bfloat16` do: each layer in the low format throughout.

For torch modules. A Keras `Dense` rounds its product before it adds the bias: write it so, since
`nn.Linear` is one operation, rounded once. The normalization layers of Keras itself are made of
operations that this table would round one by one.
"""

EVERYTHING = Policy(
    name="EVERYTHING",
    source="The rule of this package's first experiment: one format, losses excepted.",
    wide=LOSSES | {"cross_entropy_loss"},
    inside=Run.LOWER,
    outside=Run.LOWER,
)
"""All in the low format but losses, so that the format is seen bare."""

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (CUDA_AUTOCAST, CPU_AUTOCAST, KERAS_MIXED, EVERYTHING)
}
"""The policies by name."""


# Rules: a policy's word on one operation ---------------------------------------------------


class Rule(NamedTuple):
    """What is known of an operation from its schema and from a policy."""

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
    follows: bool
    """Whether it may pass on a gradient that becomes a .grad, or comes from a scalar."""


class Scope(NamedTuple):
    """A policy where it applies: in modules or outside, or where a layer was chosen."""

    policy: Policy
    inside: bool
    choice: str = ""
    """What was chosen for a layer, or is run as a whole, in words."""
    all: Run | None = None
    """What all operations do, if the choice is that."""


def run_of(name: str, *, scope: Scope, written: bool) -> tuple[Run, str, bool]:
    """In what an operation runs, why, and whether it is named.

    Examples:
        >>> run_of("mm", scope=Scope(CUDA_AUTOCAST, inside=True), written=False)
        (<Run.LOWER: 'runs in the low format'>, 'listed: mm runs in the low format', True)
    """
    policy = scope.policy
    base = name.removesuffix("_")
    if scope.all is not None:
        return scope.all, scope.choice, True
    choice = f"{scope.choice}; " if scope.choice else ""
    lists = ((policy.lower, Run.LOWER), (policy.wide, Run.WIDE), (policy.output, Run.OUTPUT))
    for names, run in () if written else lists:
        if name in names:
            return run, f"{choice}listed: {name} {run.value}", True
    if base in COPIES or base.startswith(("_foreach", "_amp", "_fused_a", "_fused_sgd")):
        return Run.WIDEST, "a copy is not cast: keeps the widest format of its inputs", False
    run = policy.inside if scope.inside else policy.outside
    return run, f"{choice}not listed: {run.value}", False


@lru_cache(maxsize=1 << 14)
def rule_of(operation: Any, scope: Scope, *, composite: bool = False) -> Rule:
    """The rule of an operation, which is a `torch._ops.OpOverload`.

    Args:
        operation: the operation.
        scope: where it runs.
        composite: whether torch takes it apart.

    Examples:
        >>> import torch
        >>> rule = rule_of(torch.ops.aten.addmm.default, Scope(CUDA_AUTOCAST, inside=True))
        >>> rule.name, rule.positions, rule.run.name
        ('addmm', (0, 1, 2), 'LOWER')
    """
    schema = operation._schema
    name = schema.name.partition("::")[2]
    base = name.removesuffix("_")
    tensors = [(i, a) for i, a in enumerate(schema.arguments) if "Tensor" in str(a.type)]
    if base in LIKE_INPUT:
        tensors = [(i, a) for i, a in tensors if a.name in ("input", "grad_out", "grad_output")]
    positions = tuple(i for i, a in tensors if not a.kwarg_only)
    writes = [(i, a) for i, a in tensors if a.alias_info and a.alias_info.is_write]
    written = [a.name if a.kwarg_only else i for i, a in writes]
    aliases = [result.alias_info for result in schema.returns]
    single = all(str(a.type) == "Tensor" and not a.kwarg_only for _, a in tensors)
    run, reason, listed = run_of(name, scope=scope, written=bool(written))
    return Rule(
        name=base,
        call=operation._op,
        positions=positions,
        keywords=tuple(a.name for _, a in tensors if a.kwarg_only),
        written=written[0] if written else None,
        view=name in UNSAFE_VIEWS or any(a and not a.is_write for a in aliases),
        composite=composite,
        run=run,
        reason=reason,
        listed=listed,
        exact=base in EXACT,
        one_result=base in ONE_RESULT,
        plain=single and positions == tuple(range(len(positions))),
        follows=base in ("detach", "expand"),
    )
