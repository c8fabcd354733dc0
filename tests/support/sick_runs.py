"""Training runs with one fault each, and the same runs without it."""

import torch
from torch import nn
from torch.nn import functional as F

from mplab.health import Health
from mplab.simulation import convert_linears


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
        self.model, self.data = model, data
        self.optimizer = optimizer(model.parameters(), lr=lr)
        on = scale is not None
        theirs = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=on)
        self.scaler = scaler or theirs
        self.health = Health(model, self.optimizer, scaler=self.scaler, **watch)

    def run(self, steps, *, low=torch.float16, beside=False, clip=""):
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


def trained(health, loss_of, steps):
    """Train the watched model without a scaler; `loss_of` gets the number of each step."""
    with health:
        for number in range(steps):
            health.optimizer.zero_grad()
            loss = loss_of(number)
            loss.backward()
            health.optimizer.step()
            health.step(loss)
    return health.report()


def watched(model, *, lr=0.1, optimizer=torch.optim.SGD, **options):
    return Health(model, optimizer(model.parameters(), lr=lr), **options)


# Each case: the broken run, the finding, and the healthy twin -----------------------------


def small_gradients(**options):
    """Case 01: a mean over many outputs, tiny targets, and small last weights."""
    model = seeded(lambda: mlp(outputs=16))
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
        model[2].bias.zero_()
    data = regression(4096, 8, 16, 4e-4)
    loop = Loop(
        model, data, optimizer=torch.optim.Adam, lr=1e-4, scale=options.get("scale")
    )
    return loop.run(4, low=options.get("low", torch.float16))


def large_feature(*, standardised):
    """Case 02: one input column lies past FP16's range."""
    x, y = regression()
    x[:, 3] = 7e4 + 500 * x[:, 3]
    if standardised:
        x[:, 3] = (x[:, 3] - 7e4) / 500
    model = seeded(lambda: mlp(activation=nn.ReLU))
    return Loop(model, (x, y), lr=0.01, scale=65536.0).run(20)


def high_scale():
    """Case 02's look-alike: the loss is finite, and only the first scale is too high."""
    return Loop(seeded(mlp), regression(), scale=2.0**30).run(30)


def half_model(*, broken):
    """Case 03: Adam on FP16 parameters, one dead input column."""
    x, y = regression()
    x[:, 0] = 0
    model = seeded(mlp)
    if not broken:
        return Loop(model, (x, y), optimizer=torch.optim.Adam, lr=1e-3, scale=64.0).run(
            3
        )
    model.half()
    return Loop(model, (x.half(), y), optimizer=torch.optim.Adam, lr=1e-3).run(
        3, low=None
    )


def accumulation(*, broken):
    """Case 05: unscale_ for each micro-batch."""
    loop = Loop(seeded(mlp), regression(), scale=1024.0)
    x, y = loop.data
    with loop.health:
        for _ in range(3):
            loop.optimizer.zero_grad()
            for i in range(4):
                with half():
                    out = loop.model(x[i::4])
                loss = F.mse_loss(out.float(), y[i::4])
                loop.scaler.scale(loss / 4).backward()
                if broken and i < 3:
                    loop.scaler.unscale_(loop.optimizer)
                    loop.scaler.update()
            loop.scaler.unscale_(loop.optimizer)
            loop.scaler.step(loop.optimizer)
            loop.scaler.update()
            loop.health.step(loss)
    return loop.health.report()


class HandNorm(nn.Module):
    """RMSNorm as people write it, in the format of its input or in FP32."""

    def __init__(self, wide):
        super().__init__()
        self.wide = wide

    def forward(self, x):
        y = x.float() if self.wide else x
        mean = (y * y).mean(-1, keepdim=True)
        return (y * torch.rsqrt(mean + 1e-6)).to(x.dtype)


def hand_norm(*, wide):
    """Case 08: x·x overflows, rsqrt(inf) is 0, and no NaN is ever seen."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), HandNorm(wide), nn.Linear(16, 4))
    x, y = regression()
    x[:16] *= 400
    return Loop(model, (x, y), scale=16.0, lr=1e-3).run(3)


class Attention(nn.Module):
    """One head, with the factor after the product or before it, and a causal mask."""

    def __init__(self, scale_first):
        super().__init__()
        self.scale_first = scale_first
        self.project = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        factor = 16**-0.5
        if self.scale_first:
            logits = (q * (factor / 64)) @ k.transpose(-1, -2)
            logits = logits.float() * 64
        else:
            logits = q @ k.transpose(-1, -2) * factor
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        return logits.masked_fill(mask, float("-inf")).softmax(-1).to(v.dtype) @ v


def attention(*, scale_first):
    """Case 09: QKᵀ overflows before its factor."""
    torch.manual_seed(4)
    model = nn.Sequential(Attention(scale_first), nn.Linear(16, 4))
    x = 300 * torch.randn(4, 8, 16)
    return Loop(model, (x, torch.randn(4, 8, 4)), scale=1.0, lr=1e-9).run(2)


def small_updates(dtype):
    """Case 10: weights in the low format itself, and updates below half an ulp."""
    model = nn.Linear(8, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.fill_(1.0)
    x = torch.rand(64, 8) + 0.5
    return Loop(model, (x.to(dtype), x.sum(1, keepdim=True) - 1), lr=1e-4).run(
        6, low=None
    )


def positions(*, autocast):
    """Case 11: rotary angles by a product, for positions past 256."""
    places = torch.arange(65536, 65600).float()[:, None]
    model = nn.Sequential(nn.Linear(1, 4, bias=False))
    with torch.no_grad():
        model[0].weight.mul_(1e-5)
    return Loop(model, (places, torch.zeros(64, 4)), lr=1e-12).run(
        2, low=torch.bfloat16 if autocast else None
    )


def meter(dtype):
    """Case 12: a loss in BF16 that somebody will sum."""
    with Health(nn.Linear(1, 1)) as health:
        for k in range(1000):
            health.step(torch.tensor(2.3 + 0.4 * k / 1000).to(dtype))
    return health.report()


def one_block(*, around_all):
    """Case 13: autocast around the loop keeps the first casts of the weights."""
    model = seeded(mlp)
    x, y = regression()

    def loss_of(step):
        with half(torch.bfloat16):
            out = model(x)
        return F.mse_loss(out.float(), y)

    health = watched(model, lr=0.5, trace_every=2)
    with half(torch.bfloat16) if around_all else torch.enable_grad():
        return trained(health, loss_of, 6)


def poisoned_norm(*, size):
    """Reserve case 1: one batch overflows, and the running variance stays infinite."""
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
    x, y = regression()
    return Loop(model, (x * size, y), lr=1e-3).run(2, low=None)


def detached(*, broken):
    """Reserve case 2: the graph is cut, and no parameter has a gradient."""
    model = seeded(mlp)
    extra = torch.ones(4, requires_grad=True)
    x, y = regression()

    def loss_of(step):
        out = model(x).detach() if broken else model(x)
        return F.mse_loss(out * extra, y)

    return trained(watched(model), loss_of, 2)


def eight_bits(scaling, *, spike=1.0, size=1.0, outlier=1.0):
    """Case 14: FP8 layers; a batch with a spike, small numbers, or one large feature."""
    inputs = 8 if outlier == 1 else 128  # of which the outlier spoils one block of 32
    model = seeded(lambda: mlp(inputs=inputs))
    model[0].weight.data[:, 0] /= outlier  # else tanh would saturate
    convert_linears(model, scaling=scaling, amax_history_len=4)
    x, y = regression(inputs=inputs)
    x = size * x * torch.tensor([outlier, *[1.0] * (x.shape[1] - 1)])

    def loss_of(step):
        return F.mse_loss(model(x * (spike if step == 5 else 1.0)), y)

    return trained(watched(model), loss_of, 12)


def fault(run, name, **changes):
    """A case: the run, how it is broken, the finding, and how it is healthy."""
    return (
        run, {key: broken for key, (broken, _) in changes.items()}, name,
        {key: healthy for key, (_, healthy) in changes.items()},
    )  # fmt: skip


LOW, HIGH, DELAYED, SPIKE = (
    torch.bfloat16,
    torch.float32,
    ("delayed", "delayed"),
    (3e5, 3e5),
)
BROKEN_AND_HEALTHY = {
    "01 underflow": (small_gradients, {}, "gradient-underflow", {"scale": 2.0**22}),
    "01 underflow, BF16 as cure": (
        small_gradients,
        {},
        "gradient-underflow",
        {"low": LOW},
    ),
    "02 forward overflow": fault(
        large_feature, "overflow-forward", standardised=(False, True)
    ),
    "03 half model": fault(half_model, "half-parameters", broken=(True, False)),
    "03 update makes NaN": fault(half_model, "nonfinite-weights", broken=(True, False)),
    "05 accumulation": fault(accumulation, "unscaled-twice", broken=(True, False)),
    "08 hand-written norm": fault(hand_norm, "hidden-infinity", wide=(False, True)),
    "09 attention": fault(attention, "overflow-forward", scale_first=(False, True)),
    "10 stagnation": fault(small_updates, "stagnant-weights", dtype=(LOW, HIGH)),
    "11 positions": fault(positions, "rounded-integers", autocast=(True, False)),
    "12 meter": fault(meter, "low-precision-loss", dtype=(LOW, HIGH)),
    "13 one block": fault(one_block, "stale-casts", around_all=(True, False)),
    "14 spike": fault(
        eight_bits, "stale-fp8-scale", scaling=("delayed", "current"), spike=SPIKE
    ),
    "14 no spike": fault(
        eight_bits, "stale-fp8-scale", scaling=DELAYED, spike=(3e5, 1.0)
    ),
    "14 no scale": fault(
        eight_bits, "no-fp8-scale", scaling=("none", "delayed"), size=(1e-4, 1e-4)
    ),
    "14 outlier": fault(
        eight_bits, "fp8-outliers", scaling=("current", "block"), outlier=(1e6, 1e6)
    ),
    "r1 statistics": fault(poisoned_norm, "nonfinite-buffers", size=(1e30, 1.0)),
    "r2 graph": fault(detached, "no-gradients", broken=(True, False)),
}


def clipped(order, scale=16384.0):
    x, y = regression(outputs=1)
    return Loop(nn.Linear(8, 1), (x, 3 * y), lr=1e-3, scale=scale).run(3, clip=order)
