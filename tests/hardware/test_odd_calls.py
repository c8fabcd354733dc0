"""What probes, recordings and rooflines say to odd calls: the function and the argument."""

import numpy as np
import pytest
import torch
from odd_calls import HUGE, ODD, Asked, without

from mplab import FP16, FP32, TF32
from mplab import hardware as lab
from mplab.hardware import probes, recordings, rooflines

PROVENANCE = {
    **{name: "a" for name in ("device", "driver", "torch", "numpy", "python", "mplab", "date")},
    **{"command": "b", "seeds": [], "rehearsal": True, "seconds": 1.0, "cuda": False},
}
NUMBERS = tuple(x for x in ODD["real"] if not (isinstance(x, float) and x == float("inf")))
PROBE = lab.PROBES[0]
LIST = (tuple(x for x in ODD["object"] if not isinstance(x, list | tuple | np.ndarray)), (None,))
SIZES = (*LIST, ([], (), 2, "2", [0], [-1], [True], [2.0], ["2"], [None], [[2]]))
FORMATS = (*LIST, ([], FP16, [None], ["FP16"], [torch.float16], [TF32], [FP16, "FP16"]))
DEVICE = (ODD["object"], ("no", "cuda:99", "meta", "", 1.5, True, None, FP16))
PART = (without("object", "no"), (None, "no", "castz", "casts-cpu", "CASTS", ""))
WHERE = (without("object", None, "no", "1e"), ("a\0b",))
ROOFLINE = lab.Roofline("here", 1.0, (rooflines.Product(2, "FP16", 1.0, 1.0),))


def everything(folder):
    """All odd calls; recordings are in a folder."""

    def saved(**fields):
        into = fields.pop("folder", folder)
        return lab.Recording(**fields).save(into)

    kept = {"part": "larger", "provenance": PROVENANCE, "data": {"parameters": 1, "runs": []},
            "complete": True, "problem": ""}  # fmt: skip
    saved(**kept)
    return [
        Asked("available", lab.available, {"where": folder}, {"where": WHERE}),
        Asked("load", lab.load, {"name": "larger", "where": folder},
              {"name": ("object", (None, "../larger-a", "no", "", "lar", 5)), "where": WHERE}),
        *[
            Asked(name, getattr(lab, name), {"part": "larger", "where": folder},
                  {"part": PART, "where": WHERE})
            for name in ("first", "caption")
        ],
        Asked("how_to_record", recordings.how_to_record, {"part": "casts"},
              {"part": (without("object", "no", "", "1e"), (None,))}),
        Asked("Recording.save", saved, {**kept, "folder": folder},
              {"part": PART, "provenance": ("object", (None, {}, {**PROVENANCE, "device": 1},
                                                      {**PROVENANCE, "cuda": 0})),
               "data": ("object", (None, {}, {"parameters": "1", "runs": []},
                                   {"parameters": True, "runs": []},
                                   {"parameters": 1, "runs": [{1}]},
                                   {"parameters": 1, "runs": [np.ones(1)]})),
               "complete": "switch",
               "problem": (without("object", "no", "", "1e"), (None,)),
               "folder": (without("object", "no", "1e"), (None, "a\0b"))}),
        Asked(
            "measured",
            lab.measured,
            {"sizes": [1], "formats": [FP32], "device": "cpu", "seconds": 1},
            {"sizes": SIZES, "formats": FORMATS, "device": DEVICE,
             "seconds": (NUMBERS, (-1.0,))},
        ),
        Asked(
            "matmul_errors",
            lab.matmul_errors,
            {"sizes": [1], "formats": [FP32], "device": "cpu", "mean": 0.0, "seed": 0},
            {"sizes": SIZES, "formats": FORMATS, "device": DEVICE, "mean": "real",
             "seed": ("count", (2**64, HUGE))},
        ),
        Asked("Roofline.peak", ROOFLINE.peak, {"fmt": "FP16"}, {"fmt": ("word", (FP16, "FP32"))}),
        Asked("work_per_byte", rooflines.work_per_byte, {"size": 2, "fmt": FP16},
              {"size": ("count", (0,)), "fmt": "format"}),
        Asked("Probe.factors", PROBE.factors, {"least": 1}, {"least": ("count", (HUGE,))}),
        Asked("Probe.ask", PROBE.ask, {"architecture": "hopper"},
              {"architecture": ("object", ("fermi", "Hopper"))}),
        Asked("Probe.ask_rejected", PROBE.ask_rejected, {"model": PROBE.rejected[0]},
              {"model": ("object", (None, PROBE, "24 fraction bits"))}),
        Asked("on_cuda", lambda probe: None if probe is PROBE else probes.on_cuda(probe),
              {"probe": PROBE}, {"probe": ("object", (None, PROBE.terms, 0, lab.PROBES))}),
        Asked("report", probes.report, {"probe": PROBE, "measured": 0.5},
              {"probe": ("object", (None, PROBE.terms)),
               "measured": (tuple(x for x in ODD["extended"] if x is not None), (1j,))}),
        Asked("same", probes.same, {"answer": 0.0, "other": 0.5},
              {"answer": ("extended", (None,)), "other": ("extended", (None,))}),
    ]  # fmt: skip


NO_FUNCTIONS = {"PROBES", "recorded"}
EVERY_NAME = (
    "available load first caption how_to_record Recording measured matmul_errors Roofline "
    "work_per_byte Probe on_cuda report same"
)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """All odd calls, by the function."""
    found = {}
    for asked in everything(tmp_path_factory.mktemp("recordings")):
        found.setdefault(asked.name.partition(".")[0], []).append(asked)
    return found


@pytest.mark.parametrize("name", EVERY_NAME.split())
def test_every_odd_call_is_refused_with_the_function_and_the_argument_named(name, calls):
    for asked in calls[name]:
        asked.call(**asked.right)
    complaints = [complaint for asked in calls[name] for complaint in asked.complaints()]
    assert not complaints, f"{len(complaints)} of them:\n" + "\n".join(complaints)


def test_every_name_of_the_front_is_asked_oddly_and_often(calls):
    assert set(lab.__all__) - NO_FUNCTIONS <= set(EVERY_NAME.split()) == set(calls)
    assert sum(1 for asked in calls.values() for a in asked for _ in a.odd_calls()) > 700


def test_what_is_right_though_unusual_stays_right(tmp_path):
    assert lab.available(where=tmp_path / "nowhere") == []
    assert lab.first("speed", where=tmp_path) is None
    errors = lab.matmul_errors(np.array([2]), (f for f in [FP16]), device=torch.device("cpu"))
    assert [(row.size, row.fmt) for row in errors] == [(2, "FP16")]
    assert probes.same(np.float32(1), 1) and not probes.same(0.0, -0.0)
