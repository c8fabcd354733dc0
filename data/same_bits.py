"""Compare a GPU with the CPU bit by bit, and say what a step costs: `python data/same_bits.py`."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mplab.health import Health
from mplab.health.digest import numbers_of
from mplab.lessons.l11.rooflines import seconds_of
from mplab.numbers.formats import (
    BF16,
    FORMATS,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    TF32,
    Rounding,
)
from mplab.numbers.options import Stream, Tally
from mplab.numbers.tensors import round_tensor
from mplab.scaling import ScaleRule, dequantize, quantize
from mplab.simulation import convert_linears, simulated
from mplab.simulation.casts import SCALINGS

Pairs = Iterator[tuple[str, Any, Any]]
"""A description, the CPU's result and the device's result, for each comparison."""


def rounding(device: torch.device) -> Pairs:
    """Compare roundings of random bits: numbers of all sizes, subnormal, past the end, and NaN."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1024, np.uint32)
    x = torch.from_numpy(bits.view(np.float32))
    for mode in Rounding:
        for fmt in FORMATS.values():
            for wide in (x.double(), *[x] * (fmt.bits <= 16)):
                tallies = Tally(), Tally()
                found = []
                for t, tally in zip((wide, wide.to(device)), tallies, strict=True):
                    stream = Stream(7) if mode is Rounding.STOCHASTIC else None
                    found.append(
                        round_tensor(t, fmt, rounding=mode, stream=stream, tally=tally)
                    )
                what = f"{wide.dtype} to {fmt.name} by {mode.name}"
                yield what, *found
                yield f"{what}: counts", *tallies


def quantizing(device: torch.device) -> Pairs:
    """Compare codes, scales and values of rows of very different magnitudes."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(32, 64, generator=random) * 2.0 ** torch.arange(-16, 16)[:, None]
    for rule in ScaleRule:
        for fmt in (fmt for fmt in FORMATS.values() if fmt.bits <= 8 and fmt.signed):
            for block in (None, (16,), (16, 16)):
                try:
                    here = quantize(x, fmt, scale=rule, block=block)
                except ValueError:  # the rule is not for this format
                    continue
                there = quantize(x.to(device), fmt, scale=rule, block=block)
                what = f"{fmt.name} by {rule.name} in blocks of {block}"
                yield f"{what}: codes", here.codes, there.codes
                yield f"{what}: scales", here.scale, there.scale
                yield f"{what}: values", dequantize(here), dequantize(there)


def _step(
    device: Any, context: Any, convert: Callable[[nn.Module], nn.Module]
) -> list[Tensor]:
    """Outputs and gradients of a step on small integers: in any order, all sums are exact."""
    random = torch.Generator().manual_seed(0)
    x, gradient = (
        torch.randint(-2, 3, (8, n), generator=random).float() for n in (20, 10)
    )
    model = nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 10))
    for p in model.parameters():
        p.data = torch.randint(-1, 2, p.shape, generator=random).float()
    model, x = convert(model.to(device)), x.to(device).requires_grad_()
    with context:
        y = model(x)
        y.backward(gradient.to(device))
    return [y, *(t.grad for t in (x, *model.parameters()) if t.grad is not None)]


def steps(device: torch.device) -> Pairs:
    """Simulated steps, and steps of layers of eight bits or fewer, simulated and real.

    Even a matrix unit that keeps 13 bits computes these sums exactly. Scalings whose scales are not
    powers of two are left out, because their operands have long fractions.
    """
    for fmt in (FP16, BF16, TF32, FP8_E4M3, FP8_E5M2):
        modes = simulated(fmt), simulated(fmt)
        found = [
            _step(on, m, lambda x: x)
            for on, m in zip(("cpu", device), modes, strict=True)
        ]
        for pair in zip(*found, strict=True):
            yield f"step simulated in {fmt.name}", *pair
        yield f"counts of {fmt.name}", *(m.by_operation for m in modes)
    for name in SCALINGS:
        for real in (False, True)[: 1 + SCALINGS[name].is_real()]:
            convert = partial(
                convert_linears, scaling=name, real=real, filter=lambda *_: True
            )
            found = [_step(on, nullcontext(), convert) for on in ("cpu", device)]
            for pair in zip(*found, strict=True):
                if name not in ("fp8-blockwise", "nvfp4"):
                    yield f"layers with {name} scales, {real=}", *pair


def health(device: torch.device) -> Pairs:
    """Compare what Health records of two steps, and the digests of tensors."""
    found = []
    for on in ("cpu", device):
        model = nn.Linear(4, 4)
        nn.init.eye_(model.weight)
        nn.init.ones_(model.bias)
        optimizer = torch.optim.SGD(model.to(on).parameters(), lr=0.5)
        with Health(model, optimizer) as watch:
            for _ in range(2):
                optimizer.zero_grad()
                loss = model(torch.eye(4, device=on)).sum()
                loss.backward()
                optimizer.step()
                watch.step(loss)
        found.append([asdict(step) for step in watch.steps])
    yield "Health", *found
    for dtype in (torch.float16, torch.float32, torch.float64):
        x = torch.randn(40_000, dtype=dtype)
        yield f"digest of {dtype}", numbers_of(x), numbers_of(x.to(device))


CHECKS = (rounding, quantizing, steps, health)


def difference(here: Any, there: Any) -> str:
    """Say how two tensors or two records differ; "" if they do not."""
    if not isinstance(here, Tensor):
        return "" if here == there else f"{here} is not {there}"
    if not there.is_cuda or (here.shape, here.dtype) != (there.shape, there.dtype):
        return f"{here.dtype} {here.shape} is not {there.dtype} {there.shape} on {there.device}"
    a, b = (t.detach().cpu().reshape(-1).view(torch.uint8) for t in (here, there))
    return (
        "" if torch.equal(a, b) else f"{int((a != b).sum())} bytes of {len(a)} differ"
    )


def costs(
    device: torch.device, *, width: int = 2048, rounds: int = 9
) -> dict[str, float]:
    """Seconds of a step of four layers: plain, simulated, watched, and with real FP8 products."""

    def model() -> nn.Module:
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device)

    x = torch.randn(width, width, device=device)
    ways: dict[str, tuple[nn.Module, Callable[[nn.Module], Any]]] = {
        "FP32": (model(), lambda m: nullcontext()),
        "simulated FP16": (model(), lambda m: simulated(FP16, tally=False)),
        "simulated FP16, tally": (model(), lambda m: simulated(FP16)),
        "Health": (model(), Health),
        "FP8 layers, simulated": (convert_linears(model()), lambda m: nullcontext()),
        "FP8 layers, real": (
            convert_linears(model(), real=True),
            lambda m: nullcontext(),
        ),
    }

    def step(of: nn.Module, watch: Any) -> None:
        loss = of(x).square().mean()
        loss.backward()
        if isinstance(watch, Health):
            watch.step(loss)

    found = {}
    for name, (of, context) in ways.items():
        with context(of) as watch:
            found[name] = seconds_of(
                partial(step, of, watch), device, rounds=rounds, warm=3
            )
    timed = partial(seconds_of, device=device, rounds=rounds, warm=3)
    found["cast to E4M3"] = timed(lambda: x.to(torch.float8_e4m3fn))
    found["quantize to E4M3"] = timed(lambda: quantize(x, FP8_E4M3))
    return found


def main() -> int:
    """Print what differs, and what a step costs; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    device, wrong = torch.device("cuda"), 0
    for check in CHECKS:
        every = [(what, difference(here, there)) for what, here, there in check(device)]
        bad = [f"  {what}: {words}" for what, words in every if words]
        print(
            f"{check.__name__}: {len(every)} comparisons, {len(bad)} differ", flush=True
        )
        for line in bad[:20]:
            print(line)
        wrong += len(bad)
    seconds = costs(device)
    for name, taken in seconds.items():
        first = seconds["cast to E4M3" if "E4M3" in name else "FP32"]
        print(f"{name:<24}{1e3 * taken:10.3f} ms{taken / first:10.2f}x", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
