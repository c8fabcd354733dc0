"""Every figure of mplab.pictures, of a few data."""

import numpy as np
from histories import STEPS, learning as history

from mplab import BF16, FP8_E4M3, FP16, FP32, Format, Rounding, pictures
from mplab.course.pictures.grades import class_parts
from mplab.health.comparison import Comparison, Difference
from mplab.health.digest import Site
from mplab.health.findings import Finding
from mplab.health.records import Evidence, Magnitudes, Step
from mplab.health.reports import Report
from mplab.numbers.formats import FORMATS
from mplab.scaling import DelayedScaling
from mplab.simulation import CUDA_AUTOCAST
from mplab.simulation.explanation import Explanation, Row
from mplab.training import ExponentHistogram

TINY = Format("E2M1", exponent_bits=2, precision=2)
THREE = ("right", "a known mistake", "wrong otherwise")
STEP = np.arange(STEPS)
FALLING = 2.0 ** np.maximum(20, 28 - STEP)
RUNS = [
    history("fp32", metrics={"r2": np.nan}),
    history("fp32", seed=1, factor=1.1),
    *(history("fp16-naive", seed=k, factor=(2.5, 4, 2)[k]) for k in range(3)),
    history("fp16-scaled", loss_scale=FALLING, skipped=FALLING > 2**20),
    history("fp16-overflow", factor=1.3, loss_scale=FALLING * (STEP < 50)),
    history("bf16", loss=np.where(STEP < 20, 0.1, np.nan)),
    history("amp-fp16", device="NVIDIA H100", loss_scale=np.full(STEPS, 1126.4)),
]
LAYERS = {
    "encoder": ExponentHistogram(np.arange(-28, 18), np.arange(46) % 7 + 1, 3, 0),
    "dead": ExponentHistogram(np.arange(0), np.arange(0), 9, 0),
    "decoder": ExponentHistogram(np.arange(-14, -8), np.arange(6), 0, 0),
}
ERRORS = {
    FP16: {"left": 0.01, "right": 0.02, "fusion": np.inf},
    BF16: {"left": 0.007, "right": 0.0, "fusion": 0.009},
}


def rows():
    """Operations of a model: the module `mix` adds in two formats."""
    for phase, module, operation, fmt in (
        ("forward", "mix", "_softmax", FP32),
        ("forward", "mix", "add", FP16),
        ("forward", "mix", "add", FP32),
        ("forward", "head", "_scaled_dot_product_flash_attention_for_cpu", FP16),
        ("backward", "head", "threshold_backward", FP16),
        *(("backward", "mix", f"of many, {i}", FP16) for i in range(24)),
    ):
        yield Row(phase, module, operation, fmt, (FP32,), 1, (2, 2), "")


def report(what_if=False, finding=None):
    """Four steps of a run: the second is skipped, the third has an infinite loss."""
    steps = []
    for k, loss in enumerate((2.0, 1.5, np.inf, 1.0)):
        outputs, gradients = {}, {}
        for i in range(13):
            name = f"layer {i}"
            top = np.inf if i == 12 and k == 2 else 2.0 ** (i + k)
            outputs[name] = Magnitudes("FP16", what_if, top, 2.0**-i / 3)
            gradients[name] = Magnitudes(
                "FP16", what_if, 2.0 ** (k - i), 2.0**-20, 100, 3 * i
            )
        norms = {"gradient_norm": 3.0 + k, "norm_at_optimizer": 700.0 / (k + 1)}
        more = {"outputs": outputs, "gradients": gradients}
        steps.append(Step(loss, 1024.0, k == 1, **norms, **more))
    return Report([finding] if finding else [], steps, Evidence())


def parted():
    """Differences of fifteen layers in two directions, and one of the first weights."""
    found = [(0, "start", "layer 0", 1.0)]
    for i in range(15):
        found.append((i % 3, ("forward", "update")[i % 2], f"layer {i}", 3.0**i))
    found += [(2, "forward", "layer 0", 64.0), (1, "update", "layer 1", np.inf)]
    differences = [
        Difference(
            step, Site(way, name, "Linear", "output", 0, "float32", (4,)), u, 1, ""
        )
        for step, way, name, u in found
    ]
    return Comparison(differences, "", 40, [0, 1, 2], [])


def windows(lengths=(2, 4)):
    noise = np.random.default_rng(0).normal(size=(12, 50))
    tensors = noise * np.where(np.arange(12) == 4, 3e5, 1.0)[:, None]
    return {
        f"history {n}": pictures.follow(
            DelayedScaling(FP8_E4M3, amax_history_len=n), tensors
        )
        for n in lengths
    }


FIGURES = {
    "bits": lambda: pictures.bit_fields("0.1", [FP16, FP8_E4M3, FORMATS["MXINT8"]]),
    "codes": lambda: pictures.code_table(TINY),
    "lines": lambda: pictures.number_lines([TINY, FP8_E4M3], -2, 3, integers=True),
    "digits": lambda: pictures.decimal_digits([FP16, FP8_E4M3]),
    "profile": lambda: pictures.rounding_profile(
        FP8_E4M3, [Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY], 16, 24
    ),
    "profile of three": lambda: pictures.rounding_profile(
        FP8_E4M3, [*Rounding][2:5], 16, 24
    ),
    "sums": lambda: pictures.running_sums(
        256, 0.3, 900, [BF16, pictures.RunningSum(BF16, Rounding.STOCHASTIC)], seed=3
    ),
    "meter": lambda: pictures.loss_meter(np.linspace(2.5, 2.25, 65), [BF16, FP32]),
    "windows": lambda: pictures.scaling_windows(windows()),
    "one window": lambda: pictures.scaling_windows(windows((4,))),
    "losses": lambda: pictures.loss_curves(RUNS),
    "one loss": lambda: pictures.loss_curves(RUNS[:1]),
    "gradients": lambda: pictures.gradient_exponents(LAYERS, FP16),
    "scales": lambda: pictures.loss_scale(RUNS[5:]),
    "seeds": lambda: pictures.by_seed(
        {
            "FP32": [0.97, 0.98],
            "E4M3": [0.1, 0.05],
            "BF16": [0.97, 0.98],
            "mine": [1, 0],
        }
    ),
    "one seed": lambda: pictures.by_seed({"FP32": [0.5], "BF16": [0.5]}, source="here"),
    "map": lambda: pictures.precision_map(
        Explanation("Net", FP16, CUDA_AUTOCAST, tuple(rows()))
    ),
    "sensitivity": lambda: pictures.sensitivity(ERRORS),
    "health": lambda: pictures.health(
        report(finding=Finding("X", "problem", "It is ill. Very.", "", ""))
    ),
    "healthy": lambda: pictures.health(Report([], report().steps[:2], Evidence())),
    "headroom": lambda: pictures.headroom(report()),
    "headroom if": lambda: pictures.headroom(
        Report([], report(True).steps[:2], Evidence())
    ),
    "parting": lambda: pictures.parting(parted()),
    "alike": lambda: pictures.parting(Comparison([], "", 4, [0], [])),
    "grades": lambda: class_parts(
        {
            "encode": dict(zip(THREE, (14, 3, 1), strict=True)),
            "value": dict(zip(THREE, (9, 4, 50), strict=True)),
        }
    ),
}
