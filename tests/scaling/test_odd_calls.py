"""What the scales say to odd calls: the function and the argument, by name."""

import numpy as np
import torch
from odd_calls import HUGE, ODD, Asked, front_test, refusal_test

from mplab import FP4_E2M1, FP8_E4M3, FP16, Overflow, Rounding
from mplab import scaling as lab
from mplab.scaling import LossScaler, ScaleRule

BAD = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
NEITHER = (0, -1, 1e39, 1e-60)
FACTOR = ("real", (0, 1, -1))
INTERVAL = ("count", (0,))
POSITIVE = ("real", (0, -1))
BLOCK = (
    tuple(x for x in ODD["object"] if not isinstance(x, tuple)),
    (32, "32", (), (3,), (0,), (-2,), (2.0,), (True,), (1, 1, 2), [[2]]),
)
TENSOR = (
    "object",
    (torch.ones(2).int(), torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.complex64)),
    (torch.ones(2).to(torch.float8_e5m2), np.ones(2, np.float32), None),
)
SCALE = (
    "extended",
    (
        0,
        HUGE,
        -HUGE,
        float("inf"),
        -1.0,
        1e39,
        torch.zeros(()),
        torch.ones(3),
        torch.tensor(True),
        torch.tensor(1j),
    ),
)
X = torch.tensor([[0.7, 300.0], [1.0, -2.0]])


def scaler(kind, right, kinds):
    """A rule for the loss scale."""
    first = {"init_scale": ("real", NEITHER)}
    return Asked(kind.__name__, kind, {"init_scale": 8.0, **right}, {**first, **kinds})


def update(kind):
    """What a rule is told at the end of a step."""
    return Asked(
        f"{kind.__name__}.update",
        lambda **told: kind(8.0).update(**told),
        {"found_nonfinite": True, "mean_abs_gradient": 1.0},
        {"found_nonfinite": "switch", "mean_abs_gradient": "extended"},
    )


def state(kind, **changes):
    """A saved state with one entry changed."""
    good = kind().state_dict()

    def load(**entries):
        kind().load_state_dict({**good, **entries})

    return Asked(kind.__name__, load, good, changes)


def scaled(method):
    """A method of `GradScaler` that is given an optimizer."""

    def call(optimizer):
        scaler = lab.GradScaler()
        weight = torch.nn.Parameter(torch.ones(1))
        scaler.scale(weight.sum()).backward()
        mine = torch.optim.SGD([weight], lr=0.5) if optimizer is BAD else optimizer
        return getattr(scaler, method)(mine)

    return Asked(f"GradScaler.{method}", call, {"optimizer": BAD}, {"optimizer": ("object",)})


KINDS = (LossScaler, lab.DoublingScaler, lab.NudgedScaler, lab.FlooredScaler, lab.KerasScaler)
LOSS = [
    scaler(
        LossScaler,
        {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "dynamic": True,
         "static_skips": False},
        {"growth_factor": FACTOR, "backoff_factor": FACTOR, "growth_interval": INTERVAL,
         "dynamic": "switch", "static_skips": "switch"},
    ),
    scaler(lab.DoublingScaler, {"max_scale": 16.0}, {"max_scale": ("real", NEITHER)}),
    scaler(
        lab.NudgedScaler,
        {"small": 1e-7, "nudge": 1.1, "max_scale": 16.0, "growth_interval": 3},
        {"small": POSITIVE, "nudge": POSITIVE, "max_scale": ("real", NEITHER),
         "growth_interval": INTERVAL},
    ),
    scaler(lab.FlooredScaler, {"min_scale": 1.0, "growth_interval": 3},
           {"min_scale": ("real", NEITHER), "growth_interval": INTERVAL}),
    scaler(lab.KerasScaler, {"growth_interval": 3}, {"growth_interval": INTERVAL}),
    *map(update, KINDS),
    *[state(kind, scale=("real", (-1,)), growth_factor=FACTOR, backoff_factor=FACTOR,
            growth_interval=INTERVAL, _growth_tracker="count") for kind in KINDS[:-1]],
    Asked("LossScaler", lambda state_dict: LossScaler().load_state_dict(state_dict),
          {"state_dict": LossScaler().state_dict()}, {"state_dict": ("object", (None,))}),
    *[
        Asked(name, lambda play=play, **told: list(play(LossScaler(8.0), **told)),
              {"limits": [4.0, 4.0, 4.0], "mean_abs_gradient": 1.0},
              {"limits": ("reals", (1.0, np.ones((2, 2)))),
               "mean_abs_gradient": ("reals", ([1.0, 1.0], np.ones((3, 1))))})
        for name, play in (("turns", lab.turns), ("play", lab.play))
    ],
    *[
        Asked(name, lambda rule, play=play: list(play(rule, [4.0])), {"rule": LossScaler(8.0)},
              {"rule": ("object", (None, LossScaler))})
        for name, play in (("turns", lab.turns), ("play", lab.play))
    ],
    Asked("GradScaler", lab.GradScaler, {"rule": None}, {"rule": ("object", (LossScaler,))}),
    Asked("GradScaler.scale", lambda outputs: lab.GradScaler().scale(outputs),
          {"outputs": torch.ones(())},
          {"outputs": ((1.0, None, "loss", len, True, np.bool_(True), 1j, slice(None), [1.0]),)}),
    scaled("unscale_"),
    scaled("step"),
]  # fmt: skip
SWITCHES = {"margin": 0, "power_of_two": True}
AMAX = ("extended", (-1.0, -HUGE))
AMAXES = ("reals", (-1.0, np.array([1.0, -1.0]), -HUGE, torch.ones(2, dtype=torch.bool)))
HISTORY = (
    tuple(x for x in ODD["object"] if not isinstance(x, list | tuple)),
    (["no"], [-1.0], [None], [True], [[1.0]]),
)
STATE = (None, 5, "no", [1], {1: 2}, {"scale": 1.0, "more": 2})
TENSORS = [
    Asked(
        "scale_for",
        lab.scale_for,
        {"amax": 3.0, "fmt": FP8_E4M3, "rule": ScaleRule.MX, "margin": 0},
        {"amax": AMAXES, "fmt": "format", "rule": ("member", ("MX",)),
         "margin": ("whole", (0.5,))},
    ),
    Asked("FixedScaling", lab.FixedScaling, {"scale": 2.0}, {"scale": ("real", NEITHER)}),
    Asked("CurrentScaling", lab.CurrentScaling, {"fmt": FP8_E4M3, **SWITCHES},
          {"fmt": "format", "margin": ("whole", (-127, -HUGE)), "power_of_two": "switch"}),
    Asked(
        "DelayedScaling",
        lab.DelayedScaling,
        {"fmt": FP8_E4M3, "amax_history_len": 2, "amax_compute": "max", **SWITCHES},
        {"fmt": "format", "amax_history_len": ("count", (0,)), "amax_compute": "word",
         "margin": ("whole", (-127, -HUGE)), "power_of_two": "switch"},
    ),
    *[
        Asked(f"{kind.__name__}.update", lambda amax, kind=kind: kind(FP8_E4M3).update(amax),
              {"amax": 1.0}, {"amax": AMAX})
        for kind in (lab.CurrentScaling, lab.DelayedScaling)
    ],
    Asked(
        "DelayedScaling",
        lambda **state: lab.DelayedScaling(FP8_E4M3).load_state_dict(state),
        {"scale": 1.0, "amax_history": [1.0]},
        {"scale": ("real", (0, -1)),
         "amax_history": HISTORY},
    ),
    *[
        Asked(kind.__name__, lambda state_dict, make=make: make().load_state_dict(state_dict),
              {"state_dict": make().state_dict()},
              {"state_dict": (STATE,)})
        for kind, make in (
            (lab.FixedScaling, lab.FixedScaling),
            (lab.CurrentScaling, lambda: lab.CurrentScaling(FP8_E4M3)),
            (lab.DelayedScaling, lambda: lab.DelayedScaling(FP8_E4M3)),
        )
    ],
]  # fmt: skip
QUANTIZED = [
    Asked(
        "Quantized",
        lab.Quantized,
        {"codes": torch.zeros(4, dtype=torch.uint8), "scale": torch.tensor(1.0), "fmt": FP8_E4M3,
         "block": None},
        {"codes": ("object", (None, torch.ones(4))), "fmt": "format", "block": BLOCK,
         "scale": ("object", (None, 1.0, torch.ones(3), torch.tensor(1)))},
    ),
    Asked("Quantized.of", lab.Quantized.of,
          {"data": torch.ones(2).to(torch.float8_e5m2), "scale": 1.0},
          {"data": ("object", (None, X)), "scale": SCALE}),
    Asked("Quantized", lab.Quantized,
          {"codes": torch.zeros(4, dtype=torch.uint8), "scale": torch.tensor(0.5), "fmt": FP8_E4M3,
           "tensor_scale": torch.tensor(2.0)},
          {"tensor_scale": ("object", (1.0, torch.ones(1), torch.tensor(1)))}),
    Asked("hadamard", lab.hadamard, {"tensor": X, "signs": torch.tensor([1, -1]), "inverse": False},
          {"tensor": (*TENSOR, (torch.ones(3), torch.tensor(1.0))), "inverse": "switch",
           "signs": ("object", (16, [1, -1], torch.ones(3), torch.ones(1, 2), torch.zeros(2),
                                torch.ones(0), torch.tensor([1j, 1]), torch.tensor([1.0, 0.5]),
                                torch.ones(4)))},
          {"signs": ("tensor",)}),
    Asked("amax_of", lab.amax_of, {"tensor": X, "block": None}, {"tensor": TENSOR, "block": BLOCK}),
    Asked("dequantize", lab.dequantize, {"quantized": lab.quantize(X, FP8_E4M3)},
          {"quantized": ("object", (None, X))}),
    *[
        Asked(
            function.__name__,
            function,
            {"tensor": X, "fmt": FP8_E4M3, "scale": 1.0, "block": None, "stream": None,
             "rounding": Rounding.TIES_TO_EVEN, "overflow": Overflow.SATURATE},
            {"tensor": TENSOR, "fmt": "format", "scale": SCALE, "rounding": "member",
             "overflow": "member", "stream": "object"},
        )
        for function in (lab.quantize, lab.fake_quantize)
    ],
    *[
        Asked(function.__name__, function, {"tensor": X, "fmt": FP8_E4M3, "block": (2,)},
              {"block": BLOCK})
        for function in (lab.quantize, lab.fake_quantize)
    ],
    *[
        Asked(function.__name__, function,
              {"tensor": X, "fmt": FP4_E2M1, "scale": ScaleRule.NVFP4, "tensor_scale": 0.5},
              {"tensor_scale": tuple(tuple(x for x in ODD[k] if x is not None)
                                     if isinstance(k, str) else k for k in SCALE),
               "scale": ((*ScaleRule,)[:-1], (1.0,))},
              {"scale": ("tensor_scale",)})
        for function in (lab.quantize, lab.fake_quantize)
    ],
    Asked("quantize", lab.quantize, {"tensor": X, "fmt": FP8_E4M3}, {"fmt": ((FP16,),)}),
]  # fmt: skip
EVERYTHING = [*LOSS, *TENSORS, *QUANTIZED]
NO_FUNCTIONS = {"Headroom", "Trace", "Turn", "ScaleRule", "MX_BLOCK"}


test_every_odd_call_is_refused_by_name = refusal_test(EVERYTHING)
test_every_name_of_the_front_is_asked = front_test(EVERYTHING, lab, but=NO_FUNCTIONS, least=1000)


def test_what_is_right_though_unusual_stays_right():
    assert lab.DelayedScaling(FP8_E4M3).update(torch.tensor(2.0)) == 1.0
    assert lab.CurrentScaling(FP8_E4M3, margin=np.int64(1)).update(np.float32(1.0)) == 128.0
    assert LossScaler(np.float32(8.0), growth_interval=np.int64(2)).scale == 8.0
    assert lab.quantize(X, FP8_E4M3, block=[1, 2]).scale.shape == (2, 1)
    assert lab.play(LossScaler(8.0), (4, 4), mean_abs_gradient=[1]).scales.tolist() == [8.0, 4.0]
    assert lab.scale_for(np.array([1, 2]), FP8_E4M3).tolist() == [256.0, 128.0]
    assert np.isnan(lab.scale_for(HUGE, FP8_E4M3))
