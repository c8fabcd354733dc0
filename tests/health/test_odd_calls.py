"""What the watch says to odd calls: the function and the argument, by name."""

import numpy as np
import torch
from odd_calls import HUGE, ODD, Asked, refusal_test

from mplab import FP16
from mplab.health import CASES, Digest, Health, compare
from mplab.health.broken_runs import Outcome
from mplab.health.trainers import _Teller

MODEL = torch.nn.Sequential(torch.nn.Linear(2, 1))
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
FORMAT = ("object", (None,))
NO_LAYERS = (
    *(x for x in ODD["object"] if not isinstance(x, list) or x),
    *("0", b"0", [5], [None], [b"0"], {"0": 1}, ["nothing"], 5),
)
TENSORS = (
    torch.ones(2),
    torch.tensor(True),
    torch.tensor(1j),
    torch.ones(0),
    np.ones(2),
    HUGE,
    -HUGE,
    "0.5",
)


def step(**told):
    return Health(MODEL).step(**{"loss": 0.5, **told})


def teller(say_every=1, told=print):
    return _Teller("lightning_callback", say_every, None, told)


CASE = CASES["loss-meter"]
DIGEST = Digest(MODEL, OPTIMIZER)
NO_PATHS = (*(x for x in ODD["object"] if not isinstance(x, str) or not x), "", "a\0b", Digest)
WATCH = [
    Asked(
        "Health",
        Health,
        {"model": MODEL, "optimizer": OPTIMIZER, "fmt": FP16, "scaler": None, "every": 1,
         "trace_every": 5, "weight_format": None, "layers": ["0"]},
        {"model": ("object", (None, torch.nn.Linear)), "optimizer": ("object", (MODEL,)),
         "fmt": "format", "scaler": ("object", (1.0,)), "every": ("count", (0,)),
         "trace_every": ("count", (0,)), "layers": (NO_LAYERS,),
         "weight_format": (tuple(x for x in ODD["format"] if x is not None),)},
    ),
    Asked("step", step, {"loss": 0.5, "scale": 2.0, "skipped": False},
          {"loss": (tuple(x for x in ODD["object"] if not isinstance(x, int | float) or x is True),
                    (None, *TENSORS)), "skipped": (ODD["switch"][1:],),
           "scale": (tuple(x for x in ODD["object"] if not isinstance(x, int | float) or x is True),
                     TENSORS)}),
    Asked("Digest", Digest, {"model": MODEL, "optimizer": OPTIMIZER, "every": 1, "path": None},
          {"model": ("object", (None, OPTIMIZER)), "optimizer": ("object", (None, MODEL)),
           "every": ("count", (0,)), "path": (tuple(x for x in NO_PATHS if x is not None),)}),
    Asked("compare", compare, {"run_a": DIGEST, "run_b": DIGEST},
          {name: (NO_PATHS, (None, MODEL)) for name in ("run_a", "run_b")}),
    Asked("run", CASE.run, {"treatment": "fixed"}, {"treatment": "word"}),
    Asked("is_healthy", CASE.is_healthy, {"outcome": Outcome(1.0, (), None)},
          {"outcome": ("object", (None, 1.0, Outcome))}),
    Asked("lightning_callback", teller, {"say_every": 1, "told": print},
          {"say_every": "count", "told": (tuple(x for x in ODD["object"] if not callable(x)),)}),
]  # fmt: skip


test_every_odd_call_is_refused_by_name = refusal_test(WATCH, untried=("run",))


def test_what_is_right_though_unusual_stays_right():
    health = Health(MODEL, every=np.int64(2), layers=("0",))
    health.step(np.float32(0.5), scale=torch.tensor(2.0), skipped=torch.tensor(True))
    health.step(torch.ones(1, 1), scale=2, skipped=np.bool_(False))
    health.step(3)
    assert [(s.loss, s.scale, s.skipped) for s in health.steps] == [
        (0.5, 2.0, True),
        (1.0, 2.0, False),
        (3.0, 1.0, False),
    ]
    assert CASE.is_healthy(Outcome(1.0, (), None))
    assert not CASE.is_healthy(Outcome(float("nan"), (), None))
