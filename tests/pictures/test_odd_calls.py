"""What the figures say to odd calls: the function and the argument, by name."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from odd_calls import HUGE, ODD, Asked, without

from mplab import BF16, FP4_E2M1, FP8_E4M3, FP16, FP32, Format, Rounding, pictures
from mplab.arithmetic import path, refine
from mplab.pictures import canvas
from mplab.pictures.time_steps import SimulationErrors
from mplab.scaling import CurrentScaling
from mplab.training import ExponentHistogram, History
from mplab.training.stages import Memory

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
ONE_TWO = np.array([1.0, 2.0])
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
    ("formulas", "found"): pictures.formula_errors("variance", FP16, draws=1),
    ("blame", "found"): pictures.formula_errors("small root", FP16, draws=1),
    ("refinements", "found"): {"one": refine([[2.0]], [1.0], factor_format=FP16)},
    ("refinement_limits", "curves"): [pictures.refinement_costs(FP16, size=2, draws=1)],
    ("emulations", "found"): {"FP16": [0.5, 1e-9]},
    ("one_bit_too_many", "found"): pictures.wrong_sums(16),
    ("slice_counts", "curves"): [pictures.slices_needed("INT8", draws=1)],
    ("derivatives", "curves"): [pictures.derivative_errors(FP16, draws=1)],
    ("freezing_lines", "found"): [pictures.freezing_points(FP8_E4M3)],
    ("simulation_errors", "curves"): [
        SimulationErrors(FP16, "nearest", "a", "b", "c", ONE_TWO, ONE_TWO)
    ],
    ("four_bit_errors", "found"): pictures.scale_errors(),
    ("order_sums", "found"): pictures.order_errors(size=4, orders=2),
    ("mismatch", "found"): pictures.rollout_gaps(length=2, rows=2),
    ("one_ulp", "pairs"): [pictures.runs_apart("regression", "fp32", steps=1)],
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
    asked("code_table", fmt=(*FORMAT, (FP16,))),
    asked("near_zero", fmt=FORMAT),
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
    asked("formulas", found=ONE),
    asked("blame", found=ONE),
    asked("derivatives", curves=LIST),
    asked("refinements", found=MAPPING),
    asked("refinement_limits", curves=LIST),
    asked("emulations", found=ANY_MAPPING),
    asked("one_bit_too_many", found=ONE),
    asked("slice_counts", curves=LIST),
    asked("four_bit_errors", found=ONE),
    *[asked(name, found=ONE) for name in ("order_sums", "mismatch")],
    asked("one_ulp", pairs=LIST),
    asked("freezing_lines", found=LIST),
    asked("simulation_errors", curves=LIST),
    asked("cutting", errors=ONE),
    asked("promotion", errors=ONE),
    asked("precision_map", explanation=ONE),
    asked("health", report=ONE),
    asked("parting", comparison=ONE),
    asked("roofline", roof=ONE),
    asked("flushed_share", history=ONE),
    *[
        asked(name, histories=LIST)
        for name in ("loss_curves", "loss_scale", "report", "results_table")
    ],
]


# Numbers, arrays, words and folders --------------------------------------------------------
PATHS = path(np.array([0.1, 0.4]), 0.003, 4, BF16)
COST = SimpleNamespace(name="round_to, out=", fmt="FP16", size=8, ratio=2.0)
NO_COSTS = (
    *([1], [None], ["ab"], [SimpleNamespace(fmt="FP16")]),
    *([SimpleNamespace(**vars(COST) | x)] for x in ({"fmt": 5}, {"ratio": 0.0}, {"name": "torch"})),
)
MEMORY = Memory("fp32", 1, 1, 1, 1, None, None, None, None, False)
LAYERS = {"one": ExponentHistogram(np.arange(-3, 0), np.array([1, 2, 3]), 0, 0)}
ONES = np.ones(3)
RUN = History(
    *("digits-autoencoder", "fp32", "FP32", 0, "cpu", False, ONES, ONES, ONES == 0),
    metrics={"r2": 0.5},
    flushed={0: {"layer 1": (1, 4)}},
)
TWO = {"formats": [FP16, FP8_E4M3]}
NUMBER = ("real",)
POSITIVE = ("real", (0, -1.0))
SEED = "count"
STREAM = ("count", (1 << 64,))
LEAST_1 = ("count", (0,))
WORD = ("object", (None, FP16, HUGE))
NO_ROW = (
    *(x for x in ODD["object"] if not isinstance(x, list | np.ndarray) and x != (1,)),
    *(None, FP16, 1.5, "12", [], ["a"], [None], [[1.0], [1.0, 2.0]], {"a": 1.0}, [1j]),
    *(np.ones(2, bool), np.ones((2, 2)), np.ones(2, complex), np.array(["a"]), [True, False]),
    *(np.ma.array([1.0, 2.0], mask=[0, 1]), np.array(1.0), [HUGE], np.empty(0)),
)
ENDLESS = ([np.nan, 1.0], [np.inf, 1.0], np.array([1.0, -np.inf]))
NO_TABLE = (*NO_ROW[:-8], np.ones(2), np.ones((2, 2, 2)), np.ones((1, 2)), np.ones((3, 0)))
EXACT = (
    tuple(x for x in ODD["real"] if not (isinstance(x, int | str) and x in ("1.0", HUGE, -HUGE))),
    (True, 10**4400, Fraction(1, 10**5000)),
    ("nan", "inf", "1e9999999", Decimal("1e-9999999"), Decimal("nan"), "0x10", "1/0"),
)
WINDOW = (
    tuple(ODD["object"]),
    (None, 3, (1,), (1, 2, 3), (3, 1), (2, 2), (0.5, 3), ("1", "2"), (None, 4), (True, 4)),
    (np.ones((2, 2)), (-HUGE, HUGE), (-2000, 0), (0, 2000), (100, 110), "ab", {1: 2}, {1, 2}),
)
NO_STRINGS = tuple(x for x in ODD["object"] if not isinstance(x, str))
FOLDER = (NO_STRINGS, (5, FP16, "no/such", []))
NAMES = (tuple(ODD["object"]), (None, "fp32", (), [None], [1], ["nothing"], {"fp32": 1}, {}))


def calls(name, right, **kinds):
    """A function, called oddly in some of its right arguments."""
    return Asked(name, getattr(pictures, name), right, kinds)


def measured(name, **right_and_kinds):
    """A measurement, whose every argument has its right value and its kinds."""
    right = {argument: value for argument, (value, _) in right_and_kinds.items()}
    return calls(name, right, **{argument: odd for argument, (_, odd) in right_and_kinds.items()})


ARCHITECTURE = ("hopper", ("word", ("volta9", "Hopper")))
MEASURED = [
    measured("measured_errors", fmt=(FP16, FORMAT), order=("sequential", "word"),
             signed=(False, "switch"), most=(4, ("count", (0, 1, HUGE))),
             draws=(1, LEAST_1), seed=(0, SEED)),
    measured("formula_errors", problem=("variance", "word"), fmt=(FP16, FORMAT),
             draws=(1, ("count", (0, HUGE))), seed=(0, SEED)),
    measured("derivative_errors", fmt=(FP16, FORMAT), draws=(1, ("count", (0, HUGE))),
             seed=(0, SEED)),
    measured("random_system", condition=(4.0, ("real", (0.5, 1e11))),
             size=(2, ("count", (0, 1, HUGE))), seed=(0, SEED)),
    measured("refinement_costs", fmt=(FP16, FORMAT), method=("gmres", "word"),
             size=(2, ("count", (0, 1, HUGE))), draws=(1, ("count", (0, HUGE))), seed=(0, SEED)),
    measured("wrong_sums", k=(16, ("count", (0, 15, 4097, HUGE))), seed=(0, SEED)),
    measured("slices_needed", unit=("INT8", ("word", ("INT4",))),
             draws=(1, ("count", (0, 65, HUGE))), seed=(0, SEED)),
    measured("freezing_points", fmt=(FP8_E4M3, (*FORMAT, (FP32, FP4_E2M1)))),
    measured("step_errors", fmt=(FP8_E4M3, FORMAT), method=("nearest", "word"), seed=(0, STREAM)),
    measured("grid_errors", fmt=(FP8_E4M3, FORMAT), method=("nearest", "word"), seed=(0, STREAM)),
    calls("time_courses", {"runs": {"a": np.ones(2)}, "until": 1.0}, until=POSITIVE,
          runs=(ANY_MAPPING, *({"a": x} for x in (ENDLESS[2], np.ones((2, 2)))))),
    calls("orbits", {"runs": {"a": np.ones((2, 3))}},
          runs=(ANY_MAPPING, *({"a": x} for x in (ENDLESS[2], np.ones((2, 2)), np.ones(3))))),
    measured("scale_errors", seed=(0, SEED)),
    measured("outlier_errors", seed=(0, SEED)),
    measured("order_errors", size=(4, ("count", (0, HUGE))), orders=(2, ("count", (0, HUGE))),
             seed=(0, SEED)),
    measured("runs_apart", task=("regression", "word"), recipe=("fp32", "word"), seed=(0, SEED),
             steps=(1, ("count", (0,))),
             without=("bias", ((None, 5, True, ["bias"], b"bias", "no"),))),
    measured("rollout_gaps", length=(2, ("count", (0, 1, HUGE))),
             rows=(2, ("count", (0, 1, HUGE))), seed=(0, SEED)),
    measured("quiet_errors", steps=(2, ("count", (0, HUGE))), seed=(0, SEED)),
    measured("product_errors", fmt=(FP16, FORMAT), most=(16, ("count", (0, 15, HUGE))),
             below=(0.5, ("real", (0, -1.0, 0.3, 2.0**-25, 2.0**16))),
             draws=(1, LEAST_1), seed=(0, SEED)),
    measured("errors_by_depth", architecture=ARCHITECTURE, every=(32, ("count", (0, 1, 33))),
             most=(32, ("count", (0, 31))), signed=(False, "switch"), seed=(0, SEED)),
    measured("cut_errors", architecture=ARCHITECTURE, terms=(4, ("count", (0, HUGE))),
             draws=(1, LEAST_1), seed=(0, SEED)),
    calls("follow", {"scaling": CurrentScaling(FP8_E4M3), "tensors": [ONES], "fmt": FP8_E4M3},
          scaling=("object", (None, CurrentScaling, FP16)), fmt=FORMAT,
          tensors=(tuple(x for x in ODD["object"] if not isinstance(x, list | np.ndarray)),
                   (None, 3, [], [None], ["a"], "ab", {}, [np.empty(0)], [ENDLESS[0]],
                    [np.ones(2, complex)], [np.ones(2, bool)], [1j]))),
]  # fmt: skip
NUMBERS = [
    calls("bit_fields", {"x": 0.1, **TWO}, x=EXACT),
    calls("number_lines", {"low": 0.0, "high": 1.0, **TWO, "formats": [FP16]},
          low=("real", (1.0, 2.0)), high=("real", (0, -1.0)), formats=([FP32], [FP16, FP32])),
    calls("spacing", {"at": 1.0, "window": (-8, 8), **TWO}, at=("real", (1e6,)), window=WINDOW),
    calls("decimal_digits", {"window": (-8, 8), **TWO}, window=WINDOW),
    calls("near_zero", {"fmt": FP8_E4M3, "binades": 1}, binades=("count", (0, 100)),
          fmt=((FP32,),)),
    calls("rounding_profile",
          {"fmt": FP8_E4M3, "modes": [Rounding.STOCHASTIC], "low": 0, "high": 1, "seed": 0},
          low=("real", (1, 2.0)), high=("real", (0, -1.0)), seed=STREAM),
    calls("double_rounding", {"x": "17.004", "first": FP16, "second": FP8_E4M3},
          x=(*EXACT, ("1e400", 1e300, -1e300)), first=FORMAT, second=FORMAT),
    calls("mean_errors",
          {"x": np.linspace(1, 2, 9), "fmt": FP16, "modes": [Rounding.STOCHASTIC], "seed": 0},
          x=(NO_ROW, ENDLESS), modes=(without("object", Rounding), MEMBERS), seed=STREAM),
    calls("running_sums", {"start": 0.0, "term": 1.0, "times": 3, "sums": [FP16], "seed": 0},
          start=NUMBER, term=NUMBER, times=("count", (0, HUGE)), seed=STREAM,
          sums=((["FP16"], [pictures.Sum("FP16")], [pictures.Sum(FP16, "up")]),)),
    calls("landing", {"numbers": {"one": 1.0}, **TWO},
          numbers=((*({"a": x} for x in (0, -1.0, np.nan, np.inf, HUGE)), {1: 1.0}),)),
    calls("loss_meter", {"losses": [2.0, 1.0], **TWO}, losses=(NO_ROW, ENDLESS), formats=LIST),
    calls("least_updates", {"update": 0.003, **TWO}, update=(without("real", None), (0, -1.0))),
    *[calls(name, {"paths": PATHS, "update": 0.003, "fmt": BF16}, paths=(NO_TABLE,), update=NUMBER,
            fmt=FORMAT) for name in ("weight_paths", "stochastic_spread")],
]  # fmt: skip
SCORES = {"FP32": [0.5, 0.6], "BF16": [0.5, 0.5]}
ARRAYS = [
    calls("by_seed", {"results": SCORES, "metric": "r2", "source": "here"},
          results=(tuple(ODD["object"]), (None, SCORES["FP32"], {}, {"FP32": [0.5]}),
                   tuple({**SCORES, "BF16": x} for x in (*NO_ROW, [0.5])), ({1: [1], 2: [2]},)),
          metric=(NO_STRINGS, (None, 5, "")), source=(NO_STRINGS, (None, 5))),
    calls("emulation_error", {"found": ONES[None], "a": ONES[None, :1], "b": ONES[None]},
          **dict.fromkeys(("found", "a", "b"), ((*NO_ROW[:-3], ONES, np.ones((3, 2)), ENDLESS),))),
    calls("slice_grid", {"x": ONES, "slices": 2, "bits": 3}, x=(NO_ROW, ENDLESS),
          slices=("count", (0, 7, HUGE)), bits=("count", (0, 1, 13, HUGE))),
    calls("block_errors", {"exact": np.ones(4), "quantized": {"a": np.ones(4)}, "block": 2},
          exact=(NO_ROW, ENDLESS, (np.ones(3),)), block=LEAST_1,
          quantized=(ANY_MAPPING, tuple({"a": x} for x in (*NO_ROW, *ENDLESS, np.ones(1), 1.0)))),
    calls("clipped_norms", {"scales": [1.0, 2.0], "norms": {"a": [1.0, 1.0]}, "max_norm": 1.0},
          scales=(NO_ROW, ENDLESS, ([0.0, 1.0], [-1.0, 1.0])), max_norm=POSITIVE,
          norms=(ANY_MAPPING, tuple({"a": x} for x in (*NO_ROW, *ENDLESS, [0.0, 1.0], [1.0])))),
    calls("sensitivity", {"errors": {FP16: {"a": 0.5}}},
          errors=(tuple(ODD["object"]), (None, {}, {"FP16": {"a": 0.5}}, {FP16: {}}, {FP16: [0.5]},
                   {FP16: {"a": 0.5}, BF16: {"b": 0.5}}),
                  tuple({FP16: {"a": x}} for x in ("no", None, True, 1j, -0.5, np.nan, HUGE)))),
    calls("gradient_exponents", {"layers": LAYERS, "fmt": FP16, "loss_scale": 2.0},
          loss_scale=("real", (0, -1.0, 3.0)), fmt=FORMAT),
    calls("shares_and_outcomes", {"runs": {"a": (RUN, RUN)}, "metric": "r2", "label": "R²"},
          runs=(({"a": (RUN,)}, {"a": (RUN, None)}, {"a": (RUN, replace(RUN, flushed={}))}),),
          metric=("word", ("accuracy",)), label=(NO_STRINGS, (None, 5))),
    calls("memory_table", {"rows": [MEMORY]}, rows=LIST),
    calls("costs", {"rows": [COST]}, rows=(NO_COSTS,)),
    calls("bits_of_a_step",
          {"a": [1.0], "b": [1.0], "c": 0.0, "architecture": "hopper", "input_format": FP8_E4M3},
          a=("reals", (1.0, [1.0, 2.0], [0.3], [np.nan], [1.0] * 99)),
          b=("reals", (1.0, [1.0, 2.0], [0.3], [np.inf])), c=("real", (0.1,)),
          architecture="word", input_format=(*FORMAT, (FP32,))),
    calls("report", {"histories": [RUN], "source": None},
          source=(NO_STRINGS, (5, "no/such"))),
]  # fmt: skip
RECORDED = [
    calls("recorded_runs", {"task": "digits-autoencoder", "recipes": ["fp32"], "where": None},
          task="word", recipes=NAMES, where=FOLDER),
    calls("recorded_gradients", {"recipe": "fp32", "fmt": FP16, "where": None},
          recipe="word", fmt=FORMAT, where=FOLDER),
    *[calls(name, {"where": None}, where=FOLDER)
      for name in ("recorded_network", "recorded_units")],
]  # fmt: skip


def png(zoom):
    return pictures.Picture(height=1.0, width=1.0).png(zoom=zoom)


def save(path):
    return pictures.Picture(height=1.0, width=1.0).save(path)


PICTURE = [
    Asked("Picture", pictures.Picture, {"height": 1.0, "width": 1.0},
          {"height": POSITIVE, "width": POSITIVE}),
    Asked("png", png, {"zoom": 1.0}, {"zoom": ("real", (0, -1.0, 1e6))}),
    Asked("save", save, {"path": "/dev/null/no.png"},
          {"path": ("object", (None, 5, FP16, "no.pdf"))}),
]  # fmt: skip
MORE_CALLS = [*MEASURED, *NUMBERS, *ARRAYS, *RECORDED, *PICTURE]


@pytest.mark.parametrize("asked", [*EVERYTHING, *MORE_CALLS], ids=lambda asked: asked.name)
def test_every_odd_call_is_refused_with_the_figure_and_the_argument_named(asked):
    complaints = list(asked.complaints())
    assert not complaints, f"{len(complaints)} of them:\n" + "\n".join(complaints)


def test_every_figure_and_measurement_is_asked_oddly_and_often():
    asked = {a.name for a in [*EVERYTHING, *MORE_CALLS]}
    assert set(pictures.__all__) - {"Sum", "Table", "Window"} <= asked
    assert sum(1 for a in [*EVERYTHING, *MORE_CALLS] for _ in a.odd_calls()) > 4000


@pytest.mark.parametrize("asked", MORE_CALLS, ids=lambda asked: asked.name)
def test_what_the_odd_calls_are_made_from_is_right(asked):
    try:
        asked.call(**asked.right)
    except OSError:
        assert asked.name == "save"  # to where there is no folder


def test_what_is_right_though_unusual_stays_right():
    for several in ((FP16,), {FP32: "a key"}.keys(), {FP16}, np.array([FP16])):
        canvas.require_some("spacing", "formats", several, Format)
    canvas.require_named("landing", "numbers", {"one": np.float32(1), "two": 2}, Real)
    canvas.require_some("mean_errors", "x", np.ones(3))
    fraction = pictures.bit_fields(Fraction(1, 10), [FP16, FP32])
    assert fraction.claim.endswith("none of them exactly")
    assert "0.5 of" not in pictures.bit_fields(np.float32(0.5), [FP16]).claim
    assert pictures.bit_fields(HUGE, [FP16]).claim.endswith("none of them exactly")
    losses = pictures.loss_meter(torch.tensor([2.0, 1.0]), [FP16])
    assert losses.claim == pictures.loss_meter([Fraction(2), 1], [FP16]).claim
