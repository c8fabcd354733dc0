"""The figures of the lessons, as functions of data.

Each takes data and returns a `Picture`: a matplotlib `Figure` on its own white background,
whose title is the sentence that its data show and whose description reaches screen readers.
"""

from mplab.pictures.arithmetic import (
    bits_of_a_step,
    error_growth,
    errors_by_depth,
    measured_errors,
    promotion,
    stagnation,
)
from mplab.pictures.canvas import Picture, Table
from mplab.pictures.costs import costs
from mplab.pictures.training import (
    flushed_share,
    gradient_exponents,
    loss_curves,
    loss_scale,
    results_table,
)

__all__ = [
    "Picture",
    "Table",
    "bits_of_a_step",
    "costs",
    "error_growth",
    "errors_by_depth",
    "flushed_share",
    "gradient_exponents",
    "loss_curves",
    "loss_scale",
    "measured_errors",
    "promotion",
    "results_table",
    "stagnation",
]
