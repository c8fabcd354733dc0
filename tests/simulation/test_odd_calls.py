"""What the simulation says to odd calls: the function and the argument, by name."""

from collections.abc import Iterable
from functools import cache, partial

import numpy as np
import torch
from odd_calls import ODD, Asked, front_test, refusal_test, without
from torch import nn

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP8_E8M0, FP16, FP32, Format, Overflow, Rounding, Stream
from mplab import simulation as lab
from mplab.scaling import CurrentScaling, ScaleRule

WIDE = Format("wide", exponent_bits=11, precision=20)
FORMAT = ("format", (FP8_E8M0, WIDE, torch.float16))
COUNT = ("count",)
MODULE = ("object", (None, nn.Linear, torch.ones(2)))
POLICY = ("object", (None, "cuda-autocast", lab.Policy))
CALLABLE = tuple(x for x in ODD["object"] if not callable(x))
STREAM = ("object", (0, Rounding))
DTYPE = ("object", (FP16, "float32", torch.int32, torch.complex64, torch.bool))
DEVICE = (without("object", 0, 1), ("no", "cuda:99", 1.5, -1, True, FP16))
SCALING = ("word", ("Current", None, "mx", ["current"], lab.Scaling, lab.SCALINGS))
OPTIONAL = (without("format", None), (FP8_E8M0, WIDE, torch.float16))
CAST = lab.SCALINGS["mxfp8"].input
CASTS = ("object", (None, lab.Cast, FP8_E4M3, lab.SCALINGS["mxfp8"]))
OPERATIONS = (tuple(ODD["object"]), ("mm", None, {"mm"}, ["mm"], frozenset([1])))
NAMES = (
    tuple(x for x in ODD["object"] if not isinstance(x, list | tuple | np.ndarray | dict | set)),
    ("mm", None, [1], [None], ["no_such_operation"], b"mm", np.ones(2), [""], np.array(1)),
)
X = torch.ones(1, 2)
FP8 = {
    "scaling": "current",
    "forward_format": FP8_E4M3,
    "backward_format": FP8_E5M2,
    "amax_history_len": 2,
    "real": False,
}
FP8_KINDS = {
    "scaling": SCALING,
    "forward_format": OPTIONAL,
    "backward_format": OPTIONAL,
    "amax_history_len": ("count", (0,)),
    "real": "switch",
}


def layer():
    """A linear layer, cheap."""
    return nn.Linear(2, 2)


def delayed(method):
    """A method of a layer that learns its scales."""
    return lambda **told: getattr(lab.Fp8Linear(2, 2, scaling="delayed"), method)(**told)


def added(model, x):
    """A loss."""
    return model(x).sum()


def measured(loss=added):
    """How sensitive a linear layer is."""
    return lab.sensitivity(layer(), [X], loss, [FP16], progress=False)


once = cache(measured)
STATE = lab.Fp8Linear(2, 2, scaling="delayed").get_extra_state()
EVERYTHING = [
    Asked(
        "simulated",
        lab.simulated,
        {"fmt": FP16, "policy": lab.CPU_AUTOCAST, "rounding": Rounding.STOCHASTIC,
         "overflow": Overflow.IEEE, "stream": Stream(1), "tally": True, "model": layer()},
        {"fmt": FORMAT, "policy": POLICY, "rounding": "member", "overflow": "member",
         "stream": (*STREAM, (None,)), "tally": "switch", "model": (without("object", None),)},
    ),
    Asked("simulated", lab.simulated, {"fmt": FP16, "stream": None}, {"stream": STREAM}),
    Asked("simulated", lambda policy: lab.simulated(FP16, policy=policy),
          {"policy": lab.CPU_AUTOCAST},
          {"policy": ((lab.CPU_AUTOCAST.with_layers({"head": WIDE}),
                       lab.CPU_AUTOCAST.with_layers({"head": FP8_E8M0})),)}),
    Asked(
        "explain",
        lambda model, fmt, policy: lab.explain(model, X, fmt=fmt, policy=policy),
        {"model": layer(), "fmt": FP16, "policy": lab.CPU_AUTOCAST},
        {"model": MODULE, "fmt": FORMAT, "policy": POLICY},
    ),
    Asked(
        "explain",
        lambda loss: lab.explain(layer(), X, target=X, loss=loss),
        {"loss": nn.functional.mse_loss},
        {"loss": (tuple(x for x in CALLABLE if x is not None), ("mse_loss", FP16))},
    ),
    Asked("explain", lambda target: lab.explain(layer(), X, target=target), {"target": None},
          {"target": ((X, 1, "no"),)}),
    Asked(
        "Policy",
        lab.Policy,
        {"name": "mine", "source": "me", "lower": frozenset({"mm"}), "wide": frozenset({"exp"}),
         "output": frozenset({"add"}), "inside": lab.Run.LOWER, "outside": lab.Run.WIDE,
         "layers": (("head", FP16), (nn.Linear, FP32))},
        {"name": (without("object", "no", "", "1e"), (None,)),
         "source": (without("object", "no", "", "1e"), (None,)),
         "lower": (*OPERATIONS, (frozenset({"exp"}),)),
         "wide": (*OPERATIONS, (frozenset({"mm"}),)),
         "output": (*OPERATIONS, (frozenset({"mm"}),)),
         "inside": ("object", (None, "runs in FP32", lab.Run)),
         "outside": ("object", (None, "LOWER")),
         "layers": (tuple(x for x in ODD["object"] if not (isinstance(x, tuple) and not x)),
                    (None, {"head": FP16}, (("head", "FP16"),), ((1, FP16),), (("head",),),
                     ("head", FP16), [("head", FP16)]))},
        {"lower": ("wide", "output"), "wide": ("lower",), "output": ("lower", "wide")},
    ),
    Asked(
        "with_layers",
        lab.CPU_AUTOCAST.with_layers,
        {"formats": {"head": FP16}},
        {"formats": (tuple(x for x in ODD["object"] if not isinstance(x, dict)),
                     (None, [("head", FP16)], {1: FP16}, {None: FP16}, {"head": None},
                      {"head": "FP16"}, {"head": torch.float16}, {True: FP16}))},
        {"formats": ("fmt",)},
    ),
    Asked(
        "with_operations",
        lab.CPU_AUTOCAST.with_operations,
        {"lower": ["exp"], "wide": ["mm"]},
        {"lower": (*NAMES, (["mm"],)), "wide": (*NAMES, (["exp"],))},
        {"lower": ("wide",), "wide": ("lower",)},
    ),
    Asked(
        "choice",
        lambda name: lab.CPU_AUTOCAST.with_layers({"head": FP16}).choice(name, layer()),
        {"name": "head"},
        {"name": (without("object", "no", "", "1e"), (None,))},
    ),
    Asked(
        "Fp8Linear",
        lab.Fp8Linear,
        {"in_features": 2, "out_features": 2, "bias": True, **FP8, "device": None, "dtype": None},
        {"in_features": COUNT, "out_features": COUNT, "bias": "switch", **FP8_KINDS,
         "device": DEVICE, "dtype": DTYPE},
    ),
    Asked("Fp8Linear", lambda input: lab.Fp8Linear(2, 2)(input), {"input": X},
          {"input": ("object", (None, [[1.0, 2.0]], np.ones((1, 2), np.float32), torch.ones(3),
                                torch.ones(1, 2, dtype=torch.complex64), X.bool(), X.int()))}),
    Asked("Fp8Linear.from_linear", lab.Fp8Linear.from_linear, {"layer": layer(), **FP8},
          {"layer": ("object", (None, nn.ReLU(), nn.Linear)), **FP8_KINDS}),
    Asked("Fp8Linear.scale_of", delayed("scale_of"), {"role": "input", "tensor": X},
          {"role": ("word", (None, "output")), "tensor": ("object", (None, 1.0, X.numpy(),
                                                                    X.int(), X.bool()))}),
    Asked("Fp8Linear.set_extra_state", delayed("set_extra_state"), {"state": STATE},
          {"state": ("object", (None, {}, {"input": STATE["input"]}, {**STATE, "weight": None},
                                {**STATE, "more": 1}))}),
    Asked("Cast", lab.Cast,
          {"fmt": FP8_E4M3, "scale": ScaleRule.RCEIL, "block": (1, 32),
           "rounding": Rounding.TIES_TO_EVEN},
          {"fmt": FORMAT,
           "scale": ("object", (None, "current", 1.0, ScaleRule, CurrentScaling(BF16))),
           "block": (without("object"), (None, (1,), (0, 32), (1.0, 32), (True, 32), (1, "a"),
                                         (1, 2, 3), [1, 32])),
           "rounding": ("member", (None,))}),
    Asked("Scaling", lab.Scaling,
          {"name": "mine", "input": CAST, "weight": CAST, "grad_output": CAST, "hadamard": False,
           "keep_ends": False},
          {"name": (without("object", "no", "", "1e"), (None,)), "input": CASTS, "weight": CASTS,
           "grad_output": CASTS, "hadamard": "switch", "keep_ends": "switch"}),
    Asked("conversion", lab.conversion, {"model": layer()}, {"model": MODULE}),
    Asked("convert_linears", lab.convert_linears,
          {"model": nn.Sequential(layer()), **FP8, "filter": None},
          {"model": MODULE, **FP8_KINDS, "filter": (CALLABLE,)}),
    Asked("sensitivity", partial(lab.sensitivity, loss=added),
          {"model": layer(), "batches": [X], "formats": [FP16], "policy": lab.CPU_AUTOCAST,
           "layers": ["Linear"], "steps": 1, "loss_scale": 2.0, "progress": False},
          {"model": MODULE, "policy": POLICY, "steps": (without("count", None), (0,)),
           "progress": "switch",
           "batches": (tuple(x for x in ODD["object"] if not isinstance(x, Iterable)),
                       (None, [], (), "batch", b"batch", {"x": X}, X, iter(()), 5)),
           "formats": (tuple(ODD["object"]), (None, FP16, "FP16", [FP8_E8M0], [FP16, WIDE], {})),
           "layers": (without("object", None), ("Linear", ["linear"], [None], [1], [])),
           "loss_scale": ("real", (0, -1.0))}),
    Asked("sensitivity", measured, {"loss": added},
          {"loss": (CALLABLE, (None, lambda model, x: 1.0, lambda model, x: model(x),
                               lambda *given: added(*given).detach(),
                               lambda *given: added(*given) * np.inf,
                               lambda *given: added(*given) * np.nan))}),
    Asked("find_policy", lambda **told: once().find_policy(**told),
          {"budget": 0.1, "gradient_budget": 0.1, "progress": False},
          {"budget": ("real", (-1.0,)), "gradient_budget": ("real", (-1.0,)),
           "progress": "switch"}),
]  # fmt: skip
NO_FUNCTIONS = {"CPU_AUTOCAST", "CUDA_AUTOCAST", "EVERYTHING", "Explanation", "KERAS_MIXED"}
NO_FUNCTIONS |= {"FoundPolicy", "POLICIES", "Run", "SCALINGS", "Sensitivity"}


test_every_odd_call_is_refused_by_name = refusal_test(EVERYTHING)
test_every_name_of_the_front_is_asked = front_test(EVERYTHING, lab, but=NO_FUNCTIONS, least=700)


def test_what_is_right_though_unusual_stays_right():
    assert lab.Fp8Linear(np.int64(2), 2, np.bool_(False), device="cpu").bias is None
    assert lab.Fp8Linear(2, 2, device="meta", dtype=torch.bfloat16).weight.is_meta
    assert lab.CPU_AUTOCAST.with_layers({}) == lab.CPU_AUTOCAST
    assert "mm" in lab.CPU_AUTOCAST.with_operations(wide=(name for name in ("mm",))).wide
    assert lab.simulated(BF16, tally=np.bool_(False), stream=Stream(1)).by_operation == {}
    assert lab.explain(layer(), X, fmt=FP32).rows
