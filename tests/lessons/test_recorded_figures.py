"""The figures of recordings: what they claim is in the file; without it there is none."""

from functools import partial

import pytest
from drawn import assert_as_it_was, told
from legible import assert_legible
from record import store

from mplab import FP8_E5M2
from mplab.lessons.l06 import figures as l06
from mplab.lessons.l08 import figures as l08
from mplab.lessons.l11 import figures as l11
from mplab.lessons.recordings import Recording

ABOUT = dict.fromkeys(
    ("driver", "torch", "numpy", "python", "mplab", "command"), "1"
) | {
    **{"device": "NVIDIA H200", "cuda": True, "date": "2026-12-01 10:00 UTC"},
    **{"seeds": [0, 1, 2], "rehearsal": False, "seconds": 1.0},
}


def saved(folder, part, data, *, complete=True, **about):
    store(Recording(part, ABOUT | about, data, complete), folder)


def drawn(folder, part, data):
    """The figure of a recording that broke off."""
    saved(folder, part, data, complete=False)
    return FIGURES[part](where=folder)


def run(recipe, seed, score, *, task="digits-autoencoder", tf32=False, **more):
    row = {"task": task, "recipe": recipe, "seed": seed, "tf32": tf32}
    return row | (
        {"problem": "RuntimeError"} if score is None else {"metrics": {"r2": score}}
    )


RUNS = [
    *(run("fp32", seed, 0.5) for seed in range(3)),
    *(run("fp32", seed, 0.9, tf32=True) for seed in range(3)),
    *(run("fp32", seed, 0.1, task="regression") for seed in range(3)),
    *(run("amp-fp16-naive", seed, 0.1 + 0.1 * seed) for seed in range(2)),
    run("amp-fp16-naive", 2, None),
    *(run("amp-fp16", seed, 0.5) for seed in range(3)),
]
MEASURED = {
    **{
        "fp32": (1000.0, 8000),
        "fp32-tf32": (1500.0, 7500),
        "amp-fp16-naive": (2400.0, 5000),
    },
    **{
        "amp-fp16": (2300.0, 5000),
        "amp-bf16": (2500.0, 4800),
        "fp32-checkpointed": (700.0, 4000),
    },
}
NETWORK = [
    {"recipe": recipe, "words_per_second": rate, "peak_bytes": memory}
    for recipe, (rate, memory) in MEASURED.items()
]
LAYERS = {
    f"blocks.{i}.{name}": {
        "lowest": -30 + i,
        "counts": [100] * 12,
        "zeros": 3,
        "nonfinite": 0,
    }
    for i in range(8)
    for name in ("attention.inward", "attention.outward", "wide", "narrow")
}
BLOCKS = {
    "FP16": {"blocks": 1000, "differing": {"volta": 400, "ampere": 250, "hopper": 0}},
    "FP8_E4M3": {"blocks": 1000, "differing": {"hopper": 1}},
}
FIGURES = {
    "training": partial(l11.recorded_runs, "digits-autoencoder"),
    **{"larger": l11.recorded_network, "exponents": l08.recorded_gradients},
    "tensorcores": l06.recorded_units,
}
FULL = {
    "training": {"runs": RUNS},
    "larger": {"parameters": 70_000_000, "runs": NETWORK},
    "exponents": {"runs": [{"recipe": "fp32", "loss_scale": 1.0, "layers": LAYERS}]},
    "tensorcores": {"blocks": BLOCKS},
}


UNMEASURED = [row | {"peak_bytes": None} for row in NETWORK]
DRAWN = {part: (part, FIGURES[part], FULL[part]) for part in FIGURES} | {
    "two recipes": (
        "training",
        partial(FIGURES["training"], recipes=("fp32", "amp-fp16")),
        FULL["training"],
    ),
    "without memory": (
        "larger",
        l11.recorded_network,
        {"parameters": 7, "runs": UNMEASURED},
    ),
    "exponents of E5M2": (
        "exponents",
        partial(l08.recorded_gradients, fmt=FP8_E5M2),
        FULL["exponents"],
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_of_a_recording_draws_what_it_drew_and_without_one_there_is_none(
    name, tmp_path
):
    part, figure, data = DRAWN[name]
    assert figure(where=tmp_path) is None
    saved(tmp_path, part, data, complete=False)
    picture = assert_legible(figure(where=tmp_path))
    assert_as_it_was(told(picture), __file__, f"recorded {name}.txt")


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ("training", {}),
        ("training", {"runs": [run("fp32", 0, 0.5)]}),
        ("training", {"runs": [run("fp32", 0, 0.5), run("amp-fp16", 1, 0.5)]}),
        ("larger", {"parameters": 1}),
        ("larger", {"runs": NETWORK[:1]}),
        (
            "larger",
            {"runs": [{"recipe": "fp32", "problem": "OutOfMemoryError"}, *NETWORK[1:]]},
        ),
        ("exponents", {"runs": []}),
        ("exponents", {"runs": [{"recipe": "amp-bf16", "layers": LAYERS}]}),
        ("exponents", {"runs": [{"recipe": "fp32", "problem": "OutOfMemoryError"}]}),
        ("tensorcores", {"blocks": {"FP16": {"blocks": 0, "differing": {}}}}),
        ("tensorcores", {"blocks": {"FP16": {"problem": "RuntimeError"}}}),
    ],
)
def test_a_recording_that_broke_off_too_early_gives_no_figure(part, data, tmp_path):
    assert drawn(tmp_path, part, data) is None
