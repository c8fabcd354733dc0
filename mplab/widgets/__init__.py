"""Explorers: each answers one question, by slider or keyboard, in a picture and in words."""

from mplab.widgets.bit_explorer import BitExplorer
from mplab.widgets.explorer import Explorer
from mplab.widgets.number_line import NumberLine
from mplab.widgets.range_map import RangeMap
from mplab.widgets.rounding_lab import RoundingLab

__all__ = ["BitExplorer", "Explorer", "NumberLine", "RangeMap", "RoundingLab"]
