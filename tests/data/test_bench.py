"""The benchmarks: contenders in turn, each row in every format, a reason for a missing peer."""

import re
from datetime import date
from functools import partial

import bench
import bench_peers
import bench_rounding
import bench_steps
import pytest
from bench_rounding import FORMATS
from turns import compared, in_turn, table

# Taking turns ------------------------------------------------------------------------------


def test_contenders_take_turns_each_with_a_call_before_that_is_not_timed():
    """Only calls of `a` move the clock, each by a second more than the one before."""
    order = []
    now = 0.0

    def a():
        nonlocal now
        order.append("a")
        now += order.count("a")

    calls = {"a": a, "b": lambda: order.append("b")}
    taken = in_turn(calls, rounds=3, clock=lambda: now, repeats={"a": 2, "b": 1})
    assert "".join(order) == "ab" + 3 * ("aaa" + "bb")
    # The time of one call, of calls 3 and 4, 6 and 7, 9 and 10.
    assert taken == {"a": [3.5, 6.5, 9.5], "b": [0.0] * 3}


def test_the_ratio_is_to_the_reference_of_the_same_round():
    """Where the machine is ten times slower in one round, only that ratio of medians is wrong."""
    taken = [2.0, 2.0, 20.0, 20.0, 20.0]
    reference = [1.0, 1.0, 10.0, 1.0, 1.0]
    assert compared("a", "b", taken, reference) == ("a", "b", 20.0, 2.0)


# Rounding ----------------------------------------------------------------------------------


def test_the_table_of_libraries_is_written_as_it_is_printed(
    tmp_path, monkeypatch, capsys
):
    measured = [("mplab", "FP16", "0 of 9", "0 of 9", "inf", "0.19")]
    monkeypatch.setattr(bench_peers, "measure", lambda: measured)
    bench.main(["--peers", "--out", str(tmp_path)])
    written = (tmp_path / "peers.txt").read_text(encoding="utf-8")
    assert written.endswith(capsys.readouterr().out.rstrip() + "\n")
    assert f"{date.today()}; " in written and bench_peers.__doc__ in written


@pytest.mark.slow
def test_every_row_is_measured_in_every_format_and_named_in_the_table():
    rows = bench_rounding.measure(1000, rounds=3, seconds=0)
    text = table("1,000", rows, 1e-9)
    for fmt in FORMATS:
        names = {row.line for row in rows if row.column == fmt.name}
        assert {"round_to", "  stochastic"} <= names
        assert fmt.name in text and all(name in text for name in names)
    assert all(row.seconds > 0 and row.ratio > 0 for row in rows)
    assert next(row for row in rows if row.line == "copy").ratio == 1.0


# Training steps ----------------------------------------------------------------------------


def test_every_way_of_running_a_step_is_measured_against_fp32(monkeypatch, capsys):
    monkeypatch.setattr(bench_steps, "NETWORKS", {"MLP": bench_steps.NETWORKS["MLP"]})
    measure = partial(bench_steps.measure_steps, repeats=1)
    monkeypatch.setattr(bench_steps, "measure_steps", measure)
    bench.main(["--steps", "--rounds", "3", "--seconds", "0"])
    head, *lines = capsys.readouterr().out.splitlines()[1:]
    assert all(way in head for way in bench_steps.WAYS)
    for line, optimizer in zip(lines, bench_steps.OPTIMIZERS, strict=True):
        assert line.startswith(f"MLP {optimizer}")
        ratios = [float(ratio) for ratio in re.findall(r"([0-9.]+)x", line)]
        # How much is for the benchmark to say.
        assert ratios[0] == 1 and len(ratios) == len(bench_steps.WAYS)
        assert min(ratios) > 0


@pytest.mark.parametrize("network", bench_steps.NETWORKS)
def test_all_ways_train_the_same_step_from_the_same_start(network):
    first = {}
    second = {}
    for way in bench_steps.WAYS:
        step = bench_steps.step_of(network, "SGD", way)
        first[way], second[way] = float(step()), float(step())
    assert first["FP32"] == first["an empty mode"]
    assert first["simulated FP16"] == first["simulated FP16, tally"]
    assert second["simulated FP16"] == second["simulated FP16, tally"]
    assert max(first.values()) - min(first.values()) < 0.01
    assert all(second[way] < first[way] for way in first)
