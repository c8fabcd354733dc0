"""What `mplab bench` promises: every row, in every format, and a reason for a missing one."""

import json
import sys

import numpy as np
import pytest

from mplab import FP16, round_to
from mplab.commands import bench
from mplab.commands.main import main
from mplab.hardware import bench_rounding, bench_steps

OURS = {name for name, _ in bench_rounding.ours(np.zeros(4, np.float32), FP16)}


@pytest.mark.slow
def test_every_row_is_measured_in_every_format():
    rows, missing = bench_rounding.measure(1000, rounds=3, seconds=0)
    assert missing == []
    for fmt in bench_rounding.FORMATS:
        names = {row.name for row in rows if row.fmt == fmt.name}
        numpy_name = "NumPy astype" if fmt is FP16 else "ml_dtypes astype"
        assert names == OURS | {numpy_name, "torch to", "gfloat"}
    assert all(row.nanoseconds > 0 and row.ratio > 0 for row in rows)
    copy = next(row for row in rows if row.name == "copy")
    assert copy.ratio == 1.0


def test_the_contenders_round_alike():
    found, _ = bench_rounding.contenders(4096)
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    for fmt in bench_rounding.FORMATS:
        expected = round_to(x, fmt)
        for name in ("round_to", "round_to, out=", "gfloat", "torch to"):
            given = np.asarray(found[name, fmt.name]())
            np.testing.assert_array_equal(given, expected, err_msg=f"{name} {fmt.name}")


def test_a_missing_peer_is_shown_with_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "gfloat", None)
    found, missing = bench_rounding.contenders(1000)
    assert ("gfloat", "FP16") not in found
    assert len(missing) == 1
    assert "pip install gfloat" in missing[0].reason


@pytest.mark.slow
def test_the_table_names_every_contender():
    rows, _ = bench_rounding.measure(1000, rounds=3, seconds=0)
    text = bench_rounding.table(rows)
    assert all(name in text for name in OURS)
    assert all(fmt.name in text for fmt in bench_rounding.FORMATS)


def test_the_command_prints_rounding_and_writes_rows_and_a_plot(monkeypatch, tmp_path, capsys):
    def measured(size, *, rounds, seconds):
        names = [("copy", "", 1.0), ("copy float64", "", 1.0), ("round_to, out=", "FP16", 2.5)]
        names += [("round_to, out=", "BF16", 1.5), ("torch to", "FP16", 5.0)]
        rows = [bench_rounding.Row(name, fmt, size, 0.25, ratio) for name, fmt, ratio in names]
        return rows, [bench_rounding.Missing("gfloat", "not here")]

    monkeypatch.setattr(bench, "measure", measured)
    monkeypatch.setattr(bench, "measure_threaded", lambda size, *, rounds: {"copy": 0.5})
    out = tmp_path / "new"
    assert main(["bench", "--out", str(out)]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "1 elements: CPU ns per element, and ratio to a copy"
    assert lines[1].split() == ["FP16", "BF16", "FP8_E4M3", "FP8_E5M2"]
    assert lines[2].split() == ["copy", "0.250", "1.00x"]
    assert lines[4].split() == ["round_to,", "out=", "0.250", "2.50x", "0.250", "1.50x"]
    assert "copy 0.500" in said.out
    assert said.err == "gfloat: not measured: not here\n"
    kept = json.loads((out / "bench.json").read_text())
    assert kept["wall"] == {"copy": 0.5}
    rows = [row for size in bench_rounding.SIZES for row in measured(size, rounds=3, seconds=1)[0]]
    assert [bench_rounding.Row(**row) for row in kept["rows"]] == rows
    assert b"Dot plot, times in copies." in (out / "bench.png").read_bytes()


def test_too_few_rounds_are_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--rounds", "1"])
    assert stopped.value.code == 2
    assert "--rounds must be at least 3; got 1" in capsys.readouterr().err


# Training steps


def test_every_way_of_running_a_step_is_measured_against_fp32(monkeypatch):
    monkeypatch.setattr(bench_steps, "NETWORKS", {"MLP": bench_steps.NETWORKS["MLP"]})
    rows = bench_steps.measure_steps(rounds=3, seconds=0, repeats=1)
    assert [(row.optimizer, row.way) for row in rows] == [
        (optimizer, way) for optimizer in bench_steps.OPTIMIZERS for way in bench_steps.WAYS
    ]
    assert all(row.ratio == 1 for row in rows if row.way == "FP32")
    assert all(0 < row.ratio < np.inf for row in rows)  # how much is for the benchmark to say
    text = bench_steps.table(rows)
    assert all(way in text for way in bench_steps.WAYS)


@pytest.mark.parametrize("network", bench_steps.NETWORKS)
def test_all_ways_train_the_same_step_from_the_same_start(network):
    first, second = {}, {}
    for way in bench_steps.WAYS:
        step = bench_steps.step_of(network, "SGD", way)
        first[way], second[way] = float(step()), float(step())
    assert first["FP32"] == first["empty dispatch mode"]
    assert first["simulated FP16"] == first["simulated FP16, tally"]
    assert second["simulated FP16"] == second["simulated FP16, tally"]
    assert max(first.values()) - min(first.values()) < 0.01
    assert all(second[way] < first[way] for way in first)


def test_the_command_prints_steps_and_writes_them(monkeypatch, tmp_path, capsys):
    rows = [bench_steps.StepRow("MLP", "SGD", "FP32", 500.0, 1.0)]
    monkeypatch.setattr(bench_steps, "measure_steps", lambda **options: rows)
    assert main(["bench", "--steps", "--out", str(tmp_path)]) == 0
    assert "MLP SGD" in capsys.readouterr().out
    kept = json.loads((tmp_path / "steps.json").read_text())
    assert [bench_steps.StepRow(**row) for row in kept["rows"]] == rows
    assert kept["batch"] == bench_steps.BATCH
