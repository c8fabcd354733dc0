"""Train a task with several recipes and seeds, and gather the runs in one file.

The file and the checkpoint beside it are written atomically, so that only the steps since the last
checkpoint can be lost.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from mplab.common.files import replace_file
from mplab.numbers.checks import integer
from mplab.training.history import MALFORMED, History
from mplab.training.loop import train
from mplab.training.recipes import Recipe, recipe_of
from mplab.training.tasks import Task, task_of

_VERSION = 1


def load_runs(path: str | Path) -> list[History]:
    """Read the runs that `mplab train` gathered in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file does not hold runs of this version.
    """
    return _parsed(Path(path).read_bytes(), path)


def _save(path: Path, runs: Sequence[History]) -> None:
    """Write runs to a file, atomically."""
    stored = {"mplab runs": _VERSION, "runs": [run.to_json() for run in runs]}
    replace_file(path, json.dumps(stored, allow_nan=True).encode())


def _parsed(content: bytes, path: str | Path) -> list[History]:
    try:
        stored = json.loads(content)
        if not isinstance(stored, dict) or stored.get("mplab runs") != _VERSION:
            raise ValueError(f"no runs of version {_VERSION}")
        return [History.from_json(run) for run in stored["runs"]]
    except MALFORMED as error:
        raise ValueError(
            f"load_runs: {path} must hold runs of version {_VERSION}; got {error}. "
            f"Choose another file; this one is as it was."
        ) from error


def _lock(file: IO[str]) -> None:
    """Lock a file until it is closed or the process ends; OSError if another has locked it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Lock a file, or fail if another process holds it; the lock ends with the process."""
    if out.is_dir():
        raise ValueError(
            f"gather: out must be a file; got the folder {out}. Name a file in it."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    place = out.with_name(out.name + ".lock")
    with place.open("a") as lock:
        try:
            _lock(lock)
            if not os.path.samestat(os.fstat(lock.fileno()), place.stat()):
                raise FileNotFoundError  # removed meanwhile, and made anew by another process
        except (BlockingIOError, PermissionError, FileNotFoundError) as error:
            raise ValueError(
                f"gather: out must not be in use; got {out}, which another process writes. "
                f"Wait for it, or choose another file."
            ) from error
        try:
            yield
        finally:
            if sys.platform == "win32":  # which removes no file that is open
                lock.close()
            with suppress(PermissionError):  # there: another process has opened it
                place.unlink()


def gather(
    task: str | Task,
    recipes: Sequence[str | Recipe],
    out: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    device: str | None = None,
    progress: bool = True,
    save_every: int = 50,
    told: Callable[[History], None] | None = None,
) -> list[History]:
    """Train the runs that are missing from a file, and return all requested runs.

    Complete runs are in the file; the current one is in a checkpoint beside it. The same call
    continues an interrupted one, and ends with the same bits.

    Args:
        task: a name in `TASKS`, or a task; the file identifies it by its name alone.
        recipes: names in `RECIPES`, or recipes; the file stores their settings.
        out: the file of all runs, made with its folder if missing; runs in it stay.
        seeds: each recipe runs once with each seed.
        steps: instead of the task's.
        device: as in `train`.
        progress: show a bar.
        save_every: steps between checkpoints.
        told: called with each new run once it is in the file.

    Returns:
        The runs of these recipes and seeds, recipe by recipe.

    Raises:
        ValueError: unknown names, two recipes of one name, a seed out of range, fewer than one
            step, a file with runs that the new ones cannot join, or one that another process
            writes.
        OSError: the file cannot be read or written.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runs = gather(
        ...         "regression", ["fp32"], f"{folder}/a.json", steps=2, progress=False
        ...     )
        >>> [(run.recipe, run.seed, len(run.loss)) for run in runs]
        [('fp32', 0, 2)]
    """
    learned = task_of(task, "gather")
    chosen = _by_name(recipes)
    out = Path(out)
    steps = integer(
        "gather", "steps", learned.steps if steps is None else steps, least=1
    )
    save_every = integer("gather", "save_every", save_every, least=1)
    numbers = [integer("gather", "seeds", seed, most=2**64 - 1) for seed in seeds]
    wanted = [
        (recipe, seed) for recipe in chosen.values() for seed in dict.fromkeys(numbers)
    ]
    with _alone(out):
        runs = _parsed(out.read_bytes(), out) if out.exists() else []
        for run in runs:
            _require_same(run, out, learned, steps, device, chosen)
        done = {(run.recipe, run.seed): run for run in runs}
        for recipe, seed in wanted:
            if (recipe.name, seed) in done:
                continue
            run = train(
                learned,
                recipe,
                seed=seed,
                steps=steps,
                device=device,
                progress=progress,
                checkpoint=checkpoint_path(out, recipe.name, seed),
                save_every=save_every,
            )
            runs.append(run)
            done[recipe.name, seed] = run
            _save(out, runs)
            if told is not None:
                told(run)
        for recipe, seed in wanted:  # only now are the runs safe without them
            checkpoint_path(out, recipe.name, seed).unlink(missing_ok=True)
        return [done[recipe.name, seed] for recipe, seed in wanted]


def _by_name(recipes: Sequence[str | Recipe]) -> dict[str, Recipe]:
    """The recipes by name; names identify the runs in a file."""
    chosen: dict[str, Recipe] = {}
    for wanted in recipes:
        recipe = recipe_of(wanted, "gather")
        if chosen.setdefault(recipe.name, recipe) != recipe:
            raise ValueError(
                f"gather: recipes must have names of their own; got two with other settings that "
                f"are both called {recipe.name!r}. Rename one: replace(recipe, name=...)."
            )
    return chosen


def checkpoint_path(out: Path, recipe: str, seed: int) -> Path:
    """The path of the checkpoint of an incomplete run.

    Examples:
        >>> checkpoint_path(Path("run.json"), "fp32", 0).name
        'run.json.fp32-0.checkpoint'
    """
    return out.with_name(f"{out.name}.{recipe}-{seed}.checkpoint")


def _require_same(
    run: History,
    out: Path,
    task: Task,
    steps: int,
    device: str | None,
    recipes: dict[str, Recipe],
) -> None:
    """Reject a file with runs of another task, length, settings or device."""
    facts: list[tuple[str, Any, Any]] = [
        ("task", run.task, task.name),
        ("steps", len(run.loss), steps),
    ]
    if run.recipe in recipes:
        ours = recipes[run.recipe].settings()
        facts.append((f"{run.recipe}'s settings", run.settings, ours))
        if device is not None:
            # A CUDA device has a name with capitals, any other its type: "cpu", "mps".
            place = run.device if run.device.islower() else "cuda"
            facts.append((f"{run.recipe}'s device", place, device.partition(":")[0]))
    for name, theirs, ours in facts:
        if theirs != ours:
            raise ValueError(
                f"gather: out must hold runs of the same {name}; got {out} with {theirs!r} "
                f"instead of {ours!r}. Choose another file; this one is as it was."
            )
