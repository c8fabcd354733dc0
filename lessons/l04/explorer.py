"""The explorer of exposures: what does a format keep of a picture?"""

from pathlib import Path

import traitlets
from matplotlib.image import imread

from mplab import BF16, FP4_E2M1, FP8_E4M3, FP8_E5M2, FP16, Format
from mplab.course.explorers.modules import PageExplorer, module
from mplab.course.pictures.canvas import Picture, in_house_style, titled


class Photograph(PageExplorer):
    """Which exposure saves both the sun and the shore?

    A picture whose numbers FP16 has is multiplied by a power of two, stored in a format, and
    divided again: at the right of the split, beside the original. It runs in the page, without
    Python.

    Args:
        fmt: the format to start with.
        power: the exposure to start with is 2^power, -14 to 14.

    Attributes:
        format: the name of the format; setting it or one of the next two redraws.
        power: the exponent of the exposure.
        mode: the name of the rounding mode.
        formats: the facts of all formats that are offered.

    Exactness:
        That of `mplab.round_to`; stochastic rounding takes the bits of `mplab.Stream(0)`.
    """

    _esm = module("photograph.js")
    format = traitlets.Unicode().tag(sync=True)
    power = traitlets.Int().tag(sync=True)
    mode = traitlets.Unicode("TIES_TO_EVEN").tag(sync=True)

    def __init__(self, fmt: Format = FP8_E4M3, *, power: int = 0) -> None:
        formats = (FP16, BF16, FP8_E4M3, FP8_E5M2, FP4_E2M1)
        super().__init__(formats, _still, format=fmt.name, power=power)


@in_house_style
def _still() -> Picture:
    """Show the explorer as it begins."""
    picture = Picture(height=4.6)
    axes = picture.subplots()
    axes.set_axis_off()
    file = Path(__file__).with_name("photograph.png")
    # Not interpolated: SVG then holds these pixels and no others.
    axes.imshow(imread(file), interpolation="none")
    details = (
        "A sun over a lake; at the left the original, at the right what is stored."
    )
    return titled(picture, "Stored in FP8_E4M3 times 1, the shore is lost", details)
