"""Recordings: schema, checksum, what a killed run leaves, and what the parts measure."""

import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, Overflow, Rounding, decode, round_to
from mplab.arithmetic import mma
from mplab.commands.main import main
from mplab.hardware import Recording, _casts, _matrix_units, _runs, available, caption, load, record
from mplab.hardware._casts import checksum
from mplab.hardware._parts import Setting
from mplab.hardware._products import partner, product
from mplab.hardware.recordings import SCHEMA

CPU = torch.device("cpu")


def rehearsal(left=lambda: 60.0):
    return Setting(CPU, True, left)


def asked(part, folder):
    return record.Request(CPU, folder, [part], rehearse=True)


def recorded(part, folder):
    return record.record(part, asked(part, folder))


# Files -----------------------------------------------------------------------------------


def small(**changes):
    facts = {
        "part": "larger",
        "provenance": asked("larger", None).provenance(seconds=1.0),
        "data": {"parameters": 3, "runs": [{"loss": [1.5, float("nan")]}]},
        "complete": True,
    }
    return Recording(**{**facts, **changes})


def test_a_recording_comes_back_as_it_was_saved(tmp_path):
    path = small().save(tmp_path)
    assert path.name == "larger-cpu.json"
    assert available(where=tmp_path) == ["larger-cpu"]
    back = load("larger-cpu", where=tmp_path)
    assert back.data == {"parameters": 3, "runs": [{"loss": [1.5, "nan"]}]}
    assert back.provenance == small().provenance | {"date": back.provenance["date"]}
    assert load("larger", where=tmp_path) == back


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"parameters":3', '"parameters":4'),
        ("1.5", "1.25"),
        ('"complete":true', '"complete":true '),
    ],
)
def test_an_edited_recording_is_refused_but_white_space_is_not_an_edit(tmp_path, old, new):
    path = small().save(tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    if new.strip() == old:
        assert load("larger", where=tmp_path).complete
        return
    with pytest.raises(ValueError, match="must be as it was recorded; got one that was changed"):
        load("larger", where=tmp_path)


def test_a_removed_checksum_does_not_help(tmp_path):
    path = small().save(tmp_path)
    tree = json.loads(path.read_text())
    del tree["sha256"]
    path.write_text(json.dumps(tree))
    with pytest.raises(ValueError, match="changed since"):
        load("larger", where=tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"part": "unheard-of"},
        {"data": {"parameters": 3}},
        {"data": {"parameters": "3", "runs": []}},
        {"data": {"parameters": 3, "runs": [], "more": 1}},
        {"provenance": {"device": "CPU"}},
    ],
)
def test_what_is_not_in_the_schema_is_neither_written_nor_read(tmp_path, changes):
    with pytest.raises(ValueError):
        small(**changes).save(tmp_path)
    path = small().save(tmp_path)
    tree = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(tree))
    with pytest.raises(ValueError, match="must be a recording of version 1"):
        load("larger", where=tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mplab recording": 99}', "\x00"])
def test_a_foreign_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "casts-x.json").write_text(text)
    with pytest.raises(ValueError, match=r"load: casts-x.json must be a recording"):
        load("casts-x", where=tmp_path)


def test_without_a_recording_the_error_says_how_to_make_one(tmp_path):
    with pytest.raises(ValueError, match=r"\(none\).*mplab record --only casts --out"):
        load("casts", where=tmp_path)
    with pytest.raises(ValueError, match="must be one recording"):
        load("../secret", where=tmp_path)
    assert isinstance(available(), list)


def test_the_words_say_where_and_when():
    words = small().words
    assert re.fullmatch(r"recorded on CPU on \d{4}-\d\d-\d\d, a rehearsal with tiny sizes", words)
    assert small(complete=False).words.endswith(", unfinished")


def test_a_caption_says_where_a_recording_is_from_or_how_to_make_one(tmp_path):
    missing = caption("larger", where=tmp_path)
    assert missing.startswith("There is no recording of larger yet.\nOn a machine with a CUDA")
    small().save(tmp_path)
    assert caption("larger", where=tmp_path).startswith("recorded on CPU on")


# Recording -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        "casts",
        pytest.param("training", marks=pytest.mark.slow),
        "larger",
        pytest.param("speed", marks=pytest.mark.slow),
        "exponents",
    ],
)
def test_each_part_rehearses_on_a_cpu(part, tmp_path):
    made = recorded(part, tmp_path)
    assert made.problem == ""
    assert made.complete
    assert load(part, where=tmp_path).provenance["device"] == "CPU"
    assert not made.provenance["cuda"]


@pytest.mark.slow
def test_the_matrix_part_rehearses_on_a_cpu(tmp_path):
    made = recorded("tensorcores", tmp_path)
    assert made.complete
    assert {row["problem"] for row in made.data["probes"]} == {"no CUDA device"}
    blocks = made.data["blocks"]
    assert set(blocks) == {"FP16", "BF16", "TF32", "FP8_E4M3", "FP8_E5M2"}
    assert all(row["blocks"] == 128**2 and not row["problem"] for row in blocks.values())


def test_a_recording_says_nothing_about_the_place(tmp_path):
    made = recorded("casts", tmp_path / "private-folder")
    text = (tmp_path / "private-folder" / f"{made.name}.json").read_text()
    assert "private-folder" not in text
    assert str(tmp_path) not in text
    assert platform.node() not in text or len(platform.node()) < 4


def test_an_error_in_one_part_is_recorded_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    def broken(to):
        yield "parameters", 7
        raise OSError("cannot read /root/secret/file.txt")

    parts = record.PARTS | {"larger": record.Part(broken, 5)}
    monkeypatch.setattr(record, "PARTS", parts)
    code = main(["record", "--only", "larger,casts", "--rehearse", "--out", str(tmp_path)])
    assert code == 1
    bad = load("larger", where=tmp_path)
    assert (bad.complete, bad.data) == (False, {"parameters": 7})
    assert bad.problem == "OSError: cannot read …"
    assert load("casts", where=tmp_path).complete
    assert "not complete: OSError" in capsys.readouterr().out


def test_what_was_measured_before_an_interruption_stays(tmp_path, monkeypatch):
    def interrupted(to):
        yield "parameters", 7
        raise KeyboardInterrupt

    monkeypatch.setitem(record.PARTS, "larger", record.Part(interrupted, 5))
    with pytest.raises(KeyboardInterrupt):
        recorded("larger", tmp_path)
    left = load("larger", where=tmp_path)
    assert (left.complete, left.data, left.problem) == (False, {"parameters": 7}, "not finished")


@pytest.mark.slow
def test_recording_needs_no_more_than_torch_numpy_numba_and_ml_dtypes(tmp_path):
    """A machine that is lent for an hour has no notebooks, progress bars or plots."""
    code = (
        "import sys\n"
        "for name in ('tqdm', 'IPython', 'ipywidgets', 'jupyterlab', 'matplotlib', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "from mplab.commands.main import main\n"
        "raise SystemExit(main())"
    )
    names = "casts,training,larger,speed,exponents"
    arguments = ["record", "--only", names, "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    cut = [line for line in said.splitlines() if "not complete" in line]
    assert all("the budget of" in line for line in cut), said  # on a machine that is slow or busy
    assert done.returncode == bool(cut), said
    assert not [row for row in load("training", where=tmp_path).data["runs"] if "problem" in row]


@pytest.mark.slow
def test_a_killed_run_leaves_the_finished_parts(tmp_path):
    code = "from mplab.commands.main import main; raise SystemExit(main())"
    order = "casts,training,larger,speed"
    arguments = ["record", "--only", order, "--rehearse", "--out", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("casts "):
                break
        process.send_signal(signal.SIGKILL)
    assert load("casts", where=tmp_path).complete
    for name in available(where=tmp_path):
        load(name, where=tmp_path)  # whole, or not there


def test_a_part_that_runs_out_of_time_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(record.PARTS, "training", record.Part(_runs.training, 0.0))
    made = recorded("training", tmp_path)
    assert not made.complete
    assert made.problem.startswith("the budget of 0 s was spent")
    assert made.data["runs"] == []


def test_the_budgets_together_stay_below_eight_minutes():
    assert sum(part.budget for part in record.PARTS.values()) <= 420
    assert record.MINUTES * 60 < 480
    assert set(record.PARTS) == set(SCHEMA) - {"audit"}  # in recordings of before


def test_unknown_parts_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["record", "--only", "nothing", "--out", "x"])
    assert "no such part: nothing" in capsys.readouterr().err


# Parts -----------------------------------------------------------------------------------


def test_casts_count_differences_under_both_overflow_rules():
    """A CPU's casts are the simulator's, saturating or not according to the version of torch."""
    data = dict(record.PARTS["casts"].make(rehearsal()))
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
    def towards_zero(x, fmt, *, overflow=Overflow.IEEE, out=None, fuse=True):
        result = round_to(x.numpy(), fmt, rounding=Rounding.TOWARD_ZERO, overflow=overflow)
        return torch.from_numpy(np.asarray(result))

    monkeypatch.setattr(_casts, "round_tensor", towards_zero)
    data = dict(record.PARTS["casts"].make(rehearsal()))
    assert all(min(row["differing"].values()) > 1000 for row in data["formats"].values())
    for code, native, ours in data["formats"]["FP16"]["first"]["IEEE"]:
        x = float(np.array(int(code, 16), np.uint32).view(np.float32))
        assert native != ours
        assert native == float(np.float16(x)) or np.isnan(x)
    assert len(data["formats"]["FP16"]["first"]["IEEE"]) == 32


def test_a_checksum_notices_one_bit_and_an_exchange():
    t = torch.arange(64).to(torch.float16)
    changed, exchanged = t.clone(), t.clone()
    changed.view(torch.int16)[5] ^= 1
    exchanged[[3, 4]] = exchanged[[4, 3]]
    assert len({checksum(t), checksum(changed), checksum(exchanged)}) == 3


def test_the_larger_network_has_the_size_that_is_said():
    def count(words, width, blocks, length, **_):
        block = 12 * width**2 + 13 * width  # four layers with biases, two norms
        return 2 * words * width + length * width + blocks * block + 2 * width

    tiny = _runs._Language(_runs._TINY)
    assert sum(p.numel() for p in tiny.parameters()) == count(**_runs._TINY)
    assert round(count(**_runs._LARGE) / 1e6) == 70


def test_generated_words_follow_their_rule_nine_times_in_ten():
    size = {**_runs._TINY, "rows": 64, "length": 100}
    words, following = _runs.generated(size, 0, CPU)
    whole = torch.cat([words, following[:, -1:]], 1)
    expected = (5 * whole[:, 1:-1] + 3 * whole[:, :-2] + 7) % size["words"]
    assert 0.88 < float((expected == whole[:, 2:]).float().mean()) < 0.93
    assert torch.equal(words[:, 1:], following[:, :-1])


@pytest.mark.slow
def test_training_holds_every_real_recipe_and_tf32_apart():
    runs = dict(record.PARTS["training"].make(rehearsal()))["runs"]
    kinds = {(row["recipe"], row["tf32"]) for row in runs}
    assert {("fp32", False), ("fp32", True), ("amp-fp16", False), ("amp-bf16", False)} <= kinds
    assert all("loss" in row for row in runs), [row for row in runs if "problem" in row]


class Pretended(Setting):
    """A CUDA device that is none: its products are a model's."""

    cuda = True


def model_product(**how):
    def product(a, b, fmt, *, fast=True):
        options = how if not fast or "architecture" in how else {}
        formats = fmt, partner(fmt)
        result = mma(a.double().numpy(), b.double().numpy(), input_format=formats, **options)
        return torch.from_numpy(result)

    return product


def test_blocks_that_a_model_answers_agree_with_it_alone(monkeypatch):
    """A device with Ampere's unit agrees with Ampere (and Ada) everywhere, not with Hopper."""
    monkeypatch.setattr(_matrix_units, "product", model_product(architecture="ampere"))
    row = {"blocks": 0, "differing": {}, "wrong": [], "problem": ""}
    _matrix_units._random_blocks(FP16, 0, Pretended(CPU, True, lambda: 60.0), row)
    assert row["blocks"] == 128**2
    assert row["differing"]["ampere"] == row["differing"]["ada"] == 0
    assert min(row["differing"][name] for name in ("volta", "hopper")) > 1000
    assert len(row["wrong"]) == 32
    for kept in row["wrong"]:  # the operands and the result are enough to ask any model again
        left, right, result = (from_hex(text, fmt) for text, fmt in zip(kept, HELD, strict=True))
        assert mma(left[None], right[:, None], architecture="ampere")[0, 0] == result
        assert mma(left[None], right[:, None], architecture="hopper")[0, 0] != result


HELD = (FP16, FP16, FP32)


def from_hex(text, fmt):
    digits = -(-fmt.bits // 4)
    codes = [int(text[i : i + digits], 16) for i in range(0, len(text), digits)]
    return np.asarray(decode(np.array(codes, np.uint32), fmt), np.float64)


def test_blocks_of_e5m2_are_compared_with_the_mixed_unit(monkeypatch):
    """The kernel multiplies E5M2 by E4M3, whose subnormals have another least exponent."""
    monkeypatch.setattr(_matrix_units, "product", model_product(architecture="hopper"))
    row = {"blocks": 0, "differing": {}, "wrong": [], "problem": ""}
    _matrix_units._random_blocks(FP8_E5M2, 0, Pretended(CPU, True, lambda: 60.0), row)
    assert set(row["differing"]) == {"ada", "hopper", "blackwell", "rtx_blackwell"}
    assert row["differing"]["hopper"] == 0 < row["differing"]["blackwell"]


def test_the_interval_of_promotion_is_found(monkeypatch):
    monkeypatch.setattr(_matrix_units, "product", model_product(promote_every=128))
    monkeypatch.setattr(_matrix_units, "_WIDE", 2)
    found = _matrix_units._promotion(Pretended(CPU, False, lambda: 60.0))
    assert found["fast"] == []
    assert found["precise"][0] == 128
    assert found["precise"][-2:] == [768, 1023]


def test_the_plan_takes_one_seed_of_every_recipe_before_the_other_seeds():
    runs = _runs.plan()
    tasks = len(_runs.TASKS)
    real = {name for name, recipe in _runs.RECIPES.items() if not recipe.simulated}
    of_first = [run for run in runs if run[0] == 0]
    assert runs[: len(of_first)] == of_first
    assert {run[2] for run in of_first} == real
    assert [run[0] for run in runs] == sorted(run[0] for run in runs)
    assert {run[2] for run in runs if run[0] == 4} == set(_runs._COMPARED)
    assert {run[0] for run in runs} == set(_runs.SEEDS)
    assert runs.count((4, "digits-cnn", "fp32", True)) == 1
    assert len(set(runs)) == len(runs)
    assert len([run for run in runs if run[0] == 0 and run[3]]) == tasks


def test_a_cpu_multiplies_in_fp32():
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    assert torch.equal(product(a, b, FP16), a @ b)


# Processes -------------------------------------------------------------------------------


def test_a_sweep_asks_for_what_it_says():
    for sweep in _matrix_units.SWEEPS:
        for fmt in sweep.formats:
            made = {k: sweep.make(k, fmt) for k in sweep.exponents}
            sums = [np.prod(np.array(terms), axis=1) for terms in made.values() if terms]
            assert 8 < len(sums) <= 128, (sweep.terms, fmt)
    one = _matrix_units.SWEEPS[0].make(-25, FP16)
    assert np.prod(np.array(one), axis=1).tolist() == [1.0, 2.0**-25, -1.0]
    chained = np.prod(np.array(_matrix_units.SWEEPS[3].make(-14, FP8_E4M3)), axis=1)
    assert np.flatnonzero(chained).tolist() == [0, 32, 64]
    assert _matrix_units._power(-30, FP8_E4M3) is None
    assert _matrix_units._zero_times_largest(-60, BF16)[0] == (0.0, 2.0**127)


@pytest.mark.slow
def test_sweeps_and_samples_keep_what_the_models_can_be_asked_again(monkeypatch):
    """Operands and results that come back from a file give each model its own answers."""
    monkeypatch.setattr(_matrix_units, "product", model_product(architecture="hopper"))
    to = Setting(CPU, True, lambda: 60.0)
    held = [("sample", kept) for rows in _matrix_units._samples(FP16, to).values() for kept in rows]
    for row in _matrix_units._sweeps(to):
        if row["format"] == "FP16":
            assert len(row["sums"]) == len(row["exponents"])
            held += [(row["terms"], kept) for kept in row["sums"]]
    differing = {"ampere": 0, "hopper": 0}
    for _, kept in held:
        left, right, result = (from_hex(text, fmt) for text, fmt in zip(kept, HELD, strict=True))
        for name in differing:
            answer = mma(left[None], right[:, None], architecture=name)[0, 0]
            differing[name] += not np.array_equal(answer, result[0], equal_nan=True)
    assert differing["hopper"] == 0
    assert differing["ampere"] > 0


def dying(to):
    yield "parameters", 7
    os._exit(3)


def hanging(to):
    yield "parameters", 7
    time.sleep(60)


def parts_of(make, monkeypatch):
    """Parts in a child process are those of the module there: the fork has this one's."""
    monkeypatch.setitem(record.PARTS, "larger", record.Part(make, 1))
    monkeypatch.setattr(record, "_START", 1.0)
    spawned = multiprocessing.get_context("fork")
    monkeypatch.setattr(record.multiprocessing, "get_context", lambda way: spawned)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "problem"),
    [(dying, "its process ended with exit code 3"), (hanging, "its process hung and was ended")],
)
def test_a_part_that_takes_its_process_with_it_is_recorded_so_far(
    make, problem, tmp_path, monkeypatch
):
    parts_of(make, monkeypatch)
    made = record.record_apart("larger", asked("larger", tmp_path))
    assert (made.complete, made.problem, made.data) == (False, problem, {"parameters": 7})
    assert load("larger", where=tmp_path) == made


@pytest.mark.slow
def test_a_part_in_a_process_of_its_own_is_recorded_alike(tmp_path):
    made = record.record_apart("exponents", asked("exponents", tmp_path))
    assert made.complete
    assert made.data == recorded("exponents", tmp_path / "here").data


def test_what_is_complete_is_kept_and_what_is_not_is_recorded_again(tmp_path, monkeypatch, capsys):
    def made(to):
        yield "parameters", len(calls)
        calls.append(1)
        yield "runs", []

    calls = []
    monkeypatch.setitem(record.PARTS, "larger", record.Part(made, 5))
    command = ["--only", "larger", "--rehearse", "--out", str(tmp_path)]
    assert main(["record", *command]) == main(["record", *command]) == 0
    assert calls == [1]
    assert "complete already" in capsys.readouterr().out
    assert main(["record", *command, "--again"]) == 0
    assert calls == [1, 1]
    unfinished = load("larger", where=tmp_path)
    replace(unfinished, complete=False, problem="not finished").save(tmp_path)
    assert main(["record", *command]) == 0
    assert calls == [1, 1, 1]


def test_without_time_nothing_is_begun_and_nothing_is_lost(tmp_path, monkeypatch):
    kept = small(complete=False, problem="not finished")
    kept.save(tmp_path)
    monkeypatch.setitem(record.PARTS, "larger", record.Part(hanging, 5))
    assert (
        main(["record", "--only", "larger", "--rehearse", "--out", str(tmp_path), "--minutes", "0"])
        == 1
    )
    assert load("larger", where=tmp_path).data["parameters"] == kept.data["parameters"]


def test_a_driver_that_does_not_answer_costs_nothing(monkeypatch):
    def silent(*args, **kwargs):
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    record._driver.cache_clear()
    monkeypatch.setattr(record.shutil, "which", lambda name: name)
    monkeypatch.setattr(record.subprocess, "run", silent)
    assert record._driver() == f"CUDA {torch.version.cuda}"
    record._driver.cache_clear()


def test_one_run_that_fails_does_not_take_the_others_with_it(monkeypatch):
    """GradScaler, for one, raises AssertionError."""

    def failing(task, recipe, **options):
        assert recipe != "amp-fp16", "No inf checks were recorded for this optimizer."
        raise KeyError(recipe)

    monkeypatch.setattr(_runs, "train", failing)
    runs = dict(_runs.training(rehearsal()))["runs"]
    assert len(runs) == len(_runs.plan(seeds=(0,)))
    assert {row["problem"].partition(":")[0] for row in runs} == {"AssertionError", "KeyError"}
