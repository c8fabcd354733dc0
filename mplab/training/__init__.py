"""Runs to compare: tasks, recipes, the loop, and the history that comes out."""

from mplab.common.fronts import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
