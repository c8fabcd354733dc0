"""`mplab train`: recipes and seeds of one task, gathered in one file and compared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mplab.commands.main import named
from mplab.course.files import replace_file
from mplab.training.history import History
from mplab.training.parallel import process_group, rank
from mplab.training.recipes import RECIPES, Recipe
from mplab.training.runs import gather
from mplab.training.tasks import TASKS, Task


def main(argv: Sequence[str] | None = None) -> int:
    """The command `mplab train`: train, gather, tabulate and plot; the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.list:
        print(catalogue())
        return 0
    missing = [name for name in ("task", "recipe", "out") if not getattr(options, name)]
    if missing:
        parser.error(f"the following arguments are required: --{', --'.join(missing)}")
    for path in options.plot:  # now, not when everything has been trained
        if path.suffix not in (".png", ".svg", ".html") or not path.parent.is_dir():
            parser.error(f"--plot must be a .png, .svg or .html in a folder that is; got {path}")
    task: str | Task = options.task
    if ":" in options.task:  # files and checkpoints know it by where it is from
        task = replace(named("--task", options.task, Task), name=options.task)
    try:
        with process_group():
            runs = gather(
                task,
                options.recipe,
                options.out,
                seeds=options.seeds,
                steps=options.steps,
                device=options.device,
                progress=not options.quiet,
                save_every=options.save_every,
                told=partial(print, flush=True),
            )
            if rank() == 0:
                _show(runs, options)
    except ValueError as error:
        print(f"mplab train: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mplab train: interrupted. The same command goes on from here.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mplab train",
        description="Train a task by each recipe and seed, and compare. A run that was cut off "
        "goes on where it was; runs that OUT holds already are not repeated. Under torchrun, "
        "torch's own recipes train data-parallel.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--list", action="store_true", help="list the tasks and the recipes")
    add("--task", help="what to learn: a name, or package.module:TASK for a Task of your own")
    add("--recipe", nargs="+", action="extend", help="one or more, by name")
    add("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="default: 0")
    add("--steps", type=int, help="default: the task's")
    add("--device", help='such as "cpu" or "cuda"; default: the recipe\'s')
    add("--out", type=Path, help="the file of all runs, .json")
    add("--plot", type=Path, action="append", default=[], help="a figure, .png, or page, .html")
    add("--save-every", type=int, default=50, metavar="STEPS", help="between checkpoints")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def _show(runs: list[History], options: argparse.Namespace) -> None:
    """Print the table, and draw what was asked for."""
    from mplab.pictures.pages import report, results_table
    from mplab.pictures.training import loss_curves

    print(results_table(runs))
    for path in options.plot:
        if path.suffix == ".html":
            replace_file(path, report(runs, source=options.out).encode())
        else:
            loss_curves(runs).save(path)
        print(f"Written: {path}")


def catalogue() -> str:
    """The tasks and the recipes, with what decides them."""
    usual = {**Recipe("", RECIPES["fp32"].compute_format).settings(), "compute_format": None}
    lines = ["tasks, and what FP16 without a loss scale does to them"]
    lines += [f"  {task.name:22}{task.verdict:12}{task.steps} steps" for task in TASKS.values()]
    lines += ["recipes"]
    for recipe in RECIPES.values():
        special = {k: v for k, v in recipe.settings().items() if v != usual[k]}
        lines.append(f"  {recipe.name:22}" + ", ".join(f"{k}={v}" for k, v in special.items()))
    return "\n".join(lines)
