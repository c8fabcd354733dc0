"""Weights in low formats: against torch's own half optimizers, and against sums by hand."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from networks import assert_bits

from mplab import BF16, FP16, FP32, Stream, round_to
from mplab.training.optimizers import LowOptimizer


def gradients(count, seed, fmt):
    """Gradients over twenty binades, in the format."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-18, 2, (count,), generator=generator)
    return (torch.randn(count, generator=generator) * 2.0**exponents).to(
        fmt.torch_dtype
    )


@pytest.mark.parametrize(
    "options", [{}, {"eps": 2.0**-13}, {"amsgrad": True}, {"betas": (0.5, 0.9)}]
)
@pytest.mark.parametrize("fmt", [FP16, BF16])
def test_pure_adam_is_torch_s_adam_on_low_tensors_bit_for_bit(fmt, options):
    first = gradients(500, 0, fmt)
    theirs = first.clone().requires_grad_()
    ours = first.float().requires_grad_()
    real = torch.optim.Adam([theirs], lr=1e-2, foreach=False, **options)
    low = LowOptimizer(
        torch.optim.Adam([ours], lr=1e-2, foreach=False, **options),
        fmt,
        optimizer_format=fmt,
    )
    for step in range(1, 15):
        theirs.grad = gradients(500, step, fmt)
        ours.grad = theirs.grad.float()
        real.step()
        low.step()
        nan = theirs.isnan()
        assert torch.equal(nan, ours.isnan())
        assert_bits(ours[~nan], theirs[~nan].float())


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_an_optimizer_that_returns_nothing_of_its_state_keeps_it_low(way):
    weight = torch.ones(3, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9, **{way: True})
    low = LowOptimizer(sgd, BF16, optimizer_format=BF16)
    for _ in range(2):
        weight.grad = torch.tensor([0.1, 0.2, 0.3])
        low.step()
    kept = sgd.state[weight]["momentum_buffer"]
    assert_bits(kept, kept.bfloat16().float())


def test_epsilon_is_zero_in_fp16_and_adam_divides_by_it():
    weight = torch.ones(2, requires_grad=True)
    adam = torch.optim.Adam([weight])
    low = LowOptimizer(adam, FP16, optimizer_format=FP16)
    weight.grad = torch.tensor([0.0, 1e-4])
    low.step()
    assert weight.isnan().tolist() == [True, False]
    assert weight[1] == -np.inf


def descend(fmt, steps, update, **options):
    """SGD from 1 by a constant gradient."""
    weight = torch.ones(400, requires_grad=True)
    low = LowOptimizer(torch.optim.SGD([weight], lr=1.0), fmt, **options)
    weight.grad = torch.full((400,), update)
    for _ in range(steps):
        low.step()
    return weight.detach().numpy(), low


@pytest.mark.parametrize("fmt", [FP16, BF16])
def test_an_update_below_half_an_ulp_is_lost_to_nearest_for_ever(fmt):
    weight, _ = descend(fmt, 200, 2e-5)
    assert (weight == 1).all()


@pytest.mark.parametrize("fmt", [FP16, BF16])
def test_a_stochastic_update_is_right_on_average(fmt):
    """Band: five standard errors of the mean of 400 walks, from the variance of one step."""
    steps = 200
    update = 2e-5
    weight, _ = descend(
        fmt, steps, update, update_rounding="stochastic", stream=Stream(7)
    )
    ulp = fmt.epsilon / 2  # of numbers below 1
    deviation = (steps * update * ulp) ** 0.5 / 400**0.5
    assert abs(weight.mean() - (1 - steps * update)) < 5 * deviation
    assert set(weight) <= {1 - k * ulp for k in range(60)}


def test_each_stochastic_step_takes_new_bits():
    one, low = descend(BF16, 3, 1e-3, update_rounding="stochastic", stream=Stream(7))
    other, _ = descend(BF16, 3, 1e-3, update_rounding="stochastic", stream=Stream(8))
    assert low.stream.calls == 3
    assert (one != other).any()


def test_the_next_bits_after_a_state_is_loaded_are_as_few_as_before():
    _, low = descend(
        BF16, 3, 1e-3, update_rounding="stochastic", stream=Stream(7, bits=8)
    )
    low.load_state_dict(low.state_dict())
    assert repr(low.stream) == "Stream(7, calls=3, bits=8)"


@pytest.mark.parametrize("fmt", [FP16, BF16])
@pytest.mark.parametrize("update", [2e-5, 3e-4, -1e-3])
def test_kahan_s_correction_is_his_summation(fmt, update):
    """Against the summation in rational arithmetic, each result rounded where ours is."""
    weight, low = descend(fmt, 60, update, update_rounding="kahan")
    total = Fraction(1)
    error = Fraction(0)
    step = Fraction(float(np.float32(update)))
    for _ in range(60):
        kept = Fraction(float(np.float32(float(total + error))))
        wanted = Fraction(float(np.float32(float(kept - step))))
        total = Fraction(float(round_to(float(wanted), fmt)))
        error = Fraction(float(round_to(float(wanted - total), fmt)))
    assert set(weight.tolist()) == {float(total)}
    assert set(low.errors[0].tolist()) == {float(error)}
    assert abs(weight[0] - (1 - 60 * update)) < 0.6 * fmt.epsilon


def test_fp32_weights_are_left_to_torch():
    one, other = (torch.linspace(-1, 1, 50).requires_grad_() for _ in range(2))
    low = LowOptimizer(torch.optim.Adam([one]), FP32)
    real = torch.optim.Adam([other])
    for step in range(5):
        one.grad = other.grad = gradients(50, step, FP16).float()
        low.step()
        real.step()
    assert_bits(one, other)


def test_weights_enter_their_format_at_once_and_stay_there():
    weight = torch.linspace(-1, 1, 50).requires_grad_()
    before = weight.detach().clone()
    low = LowOptimizer(torch.optim.SGD([weight], lr=0.1), BF16, optimizer_format=FP32)
    assert_bits(weight, before.bfloat16().float())
    weight.grad = torch.full((50,), 0.123456789)
    low.step()
    assert_bits(
        weight, (before.bfloat16().float() - 0.1 * weight.grad).bfloat16().float()
    )


@pytest.mark.parametrize("how", ["stochastic", "kahan"])
def test_careful_updates_survive_an_optimizer_in_the_weights_format(how):
    """Each of its operations rounds, but the last, on the weights: that is left to the rule."""
    weight, _ = descend(
        BF16, 200, 2e-5, update_rounding=how, optimizer_format=BF16, stream=Stream(3)
    )
    assert abs(weight.mean() - (1 - 200 * 2e-5)) < 1e-3
