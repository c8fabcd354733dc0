"""Runs to compare: tasks, recipes, the loop, and the history that comes out."""

from mplab.numbers.installation import needs

needs("mplab.training", "torch")

from mplab.training._headroom import headroom
from mplab.training.exponents import ExponentHistogram, exponent_histogram
from mplab.training.history import History
from mplab.training.loop import Watcher, train
from mplab.training.recipes import RECIPES, Recipe
from mplab.training.runs import gather, load_runs
from mplab.training.stages import memory, stage_times
from mplab.training.tasks import TASKS, Split, Task

__all__ = [
    "RECIPES",
    "TASKS",
    "ExponentHistogram",
    "History",
    "Recipe",
    "Split",
    "Task",
    "Watcher",
    "exponent_histogram",
    "gather",
    "headroom",
    "load_runs",
    "memory",
    "stage_times",
    "train",
]
