"""How a task is trained: which formats, which loss scale, which rounding of the weights."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mplab.numbers.checks import named_format, number_that, one_of, switch, text
from mplab.numbers.formats import BF16, FP8_E4M3, FP16, FP32, Format
from mplab.scaling.loss import LossScaler
from mplab.scaling.rules import DoublingScaler, FlooredScaler, KerasScaler
from mplab.simulation.casts import SCALINGS
from mplab.simulation.checks import facts_of
from mplab.simulation.policies import CUDA_AUTOCAST, EVERYTHING, POLICIES

UPDATE_ROUNDINGS = ("nearest", "stochastic", "kahan")
"""How a new weight enters the format that weights are kept in."""

SCALE_RULES: dict[str, type[LossScaler]] = {
    "torch": LossScaler,
    "doubling": DoublingScaler,
    "floored": FlooredScaler,
    "keras": KerasScaler,
}
"""How the loss scale follows overflows, by name; see `mplab.scaling`."""


@dataclass(frozen=True)
class Recipe:
    """In which formats a task is trained, and with which loss scale.

    Args:
        name: how the recipe is called.
        compute_format: the format of the operations that mixed precision lowers.
        simulated: rounded in software, in any format; otherwise torch itself computes, in
            FP32 plainly, in FP16 and BF16 by `torch.amp`.
        policy: which operations a simulation lowers, a name in `mplab.simulation.POLICIES`.
        device: where it runs; None takes CUDA if there is one for torch's own mixed
            precision, else the CPU.
        init_scale: the first loss scale; None trains without one.
        dynamic: whether the scale follows overflows and skips their steps.
        scale_rule: how a dynamic scale follows them, a name in `SCALE_RULES`.
        growth_factor: as in `LossScaler`; of other rules, it is their own.
        backoff_factor: likewise.
        growth_interval: as in `LossScaler`.
        weight_format: the format that weights are kept in between steps; FP32 is what mixed
            precision calls master weights.
        optimizer_format: the format of the optimizer's arithmetic and of its state.
        update_rounding: how a new weight enters `weight_format`: to the nearest; at random,
            right on average; or to the nearest with the error kept in a second number of
            that format for the next update, as in Kahan's summation.
        max_norm: the norm that the gradients are clipped to, after they are unscaled; None
            does not clip.
        fp8: the operands of linear layers have eight bits or fewer, and all else is FP32: a
            name in `mplab.simulation.SCALINGS`, such as "current" or "nvfp4". The layers are
            those that `convert_linears` converts without a filter.
        checkpointing: forget the activations in the forward pass, and compute them again in
            the backward pass.
        native: round between the steps of a kernel, and add in the order, in which torch's
            own do on the CPU; see `simulated`.

    Raises:
        TypeError: an argument of another type.
        ValueError: the parts do not go together, or a number is out of its range.

    Examples:
        >>> Recipe("pure", FP16, weight_format=FP16, optimizer_format=FP16, init_scale=8.0)
        Traceback (most recent call last):
        ...
        ValueError: Recipe: init_scale must be None where torch keeps FP16 weights, whose \
gradients its GradScaler refuses; got 8.0. Keep weights in FP32, or set simulated=True.
    """

    name: str
    compute_format: Format
    simulated: bool = False
    policy: str = CUDA_AUTOCAST.name
    device: str | None = None
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
    checkpointing: bool = False
    native: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        self._check_scale()
        if self.fp8 is not None:
            self._check_fp8()
        if self.max_norm is not None:
            number_that(
                "Recipe", "max_norm", self.max_norm, "positive or None", lambda norm: norm > 0
            )
        if self.scale_rule != "torch" and (self.init_scale is None or not self.dynamic):
            rule = "'torch' without a dynamic loss scale"
            raise _invalid("scale_rule", rule, self.scale_rule, "Set init_scale.")
        if self.update_rounding != "nearest" and self.weight_format == FP32:
            rule = "'nearest' for weights in FP32, which keep every update"
            raise _invalid(
                "update_rounding", rule, self.update_rounding, "Set weight_format, say to BF16."
            )
        if not self.simulated:
            self._check_real()

    def _check_types(self) -> None:
        """Refuse what is of another type, or none of the known words."""
        for field in fields(self):  # NumPy's scalars become Python's, which JSON has
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
        text("Recipe", "name", self.name)
        for name in ("simulated", "dynamic", "checkpointing", "native"):
            switch("Recipe", name, getattr(self, name))
        if self.device is not None and not text("Recipe", "device", self.device):
            raise _invalid("device", "the name of a device, or None", "", "Use 'cpu'.")
        check = facts_of if self.simulated else named_format
        for name in ("compute_format", "weight_format", "optimizer_format"):
            check("Recipe", name, getattr(self, name))
        for name, known in (
            ("policy", POLICIES),
            ("scale_rule", SCALE_RULES),
            ("update_rounding", UPDATE_ROUNDINGS),
            ("fp8", (None, *SCALINGS)),
        ):
            one_of("Recipe", name, getattr(self, name), known)

    def _check_scale(self) -> None:
        """Refuse numbers with which no loss scale begins or moves, also where there is none."""
        try:
            self._torch_scaler(1.0 if self.init_scale is None else self.init_scale)
            self.scaler()
        except (TypeError, ValueError) as error:
            words = str(error).partition(": ")[2]
            raise type(error)(f"Recipe: {words}") from None

    def _check_fp8(self) -> None:
        """Refuse what does not go with linear layers of few bits."""
        low = SCALINGS[str(self.fp8)]
        if self.compute_format != low.input.fmt:
            rule = f"{low.input.fmt.name} with fp8={self.fp8!r}"
            raise _invalid("compute_format", rule, self.compute_format, "Leave fp8 out.")
        if self.policy != CUDA_AUTOCAST.name:
            rule = "left out with low linear layers, beside which all is FP32"
            raise _invalid("policy", rule, self.policy, "Leave fp8 out.")
        if self.native:
            rule = "False with low linear layers, which round for themselves"
            raise _invalid("native", rule, True, "Leave it out.")
        if self.checkpointing and self.fp8 == "delayed":
            rule = "False with delayed scaling, which would count each tensor twice"
            raise _invalid("checkpointing", rule, True, "Use fp8='current'.")

    def _check_real(self) -> None:
        """Refuse what torch's own arithmetic has not."""
        if self.native:
            raise _invalid("native", "False for torch's own arithmetic, which is native", True)
        if self.policy != CUDA_AUTOCAST.name:
            rule = "left out for torch's own arithmetic, which has its own"
            raise _invalid("policy", rule, self.policy)
        if self.fp8 is not None and not SCALINGS[self.fp8].is_real():
            names = ", ".join(name for name, way in SCALINGS.items() if way.is_real())
            raise _invalid("fp8", f"one of {names} for torch's own arithmetic", self.fp8)
        if self.scale_rule != "torch":
            raise _invalid("scale_rule", "'torch' for torch's own arithmetic", self.scale_rule)
        if self.fp8 is None and self.compute_format not in (FP32, FP16, BF16):
            rule = "FP32, FP16 or BF16 for torch's own arithmetic"
            raise _invalid("compute_format", rule, self.compute_format)
        if self.init_scale is not None and not self.dynamic:
            rule = "True for torch's own arithmetic, since torch.amp.GradScaler has no static scale"
            raise _invalid("dynamic", rule, False)
        if self.weight_format not in (FP32, self.compute_format):
            rule = f"FP32 or {self.compute_format.name}, as torch computes in the weights' format"
            raise _invalid("weight_format", rule, self.weight_format)
        if self.optimizer_format != self.weight_format:
            rule = f"{self.weight_format.name} as the weights, which torch's optimizers follow"
            raise _invalid("optimizer_format", rule, self.optimizer_format)
        if self.update_rounding != "nearest":
            rule = "'nearest' for torch's own arithmetic"
            raise _invalid("update_rounding", rule, self.update_rounding)
        if self.weight_format != FP32 and self.init_scale is not None:
            raise _invalid(
                "init_scale",
                f"None where torch keeps {self.weight_format.name} weights, whose gradients its "
                "GradScaler refuses",
                self.init_scale,
                "Keep weights in FP32, or set simulated=True.",
            )

    def scaler(self) -> LossScaler:
        """A fresh loss scaler; one that stays at 1 for a recipe without a scale."""
        if self.init_scale is None:
            return LossScaler(1.0, dynamic=False)
        if self.scale_rule == "doubling":
            return DoublingScaler(self.init_scale)
        if self.scale_rule != "torch":
            rule: Any = SCALE_RULES[self.scale_rule]
            return rule(self.init_scale, growth_interval=self.growth_interval)  # type: ignore[no-any-return]
        return self._torch_scaler(self.init_scale)

    def _torch_scaler(self, scale: float) -> LossScaler:
        return LossScaler(
            scale,
            growth_factor=self.growth_factor,
            backoff_factor=self.backoff_factor,
            growth_interval=self.growth_interval,
            dynamic=self.dynamic,
        )

    def settings(self) -> dict[str, Any]:
        """All that decides what the recipe does, as JSON has it: formats by their names.

        Examples:
            >>> RECIPES["bf16-kahan"].settings()["weight_format"]
            'BF16'
        """
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "name"}
        return {k: v.name if isinstance(v, Format) else v for k, v in values.items()}


def _invalid(argument: str, rule: str, value: Any, cure: str = "Set simulated=True.") -> ValueError:
    given = value.name if isinstance(value, Format) else repr(value)
    return ValueError(f"Recipe: {argument} must be {rule}; got {given}. {cure}")


# The table -------------------------------------------------------------------------------
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
        replace(
            _FP16,
            name="fp16-pure",
            policy=EVERYTHING.name,
            weight_format=FP16,
            optimizer_format=FP16,
        ),
        # BF16: small updates are lost unless the weights are wider, or the rounding careful.
        _BF16,
        replace(
            _BF16,
            name="bf16-pure",
            policy=EVERYTHING.name,
            weight_format=BF16,
            optimizer_format=BF16,
        ),
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
        Recipe("torch-fp16-pure", FP16, weight_format=FP16, optimizer_format=FP16),
        Recipe("torch-bf16-pure", BF16, weight_format=BF16, optimizer_format=BF16),
    )
}
"""The named recipes. Those that begin with "amp" or "torch", and fp32, are torch's own
arithmetic; the others are simulated."""
