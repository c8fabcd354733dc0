"""The rule of timing: taking turns, warming up, stopping, and the ratio within a round."""

from itertools import count

import pytest
import torch

from mplab.hardware import _timing
from mplab.hardware._timing import CPU_TIME, EVENTS, WALL, Clock, clock_of, compared, in_turn


class Contenders:
    """Calls that note their names, and a clock that only they move."""

    def __init__(self, **seconds):
        self.now, self.order = 0.0, []
        self.clock = Clock(lambda: self.now)
        self.calls = {name: self.call(name, count(1), cost) for name, cost in seconds.items()}

    def call(self, name, number, cost):
        def run():
            self.order.append(name)
            self.now += cost(next(number)) if callable(cost) else cost

        return run


def test_contenders_take_turns_in_their_order_each_with_a_call_before_that_is_not_timed():
    made = Contenders(a=1.0, b=2.0)
    in_turn(made.calls, rounds=3, clock=made.clock, repeats={"a": 2, "b": 1})
    assert "".join(made.order) == "ab" + 3 * ("aaa" + "bb")


def test_one_contender_has_nobody_s_caches_to_leave():
    made = Contenders(a=1.0)
    in_turn(made.calls, rounds=3, clock=made.clock)
    assert "".join(made.order) == "a" + "aaa"


def test_the_first_calls_warm_up_and_are_not_in_the_times():
    made = Contenders(a=lambda number: 100.0 if number <= 4 else 0.5, b=0.25)
    taken = in_turn(made.calls, rounds=4, clock=made.clock, repeats=8, warm=4)
    assert "".join(made.order[:8]) == "aaaabbbb"
    assert taken == {"a": [0.5] * 4, "b": [0.25] * 4}


def test_a_time_is_that_of_one_call_whatever_the_repeats():
    made = Contenders(a=lambda number: float(number), b=0.0)
    taken = in_turn(made.calls, rounds=3, clock=made.clock, repeats=3, warm=0)
    assert taken["a"] == [3.0, 7.0, 11.0]  # calls 2 to 4, 6 to 8, 10 to 12


@pytest.mark.parametrize(
    ("rounds", "seconds", "done"), [(1, 0.0, 3), (9, 0.0, 3), (9, 39.0, 4), (4, 1e9, 4)]
)
def test_no_round_begins_after_the_time_but_three_are_always_made(
    rounds, seconds, done, monkeypatch
):
    made = Contenders(a=4.0, b=1.0)  # a round takes 10, with the calls that are not timed
    monkeypatch.setattr(_timing, "monotonic", lambda: made.now)
    taken = in_turn(made.calls, rounds=rounds, seconds=seconds, clock=made.clock)
    assert {key: len(times) for key, times in taken.items()} == {"a": done, "b": done}


def test_the_ratio_is_to_the_reference_of_the_same_round():
    """Where the machine is ten times slower in one round, only that ratio of medians is wrong."""
    taken, reference = [2.0, 2.0, 20.0, 20.0, 20.0], [1.0, 1.0, 10.0, 1.0, 1.0]
    assert compared(taken, reference) == (20.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        compared(taken, reference[:3])


def test_a_short_call_is_repeated_until_a_turn_is_long_enough():
    made = Contenders(a=lambda number: 9.0 if number <= 2 else 0.25)
    found = _timing.seconds_of(made.calls["a"], clock=made.clock, rounds=5, turn=2.0, warm=2)
    assert found == 0.25
    assert len(made.order) == 2 + 1 + 5 * 8


def test_a_long_call_is_made_once_a_turn_and_a_clock_that_stands_still_does_no_harm():
    made = Contenders(a=30.0, b=0.0)
    assert _timing.seconds_of(made.calls["a"], clock=made.clock, turn=2.0) == 30.0
    assert len(made.order) == 1 + 1 + 3
    assert _timing.seconds_of(made.calls["b"], clock=made.clock, turn=1e-5) == 0.0


def test_the_real_clocks_count_seconds():
    import time

    assert 0.002 <= _timing.seconds_of(lambda: time.sleep(0.002), clock=WALL) < 0.02
    asleep = _timing.lap(lambda: time.sleep(0.05), 1, CPU_TIME)
    assert asleep < 0.04  # a process that sleeps does not work


def test_on_cuda_a_lap_ends_when_the_device_has_done_the_work(monkeypatch):
    """A pretended stream: work is done only when somebody waits for the event after it."""
    stream = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing
            self.waited = False

        def record(self):
            self.place = len(stream)

        def synchronize(self):
            self.waited = True

        def elapsed_time(self, end):  # in milliseconds
            assert end.waited
            return 500.0 * sum(stream[self.place : end.place])

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert clock_of("cuda") is clock_of(torch.device("cuda", 0)) is EVENTS
    assert clock_of("cpu") is WALL
    taken = in_turn({"a": lambda: stream.append(2)}, rounds=3, clock=clock_of("cuda"), repeats=5)
    assert taken == {"a": [1.0] * 3}
