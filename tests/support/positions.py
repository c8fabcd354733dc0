"""Every position of every control of an explorer, and what its picture and words must be there."""

from functools import cache
from xml.etree import ElementTree

from mplab.course.explorers.freezing import _KINDS, _options


def controls(explorer):
    return [child for child in explorer.children if type(child) in _KINDS]


def values(control):
    return [value for _, value in _options(control)]


@cache
def positions(kind):
    """For each control of an explorer, picture and words at each of its values."""
    explorer = kind()
    found = []
    for control in controls(explorer):
        before = control.value
        found.append([])
        for value in values(control):
            control.value = value
            found[-1].append((explorer.picture.value, explorer.state.value))
        control.value = before
    return found


def assert_every_position_differs(kind):
    assert len(positions(kind)) >= 2
    for shown in positions(kind):
        for picture, _ in shown:
            svg = ElementTree.fromstring(picture)
            assert svg.get("role") == "img"
            assert svg.get("aria-label").split(". ")[0]
        pictures, sentences = (set(column) for column in zip(*shown, strict=True))
        assert len(pictures) == len(sentences) >= min(2, len(shown))


def assert_texts_within(kind):
    """Widths are those of 7.4 units a letter at size 13, as everywhere in the explorers."""
    for shown in positions(kind):
        for picture, _ in shown:
            svg = ElementTree.fromstring(picture)
            width = float(svg.get("viewBox").split()[2])
            for text in svg.iter("text"):
                if "rotate(-90" in text.get("transform", ""):
                    continue  # as wide as it is high
                size = 7.4 * len(text.text) * float(text.get("font-size", 13)) / 13
                left = float(text.get("x")) - {"middle": size / 2, "end": size}.get(
                    text.get("text-anchor"), 0
                )
                assert left >= -1, text.text
                assert left + size <= width + 1, text.text
