"""The explorers: their numbers, their pictures, and what a reader without a mouse or eyes gets."""

import ipywidgets
import numpy as np
import pytest
from histories import history

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, explorers, round_to
from mplab.training import ExponentHistogram, exponent_histogram

RANDOM = np.random.default_rng(0)
# Significands away from powers of two: see the limits that `mplab.training.exponents.zones` names.
GRADIENTS = RANDOM.uniform(1.2, 1.7, 3000) * 2.0 ** RANDOM.integers(-45, -12, 3000)
LAYERS = {"encoder": GRADIENTS[:1000], "decoder": GRADIENTS[1000:] * 2.0**5}


def explorer(fmt=FP16):
    return explorers.RangeMap(
        {name: exponent_histogram(x) for name, x in LAYERS.items()}, fmt
    )


def counted(x, fmt):
    """What rounding makes of `x`: flushed, subnormal, normal and overflowed, one by one."""
    rounded = np.abs(round_to(x, fmt))
    flushed, over = np.sum(rounded == 0), np.sum(~np.isfinite(rounded))
    subnormal = np.sum((rounded > 0) & (rounded < fmt.min_normal))
    return (flushed, subnormal, x.size - flushed - subnormal - over, over)


@pytest.mark.parametrize(
    "fmt", [FP16, BF16, FP8_E4M3, FP8_E5M2], ids=lambda fmt: fmt.name
)
def test_the_numbers_are_those_of_rounding_at_every_position(fmt):
    range_map = explorer(fmt)
    scales = range(range_map.scale.min, range_map.scale.max + 1)
    arrays = {"all layers": np.concatenate(list(LAYERS.values())), **LAYERS}
    for range_map.layer.value, x in arrays.items():
        for range_map.scale.value in scales:
            assert range_map.shares == counted(x * 2.0**range_map.scale.value, fmt)


def test_the_slider_goes_from_no_scaling_until_something_overflows():
    for fmt in (FP16, BF16, FP8_E5M2):
        range_map = explorer(fmt)
        assert range_map.scale.value == range_map.scale.min == 0
        range_map.scale.value = range_map.scale.max
        assert range_map.shares.overflow
        range_map.scale.value = 0
        assert not range_map.shares.overflow


def test_the_state_is_shown_when_it_is_made_and_whenever_a_control_moves():
    range_map, shown = explorer(), []
    most = range_map.scale.max
    places = [("all layers", k) for k in (0, 1, 16, most)] + [("encoder", most)]
    for range_map.layer.value, range_map.scale.value in places:
        shown.append((range_map.picture.value, range_map.state.value))
    assert [len(set(column)) for column in zip(*shown, strict=True)] == [5, 5]


def test_a_run_shows_its_first_recorded_step():
    def histogram(exponent):
        return ExponentHistogram(np.array([exponent]), np.array([8]), 0, 0)

    run = history(
        "fp32", 9, gradients={8: {"only": histogram(-9)}, 0: {"only": histogram(-30)}}
    )
    range_map = explorers.RangeMap(run)
    assert range_map.shares.flushed == 8 and range_map.layer not in range_map.children
    for gradients, last in ((np.full(4, 2.0**40), 0), (np.zeros(4), 5)):
        assert explorers.RangeMap(exponent_histogram(gradients)).scale.max == last


class Broken(explorers.Explorer):
    def draw(self):
        return "<svg/>", str(1 / (2 - slider.value))


slider = ipywidgets.IntSlider(max=3)


def test_an_error_in_a_callback_is_not_swallowed():
    broken = Broken("What does an error look like?", [slider])
    slider.value = 1
    # Outside Jupyter; in it, the Output widget shows it.
    with pytest.raises(ZeroDivisionError):
        slider.value = 2
    assert broken.errors in broken.children


def test_gradients_that_are_not_finite_are_counted_at_every_scale():
    range_map = explorers.RangeMap(exponent_histogram(np.array([np.nan, np.inf])))
    assert range_map.sentence.endswith(" 2 are inf or NaN at any scale.")
