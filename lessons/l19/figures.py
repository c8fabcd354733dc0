"""Why two runs disagree: orders of a sum, one ulp in a weight, training and rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mplab import BF16, FP16, FP32, round_to
from mplab.arithmetic import distinct_sums
from mplab.common.words import plural
from mplab.course.pictures import canvas as c
from mplab.training import Recipe, Task, train


# Orders of one sum -----------------------------------------------------------------------
class OrderErrors(NamedTuple):
    """The different sums of the same numbers in many orders.

    Attributes:
        size: how many numbers were added.
        orders: how many orders were tried.
        offsets: by the way of adding, how far each different sum is from the exact one, in
            unit roundoffs of its format.
    """

    size: int
    orders: int
    offsets: dict[str, np.ndarray]


def measure_order_errors(
    *, size: int = 256, orders: int = 1000, seed: int = 0
) -> OrderErrors:
    """The sums of the products of two normally distributed vectors, in many orders.

    The vectors, their products and the running sums are rounded to one format; in the last two
    ways products and sums are FP32's, and the result is rounded once more.

    Args:
        size: of the vectors.
        orders: how many random ones.
        seed: of the vectors and the orders.

    Examples:
        >>> found = measure_order_errors(orders=20)
        >>> {name: len(offsets) for name, offsets in found.offsets.items()}
        {'FP32': 9, 'FP16': 9, 'BF16': 9, 'FP32 then FP16': 1, 'FP32 then BF16': 1}
    """
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((2, size))
    found = {}
    ways = (("", FP32, FP32), ("", FP16, FP16), ("", BF16, BF16), ("FP32 then ", FP32, FP16),
            ("FP32 then ", FP32, BF16))  # fmt: skip
    for words, inner, last in ways:
        a, b = round_to(vectors, last)
        terms = round_to(a * b, inner)
        exact = math.fsum(terms)
        sums = np.unique(
            round_to(distinct_sums(terms, inner, orders=orders, seed=seed), last)
        )
        found[words + last.name] = (sums - exact) / (last.unit_roundoff * abs(exact))
    return OrderErrors(size, orders, found)


@c.in_house_style
def plot_order_errors(found: OrderErrors) -> c.Picture:
    """A row of marks for each way of adding: where its different sums lie.

    Args:
        found: from `measure_order_errors`.

    Returns:
        A figure whose title counts the different sums of each way.
    """
    picture = c.Picture(height=1.7 + 0.42 * len(found.offsets), width=8.0)
    axes = picture.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    for row, (name, offsets) in enumerate(found.offsets.items()):
        look = c.style(name.rpartition(" ")[2])
        axes.plot(offsets, np.full(len(offsets), row), look.marker, color=look.colour,
                  markersize=5, alpha=0.6)  # fmt: skip
        words = plural(len(offsets), "sum")
        axes.text(1.02, row, words, transform=axes.get_yaxis_transform(), va="center")
    c.rows(axes, list(found.offsets))
    axes.set_xlabel(
        "distance from the exact sum, in unit roundoffs of the result's format"
    )
    counts = c.listed(
        [f"{len(offsets)} in {name}" for name, offsets in found.offsets.items()]
    )
    claim = f"{found.size} numbers in {found.orders:,} orders have different sums: {counts}."
    return c.titled(picture, claim, "A row of marks for each way of adding.")


@c.in_house_style
def plot_orders(trees: dict[str, Any]) -> c.Picture:
    """A tree for each way of adding: two lines that meet are one addition.

    Args:
        trees: from `reveal_order`, by the way of adding.

    Returns:
        A figure whose title says how many additions a number goes through at most.
    """
    picture = c.Picture(height=3.4, width=8.6)
    panels = picture.subplots(1, len(trees), sharey=True, squeeze=False)[0]
    heights = []
    for axes, (name, tree) in zip(panels, trees.items(), strict=True):
        leaves: list[int] = []
        _, height = _branch(axes, tree, leaves)
        heights.append(f"{height} in {name}")
        axes.set_title(name)
        axes.set_xticks(range(len(leaves)), [str(leaf) for leaf in leaves], fontsize=7)
        axes.set_xlabel("number of the term")
        axes.tick_params(length=0)
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("additions so far, at most")
    claim = f"The longest chain of additions has {c.listed(heights)}."
    return c.titled(
        picture, claim, "A tree for each way of adding, with the terms at the bottom."
    )


def _branch(axes: Any, tree: Any, leaves: list[int]) -> tuple[float, int]:
    """Draw a tree; return the place and the height of its root."""
    if isinstance(tree, int):
        leaves.append(tree)
        return len(leaves) - 1.0, 0
    parts = [_branch(axes, part, leaves) for part in tree]
    top = 1 + max(height for _, height in parts)
    for place, height in parts:
        axes.plot([place, place], [height, top], color="black", linewidth=1)
    ends = [place for place, _ in parts]
    axes.plot([min(ends), max(ends)], [top, top], color="black", linewidth=1)
    return sum(ends) / len(ends), top


# One ulp in a weight ---------------------------------------------------------------------
class RunsApart(NamedTuple):
    """Two runs whose first weights differ by one ulp in one number.

    Attributes:
        recipe: its name.
        seed: of both runs.
        distances: the norm of the difference of their counted weights after each step, over the
            norm of these weights, of shape (steps,).
        metrics: the first metric of the task, reached by the unchanged run and by the other.
        parted: the first step whose losses differ, or None.
    """

    recipe: str
    seed: int
    distances: np.ndarray
    metrics: tuple[float, float]
    parted: int | None


class _Weights:
    """Watch a run: change one number of its first weights if asked, and keep the counted ones."""

    def __init__(self, nudged: bool, without: str) -> None:
        self.nudged, self.without = nudged, without
        self.kept: list[Tensor] = []

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> _Weights:
        self.model = model
        if self.nudged:
            with torch.no_grad():
                first = next(model.parameters()).view(-1)
                first.view(torch.int32)[first.abs().argmax()] += 1
        return self

    def step(self, loss: float, scale: float, skipped: bool) -> None:
        named = self.model.named_parameters()
        counted = [
            weight for name, weight in named if name.rpartition(".")[2] != self.without
        ]
        self.kept.append(nn.utils.parameters_to_vector(counted).detach().double())

    def close(self) -> None:
        """Do nothing: nothing is open."""


def measure_runs_apart(
    task: str | Task,
    recipe: str | Recipe,
    *,
    seed: int = 0,
    steps: int = 150,
    without: str = "",
) -> RunsApart:
    """Train twice, the second time with one ulp more in the largest number of the first weights.

    Args:
        task: as in `mplab.training.train`; its first weights are float32.
        recipe: likewise.
        seed: of both runs.
        steps: of each, at least 1.
        without: a tensor of every layer whose distance is not counted, such as "in_proj_bias", of
            which a third is noise; empty counts all.

    Examples:
        >>> found = measure_runs_apart("regression", "fp32", steps=3)
        >>> bool(0 < found.distances[0] < 1e-5)
        True
    """
    watches = [_Weights(nudged, without) for nudged in (False, True)]
    how: dict[str, Any] = {"steps": steps, "record_gradients_at": ()}
    runs = [train(task, recipe, seed=seed, watch=w, **how) for w in watches]
    pairs = zip(*(watch.kept for watch in watches), strict=True)
    distances = [float((a - b).norm() / a.norm()) for a, b in pairs]
    differ = np.flatnonzero(runs[0].loss != runs[1].loss)
    first, second = (next(iter(run.metrics.values())) for run in runs)
    parted = int(differ[0]) if len(differ) else None
    return RunsApart(runs[0].recipe, seed, np.array(distances), (first, second), parted)


def plot_runs_apart(pairs: Sequence[RunsApart]) -> c.Picture:
    """How far pairs of runs are apart, step by step.

    Args:
        pairs: each from `measure_runs_apart`.

    Returns:
        A figure whose title says how far apart the pairs of each recipe end.
    """
    lines = []
    ends = dict[str, list[float]]()
    for pair in pairs:
        recipe = pair.recipe
        shown = np.where(pair.distances > 0, pair.distances, np.nan)
        look = c.style(
            "BF16" if "bf16" in recipe else "FP16" if "fp16" in recipe else "FP32"
        )
        steps = np.arange(1, len(shown) + 1)
        lines.append(c.Line(steps, shown, f"{recipe}, seed {pair.seed}", look))
        ends.setdefault(recipe, []).append(float(pair.distances[-1]))
    ranges = {recipe: (f"{min(d):.0e}", f"{max(d):.0e}") for recipe, d in ends.items()}
    said = c.listed(
        f"{' to '.join(dict.fromkeys(r))} apart in {n}" for n, r in ranges.items()
    )
    claim = f"One ulp in one weight: in the end the runs are {said}."
    quantities = "steps", "distance of the weights, relative"
    return c.line_chart(
        lines, *quantities, claim, finish=lambda axes: axes.set_yscale("log")
    )


# Train and rollout -----------------------------------------------------------------------
_TOKENS, _WIDTH, _HEADS = 16, 32, 4


Cache = list[Tensor]


class _Block(nn.Module):
    """Attention and two layers; of all places at once, or of one place with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.into, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = (
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.Linear(4 * _WIDTH, _WIDTH),
        )

    def forward(self, x: Tensor, cache: Cache | None) -> Tensor:
        parts = (
            self.into(self.before(x))
            .unflatten(-1, (3, _HEADS, -1))
            .permute(2, 0, 3, 1, 4)
        )
        query, key, value = parts
        if cache is None:
            seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            if cache:
                key, value = (
                    torch.cat([cache[0], key], 2),
                    torch.cat([cache[1], value], 2),
                )
            cache[:] = key, value
            scores = query @ key.mT / math.sqrt(query.shape[-1])
            seen = scores.softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    """A small language model, with random weights, that computes the same in two ways.

    Args:
        length: the most places.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(_TOKENS, _WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(length, _WIDTH))
        self.blocks = nn.ModuleList(_Block() for _ in range(2))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _TOKENS)

    def forward(
        self, tokens: Tensor, caches: Sequence[Cache | None] = (None, None)
    ) -> Tensor:
        """The logarithms of all probabilities at each place, of shape (rows, places, tokens).

        With caches, which it fills, the tokens are those of the next place alone.
        """
        at = caches[0][0].shape[2] if caches[0] else 0
        x = self.token(tokens) + self.place[at : at + tokens.shape[1]]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return self.head(self.norm(x)).float().log_softmax(-1)

    @torch.no_grad()
    def rollout(
        self, rows: int, length: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Texts token by token, (rows, length + 1), and their log-probabilities, (rows, length)."""
        tokens = torch.zeros(rows, 1, dtype=torch.long)
        found = []
        caches: list[Cache] = [[] for _ in self.blocks]
        for _ in range(length):
            logs = self(tokens[:, -1:], caches)[:, 0]
            drawn = torch.multinomial(logs.exp(), 1, generator=generator)
            found.append(logs.gather(1, drawn))
            tokens = torch.cat([tokens, drawn], 1)
        return tokens, torch.cat(found, 1)

    def scores(self, tokens: Tensor) -> Tensor:
        """The log-probabilities of all tokens but the first, computed at once: (rows, length)."""
        return self(tokens[:, :-1]).gather(2, tokens[:, 1:, None])[..., 0]


class RolloutGaps(NamedTuple):
    """By how much log-probabilities differ between training and rollout.

    Attributes:
        gaps: log-probability read minus written, shape (rows, length), by the format of the model.
    """

    gaps: dict[str, np.ndarray]


def measure_rollout_gaps(
    *, length: int = 128, rows: int = 64, seed: int = 0
) -> RolloutGaps:
    """By how much a text's log-probabilities differ between training and rollout.

    A small language model with random weights writes texts, token by token, and keeps the keys
    and values of its attention. Then it reads the same texts at once, as in training.

    Args:
        length: of the texts, at least 2.
        rows: how many texts, at least 2.
        seed: of the model and the texts.

    Examples:
        >>> gaps = measure_rollout_gaps(length=8, rows=4).gaps
        >>> bool(abs(gaps["FP32"]).max() < 1e-5 < abs(gaps["BF16"]).max())
        True
    """
    gaps = {}
    for name, dtype in (
        ("FP32", torch.float32),
        ("FP16", torch.float16),
        ("BF16", torch.bfloat16),
    ):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = Decoder(length).to(dtype)
        tokens, written = model.rollout(
            rows, length, torch.Generator().manual_seed(seed)
        )
        with torch.no_grad():
            gaps[name] = (model.scores(tokens) - written).double().numpy()
    return RolloutGaps(gaps)


def plot_rollout_gaps(found: RolloutGaps) -> c.Picture:
    """How the gap of a whole text grows with its length.

    Args:
        found: from `measure_rollout_gaps`.

    Returns:
        A figure whose title says by how much whole texts are off, in each format.
    """
    lines, said = [], []
    for name, gap in found.gaps.items():
        spread = np.cumsum(gap, axis=1).std(axis=0)
        n = np.arange(1, len(spread) + 1)
        lines.append(
            c.Line(n, np.where(spread > 0, spread, np.nan), name, c.style(name))
        )
        root = float(np.sqrt(np.mean(gap**2))) * np.sqrt(n)
        lines.append(c.Line(n, root, "", c.REFERENCE, {"linewidth": 0.8}))
        said.append(f"{spread[-1]:.2g} in {name}")
    what = f"The logarithm of the probability of {gap.shape[1]} tokens"
    claim = f"{what} is off by {c.listed(said)} (standard deviation)."
    quantities = (
        "length of the text (thin: grows like its root)",
        "standard deviation of the gap",
    )
    return c.line_chart(lines, *quantities, claim, log="xy")
