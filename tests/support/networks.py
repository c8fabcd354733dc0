"""Small networks whose simulation has one right answer, and how to compare bits."""

import itertools

import numpy as np
import torch
from cases import assert_same_bits
from torch import nn
from torch.nn import functional as F

import mplab
from mplab import FP16


def round_to(t, fmt=FP16, **options):
    return torch.from_numpy(mplab.round_to(t.detach().float().numpy(), fmt, **options))


def assert_bits(actual, expected):
    """Compare numbers by their bits in float32, whatever dtypes hold them; all NaNs are one."""
    pair = actual, expected
    assert_same_bits(*(t.detach().cpu().float().resolve_neg().numpy() for t in pair))


def assert_all_bits(found, expected):
    """Compare the tensors of two sequences."""
    for one, other in zip(found, expected, strict=True):
        assert_bits(one, other)


def is_low(t, fmt=FP16):
    t = t.detach().float()
    return np.array_equal(round_to(t, fmt).numpy(), t.numpy())


class Within(nn.Module):
    """A function as a module, since some policies treat what is outside modules differently."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def mlp(*widths, activation=nn.Sigmoid):
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def assert_same_gradients(first, second):
    assert_all_bits(gradients(first), gradients(second))


def loss(h):
    return F.mse_loss(h, torch.full(h.shape, 0.1))


def linear(x, *weights):
    for weight in weights:
        x = F.linear(x, weight)
    return x


# A float32 sum of two products is rounded once, in whatever order it is computed. So a network
# of width two, on a batch of two, has one right answer, whatever the kernels.


def writes_a_column(x, p):
    h = linear(x, p[0]).clone()
    h[:, 0] = x[:, 0] * 0.1
    return loss(linear(h, p[1]) * F.relu(h))


def multiplies_a_column(x, p):
    h = linear(x, p[0]).clone()
    h[:, 0].mul_(0.3)
    return loss(h)


def fills_an_fp32_buffer(x, p):
    h = torch.zeros(2, 2)
    h[:, 0] = linear(x, p[0])[:, 0]
    return loss(linear(h * 0.3, p[1]))


def drops(x, p):
    torch.manual_seed(3)
    return loss(linear(F.dropout(linear(x, p[0]), 0.3), p[1]))


def norm_by_hand(h):
    wide = 300 * h.to(torch.float32)  # FP16 does not hold the squares
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return wide.to(h.dtype) / 3


def clamped(h):
    h = h * 30000 * 30000
    if h.dtype == torch.float16:
        most = torch.where(h.isinf().any(), torch.finfo(h.dtype).max - 1000, 9.0)
        h = torch.clamp(h, min=-most, max=most)
    return h / 30000


def program(text):
    """A step as a function of inputs and weights; H in the text is the first layer's output."""
    return eval(f"lambda x, p: {text.replace('H', 'linear(x, p[0])')}")


PROGRAMS = {
    "writes a column": writes_a_column,
    "multiplies a column": multiplies_a_column,
    "fills an FP32 buffer": fills_an_fp32_buffer,
    "dropout": drops,
} | {name: program(text) for name, text in {
    "two layers": "loss(linear(F.relu(H), p[1]))",
    "one low tensor used three times":
        "loss(linear(h := H, p[1]) + linear(h, p[2]) + linear(h, p[3]) + h)",
    "one low tensor summed and used":
        "(h := H).float().sum() * 0.3 + loss(linear(h, p[1])) + h.float().sum() * 0.7",
    "one low tensor used low and wide":
        "loss(linear(h := H, p[1])) + loss(h - 1) + loss(h) + loss(linear(h, p[2]))",
    "one FP32 tensor used three times":
        "loss(linear(h := F.mse_loss(H, torch.zeros(2, 2), reduction='none'), p[1])"
        " + linear(h, p[2]) + linear(h, p[3]))",
    "one weight used twice": "loss(linear(H, p[0]))", "times a Python number": "loss(H * 0.1)",
    "times an FP32 parameter": "loss(linear(H * p[3], p[1]))",
    "in place": "loss(linear((H * 1.1).mul_(0.3).add_(p[3]), p[1]))",
    "views": "loss(linear(H.t().reshape(2, 2)[:, [1, 0]], p[1]).view(4))",
    "three dimensions": "loss(linear(x.view(1, 2, 2), p[0], p[1]))",
    "concatenation": "loss(linear(torch.cat([H[:, :1], linear(x, p[1])[:, 1:]], 1), p[2]))",
    "concatenation with FP32": "loss(linear(torch.cat([H[:, :1], x[:, :1]], 1), p[2]))",
    "clamp": "loss(linear(H.clamp(-0.1, 0.7), p[1]))", "largest": "loss(H.amax(1) * 0.3)",
    "where": "loss(linear(torch.where((h := H) > 0, h, torch.tensor(0.1)), p[1]))",
    "batched products": "loss(torch.bmm(h := H.view(1, 2, 2), p[1].view(1, 2, 2)) @ h)",
}.items()}  # fmt: skip


def normal(*shape, seed=0, spread=0.0):
    """Normal deviates, their magnitudes spread over 2^±spread."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape) * 2.0 ** generator.uniform(-spread, spread, shape)
    return torch.from_numpy(x.astype(np.float32))
