"""The loss scale, against torch's own."""

import itertools
import math

import numpy as np
import pytest
import torch

from mplab import FP32
from mplab.scaling import KerasScaler, LossScaler


def torch_scaler(init_scale=65536.0, **options):
    """torch's scaler and a function that ends a step with or without an infinity."""
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, **options)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    taken = []
    optimizer.register_step_post_hook(lambda *_: taken.append(True))

    def step(found_nonfinite):
        scaler.scale(torch.zeros(()))  # makes the scale, lazily
        parameter.grad = torch.tensor([math.inf if found_nonfinite else 1.0])
        taken.clear()
        scaler.step(optimizer)
        scaler.update()
        return not taken

    return scaler, step


def bits(x):
    return np.float32(x).view(np.uint32).item()


def assert_identical(events, init_scale, **options):
    ours = LossScaler(init_scale, **options)
    theirs, step = torch_scaler(init_scale, **options)
    for number, found in enumerate(events):
        assert ours.update(found) == step(found), f"step {number}"
        assert bits(ours.scale) == bits(theirs.get_scale()), f"step {number}"
        assert ours.state_dict() == theirs.state_dict(), f"step {number}"


@pytest.mark.parametrize("growth_interval", [1, 2, 3])
def test_every_sequence_of_eight_steps_goes_as_in_torch(growth_interval):
    for events in itertools.product([False, True], repeat=8):
        assert_identical(events, 65536.0, growth_interval=growth_interval)
        factors = {"growth_factor": 1.1, "backoff_factor": 0.3}
        assert_identical(events, 3.0, growth_interval=growth_interval, **factors)


def test_the_defaults_and_their_growth_interval_are_those_of_torch():
    events = [False] * 1999 + [True] + [False] * 2001 + [True, True, False]
    assert_identical(events, 65536.0)


@pytest.mark.parametrize("found", [True, False])
def test_the_scale_stays_finite_going_up_and_ends_at_zero_going_down_as_in_torch(found):
    assert_identical([found] * 300, 2.0**-100 if found else 2.0**100, growth_interval=1)


def test_the_state_of_a_scale_at_the_end_of_its_range_is_taken():
    scaler = LossScaler()
    state = scaler.state_dict() | {"scale": FP32.max_finite}
    scaler.load_state_dict(state)
    assert scaler.state_dict() == state


def test_a_static_scale_never_changes_and_never_skips():
    scaler = LossScaler(2.0**28, growth_interval=1, dynamic=False)
    assert [scaler.update(found) for found in (True, False, True)] == [False] * 3
    assert scaler.scale == 2.0**28


def test_the_scale_is_a_float32():
    assert LossScaler(0.1).scale == float(np.float32(0.1)) != 0.1


@pytest.mark.parametrize("kind", [LossScaler, KerasScaler])
def test_factors_and_scales_out_of_their_range_are_refused(kind):
    for wrong in (
        {"init_scale": 0.0},
        {"init_scale": math.inf},
        {"growth_interval": 0},
    ):
        with pytest.raises(
            ValueError, match=f"^{kind.__name__}: {next(iter(wrong))} must"
        ):
            kind(**wrong)
    for change in (
        {"extra": 1},
        {"scale": -1.0},
        {"growth_factor": 1.0},
        {"_growth_tracker": -1},
    ):
        scaler = kind()
        with pytest.raises(ValueError, match=f"^{kind.__name__}: "):
            scaler.load_state_dict(
                scaler.state_dict() | {"growth_interval": 7} | change
            )
        assert scaler.state_dict() == kind().state_dict()
