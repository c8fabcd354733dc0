"""The base class of explorers: a question, controls, a picture, and a sentence.

Pictures are SVG in `ipywidgets.HTML`, which is the fastest design that needs nothing but
ipywidgets. An error in a callback is shown under the explorer.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

import anywidget
import ipywidgets

from mplab.course.explorers.modules import joined
from mplab.course.explorers.saved import Displayed, saved_picture
from mplab.course.pictures.canvas import CARD_STYLE

_ARROW = (
    "url('data:image/svg+xml,<svg xmlns=%22http://www.w3.org/2000/svg%22 viewBox=%220 0 18 18%22>"
    "<path d=%22M5.2 5.9L9 9.7l3.8-3.8 1.2 1.2-5 5-5-5z%22 fill=%22white%22/></svg>')"
)

_STYLE = (
    f"{CARD_STYLE}<style>"
    '[data-jp-theme-light="false"] .mplab-explorer select '
    f"{{ background-image: {_ARROW} !important }} .mplab-gone {{ display: none }} "
    ".jupyter-widgets-disconnected .mplab-gone { display: block }</style>"
)
"""Styles of the picture's card, of arrows on a dark page, and of what is said without a kernel."""

_GONE = (
    '<p class="mplab-gone" role="status"><b>The kernel that drew this has ended.</b> To move it'
    " again, run all cells: menu Run, Run All Cells.</p>"
)


# Controls: `freezing` draws these, and ToggleButtons of ipywidgets, at every position.
_WIDE = {"style": {"description_width": "8rem"}, "layout": {"width": "min(36rem, 98%)"}}


def slider(
    words: str, low: int, high: int, value: int, **more: Any
) -> ipywidgets.IntSlider:
    """Make a slider of whole numbers."""
    return ipywidgets.IntSlider(
        value, min=low, max=high, description=words, **_WIDE, **more
    )


def stops(words: str, options: Iterable[Any], value: Any) -> ipywidgets.SelectionSlider:
    """Make a slider of values, or of pairs of words and a value."""
    return ipywidgets.SelectionSlider(
        options=list(options), value=value, description=words, **_WIDE
    )


def choice(words: str, options: Iterable[Any], **more: Any) -> ipywidgets.Dropdown:
    """Make a drop-down list."""
    return ipywidgets.Dropdown(
        options=list(options), description=words, **_WIDE, **more
    )


def tick(words: str, value: bool = False) -> ipywidgets.Checkbox:
    """Make a check box."""
    return ipywidgets.Checkbox(value, description=words, indent=False)


class Keys(anywidget.AnyWidget):
    """An unseen widget that keeps an explorer's keys from the notebook, and names its sliders."""

    _esm = joined("focus.js", "keys.js")


class Explorer(Displayed, ipywidgets.VBox):
    """Base class: a question, controls, a picture, and the same in words.

    A subclass makes its controls, hands them to `__init__`, and defines `draw`, which reads them.
    `lessons/l20/explorer.py` is a short one to begin from. Any change of a control redraws; the
    sentence is in a live region, so that screen readers say it.

    Attributes:
        on_page: by the words beside a control, its values that a page without Python keeps if
            there are too many positions to draw them all: those that a lesson names.
    """

    on_page: Mapping[str, Collection[Any]] = MappingProxyType({})

    def __init__(self, question: str, controls: Sequence[ipywidgets.Widget]) -> None:
        self.question = question
        self.picture = ipywidgets.HTML(
            layout={"overflow": "auto hidden", "max_width": "100%"}
        )
        self.state = ipywidgets.HTML()
        self.errors = ipywidgets.Output()
        heading = ipywidgets.HTML(f"{_STYLE}<b>{escape(question)}</b>{_GONE}")
        parts = [heading, *controls, self.picture, self.state, self.errors]
        parts.append(Keys(layout={"display": "none"}))
        super().__init__(parts)
        self.add_class("mplab-explorer")
        for control in controls:
            control.observe(self._changed, names="value")
        self.redraw()

    def saved_html(self) -> str:
        """Write the picture and the sentence as they are now."""
        return saved_picture(self.question, self.picture.value, self.sentence)

    @abstractmethod
    def draw(self) -> tuple[str, str]:
        """Draw the picture as SVG, and say the same in a sentence."""

    def redraw(self) -> None:
        """Draw again, from the controls as they are now."""
        self.picture.value, self.sentence = self.draw()
        self.state.value = (
            f'<div role="status" aria-live="polite">{escape(self.sentence)}</div>'
        )

    def _changed(self, _: object) -> None:
        self.show_errors_of(self.redraw)

    def show_errors_of(self, action: Callable[[], None]) -> None:
        """Run a callback, and show its error under the explorer."""
        try:
            action()
        except Exception:
            # Jupyter sends a callback's traceback to a log nobody reads.
            with self.errors:
                raise
