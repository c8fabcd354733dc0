"""`mplab train`: train a task by several recipes and seeds, and compare the runs."""

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from mplab.common.errors import UserError
from mplab.training.history import History
from mplab.training.recipes import RECIPES, Recipe
from mplab.training.runs import gather
from mplab.training.tasks import TASKS


def main(argv: Sequence[str] | None = None) -> int:
    """Train, gather the runs in one file, print a table and plot; return the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.list:
        print(catalogue())
        return 0
    missing = [name for name in ("task", "recipe", "out") if not getattr(options, name)]
    if missing:
        parser.error(f"the following arguments are required: --{', --'.join(missing)}")
    for path in options.plot:  # check it now, not after training
        taken = path.resolve() == options.out.resolve()  # it would replace the runs
        if taken or path.suffix not in (".png", ".svg") or not path.parent.is_dir():
            parser.error(
                f"--plot must be a .png or .svg in a folder that is, not --out; got {path}"
            )
    if options.device:
        _require_device(options.device)
    try:
        runs = gather(
            options.task,
            options.recipe,
            options.out,
            seeds=options.seeds,
            steps=options.steps,
            device=options.device,
            progress=not options.quiet,
            save_every=options.save_every,
            told=partial(print, flush=True),
        )
        _show(runs, options)
    except (TypeError, ValueError) as error:
        # Our own messages read "function: argument must …"; others come out of a task's code.
        if not re.match(r"[\w.]+: .+ must ", str(error)):
            raise
        print(f"mplab train: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "mplab train: interrupted. The same command goes on from here.",
            file=sys.stderr,
        )
        return 130
    return 0


def _require_device(name: str) -> None:
    """Check before training that torch can use a device."""
    try:
        torch.zeros(1, dtype=torch.float32, device=name).item()
    # AssertionError: torch without CUDA.
    except (RuntimeError, AssertionError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"--device {name} cannot be used here: {first}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mplab train",
        description="Train a task by each recipe and seed, and compare. A run that was cut off "
        "goes on where it was; runs that OUT holds already are not repeated.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--list", action="store_true", help="list the tasks and the recipes")
    add("--task", help="what to learn, by name")
    add("--recipe", nargs="+", action="extend", help="one or more, by name")
    add("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="default: 0")
    add("--steps", type=int, help="default: the task's")
    add("--device", help='such as "cpu" or "cuda"; default: the recipe\'s')
    add("--out", type=Path, help="the file of all runs, .json")
    add(
        "--plot",
        type=Path,
        action="append",
        default=[],
        help="a figure, .png or .svg",
    )
    add(
        "--save-every",
        type=int,
        default=50,
        metavar="STEPS",
        help="between checkpoints",
    )
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def _show(runs: list[History], options: argparse.Namespace) -> None:
    """Print the table, and draw what was asked for."""
    from mplab.course.pictures.training import loss_curves, results_table

    print(results_table(runs))
    for path in options.plot:
        loss_curves(runs).save(path)
        print(f"Written: {path}")


def catalogue() -> str:
    """List the tasks and the recipes, with the settings that differ from the usual."""
    usual = {
        **Recipe("", RECIPES["fp32"].compute_format).settings(),
        "compute_format": None,
    }
    lines = ["tasks, and what FP16 without a loss scale does to them"]
    lines += [
        f"  {task.name:22}{task.verdict:12}{task.steps} steps"
        for task in TASKS.values()
    ]
    lines += ["recipes"]
    for recipe in RECIPES.values():
        special = {k: v for k, v in recipe.settings().items() if v != usual[k]}
        lines.append(
            f"  {recipe.name:22}" + ", ".join(f"{k}={v}" for k, v in special.items())
        )
    return "\n".join(lines)
