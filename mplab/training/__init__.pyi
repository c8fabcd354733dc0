from .exponents import (
    ExponentHistogram as ExponentHistogram,
    exponent_histogram as exponent_histogram,
)
from .history import History as History
from .loop import Watcher as Watcher, train as train
from .recipes import RECIPES as RECIPES, Recipe as Recipe
from .runs import gather as gather, load_runs as load_runs
from .tasks import TASKS as TASKS, Split as Split, Task as Task
