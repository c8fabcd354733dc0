"""`mplab train`: train a task by several recipes and seeds, and compare the runs."""

import argparse
import ast
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import torch

from mplab.commands.errors import UserError
from mplab.training.history import History
from mplab.training.recipes import RECIPES, Recipe
from mplab.training.runs import gather
from mplab.training.tasks import TASKS, Task


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
        if path.suffix not in (".png", ".svg") or not path.parent.is_dir():
            parser.error(
                f"--plot must be a .png or .svg in a folder that is; got {path}"
            )
    if options.device:
        _require_device(options.device)
    task: str | Task = options.task
    if ":" in options.task:  # files and checkpoints name it by its place and its code
        own = named_task(options.task)
        task = replace(own, name=options.task + _version(options.task, own))
    try:
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
        _show(runs, options)
    except (TypeError, ValueError) as error:
        # Raised in the task, not by us.
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
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # AssertionError: torch without CUDA
        first = str(error).partition("\n")[0]
        raise UserError(f"--device {name} cannot be used here: {first}") from error


def named_task(place: str) -> Task:
    """Import the task `package.module:NAME`, from an installed module or from this folder.

    Raises:
        UserError: there is no such module or task.
    """
    module, _, name = place.partition(":")
    rule = f"--task must be package.module:NAME, where NAME is a Task; got {place!r}"
    here = os.getcwd()
    if here not in sys.path:
        # As `python -m` does, and an installed command does not.
        sys.path.insert(0, here)
    try:
        found = vars(import_module(module))
    except (ModuleNotFoundError, ValueError) as error:
        missing = getattr(error, "name", module)
        if not f"{module}.".startswith(f"{missing}."):
            raise
        words = f"there is no module {missing!r} in {here}, and none is installed"
        raise UserError(f"{rule}: {words}. Go to its folder, or install it.") from None
    if not isinstance(found.get(name), Task):
        others = [name for name, thing in found.items() if isinstance(thing, Task)]
        raise UserError(
            f"{rule}. The tasks in {module} are: {', '.join(others) or 'none'}."
        )
    task: Task = found[name]
    return task


def _version(place: str, task: Task) -> str:
    """Return `@` and a digest that changes with the code of a task, but not with its comments.

    It covers the file that `place` names, and files in its folder that hold functions of the task;
    it does not cover code elsewhere that these call. Empty if there is no such file.
    """
    functions = (task.data, task.model, task.loss, task.metrics, task.optimizer)
    modules = [place.partition(":")[0], *(str(f.__module__) for f in functions)]
    files = [
        Path(getattr(sys.modules.get(name), "__file__", None) or "") for name in modules
    ]
    beside = {
        f
        for f in files
        if f.parent == files[0].parent and f.suffix == ".py" and f.is_file()
    }
    code = [ast.unparse(ast.parse(file.read_bytes())) for file in sorted(beside)]
    return "@" + sha256("\0".join(code).encode()).hexdigest()[:8] if code else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mplab train",
        description="Train a task by each recipe and seed, and compare. A run that was cut off "
        "goes on where it was; runs that OUT holds already are not repeated.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--list", action="store_true", help="list the tasks and the recipes")
    add(
        "--task",
        help="what to learn: a name, or package.module:TASK for a Task "
        "of your own, which OUT knows by that place and a digest of its code",
    )
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
    from mplab.pictures.training import loss_curves, results_table

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
