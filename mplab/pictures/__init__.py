"""The figures of the lessons, as functions of data.

Each takes data and returns a `Picture`: a matplotlib `Figure` on its own white background,
whose title is the sentence that its data show and whose description reaches screen readers.
"""

from mplab.pictures.arithmetic import (
    accumulators,
    error_growth,
    loss_meter,
    measured_errors,
    product_errors,
    stagnation,
)
from mplab.pictures.canvas import Picture, Table
from mplab.pictures.clinic import clinic, look_alikes
from mplab.pictures.costs import costs
from mplab.pictures.eight_bits import block_errors, by_seed
from mplab.pictures.events import end_of_range, fates, landing, near_zero
from mplab.pictures.formats import (
    bit_fields,
    code_table,
    decimal_digits,
    dynamic_ranges,
    number_lines,
    spacing,
)
from mplab.pictures.gradients import flushed_over_steps, shares_and_outcomes
from mplab.pictures.health import health
from mplab.pictures.matrix_units import (
    bits_of_a_step,
    cut_errors,
    cutting,
    errors_by_depth,
    promotion,
)
from mplab.pictures.precision import precision_map, sensitivity
from mplab.pictures.recorded import (
    recorded_gradients,
    recorded_network,
    recorded_runs,
    recorded_units,
)
from mplab.pictures.report import report, results_table
from mplab.pictures.rooflines import matmul_errors, roofline
from mplab.pictures.rounding import (
    Sum,
    double_rounding,
    mean_errors,
    rounding_profile,
    running_sums,
)
from mplab.pictures.scaling import clipped_norms, follow, scale_rules, scaling_windows
from mplab.pictures.stages import memory, memory_table, stage_times
from mplab.pictures.training import flushed_share, gradient_exponents, loss_curves, loss_scale
from mplab.pictures.updates import descents, least_updates, stochastic_spread, weight_paths

__all__ = [
    "Picture",
    "Sum",
    "Table",
    "accumulators",
    "bit_fields",
    "bits_of_a_step",
    "block_errors",
    "by_seed",
    "clinic",
    "clipped_norms",
    "code_table",
    "costs",
    "cut_errors",
    "cutting",
    "decimal_digits",
    "descents",
    "double_rounding",
    "dynamic_ranges",
    "end_of_range",
    "error_growth",
    "errors_by_depth",
    "fates",
    "flushed_over_steps",
    "flushed_share",
    "follow",
    "gradient_exponents",
    "health",
    "landing",
    "least_updates",
    "look_alikes",
    "loss_curves",
    "loss_meter",
    "loss_scale",
    "matmul_errors",
    "mean_errors",
    "measured_errors",
    "memory",
    "memory_table",
    "near_zero",
    "number_lines",
    "precision_map",
    "product_errors",
    "promotion",
    "recorded_gradients",
    "recorded_network",
    "recorded_runs",
    "recorded_units",
    "report",
    "results_table",
    "roofline",
    "rounding_profile",
    "running_sums",
    "scale_rules",
    "scaling_windows",
    "sensitivity",
    "shares_and_outcomes",
    "spacing",
    "stage_times",
    "stagnation",
    "stochastic_spread",
    "weight_paths",
]
