"""Convert the linear layers of any model to low precision, and list which were converted."""

import logging
from collections.abc import Callable

from torch import nn

from mplab.numbers.formats import Format
from mplab.scaling.amax import DelayedScaling
from mplab.simulation.casts import Scaling, scaling_with_formats
from mplab.simulation.fp8 import Fp8Linear

_log = logging.getLogger(__name__)

_MULTIPLY = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""The layers among which the first and the last of a model are found."""

_NO_PRODUCT = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)
"""Modules whose weight may be a matrix but is not multiplied as one."""


def convert_linears(
    model: nn.Module,
    *,
    scaling: str | Scaling = "current",
    forward_format: Format | None = None,
    backward_format: Format | None = None,
    amax_history_len: int = 16,
    real: bool = False,
    filter: Callable[[str, nn.Linear], bool] | None = None,
) -> nn.Module:
    """Replace the linear layers of a model by `Fp8Linear`, in place.

    Parameters, buffers and hooks stay the same objects: an optimizer made before stays valid. An
    `Fp8Linear` whose operands are cast in another way is replaced, too, with new scales.
    Subclasses of `nn.Linear` are left alone, such as the projection in
    `nn.MultiheadAttention`, whose weight is used without calling the layer. In evaluation
    `nn.TransformerEncoder` and its layers would do the same: those with a converted layer no
    longer take torch's fast path. `conversion` lists the layers that were converted and those left
    as they are; so does the log "mplab.simulation.linears" at INFO.

    Args:
        model: any module; if it is a linear layer itself, only the return value is converted.
        scaling: as in `Fp8Linear`.
        forward_format: as in `Fp8Linear`.
        backward_format: as in `Fp8Linear`.
        amax_history_len: as in `Fp8Linear`.
        real: as in `Fp8Linear`.
        filter: filter(name, layer) says whether to convert a layer. None converts all; a scaling
            that keeps the ends, such as "nvfp4", leaves the first and the last linear or
            convolutional layer as they are, even if they were converted before.

    Returns:
        The model.

    Raises:
        ValueError: as in `Fp8Linear`; no layer to convert, and none already converted.

    Examples:
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> convert_linears(model, filter=lambda name, layer: name != "2")
        Sequential(
          (0): Fp8Linear(in_features=8, out_features=4, bias=True, FP8_E4M3/FP8_E5M2, \
current scaling, simulated)
          (1): ReLU()
          (2): Linear(in_features=4, out_features=2, bias=True)
        )
    """
    chosen = scaling_with_formats(
        "convert_linears", scaling, forward_format, backward_format, real
    )
    ends = _ends(model) if chosen.keep_ends else []
    wanted = filter or (lambda _, layer: layer not in ends)
    made: dict[nn.Module, Fp8Linear] = {}  # a layer may have several names
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if type(layer) not in (nn.Linear, Fp8Linear) or not wanted(name, layer):
            continue
        if isinstance(layer, Fp8Linear) and _is_cast(
            layer, chosen, amax_history_len, real
        ):
            continue
        if layer not in made:
            made[layer] = Fp8Linear.holding(layer, chosen, amax_history_len, real)
        if not name:
            model = made[layer]
            break
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made[layer])
    if not made and not any(isinstance(layer, Fp8Linear) for layer in model.modules()):
        found = [
            f"{n or 'model'} ({type(part).__name__})"
            for n, part in model.named_modules()
        ]
        kept = "the first and the last layer" if chosen.keep_ends else "no layer"
        raise ValueError(
            f"convert_linears: model must have an nn.Linear itself that filter lets pass; got "
            f"{', '.join(found[-9:])}. Subclasses stay as they are; without a filter "
            f"{chosen.name!r} keeps {kept}."
        )
    _call_layers(model)
    _log.info("%s", conversion(model))
    return model


def conversion(model: nn.Module) -> str:
    """List the linear layers of a model that were converted, and those left as they are.

    The latter include every other module with a matrix called weight, such as `Conv1D` of
    transformers, but no embeddings and no norms.

    Examples:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        >>> print(conversion(convert_linears(model, scaling="nvfp4")))
        FP4_E2M1/FP4_E2M1, nvfp4 scaling, simulated: 1; Linear: 0, 2
    """
    found: dict[str, list[str]] = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        weight = layer._parameters.get("weight")
        matrix = weight is not None and weight.ndim == 2
        if isinstance(layer, Fp8Linear):
            kind = layer.words()
        elif isinstance(layer, nn.Linear) or (
            matrix and not isinstance(layer, _NO_PRODUCT)
        ):
            kind = type(layer).__name__
        else:
            continue
        found.setdefault(kind, []).append(name or "model")
    parts = [f"{kind}: {', '.join(names)}" for kind, names in sorted(found.items())]
    return "; ".join(parts)


def _is_cast(layer: Fp8Linear, chosen: Scaling, length: int, real: bool) -> bool:
    """Whether a layer's operands are cast in this way already."""
    delayed = [s for s in layer.scalings.values() if isinstance(s, DelayedScaling)]
    same = (layer.how, layer.real) == (chosen, real)
    return same and all(s._history.maxlen == length for s in delayed)


def _call_layers(model: nn.Module) -> None:
    """Make torch's encoders call their linear layers, which they bypass in evaluation.

    Source:
        The conditions of the fast path in torch/nn/modules/transformer.py.
    """
    for module in model.modules():
        if any(isinstance(layer, Fp8Linear) for layer in module.modules()):
            # 0 stands for an activation that the fast path does not know.
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0
            elif isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False


def _ends(model: nn.Module) -> list[nn.Module]:
    """The first and the last layer that multiplies."""
    layers: list[nn.Module] = [
        layer for layer in model.modules() if isinstance(layer, _MULTIPLY)
    ]
    return layers[:1] + layers[-1:]
