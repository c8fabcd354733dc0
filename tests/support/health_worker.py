"""One of two processes that train together, with a watch and without; it writes what it saw.

python health_worker.py FOLDER, with the variables that torchrun sets.
"""

import gc
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from mplab.health import Health


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def sharded():
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def trained(make, *, watched, scale=None, bad=False):
    """The weights that this process holds after four steps, and the watch."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale or 1.0, enabled=scale is not None
    )
    health = Health(model, optimizer, scaler=scaler)
    if watched:
        health.__enter__()
    generator = torch.Generator().manual_seed(distributed.get_rank())
    for step in range(4):
        x = torch.randn(8, 8, generator=generator)
        if bad and (step, distributed.get_rank()) == (1, 1):
            x[0, 0] = torch.nan
        loss = F.mse_loss(model(x), x[:, :3])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if scale is not None:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if watched:
            health.step(loss)
    health.close()
    held = [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]
    return held, health


def compared(make, *, alone=False, **options):
    """Whether the watch changed a bit, and what it reports."""
    watched = not alone or distributed.get_rank() == 0
    (bare, _), (seen, health) = (
        trained(make, watched=on, **options) for on in (False, watched)
    )
    report = health.report()
    return {
        "equal": all(torch.equal(a, b) for a, b in zip(bare, seen, strict=True)),
        "error": report.evidence.error, "codes": report.codes if watched else [],
        "updated": sum(step.updated for step in report.steps), "alone": alone,
    }  # fmt: skip


def told_of_a_bad_batch():
    """What each process finds alone, and together, when one has a NaN in its batch."""
    _, health = trained(
        lambda: DistributedDataParallel(network()), watched=True, bad=True
    )
    return [
        [f.observed for f in health.report(gather=each).findings]
        for each in (False, True)
    ]


if __name__ == "__main__":
    # Fills memory that is still to be written with NaN.
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        found = {
            "ddp": compared(lambda: DistributedDataParallel(network())),
            "ddp scaled": compared(
                lambda: DistributedDataParallel(network()), scale=1024.0
            ),
            "bad": told_of_a_bad_batch(),
            "fsdp2": compared(sharded),
            "fsdp2, first alone": compared(sharded, alone=True),
        }
        gc.collect()  # FSDP2's cycles would hold the group until Python ends, and abort it there
        Path(sys.argv[1], f"{distributed.get_rank()}.json").write_text(
            json.dumps(found)
        )
    finally:
        distributed.destroy_process_group()
