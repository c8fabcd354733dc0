"""The health report of a run: tables and sentences."""

import math
from dataclasses import dataclass, replace
from html import escape

from mplab.common.tables import Table
from mplab.health.findings import Finding
from mplab.health.records import (
    Evidence,
    Magnitudes,
    Step,
    added,
    least_headroom,
    magnitudes_by_layer,
    pooled_gradients,
)

_LAYERS = "gradients at the output of | format | zero"

_ROOM = (
    "powers of two left | format | above outputs | first to last | below | above gradients | "
    "first to last | below"
)

_OPERANDS = (
    "operand in FP8 or less | format | scale | made zero | more than half of it in | "
    "saturated | SNR"
)


@dataclass(frozen=True, repr=False)
class Report:
    """What was observed in a run, what it means, and what to check.

    Attributes:
        findings: the gravest first; empty for a healthy run.
        steps: the record of each step.
        evidence: the other observations.
    """

    findings: list[Finding]
    steps: list[Step]
    evidence: Evidence

    @property
    def codes(self) -> list[str]:
        """The codes of all findings except notes."""
        return [f.code for f in self.findings if f.level != "note"]

    def _summary(self) -> list[tuple[str, str]]:
        if not self.steps:
            return [("steps", "0")]
        first = self.steps[0]
        last = self.steps[-1]
        pairs = [
            (
                "steps",
                f"{len(self.steps)}, {sum(s.skipped for s in self.steps)} skipped",
            ),
            ("loss", f"{first.loss:.4g} to {last.loss:.4g}"),
            ("loss scale", f"{first.scale:g} to {last.scale:g}"),
            (
                "gradient norm",
                f"{_number(first.gradient_norm)} to {_number(last.gradient_norm)}",
            ),
            ("… at the optimizer", _number(last.norm_at_optimizer)),
            ("weight norm", f"{first.weight_norm:.4g} to {last.weight_norm:.4g}"),
        ]
        seen = [s for s in self.steps if s.updated]
        if seen:
            one = seen[-1]
            pairs += [
                ("median update", f"{_number(one.update_ulps)} ulp of its weight"),
                ("updates that changed no bit", f"{one.unmoved / one.updated:.1%}"),
            ]
        return pairs

    def _operand_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        sums = added(pair for step in self.steps for pair in step.fp8.items())
        for name, cast in sums.items():
            casts = [step.fp8[name] for step in self.steps if name in step.fp8]
            half = sum(2 * c.flushed > c.nonzero for c in casts)
            row = (
                name,
                cast.fmt,
                f"{casts[0].scale:g} to {casts[-1].scale:g}",
                _share(cast.flushed, cast.nonzero),
                f"{half} steps",
                _share(cast.saturated, cast.nonzero),
                "–" if cast.snr is None else f"{cast.snr:.1f} dB",
            )
            rows.append(row)
        return rows

    def _tables(self) -> list[Table]:
        """The summary, and each of the other tables that has rows."""
        room = [
            (name, _format(outputs[0]), *_room(outputs), *_room(gradients))
            for name, (outputs, gradients) in magnitudes_by_layer(self.steps).items()
        ]
        layers = [
            (name, _format(s), _share(s.zeros, s.total))
            for name, s in pooled_gradients(self.steps).items()
        ]
        tables = [Table("Health of the run", (), tuple(self._summary()))]
        for head, rows in (
            (_ROOM, room),
            (_LAYERS, layers),
            (_OPERANDS, self._operand_rows()),
        ):
            if rows:
                tables.append(Table("", tuple(head.split(" | ")), tuple(rows)))
        return tables

    def __repr__(self) -> str:
        summary, *tables = self._tables()
        lines = [repr(replace(summary, caption="")), *map(repr, tables)]
        for f in self.findings:
            lines += [
                f"{f.level.upper()} {f.code}: {f.observed}",
                f"  {f.means}",
                f"  {f.check}",
            ]
        if not self.findings:
            lines.append("No problems found.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        tables = "".join(table._repr_html_() for table in self._tables())
        items = "".join(
            f"<li><b>{f.level}: {escape(f.code)}.</b> {escape(f.observed)} {escape(f.means)} "
            f"<i>{escape(f.check)}</i></li>"
            for f in self.findings
        )
        verdict = f"<ul>{items}</ul>" if items else "<p>No problems found.</p>"
        return f"{verdict}{tables}"


def _format(seen: Magnitudes) -> str:
    return f"{seen.fmt} (would)" if seen.what_if else seen.fmt


def _room(seen: list[Magnitudes]) -> tuple[str, str, str]:
    """The room above and below in all steps, and how that above went."""
    if not seen:
        return "–", "–", "–"
    first = _powers(seen[0].headroom)
    last = _powers(seen[-1].headroom)
    return (
        _powers(least_headroom(seen)),
        first if first == last else f"{first} to {last}",
        _powers(min(sizes.footroom for sizes in seen)),
    )


def _powers(x: float) -> str:
    if math.isfinite(x):
        return f"{x:.1f}"
    return "overflow" if x < 0 else "–"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:.4g}"
