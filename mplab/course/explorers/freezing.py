"""Freeze explorers for pages without Python: draw every position of the controls beforehand.

An explorer that takes free text has no list of positions, and is not frozen.
"""

import base64
import gzip
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

import ipywidgets
from ipywidgets.widgets.widget import _instances

from mplab.course.explorers.modules import PageExplorer, to_live_html
from mplab.course.explorers.widget import Explorer, Keys

MOST = 4000
"""At most this many positions are drawn, so that an export takes minutes."""

ROOM = 400_000
"""The most characters that the positions of one explorer may take in a page."""

_KINDS = {  # by their exact types: a page knows how to draw these and no others
    ipywidgets.IntSlider: "slider",
    ipywidgets.SelectionSlider: "slider",
    ipywidgets.Dropdown: "choice",
    ipywidgets.ToggleButtons: "buttons",
    ipywidgets.Checkbox: "tick",
}

_FIRST = 0x20
"""The character that stands for the first part of a picture; 55,000 others follow it."""

_SILENT = (ipywidgets.HTML, ipywidgets.Output, Keys)
"""The parts of an explorer that nobody operates."""

_Controls = Sequence[ipywidgets.Widget]
_Grids = list[list[tuple[str, Any]]]


class Control(NamedTuple):
    """A control in a page.

    Attributes:
        kind: "slider", "choice", "buttons" or "tick".
        name: the words beside it.
        options: its positions in words.
        start: the number of the position shown first.
        readout: whether the position is written beside it.
    """

    kind: str
    name: str
    options: list[str]
    start: int
    readout: bool


class Frozen(NamedTuple):
    """An explorer without its kernel.

    Attributes:
        question: the question that it answers.
        controls: the last one varies fastest in the order of the states.
        buttons: their labels; a button that leads off a coarser grid is left out.
        positions: how many JupyterLab offers; more than the states here if grids are coarser.
        start: the picture shown first, as SVG, and its sentence.
        packed: picture and sentence in each state, and for each button the state that it leads to:
            JSON, gzip, base64. Pictures are cut into elements; equal elements and equal states are
            stored once: `parts`, `rows` with a character for each part, the row `at` each state,
            and `moves` by button.
    """

    question: str
    controls: list[Control]
    buttons: list[str]
    positions: int
    start: tuple[str, str]
    packed: str


def all_frozen() -> dict[str, Frozen | str]:
    """Return every explorer of this process for a page, by model id: frozen, or as live HTML.

    An explorer of ipywidgets that takes free text is left out.
    """
    # ipywidgets 8 offers no public list of the widgets that a kernel made: `Widget.widgets` reads
    # the same table, and warns. Without the table the import above fails at once.
    widgets = list(_instances.values())
    living = {
        each.model_id: to_live_html(each)
        for each in widgets
        if isinstance(each, PageExplorer)
    }
    explorers = [each for each in widgets if isinstance(each, Explorer)]
    return living | {
        each.model_id: frozen for each in explorers if (frozen := freeze(each))
    }


def freeze(explorer: Explorer) -> Frozen | None:
    """Draw an explorer in every position of its controls; None if it takes free text.

    If there are more than `MOST` positions, a control keeps those named in `on_page`. While there
    are still more than `MOST`, or the text is longer than `ROOM`, every second position of the
    longest slider is dropped. The explorer is left as it was.

    Exactness:
        A state is what `draw` gives in that position.

    Examples:
        >>> from mplab.lessons.l11.explorer import SpeedUp
        >>> frozen = freeze(SpeedUp())
        >>> [control.name for control in frozen.controls], frozen.positions
        (['rows (batch)', "layer's width", '16-bit units'], 500)
    """
    operated = [
        x for x in _innermost(explorer) if not (isinstance(x, _SILENT) or x.disabled)
    ]
    buttons = [each for each in operated if isinstance(each, ipywidgets.Button)]
    controls = [each for each in operated if each not in buttons]
    if not all(type(control) in _KINDS for control in controls):
        return None
    grids = [_options(control) for control in controls]
    start = _positions(controls, grids)
    positions = math.prod(map(len, grids))
    named = explorer.on_page if positions > MOST else {}
    kept = [
        [
            i
            for i, (_, v) in enumerate(grid)
            if i == at or v in named.get(control.description, [v])
        ]
        for control, grid, at in zip(controls, grids, start, strict=True)
    ]

    @cache
    def state(position: tuple[int, ...]) -> tuple[str, str]:
        _set_positions(controls, grids, position)
        return explorer.draw()

    with _without_redrawing(explorer, controls):
        while True:
            if math.prod(map(len, kept)) <= MOST:
                places = list(itertools.product(*kept))
                moves = _moves(buttons, controls, grids, places)
                packed = pack([state(place) for place in places], moves)
                if len(packed) <= ROOM:
                    break
            kept = _coarser(kept, controls, start)
        _set_positions(controls, grids, start)
    on_page = [
        Control(
            _KINDS[type(control)],
            control.description,
            [grid[i][0] for i in left],
            left.index(first),
            getattr(control, "readout", True),
        )
        for control, grid, left, first in zip(controls, grids, kept, start, strict=True)
    ]
    return Frozen(
        explorer.question, on_page, list(moves), positions, state(start), packed
    )


def _innermost(widget: ipywidgets.Widget) -> Iterator[ipywidgets.Widget]:
    for child in getattr(widget, "children", [widget]):
        yield from [child] if child is widget else _innermost(child)


def _options(control: ipywidgets.Widget) -> list[tuple[str, Any]]:
    """List the positions of a control, in words and as values."""
    if isinstance(control, ipywidgets.Checkbox):
        return [("no", False), ("yes", True)]
    if isinstance(control, ipywidgets.IntSlider):
        return [(str(i), i) for i in range(control.min, control.max + 1, control.step)]
    return list(control._options_full)


def _positions(controls: _Controls, grids: _Grids) -> tuple[int, ...]:
    """Return the positions of the controls, as indices."""
    both = zip(controls, grids, strict=True)
    return tuple(
        [value for _, value in grid].index(control.value) for control, grid in both
    )


def _set_positions(controls: _Controls, grids: _Grids, position: Sequence[int]) -> None:
    for control, grid, i in zip(controls, grids, position, strict=True):
        control.value = grid[i][1]


def _coarser(
    kept: list[list[int]], controls: _Controls, start: Sequence[int]
) -> list[list[int]]:
    """Drop every second position of the longest slider, but keep the start."""
    sliders = [
        i for i, control in enumerate(controls) if _KINDS[type(control)] == "slider"
    ]
    longest = max(sliders, key=lambda i: len(kept[i]))
    first = kept[longest].index(start[longest]) % 2
    return [left[first::2] if i == longest else left for i, left in enumerate(kept)]


@contextmanager
def _without_redrawing(explorer: Explorer, controls: _Controls) -> Iterator[None]:
    """Let controls move without redrawing."""
    with ExitStack() as stack:
        for control in controls:
            stack.enter_context(control.hold_sync())
            control.unobserve(explorer._changed, names="value")
            stack.callback(control.observe, explorer._changed, names="value")
        yield


def _moves(
    buttons: _Controls,
    controls: _Controls,
    grids: _Grids,
    places: Sequence[tuple[int, ...]],
) -> dict[str, list[int]]:
    """Return the states that each button leads to; a button that leaves the grid is left out."""
    numbers = {position: number for number, position in enumerate(places)}
    moves: dict[str, list[int]] = {}
    for button in buttons:
        reached = []
        for position in places:
            _set_positions(controls, grids, position)
            button.click()
            reached.append(_positions(controls, grids))
        if numbers.keys() >= set(reached):
            moves[button.description] = [numbers[position] for position in reached]
    return moves


def pack(states: Sequence[tuple[str, str]], moves: dict[str, list[int]]) -> str:
    """Pack all states into text."""
    parts: dict[str, str] = {}
    rows: dict[tuple[str, str], list[str]] = {}
    for state in states:
        if state not in rows:
            rows[state] = [
                "".join(
                    parts.setdefault(part, chr(_FIRST + len(parts)))
                    for part in _elements(text)
                )
                for text in state
            ]
    numbers = {state: number for number, state in enumerate(rows)}
    record = {
        "parts": list(parts),
        "rows": list(rows.values()),
        "at": [numbers[state] for state in states],
        "moves": moves,
    }
    raw = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode("ascii")


def _elements(text: str) -> list[str]:
    """Cut a text after each element and each part of a sentence."""
    return re.split(r"(?<=>)(?=<)|(?<=[.;:,] )", text)
