"""What the explorers say to odd calls: the explorer and the argument, by name."""

import numpy as np
from odd_calls import HUGE, NAMES_OF_FORMATS, ODD, WORDS, Asked, front_test, refusal_test

from mplab import FP8_E4M3, FP16, Rounding, explorers
from mplab.training import exponent_histogram

COMPLEX = np.ones(2, complex)
NUMBERS = tuple(x for x in ODD["object"] if not isinstance(x, int | float) or x is True)
ENDLESS = (float("nan"), float("inf"), -float("inf"), "nan", HUGE)
SEED = ("count",)
RUNS = (tuple(x for x in ODD["object"] if x is not None), (None, [None], [[]]))
LIMITS = (
    tuple(x for x in ODD["object"] if not isinstance(x, list | tuple | np.ndarray)),
    WORDS[1:],
    ([], ["a"], [True], [None], [[1.0], [1.0, 2.0]], np.ones((2, 2)), COMPLEX, [np.nan]),
)
EVERYTHING = [
    Asked(
        "BitExplorer",
        explorers.BitExplorer,
        {"number": 1, "fmt": FP16},
        {"number": (NUMBERS, ("0x", "0x12345", "1/0", "1e99999")), "fmt": "format"},
    ),
    Asked(
        "NumberLine",
        explorers.NumberLine,
        {"first": FP8_E4M3, "second": FP16, "around": 1, "zoom": 2},
        {
            "first": "format",
            "second": ("format", NAMES_OF_FORMATS),
            "around": (NUMBERS, ENDLESS),
            "zoom": "whole",
        },
    ),
    Asked(
        "RoundingLab",
        explorers.RoundingLab,
        {"number": 1, "fmt": FP8_E4M3, "mode": Rounding.TOWARD_ZERO, "seed": 0},
        {
            "number": (NUMBERS, ENDLESS, (449, -1e6)),
            "fmt": "format",
            "mode": ("member", (Rounding.TO_ODD,)),
            "seed": (*SEED, (2**64,)),
        },
    ),
    Asked(
        "RangeMap",
        explorers.RangeMap,
        {"source": exponent_histogram(np.ones(3)), "fmt": FP16},
        {"source": "object", "fmt": "format"},
    ),
    Asked("AccumulatorRace", explorers.AccumulatorRace, {"seed": 0}, {"seed": SEED}),
    Asked("AmaxHistory", explorers.AmaxHistory, {"seed": 0}, {"seed": SEED}),
    Asked("UpdateStagnation", explorers.UpdateStagnation, {"seed": 0}, {"seed": (*SEED, (2**64,))}),
    Asked("TrainingTheatre", explorers.TrainingTheatre, {}, {"runs": RUNS}),
    Asked("ScalerTimeline", explorers.ScalerTimeline, {"source": None}, {"source": LIMITS}),
]
NO_ARGUMENTS = {
    "Clinic",
    "ErrorBudget",
    "Explorer",
    "FourBitBlock",
    "FreezingCup",
    "MatrixStep",
    "PolicyExplorer",
    "Refiner",
    "SliceSums",
    "SpeedUp",
    "SplitRow",
}


test_every_odd_call_is_refused_by_name = refusal_test(EVERYTHING, untried=("TrainingTheatre",))
test_every_name_of_the_front_is_asked = front_test(
    EVERYTHING, explorers, but=NO_ARGUMENTS, least=500
)


def test_what_is_right_though_unusual_stays_right():
    assert explorers.BitExplorer(np.float32(0.5)).entry == "0.5"
    assert explorers.BitExplorer(HUGE).entry == str(HUGE)
    assert explorers.NumberLine(zoom=99).zoom == 18  # the end of the slider
    assert explorers.ScalerTimeline((4, 4)).turns[0].scale == 2.0**16
