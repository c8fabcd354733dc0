"""Public bug reports of low-precision training, rebuilt to run on a CPU, and their table."""

from contextlib import nullcontext

import torch

from mplab.health import Health
from mplab.simulation import CPU_AUTOCAST, Policy, simulated

TENSORS = Policy("tensors", "tensors of low dtypes, without autocast")
REPORTS = []


def report(source, dtype=torch.float16, *, rule=None, policy=TENSORS):
    """Add a report: where it stands, its dtype, and the finding of Health that would be right.

    The docstring says what is wrong, and what the function returns.
    """

    def add(replay):
        REPORTS.append((source, dtype, rule, policy, replay))
        return replay

    return add


class Run:
    """One way to run a report: in FP32, in a real low dtype, or simulated."""

    def __init__(self, dtype, *, autocast=False):
        self.dtype = dtype
        self.cast = autocast
        self.health = None

    def autocast(self):
        """Autocast of torch; nothing in FP32, and where the simulation takes its place."""
        return torch.autocast("cpu", dtype=self.dtype) if self.cast else nullcontext()

    def scaler(self, scale):
        """A gradient scaler, which does nothing in FP32."""
        enabled = self.dtype != torch.float32
        return torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)

    def watch(self, model, optimizer=None, scaler=None):
        self.health = Health(model, optimizer, scaler=scaler)
        return self.health

    def train(
        self,
        model,
        loss_of,
        *,
        optimizer=torch.optim.SGD,
        lr=0.01,
        steps=3,
        scaler=None,
        update=None,
        clear=True,
    ):
        """Train as most programs do, and return the last loss.

        `update` gets the optimizer, and stands in place of the scaler's two calls.
        """
        optimizer = optimizer(model.parameters(), lr=lr)
        scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
        with self.watch(model, optimizer, scaler):
            for step in range(steps):
                if clear:
                    optimizer.zero_grad()
                loss = loss_of(step)
                scaler.scale(loss).backward()
                if update is None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    update(optimizer)
                self.health.step(loss)
        return loss

    def outcome(self, replay):
        """What the replay returns, or that it raises an error, or is refused."""
        torch.manual_seed(0)
        try:
            x = float(torch.as_tensor(replay(self)).detach())
        except (IndexError, RuntimeError, ValueError) as error:
            return "refused" if str(error).startswith("simulated:") else "raises"
        return f"{x:,.0f}" if x.is_integer() else f"{x:.3g}"

    def findings(self, rule):
        """What Health says: ✓ with the right finding among others, ✗ without.

        Notes count only where one is right.
        """
        report = self.health.report()
        ended = ["ended-by-exception"] * bool(report.evidence.ended)
        notes = [f.code for f in report.findings if f.level == "note"]
        codes = ended + report.codes + [rule] * (rule in notes and rule not in ended)
        if not codes:
            return "silent" if rule else "no rule"
        mark = ("✓" if rule in codes else "✗") if rule else "no rule, but says"
        return f"{mark} {', '.join(codes)}"


def row(source, dtype, rule, policy, replay):
    """A report's row of the table."""
    fp32 = Run(torch.float32)
    real = Run(dtype, autocast=policy is CPU_AUTOCAST)
    simulation = Run(dtype)
    outcomes = [fp32.outcome(replay), real.outcome(replay)]
    with simulated(dtype, policy=policy):
        outcomes.append(simulation.outcome(replay))
    health = real.findings(rule)
    if simulation.findings(rule) != health:
        health += f"; simulated: {simulation.findings(rule)}"
    fault, _, looked_at = replay.__doc__.partition("\n\n")
    address = f"https://github.com/{source.replace('#', '/issues/')}"
    wrong = f"{' '.join(fault.split())} *{looked_at.strip()}*"
    return f"| {' | '.join([f'[{source}]({address})', wrong, *outcomes, health])} |"
