"""Runs to compare: tasks, recipes, the loop, and the history that comes out."""

from typing import TYPE_CHECKING

from mplab.numbers.fronts import lazily

lazily(__name__)

if TYPE_CHECKING:
    from mplab.training.exponents import (
        ExponentHistogram as ExponentHistogram,
        exponent_histogram as exponent_histogram,
    )
    from mplab.training.history import History as History
    from mplab.training.limits import headroom as headroom
    from mplab.training.loop import Watcher as Watcher, train as train
    from mplab.training.recipes import RECIPES as RECIPES, Recipe as Recipe
    from mplab.training.runs import gather as gather, load_runs as load_runs
    from mplab.training.stages import memory as memory, stage_times as stage_times
    from mplab.training.tasks import TASKS as TASKS, Split as Split, Task as Task
