"""Widgets that answer one question each."""

from mplab.common.installation import require_packages as _require_packages

_require_packages("mplab.course.explorers", "matplotlib", "ipywidgets", "anywidget")

from mplab.course.explorers.modules import (
    BitExplorer as BitExplorer,
    NumberLine as NumberLine,
    RoundingLab as RoundingLab,
)
from mplab.course.explorers.range_map import RangeMap as RangeMap
from mplab.course.explorers.widget import Explorer as Explorer
