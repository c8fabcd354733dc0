"""What `mplab bench` promises: every row, in every format, and a reason for a missing one."""

import json
import sys
from functools import partial

import numpy as np
import pytest
from legible import assert_legible

from mplab import FP16, round_to
from mplab.commands import bench
from mplab.commands.main import main
from mplab.hardware import _timing, bench_rounding, bench_steps
from mplab.pictures.performance import costs

OURS = {
    name for name, _ in bench_rounding.ours(bench_rounding.Arrays.of(np.zeros(4, np.float32)), FP16)
}


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


def test_many_numbers_are_rounded_block_after_block(monkeypatch):
    monkeypatch.setattr(bench_rounding, "BLOCK", 100)
    seen = []
    monkeypatch.setattr(bench_rounding, "round_to", lambda x, fmt, **options: seen.append(x))
    found, _ = bench_rounding.contenders(1000)
    found["round_to, out=", "FP16"]()
    numbers = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert np.array_equal(np.concatenate(seen), numbers)
    assert [x.size for x in seen] == [100] * 10


def test_what_takes_long_is_timed_once_and_set_against_the_median_copy(monkeypatch):
    taken = {"copy": 0.01, "copy float64": 0.01, "quick": 0.02, "slow": 0.6}
    calls = dict.fromkeys(taken, 0)

    def called(name):
        calls[name] += 1

    def clock(call, repeats, clock):
        call()
        return taken[call.args[0]]

    formats = {"quick": "FP16", "slow": "FP16"}
    found = {(name, formats.get(name, "")): partial(called, name) for name in taken}
    monkeypatch.setattr(bench_rounding, "contenders", lambda size: (found if size > 1 else {}, []))
    monkeypatch.setattr(bench_rounding, "lap", clock)
    monkeypatch.setattr(_timing, "lap", clock)
    rows, _ = bench_rounding.measure(10, rounds=5, seconds=60)
    assert calls["slow"] == 1
    assert calls["quick"] == 2 + 2 * 5
    assert {row.name: row.ratio for row in rows} == pytest.approx(
        {"copy": 1, "copy float64": 1, "quick": 2, "slow": 60}
    )


def test_gfloat_is_not_given_what_would_take_minutes(monkeypatch):
    monkeypatch.setattr(bench_rounding, "_GFLOAT", 10)
    assert ("gfloat", "FP16") in bench_rounding.contenders(10)[0]
    assert ("gfloat", "FP16") not in bench_rounding.contenders(100)[0]


@pytest.mark.slow
def test_the_table_names_every_contender():
    rows, _ = bench_rounding.measure(1000, rounds=3, seconds=0)
    text = bench_rounding.table(rows)
    assert all(name in text for name in OURS)
    assert all(fmt.name in text for fmt in bench_rounding.FORMATS)


@pytest.fixture
def measured(monkeypatch):
    """Stands in for the measurements; returns what it claims to have measured."""

    def measure(size, *, rounds, seconds):
        names = [("copy", "", 1.0), ("copy float64", "", 1.0), ("round_to, out=", "FP16", 2.5)]
        names += [("round_to, out=", "BF16", 1.5), ("torch to", "FP16", 5.0 if size > 10 else 2.0)]
        rows = [bench_rounding.Row(name, fmt, size, 0.25, ratio) for name, fmt, ratio in names]
        return rows, [bench_rounding.Missing("gfloat", "not here")] if size == 1 else []

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "measure_threaded", lambda size, *, rounds: {"copy": 0.5})
    return lambda sizes: [row for size in sizes for row in measure(size, rounds=3, seconds=1)[0]]


def test_the_command_prints_rounding_and_writes_rows_and_a_plot(measured, tmp_path, capsys):
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
    sizes = [10**k for k in range(9)]
    assert [bench_rounding.Row(**row) for row in kept["rows"]] == measured(sizes)
    assert b"Line chart, times in copies." in (out / "bench.png").read_bytes()


@pytest.mark.parametrize(("largest", "count"), [("1", 1), ("999", 3), ("1e3", 4), ("1e9", 10)])
def test_the_largest_size_is_an_option(measured, monkeypatch, tmp_path, largest, count):
    monkeypatch.setattr(bench, "fits", lambda size: True)
    monkeypatch.setattr(bench, "plot", lambda path, rows: None)
    assert main(["bench", "--out", str(tmp_path), "--largest", largest]) == 0
    kept = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [bench_rounding.Row(**row) for row in kept] == measured([10**k for k in range(count)])


def test_what_memory_cannot_hold_is_left_out_and_named(measured, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_rounding.os, "sysconf", lambda name: 2**15)  # in all 2^30 bytes
    monkeypatch.setattr(bench, "plot", lambda path, rows: None)
    assert main(["bench", "--out", str(tmp_path)]) == 0
    kept = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert kept[-1]["size"] == 10**7
    assert "100,000,000 elements: not measured: too little memory" in capsys.readouterr().err


def test_the_figure_has_a_panel_for_each_format_and_says_from_where_on_it_is_the_fastest(measured):
    figure = costs(measured([1, 10, 100, 1000]))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["FP16", "BF16"]
    assert {axes.get_xscale() + axes.get_yscale() for axes in figure.axes} == {"loglog"}
    torch_line = figure.axes[0].lines[-1]
    assert list(torch_line.get_xdata()) == [1, 10, 100, 1000]
    assert list(torch_line.get_ydata()) == [2, 2, 5, 5]
    assert figure.claim == (
        "For 1,000 elements round_to takes 1.5 to 2.5 copies, the fastest other library 5.0; "
        "it is the fastest from 100 elements on"
    )
    assert costs(measured([1, 10])).claim.endswith("; in some format that is faster")


@pytest.mark.slow
def test_the_figure_of_four_formats_and_all_contenders_can_be_read():
    rows = [
        bench_rounding.Row(name, fmt.name, 10**k, 1.0, 2.0 + place)
        for place, name in enumerate(("round_to, out=", "round_to", "torch to", "gfloat"))
        for fmt in bench_rounding.FORMATS
        for k in range(9)
    ]
    assert_legible(costs(rows))


@pytest.mark.parametrize("given", ["0", "-1", "nan", "1e11"])
def test_a_largest_size_that_makes_no_sense_is_refused(given, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--largest", given])
    assert stopped.value.code == 2
    assert "--largest must be in 1 .. 1e10; got " in capsys.readouterr().err


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
    assert first["FP32"] == first["two empty modes"]
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
