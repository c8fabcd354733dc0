"""Recipes of training: formats, loss scale, and rounding of the weights."""

from dataclasses import dataclass, replace
from typing import Any

from mplab.numbers.checks import one_of
from mplab.numbers.formats import BF16, FP8_E4M3, FP16, FP32, Format, format_of
from mplab.scaling.loss import LossScaler
from mplab.scaling.rules import DoublingScaler, FlooredScaler, KerasScaler
from mplab.simulation.casts import SCALINGS
from mplab.simulation.policies import AS_WRITTEN, CUDA_AUTOCAST, POLICIES

UPDATE_ROUNDINGS = ("nearest", "stochastic", "kahan")
"""How a new weight is rounded to the format that weights are kept in."""

SCALE_RULES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "torch": (
        LossScaler,
        ("growth_factor", "backoff_factor", "growth_interval", "dynamic"),
    ),
    "doubling": (DoublingScaler, ()),
    "floored": (FlooredScaler, ("growth_interval",)),
    "keras": (KerasScaler, ("growth_interval",)),
}
"""How the loss scale reacts to overflows, by name, and its options; see `mplab.scaling`."""


@dataclass(frozen=True)
class Recipe:
    """The formats and the loss scale with which a task is trained.

    Args:
        name: the name of the recipe.
        compute_format: the format of the operations that mixed precision lowers.
        simulated: rounded in software, in any format; otherwise torch itself computes, FP32
            plainly, FP16 and BF16 with `torch.amp`.
        policy: which operations a simulation lowers, a name in `mplab.simulation.POLICIES`; or
            "as-written": torch's own arithmetic, mixed or on low weights, simulated.
        init_scale: the first loss scale; None trains without one.
        dynamic: whether the scale reacts to overflows, and their steps are skipped.
        scale_rule: how a dynamic scale reacts to them, a name in `SCALE_RULES`.
        growth_factor: as in `LossScaler`; other rules have their own.
        backoff_factor: likewise.
        growth_interval: as in `LossScaler`.
        weight_format: the format that weights are kept in between steps; FP32 is what mixed
            precision calls master weights.
        optimizer_format: the format of the optimizer's arithmetic and of its state.
        update_rounding: how a new weight is rounded to `weight_format`: to nearest; at random,
            right on average; or to nearest with the error kept in a second number of that
            format for the next update, as in Kahan's summation.
        max_norm: the norm that the gradients are clipped to, after they are unscaled; None
            does not clip.
        fp8: operands of linear layers have eight bits or fewer, and all else is FP32: a name
            in `mplab.simulation.SCALINGS`, such as "current" or "nvfp4". The layers are those
            that `convert_linears` converts without a filter.

    Raises:
        ValueError: options contradict each other, or a number is out of range.

    Examples:
        >>> Recipe("pure", FP16, weight_format=FP16, optimizer_format=FP16, init_scale=8.0)
        Traceback (most recent call last):
        ...
        ValueError: Recipe: init_scale must be None where torch keeps FP16 weights, whose \
gradients GradScaler refuses; got 8.0. Keep weights in FP32, or set simulated=True.
    """

    name: str
    compute_format: Format
    simulated: bool = False
    policy: str = CUDA_AUTOCAST.name
    init_scale: float | None = None
    dynamic: bool = True
    scale_rule: str = "torch"
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    weight_format: Format = FP32
    optimizer_format: Format = FP32
    update_rounding: str = "nearest"
    max_norm: float | None = None
    fp8: str | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("policy", (*POLICIES, AS_WRITTEN.name)),
            ("scale_rule", SCALE_RULES),
            ("update_rounding", UPDATE_ROUNDINGS),
            ("fp8", (None, *SCALINGS)),
        ):
            one_of("Recipe", name, getattr(self, name), known)
        for name in ("compute_format", "weight_format", "optimizer_format"):
            fmt = format_of(getattr(self, name), function="Recipe")
            object.__setattr__(self, name, fmt)
        self.scaler()  # rejects invalid numbers of the loss scale
        if self.max_norm is not None:
            self._require("max_norm", self.max_norm > 0, "positive or None", "Use 1.0.")
        if self.scale_rule != "torch":
            scaled = self.init_scale is not None and self.dynamic
            rule = "'torch' without a dynamic loss scale"
            self._require("scale_rule", scaled, rule, "Set init_scale.")
        if self.update_rounding != "nearest":
            rule = "'nearest' for weights in FP32, which keep every update"
            low = self.weight_format != FP32
            self._require(
                "update_rounding", low, rule, "Set weight_format, say to BF16."
            )
        if self.fp8 is not None:
            self._check_fp8()
        if not self.simulated or self.policy == AS_WRITTEN.name:
            self._check_real()

    def _require(self, argument: str, holds: bool, rule: str, cure: str = "") -> None:
        if not holds:
            way = "Leave policy out." if self.simulated else "Set simulated=True."
            value = getattr(self, argument)
            given = value.name if isinstance(value, Format) else repr(value)
            raise ValueError(
                f"Recipe: {argument} must be {rule}; got {given}. {cure or way}"
            )

    def _check_fp8(self) -> None:
        """Reject options that do not work with low-precision linear layers."""
        low = SCALINGS[str(self.fp8)].input.fmt
        for name, holds, rule in (
            (
                "compute_format",
                self.compute_format == low,
                f"{low.name} with fp8={self.fp8!r}",
            ),
            (
                "policy",
                self.policy == CUDA_AUTOCAST.name,
                "left out with low linear layers",
            ),
        ):
            self._require(name, holds, rule, "Leave fp8 out.")

    def _check_real(self) -> None:
        """Reject options that torch's own arithmetic does not support."""
        weights = self.weight_format
        computed = self.compute_format
        own = "torch's own arithmetic"
        ways = [name for name, way in SCALINGS.items() if way.is_real()]
        known = self.fp8 is not None or computed in (FP32, FP16, BF16)
        moves = self.init_scale is None or self.dynamic
        alike = self.optimizer_format == weights
        for name, holds, rule in (
            (
                "policy",
                self.simulated or self.policy == CUDA_AUTOCAST.name,
                f"left out for {own}, which has its own",
            ),
            ("fp8", self.fp8 in (None, *ways), f"one of {', '.join(ways)} for {own}"),
            ("scale_rule", self.scale_rule == "torch", f"'torch' for {own}"),
            ("compute_format", known, f"FP32, FP16 or BF16 for {own}"),
            (
                "dynamic",
                moves,
                f"True for {own}: torch.amp.GradScaler has no static scale",
            ),
            (
                "weight_format",
                weights in (FP32, computed),
                f"FP32 or {computed.name} for {own}",
            ),
            ("optimizer_format", alike, f"{weights.name} as the weights for {own}"),
            (
                "update_rounding",
                self.update_rounding == "nearest",
                f"'nearest' for {own}",
            ),
        ):
            self._require(name, holds, rule)
        scaled = weights != FP32 and self.init_scale is not None
        rule = f"None where torch keeps {weights.name} weights, whose gradients GradScaler refuses"
        cure = "Keep weights in FP32, or set simulated=True."
        self._require("init_scale", not scaled, rule, cure)

    def scaler(self) -> Any:
        """Make a loss scaler; for a recipe without a scale it stays at 1."""
        if self.init_scale is None:
            return LossScaler(1.0, dynamic=False)
        rule, options = SCALE_RULES[self.scale_rule]
        return rule(self.init_scale, **{name: getattr(self, name) for name in options})

    def settings(self) -> dict[str, Any]:
        """All options of the recipe except its name, ready for JSON: formats by their names.

        Examples:
            >>> RECIPES["bf16-kahan"].settings()["weight_format"]
            'BF16'
        """
        plain = {}
        for name, value in vars(self).items():
            value = value.item() if hasattr(value, "item") else value  # NumPy's scalars
            plain[name] = value.name if isinstance(value, Format) else value
        del plain["name"]
        return plain


# The table -------------------------------------------------------------------------------
def _all_in(fmt: Format) -> dict[str, Any]:
    return {"weight_format": fmt, "optimizer_format": fmt}


_FP16 = Recipe("fp16-naive", FP16, simulated=True)

_BF16 = Recipe("bf16", BF16, simulated=True)

_KEPT_IN_BF16 = replace(_BF16, name="bf16-weights", weight_format=BF16)

_TOO_HIGH: dict[str, Any] = {"init_scale": 2.0**28, "growth_interval": 25}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("fp32", FP32),
        # FP16: gradients underflow; a scale moves them up; a scale can be too high; and
        # without FP32 weights and an FP32 optimizer all else fails.
        _FP16,
        replace(_FP16, name="fp16-scaled", init_scale=65536.0),
        replace(_FP16, name="fp16-static", init_scale=65536.0, dynamic=False),
        replace(_FP16, name="fp16-overflow", **_TOO_HIGH),
        replace(_FP16, name="fp16-doubling", init_scale=65536.0, scale_rule="doubling"),
        replace(_FP16, name="fp16-pure", policy=AS_WRITTEN.name, **_all_in(FP16)),
        # BF16: small updates are lost unless the weights are wider, or the rounding careful.
        _BF16,
        replace(_BF16, name="bf16-pure", policy=AS_WRITTEN.name, **_all_in(BF16)),
        _KEPT_IN_BF16,
        replace(_KEPT_IN_BF16, name="bf16-stochastic", update_rounding="stochastic"),
        replace(_KEPT_IN_BF16, name="bf16-kahan", update_rounding="kahan"),
        # Eight bits: every tensor needs a scale of its own; or every row, tile or block.
        Recipe("fp8-current", FP8_E4M3, simulated=True, fp8="current"),
        Recipe("fp8-delayed", FP8_E4M3, simulated=True, fp8="delayed"),
        *(
            Recipe(name, SCALINGS[name].input.fmt, simulated=True, fp8=name)
            for name in ("fp8-rowwise", "fp8-blockwise", "mxfp8", "mxfp4", "nvfp4")
        ),
        # torch's own arithmetic
        Recipe("amp-fp16-naive", FP16),
        Recipe("amp-fp16", FP16, init_scale=65536.0),
        Recipe("amp-fp16-overflow", FP16, **_TOO_HIGH),
        Recipe("amp-bf16", BF16),
        Recipe("amp-fp8-current", FP8_E4M3, fp8="current"),
        Recipe("torch-fp16-pure", FP16, **_all_in(FP16)),
        Recipe("torch-bf16-pure", BF16, **_all_in(BF16)),
    )
}
"""The named recipes. Those that begin with "amp" or "torch", and fp32, are torch's own
arithmetic; the others are simulated."""


def recipe_of(recipe: str | Recipe, function: str) -> Recipe:
    """The recipe of a name; a recipe is returned as it is.

    Raises:
        ValueError: `function` was given an unknown name.
    """
    if isinstance(recipe, str):
        return RECIPES[one_of(function, "recipe", recipe, RECIPES)]
    return recipe
