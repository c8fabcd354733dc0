"""The cases of the clinic, and runs that look alike."""

from collections.abc import Iterable, Sequence

from matplotlib.patches import Rectangle

from mplab.course.pictures import canvas as c
from mplab.health.records import Step
from mplab.lessons.l13.clinic import TREATMENTS, Case, Outcome

# The cases of the clinic -----------------------------------------------------------------
_HEADS = {"broken": "as reported", "wrong": "usual remedy", "fixed": "cure"}


def _shown(value: float) -> str:
    if 0 < abs(value) < 0.001:
        head, _, power = f"{value:.0e}".partition("e")
        return f"{head}e{int(power)}".replace("-", "−")
    return f"{value:.3g}"


@c.in_house_style
def clinic(cases: Sequence[Case]) -> c.Picture:
    """Draw each case's observable: as reported, after the usual remedy, and after the cure.

    Args:
        cases: to run, or to show from an earlier run.

    Returns:
        A figure whose title counts the cures and the remedies that helped.
    """
    rows = [(case, [case.run(treatment) for treatment in TREATMENTS]) for case in cases]
    picture = c.Picture(height=1.1 + 0.36 * len(rows), width=9.4)
    axes = picture.subplots()
    axes.set_axis_off()
    axes.set_xlim(0, 100)
    axes.set_ylim(len(rows) + 0.1, -1.1)
    for place, treatment in enumerate(TREATMENTS):
        axes.text(69 + 12 * place, -0.5, _HEADS[treatment], ha="center", va="center")
    for y, (case, outcomes) in enumerate(rows):
        axes.text(0, y + 0.5, case.name, va="center", fontweight="bold")
        axes.text(21, y + 0.5, case.observable, va="center", fontsize=8)
        for place, outcome in enumerate(outcomes):
            well = case.is_healthy(outcome)
            face = (c.GOOD, 0.28) if well else (c.BAD, 0.28)
            box = Rectangle((63.3 + 12 * place, y + 0.06), 11.4, 0.88, facecolor=face)
            axes.add_patch(box)
            mark = "✓" if well else "✗"
            words = f"{mark} {_shown(outcome.observed)}"
            axes.text(
                69 + 12 * place, y + 0.5, words, ha="center", va="center", color=c.INK
            )
    cures = sum(case.is_healthy(outcomes[2]) for case, outcomes in rows)
    remedies = sum(case.is_healthy(outcomes[1]) for case, outcomes in rows)
    claim = (
        f"{cures} of {len(rows)} cures bring the observable into its range, and {remedies} of "
        f"{len(rows)} usual remedies do"
    )
    details = "; ".join(
        f"{case.name}, {case.observable}: "
        + ", ".join(f"{_HEADS[t]} {_shown(case.run(t).observed)}" for t in TREATMENTS)
        for case in cases
    )
    return c.titled(picture, claim, f"Table. {details}.")


# Runs that look alike --------------------------------------------------------------------
_QUESTIONS = (
    "gradients that are zero",
    "updates that are lost",
    "steps that move a weight",
)


def _share(parts: Iterable[float], whole: float) -> float:
    return 100 * sum(parts) / whole if whole else 0.0


def shares(steps: Sequence[Step]) -> tuple[float, float, float]:
    """Percent of gradients that are zero, of updates that are lost, and of steps that move."""
    layers = [sizes for step in steps for sizes in step.gradients.values()]
    zeros = _share((s.zeros for s in layers), sum(s.total for s in layers))
    lost = _share((s.unmoved for s in steps), sum(s.updated for s in steps))
    moved = _share((step.updated > step.unmoved for step in steps), len(steps))
    return zeros, lost, moved


@c.in_house_style
def look_alikes(cases: Sequence[Case]) -> c.Picture:
    """Runs whose losses look alike, and the shares that tell them apart.

    Args:
        cases: whose reported runs were watched.

    Returns:
        A figure whose title says how much the losses changed.
    """
    runs: list[tuple[Case, Outcome]] = [(case, case.broken()) for case in cases]
    picture = c.Picture(height=1.5 + 0.42 * len(runs), width=9.0)
    grid = picture.subplots(1, 3, sharey=True)
    table = [shares(run.report.steps) for _, run in runs]
    for column, (axes, question) in enumerate(zip(grid, _QUESTIONS, strict=True)):
        values = [row[column] for row in table]
        axes.barh(range(len(runs)), values, color=c.BAD if column < 2 else c.FACES[5])
        for y, value in enumerate(values):
            inside = value > 75
            axes.text(
                value - 3 if inside else value + 3,
                y,
                f"{value:.0f}%",
                ha="right" if inside else "left",
                va="center",
            )
        axes.set_title(question, fontsize=10)
        axes.set_xlim(0, 100)
        axes.set_xticks([0, 50, 100])
        axes.set_xlabel("share (%)")
        axes.set_ylim(len(runs) - 0.4, -0.6)
    grid[0].set_yticks(range(len(runs)), [case.name for case, _ in runs])
    change = max(abs(run.losses[-1] / run.losses[0] - 1) for _, run in runs)
    words = f"change by {change:.1%} at most" if change else "never change"
    claim = (
        f"{len(runs)} losses that {words}, and "
        f"{len({tuple(round(v) for v in row) for row in table})} different patterns of shares"
    )
    details = "; ".join(
        f"{case.name}: "
        + ", ".join(f"{q} {v:.0f}%" for q, v in zip(_QUESTIONS, row, strict=True))
        for (case, _), row in zip(runs, table, strict=True)
    )
    return c.titled(picture, claim, f"Bars. {details}.")
