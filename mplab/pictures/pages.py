"""Pages and tables of training runs, and the figure of a class's grades."""

import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from mplab.common.tables import Table
from mplab.pictures import canvas as c
from mplab.pictures.canvas import Picture, listed
from mplab.pictures.training import (
    alike,
    final_loss,
    loss_curves,
    loss_scale,
    run_name,
    run_place,
    scale_words,
)
from mplab.training.history import History

_STYLE = """
body { font: 16px/1.5 "DejaVu Sans", Verdana, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
figure { margin: 1rem 0; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
caption { padding-bottom: .4rem; }
th, td { border-bottom: 1px solid #c8c8cc; padding: .3rem .8rem .3rem 0; vertical-align: top; }
"""


METRICS = {"r2": "test R²", "accuracy": "test accuracy"}


def results_table(histories: Sequence[History]) -> Table:
    """Tabulate how runs ended: loss, metrics, skipped steps, and the last step's loss scale.

    Runs that differ only by their seeds share a row: the median, and in brackets the range.
    """
    keys = list(dict.fromkeys(key for run in histories for key in run.metrics))
    names = tuple(METRICS.get(key, key) for key in keys)
    header = (
        "run",
        "where",
        "training loss",
        *names,
        "skipped steps",
        "last loss scale",
    )
    rows = tuple(
        (
            name,
            place,
            _middle([final_loss(run) for run in runs], ".4f"),
            *(
                _middle([run.metrics[k] for run in runs if k in run.metrics], ".3f")
                for k in keys
            ),
            _middle([int(run.skipped.sum()) for run in runs], ".0f")
            + f" of {len(runs[0].skipped)}",
            _last_scales(runs),
        )
        for (name, place), runs in alike(histories).items()
    )
    seeds = sorted({run.seed for run in histories})
    which = f"seed{'s' if len(seeds) > 1 else ''} {listed(map(str, seeds))}"
    return Table(f"{histories[0].task}, {which}", header, rows)


def _middle(values: Sequence[float], digits: str) -> str:
    """Write the median, and the range if there is one."""
    if not values:
        return "–"
    middle = format(np.median(values), digits)
    low = format(np.min(values), digits)
    high = format(np.max(values), digits)
    return middle if low == high else f"{middle} ({low} to {high})"


def _last_scales(runs: Sequence[History]) -> str:
    if not any(np.any(run.loss_scale != 1) for run in runs):
        return "none"
    words = [*map(scale_words, sorted({float(run.loss_scale[-1]) for run in runs}))]
    return words[0] if len(words) == 1 else f"{words[0]} to {words[-1]}"


def report(histories: Sequence[History], *, source: Path | None = None) -> str:
    """Write a report of runs as one HTML page: settings, results, and where they came from.

    Args:
        histories: runs of one task, of any recipes and seeds.
        source: the file that holds the runs; its SHA-256 goes into the page.

    Returns:
        HTML with the figures inside and a description of each. Equal runs give equal pages.
    """
    curves = loss_curves(histories)
    scaled = [run for run in histories if np.any(run.loss_scale != run.loss_scale[0])]
    firsts = {(run_name(run), run_place(run)): run for run in reversed(scaled)}
    pictures = [curves] + ([loss_scale([*reversed(firsts.values())])] if firsts else [])
    title = f"{histories[0].task}: {curves.claim}"
    parts: list[str | Picture | Table] = [
        f"<h1>Training runs of {escape(histories[0].task)}</h1>",
        *pictures,
        "<h2>Results</h2>",
        results_table(histories),
        "<h2>Recipes</h2>",
        _settings(histories),
        "<h2>Where this comes from</h2>",
        _provenance(histories, None if source is None else Path(source)),
    ]
    return page(title, parts)


def page(title: str, parts: Sequence[str | Picture | Table]) -> str:
    """Make an HTML page that needs no other file.

    Args:
        title: its title, as text.
        parts: its body: HTML, figures and tables.
    """
    body = "\n".join(map(_markup, parts))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _markup(part: str | Picture | Table) -> str:
    if isinstance(part, Picture):
        return f"<figure>{part._repr_mimebundle_()['text/html']}</figure>"
    return (
        f'<div class="wide">{part._repr_html_()}</div>'
        if isinstance(part, Table)
        else part
    )


def _settings(histories: Sequence[History]) -> Table:
    """Tabulate the settings in which the recipes differ."""
    recipes = {run.recipe: run.settings for run in histories}
    names = dict.fromkeys(name for settings in recipes.values() for name in settings)
    header = ["recipe"]
    columns = [list(recipes)]
    for name in names:
        words = [_word(settings.get(name)) for settings in recipes.values()]
        if len(set(words)) > 1 or len(recipes) == 1:
            header.append(name.replace("_", " "))
            columns.append(words)
    rows = tuple(zip(*columns, strict=True))
    return Table("Settings that differ between the recipes", tuple(header), rows)


def _word(value: object) -> str:
    """Write a setting for a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def _provenance(histories: Sequence[History], source: Path | None) -> Table:
    """Tabulate versions, machines, seeds and the file, each with all the values that occur."""
    facts: dict[str, list[str]] = {}
    for run in histories:
        for name, value in {
            "task": run.task,
            "steps": str(len(run.loss)),
            "seeds": str(run.seed),
            "device": run.device,
            **run.environment,
        }.items():
            if value not in facts.setdefault(name, []):
                facts[name].append(value)
    rows = [(name, ", ".join(values)) for name, values in facts.items()]
    if source is not None:
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        rows.append((f"SHA-256 of {source.name}", digest))
    return Table("Provenance", ("what", "value"), tuple(rows))


_COLOURS = ("#371279", "#8E7CC3", "#D9C7E8", "#FFFFFF")
"""The colours of at most four kinds, from the best (dark) to the worst (white)."""


_FEW = 0.04
"""Parts of a bar up to this share have no room for a number."""


@c.in_house_style
def class_parts(parts: Mapping[str, Mapping[str, int]]) -> c.Picture:
    """Draw a bar for each part of an assignment: its submissions by kind of result.

    Args:
        parts: by name, how many submissions are of each kind; at most four kinds, the same in all
            parts, the best first.

    Returns:
        A figure whose title names the part that the fewest submissions have right.
    """
    kinds = list(next(iter(parts.values())))
    picture = c.Picture(height=1.3 + 0.3 * len(parts), width=7.6)
    axes = picture.subplots()
    most = max(1, *(sum(found.values()) for found in parts.values()))
    table = np.array([list(found.values()) for found in parts.values()])
    plain = ("",) * len(kinds)
    c.bars(axes, parts, table, kinds, faces=_COLOURS, hatches=plain, edge=c.FAINT)
    drawn: Any = axes.containers  # all of them are bars
    for bars in drawn:
        words = [f"{n:.0f}" if n > _FEW * most else "" for n in bars.datavalues]
        ink = "white" if bars.get_label() == kinds[0] else c.INK
        axes.bar_label(bars, words, label_type="center", color=ink, fontsize=9)
    axes.set_xlim(0, most)
    axes.set_xticks(c.whole_ticks(0, most, count=8))
    axes.set_xlabel("graded submissions")
    key = axes.get_legend_handles_labels()  # empty where nobody handed anything in
    picture.legend(*key, loc="outside lower right", ncols=len(kinds), frameon=False)
    name, least = min(parts.items(), key=lambda part: part[1][kinds[0]])
    claim = f"“{name}” is {kinds[0]} in {least[kinds[0]]} of {sum(least.values())} submissions"
    claim += ", the fewest of all parts" if len(parts) > 1 else ""
    details = "; ".join(
        f"{name}: {c.listed(f'{number} {kind}' for kind, number in found.items())}"
        for name, found in parts.items()
    )
    return c.titled(picture, claim, f"Stacked bars by part. {details}.")
