"""The figure of a class's grades."""

import pytest
from legible import assert_legible

from mplab.pictures.grades import class_parts

pytestmark = pytest.mark.slow

KINDS = ("right", "a known mistake", "wrong otherwise", "not attempted")
PARTS = {
    "encode: subnormal numbers and zeros": (14, 3, 1, 2),
    "value: infinity and NaN": (9, 4, 5, 2),
    "fields: all": (20, 0, 0, 0),
}


def test_the_title_names_the_part_that_the_fewest_have_right():
    picture = class_parts(
        {name: dict(zip(KINDS, n, strict=True)) for name, n in PARTS.items()}
    )
    assert picture.claim == (
        "“value: infinity and NaN” is right in 9 of 20 submissions, the fewest of all parts"
    )
    assert "fields: all: 20 right, 0 a known mistake" in picture.alt
    bars = [bar for kind in picture.axes[0].containers for bar in kind]
    assert [bar.get_width() for bar in bars[:3]] == [14, 9, 20]
    assert [bar.get_x() + bar.get_width() for bar in bars[-2:]] == [20, 20]
    assert_legible(picture)


@pytest.mark.parametrize("size", [1, 40])
def test_one_part_and_many_can_be_read(size):
    assert_legible(
        class_parts({f"part {i}": dict.fromkeys(KINDS, i) for i in range(size)})
    )
