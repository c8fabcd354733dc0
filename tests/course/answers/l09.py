"""Answers to the exercises of lesson 09, right ones and wrong ones."""

import math

import numpy as np
import torch

from mplab.scaling import LossScaler


def by_the_library(scale, good_steps, found_inf, growth_interval):
    """The next state by `LossScaler`, which follows torch."""
    scaler = LossScaler(scale, growth_interval=growth_interval)
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": good_steps})
    scaler.update(found_inf)
    return scaler.scale, scaler.state_dict()["_growth_tracker"]


def by_arithmetic(scale, good_steps, found_inf, growth_interval):
    """The same as a formula; arrays are as good as tuples."""
    count = 0 if found_inf else (good_steps + 1) % growth_interval
    power = -1 if found_inf else int(count == 0)
    return np.array([math.ldexp(scale, power), count])


def by_factor(gradients, scale, max_norm):
    norm = math.sqrt(sum(float(g) ** 2 for g in gradients)) / scale
    return gradients * (min(1.0, max_norm / norm) if norm else 1.0) / scale


def by_torch(gradients, scale, max_norm):
    """By the call that the lesson is about, which adds 1e-6 to the norm."""
    weight = torch.nn.Parameter(torch.zeros(len(gradients), dtype=torch.float64))
    weight.grad = torch.from_numpy(gradients / scale)
    torch.nn.utils.clip_grad_norm_([weight], max_norm)
    return weight.grad.numpy()


def in_float32(gradients, scale, max_norm):
    return by_factor(gradients.astype(np.float32), scale, max_norm)


RIGHT = {
    "scale_after": [512, 2.0**9],
    "next_state": [by_arithmetic],
    "clipped": [
        by_factor,
        by_torch,
        in_float32,
    ],
}

BY_LIBRARY = {"next_state": [by_the_library]}

# Written apart from the sentences they must draw: what somebody would really hand in.
WRONG = {
    "scale_after": [
        (1024.0, "the last one too"),
    ],
    "next_state": [
        (lambda s, n, f, k: (s / 2, 0) if f else (s * 2, 0), "A bad step halves"),
        (lambda s, n, f, k: (s / 2, 0) if f else (s, n + 1), "row already doubles"),
    ],
}
