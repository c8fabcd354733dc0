"""A watched run has the bits of an unwatched one, whatever steps it and whatever wraps it."""

import json
from unittest.mock import MagicMock

import pytest
import sick_runs
import torch
from gloo import run_two
from sick_runs import mlp, regression, seeded
from tiers import mostly_slow
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mplab.health import Digest, Health

pytestmark = pytest.mark.slow

STEPS = 3  # of which the first two are traced


class StochasticRounding(torch.optim.Optimizer):
    """SGD whose BF16 weights are rounded with random bits."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                wide = p.float() - group["lr"] * p.grad.float()
                noise = torch.randint(0, 1 << 16, wide.shape, dtype=torch.int32)
                bits = (wide.view(torch.int32) + noise) & -65536
                p.copy_(bits.view(torch.float32))


class OwnAttributes(torch.optim.SGD):
    """An optimizer that changes its rate in each step, and that nobody can copy."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr, momentum=0.9)

    def step(self, closure=None):
        self.param_groups[0]["lr"] *= 0.9
        return super().step(closure)

    def __deepcopy__(self, memo):
        raise AttributeError("this optimizer is one of its kind")


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam, for-loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "BF16, stochastic rounding": lambda p: StochasticRounding(p, lr=0.1),
    "own attributes": lambda p: OwnAttributes(p, lr=0.1),
}


class Checkpointed(nn.Module):
    """A network whose middle is computed again in the backward pass."""

    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, x):
        first, *rest = self.inner
        return checkpoint(nn.Sequential(*rest), first(x), use_reentrant=self.reentrant)


WRAPPERS = {
    "plain": lambda model: model,
    "accumulation": lambda model: model,
    "scaled": lambda model: model,
    "checkpoint": lambda model: Checkpointed(model, reentrant=False),
    "reentrant checkpoint": lambda model: Checkpointed(model, reentrant=True),
    "compiled": lambda model: torch.compile(model, backend="aot_eager"),
}


class Digesting(Digest):
    """Digests, as this file's loop watches."""

    def step(self, loss):
        """The optimizer's updates end the steps."""

    def close(self):
        self.__exit__(None, None, None)


def trained(optimizer, wrapper, *, watched, kind=Health, **options):
    """Everything that a run computes: losses, weights, optimizer's state, and random state."""
    if wrapper == "compiled":
        torch._dynamo.reset()
    low = optimizer.startswith("BF16")
    model = WRAPPERS[wrapper](seeded(mlp).to(torch.bfloat16 if low else torch.float32))
    stepper = OPTIMIZERS[optimizer](model.parameters())
    x, y = (t.to(torch.bfloat16 if low else torch.float32) for t in regression())
    torch.manual_seed(5)
    parts = 2 if wrapper == "accumulation" else 1
    scaler = torch.amp.GradScaler("cpu", 2.0**20, enabled=wrapper == "scaled")
    if kind is Health:
        options["scaler"] = scaler
    losses = []
    health = kind(model, stepper, **options)
    if watched:
        health.__enter__()
    for _ in range(STEPS):
        stepper.zero_grad()
        for k in range(parts):
            loss = F.mse_loss(model(x[k::parts]), y[k::parts]) / parts
            scaler.scale(loss).backward()
            losses.append(loss.detach())
        scaler.step(stepper)
        scaler.update()
        if watched:
            health.step(loss)
    health.close()
    states = [
        t for state in stepper.state.values() for t in state.values() if t is not None
    ]
    numbers = [*losses, *model.parameters(), *states, torch.get_rng_state()]
    return [torch.as_tensor(t).detach().clone() for t in numbers], health


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("wrapper", mostly_slow(WRAPPERS, list(WRAPPERS)[:5]))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_watched_run_has_the_bits_of_an_unwatched_one(optimizer, wrapper, every):
    alone, _ = trained(optimizer, wrapper, watched=False)
    seen, health = trained(optimizer, wrapper, watched=True, every=every)
    assert all(torch.equal(a, b) for a, b in zip(alone, seen, strict=True))
    assert health.report().codes == []
    assert health.steps[0].updated > 0
    assert health.seen.passes == STEPS


@pytest.mark.parametrize("wrapper", mostly_slow(WRAPPERS, list(WRAPPERS)[:5]))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_with_digests_has_the_bits_of_one_without(optimizer, wrapper):
    alone, _ = trained(optimizer, wrapper, watched=False)
    for every in (1, 2):
        seen, digest = trained(
            optimizer, wrapper, watched=True, kind=Digesting, every=every
        )
        assert all(torch.equal(a, b) for a, b in zip(alone, seen, strict=True))
        assert digest.record.error == ""
        assert list(digest.record.steps) == list(range(0, STEPS, every))
        directions = {site.direction for site in digest.record.sites}
        assert directions == {"start", "forward", "backward", "update"}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_what_inductor_compiled_runs_compiled_under_the_watch():
    """Also a compiled function around the model, in steps that are traced: its bits are its own."""
    results = []
    x, y = regression()
    for watched in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()  # of other tests, too
        model = seeded(lambda: mlp(activation=nn.GELU))
        loss_of = torch.compile(
            lambda x, y, model=model: F.mse_loss(model(x).softmax(-1), y)
        )
        health = sick_runs.watched(model, optimizer=torch.optim.AdamW, lr=0.01)
        watch = (
            health if watched else MagicMock(optimizer=health.optimizer, scaler=None)
        )
        sick_runs.trained(watch, lambda _, loss_of=loss_of: loss_of(x, y), STEPS)
        frames = torch._dynamo.utils.counters["frames"]["ok"]
        results.append((frames, [p.tolist() for p in model.parameters()]))
    assert results[0] == results[1]
    assert results[0][0] > 0
    assert health.report().codes == []
    assert "modules-unseen" in [f.code for f in health.report().findings]


def test_processes_that_train_together_get_the_bits_of_unwatched_ones(tmp_path):
    """Two Gloo processes, by DDP and by FSDP2; a third case has a watch in the first one alone."""
    run_two("health_worker.py", tmp_path, seconds=240)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        alone, together = found.pop("bad")
        assert ("After step 1," in alone[0]) == (rank == 0)  # it sees but the weights
        assert together[0].startswith(
            "Rank 1 first: The unscaled loss was not finite in 3 of 4"
        )
        assert set(found) == {"ddp", "ddp scaled", "fsdp2", "fsdp2, first alone"}
        for case, told in found.items():
            assert (told["equal"], told["error"], told["codes"]) == (True, "", []), (
                case,
                rank,
            )
            assert told["updated"] > 0 or told["alone"], (case, rank)


@pytest.mark.parametrize("broken_part", ["watch.largest_of", "tracing.what_of"])
def test_an_error_of_the_watch_ends_the_watch_and_not_the_run(broken_part, monkeypatch):
    def broken(t):
        raise ZeroDivisionError("of the watch")

    model = seeded(mlp)
    x, y = regression()
    monkeypatch.setattr(f"mplab.health.{broken_part}", broken)
    report = sick_runs.trained(
        sick_runs.watched(model), lambda _: F.mse_loss(model(x), y), 3
    )
    assert [step.loss > 0 for step in report.steps] == [True] * 3
    (finding,) = report.findings
    assert finding.code == "watch-stopped"
    assert "ZeroDivisionError: of the watch" in finding.observed


def test_rows_of_large_weights_stand_for_all_of_them():
    """Half of the rows of a BF16 weight move, the others do not."""
    model = nn.Linear(8, 1 << 14, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    grows = torch.tensor([1.0, 64.0] * (1 << 13), dtype=torch.bfloat16)
    with Health(model, optimizer) as health:
        (model(x) * grows[torch.randperm(1 << 14)]).sum().backward()
        optimizer.step()
        health.step(1.0)
    step = health.steps[0]
    assert step.updated < model.weight.numel() / 8
    assert step.unmoved / step.updated == pytest.approx(0.5, abs=0.1)


def test_an_optimizer_with_a_closure_shows_its_gradients_and_its_phases():
    """As Lightning steps: forward and backward pass run within the optimizer's step."""
    model = seeded(mlp)
    with torch.no_grad():
        model[2].weight.fill_(1e30)
    x, _ = regression()
    (step,) = sick_runs.trained_by_closure(
        sick_runs.watched(model), lambda: (model(x) * 1e30).sum(), 1
    ).steps
    assert step.origins[0].phase == "forward"
    assert step.norm_at_optimizer is not None
