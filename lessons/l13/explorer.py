"""The explorer of the clinic: a broken run, a treatment, and whether it helped."""

from __future__ import annotations

import math

import ipywidgets

from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.health.broken_runs import Outcome, Treatment
from mplab.health.clinic import CASES
from mplab.pictures.canvas import BAND, STYLES

TREATMENT_NAMES: dict[str, Treatment] = {
    "none": "broken",
    "usual remedy": "wrong",
    "cure": "fixed",
}


class Clinic(Explorer):
    """Which observable shows the fault, and which treatment brings it back into its range?

    Left the logged loss by step, right the observable against its healthy range, and what the
    health report finds. A run that has not been trained yet takes up to two seconds, and the
    picture says so meanwhile.

    Attributes:
        case: the choice of the broken run.
        treatment: the choice of none, the usual remedy, or the cure.

    Examples:
        >>> explorer = Clinic()
        >>> explorer.case.value, explorer.outcome.observed
        ('no-loss-scale', 1.0)
        >>> explorer.treatment.value = "cure"
        >>> explorer.outcome.observed < 0.1
        True
    """

    def __init__(self) -> None:
        self.case = ipywidgets.Dropdown(options=list(CASES), description="case")
        self.treatment = ipywidgets.Dropdown(options=list(TREATMENT_NAMES), description="treatment")
        self._trained: set[tuple[str, str]] = set()
        question = "Which observable shows the fault, and which treatment brings it back?"
        super().__init__(question, [self.case, self.treatment])

    @property
    def outcome(self) -> Outcome:
        """The run under the chosen treatment."""
        return CASES[self.case.value].run(TREATMENT_NAMES[self.treatment.value])

    def redraw(self) -> None:
        """Show the run; before, where it has to be trained first, that it is being trained."""
        run = self.case.value, self.treatment.value
        if run not in self._trained:
            words = f"Training {run[0]}, treatment: {run[1]} …"
            note = f'<text x="{LEFT}" y="{TOP + 6}">{words}</text>'
            self.picture.value = svg([note], width=WIDTH, height=HEIGHT, description=words)
        super().redraw()
        self._trained.add(run)

    def draw(self) -> tuple[str, str]:
        """The curve and the observable, and both in words."""
        case, outcome = CASES[self.case.value], self.outcome
        low, high = case.healthy
        wanted = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        tried = {"none": "as reported", "usual remedy": case.remedy, "cure": case.cure}
        report = ", ".join(outcome.report.codes) or "nothing"
        verdict = "healthy" if case.is_healthy(outcome) else "ill"
        sentence = (
            f"{case.name}: {case.complaint}. Treatment: {tried[self.treatment.value]}. "
            f"Observed, {case.observable}: {outcome.observed:.3g}; healthy is {wanted}, so the run "
            f"is {verdict}. It is easily taken for: {case.looks_like}. Health report: {report}."
        )
        lines = [
            ("treatment", tried[self.treatment.value]),
            ("observable", case.observable),
            ("observed", f"{outcome.observed:.3g} – {verdict}"),
            ("healthy", wanted),
            ("health report", report),
            ("taken for", case.looks_like),
        ]
        parts = [*_curve(outcome.losses), *_lines(lines)]
        return svg(parts, width=WIDTH, height=HEIGHT, description=sentence), sentence


# SVG -------------------------------------------------------------------------------------
WIDTH, HEIGHT = 760, 330

LEFT, RIGHT, TOP, BOTTOM = 70, 290, 30, 280

_WORDS = 330


def _curve(values: tuple[float, ...]) -> list[str]:
    """The curve over the steps; a band where it is not finite."""
    finite = [v for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    room = max(high - low, 0.05 * abs(high)) or 1.0
    middle = (low + high) / 2

    def x(step: float) -> float:
        return LEFT + step / max(1, len(values) - 1) * (RIGHT - LEFT)

    def y(value: float) -> float:
        return (TOP + BOTTOM) / 2 - (value - middle) / room * (BOTTOM - TOP - 20)

    parts = [
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#707075"/>',
        f'<text x="{LEFT}" y="{TOP - 10}">loss</text>',
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 38}" text-anchor="middle">step</text>',
        f'<text x="{LEFT}" y="{BOTTOM + 18}" text-anchor="middle">0</text>',
        f'<text x="{RIGHT}" y="{BOTTOM + 18}" text-anchor="middle">{len(values) - 1:,}</text>',
    ]
    first_bad = next((i for i, v in enumerate(values) if not math.isfinite(v)), None)
    if first_bad is not None:
        start = x(first_bad)
        parts.append(
            f'<rect x="{start:.1f}" y="{TOP}" width="{RIGHT - start:.1f}" '
            f'height="{BOTTOM - TOP}" fill="{BAND}" opacity="0.35"/>'
            f'<text x="{(start + RIGHT) / 2:.1f}" y="{TOP + 20}" text-anchor="middle">NaN</text>'
        )
    if finite:
        way = "".join(
            f"{'L' if i else 'M'}{x(i):.1f} {y(v):.1f}"
            for i, v in enumerate(values[: first_bad if first_bad is not None else None])
        )
        parts.append(
            f'<path d="{way}" fill="none" stroke="{STYLES["FP32"].colour}" stroke-width="2.5"/>'
        )
        ends = sorted({f"{high:.3g}": y(high), f"{low:.3g}": y(low)}.items())
        parts += [
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{words}</text>'
            for words, at in ends
        ]
    return parts


def _lines(lines: list[tuple[str, str]]) -> list[str]:
    """Names and what belongs to them, each broken to the width."""
    parts, y = [], TOP + 6
    for name, words in lines:
        parts.append(f'<text x="{_WORDS}" y="{y}" font-weight="bold">{name}</text>')
        for row in _broken(words, 56):
            y += 18
            parts.append(f'<text x="{_WORDS}" y="{y}">{row}</text>')
        y += 24
    return parts


def _broken(words: str, limit: int) -> list[str]:
    rows = [""]
    for word in words.split():
        if len(rows[-1]) + len(word) + 1 > limit:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return rows
