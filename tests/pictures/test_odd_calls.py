"""What the figures say to odd calls: the function and the argument, by name."""

from numbers import Real

import numpy as np
import pytest
from odd_calls import ODD, Asked, without

from mplab import FP8_E4M3, FP16, FP32, Format, Rounding, pictures
from mplab.pictures import canvas

MEMBERS = ([None], [1], ["FP16"], (FP16, None), {}, {"a": 1}, [[]])
LIST = ("object", (None, ()), MEMBERS)
ANY_LIST = (None, 1, "ab", b"ab", len, 1.5, {}, [])
MAPPING = (tuple(ODD["object"]), (None, [("a", 1)], FP16, {"a": None}, {"a": [1]}, {"a": "b"}))
ANY_MAPPING = ("object", (None, [("a", 1)], FP16))
ONE = ("object", (None,))
FORMAT = ("format",)


def asked(name, **kinds):
    """A function, called oddly in one argument; the others are as good as they need be."""
    right = {argument: RIGHT.get((name, argument)) for argument in kinds}
    return Asked(name, getattr(pictures, name), {**MORE.get(name, {}), **right}, kinds)


FORMATS = [FP16, FP8_E4M3]
RIGHT = {
    **{
        (name, "formats"): FORMATS
        for name in (
            "bit_fields",
            "number_lines",
            "spacing",
            "dynamic_ranges",
            "decimal_digits",
            "end_of_range",
            "least_updates",
            "landing",
            "stagnation",
        )
    },
    **{(name, "integers"): False for name in ("number_lines", "spacing", "dynamic_ranges")},
    ("landing", "numbers"): {"one": 1.0},
    ("error_growth", "curves"): [pictures.measured_errors(FP16, most=4, draws=2)],
    ("error_growth", "bounds_of"): FP16,
    ("stagnation", "most"): 4,
    ("mean_errors", "fmt"): FP16,
}
MORE = {
    "bit_fields": {"x": 0.1},
    "number_lines": {"low": 0, "high": 1},
    "rounding_profile": {"fmt": FP16, "low": 0, "high": 1},
    "mean_errors": {"x": np.ones(2), "modes": []},
    "running_sums": {"start": 0.0, "term": 1.0, "times": 2},
    "gradient_exponents": {"fmt": FP16},
    "block_errors": {"exact": np.ones(2)},
    "clipped_norms": {"scales": np.ones(2), "max_norm": 1.0},
}
EVERYTHING = [
    asked("bit_fields", formats=LIST),
    asked("number_lines", formats=LIST, integers="switch"),
    asked("spacing", formats=LIST, integers="switch"),
    asked("dynamic_ranges", formats=LIST, integers="switch"),
    asked("landing", formats=LIST, numbers=MAPPING),
    asked("stagnation", formats=LIST, most=("count", (0,))),
    asked("error_growth", curves=LIST, bounds_of=FORMAT),
    asked("mean_errors", fmt=FORMAT),
    *[asked(name, formats=LIST) for name in ("decimal_digits", "end_of_range", "least_updates")],
    *[asked(name, fmt=FORMAT) for name in ("code_table", "near_zero")],
    asked("rounding_profile", modes=(without("object", Rounding), MEMBERS)),
    asked("running_sums", sums=(ODD["object"], (None, [None], ["FP16"], {}, {"a": FP16}))),
    *[asked(name, cases=LIST) for name in ("clinic", "look_alikes")],
    asked("descents", runs=LIST),
    *[asked(name, rows=LIST) for name in ("matmul_errors", "memory", "stage_times")],
    asked("costs", rows=(ANY_LIST,)),
    asked("fates", tallies=MAPPING),
    asked("scale_rules", traces=MAPPING),
    asked("scaling_windows", windows=MAPPING),
    *[asked(name, runs=MAPPING) for name in ("flushed_over_steps", "shares_and_outcomes")],
    asked("gradient_exponents", layers=MAPPING),
    asked("block_errors", quantized=ANY_MAPPING),
    asked("clipped_norms", norms=ANY_MAPPING),
    asked("accumulators", found=ONE),
    asked("cutting", errors=ONE),
    asked("promotion", errors=ONE),
    asked("precision_map", explanation=ONE),
    asked("health", report=ONE),
    asked("roofline", roof=ONE),
    asked("flushed_share", history=ONE),
    *[
        asked(name, histories=LIST)
        for name in ("loss_curves", "loss_scale", "report", "results_table")
    ],
]


@pytest.mark.parametrize("asked", EVERYTHING, ids=lambda asked: asked.name)
def test_every_odd_call_is_refused_with_the_figure_and_the_argument_named(asked):
    complaints = list(asked.complaints())
    assert not complaints, f"{len(complaints)} of them:\n" + "\n".join(complaints)


def test_many_figures_are_asked_oddly_and_often():
    assert len({asked.name for asked in EVERYTHING}) > 35
    assert sum(1 for asked in EVERYTHING for _ in asked.odd_calls()) > 1200


def test_what_is_right_though_unusual_stays_right():
    for several in ((FP16,), {FP32: "a key"}.keys(), {FP16}, np.array([FP16])):
        canvas.require_some("spacing", "formats", several, Format)
    canvas.require_named("landing", "numbers", {"one": np.float32(1), "two": 2}, Real)
    canvas.require_some("mean_errors", "x", np.ones(3))
