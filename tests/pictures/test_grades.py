"""The figure of a class's grades."""

import pytest
from legible import assert_legible

from mplab.course.pictures.grades import class_parts

pytestmark = pytest.mark.slow

KINDS = ("right", "a known mistake", "wrong otherwise", "not attempted")


@pytest.mark.parametrize("size", [1, 40])
def test_one_part_and_many_can_be_read(size):
    assert_legible(
        class_parts({f"part {i}": dict.fromkeys(KINDS, i) for i in range(size)})
    )
