"""Explorers drawn beforehand: what a page shows is what the live one shows."""

import base64
import gzip
import itertools
import json
import math
import random
import re
from html import escape

import every_explorer
import ipywidgets
import numpy as np
import prose
import pytest
from positions import controls

from mplab.course.explorers import Explorer, freezing
from mplab.lessons.l09.explorer import ScalerTimeline
from mplab.lessons.l11.explorer import SpeedUp
from mplab.training import exponent_histogram, train

LARGE = {"AmaxHistory", "MatrixStep", "Refiner", "ScalerTimeline", "UpdateStagnation"}
SAMPLE = 40


def made(name):
    names = {"np": np, "exponent_histogram": exponent_histogram, "train": train}
    given = every_explorer.SHOWN_WITH.get(name)
    return every_explorer.kinds()[name](*([eval(given, names)] if given else []))


def unpacked(frozen):
    return json.loads(gzip.decompress(base64.b64decode(frozen.packed)))


def put(control, words):
    """Move a live control to the position that a page names so."""
    if isinstance(control, ipywidgets.Checkbox):
        control.value = words == "yes"
    elif isinstance(control, ipywidgets.IntSlider):
        control.value = int(words)
    else:
        control.label = words


def differences(explorer, frozen):
    """Positions, of `SAMPLE` at random, in which a frozen explorer and the live one differ."""
    told = unpacked(frozen)
    live = controls(explorer)
    assert [c.name for c in frozen.controls] == [c.description for c in live]
    places = list(itertools.product(*(control.options for control in frozen.controls)))
    assert len(told["at"]) == len(places)
    wrong = []
    for number in random.Random(0).sample(range(len(places)), min(SAMPLE, len(places))):
        for control, words in zip(live, places[number], strict=True):
            put(control, words)
        row = told["rows"][told["at"][number]]
        picture, words = (
            "".join(told["parts"][ord(part) - 32] for part in text) for text in row
        )
        said = re.search(">.*<", explorer.state.value)[0]
        if (picture, f">{escape(words)}<") != (explorer.picture.value, said):
            wrong.append(places[number])
    return wrong


def check(name):
    explorer = made(name)
    before = explorer.picture.value, explorer.state.value
    frozen = freezing.freeze(explorer)
    assert (explorer.picture.value, explorer.state.value) == before
    assert explorer.draw() == frozen.start
    assert differences(explorer, frozen) == []
    assert len(frozen.packed) <= freezing.ROOM
    return explorer, frozen


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(every_explorer.kinds()) - LARGE))
def test_a_frozen_state_is_the_live_one(name):
    _, frozen = check(name)
    kept = math.prod(len(control.options) for control in frozen.controls)
    assert kept == frozen.positions, "too many for a page: its name goes into LARGE"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_coarser_grid_keeps_the_start_and_the_states_of_the_live_explorer(
    name, monkeypatch
):
    monkeypatch.setattr(freezing, "MOST", 400)
    explorer, frozen = check(name)
    states = math.prod(len(control.options) for control in frozen.controls)
    assert SAMPLE < states <= 400 < frozen.positions
    for control, live in zip(frozen.controls, controls(explorer), strict=True):
        put(live, control.options[control.start])
    assert explorer.draw() == frozen.start


@pytest.mark.parametrize("name", every_explorer.NAMED)
def test_a_page_holds_every_position_that_its_lesson_names(name, monkeypatch):
    lesson, named = every_explorer.NAMED[name]
    cells = [cell.source for cell in prose.cells(lesson)]
    at = [source.startswith(f"{name}(") for source in cells].index(True)
    text = (
        cells[at - 1].partition("One question")[2] + cells[at + 1].partition("## ")[0]
    )
    raised = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    powers = {
        power.translate(raised) for power in re.findall("2([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", text)
    }
    assert powers - {"-52"} == {
        p for label in named if "2^" in label for p in named[label]
    }
    explorer = made(name)
    monkeypatch.setattr(explorer, "draw", lambda: ("<svg/>", ""))
    kept = {
        control.name: control.options for control in freezing.freeze(explorer).controls
    }
    for label, positions in named.items():
        assert set(positions) <= set(kept[label])


def short_timeline(intervals):
    """One of few positions: a rule, a start, and these intervals."""
    timeline = ScalerTimeline([4.0] * 8 + [64.0] * 20)
    timeline.rule.options, timeline.interval.options = (
        timeline.rule.options[:1],
        intervals,
    )
    timeline.start.min = timeline.start.max = timeline.start.value = 3
    return timeline


def test_a_page_holds_every_step_in_which_the_scale_moves(monkeypatch):
    timeline = ScalerTimeline(np.where(np.arange(160) < 80, 2.0**22, 2.0**15))
    timeline.rule.options = timeline.rule.options[:1]
    monkeypatch.setattr(timeline, "draw", lambda: ("<svg/>", ""))
    played = list(timeline.scaler_steps)
    moves = {str(i) for i, turn in enumerate(played) if turn.next_scale != turn.scale}
    assert {"79", "80", "81"} & moves
    assert moves <= set(freezing.freeze(timeline).controls[-1].options)


def test_a_button_leads_where_it_leads_in_jupyterlab():
    timeline = short_timeline([5, 10])
    frozen = freezing.freeze(timeline)
    moves = unpacked(frozen)["moves"]
    assert (
        list(moves)
        == frozen.buttons
        == ["previous move of scale", "next move of scale"]
    )
    places = list(itertools.product(*(control.options for control in frozen.controls)))
    for button in (timeline.back, timeline.forth):
        for number, there in enumerate(moves[button.description]):
            for control, words in zip(controls(timeline), places[number], strict=True):
                put(control, words)
            button.click()
            assert str(timeline.step.value) == places[there][-1]
    assert len(set(moves["next move of scale"])) > 2


def test_a_button_that_leads_past_a_coarser_grid_is_left_out(monkeypatch):
    monkeypatch.setattr(freezing, "MOST", 20)
    assert freezing.freeze(short_timeline([5])).buttons == []


def test_where_room_is_short_every_second_position_of_the_longest_slider_goes(
    monkeypatch,
):
    whole = freezing.freeze(SpeedUp())
    monkeypatch.setattr(freezing, "ROOM", len(whole.packed) - 1)
    half = freezing.freeze(SpeedUp())
    assert [len(control.options) for control in half.controls] == [5, 10, 5]
    assert half.controls[0].options == whole.controls[0].options[::2]
    assert half.positions == whole.positions == 500 and half.start == whole.start


class Asking(Explorer):
    def draw(self):
        return "<svg/>", "This."


def test_an_explorer_with_free_text_is_not_frozen():
    controls = [ipywidgets.IntSlider(), ipywidgets.Text()]
    assert freezing.freeze(Asking("What is typed?", controls)) is None
