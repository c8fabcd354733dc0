"""A4's references against the real `torch.amp.GradScaler`, on sequences drawn at random."""

import copy
import math
from functools import partial

import corpus
import numpy as np
import pytest
import torch
from corpus import hidden_cases

pytestmark = pytest.mark.slow

BAD = (math.inf, -math.inf, math.nan)


reference = partial(corpus.reference, "a4")


def scaler_in(state):
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(state)
    return scaler


def network(sizes):
    """Parameters and the optimizer of each group of them; it counts the steps that are taken."""
    groups = [[torch.nn.Parameter(torch.zeros(n)) for n in group] for group in sizes]
    optimizers = [torch.optim.SGD(group, lr=1.0) for group in groups]
    taken = [0] * len(groups)

    def count(i):
        taken[i] += 1

    for i, optimizer in enumerate(optimizers):
        optimizer.register_step_post_hook(lambda *_, i=i: count(i))
    return groups, optimizers, taken


def backward(scaler, parameter, gradient):
    """A loss whose gradient is the given one, times the scale."""
    scaler.scale((parameter * torch.as_tensor(gradient)).sum()).backward()


def window(scaler, optimizers, groups, gradients):
    """One window of torch; `gradients` are scaled already."""
    scaler.scale(torch.zeros(()))  # makes the scale, lazily
    for group, own in zip(groups, gradients, strict=True):
        for parameter, gradient in zip(group, own, strict=True):
            parameter.grad = torch.tensor(gradient)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def random_state(rng):
    interval = int(rng.integers(1, 7))
    scale = np.float32(2.0 ** rng.uniform(-149, 127.9) if rng.integers(2) else 65536)
    return {
        "scale": float(scale),
        "growth_factor": float(rng.choice((2.0, 1.1, 1.5, 1e3))),
        "backoff_factor": float(rng.choice((0.5, 0.9, 0.125, 0.3))),
        "growth_interval": interval,
        "_growth_tracker": int(rng.integers(interval)),
    }


def one_good_or_bad(bad):
    return [[np.float32([math.inf if bad else 1.0])]]


def test_after_every_run_of_random_sequences_the_state_is_that_of_torch():
    rng, after_run = np.random.default_rng(1), reference("after_run")
    for _ in range(30):
        state = random_state(rng)
        scaler = scaler_in(state)
        groups, optimizers, _ = network([[1]])
        for found in rng.integers(0, 2, 10).astype(bool).tolist():
            steps = int(rng.choice((1, 1, 2, 30)))
            for _ in range(steps):
                window(scaler, optimizers, groups, one_good_or_bad(found))
            before, state = state, after_run(state, found, steps)
            assert state == scaler.state_dict(), (before, found, steps)


def test_the_gradient_of_a_window_is_what_torch_gives_the_optimizer():
    rng = np.random.default_rng(3)
    skipped = 0
    for _ in range(80):
        count, size, scale = (
            int(rng.integers(1, 6)),
            int(rng.integers(1, 6)),
            2.0 ** rng.integers(20),
        )
        true = np.float32(rng.normal(size=(count, size)) * 10 ** rng.uniform(-2, 2))
        if rng.integers(3) == 0:
            true[rng.integers(count), rng.integers(size)] = rng.choice(
                (math.inf, -math.inf, math.nan)
            )
        max_norm = float(2 ** rng.uniform(-1, 6))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        [[weight]], [optimizer], taken = network([[size]])
        for gradient in true:
            backward(scaler, weight, gradient / np.float32(count))
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], max_norm)
        scaler.step(optimizer)
        skipped += not taken[0]
        scaled = [g * np.float32(scale) for g in true]
        ours = reference("window_gradient")(scaled, scale, max_norm)
        assert taken == [ours is not None]
        if ours is not None:
            np.testing.assert_allclose(
                ours, -weight.detach().numpy(), rtol=1e-4, atol=1e-5
            )
    assert 10 < skipped < 40


def test_each_optimizer_steps_and_the_state_moves_as_in_torch():
    rng = np.random.default_rng(4)
    for _ in range(40):
        state = random_state(rng) | {"scale": 2.0 ** int(rng.integers(-20, 20))}
        sizes = [[2] * int(rng.integers(1, 4)) for _ in range(rng.integers(1, 5))]
        scaler = scaler_in(state)
        groups, optimizers, taken = network(sizes)
        for _ in range(8):
            gradients = [[np.float32(rng.normal(size=2)) for _ in own] for own in sizes]
            for own in gradients:
                if rng.integers(4) == 0:
                    place = own[rng.integers(len(own))]
                    place[rng.integers(2)] = rng.choice(BAD)
            taken[:] = [0] * len(taken)
            window(scaler, optimizers, groups, gradients)
            wanted = ([bool(n) for n in taken], scaler.state_dict())
            assert reference("end_window")(state, gradients) == wanted
            state = wanted[1]


def torch_replay(state, log, warmup):
    """A job of torch: its scheduler moves when the optimizer has stepped, its files are copies."""
    scaler = scaler_in(state)
    groups, [optimizer], taken = network([[1]])
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, (n + 1) / warmup)
    )

    def on_disk():
        files = (scaler.state_dict(), optimizer.state_dict(), scheduler.state_dict())
        return copy.deepcopy(files)

    saved, scales, rates = on_disk(), [], []
    for entry in log:
        if entry == "save":
            saved = on_disk()
        elif entry == "crash":
            scaler = torch.amp.GradScaler("cpu")
            for part, file in zip(
                (scaler, optimizer, scheduler), copy.deepcopy(saved), strict=True
            ):
                part.load_state_dict(file)
        else:
            taken[0] = 0
            scales.append(scaler.get_scale())
            rate = scheduler.get_last_lr()[0]
            window(
                scaler, [optimizer], groups, one_good_or_bad(scaler.get_scale() > entry)
            )
            if taken[0]:
                scheduler.step()
            rates.append(rate if taken[0] else 0.0)
    return scales, rates


def test_a_job_with_crashes_goes_as_one_of_torch_that_saves_everything():
    for seed in range(3):
        for case in hidden_cases("a4", "replay", seed=seed):
            assert reference("replay")(*case) == torch_replay(*case)
