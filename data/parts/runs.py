"""Training on a device: all tasks, and a larger network, with its exponents."""

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from parts.part import Found, Setting, attempt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mplab.lessons.l06.probes import tf32
from mplab.numbers.formats import BF16, FP16, FP32, Format
from mplab.training.exponents import exponent_histogram
from mplab.training.loop import train
from mplab.training.recipes import RECIPES
from mplab.training.tasks import TASKS, Block

SEEDS = (0, 1, 2, 3, 4)


# Training ----------------------------------------------------------------------------------
_COMPARED = ("fp32", "amp-fp16-naive", "amp-fp16", "amp-bf16", "amp-fp8-current")


def plan(*, seeds: Sequence[int] = SEEDS) -> list[tuple[int, str, str, bool]]:
    """Seed, task, recipe, and whether FP32 products may be TF32, for each run.

    The first seed of every recipe comes first, then the other seeds of the recipes to compare,
    seed by seed, so that runs can be compared even if time runs out.
    """
    compared = [("fp32", True), *((name, False) for name in _COMPARED)]
    real = [name for name, recipe in RECIPES.items() if not recipe.simulated]
    others = [(name, False) for name in real if name not in _COMPARED]
    rounds = [(seed, compared) for seed in seeds]
    rounds.insert(1, (seeds[0], others))
    return [
        (seed, task, *kind)
        for seed, kinds in rounds
        for task in TASKS
        for kind in kinds
    ]


def training(to: Setting) -> Found:
    """Every real recipe on every task.

    A rehearsal takes one seed and three steps.
    """
    runs: list[dict[str, Any]] = []
    yield "runs", runs
    for count, (seed, task, recipe, in_tf32) in enumerate(
        plan(seeds=SEEDS[: 1 if to.rehearse else 5]), 1
    ):
        if to.left() <= 0:
            break
        row = {"task": task, "recipe": recipe, "tf32": in_tf32, "seed": seed}
        runs.append(row | attempt(_one_run, task, recipe, in_tf32, seed, to))
        if count % 8 == 0:
            yield "runs", runs
    yield "runs", runs


def _one_run(
    task: str, recipe: str, in_tf32: bool, seed: int, to: Setting
) -> dict[str, Any]:
    begin = time.perf_counter()
    with tf32(in_tf32):
        history = train(
            task,
            recipe,
            seed=seed,
            steps=3 if to.rehearse else None,
            device=to.device.type,
            progress=False,
            record_gradients_at=(),
        )
    apart = max(1, len(history.loss) // 40)
    changes = [0, *(np.flatnonzero(np.diff(history.loss_scale)) + 1)]
    return {
        "steps": len(history.loss),
        "loss_every": apart,
        "loss": history.loss[::apart].tolist(),
        "final_loss": float(np.mean(history.loss[-10:])),
        "metrics": history.metrics,
        "skipped": np.flatnonzero(history.skipped).tolist(),
        "scale": [[int(i), float(history.loss_scale[i])] for i in changes],
        "seconds": time.perf_counter() - begin,
    }


# A larger network ----------------------------------------------------------------------------
_LARGE = {
    "words": 8192,
    "width": 768,
    "blocks": 8,
    "heads": 12,
    "length": 512,
    "rows": 8,
}

_TINY = {"words": 32, "width": 16, "blocks": 2, "heads": 2, "length": 12, "rows": 2}


class _Way(NamedTuple):
    """How the larger network is trained."""

    recipe: str
    fmt: Format
    tf32: bool = False
    scale: float = 1.0
    checkpointed: bool = False


_WAYS = (
    _Way("fp32", FP32),
    _Way("fp32-tf32", FP32, tf32=True),
    _Way("amp-fp16-naive", FP16),
    _Way("amp-fp16", FP16, scale=65536.0),
    _Way("amp-bf16", BF16),
    _Way("fp32-checkpointed", FP32, checkpointed=True),
    _Way("amp-bf16-checkpointed", BF16, checkpointed=True),
)


class _Language(nn.Module):
    """A transformer that predicts the next of generated words."""

    def __init__(self, size: dict[str, int]) -> None:
        super().__init__()
        width = size["width"]
        self.words = nn.Embedding(size["words"], width)
        self.places = nn.Parameter(0.02 * torch.randn(size["length"], width))
        self.blocks = nn.Sequential(
            *(Block(width, size["heads"]) for _ in range(size["blocks"]))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, size["words"], bias=False)
        self.checkpointed = False

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places
        for block in self.blocks:
            x = (
                checkpoint(block, x, use_reentrant=False)
                if self.checkpointed
                else block(x)
            )
        logits: Tensor = self.head(self.norm(x))
        return logits


def generated(
    size: dict[str, int], step: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """A batch of words, each a fixed function of the two before it, one in ten at random."""
    random = torch.Generator().manual_seed(step)
    count = size["words"]
    rows = size["rows"]
    length = size["length"] + 1
    words = torch.randint(count, (rows, length), generator=random)
    noise = torch.rand(rows, length, generator=random) < 0.1
    for k in range(2, length):
        following = (5 * words[:, k - 1] + 3 * words[:, k - 2] + 7) % count
        words[:, k] = torch.where(noise[:, k], words[:, k], following)
    words = words.to(device)
    return words[:, :-1], words[:, 1:]


def larger(to: Setting) -> Found:
    """A transformer of 70 million parameters: loss, speed and memory by recipe."""
    size = _TINY if to.rehearse else _LARGE
    yield "parameters", sum(p.numel() for p in _language(size, to).parameters())
    runs: list[dict[str, Any]] = []
    for way in _WAYS:
        if to.left() <= 0:
            break
        runs.append({"recipe": way.recipe} | attempt(_train_larger, size, way, to))
        yield "runs", runs


def _language(size: dict[str, int], to: Setting) -> _Language:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _Language(size).to(to.device)


def _forward(model: nn.Module, words: Tensor, following: Tensor, fmt: Format) -> Tensor:
    low = fmt != FP32
    with torch.autocast(words.device.type, dtype=fmt.torch_dtype, enabled=low):
        logits = model(words)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def _train_larger(size: dict[str, int], way: _Way, to: Setting) -> dict[str, Any]:
    before = _emptied(to)
    model = _language(size, to)
    model.checkpointed = way.checkpointed
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler(
        to.device.type, init_scale=way.scale, enabled=way.scale != 1
    )
    steps, warm = (3, 1) if to.rehearse else (60, 10)
    batches = [generated(size, step, to.device) for step in range(steps)]
    losses = []
    scales = []
    begin = 0.0
    with tf32(way.tf32):
        for step, (words, following) in enumerate(batches):
            if step == warm:
                _wait(to)
                begin = time.perf_counter()
            optimizer.zero_grad()
            loss = _forward(model, words, following, way.fmt)
            scales.append(scaler.get_scale())
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
    _wait(to)
    seconds = (time.perf_counter() - begin) / (steps - warm)
    return {
        "loss": torch.stack(losses).tolist(),
        "scale": scales,
        "seconds_per_step": seconds,
        "words_per_second": size["rows"] * size["length"] / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() - before if to.cuda else None,
        "parameter_bytes": sum(p.nbytes for p in model.parameters()),
    }


def _wait(to: Setting) -> None:
    if to.cuda:
        torch.cuda.synchronize()


def _emptied(to: Setting) -> int:
    """Free the memory of the last run, reset the peak, and return the bytes still allocated."""
    if not to.cuda:
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def exponents(to: Setting) -> Found:
    """Exponents of the larger network's activation gradients by layer, loss scale removed."""
    size = _TINY if to.rehearse else _LARGE
    runs: list[dict[str, Any]] = []
    for way in _WAYS:
        if to.left() <= 0 or way.tf32 or way.checkpointed:
            continue
        row = {"recipe": way.recipe, "loss_scale": way.scale}
        runs.append(row | attempt(_exponents_of, size, way, to))
        yield "runs", runs


def _exponents_of(size: dict[str, int], way: _Way, to: Setting) -> dict[str, Any]:
    """The exponents of the activation gradients of the first step, by layer, input first."""
    model = _language(size, to)
    layers = dict[str, Any]()
    words, following = generated(size, 0, to.device)
    for where, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(_collect(layers, where, way.scale))
    loss = _forward(model, words, following, way.fmt)
    (loss * way.scale).backward()  # type: ignore[no-untyped-call]
    names = [where for where, _ in model.named_modules() if where in layers]
    return {"layers": {where: layers[where] for where in names}}


def _collect(layers: dict[str, Any], where: str, scale: float) -> Callable[..., None]:
    """Make a hook that counts the exponents of a layer's gradients, at most about a million."""

    def after(module: nn.Module, args: Any, output: Tensor) -> None:
        def count(gradient: Tensor) -> None:
            flat = gradient.detach().reshape(-1)
            found = exponent_histogram(
                flat[:: max(1, flat.numel() >> 20)].double() / scale
            )
            layers[where] = {
                "lowest": int(found.exponents[0]) if len(found.exponents) else 0,
                "counts": found.counts.tolist(),
                "zeros": found.zeros,
                "nonfinite": found.nonfinite,
            }

        output.register_hook(count)  # type: ignore[no-untyped-call]

    return after
