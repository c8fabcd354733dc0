"""What a report says of a run, and what it does not; tests/lessons/test_clinic.py has the cases."""

import itertools
import math
import re
from contextlib import nullcontext

import pytest
import sick_runs
import torch
from networks import Within
from sick_runs import Changed, half, mlp, regression, seeded
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

from mplab import FP16, pictures
from mplab.health import Health
from mplab.health.findings import diagnose
from mplab.health.records import Evidence, Origin, Step, pooled_gradients
from mplab.lessons.l13.clinic import scale_too_high
from mplab.simulation import CPU_AUTOCAST, simulated
from mplab.training import TASKS


@pytest.mark.parametrize("task", ["digits-autoencoder", "digits-cnn"])
def test_zeros_of_relu_are_told_from_zeros_that_fp16_makes(task):
    """Both networks have many zeros in FP16 without a scale; only the autoencoder's are losses."""
    chosen = TASKS[task]
    torch.manual_seed(0)
    model = chosen.model()
    x, y = (t[:128] for t in chosen.data().train)

    def loss_of(step):
        with half():
            out = model(x)
        return chosen.loss(out.float(), y) / 8  # as from eight times the batch

    health = Health(model, chosen.optimizer(model.parameters()))
    report = sick_runs.trained(health, loss_of, 6)
    most = max(s.zeros / s.total for s in pooled_gradients(health.steps).values())
    assert most > 0.5
    expected = ["gradient-underflow"] if task == "digits-autoencoder" else []
    assert report.codes == expected


def test_a_scale_that_falls_although_the_loss_is_finite_is_no_fault():
    report = scale_too_high().report
    (found,) = report.findings
    assert (found.code, found.level) == ("scale-finds-its-level", "watch")
    skipped = sum(step.skipped for step in report.steps)
    assert f"Begin with a scale of {report.steps[skipped].scale:g}." in found.check
    told = f"{skipped} of 20 steps were skipped; the loss was finite in all of them"
    assert pictures.health(report).claim == told


def test_a_few_skips_at_the_start_are_a_note_and_no_finding_to_act_on():
    report = sick_runs.Loop(seeded(mlp), regression(), scale=2.0**20).run(40)
    (found,) = report.findings
    assert (found.code, found.level) == ("scale-finds-its-level", "note")
    skipped = sum(step.skipped for step in report.steps)
    told = f"No problems found in 40 steps; {skipped} skipped while the scale found its level"
    assert 0 < skipped <= 5 and pictures.health(report).claim == told


@pytest.mark.parametrize(
    ("change", "scale", "steps", "told"),
    [
        (lambda g: g / 0.0, 8.0, 12, "Operation div in 1 (Within) made an infinity"),
        # Four skips tell; the scale alone would need seventeen, down to below 1.
        (lambda g: g + g[:0].mean(), 2.0**16, 4, "in 1 (Within) made a NaN"),
    ],
)
def test_a_gradient_without_a_value_is_told_from_a_scale_too_high(
    change, scale, steps, told
):
    model = nn.Sequential(nn.Linear(8, 4), Within(lambda x: Changed.apply(x, change)))
    report = sick_runs.Loop(model, regression(), scale=scale).run(steps)
    found = next(f for f in report.findings if f.code == "backward-never-finite")
    assert told in found.check
    assert "in the backward pass of step" in found.check


class Spoils(nn.Module):
    """Passes on its input but for one call, in which its output or its gradient is spoilt."""

    def __init__(self, step, phase):
        super().__init__()
        self.step = step
        self.phase = phase
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls <= self.step:
            return x
        return (
            torch.log(-1 - x.abs())
            if self.phase == "forward"
            else x + (x - x.detach()).sqrt()
        )


def unscaled(
    model, steps, *, every=1, low=None, updates=1, backward=True, after=lambda loss: loss,
    rate=0.01, late=lambda model: None, size=1.0,
):  # fmt: skip
    """A run without a scaler, whose optimizer runs in one of `updates` steps, or never."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    late(model)
    x, y = regression()
    with Health(model, optimizer, every=every) as health:
        for i in range(steps):
            optimizer.zero_grad(set_to_none=i % 2 == 0)
            with half(low) if low else torch.enable_grad():
                out = model(size * x)
            loss = after(F.mse_loss(out.float(), y))
            for part in (0.5, 0.5) if backward else ():
                (part * loss).backward(retain_graph=True)
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            if updates and i % updates == 0:
                optimizer.step()
            health.step(loss)
    return health.report()


def dead_units(model, count=None):
    model[1] = nn.ReLU()
    nn.init.constant_(model[0].bias[:count], -100.0)


def logarithm_from(step):
    """Make a loss whose logarithm is taken from a step on, of a number below zero."""
    calls = itertools.count()
    return lambda loss: loss if next(calls) < step else (loss - 2 * loss.detach()).log()


FINDINGS = [
    ("", 24, {}),
    ("", 24, {"late": lambda m: dead_units(m, 4)}),
    ("zero-gradients", 24, {"late": dead_units}),
    ("zero-gradients", 24, {"size": 0.0}),
    ("zero-gradients", 24, {"after": lambda loss: loss.detach() + 0 * loss}),
    ("no-update", 8, {"updates": 0}),
    ("no-update", 8, {"updates": 4}),
    ("no-gradients", 4, {"backward": False}),
    ("no-gradients no-update", 4, {"backward": False, "updates": 0}),
]


@pytest.mark.parametrize(("findings", "steps", "fault"), FINDINGS)
def test_a_fault_that_leaves_every_number_finite_is_named(findings, steps, fault):
    report = unscaled(seeded(mlp), steps, **fault)
    assert " ".join(f.code for f in report.findings) == findings
    assert ("no-update" in report.codes) == ("no-update" in findings), "no note"


TOLD = [
    ("overflow-forward", {"rate": 1e17}, "Before, the loss grew from "),
    (
        "overflow-forward",
        {"every": 10, "after": logarithm_from(5)},
        "first in step 5. Operation log outside modules made a NaN",
    ),
    # there is no scaler, of which nothing is said
    (
        "overflow-forward",
        {"after": lambda loss: loss * math.nan},
        "where no loss scale has acted. Look",
    ),
]


@pytest.mark.parametrize(("code", "fault", "words"), TOLD)
def test_what_is_told_fits_what_happened(code, fault, words):
    report = unscaled(seeded(mlp), 24, **fault)
    (found,) = (f for f in report.findings if f.code == code)
    assert words in " ".join(found)
    assert found.level == "problem"


@pytest.mark.slow
def test_without_a_scaler_the_first_culprit_is_named_whichever_steps_are_looked_at():
    """The weights are NaN after it, and every later trace would blame the first layer."""
    for phase in ("forward", "backward"):
        for every, low in itertools.product((1, 10), (None, torch.bfloat16)):
            for step in (0, 1, 2, 7, 10, 13):
                bad = Spoils(step, phase)
                layers = nn.Linear(8, 8), nn.Tanh(), bad, nn.Tanh(), nn.Linear(8, 4)
                report = unscaled(nn.Sequential(*layers), 16, every=every, low=low)
                origin = next(
                    o for s in report.steps for o in s.origins if o.phase == phase
                )
                by_weights = phase == "backward" and every == 10 and step in (2, 7, 13)
                told = re.sub(r"weight|bias", "…", origin.module)
                assert told == (
                    "0.…, or an operation after it," if by_weights else "2 (Spoils)"
                )
                assert origin.step == step
                finding = {
                    "forward": "overflow-forward",
                    "backward": "nonfinite-weights",
                }[phase]
                (found,) = (f for f in report.findings if f.code == finding)
                assert str(origin) in found.observed + found.check


def test_of_all_origins_the_most_precise_one_that_goes_on_is_quoted():
    nan = math.nan
    places = [("The data", ""), ("0 (Linear)", "_to_copy"), *[("1 (Root)", "div")] * 2]
    steps = [
        Step(nan, 1.0, skipped=True, origins=[Origin(i, "forward", *place, "NaN")])
        for i, place in enumerate(places)
    ]
    (found,) = diagnose(steps, Evidence())
    assert "first in step 0. Operation div in 1 (Root) made a NaN" in found.observed
    # once the weights are NaN, what comes later is no cause
    steps[1].nonfinite_weights = 7
    found = next(f for f in diagnose(steps, Evidence()) if f.code == "overflow-forward")
    assert "Operation _to_copy in 0 (Linear)" in found.observed


def weighted(weights):
    """A network in FP16 on rows whose losses have these weights: the report and the gradients."""
    model = seeded(mlp)
    x, y = regression()
    parts = torch.tensor(weights).repeat(len(x) // len(weights))[:, None]

    def loss_of(_):
        model.zero_grad()
        with half():
            out = model(x)
        return (parts * (out.float() - y) ** 2).mean()

    health = sick_runs.looked_at(model, loss_of, 3)
    low = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    (parts * (model(x) - y) ** 2).mean().backward()
    return health.report(), low, [p.grad for p in model.parameters()]


def test_gradients_that_are_lost_are_weighed_not_counted():
    """Half of them vanish in both runs; in the first the other half is all that matters."""
    report, low, wide = weighted([1.0, 2e-6])
    for a, b in zip(low, wide, strict=True):
        assert (a - b).norm() < 0.01 * b.norm()
    assert report.findings == []
    report, low, wide = weighted([1e-4, 2e-6])
    (found,) = report.findings
    (probe,) = report.evidence.probes
    parts = [torch.cat([g.flatten() for g in each]) for each in (low, wide)]
    assert probe.error == pytest.approx(
        float((parts[0] - parts[1]).norm() / parts[1].norm()), rel=0.05
    )
    assert (found.code, found.level) == (
        "gradient-underflow", "problem" if probe.error > 0.1 else "note"
    )  # fmt: skip


def test_a_low_loss_of_zero_or_infinite_weights_do_not_make_a_report_fail_or_lie():
    """A report on losses of BF16 zeros divided by zero; weights at infinity were "stagnant"."""
    model = mlp()
    health = Health(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def zero(step):
        return (model(torch.ones(2, 8)).sum() * 0).bfloat16()

    assert "low-precision-sum" not in sick_runs.trained(health, zero, 4).codes
    model = mlp().bfloat16()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(math.inf)
    health = Health(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = sick_runs.trained(
        health, lambda step: model(torch.ones(2, 8).bfloat16()).sum(), 4
    )
    assert "nonfinite-weights" in found.codes
    assert not {"stagnant-weights", "gradient-underflow"} & set(found.codes)


def test_a_run_that_only_skips_is_asked_whether_it_was_resumed():
    steps = [Step(loss=1.0, skipped=True, scale=2.0**k) for k in range(40, 30, -1)]
    (found,) = diagnose(steps, Evidence(passes=10))
    assert (
        found.code == "scale-finds-its-level"
        and "Load the scaler's state" in found.check
    )


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("cleared", [True, False])
def test_gradients_of_a_skipped_step_that_nobody_clears_are_named(parts, cleared):
    """The report blamed an operation of the backward pass, which was finite in the end."""
    model = seeded(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    x, y = regression()
    with Health(model, optimizer, scaler=scaler) as health:
        for part in range(60 * parts):
            if cleared and part % parts == 0:
                optimizer.zero_grad()
            with half():
                out = model(x)
            loss = F.mse_loss(out.float(), y)
            scaler.scale(loss).backward()
            if (
                part + 1
            ) % parts == 0:  # else a micro-batch, which may hold an infinity
                scaler.step(optimizer)
                scaler.update()
            health.step(loss)
    codes = health.report().codes
    assert ("uncleared-gradients" in codes) is not cleared
    assert "backward-never-finite" not in codes


def adversarial(model, x, scaler, set_to_none):
    """A loop with two backward passes a step, the first for the gradient of the inputs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Health(model, optimizer, scaler=scaler) as health:
        for _ in range(40):
            inputs = x.clone().requires_grad_()
            with half():
                loss = model(inputs).float().square().mean()
            scaler.scale(loss).backward()
            optimizer.zero_grad(set_to_none=set_to_none)
            with half():
                loss = model(x + inputs.grad.sign() / 128).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            health.step(loss)
    return health.report()


def of_two_networks(model, x, scaler, set_to_none):
    """A loop in which the backward pass of one network reaches the other, before it is cleared."""
    critic = mlp(inputs=4, outputs=1)
    models = nn.ModuleList([critic, model])
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in models]
    with Health(models, optimizers[1], scaler=scaler) as health:
        for _ in range(40):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=set_to_none)
                with half():
                    loss = F.softplus(critic(model(x)).float()).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
            scaler.update()
            health.step(loss)
    return health.report()


def data_assigned(gradient):
    gradient.data = torch.zeros_like(gradient)


CLEARED = {
    "data": lambda gradient: gradient.data.zero_(),
    "another memory": data_assigned,
    "foreach": lambda gradient: torch._foreach_zero_([gradient]),
    "detached": lambda gradient: gradient.detach().zero_(),
}


@pytest.mark.parametrize("clear", CLEARED.values(), ids=CLEARED)
def test_gradients_may_be_cleared_in_any_way(clear):
    """Versions do not count what is written to `.data`: a healthy loop was told of a fault."""
    model = seeded(mlp)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    x, y = regression()

    def loss_of(_):
        with half():
            out = model(x)
        return F.mse_loss(out.float(), y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad = lambda: [
        clear(p.grad) for p in model.parameters() if p.grad is not None
    ]
    health = Health(model, optimizer, scaler=scaler)
    report = sick_runs.trained(health, loss_of, 40)
    assert any(step.skipped for step in report.steps)
    assert "uncleared-gradients" not in report.codes


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("loop", [adversarial, of_two_networks])
def test_gradients_that_are_cleared_in_time_are_no_finding(loop, set_to_none):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
    report = loop(seeded(mlp), regression()[0], scaler, set_to_none)
    assert any(step.skipped for step in report.steps)
    assert "uncleared-gradients" not in report.codes


def test_a_run_that_has_converged_is_no_finding():
    model = nn.Linear(3, 1)
    x = torch.randn(64, 3)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1)
    health = Health(model, torch.optim.SGD(model.parameters(), lr=0.3), every=10)
    report = sick_runs.trained(health, lambda _: F.mse_loss(model(x), y), 400)
    last = report.steps[-10]
    assert last.unmoved > last.updated / 2
    assert report.codes == []


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (1e-12, True)])
def test_fp32_weights_none_of_which_moves_are_no_healthy_run(factor, told):
    """Every update was lost, and the report said "No problems found"."""
    model = seeded(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = regression()
    health = Health(model, optimizer)
    found = sick_runs.trained(health, lambda _: F.mse_loss(model(x), y) * factor, 12)
    assert ("stagnant-weights" in found.codes) is told


@pytest.mark.parametrize(("first", "told"), [(0, True), (1, True), (12, False)])
@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
def test_learning_rates_that_are_0_in_most_steps_are_no_healthy_run(first, told, low):
    """A report said "No problems found" of weights that no update could move."""
    model = seeded(mlp).to(low)
    health = sick_runs.watched(model, every=2)
    (group,) = health.optimizer.param_groups
    x, y = regression()

    def loss_of(number):
        group["lr"] = 0.1 * (number < 2 * first)
        return F.mse_loss(model(x.to(low)).float(), y)

    found = sick_runs.trained(health, loss_of, 24).codes
    assert found == ["stagnant-weights"] * told


@pytest.mark.parametrize("optimizer", [True, False])
def test_gradients_by_hand_train_as_those_of_a_backward_pass(optimizer):
    """They were said to be missing, and nothing to train the layers."""
    model = seeded(mlp)
    stepper = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = regression()
    with Health(model, stepper if optimizer else None) as health:
        for _ in range(6):
            loss = F.mse_loss(model(x), y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                if optimizer:
                    p.grad = gradient
                else:
                    p.data -= 0.1 * gradient
            if optimizer:
                stepper.step()
            health.step(loss)
    assert health.report().findings == []


@pytest.mark.parametrize("copies", [True, False])
def test_fp32_copies_that_an_optimizer_holds_are_master_weights(copies):
    model = seeded(mlp).half()
    parameters = list(model.parameters())
    held = [p.detach().float() for p in parameters] if copies else parameters
    with Health(model, torch.optim.SGD(held, lr=0.1)) as health:
        health.step(model(torch.ones(1, 8).half()).float().mean())
    assert ("half-parameters" in health.report().codes) is not copies


@pytest.mark.parametrize(("interval", "told"), [(2, True), (2000, False)])
def test_a_scale_that_rises_too_often_is_told_from_one_too_high(interval, told):
    model = seeded(mlp)
    scaler = torch.amp.GradScaler("cpu", 2.0**16, growth_interval=interval)
    report = sick_runs.Loop(model, regression(), scale=1.0, scaler=scaler).run(60)
    words = " ".join(f.check for f in report.findings)
    assert ("longer growth_interval" in words) is told


@pytest.mark.parametrize("around", [True, False])
def test_a_simulation_around_the_watch_or_within_it_shows_what_the_real_run_shows(
    around,
):
    """With the simulation around it, the watch traced nothing, and named no operation."""

    def trained():
        model = seeded(mlp)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        simulation = simulated(FP16, policy=CPU_AUTOCAST)
        x = torch.full((2, 8), 300.0)
        with (
            simulation if around else nullcontext(),
            Health(model, optimizer) as health,
        ):
            for _ in range(3):
                optimizer.zero_grad()
                with nullcontext() if around else simulation:
                    low = x.to(torch.float16)
                    loss = (model(x / (low * low).sum()) ** 2).mean()
                    loss.backward()
                optimizer.step()
                health.step(loss)
        return health.report()

    (found,) = [f for f in trained().findings if f.code == "hidden-infinity"]
    assert "Operation mul outside modules made an infinity" in found.observed


def test_a_watch_that_outlives_the_simulation_around_it_leaves_nothing_behind():
    """Torch removed the tracer in place of the simulation's mode, which stayed for good."""
    model = seeded(mlp)
    with simulated(FP16, policy=CPU_AUTOCAST):
        health = Health(model).__enter__()
    expected = model(torch.ones(2, 8))
    health.step(expected.sum().detach())
    health.close()
    assert not health.seen.error and _get_current_dispatch_mode() is None


def test_a_loss_that_ends_without_having_grown_is_not_said_to_diverge():
    with Health(nn.Linear(1, 1)) as health:
        for loss in (1.0, 2.0, math.nan):
            health.step(loss)
    (finding,) = [f for f in health.report().findings if f.code == "overflow-forward"]
    assert "diverge" not in finding.means
