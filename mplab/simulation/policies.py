"""Policies of mixed precision: which operation runs in which format, as data.

A `Policy` is a table of operations and of layers. Names are those of torch's dispatcher, of
functions such as `linear` and of the kernels that they become. The tables are `CUDA_AUTOCAST`,
`CPU_AUTOCAST`, `KERAS_MIXED` and `EVERYTHING`, and those you derive from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from itertools import combinations

from mplab.numbers.checks import one_of, quoted
from mplab.numbers.formats import Format, FormatLike, format_of


def names_in(text: str) -> frozenset[str]:
    """The words of a text, as a set of names."""
    return frozenset(text.split())


class Run(Enum):
    """How an operation runs; the low format is the context's or the layer's."""

    LOWER = "runs in the low format"
    WIDE = "runs in FP32"
    WIDEST = "runs in the widest format of its inputs"
    OUTPUT = "runs in FP32, its result in the low format"


ATTENTION = names_in(
    """
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    """
)
"""The operations that `scaled_dot_product_attention` becomes."""


# Policies ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Policy:
    """Which operation and which layer runs in which format.

    Under every policy `.grad`, loss scaling, clipping and the optimizer stay FP32, and an in-place
    operation keeps the format of the tensor it writes to. Where `inside` or `outside` lowers
    operations that no list names, results without dimensions stay FP32, and so does what runs
    without gradients outside modules.

    Args:
        name: the policy's name in `POLICIES`, in a `Recipe`, and in the files of runs.
        source: the source of its table.
        lower: operations that round their inputs to the low format and run in it.
        wide: operations that run in FP32.
        output: operations that run in FP32 and round their result to the low format.
        widest: operations that run in the widest format of their inputs, the others cast to it.
        inside: how other operations run in a module.
        outside: how other operations run outside all modules.
        layers: the low format of modules, by name, pattern or class; FP32 runs all their
            operations in FP32.
        kernels: "cpu" or "cuda": whose low kernels are followed.
        written: whether the dtypes that the program writes decide, and not these lists.

    Raises:
        ValueError: an operation is on two of the lists; a list is not a frozenset; `inside` or
            `outside` is not a `Run`; `kernels` is neither of its names; a layer is chosen where
            dtypes decide.

    Examples:
        >>> policy = CUDA_AUTOCAST.with_layers({"head": FP32, "*.norm": FP32})
        >>> policy
        CUDA_AUTOCAST.with_layers({'head': FP32, '*.norm': FP32})
        >>> "softmax" in CUDA_AUTOCAST.wide, "softmax" in CPU_AUTOCAST.wide
        (True, False)
        >>> wider = replace(CPU_AUTOCAST, wide=CPU_AUTOCAST.wide | {"_softmax"})
    """

    name: str
    source: str
    lower: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    output: frozenset[str] = frozenset()
    widest: frozenset[str] = frozenset()
    inside: Run = Run.WIDEST
    outside: Run = Run.WIDEST
    layers: tuple[tuple[str | type, Format], ...] = ()
    kernels: str = "cpu"
    written: bool = False

    def __post_init__(self) -> None:
        for name in ("lower", "wide", "output", "widest"):
            names = getattr(self, name)
            if not isinstance(
                names, frozenset
            ):  # `in` would find parts of names in text
                raise ValueError(
                    f"Policy: {name} must be a frozenset of names of operations; got "
                    f"{quoted(names)}. Use frozenset(['mm'])."
                )
        for name in ("inside", "outside"):
            run = getattr(self, name)
            if not isinstance(run, Run):
                raise ValueError(
                    f"Policy: {name} must be a Run; got {quoted(run)}. Use Run.WIDEST."
                )
        one_of("Policy", "kernels", self.kernels, ("cpu", "cuda"))
        if self.written and self.layers:
            raise ValueError(
                "Policy: layers must be empty where the program's dtypes decide; got a choice. "
                "Write model.head.float() instead."
            )
        _require_apart(
            lower=self.lower, wide=self.wide, output=self.output, widest=self.widest
        )

    def __repr__(self) -> str:
        layers = ", ".join(f"{name_of(key)!r}: {fmt.name}" for key, fmt in self.layers)
        return self.constant + (f".with_layers({{{layers}}})" if layers else "")

    @property
    def constant(self) -> str:
        """The name of the policy's Python constant.

        Examples:
            >>> CUDA_AUTOCAST.name, CUDA_AUTOCAST.constant
            ('cuda-autocast', 'CUDA_AUTOCAST')
        """
        return self.name.upper().replace("-", "_")

    def lists(self) -> list[tuple[Run, frozenset[str]]]:
        """The lists of operations, each with how these run."""
        return [
            (Run.LOWER, self.lower),
            (Run.WIDE, self.wide),
            (Run.OUTPUT, self.output),
            (Run.WIDEST, self.widest),
        ]

    def with_layers(self, formats: Mapping[str | type, FormatLike]) -> Policy:
        """Return the policy with other formats for some layers and all layers within them.

        Of two choices for one layer the later counts; a choice for a layer within another one
        takes precedence over the outer layer's. A layer that is never called, because its parent
        takes its weights alone, as `nn.MultiheadAttention` does with `out_proj`, runs as the
        parent.

        Args:
            formats: the low format, or FP32, by name such as `"head"`, pattern such as
                `"*.norm"`, or class of modules.

        Examples:
            >>> CPU_AUTOCAST.with_layers({"left": FP16, "right": BF16, "fusion": FP32})
            CPU_AUTOCAST.with_layers({'left': FP16, 'right': BF16, 'fusion': FP32})
        """
        chosen = [
            (key, format_of(fmt, function="with_layers"))
            for key, fmt in formats.items()
        ]
        return replace(self, layers=(*self.layers, *chosen))

    def choice(self, name: str, module: object) -> tuple[str, Format] | None:
        """Return the choice for a module itself: the key that fits it, as text, and the format."""
        for key, fmt in reversed(self.layers):
            if fits(key, name, module):
                return name_of(key), fmt
        return None


def _require_apart(**names: frozenset[str]) -> None:
    """Reject an operation that is on two lists."""
    for one, other in combinations(names, 2):
        both = names[one] & names[other]
        if both:
            raise ValueError(
                f"Policy: {one} and {other} must have no operation in common; got "
                f"{quoted(min(both))} in both. Leave it out of one."
            )


def fits(key: str | type, name: str, module: object) -> bool:
    """Whether a key of `Policy.layers` matches this module.

    Examples:
        >>> fits("*.norm", "block.norm", None), fits("norm", "block.norm", None)
        (True, False)
    """
    return fnmatchcase(name, key) if isinstance(key, str) else isinstance(module, key)


def name_of(key: str | type) -> str:
    """A key of `Policy.layers` as text."""
    return key if isinstance(key, str) else key.__name__


LOSSES = names_in(
    """
    nll_loss_forward nll_loss2d_forward smooth_l1_loss huber_loss mse_loss
    multilabel_margin_loss_forward soft_margin_loss multi_margin_loss binary_cross_entropy
    binary_cross_entropy_with_logits hinge_embedding_loss kl_div l1_loss margin_ranking_loss
    cosine_embedding_loss poisson_nll_loss triplet_margin_loss nll_loss nll_loss2d
    multilabel_margin_loss
    """
)
"""Losses on the lists of both autocasts."""

_PRODUCTS = ATTENTION | names_in(
    """
    mm bmm baddbmm addmm addbmm conv_tbc convolution _convolution mkldnn_convolution
    mkldnn_rnn_layer _prelu_kernel prelu linear matmul linalg_vecdot
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    scaled_dot_product_attention
    """
)

CUDA_AUTOCAST = Policy(
    name="cuda-autocast",
    source="AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE and "
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE in ATen/autocast_mode.h of torch 2.13. Beyond "
    "them binary_cross_entropy, which autocast refuses on CUDA, lstm, gru and the like, which "
    "become _cudnn_rnn, and linalg_matrix_sqrth, which torch 2.14 brings.",
    lower=_PRODUCTS
    | names_in(
        """
        mv addmv addr cudnn_convolution cudnn_convolution_transpose _thnn_fused_lstm_cell
        _thnn_fused_gru_cell _cudnn_rnn einsum chain_matmul linalg_multi_dot
        lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
        lstm gru rnn_tanh rnn_relu
        """
    ),
    wide=LOSSES
    | names_in(
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
        upsample_bicubic2d _upsample_bicubic2d_aa linalg_matrix_sqrth
        """
    ),
    widest=names_in(
        "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
    ),
    kernels="cuda",
)
"""What `torch.autocast("cuda")` does: products low; losses, softmax, norms and sums in FP32.

A function that is told a dtype keeps it. So the cross entropy of low logits takes a low
`log_softmax`: torch asks it for the dtype of the logits.
"""

CPU_AUTOCAST = Policy(
    name="cpu-autocast",
    source="The kernels that torch 2.13 and 2.14 register for AutocastCPU, and what they were seen "
    "to do: tests/simulation/test_autocast.py observes each of them.",
    lower=_PRODUCTS | names_in("_addmm_activation"),
    wide=LOSSES
    | names_in(
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
        linalg_eig _linalg_eigvals fake_quantize_per_tensor_affine_cachemask linalg_matrix_sqrth
        fft_fft fft_fft2 fft_fftn fft_ifft fft_ifft2 fft_ifftn fft_rfft fft_rfft2 fft_rfftn
        fft_irfft fft_irfft2 fft_irfftn fft_hfft fft_ihfft
        """
    ),
    widest=names_in("cat stack index_copy"),
)
"""What `torch.autocast("cpu")` does: softmax, layer norm, exp, pow and sums follow their input."""

KERAS_MIXED = Policy(
    name="keras-mixed",
    source="keras 3: DTypePolicy and Layer.__call__, which cast the inputs and variables of each "
    "layer to the compute dtype; LayerNormalization, GroupNormalization and Embedding, which turn "
    "that off and cast their result; BatchNormalization, which keeps its variables in float32; "
    "Loss, whose dtype is float32.",
    wide=LOSSES | {"cross_entropy_loss"},
    output=names_in("native_layer_norm native_group_norm _fused_rms_norm embedding"),
    inside=Run.LOWER,
)
"""What Keras' `mixed_float16` and `mixed_bfloat16` do: each layer in the low format throughout.

For torch modules. A Keras `Dense` rounds its product before it adds the bias: write two operations,
because `nn.Linear` is one, rounded once. Keras' own normalization layers are made of operations
that this table would round one by one.
"""

EVERYTHING = Policy(
    name="everything",
    source="The rule of this package's first experiment: one format, losses excepted.",
    wide=LOSSES | {"cross_entropy_loss"},
    inside=Run.LOWER,
    outside=Run.LOWER,
)
"""Everything in the low format except losses, to show the format alone."""

AS_WRITTEN = Policy(
    name="as-written",
    source="The program's own dtypes, by the rules of the torch that runs it.",
    written=True,
)
"""What the program says: `model.half()`, `x.bfloat16()`, `Linear(dtype=…)`, `torch.autocast`.

Tensors that it made float16, bfloat16 or float8 are real tensors of that dtype, parameters,
gradients and states of the optimizer included. `.float()` widens, dtypes promote, and errors are
raised as torch does it.
"""

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (CUDA_AUTOCAST, CPU_AUTOCAST, KERAS_MIXED, EVERYTHING)
}
"""The policies for programs in FP32, by their names; `AS_WRITTEN` is "as-written"."""

_NAMED = POLICIES | {AS_WRITTEN.name: AS_WRITTEN}


def policy_named(function: str, policy: Policy | str) -> Policy:
    """Return a policy, which may be given by its name in `POLICIES`."""
    if isinstance(policy, Policy):
        return policy
    return _NAMED[one_of(function, "policy", policy, _NAMED)]
