"""What a simulated training step costs, beside the plain one.

All ways of running one step are measured in turn, round after round, in one process; a row is
the median over rounds of the CPU time on one thread, and the median of its ratio to the plain
FP32 step of the same round.
"""

import copy
from contextlib import nullcontext
from itertools import pairwise, product

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from turns import compared, in_turn

from mplab.numbers.formats import FP16
from mplab.simulation.context import simulated
from mplab.training.tasks import TASKS

BATCH = 128
"""Examples in a step."""


class Nothing(TorchDispatchMode):
    """A mode that does nothing: what Python alone costs a simulation."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # as mplab.simulation.mode.Mode

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


WAYS = {
    "FP32": nullcontext, "an empty mode": Nothing,
    "simulated FP16": lambda: simulated(FP16, tally=False),
    "simulated FP16, tally": lambda: simulated(FP16),
    "real CPU AMP FP16": lambda: torch.amp.autocast("cpu", dtype=torch.float16),
}  # fmt: skip
"""Ways of running a step; each makes a context for forward and backward."""


def _mlp():
    sizes = (64, 64, 64, 64, 10)
    layers = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


NETWORKS = {"CNN": (TASKS["digits-cnn"].model, (1, 8, 8)), "MLP": (_mlp, (64,))}
"""Networks, and the shape of an example: the digits' CNN, and an MLP 64-64-64-64-10."""

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}
"""Optimizers; they stay in FP32 in every way."""


def step_of(network, optimizer, way):
    """A function that trains one step and returns its loss, from the same start each time.

    Examples:
        >>> step = step_of("MLP", "SGD", "FP32")
        >>> bool(step() > step())
        True
    """
    make, shape = NETWORKS[network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = copy.deepcopy(make())
        x, y = torch.randn(BATCH, *shape), torch.randint(0, 10, (BATCH,))
    update = OPTIMIZERS[optimizer](model.parameters())
    context = WAYS[way]()
    amp = way.startswith("real")

    def passes(x, y):
        with context:
            loss = F.cross_entropy(model(x), y)
            if not amp:
                (loss * 1024.0).backward()
        if amp:  # as torch recommends, outside autocast
            (loss * 1024.0).backward()
        return loss.detach()

    def step():
        update.zero_grad()
        loss = passes(x, y)
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(1 / 1024)
        update.step()
        return loss

    return step


def measure_steps(*, rounds, seconds, repeats=20):
    """Measure all ways in turn, `rounds` times or for about `seconds` a network, at least thrice.

    Args:
        rounds: how often each way has its turn.
        seconds: a limit for each network with each optimizer.
        repeats: steps in a turn.
    """
    kits = product(NETWORKS, OPTIMIZERS)
    return [row for kit in kits for row in _measure(*kit, rounds, seconds, repeats)]


def _measure(network, optimizer, rounds, seconds, repeats):
    steps = {way: step_of(network, optimizer, way) for way in WAYS}
    counts = {
        way: max(1, repeats // 5) if way.startswith("real") else repeats for way in WAYS
    }
    times = in_turn(steps, rounds=rounds, seconds=seconds, repeats=counts, warm=3)
    for way, taken in times.items():
        yield compared(f"{network} {optimizer}", way, taken, times["FP32"])
