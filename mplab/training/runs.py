"""The command `mplab train`: recipes and seeds of one task, gathered in one file.

A run that is complete is in the file; the one at work is in a checkpoint beside it. Both
are replaced whole, so that nothing but the steps since the last checkpoint can be lost.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mplab.history import History, replace_file
from mplab.training.parallel import from_first, process_group, rank

_VERSION = 1


def load_runs(path: str | Path) -> list[History]:
    """Read the runs that `mplab train` gathered in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it does not hold runs of this version.
    """
    return _parsed(Path(path).read_bytes(), path)


def save_runs(path: str | Path, runs: Sequence[History]) -> None:
    """Write runs to a file, whole or not at all."""
    stored = {"mplab runs": _VERSION, "runs": [run.to_json() for run in runs]}
    replace_file(path, json.dumps(stored, allow_nan=True).encode())


def _parsed(content: bytes, path: str | Path) -> list[History]:
    try:
        stored = json.loads(content)
        if not isinstance(stored, dict) or stored.get("mplab runs") != _VERSION:
            raise ValueError(f"no runs of version {_VERSION}")
        return [History.from_json(run) for run in stored["runs"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"load_runs: {path} must hold runs of version {_VERSION}; got {error}. "
            f"Choose another file; this one is as it was."
        ) from error


# The command -----------------------------------------------------------------------------


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
    try:
        with process_group(), _alone(options.out):
            runs = gather(options)
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
    add("--task", help="what to learn")
    add("--recipe", nargs="+", action="extend", help="one or more, by name")
    add("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="default: 0")
    add("--steps", type=int, help="default: the task's")
    add("--device", help='such as "cpu" or "cuda"; default: the recipe\'s')
    add("--out", type=Path, help="the file of all runs, .json")
    add("--plot", type=Path, action="append", default=[], help="a figure, .png, or page, .html")
    add("--save-every", type=int, default=50, metavar="STEPS", help="between checkpoints")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Refuse to work on a file that another process works on; a lock dies with its process."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    if rank() > 0:
        yield
        return
    place = out.with_name(out.name + ".lock")
    with place.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"train: out must not be in use; got {out}, which another process writes. "
                f"Wait for it, or choose another file."
            ) from error
        try:
            yield
        finally:
            place.unlink()


def gather(options: argparse.Namespace) -> list[History]:
    """Train what is missing in the file, and return all runs that were asked for.

    Raises:
        ValueError: unknown names, or a file with runs that the new ones cannot join.
    """
    from mplab.training.loop import known, train
    from mplab.training.recipes import RECIPES
    from mplab.training.tasks import TASKS

    task = known("task", options.task, TASKS)
    recipes = [known("recipe", name, RECIPES) for name in dict.fromkeys(options.recipe)]
    steps = task.steps if options.steps is None else options.steps
    if steps < 1:
        raise ValueError(f"train: steps must be at least 1; got {steps}. Leave it out.")
    content = None
    if rank() == 0 and options.out.exists():
        content = options.out.read_bytes()
    content = from_first(content)
    runs = [] if content is None else _parsed(content, options.out)
    for run in runs:
        _require_same(run, options, steps, {recipe.name: recipe for recipe in recipes})
    done = {(run.recipe, run.seed): run for run in runs}
    wanted = [(recipe, seed) for recipe in recipes for seed in dict.fromkeys(options.seeds)]
    for recipe, seed in wanted:
        if (recipe.name, seed) in done:
            continue
        run = train(
            task,
            recipe,
            seed=seed,
            steps=steps,
            device=options.device,
            progress=not options.quiet,
            checkpoint=checkpoint_path(options.out, recipe.name, seed),
            save_every=options.save_every,
        )
        runs.append(run)
        done[recipe.name, seed] = run
        if rank() == 0:
            save_runs(options.out, runs)
            print(run, flush=True)
    if rank() == 0:
        for recipe, seed in wanted:  # only now are the runs safe without them
            checkpoint_path(options.out, recipe.name, seed).unlink(missing_ok=True)
    return [done[recipe.name, seed] for recipe, seed in wanted]


def checkpoint_path(out: Path, recipe: str, seed: int) -> Path:
    """Where a run that is not complete is kept.

    Examples:
        >>> checkpoint_path(Path("run.json"), "fp32", 0).name
        'run.json.fp32-0.checkpoint'
    """
    return out.with_name(f"{out.name}.{recipe}-{seed}.checkpoint")


def _require_same(
    run: History, options: argparse.Namespace, steps: int, recipes: dict[str, Any]
) -> None:
    """Refuse to put runs side by side that cannot be compared, or to take one for another."""
    facts = [("task", run.task, options.task), ("steps", len(run.loss), steps)]
    if run.recipe in recipes:
        facts.append((f"{run.recipe}'s settings", run.settings, recipes[run.recipe].settings()))
        if options.device is not None:
            place = "cpu" if run.device == "cpu" else "cuda"
            facts.append((f"{run.recipe}'s device", place, options.device.partition(":")[0]))
    for name, theirs, ours in facts:
        if theirs != ours:
            raise ValueError(
                f"train: out must hold runs of the same {name}; got {options.out} with {theirs!r} "
                f"instead of {ours!r}. Choose another file; this one is as it was."
            )


def _show(runs: list[History], options: argparse.Namespace) -> None:
    """Print the table, and draw what was asked for."""
    from mplab.pictures import loss_curves, report, results_table

    print(results_table(runs))
    for path in options.plot:
        if path.suffix == ".html":
            replace_file(path, report(runs, source=options.out).encode())
        else:
            loss_curves(runs).save(path)
        print(f"Written: {path}")


def catalogue() -> str:
    """The tasks and the recipes, with what decides them."""
    from mplab.training.recipes import RECIPES, Recipe
    from mplab.training.tasks import TASKS

    usual = {**Recipe("", RECIPES["fp32"].compute_format).settings(), "compute_format": None}
    lines = ["tasks, and what FP16 without a loss scale does to them"]
    lines += [f"  {task.name:22}{task.verdict:12}{task.steps} steps" for task in TASKS.values()]
    lines += ["recipes"]
    for recipe in RECIPES.values():
        special = {k: v for k, v in recipe.settings().items() if v != usual[k]}
        lines.append(f"  {recipe.name:22}" + ", ".join(f"{k}={v}" for k, v in special.items()))
    return "\n".join(lines)
