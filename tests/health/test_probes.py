"""A backward pass is repeated where that decides, and never where it could change the run."""

import math

import pytest
import torch
from networks import Within
from sick_runs import Changed, half, looked_at, mlp, regression, seeded
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mplab import FP16
from mplab.health import Digest, Health
from mplab.health.measures import register_hook
from mplab.health.probes import _backward
from mplab.numbers.formats import Rounding
from mplab.numbers.options import Stream
from mplab.simulation import CPU_AUTOCAST, simulated


def run(
    make=mlp, *, size=1e-6, steps=4, around=half, watched=True, prepare=None, scale=None,
    loss_of=lambda out, y: F.mse_loss(out.float(), y), between=lambda model: None,
):  # fmt: skip
    """Small gradients in FP16; the weights and random state at the end, and the watch."""
    model = seeded(make)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", scale or 1.0, enabled=bool(scale))
    x, y = regression()
    torch.manual_seed(3)
    health = Health(model, optimizer, scaler=scaler)
    if watched:
        health.__enter__()
    if prepare:
        prepare(model)
    for _ in range(steps):
        optimizer.zero_grad()
        with around():
            out = model(x)
            loss = size * loss_of(out, y)
            scaler.scale(loss).backward()
        between(model)
        scaler.step(optimizer)
        scaler.update()
        if watched:
            health.step(loss.detach())
    health.close()
    state = [*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()]
    return state, health


def test_what_underflow_took_is_measured_and_its_remedy_is_tried():
    _, health = run()
    (probe,) = health.seen.probes
    assert (probe.step, probe.exponent, probe.finite) == (1, 24, True)
    (found,) = health.report().findings
    assert (found.code, found.level) == ("gradient-underflow", "problem")
    assert f"differs by {probe.error:.1%}" in found.observed
    _, cured = run(scale=2.0**20)
    assert cured.report().findings == []


def test_the_probe_leaves_weights_random_numbers_and_torch_as_they_were():
    def dropout():
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))

    alone, _ = run(dropout, watched=False)
    seen, health = run(dropout)
    assert len(health.seen.probes) == 1
    assert all(map(torch.equal, alone, seen))
    assert torch.autograd.backward is _backward
    assert torch.Tensor.register_hook is register_hook


def test_layers_whose_gradients_are_lost_whole_count_though_their_norm_is_small():
    """Adam divides by each weight's own size, so that the first layers stand still."""

    def deep():
        layers = [m for _ in range(6) for m in (nn.Linear(8, 8), nn.Sigmoid())]
        return nn.Sequential(*layers, nn.Linear(8, 4))

    _, health = run(deep, size=1e-3)
    (probe,) = health.seen.probes
    assert probe.error < 0.02 and probe.share > 0.25 and "0.weight" in probe.lost
    assert health.report().codes == ["gradient-underflow"]


def test_gradients_that_overflow_at_a_larger_size_are_tried_at_a_smaller_one():
    def narrow():
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    _, health = run(narrow, size=1.0, scale=2.0**8)
    (probe,) = health.seen.probes
    assert probe.exponent < 24 and probe.finite and probe.error < 0.02
    assert health.report().findings == []


def test_a_symptom_that_stays_is_probed_at_doubling_distances():
    _, health = run(steps=90)
    assert [probe.step for probe in health.seen.probes] == [1, 20, 40, 80]


def test_a_gradient_that_is_infinite_at_any_scale_is_known_after_three_skips():
    _, health = run(
        size=1.0,
        scale=2.0**16,
        loss_of=lambda out, y: out.float().square().mean() + (0 * out).sqrt().sum(),
    )
    (found,) = health.report().findings
    assert (found.code, found.level) == ("backward-never-finite", "problem")
    assert "In step 3 gradients 2^24 times smaller were no better" in found.observed


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner = mlp()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.inner, 1 * x, use_reentrant=self.reentrant)


class Hooked(nn.Module):
    """Clips the gradient of its output by a hook, which is not linear."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()
        self.calls = 0

    def forward(self, x):
        out = self.inner(x)
        out.register_hook(self.clip)
        return out

    def clip(self, gradient):
        self.calls += 1
        return gradient.clamp(-1e-9, 1e-9)


def own_function():
    return nn.Sequential(mlp(), Within(lambda x: Changed.apply(x, lambda g: g)))


def hook_weights(model):
    model[0].weight.register_hook(lambda g: g.clamp(-1.0, 1.0))


REFUSED = {
    "a function in Python": {"make": own_function},
    "as in a checkpoint": {"make": lambda: Checkpointed(False)},
    "CheckpointFunctionBackward": {
        "make": lambda: nn.Sequential(nn.Linear(8, 8), Checkpointed(True))
    },
    "a hook of a tensor": {"make": Hooked},
    "a hook of a parameter": {"prepare": hook_weights},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_pass_that_might_change_the_run_is_not_repeated(why):
    alone, _ = run(watched=False, **REFUSED[why])
    seen, health = run(**REFUSED[why])
    assert all(map(torch.equal, alone, seen))
    assert health.seen.probes == []
    assert why in health.report().evidence.unprobed
    if why == "a hook of a tensor":
        assert health.model.calls == 4
    lost = [f for f in health.report().findings if f.code == "gradient-underflow"]
    assert [f.level for f in lost] == ["watch"] * len(lost)
    assert all(why in f.means for f in lost)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compiled", "torchao"])
def test_compiled_modules_and_layers_of_torchao_are_left_alone(kind):
    if kind == "compiled":
        torch._dynamo.reset()
        _, health = run(lambda: torch.compile(mlp(), backend="aot_eager"))
    else:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig(emulate=True)

        def make():
            return convert_to_float8_training(mlp(inputs=32, outputs=32), config=config)

        model = make()
        with Health(model) as health:
            for _ in range(4):
                with half():
                    loss = 1e-6 * model(torch.randn(64, 32)).float().square().mean()
                loss.backward()
                health.step(loss)
    assert health.seen.probes == [] and not health.seen.error
    assert health.report().evidence.unprobed


def test_other_watches_see_nothing_of_a_pass_that_is_repeated():
    """A digest beside it was taken for a hook of the program, so that nothing was repeated."""
    results = []
    for size in (1.0, 1e-6):  # without and with a symptom
        watches = []

        def prepare(model, watches=watches):
            optimizer = torch.optim.SGD(model.parameters())
            watches.extend([Digest(model, optimizer), Health(model, optimizer)])
            for watch in watches:
                watch.__enter__()

        _, health = run(size=size, prepare=prepare)
        digest, other = watches
        other.step(1.0)
        digest._end_step()
        totals = [s.total for s in other.steps[0].gradients.values()]
        results.append((digest.record.sites, totals))
        for watch in watches:
            watch.__exit__(None, None, None)
        assert len(health.seen.probes) == (size < 1)
    assert results[0] == results[1]


def test_backward_passes_may_begin_from_a_generator_of_losses():
    """The watch read it to its end, and torch found nothing left."""
    model = seeded(mlp)
    x, y = regression()
    with Health(model) as health:
        torch.autograd.backward(F.mse_loss(model(part), y) for part in (x, 2 * x))
        health.step()
    assert health.steps[0].gradient_norm > 0


def test_a_probe_without_memory_costs_only_itself(monkeypatch):
    def no_memory(*args, **more):
        raise torch.OutOfMemoryError("of the device")

    alone, _ = run(watched=False)
    monkeypatch.setattr(torch.autograd, "grad", no_memory)
    seen, health = run()
    assert all(map(torch.equal, alone, seen))
    assert len(health.steps) == 4 and not health.seen.error
    assert "of the device" in health.report().evidence.unprobed


@pytest.mark.parametrize("stochastic", [False, True])
def test_a_simulation_keeps_its_counts_and_its_random_bits(stochastic):
    results = []
    for watched in (False, True):
        options = {"policy": CPU_AUTOCAST}
        if stochastic:
            stream = Stream(1)
            options |= {"rounding": Rounding.STOCHASTIC, "stream": stream}
        simulation = simulated(FP16, **options)
        state, health = run(around=lambda s=simulation: s, watched=watched)
        counts = {k: str(v) for k, v in simulation.by_operation.items()}
        results.append(
            (counts, stream.calls if stochastic else 0, [t.tolist() for t in state])
        )
    assert results[0] == results[1]
    assert len(health.seen.probes) == (not stochastic)
    assert health.report().codes == ["gradient-underflow"]


def test_a_run_whose_every_pass_is_silent_is_never_probed():
    _, health = run(size=1.0, around=lambda: half(torch.bfloat16))
    assert health.seen.probes == [] and health.report().findings == []
    assert math.isfinite(health.steps[-1].loss)


def test_a_layer_that_is_cut_off_beside_others_is_no_underflow():
    """Its zeros are exact, though no pass was repeated to show it."""
    model = seeded(lambda: nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)]))
    x, y = regression()
    hook_weights(model)

    def loss_of(_):
        with half():
            out = model[0](x) + 0 * model[1](x)
        return F.mse_loss(out.float(), y)

    health = looked_at(model, loss_of, 4)
    assert health.report().codes == ["zero-gradients"]
