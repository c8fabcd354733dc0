"""Which operation runs in which format under mixed precision, as data.

Names are those of torch's operations below autograd, where `mplab.simulate` sees them.
"""

from __future__ import annotations

from typing import Any, NamedTuple


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOWER = _names(
    """
    mm addmm addmv addr mv bmm baddbmm addbmm conv_tbc convolution _convolution
    cudnn_convolution cudnn_convolution_transpose mkldnn_convolution _prelu_kernel
    _thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_rnn_layer _cudnn_rnn
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    """
)
"""Run in the low format, their inputs rounded to it first.

Source: AT_FORALL_LOWER_PRECISION_FP in ATen/autocast_mode.h of torch 2.13, which CUDA follows.
"""

WIDE = _names(
    """
    acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh tan
    softplus native_layer_norm native_group_norm _fused_rms_norm
    nll_loss_forward nll_loss2d_forward smooth_l1_loss huber_loss mse_loss
    multilabel_margin_loss_forward soft_margin_loss multi_margin_loss binary_cross_entropy
    binary_cross_entropy_with_logits dist _pdist_forward _cdist_forward _euclidean_dist
    renorm logsumexp norm linalg_vector_norm prod sum cumprod cumsum _softmax _log_softmax
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
    upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa
    """
)
"""Run in FP32.

Source: AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE and AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE
in the same file. Beyond them `binary_cross_entropy`, which autocast refuses on CUDA.
"""

LIKE_INPUT = _names(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update
    cudnn_batch_norm native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward
    """
)
"""Run in the format of their input, whatever that of the weights and statistics."""

ONE_RESULT = LIKE_INPUT | {name for name in LOWER if name.startswith("_scaled_dot_product")}
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


class Rule(NamedTuple):
    """What is known of an operation from its schema and from the sets above."""

    name: str
    positions: tuple[int, ...]
    """Arguments that are tensors or lists of tensors, and count for the format."""
    keywords: tuple[str, ...]
    """The same among arguments that go by name."""
    written: int | str | None
    """The argument that is written to, if any; autocast lists no such operation."""
    view: bool
    composite: bool
    lower: bool
    wide: bool
    exact: bool
    one_result: bool
    plain: bool
    """Whether the tensors are just the first arguments, one each."""


def rule_of(operation: Any) -> Rule:
    """The rule of an operation, which is a `torch._ops.OpOverload`.

    Examples:
        >>> import torch
        >>> rule = rule_of(torch.ops.aten.addmm.default)
        >>> rule.name, rule.positions, rule.lower
        ('addmm', (0, 1, 2), True)
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
    return Rule(
        name=base,
        positions=positions,
        keywords=tuple(a.name for _, a in tensors if a.kwarg_only),
        written=written[0] if written else None,
        view=name in UNSAFE_VIEWS or any(a and not a.is_write for a in aliases),
        composite=operation._can_decompose(),
        lower=name in LOWER and not written,
        wide=name in WIDE,
        exact=base in EXACT,
        one_result=base in ONE_RESULT,
        plain=single and positions == tuple(range(len(positions))),
    )
