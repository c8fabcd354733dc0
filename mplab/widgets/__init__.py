"""Explorers: each answers one question, by slider or keyboard, in a picture and in words."""

from mplab.widgets.explorer import Explorer
from mplab.widgets.range_map import RangeMap

__all__ = ["Explorer", "RangeMap"]
