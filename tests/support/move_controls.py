"""Runs inside a lesson's kernel, after its cells: moves every control through its range.

Prints as JSON the CPU seconds that the cells took, and for each control how many different
contents the lesson's texts and pictures took.
"""

import json
import time

import ipywidgets as w
from ipywidgets.widgets.widget import _instances

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)


def hidden():
    """The widgets in containers that are not shown now."""
    found = set()
    all_of_them = (
        widget for widget in _instances.values() if hasattr(widget, "layout")
    )
    todo = [widget for widget in all_of_them if widget.layout.display == "none"]
    while todo:
        found.add(widget := todo.pop())
        todo += getattr(widget, "children", ())
    return found


def positions(control):
    """Values from one end of the control to the other; none for what no reader can move."""
    if getattr(control, "disabled", False) or control in hidden():
        return []
    if isinstance(
        control, w.SelectionSlider | w.Dropdown | w.ToggleButtons | w.RadioButtons
    ):
        return [value for _, value in control._options_full]
    if isinstance(control, w.Checkbox | w.ToggleButton):
        return [not control.value, control.value]
    if not isinstance(control, w.FloatSlider | w.IntSlider | w.FloatLogSlider):
        return []
    places = [
        control.min + (control.max - control.min) * fraction for fraction in FRACTIONS
    ]
    if isinstance(control, w.FloatLogSlider):
        return [control.base**place for place in places]
    return [type(control.value)(place) for place in places]


def contents():
    """What the lesson shows in its widgets now."""
    shown = w.HTML | w.HTMLMath | w.Label | w.Image
    return tuple(
        str(widget.value) for widget in _instances.values() if isinstance(widget, shown)
    )


def main():
    seconds = time.process_time()
    moved = {}
    for number, control in enumerate(list(_instances.values())):
        seen = set()
        before = getattr(control, "value", None)
        for position in positions(control):
            control.value = position
            seen.add(contents())
        if seen:
            control.value = before
            name = f"{number} {type(control).__name__} {getattr(control, 'description', '')}"
            moved[name] = len(seen)
    print(json.dumps({"cpu_seconds": seconds, "moved": moved}))


# As it is in a kernel, but not where pytest looks for doctests.
if __name__ == "__main__":
    main()
