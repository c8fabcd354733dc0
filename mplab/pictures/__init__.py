"""The figures: data in, a Picture with a sentence out."""

from mplab.numbers.installation import needs

needs("mplab.pictures", "torch", "matplotlib")

from mplab.numbers.tables import Table
from mplab.pictures._arithmetic import (
    accumulators,
    error_growth,
    loss_meter,
    measured_errors,
    product_errors,
    stagnation,
)
from mplab.pictures._eight_bits import block_errors, by_seed
from mplab.pictures._events import end_of_range, fates, landing, near_zero
from mplab.pictures._four_bits import (
    four_bit_errors,
    outlier_errors,
    quiet_errors,
    scale_errors,
)
from mplab.pictures._health import clinic, health, look_alikes
from mplab.pictures._matrix_units import (
    bits_of_a_step,
    cut_errors,
    cutting,
    errors_by_depth,
    promotion,
)
from mplab.pictures._precision import precision_map, sensitivity
from mplab.pictures._recorded import (
    recorded_gradients,
    recorded_network,
    recorded_runs,
    recorded_units,
)
from mplab.pictures._two_runs import (
    mismatch,
    one_ulp,
    order_errors,
    order_sums,
    rollout_gaps,
    runs_apart,
)
from mplab.pictures._updates import descents, least_updates, stochastic_spread, weight_paths
from mplab.pictures.canvas import Picture
from mplab.pictures.comparison import parting
from mplab.pictures.conditioning import (
    blame,
    derivative_errors,
    derivatives,
    formula_errors,
    formulas,
)
from mplab.pictures.emulation import (
    emulation_error,
    emulations,
    one_bit_too_many,
    slice_counts,
    slice_grid,
    slices_needed,
    wrong_sums,
)
from mplab.pictures.formats import (
    bit_fields,
    code_table,
    decimal_digits,
    dynamic_ranges,
    number_lines,
    spacing,
)
from mplab.pictures.linear import (
    random_system,
    refinement_costs,
    refinement_limits,
    refinements,
)
from mplab.pictures.pages import report, results_table
from mplab.pictures.performance import (
    costs,
    matmul_errors,
    memory,
    roofline,
    stage_times,
)
from mplab.pictures.rounding import (
    Sum,
    double_rounding,
    mean_errors,
    rounding_profile,
    running_sums,
)
from mplab.pictures.scaling import (
    Window,
    clipped_norms,
    flushed_over_steps,
    follow,
    scale_rules,
    scaling_windows,
    shares_and_outcomes,
)
from mplab.pictures.time_steps import (
    freezing_lines,
    freezing_points,
    grid_errors,
    orbits,
    simulation_errors,
    step_errors,
    time_courses,
)
from mplab.pictures.training import flushed_share, gradient_exponents, loss_curves, loss_scale

__all__ = [
    "Picture",
    "Sum",
    "Table",
    "Window",
    "accumulators",
    "bit_fields",
    "bits_of_a_step",
    "blame",
    "block_errors",
    "by_seed",
    "clinic",
    "clipped_norms",
    "code_table",
    "costs",
    "cut_errors",
    "cutting",
    "decimal_digits",
    "derivative_errors",
    "derivatives",
    "descents",
    "double_rounding",
    "dynamic_ranges",
    "emulation_error",
    "emulations",
    "end_of_range",
    "error_growth",
    "errors_by_depth",
    "fates",
    "flushed_over_steps",
    "flushed_share",
    "follow",
    "formula_errors",
    "formulas",
    "four_bit_errors",
    "freezing_lines",
    "freezing_points",
    "gradient_exponents",
    "grid_errors",
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
    "mismatch",
    "near_zero",
    "number_lines",
    "one_bit_too_many",
    "one_ulp",
    "orbits",
    "order_errors",
    "order_sums",
    "outlier_errors",
    "parting",
    "precision_map",
    "product_errors",
    "promotion",
    "quiet_errors",
    "random_system",
    "recorded_gradients",
    "recorded_network",
    "recorded_runs",
    "recorded_units",
    "refinement_costs",
    "refinement_limits",
    "refinements",
    "report",
    "results_table",
    "rollout_gaps",
    "roofline",
    "rounding_profile",
    "running_sums",
    "runs_apart",
    "scale_errors",
    "scale_rules",
    "scaling_windows",
    "sensitivity",
    "shares_and_outcomes",
    "simulation_errors",
    "slice_counts",
    "slice_grid",
    "slices_needed",
    "spacing",
    "stage_times",
    "stagnation",
    "step_errors",
    "stochastic_spread",
    "time_courses",
    "weight_paths",
    "wrong_sums",
]
