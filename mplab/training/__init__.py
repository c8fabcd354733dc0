"""Training runs to compare: a task, a recipe, and the history that comes out.

A task is data, a network, a loss and an optimizer (`mplab.training.tasks`). A recipe says in which
formats it is trained (`mplab.training.recipes`), and `train` does it. Beside them stand what a run
can be asked: which loss scales it would bear, what a step keeps in memory, where its time goes.
"""

from mplab.history import ExponentHistogram, History, exponent_histogram
from mplab.training.loop import Watcher, train
from mplab.training.recipes import RECIPES, Recipe
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
    "train",
]
