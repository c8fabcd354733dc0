"""The health report names what is wrong with a broken run, and is silent about its healthy twin."""

import itertools
import json
import math
import threading
import warnings

import pytest
import torch
from legible import assert_legible
from networks import Within
from tiers import mostly_slow
from torch import nn
from torch.nn import functional as F

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, pictures
from mplab.health import Health
from mplab.health._tracing import Tracer
from mplab.health._vitals import casts_of
from mplab.health.records import pooled_layers
from mplab.numbers.tensors import round_tensor
from mplab.scaling import LossScaler
from mplab.simulation import Fp8Linear, convert_linears, simulated
from mplab.simulation.fp8 import SCALINGS
from mplab.training import TASKS


def half(dtype=torch.float16):
    return torch.autocast("cpu", dtype=dtype)


class Loop:
    """A training loop in real mixed precision, whose faults are its options."""

    def __init__(self, model, data, *, lr=0.1, scale=None, optimizer=torch.optim.SGD, **watch):
        torch.manual_seed(0)
        self.model, self.data = model, data
        self.optimizer = optimizer(model.parameters(), lr=lr)
        on = scale is not None
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=on)
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
    return torch.randn(rows, inputs, generator=g), size * torch.randn(rows, outputs, generator=g)


# Each case: the broken run, the finding, and the healthy twin -----------------------------


def small_gradients(**options):
    """Case 01: a mean over many outputs, tiny targets, and small last weights."""
    model = seeded(lambda: mlp(outputs=16))
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
        model[2].bias.zero_()
    data = regression(4096, 8, 16, 4e-4)
    loop = Loop(model, data, optimizer=torch.optim.Adam, lr=1e-4, scale=options.get("scale"))
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
        return Loop(model, (x, y), optimizer=torch.optim.Adam, lr=1e-3, scale=64.0).run(3)
    model.half()
    return Loop(model, (x.half(), y), optimizer=torch.optim.Adam, lr=1e-3).run(3, low=None)


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
    return Loop(model, (x.to(dtype), x.sum(1, keepdim=True) - 1), lr=1e-4).run(6, low=None)


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
    loop = Loop(seeded(mlp), regression(), lr=0.5, trace_every=2)
    x, y = loop.data
    outer = half(torch.bfloat16) if around_all else torch.enable_grad()
    with loop.health, outer:
        for _ in range(6):
            loop.optimizer.zero_grad()
            with half(torch.bfloat16):
                out = loop.model(x)
            loss = F.mse_loss(out.float(), y)
            loss.backward()
            loop.optimizer.step()
            loop.health.step(loss)
    return loop.health.report()


def poisoned_norm(*, size):
    """Reserve case 1: one batch overflows, and the running variance stays infinite."""
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
    x, y = regression()
    return Loop(model, (x * size, y), lr=1e-3).run(2, low=None)


def detached(*, broken):
    """Reserve case 2: the graph is cut, and no parameter has a gradient."""
    model = seeded(mlp)
    extra = torch.ones(4, requires_grad=True)
    health = Health(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = regression()
    with health:
        for _ in range(2):
            out = model(x)
            loss = F.mse_loss((out.detach() if broken else out) * extra, y)
            loss.backward()
            health.step(loss)
    return health.report()


def eight_bits(scaling, *, spike=1.0, size=1.0, outlier=1.0):
    """Case 14: FP8 layers; a batch with a spike, small numbers, or one large feature."""
    model = seeded(mlp)
    convert_linears(model, scaling=scaling, amax_history_len=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = regression()
    x = size * x * torch.tensor([outlier, *[1.0] * (x.shape[1] - 1)])
    with Health(model, optimizer) as health:
        for step in range(12):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x * (spike if step == 5 else 1.0)), y)
            loss.backward()
            optimizer.step()
            health.step(loss)
    return health.report()


BROKEN_AND_HEALTHY = {
    "01 underflow": (small_gradients, {}, "gradient-underflow", {"scale": 2.0**22}),
    "01 underflow, BF16 as cure": (
        small_gradients,
        {},
        "gradient-underflow",
        {"low": torch.bfloat16},
    ),
    "02 forward overflow": (
        large_feature,
        {"standardised": False},
        "overflow-forward",
        {"standardised": True},
    ),
    "03 half model": (half_model, {"broken": True}, "half-parameters", {"broken": False}),
    "03 update makes NaN": (half_model, {"broken": True}, "nonfinite-weights", {"broken": False}),
    "05 accumulation": (accumulation, {"broken": True}, "unscaled-twice", {"broken": False}),
    "08 hand-written norm": (hand_norm, {"wide": False}, "hidden-infinity", {"wide": True}),
    "09 attention": (
        attention,
        {"scale_first": False},
        "overflow-forward",
        {"scale_first": True},
    ),
    "10 stagnation": (
        small_updates,
        {"dtype": torch.bfloat16},
        "stagnant-weights",
        {"dtype": torch.float32},
    ),
    "11 positions": (positions, {"autocast": True}, "rounded-integers", {"autocast": False}),
    "12 meter": (meter, {"dtype": torch.bfloat16}, "low-precision-loss", {"dtype": torch.float32}),
    "13 one block": (one_block, {"around_all": True}, "stale-casts", {"around_all": False}),
    "14 spike": (
        eight_bits,
        {"scaling": "delayed", "spike": 3e5},
        "stale-fp8-scale",
        {"scaling": "current", "spike": 3e5},
    ),
    "14 no spike": (
        eight_bits,
        {"scaling": "delayed", "spike": 3e5},
        "stale-fp8-scale",
        {"scaling": "delayed"},
    ),
    "14 no scale": (
        eight_bits,
        {"scaling": "none", "size": 1e-4},
        "no-fp8-scale",
        {"scaling": "delayed", "size": 1e-4},
    ),
    "14 outlier": (
        eight_bits,
        {"scaling": "current", "outlier": 1e6},
        "fp8-outliers",
        {"scaling": "block", "outlier": 1e6},
    ),
    "r1 statistics": (poisoned_norm, {"size": 1e30}, "nonfinite-buffers", {"size": 1.0}),
    "r2 graph": (detached, {"broken": True}, "no-gradients", {"broken": False}),
}


@pytest.mark.parametrize("case", BROKEN_AND_HEALTHY)
def test_the_report_names_the_fault(case):
    make, broken, finding, _ = BROKEN_AND_HEALTHY[case]
    report = make(**broken)
    assert finding in report.codes, report


@pytest.mark.parametrize("case", BROKEN_AND_HEALTHY)
def test_the_report_finds_no_fault_in_the_healthy_twin(case):
    make, _, _, healthy = BROKEN_AND_HEALTHY[case]
    report = make(**healthy)
    assert report.codes == [], report


@pytest.mark.parametrize("task", ["digits-autoencoder", "digits-cnn"])
def test_zeros_of_relu_are_told_from_zeros_that_fp16_makes(task):
    """Both networks have many zeros in FP16 without a scale; only the autoencoder's are losses."""
    chosen = TASKS[task]
    torch.manual_seed(0)
    model = chosen.model()
    x, y = (t[:128] for t in chosen.data().train)
    optimizer = chosen.optimizer(model.parameters())
    with Health(model, optimizer) as health:
        for _ in range(6):
            optimizer.zero_grad()
            with half():
                out = model(x)
            loss = chosen.loss(out.float(), y)
            (loss / 8).backward()  # as from eight times the batch
            optimizer.step()
            health.step(loss)
    most = max(s.zeros / s.total for s in pooled_layers(health.steps).values())
    assert most > 0.5
    expected = ["gradient-underflow"] if task == "digits-autoencoder" else []
    assert health.report().codes == expected


def test_a_scale_that_falls_although_the_loss_is_finite_is_no_fault():
    report = high_scale()
    assert report.codes == []
    assert [f.code for f in report.findings] == ["scale-finds-its-level"]
    skipped = sum(step.skipped for step in report.steps)
    assert 0 < skipped < 20
    told = f"Nothing conspicuous in 30 steps; {skipped} skipped while the scale found its level"
    assert pictures.health(report).claim == told


def test_a_loss_that_is_not_finite_is_told_from_an_overflowing_backward_pass():
    report = large_feature(standardised=False)
    assert "scale-finds-its-level" not in [f.code for f in report.findings]
    (finding,) = (f for f in report.findings if f.code == "overflow-forward")
    assert "20 of 20 steps" in finding.observed
    assert all(step.skipped for step in report.steps)


def test_a_gradient_without_a_value_at_any_scale_is_told_from_a_scale_too_high():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g / 0.0

    class Layer(nn.Module):
        def forward(self, x):
            return Bad.apply(x)

    model = nn.Sequential(nn.Linear(8, 4), Layer())
    report = Loop(model, regression(), scale=8.0).run(12)
    assert "backward-never-finite" in report.codes
    origin = next(o for step in report.steps for o in step.origins)
    assert (origin.phase, origin.module, origin.operation) == ("backward", "1 (Layer)", "div")


# Clipping and calls ----------------------------------------------------------------------


def clipped(order, scale=16384.0):
    x, y = regression(outputs=1)
    return Loop(nn.Linear(8, 1), (x, 3 * y), lr=1e-3, scale=scale).run(3, clip=order)


def test_clipping_before_unscale_is_seen_by_its_norms():
    report = clipped("before")
    assert report.codes == ["clip-before-unscale"]
    assert report.steps[0].norm_at_optimizer == pytest.approx(1 / 16384, rel=1e-4)
    assert report.steps[0].gradient_norm > 1
    raw, now, scale = report.evidence.clipped_scaled
    assert (round(now, 4), scale) == (1.0, 16384.0)
    assert raw == pytest.approx(16384 * report.steps[0].gradient_norm, rel=1e-5)


def test_clipping_after_unscale_is_right_and_no_clipping_too():
    for order in ("after", ""):
        report = clipped(order)
        assert report.codes == []
    assert clipped("after").steps[0].norm_at_optimizer == pytest.approx(1.0, rel=1e-4)


def test_a_second_step_beside_the_scaler_is_counted():
    loop = Loop(seeded(mlp), regression(), scale=1024.0)
    report = loop.run(4, beside=True)
    assert report.codes == ["step-beside-scaler"]
    assert report.evidence.beside == 4
    assert Loop(seeded(mlp), regression(), scale=1024.0).run(4).codes == []


# Where the first infinity comes from -----------------------------------------------------


class Spread(nn.Module):
    """An infinity is made in the second layer, in place, and spread by all later ones."""

    def __init__(self, *, inplace):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
        self.bad = InPlace() if inplace else OutOfPlace()

    def forward(self, x):
        return self.third(self.second(self.bad(self.first(x))))


class InPlace(nn.Module):
    def forward(self, x):
        x.mul_(0.0)
        return x.reciprocal_()


class OutOfPlace(nn.Module):
    def forward(self, x):
        return (x * 0.0).reciprocal()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("trace", [True, False])
def test_the_first_operation_is_named_though_later_ones_spread_it(inplace, trace):
    model = Spread(inplace=inplace)
    health = Health(model)
    with health:
        for _ in range(0 if trace else 2):
            health.step(0.0)  # steps 0 and 1 are traced
        loss = model(torch.ones(1, 4)).sum()
        health.step(loss)
    (origin,) = health.report().steps[-1].origins
    kind = "InPlace" if inplace else "OutOfPlace"
    operation = "reciprocal" + "_" * inplace if trace else ""
    assert origin[1:4] == ("forward", f"bad ({kind})", operation)
    assert origin.what == ("infinity" if trace else "infinity or NaN")


def test_after_trouble_the_next_step_names_the_operation():
    model = Spread(inplace=True)
    with Health(model) as health:
        for _ in range(2):
            health.step(0.0)
        for _ in range(2):
            health.step(model(torch.ones(1, 4)).sum())
    assert [s.origins[0].operation for s in health.steps[2:]] == ["", "reciprocal_"]


def test_of_a_simulated_run_the_operation_whose_result_was_rounded_to_infinity_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight.fill_(6e4)
        model[0].weight.fill_(1.0)
    with Health(model) as health, simulated(FP16, model=model):
        loss = model(torch.full((1, 2), 9.0)).sum()
    health.step(loss)
    origin = health.steps[0].origins[0]
    assert origin[1:] == ("forward", "1 (Linear)", "addmm", "infinity")


def test_infinities_that_are_told_to_be_there_are_no_fault():
    class Masked(nn.Module):
        def forward(self, x):
            x = x.masked_fill(x > 0, -torch.inf)
            return torch.where(x < 0, x, torch.full_like(x, -torch.inf)).softmax(-1).nan_to_num()

    model = Masked()
    with Health(model) as health:
        health.step(model(torch.randn(3, 4)).sum())
    assert health.report().codes == []


class MaskThenOverflow(nn.Module):
    """Masks made in three ways, all harmless, and a layer that may overflow in FP16."""

    def __init__(self, weight):
        super().__init__()
        self.attention, self.layer = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 4)
        with torch.no_grad():
            self.layer.weight.fill_(weight)

    def forward(self, x):
        seen = torch.ones(3, 3).tril()
        distances = torch.log(torch.arange(3.0)).clamp(min=0)  # log 0
        large = (1 - seen) * torch.finfo(torch.float32).min  # no FP16 number
        for mask in (seen.log(), large):
            options = {"attn_mask": mask, "need_weights": False}
            x = self.attention(x, x, x, **options)[0] + distances[:, None]
        mask = torch.zeros(3, 3).masked_fill(seen == 0, -torch.inf)
        x = F.scaled_dot_product_attention(x, x, x, mask, 0.01)
        return self.layer(x.abs() + 1).mean()


def in_half(simulate):
    return simulated(FP16) if simulate else torch.autocast("cpu", dtype=torch.float16)


@pytest.mark.parametrize("simulate", [False, True])
@pytest.mark.parametrize("weight", [1e5, -1e5, 6e4])
def test_masks_are_not_blamed_for_an_overflow_after_them(simulate, weight):
    torch.manual_seed(0)
    model = MaskThenOverflow(weight)
    with Health(model) as health:
        with in_half(simulate):
            loss = model(torch.randn(2, 3, 4))
        health.step(loss.detach())
    (origin,) = (o for o in health.steps[0].origins if o.phase == "forward")
    cast = "cast" if simulate else "_to_copy"
    assert origin.module == "layer (Linear)"
    assert origin.operation == (cast if abs(weight) == 1e5 else "addmm")


@pytest.mark.parametrize("simulate", [False, True])
def test_masks_of_a_healthy_run_are_no_fault(simulate):
    model = MaskThenOverflow(1.0)
    with Health(model) as health, in_half(simulate):
        loss = model(torch.randn(2, 3, 4))
        loss.backward()
        health.step(loss.detach())
    assert math.isfinite(health.steps[0].loss)
    assert health.report().codes == []


def test_an_infinity_is_followed_through_the_casts_of_a_simulation_to_the_loss():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    for place in (1, 2):
        with torch.no_grad():
            model[place].weight.fill_(1e5)
        with Health(model) as health, simulated(FP16, model=model):
            for _ in range(2):  # in the second step the copy of the weight is there already
                health.step(model(torch.ones(2, 4)).tanh().softmax(-1).mean().detach())
        origins = [step.origins[0][2:] for step in health.steps]
        assert origins == [(f"{place} (Linear)", "cast", "infinity")] * 2
        with torch.no_grad():
            model[place].weight.fill_(0.1)


def test_memory_that_a_cast_has_not_filled_yet_is_not_looked_at(monkeypatch):
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *args: empty(*args).fill_(torch.nan))
    model = nn.Sequential(nn.Linear(4, 4), Within(lambda x: torch.empty_like(x).bernoulli_()))
    with Health(model) as health, simulated(FP16):
        health.step(model(torch.ones(2, 4)).mean().detach())
    assert health.steps[0].origins == []


def test_the_logarithms_of_zero_within_a_loss_are_no_fault():
    model = nn.LogSoftmax(-1)
    with Health(model) as health:
        steps = model(torch.randn(6, 1, 3, requires_grad=True))
        loss = F.ctc_loss(steps, torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]))
        loss.backward()
        health.step(loss.detach())
    assert health.steps[0].origins == []


def test_a_row_that_is_masked_everywhere_makes_its_nan_where_the_softmax_is():
    model = nn.Softmax(-1)
    with Health(model) as health:
        masked = torch.ones(3, 3, requires_grad=True) + torch.full((3, 3), -torch.inf)
        health.step(model(masked).sum().detach())
    assert health.steps[0].origins[0][2:] == ("Softmax", "_softmax", "NaN")


def test_modules_that_return_several_tensors_or_take_integers_are_watched():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LSTM(4, 3))
    with Health(model) as health:
        out, (h, c) = model(torch.tensor([[1, 2]]))
        (out.sum() + h.sum() + c.sum()).backward()
        health.step(0.0)
    assert set(health.steps[0].layers) == {"0 (Embedding)", "1 (LSTM)"}
    assert health.steps[0].origins == []


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_are_watched(make):
    model = nn.Embedding(5, 4, sparse=True)
    optimizer = make(model.parameters(), lr=0.1)
    with Health(model, optimizer) as health:
        loss = model(torch.tensor([1, 2])).sum()
        loss.backward()
        optimizer.step()
        health.step(loss)
    assert health.steps[0].gradient_norm == pytest.approx(8**0.5)
    assert health.report().codes == []


def test_an_optimizer_that_asks_for_the_loss_again_is_watched():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        return loss

    with Health(model, optimizer) as health:
        for _ in range(3):
            health.step(optimizer.step(closure))
    assert health.report().codes == []


def test_a_step_in_fp32_after_one_in_mixed_precision_uses_no_stale_copies():
    model = seeded(mlp)
    x, y = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Health(model, optimizer) as health:
        for low in (True, False):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                out = model(x)
            loss = F.mse_loss(out.float(), y)
            loss.backward()
            optimizer.step()
            health.step(loss)
    assert health.report().codes == []


def test_another_scaler_than_torch_s_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match="Tell step the scale, and whether it skipped"):
        Health(nn.Linear(1, 1), scaler=LossScaler())
    with pytest.raises(ValueError, match="every and trace_every must be at least 1; got 0 and 50"):
        Health(nn.Linear(1, 1), every=0)


# Numbers ---------------------------------------------------------------------------------


def test_shares_of_a_gradient_are_counted_in_its_own_format():
    model = nn.Identity()
    x = torch.zeros(6, dtype=torch.float16, requires_grad=True)
    values = torch.tensor([0.0, 2.0**-24, 2.0**-15, 1.0, 60000.0, torch.inf])
    with Health(model) as health:
        out = model(x * 1)
        out.backward(values.half())
        health.step(0.0)
    assert health.steps[0].layers["Identity"] == ("FP16", False, 6, 1, 2, 1, 1, 1)


def test_an_fp32_gradient_is_judged_by_the_format_that_was_asked_for():
    model = nn.Identity()
    x = torch.zeros(5, requires_grad=True)
    values = torch.tensor([0.0, 2.0**-25, 2.0**-24, 2.0**-15, 1.0])
    with Health(model) as health:
        model(x * 1).backward(values)
        health.step(0.0)
    assert health.steps[0].layers["Identity"] == ("FP16", True, 5, 1, 2, 1, 0, 0)


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E5M2])
def test_gradients_of_a_simulation_are_judged_by_the_format_they_were_rounded_to(fmt):
    model = seeded(mlp)
    x, y = regression()
    with Health(model) as health, simulated(fmt, model=model):
        F.mse_loss(model(x), y).backward()
    health.step(0.0)
    layers = health.steps[0].layers
    assert [s[:3] for s in layers.values()] == [(fmt.name, False, 64 * n) for n in (16, 16, 4)]


def test_updates_are_measured_in_ulps_of_their_weights():
    """w = 1 in BF16 has ulp 2^-7; an update of 2^-10 is an eighth of it and rounds away."""
    model = nn.Linear(4, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0, 0.0, 2.0**-20]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
    with Health(model, optimizer) as health:
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        health.step(1.0)
        (step,) = health.steps
    assert (step.unmoved, step.updated) == (2, 4)
    with Health(model, optimizer) as health:
        with torch.no_grad():
            model.weight.fill_(1.0)
        optimizer.zero_grad()
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        health.step(1.0)
        assert health.steps[0].update_ulps == 0.125


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_watching_changes_nothing(make):
    """Weights, states and losses are bit for bit those of a run that nobody watches."""
    results = []
    for watched in (False, True):
        model = seeded(mlp)
        loop = Loop(model, regression(), optimizer=make, lr=1e-2, scale=2.0**20)
        if watched:
            loop.run(6)
        else:
            loop.health = Stub()
            loop.run(6)
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class Stub:
    """A watch that does not watch."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def step(self, loss):
        return None

    def report(self):
        return None


def test_watching_does_not_disturb_a_simulation():
    tallies = []
    for watched in (False, True):
        model = seeded(mlp)
        health = Health(model) if watched else Stub()
        x, y = regression()
        with health:
            for _ in range(3):
                with simulated(FP16, model=model) as sim:
                    F.mse_loss(model(x), y).backward()
                health.step(0.0)
        tallies.append((sim.by_layer, [p.grad.clone() for p in model.parameters()]))
    assert tallies[0][0] == tallies[1][0]
    assert all(torch.equal(a, b) for a, b in zip(tallies[0][1], tallies[1][1], strict=True))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_watching_fp8_layers_changes_nothing_and_leaves_nothing(scaling):
    gradients = []
    for watched in (False, True):
        model = convert_linears(seeded(mlp), scaling=scaling)
        x, y = regression()
        with Health(model) if watched else Stub() as health:
            for _ in range(3):
                F.mse_loss(model(x), y).backward()
                health.step(0.0)
        assert all(layer.on_cast is None for layer in model if isinstance(layer, Fp8Linear))
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    roles = {name.split()[-1] for name in health.steps[0].fp8}
    assert roles == (set() if scaling == "block" else {"input", "weight", "grad_output"})


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("scale", [2.0**-9, 1.0, 100.0])
def test_numbers_that_fp8_loses_are_counted_as_torch_casts_them(fmt, scale):
    """Halfway to the smallest number, one step of float32 to both sides, and around the largest."""
    ends = torch.tensor([fmt.min_subnormal / 2, fmt.min_subnormal, fmt.max_finite]) / scale
    sides = [torch.nextafter(ends, torch.tensor(to)) for to in (0.0, math.inf)]
    x = torch.cat([ends, *sides, torch.tensor([0.0, 3.0])])
    x = torch.cat([x, -x])
    amax, nonzero, flushed, saturated = casts_of(x, fmt, scale).tolist()
    cast = (x * scale).clamp(-fmt.max_finite, fmt.max_finite).to(fmt.torch_dtype).float()
    assert amax == x.abs().max()
    assert nonzero == (x != 0).sum()
    assert flushed == ((cast == 0) & (x != 0)).sum() > 0
    assert saturated == ((x * scale).abs() > fmt.max_finite).sum() > 0


def test_the_fp8_operands_of_micro_batches_are_counted_together():
    model = convert_linears(nn.Sequential(nn.Linear(4, 2)), scaling="none")
    with Health(model) as health:
        for size in (1e-4, 1.0, 1e4):
            model(torch.full((8, 4), size)).sum().backward()
        health.step(0.0)
        health.step(0.0)
    cast = health.steps[0].fp8["0 (Fp8Linear) input"]
    assert cast[:4] == ("FP8_E4M3", "none", 1.0, 1e4)
    assert cast[4:] == (96, 32, 32)
    assert health.steps[1].fp8 == {}


def test_weights_rounded_by_hand_are_compared_after_the_rounding():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with Health(model, optimizer, weight_format=BF16) as health:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                model.weight.copy_(round_tensor(model.weight, BF16))
            health.step(loss)
    assert health.report().codes == ["stagnant-weights"]


def test_after_closing_nothing_of_the_watch_is_left():
    loop = Loop(seeded(mlp), regression(), scale=1024.0)
    loop.run(2)
    model, optimizer = loop.model, loop.optimizer
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert "step" not in vars(loop.scaler)
    assert "unscale_" not in vars(loop.scaler)
    with pytest.raises(RuntimeError, match="must be closed"), Health(model) as health:
        health.__enter__()


def test_a_watcher_begins_to_watch_when_it_is_given_a_model():
    watch = Health.watcher(fmt=BF16)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one = watch(model, optimizer)
    loss = model(torch.ones(1, 2)).sum()
    (loss * 8).backward()
    optimizer.step()
    one.step(loss, 8.0, False)
    one.close()
    assert watch.watches == [one]
    assert one.steps[0].scale == 8.0
    assert one.steps[0].norm_at_optimizer == pytest.approx(8 * one.steps[0].gradient_norm)
    assert one.report().steps[0].layers["Linear"].fmt == "BF16"


def test_the_report_is_text_html_and_json():
    report = large_feature(standardised=False)
    assert "overflow-forward" in repr(report)
    assert report._repr_html_().startswith("<ul><li><b>problem: overflow-forward.</b>")
    stored = json.loads(report.to_json())
    assert stored["findings"][0]["code"] == "overflow-forward"
    assert stored["steps"][0]["loss"] in ("inf", "nan")
    assert not math.isfinite(float(stored["steps"][0]["loss"]))


def test_the_report_has_a_table_of_fp8_operands_and_only_where_there_are_some():
    report = eight_bits("delayed", spike=3e5)
    table = [line.split("  ") for line in repr(report).splitlines() if "Fp8Linear) input" in line]
    row = [cell.strip() for cell in table[0] if cell]
    assert row[:2] == ["0 (Fp8Linear) input", "FP8_E4M3"]
    assert row[4] == "4 steps"
    assert "<td" in report._repr_html_().split("operand in FP8")[1]
    stored = json.loads(report.to_json())["steps"][6]["fp8"]["0 (Fp8Linear) input"]
    assert 2 * stored["flushed"] > stored["nonzero"]
    assert "operand in FP8" not in repr(large_feature(standardised=False))


@pytest.mark.parametrize(
    "name", mostly_slow(["underflow", "overflow", "clip", "meter"], ["underflow", "clip"])
)
def test_the_figure_of_a_report_is_legible_and_says_the_gravest_finding(name):
    report = {
        "underflow": small_gradients,
        "overflow": lambda: large_feature(standardised=False),
        "clip": lambda: clipped("before"),
        "meter": lambda: meter(torch.bfloat16),
    }[name]()
    picture = pictures.health(report)
    assert_legible(picture)
    assert report.findings[0].observed.startswith(picture.claim)
    assert all(code in picture.alt for code in report.codes)


def test_an_optimizer_that_skips_by_itself_is_seen_to_skip():
    model = seeded(mlp)
    x, y = regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    with Health(model, optimizer, scaler=scaler) as health, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            optimizer.zero_grad()
            with half():
                out = model(x)
            loss = F.mse_loss(out.float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            health.step(loss)
    skipped = [step.skipped for step in health.steps]
    scales = [step.scale for step in health.steps] + [scaler.get_scale()]
    fell = [b < a for a, b in itertools.pairwise(scales)]
    assert skipped == fell
    assert any(skipped)
    assert not all(skipped)


def test_a_step_that_is_told_of_after_the_watch_was_closed_starts_no_tracing():
    model = nn.Linear(2, 1)
    with Health(model) as health:
        loss = model(torch.ones(1, 2)).sum()
    health.step(loss)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_modules_that_run_again_in_another_thread_do_not_name_the_nodes_of_this_one():
    """On CUDA a checkpoint runs them in the thread of the backward pass, which counts from 0."""
    tracer = Tracer()
    tracer.begin(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for name in ("0", "1"):
        tracer.enter_module(name)
        model(torch.ones(1, 2))
        tracer.leave_module()
    before = list(tracer._events)

    def again():
        tracer.enter_module("0")
        tracer.leave_module()

    thread = threading.Thread(target=again)
    thread.start()
    thread.join()
    assert tracer._events == before == sorted(before, key=lambda event: event[0])
    again()
    assert len(tracer._events) == len(before) + 2
