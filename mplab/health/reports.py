"""The health report of a run: tables and sentences."""

import math
import re
import textwrap
from dataclasses import dataclass
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

_SHOWN = 10
"""The layers that a report lists; `Report.layers` lists all."""

_WIDTH = 21
"""The longest name that leaves a row within 80 characters."""

_LAYERS = "layer | format | output | room | in time | gradient | room | zero"

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
            ("weight norm", f"{first.weight_norm:.4g} to {last.weight_norm:.4g}"),
        ]
        if last.norm_at_optimizer is not None:
            pairs.insert(4, ("… at the optimizer", _number(last.norm_at_optimizer)))
        seen = [s for s in self.steps if s.updated]
        if seen:
            share = seen[-1].unmoved / seen[-1].updated
            pairs.append(("updates that changed no bit", f"{share:.1%}"))
        return pairs

    def _operand_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        sums = added(pair for step in self.steps for pair in step.fp8.items())
        for name, cast in sums.items():
            casts = [step.fp8[name] for step in self.steps if name in step.fp8]
            half = sum(2 * c.flushed > c.nonzero for c in casts)
            if not half and (cast.snr is None or cast.snr >= 20):
                continue
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

    def layers(self) -> Table:
        """List all layers, with the least room in powers of two first.

        Of outputs and of the gradients there: the largest finite magnitude, and the room from it to
        the largest finite number, so that the room before an overflow is told; how the outputs'
        room went in time, in whole powers of two, at most 9, where ! is an overflow; the share of
        gradients that are zero in the format. The format is in brackets where the run is in FP32,
        and is judged by it.
        """
        joined = pooled_gradients(self.steps)
        rows = []
        for name, (outputs, gradients) in magnitudes_by_layer(self.steps).items():
            room = least_headroom(outputs), least_headroom(gradients)
            one = joined.get(name)
            row = (
                name,
                f"({outputs[0].fmt})" if outputs[0].what_if else outputs[0].fmt,
                f"{_largest(outputs):.3g}",
                _powers(room[0]),
                _course([sizes.headroom for sizes in outputs]),
                f"{_largest(gradients):.3g}" if gradients else "–",
                _powers(room[1]),
                _share(one.zeros, one.total) if one else "–",
            )
            rows.append((min(room), row))
        rows.sort(key=lambda each: each[0])
        return Table("", tuple(_LAYERS.split(" | ")), tuple(row for _, row in rows))

    def _tables(self) -> list[Table]:
        """The layers with the least room, the summary, and the casts in eight bits, if any."""
        layers = self.layers()
        count = len(layers.rows)
        tables = [Table("Health of the run", (), tuple(self._summary()))]
        if count:
            shown = f"{min(count, _SHOWN)} of {count} layers; ! is an overflow"
            caption = f"Least room, in powers of two ({shown})"
            few = [(_short(name), *cells) for name, *cells in layers.rows[:_SHOWN]]
            tables.insert(0, Table(caption, layers.header, tuple(few)))
        rows = self._operand_rows()
        if rows:
            tables.append(Table("", tuple(_OPERANDS.split(" | ")), tuple(rows)))
        return tables

    def __repr__(self) -> str:
        lines = []
        for f in self.findings:
            told = (
                f"{f.level.upper()} {f.code}: {f.observed}",
                f"  {f.means}",
                f"  {f.check}",
            )
            for part in told:
                lines += textwrap.wrap(part, 80, subsequent_indent="  ")
        lines = lines or ["No problems found."]
        return "\n".join([*lines, *map(repr, self._tables())])

    def _repr_html_(self) -> str:
        tables = "".join(table._repr_html_() for table in self._tables())
        items = "".join(
            f"<li><b>{f.level}: {escape(f.code)}.</b> {escape(f.observed)} {escape(f.means)} "
            f"<i>{escape(f.check)}</i></li>"
            for f in self.findings
        )
        verdict = f"<ul>{items}</ul>" if items else "<p>No problems found.</p>"
        return f"{verdict}{tables}"


def _short(name: str) -> str:
    """The end of a name that is too long for a line of 80 characters, without its class."""
    if len(name) > _WIDTH:
        name = re.sub(r" \([^)]*\)", "", name)
    if len(name) > _WIDTH:
        end = name[1 - _WIDTH :]
        name = f"…{end.partition('.')[2] or end}"
    return name


def _largest(seen: list[Magnitudes]) -> float:
    finite = [sizes.largest for sizes in seen if math.isfinite(sizes.largest)]
    return max(finite, default=math.inf)


def _course(room: list[float]) -> str:
    """How the room went, a digit for each of at most eight parts of the run."""
    part = -(-len(room) // 8)
    least = (min(room[i : i + part]) for i in range(0, len(room), part))
    return "".join("!" if x < 0 else str(int(min(x, 9))) for x in least)


def _powers(x: float) -> str:
    if math.isfinite(x):
        return f"{x:.1f}"
    return "none" if x < 0 else "–"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:.4g}"
