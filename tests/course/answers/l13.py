"""Answers to the exercises of lesson 13, right ones and wrong ones."""

import numpy as np
import torch


def with_a_scaled_limit(g, scale, limit):
    """In scaled units throughout, and divided at the end."""
    norm = np.linalg.norm(g)
    return g / scale * min(1.0, limit * scale / norm if norm else 1.0)


def torch_like(g, scale, limit):
    true = g / scale
    return true if np.linalg.norm(true) <= limit else true / np.linalg.norm(true) * limit


def by_torch(g, scale, limit):
    """By the call that the lesson is about, which adds 1e-6 to the norm."""
    weight = torch.nn.Parameter(torch.zeros(len(g), dtype=torch.float64))
    weight.grad = torch.from_numpy(g / scale)
    torch.nn.utils.clip_grad_norm_([weight], limit)
    return weight.grad.numpy()


def in_float32(g, scale, limit):
    return torch_like(g.astype(np.float32), np.float32(scale), np.float32(limit))


def ladder(finite, zeros, lost, moved, repeats):
    if finite < 1:
        return 1
    if zeros > 0.5:
        return 2
    if lost > 0.5:
        return 3
    return 4 if min(moved, repeats) > 0.5 else 0


def by_table(finite, zeros, lost, moved, repeats):
    flags = [finite < 1, zeros > 0.5, lost > 0.5, moved > 0.5 and repeats > 0.5, True]
    return [1, 2, 3, 4, 0][flags.index(True)]


RIGHT = {
    "norm_at_optimizer": [2.0**-14, 1 / 16384],
    "unscale_and_clip": [with_a_scaled_limit, torch_like, by_torch, in_float32],
    "name_the_fault": [ladder, by_table],
}

WRONG = {
    "norm_at_optimizer": [
        (1.0, "asked for"),
        (6.0, "is clipped"),
        (6 / 16384, "6 is gone"),
        (16384.0, "divides"),
        (0.0, "after clipping"),
    ],
    "unscale_and_clip": [
        (lambda g, s, m: torch_like(g, 1, m) / s, "meets the scaled ones"),
        (lambda g, s, m: torch_like(g, 1, m), "without the scale"),
        (lambda g, s, m: g / s, "not clipped"),
        (lambda g, s, m: g / max(np.linalg.norm(g), 1e-300) * m, "stay as they are"),
        (lambda g, s, m: np.clip(g / s, -m, m), "direction stays"),
    ],
    "name_the_fault": [
        (lambda f, z, lo, m, r: ladder(1, z, lo, m, r) or ladder(f, z, lo, m, r), "Ask first"),
        (lambda f, z, lo, m, r: ladder(f, z, lo, 1, r), "only if the weights moved"),
        (lambda f, z, lo, m, r: ladder(f, z, lo, m, 1), "does not notice"),
        (lambda f, z, lo, m, r: 1 if f < 1 else 3 if lo > 0.5 else ladder(f, z, lo, m, r), "come"),
        (lambda f, z, lo, m, r: ladder(1, z, lo, m, r), "fault of its own"),
    ],
}
