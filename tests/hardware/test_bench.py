"""The benchmarks: contenders in turn, each row in every format, a reason for a missing peer."""

import json
from functools import partial
from itertools import count

import bench
import bench_rounding
import bench_steps
import numpy as np
import pytest
import turns
from bench_rounding import FORMATS
from turns import compared, in_turn

# Taking turns ------------------------------------------------------------------------------


class Contenders:
    """Calls that note their names, and a clock that only they move."""

    def __init__(self, **seconds):
        self.now, self.order = 0.0, []
        self.clock = lambda: self.now
        self.calls = {
            name: self.call(name, count(1), cost) for name, cost in seconds.items()
        }

    def call(self, name, number, cost):
        def run():
            self.order.append(name)
            self.now += cost(next(number)) if callable(cost) else cost

        return run


def test_contenders_take_turns_each_with_a_call_before_that_is_not_timed():
    made = Contenders(a=1.0, b=2.0)
    in_turn(made.calls, rounds=3, clock=made.clock, repeats={"a": 2, "b": 1})
    assert "".join(made.order) == "ab" + 3 * ("aaa" + "bb")
    made = Contenders(a=lambda number: 100.0 if number <= 4 else 0.5, b=0.25)
    taken = in_turn(made.calls, rounds=4, clock=made.clock, repeats=8, warm=4)
    assert "".join(made.order[:8]) == "aaaabbbb"
    assert taken == {"a": [0.5] * 4, "b": [0.25] * 4}
    made = Contenders(a=float, b=0.0)
    taken = in_turn(made.calls, rounds=3, clock=made.clock, repeats=3, warm=0)
    # The time of one call, of calls 2 to 4, 6 to 8, 10 to 12.
    assert taken["a"] == [
        3.0,
        7.0,
        11.0,
    ]


@pytest.mark.parametrize(
    ("rounds", "seconds", "done"), [(1, 0.0, 3), (9, 0.0, 3), (9, 39.0, 4), (4, 1e9, 4)]
)
def test_no_round_begins_after_the_time_but_three_are_always_made(
    rounds, seconds, done, monkeypatch
):
    # A round takes 10, with the calls that are not timed.
    made = Contenders(a=4.0, b=1.0)
    monkeypatch.setattr(turns, "monotonic", lambda: made.now)
    taken = in_turn(made.calls, rounds=rounds, seconds=seconds, clock=made.clock)
    assert {key: len(times) for key, times in taken.items()} == {"a": done, "b": done}


def test_the_ratio_is_to_the_reference_of_the_same_round():
    """Where the machine is ten times slower in one round, only that ratio of medians is wrong."""
    assert compared([2.0, 2.0, 20.0, 20.0, 20.0], [1.0, 1.0, 10.0, 1.0, 1.0]) == (
        20.0,
        2.0,
    )


# Rounding ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_row_is_measured_in_every_format_and_named_in_the_table():
    rows = bench_rounding.measure(1000, rounds=3, seconds=0)
    text = bench_rounding.table(rows)
    for fmt in FORMATS:
        names = {row.name for row in rows if row.fmt == fmt.name}
        assert {"round_to", "  stochastic"} <= names
        assert fmt.name in text and all(name in text for name in names)
    assert all(row.nanoseconds > 0 and row.ratio > 0 for row in rows)
    assert next(row for row in rows if row.name == "copy").ratio == 1.0


# Training steps ----------------------------------------------------------------------------


def test_every_way_of_running_a_step_is_measured_against_fp32_and_written(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(bench_steps, "NETWORKS", {"MLP": bench_steps.NETWORKS["MLP"]})
    measure = partial(bench_steps.measure_steps, repeats=1)
    monkeypatch.setattr(bench_steps, "measure_steps", measure)
    bench.main(["--steps", "--rounds", "3", "--seconds", "0", "--out", str(tmp_path)])
    kept = json.loads((tmp_path / "steps.json").read_text())
    rows = [bench_steps.StepRow(**row) for row in kept["rows"]]
    assert [(row.optimizer, row.way) for row in rows] == [
        (optimizer, way)
        for optimizer in bench_steps.OPTIMIZERS
        for way in bench_steps.WAYS
    ]
    assert all(row.ratio == 1 for row in rows if row.way == "FP32")
    # How much is for the benchmark to say.
    assert all(0 < row.ratio < np.inf for row in rows)
    text = capsys.readouterr().out
    assert all(way in text for way in bench_steps.WAYS)
    assert kept["batch"] == bench_steps.BATCH


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
