"""The explorer of the clinic: a broken run, a treatment, and whether it helped."""

import math
from textwrap import wrap

from mplab.course.explorers.chart import BOLD, Chart, Drawing, Scale
from mplab.course.explorers.widget import Explorer, choice
from mplab.course.pictures.canvas import NEUTRAL
from mplab.lessons.l13.clinic import CASES, Outcome, Treatment

TREATMENT_NAMES: dict[str, Treatment] = {
    "none": "broken",
    "usual remedy": "wrong",
    "cure": "fixed",
}


class Clinic(Explorer):
    """Which observable shows the fault, and which treatment brings it back into its range?

    Left, the logged loss by step; right, the observable against its healthy range, and what the
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
        self.case = choice("case", CASES)
        self.treatment = choice("treatment", TREATMENT_NAMES)
        self._trained: set[tuple[str, str]] = set()
        question = (
            "Which observable shows the fault, and which treatment brings it back?"
        )
        super().__init__(question, [self.case, self.treatment])

    @property
    def outcome(self) -> Outcome:
        """The run under the chosen treatment."""
        return CASES[self.case.value].run(TREATMENT_NAMES[self.treatment.value])

    def redraw(self) -> None:
        """Show the run; while it is being trained, say so."""
        run = self.case.value, self.treatment.value
        if run not in self._trained:
            words = f"Training {run[0]}, treatment: {run[1]} …"
            note = Drawing()
            note.text(70, 36, words)
            self.picture.value = note.svg(words, width=760, height=330)
        super().redraw()
        self._trained.add(run)

    def draw(self) -> tuple[str, str]:
        """Draw the curve and the observable, and say both in words."""
        case = CASES[self.case.value]
        outcome = self.outcome
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
        chart = _curve(outcome.losses)
        y = 36
        for name, words in lines:
            chart.text(330, y, name, more=BOLD)
            for row in wrap(words, 56):
                y += 18
                chart.text(330, y, row)
            y += 24
        return chart.svg(sentence, width=760, height=330), sentence


def _curve(losses: tuple[float, ...]) -> Chart:
    """The losses over the steps; a band where they are not finite."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    middle = (low + high) / 2
    room = max(high - low, 0.05 * abs(high)) or 1.0
    last = max(1, len(losses) - 1)
    chart = Chart(
        Scale(0, last, 70, 290),
        Scale(middle - room / 2, middle + room / 2, 280, 30, inset=10),
    )
    chart.frame()
    chart.text(70, 20, "loss")
    chart.below("step", 38)
    chart.ticks_x([0, last], "{:,}".format, down=18)
    bad = next(
        (i for i, loss in enumerate(losses) if not math.isfinite(loss)), len(losses)
    )
    if bad < len(losses):
        chart.zone(bad, last, 0.35)
        chart.text((chart.x(bad) + 290) / 2, 50, "NaN", "middle")
    if finite:
        chart.curve(range(bad), losses[:bad], NEUTRAL[2].colour, 2.5)
        ends = {f"{end:.3g}": end for end in (high, low)}
        for words, end in ends.items():
            chart.text(64, chart.y(end) + 4, words, "end")
    return chart
