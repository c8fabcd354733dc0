"""Small training loops under a watch, with a few faults as options."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

from mplab.health import Health


def half(dtype=torch.float16):
    return torch.autocast("cpu", dtype=dtype)


class Loop:
    """A training loop in real mixed precision, whose faults are its options."""

    def __init__(
        self,
        model,
        data,
        *,
        lr=0.1,
        scale=None,
        scaler=None,
        optimizer=torch.optim.SGD,
        **watch,
    ):
        torch.manual_seed(0)
        self.model = model
        self.data = data
        self.optimizer = optimizer(model.parameters(), lr=lr)
        on = scale is not None
        theirs = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=on)
        self.scaler = scaler or theirs
        self.health = Health(model, self.optimizer, scaler=self.scaler, **watch)

    def run(self, steps, *, low=torch.float16, beside=False, twice=False, clip=""):
        with self.health:
            for _ in range(steps):
                self.optimizer.zero_grad()
                x, y = self.data
                with half(low) if low else torch.enable_grad():
                    out = self.model(x)
                loss = F.mse_loss(out.float(), y)
                self.scaler.scale(loss).backward()
                if clip == "before":
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                if twice:  # as for each of several micro-batches
                    self.scaler.unscale_(self.optimizer)
                    self.scaler.update()
                if clip:
                    self.scaler.unscale_(self.optimizer)
                if clip == "after":
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                if beside:
                    self.optimizer.step()
                self.health.step(loss)
        return self.health.report()


class Changed(torch.autograd.Function):
    """The identity, whose gradient is changed by a function."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def seeded(make):
    torch.manual_seed(1)
    return make()


def mlp(*, inputs=8, outputs=4, activation=nn.Tanh):
    return nn.Sequential(nn.Linear(inputs, 16), activation(), nn.Linear(16, outputs))


def regression(rows=64, inputs=8, outputs=4, size=1.0):
    g = torch.Generator().manual_seed(2)
    return torch.randn(rows, inputs, generator=g), size * torch.randn(
        rows, outputs, generator=g
    )


def trained(health, loss_of, steps, *, between=lambda: None, told=lambda loss: loss):
    """Train the watched model; `loss_of` gets the number of each step.

    `between` stands before the update, and `told` says what the watch is told of a loss.
    """
    scaler = health.scaler or torch.amp.GradScaler("cpu", enabled=False)
    with health:
        for number in range(steps):
            health.optimizer.zero_grad()
            loss = loss_of(number)
            scaler.scale(loss).backward()
            between()
            scaler.step(health.optimizer)
            scaler.update()
            health.step(told(loss))
    return health.report()


def watched(model, *, lr=0.1, optimizer=torch.optim.SGD, **options):
    return Health(model, optimizer(model.parameters(), lr=lr), **options)


def trained_by_closure(health, loss_of, steps):
    """Train where the optimizer runs forward and backward pass, as Lightning's does."""

    def closure():
        health.optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    with health:
        for _ in range(steps):
            health.step(health.optimizer.step(closure))
    return health.report()


def looked_at(model, loss_of, steps=1, *, within=None):
    """A watch over steps without an update, each within a context; `loss_of` gets its number."""
    with Health(model) as health, within or nullcontext():
        for number in range(steps):
            loss = loss_of(number)
            loss.backward()
            health.step(loss.detach())
    return health
