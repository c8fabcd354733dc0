"""Widgets that answer one question each."""

from mplab.numbers.installation import needs

needs("mplab.explorers", "torch", "matplotlib", "ipywidgets", "anywidget")

from mplab.explorers.modules import BitExplorer, NumberLine, RoundingLab
from mplab.explorers.range_map import RangeMap
from mplab.explorers.widget import Explorer

__all__ = ["BitExplorer", "Explorer", "NumberLine", "RangeMap", "RoundingLab"]
