"""What the runs say to odd calls: the function and the argument, by name."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from odd_calls import HUGE, ODD, Asked, without
from torch import nn

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP8_E8M0, FP16, FP32, Format
from mplab import training as lab
from mplab.training import RECIPES, Recipe, Split, Task

WIDE = Format("wide", exponent_bits=11, precision=20)
ROWS = torch.ones(3, 2)
TINY = Task(
    "tiny",
    steps=0,
    batch=None,
    data=lambda: Split((ROWS, ROWS), (ROWS, ROWS)),
    model=lambda: nn.Linear(2, 2),
    loss=nn.functional.mse_loss,
    metrics=lambda output, split: {},
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
)
WORD = (without("object", "no", "", "1e"), (None,))
PATH = (without("object", "no", "1e"), (None, "a\0b"))
MAYBE_PATH = (without("object", "no", "1e"), ("a\0b",))
MAYBE_CALLABLE = (tuple(x for x in ODD["object"] if not callable(x)),)
CALLABLE = (*MAYBE_CALLABLE, (None,))
SEED = ("count", (2**64, HUGE))
MAYBE_COUNT = (without("count", None),)
LIST = (tuple(x for x in ODD["object"] if not isinstance(x, list | tuple | np.ndarray)), (None,))
DEVICE = (without("object"), ("no", "cuda:99", "meta", "", 1.5, True, FP16))
MAYBE_DEVICE = (without("object", None), DEVICE[1])
UNLIKE_CUDA = (MAYBE_DEVICE[0], tuple(x for x in DEVICE[1] if x != "cuda:99"))
TASK = ("object", (None, "chess", Task, RECIPES["fp32"]))
RECIPE = ("object", (None, "fp64", Recipe, TINY))
PARTIAL = (
    *("bf16-pure", "bf16-kahan", "fp16-pure", "fp8-current", "amp-fp8-current", "torch-fp16-pure"),
    replace(RECIPES["fp32"], max_norm=1.0),
    replace(RECIPES["fp16-scaled"], native=True),
    replace(RECIPES["bf16"], policy="everything"),
    replace(RECIPES["bf16"], checkpointing=True),
)
FORMAT = ("format", (torch.float16,))
LOW = ("format", (torch.float16, FP8_E8M0, WIDE))
FACTOR = ("real", (0, 1, -1))


def trained(function=lab.train, recipe="fp32", **asked):
    """No step of a tiny task."""
    return function(asked.pop("task", TINY), recipe, **{"progress": False, **asked})


def tiny(**changes):
    """A run of the tiny task, with changes in what JSON has of it."""
    return {**trained().to_json(), **changes}


def endless(x):
    """Whether this is the float infinity."""
    return isinstance(x, float) and x == float("inf")


class Silent:
    """Watches without a word."""

    def __init__(self, *_):
        self.step = self.close = lambda *_: None


def everything(folder):
    """All odd calls; files are in a folder."""
    out, one = folder / "runs.json", folder / "one.json"
    wanted = replace(TINY, steps=1)
    run = lab.train(wanted, "fp32", progress=False)
    folder.mkdir(exist_ok=True)
    lab.save_runs(out, [run])
    run.save(one)

    def loaded(**changes):
        return lab.History.from_json({**run.to_json(), **changes})

    gathered = {"task": wanted, "recipes": ["fp32"], "out": out, "progress": False}
    return [
        Asked(
            "train",
            lambda **asked: lab.train(**asked),
            {"task": TINY, "recipe": "fp32", "seed": 0, "steps": 0, "device": "cpu",
             "progress": False, "record_gradients_at": (), "watch": Silent, "checkpoint": None,
             "save_every": 1, "replay": True},
            {"task": TASK, "recipe": RECIPE, "seed": SEED, "steps": MAYBE_COUNT,
             "device": MAYBE_DEVICE, "progress": "switch",
             "record_gradients_at": (*LIST, ([-1], [True], [0.0], ["0"], [None], [5], (1, -HUGE))),
             "watch": (*MAYBE_CALLABLE, (lambda *_: None, lambda *_: 1, lambda *_: nn.ReLU())),
             "checkpoint": MAYBE_PATH, "save_every": ("count", (0,)), "replay": "switch"},
        ),
        *[
            Asked("train", lambda task: trained(task=task), {"task": TINY},
                  {"task": (odd,)})
            for odd in (
                [replace(TINY, data=lambda: None), replace(TINY, data=lambda: (ROWS, ROWS)),
                 replace(TINY, data=lambda: Split(ROWS, ROWS).train),
                 replace(TINY, data=lambda: Split((ROWS, ROWS), None)),
                 replace(TINY, data=lambda: Split((ROWS, ROWS.numpy()), (ROWS, ROWS)))],
                [replace(TINY, model=lambda: None), replace(TINY, model=lambda: nn.Linear),
                 replace(TINY, optimizer=lambda _: None),
                 replace(TINY, optimizer=lambda _: torch.optim.SGD),
                 replace(TINY, batch=4)],
                [replace(TINY, steps=1, metrics=lambda *_, odd=odd: odd)
                 for odd in (None, 1.0, {"a": None}, {"a": torch.ones(2)}, {1: 1.0})],
                [replace(TINY, steps=1, loss=lambda *_, odd=odd: odd)
                 for odd in (None, 1.0, torch.ones(2, requires_grad=True), torch.ones(()))],
            )
        ],
        Asked("headroom", lambda task: trained(lab.headroom, "fp16-scaled", task=task),
              {"task": TINY}, {"task": ([replace(TINY, steps=1, loss=lambda *_, odd=odd: odd)
               for odd in (None, 1.0, torch.ones(2, requires_grad=True), torch.ones(()))],)}),
        Asked(
            "headroom",
            lambda **asked: lab.headroom(**asked),
            {"task": TINY, "recipe": "fp16-scaled", "seed": 0, "steps": 0, "progress": False},
            {"task": TASK, "recipe": (*RECIPE, ("fp32",)), "seed": SEED, "steps": MAYBE_COUNT,
             "progress": "switch"},
        ),
        Asked(
            "gather",
            lambda **asked: lab.gather(**asked),
            {**gathered, "seeds": (0,), "steps": 1, "device": "cpu", "save_every": 50,
             "told": None},
            {"task": TASK,
             "recipes": (*LIST, ("fp32", RECIPES["fp32"], [None], [1], ["fp64"], [["fp32"]],
                                 [Recipe], [])),
             "out": PATH,
             "seeds": (*LIST, (0, "01", [True], [0.0], ["0"], [None], [-1], [2**64], [HUGE], [])),
             "steps": (*MAYBE_COUNT, (0,)), "device": UNLIKE_CUDA, "progress": "switch",
             "save_every": ("count", (0,)), "told": (tuple(
                 x for x in MAYBE_CALLABLE[0] if x is not None),)},
            {"recipes": ("recipe",)},
        ),
        Asked(
            "gather",
            lambda device: device and lab.gather(
                **{**gathered, "out": folder / "new.json", "device": device}
            ),
            {"device": None}, {"device": (("cuda:99", "meta"),)},
        ),
        *[
            Asked(
                name, function,
                {"task": wanted, "recipe": "bf16", "batch": 2, "device": "cpu", **more},
                {"task": TASK, "recipe": (*RECIPE, PARTIAL),
                 "batch": (*MAYBE_COUNT, (0, 4, HUGE)), "device": DEVICE, **kinds},
            )
            for name, function, more, kinds in (
                ("memory", lab.memory, {"checkpointed": False},
                 {"checkpointed": ("switch", (True,))}),
                ("stage_times", lab.stage_times, {"steps": 1}, {"steps": ("count", (0,))}),
            )
        ],
        Asked("exponent_histogram", lab.exponent_histogram, {"x": np.ones(3)},
              {"x": ("numbers", (torch.ones(2, dtype=torch.bool), torch.ones(2) * 1j, HUGE,
                                 [HUGE], "1.0", ["1.0"], np.ones(2, np.longdouble), 2**63 - 1,
                                 np.array([2**53 + 1]), torch.tensor([2**62 - 1]),
                                 torch.ones(2, device="meta"), torch.eye(2).to_sparse(),
                                 np.zeros(2, "f4,f4"), [torch.tensor([True])]))}),
        Asked("load_runs", lab.load_runs, {"path": out}, {"path": PATH}),
        Asked("save_runs", lab.save_runs, {"path": out, "runs": [run]},
              {"path": PATH, "runs": (*LIST, (run, [None], [1], ["run"], [run, None], [[run]]))}),
        Asked("History.load", lab.History.load, {"path": one}, {"path": PATH}),
        Asked("History.save", run.save, {"path": one}, {"path": PATH}),
        Asked("History.from_json", lab.History.from_json, {"stored": run.to_json()},
              {"stored": ("object", (None, json.dumps(run.to_json()), [run.to_json()]))}),
        *[
            Asked("History.from_json", lambda **changes: loaded(**changes),
                  {name: run.to_json()[name]}, {name: kinds}, {name: ("stored",)})
            for name, kinds in (
                ("task", ((None, 1, ["a"]),)), ("recipe", ((None, True),)),
                ("seed", ((None, "0", 0.5, True),)), ("simulated", ((None, 0, "no"),)),
                ("device", ((None, 1),)), ("compute_format", ((None, 16),)),
                ("loss", ((None, 1.0, ["a"], [[1.0]], "1", [1.0, 2.0], ["1.0"], [True]),)),
                ("skipped", ((None, ["no"], [0], [2], "1", [[True]], [None]),)),
                ("metrics", ((None, [], {"a": "b"}, {"a": None}),)),
                ("gradients", ((None, {"a": {}}, {"0": {"a": [1]}}, []),)),
                ("tally", ((None, {"a": {"b": {"c": 1}}}, []),)),
                ("environment", ((None, {"a": 1}, []),)), ("settings", ((None, []),)),
            )
        ],
        *recipes(),
        Asked(
            "Task",
            Task,
            {name: getattr(TINY, name) for name in TINY.__dataclass_fields__},
            {"name": WORD, "steps": "count", "batch": (*MAYBE_COUNT, (0,)), "data": CALLABLE,
             "model": CALLABLE, "loss": CALLABLE, "metrics": CALLABLE, "optimizer": CALLABLE,
             "verdict": WORD},
        ),
        Asked("Split.to", TINY.data().to, {"device": "cpu"}, {"device": ((None, *DEVICE[0]),
              DEVICE[1][:2], DEVICE[1][3:])}),
    ]  # fmt: skip


def recipes():
    """Odd recipes."""
    low = {"simulated": True, "weight_format": BF16, "optimizer_format": BF16}
    good = {"name": "mine", "compute_format": BF16, **low, "policy": "everything",
            "device": "cpu", "init_scale": 8.0, "dynamic": True, "scale_rule": "torch",
            "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3,
            "update_rounding": "kahan", "max_norm": 1.0, "fp8": None, "checkpointing": False,
            "native": False}  # fmt: skip
    odd = {"name": WORD, "compute_format": LOW, "weight_format": LOW, "optimizer_format": LOW,
           "simulated": "switch", "policy": ("word", (None, "EVERYTHING")),
           "device": (without("object", None, "no", "1e"), (1.5, True)),
           "init_scale": (without("real", None), (0, -1, 1e39)), "dynamic": "switch",
           "scale_rule": ("word", (None, "LossScaler")),
           "growth_factor": FACTOR, "backoff_factor": FACTOR, "growth_interval": ("count", (0,)),
           "update_rounding": ("word", (None,)),
           "max_norm": (tuple(x for x in without("real", None) if not endless(x)), (0, -1.0)),
           "fp8": (without("word", None), ("fp8-current",)), "checkpointing": "switch",
           "native": "switch"}  # fmt: skip
    real = {"name": "mine", "compute_format": FP16, "native": False}
    scaleless = {"name": "mine", "compute_format": FP32, "growth_factor": 2.0,
                 "backoff_factor": 0.5, "growth_interval": 3, "dynamic": True}  # fmt: skip
    eight = {"name": "m", "compute_format": FP8_E4M3, "simulated": True, "fp8": "current",
             "native": False}  # fmt: skip
    return [
        Asked("Recipe", Recipe, good, odd),
        Asked("Recipe", Recipe, real, {"compute_format": FORMAT, "native": ((True,),)}),
        Asked("Recipe", Recipe, scaleless, {"growth_factor": FACTOR, "backoff_factor": FACTOR,
              "growth_interval": ("count", (0,)), "dynamic": "switch"}),
        Asked("Recipe", Recipe, eight, {"compute_format": ((FP8_E5M2,),), "native": ((True,),)}),
    ]  # fmt: skip


NO_FUNCTIONS = {"RECIPES", "TASKS", "ExponentHistogram", "Watcher"}
EVERY_NAME = (
    "train headroom gather memory stage_times exponent_histogram load_runs save_runs "
    "History Recipe Task Split"
)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """All odd calls, by the function."""
    found = {}
    for asked in everything(tmp_path_factory.mktemp("runs")):
        found.setdefault(asked.name.partition(".")[0], []).append(asked)
    return found


@pytest.mark.parametrize("name", EVERY_NAME.split())
def test_every_odd_call_is_refused_with_the_function_and_the_argument_named(name, calls):
    for asked in calls[name]:
        asked.call(**asked.right)
    complaints = [complaint for asked in calls[name] for complaint in asked.complaints()]
    assert not complaints, f"{len(complaints)} of them:\n" + "\n".join(complaints)


def test_every_name_of_the_front_is_asked_oddly_and_often(calls):
    assert set(lab.__all__) - NO_FUNCTIONS == set(EVERY_NAME.split()) == set(calls)
    assert sum(1 for asked in calls.values() for a in asked for _ in a.odd_calls()) > 1000


def test_what_is_right_though_unusual_stays_right():
    assert trained(seed=np.int64(3), steps=np.int32(0)).seed == 3
    assert trained(device=torch.device("cpu"), record_gradients_at=[0]).device == "cpu"
    assert Recipe("mine", FP16, max_norm=float("inf")).max_norm == float("inf")
    json.dumps(Recipe("mine", FP16, init_scale=np.float32(8), dynamic=np.bool_(True)).settings())
    for dtype in (np.int8, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        assert lab.exponent_histogram(np.ones(2, dtype)).counts.tolist() == [2]
    assert lab.exponent_histogram([]).zeros == 0
    assert lab.exponent_histogram([1, 0.5]).exponents.tolist() == [-1, 0]
    assert lab.exponent_histogram(torch.ones(2).to(torch.float8_e5m2)).counts.tolist() == [2]
    assert lab.exponent_histogram([torch.tensor(2.0)]).exponents.tolist() == [1]
