"""The recording script: what a killed run leaves, and what its parts measure."""

import math
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import record
import torch
from parts import casts, kernels, runs as on_device, tensorcores
from parts.casts import checksum
from parts.part import Setting

from mplab import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    Overflow,
    Rounding,
    decode,
    round_to,
)
from mplab.arithmetic import mma
from mplab.lessons.l06.probes import partner
from mplab.lessons.recordings import SCHEMA, digest_of, load
from mplab.simulation import CPU_AUTOCAST

CPU = torch.device("cpu")


REHEARSAL = Setting(CPU, True, lambda: 60.0)


def asked(part, folder):
    return record.Request(CPU, folder, [part], rehearse=True)


LONG = ("tensorcores", "training", "speed")
SLOW = pytest.mark.slow


# Low kernels -------------------------------------------------------------------------------


def test_low_kernels_are_recorded_as_equal_or_with_what_differs(tmp_path):
    """On the CPU all are equal but what an order of sums or a processor's function decides."""
    made = record.record("kernels", asked("kernels", tmp_path))
    assert (made.problem, made.complete) == ("", True)
    found = load("kernels", where=tmp_path).data
    assert set(found) == set(SCHEMA["kernels"])
    exact = set(found) - {"functions", "norms", "marked"}
    assert not any(found[group]["different"] for group in exact)
    raise_both = [name for name in found["sums"]["equal"] if "both raise" in name]
    assert raise_both == []
    assert sum(len(rows["equal"]) for rows in found.values()) > 90


def test_a_low_kernel_that_is_not_as_simulated_is_recorded_with_what_it_could_be(
    monkeypatch,
):
    """3,000 gradients of one number, which the low kernel adds in the format, one by one."""
    text = 'back(lambda w: F.pad(w[None], (3000, 3000), mode="replicate"))(x)'
    program = kernels.program_of(text, back=kernels.gradient_of)
    given = "pad", program, (torch.ones(2, 4),), BF16, "cpu"
    ways = ("pad | BF16, autocast", "pad | BF16, low")
    assert dict(kernels.compare(*given)) == {way: {} for way in ways}
    policies = {
        "simulated": replace(CPU_AUTOCAST, wide=frozenset(), kernels="cuda"),
        "as on cpu": replace(CPU_AUTOCAST, wide=frozenset()),
    }
    compared = {"low": kernels.Compared(nullcontext(), policies)}
    monkeypatch.setattr(kernels, "_ways", lambda *_: compared)
    wrong = {"differing": 4, "first": [256.0, 3008.0], "most": 2752.0}
    assert dict(kernels.compare(*given))["pad | BF16, low"] == {
        "simulated": wrong,
        "as on cpu": {},
        "in float32": wrong | {"first": [256.0, 3001.0], "most": 2745.0},
        "rounded once": wrong,
        "elements": 8,
    }


# Recording -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    ["casts", "larger", "exponents", *[pytest.param(p, marks=SLOW) for p in LONG]],
)
def test_each_part_rehearses_on_a_cpu_and_says_nothing_about_the_place(part, tmp_path):
    made = record.record(part, asked(part, tmp_path / "private-folder"))
    assert (made.problem, made.complete) == ("", True)
    path = tmp_path / "private-folder" / f"{made.name}.json"
    assert load(part, where=path.parent).provenance["device"] == "CPU"
    assert not made.provenance["cuda"]
    assert (
        "private-folder" not in path.read_text()
        and str(tmp_path) not in path.read_text()
    )
    assert platform.node() not in path.read_text() or len(platform.node()) < 4


def test_an_error_in_one_part_is_recorded_and_the_others_go_on(
    tmp_path, monkeypatch, capsys
):
    def broken(to):
        yield "parameters", 7
        raise OSError("cannot read /root/secret/file.txt")

    parts = record.PARTS | {"larger": record.Part(broken, 5)}
    monkeypatch.setattr(record, "PARTS", parts)
    code = record.main(
        ["--only", "larger", "casts", "--rehearse", "--out", str(tmp_path)]
    )
    assert code == 1
    bad = load("larger", where=tmp_path)
    assert (bad.complete, bad.data) == (False, {"parameters": 7})
    assert bad.problem == "OSError: cannot read …"
    assert load("casts", where=tmp_path).complete
    assert "not complete: OSError" in capsys.readouterr().out


@pytest.mark.slow
def test_recording_needs_no_more_than_torch_numpy_numba_and_ml_dtypes(tmp_path):
    """A machine that is lent for an hour has no notebooks, progress bars or plots."""
    code = (
        "import sys\n"
        "for name in ('tqdm', 'IPython', 'ipywidgets', 'jupyterlab', 'matplotlib', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import record; raise SystemExit(record.main(sys.argv[2:]))"
    )
    names = "casts", "training", "larger", "speed", "exponents"
    here = Path(record.__file__).parent
    asked_for = ["--only", *names, "--rehearse", "--out", tmp_path]
    done = subprocess.run(
        [sys.executable, "-c", code, here, *asked_for],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert not [
        row for row in load("training", where=tmp_path).data["runs"] if "problem" in row
    ]


def test_the_time_that_a_part_leaves_goes_to_those_after_it(tmp_path, monkeypatch):
    """Alone a part has all the time: one that ran out of it is recorded with `--only`."""
    given = {}

    def kept(name, to, *, most):
        given[name] = most
        return to.empty(name)

    monkeypatch.setattr(record, "made_or_kept", kept)
    command = ["--out", str(tmp_path), "--minutes", "6"]
    record.main([*command, "--all"])
    shares = [part.share for part in record.PARTS.values()]
    assert given["casts"] == pytest.approx(360 * shares[0] / sum(shares), abs=1)
    assert given["exponents"] == pytest.approx(360, abs=1)
    record.main([*command, "--only", "training"])
    assert given["training"] == pytest.approx(360, abs=1)
    assert record.MINUTES * 60 < 480
    # Which is read, but recorded no more.
    assert {*record.PARTS, "audit"} == set(SCHEMA)


# Parts -----------------------------------------------------------------------------------


def test_casts_count_differences_under_both_overflow_rules():
    """A CPU's casts are the simulator's, saturating or not according to the version of torch."""
    data = dict(record.PARTS["casts"].make(REHEARSAL))
    for fmt in (FP16, BF16, FP8_E4M3):
        row = data["formats"][fmt.name]
        assert row["inputs"] == 65 * 4096
        assert min(row["differing"].values()) == 0
        assert max(row["differing"].values()) > 0
        assert len(row["checksums"]) == 65
    inputs, outputs = data["overflow"]["FP16"]
    assert inputs[:2] == [65504.0, 65520.0]
    assert outputs[:2] == [65504.0, np.inf]


def test_a_wrong_cast_is_counted(monkeypatch):
    def towards_zero(x, fmt, *, overflow=Overflow.IEEE, out=None):
        result = round_to(
            x.numpy(), fmt, rounding=Rounding.TOWARD_ZERO, overflow=overflow
        )
        return torch.from_numpy(np.asarray(result))

    monkeypatch.setattr(casts, "round_tensor", towards_zero)
    data = dict(record.PARTS["casts"].make(REHEARSAL))
    assert all(
        min(row["differing"].values()) > 1000 for row in data["formats"].values()
    )
    for code, native, ours in data["formats"]["FP16"]["first"]["IEEE"]:
        x = float(np.array(int(code, 16), np.uint32).view(np.float32))
        assert native != ours
        assert native == float(np.float16(x)) or np.isnan(x)
    assert len(data["formats"]["FP16"]["first"]["IEEE"]) == 32


def test_a_checksum_notices_one_bit_and_an_exchange():
    t = torch.arange(64).to(torch.float16)
    changed = t.clone()
    exchanged = t.clone()
    changed.view(torch.int16)[5] ^= 1
    exchanged[[3, 4]] = exchanged[[4, 3]]
    assert len({checksum(t), checksum(changed), checksum(exchanged)}) == 3
    with pytest.raises(ValueError, match="JSON"):
        digest_of({"seconds": math.nan})


class Pretended(Setting):
    """A CUDA device that is none: its products are a model's."""

    cuda = True


PRETENDED = Pretended(CPU, True, lambda: 60.0)


def model_product(**how):
    def product(a, b, fmt, *, fast=True):
        options = how if not fast or "architecture" in how else {}
        formats = fmt, partner(fmt)
        result = mma(
            a.double().numpy(), b.double().numpy(), input_format=formats, **options
        )
        return torch.from_numpy(result)

    return product


def test_blocks_that_a_model_answers_agree_with_it_alone(monkeypatch):
    """A device with Ampere's unit agrees with Ampere (and Ada) everywhere, not with Hopper."""
    monkeypatch.setattr(tensorcores, "product", model_product(architecture="ampere"))
    row = {"blocks": 0, "differing": {}, "wrong": []}
    tensorcores._random_blocks(FP16, PRETENDED, row)
    assert row["blocks"] == 128**2
    assert row["differing"]["ampere"] == row["differing"]["ada"] == 0
    assert min(row["differing"][name] for name in ("volta", "hopper")) > 1000
    assert len(row["wrong"]) == 32
    # The operands and the result are enough to ask any model again.
    assert not any(differs(kept, "ampere") for kept in row["wrong"])
    assert all(differs(kept, "hopper") for kept in row["wrong"])


def differs(kept, architecture):
    """Whether a model gives another result for a sum of FP16 products that was kept."""
    formats = FP16, FP16, FP32
    left, right, result = map(from_hex, kept, formats)
    answer = mma(left[None], right[:, None], architecture=architecture)[0, 0]
    return not np.array_equal(answer, result[0], equal_nan=True)


def from_hex(text, fmt):
    digits = -(-fmt.bits // 4)
    codes = [int(text[i : i + digits], 16) for i in range(0, len(text), digits)]
    return np.asarray(decode(np.array(codes, np.uint32), fmt), np.float64)


def test_blocks_of_e5m2_are_compared_with_the_mixed_unit(monkeypatch):
    """The kernel multiplies E5M2 by E4M3, whose subnormals have another least exponent."""
    monkeypatch.setattr(tensorcores, "product", model_product(architecture="hopper"))
    row = {"blocks": 0, "differing": {}, "wrong": []}
    tensorcores._random_blocks(FP8_E5M2, PRETENDED, row)
    assert set(row["differing"]) == {"ada", "hopper", "blackwell", "rtx_blackwell"}
    assert row["differing"]["hopper"] == 0 < row["differing"]["blackwell"]


def test_the_interval_of_promotion_is_found(monkeypatch):
    monkeypatch.setattr(tensorcores, "product", model_product(promote_every=128))
    monkeypatch.setattr(tensorcores, "_WIDE", 2)
    found = tensorcores._promotion(PRETENDED._replace(rehearse=False))
    assert found["fast"] == []
    assert found["precise"][0] == 128
    assert found["precise"][-2:] == [768, 1023]


# Sweeps and processes --------------------------------------------------------------------


def test_a_sweep_asks_for_what_it_says():
    for sweep in tensorcores.SWEEPS:
        for fmt in sweep.formats:
            made = {k: sweep.make(k, fmt) for k in sweep.exponents}
            sums = [
                np.prod(np.array(terms), axis=1) for terms in made.values() if terms
            ]
            assert 8 < len(sums) <= 128, (sweep.terms, fmt)
    one = tensorcores.SWEEPS[0].make(-25, FP16)
    assert np.prod(np.array(one), axis=1).tolist() == [1.0, 2.0**-25, -1.0]
    chained = np.prod(np.array(tensorcores.SWEEPS[3].make(-14, FP8_E4M3)), axis=1)
    assert np.flatnonzero(chained).tolist() == [0, 32, 64]
    assert tensorcores._power(-30, FP8_E4M3) is None
    assert tensorcores.SWEEPS[5].make(-60, BF16)[0] == (0.0, 2.0**127)


@pytest.mark.slow
def test_sweeps_and_samples_keep_what_the_models_can_be_asked_again(monkeypatch):
    """Operands and results that come back from a file give each model its own answers."""
    monkeypatch.setattr(tensorcores, "product", model_product(architecture="hopper"))
    samples = tensorcores._samples(FP16, REHEARSAL)
    held = [kept for rows in samples.values() for kept in rows]
    for row in tensorcores._sweeps(REHEARSAL):
        if row["format"] == "FP16":
            assert len(row["sums"]) == len(row["exponents"])
            held += row["sums"]
    assert not any(differs(kept, "hopper") for kept in held)
    assert any(differs(kept, "ampere") for kept in held)


def dying(to):
    yield "parameters", 7
    os._exit(3)


def hanging(to):
    yield "parameters", 7
    time.sleep(60)


def parts_of(make, monkeypatch):
    """Parts in a child process are those of the module there: the fork has this one's."""
    monkeypatch.setitem(record.PARTS, "larger", record.Part(make, 1))
    monkeypatch.setattr(record, "_MARGIN", 1.0)
    spawned = multiprocessing.get_context("fork")
    monkeypatch.setattr(record.multiprocessing, "get_context", lambda way: spawned)


@pytest.mark.slow
def test_a_part_that_takes_its_process_with_it_is_recorded_so_far(
    tmp_path, monkeypatch
):
    for make, problem in (
        (dying, "ended with exit code 3"),
        (hanging, "hung and was ended"),
    ):
        parts_of(make, monkeypatch)
        made = record.record_apart("larger", asked("larger", tmp_path), most=2)
        assert made.problem == f"its process {problem}"
        assert (made.complete, made.data) == (False, {"parameters": 7})
        assert load("larger", where=tmp_path) == made


def test_what_is_complete_is_kept_and_what_is_not_is_recorded_again(
    tmp_path, monkeypatch, capsys
):
    def made(to):
        yield "parameters", len(calls)
        calls.append(1)
        yield "runs", []

    calls = []
    monkeypatch.setitem(record.PARTS, "larger", record.Part(made, 5))
    command = ["--only", "larger", "--rehearse", "--out", str(tmp_path)]
    assert record.main(command) == record.main(command) == 0
    assert calls == [1]
    assert "complete already" in capsys.readouterr().out
    (tmp_path / "larger-cpu.json").unlink()
    assert record.main(command) == 0
    assert calls == [1, 1]
    unfinished = load("larger", where=tmp_path)
    record.store(replace(unfinished, complete=False, problem="not finished"), tmp_path)
    assert record.main(command) == 0
    assert calls == [1, 1, 1]


def test_one_run_that_fails_does_not_take_the_others_with_it(monkeypatch):
    """GradScaler, for one, raises AssertionError."""

    def failing(task, recipe, **options):
        raise AssertionError("No inf checks were recorded for this optimizer.")

    monkeypatch.setattr(on_device, "train", failing)
    runs = dict(on_device.training(REHEARSAL))["runs"]
    assert len(runs) == len(on_device.plan(seeds=(0,)))
    assert all(row["problem"].startswith("AssertionError: No inf") for row in runs)
