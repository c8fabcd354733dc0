"""The figures: data in, a Picture with a sentence out."""

from typing import TYPE_CHECKING

from mplab.numbers.fronts import lazily

lazily(__name__)

if TYPE_CHECKING:
    from mplab.numbers.tables import Table as Table
    from mplab.pictures.canvas import Picture as Picture
    from mplab.pictures.formats import (
        bit_fields as bit_fields,
        code_table as code_table,
        decimal_digits as decimal_digits,
        number_lines as number_lines,
    )
    from mplab.pictures.monitoring import health as health, parting as parting
    from mplab.pictures.pages import report as report, results_table as results_table
    from mplab.pictures.performance import memory as memory
    from mplab.pictures.precision import (
        precision_map as precision_map,
        sensitivity as sensitivity,
    )
    from mplab.pictures.recordings import recorded_runs as recorded_runs
    from mplab.pictures.rounding import (
        RunningSum as RunningSum,
        loss_meter as loss_meter,
        rounding_profile as rounding_profile,
        running_sums as running_sums,
    )
    from mplab.pictures.scaling import (
        Window as Window,
        follow as follow,
        scaling_windows as scaling_windows,
    )
    from mplab.pictures.training import (
        by_seed as by_seed,
        gradient_exponents as gradient_exponents,
        loss_curves as loss_curves,
        loss_scale as loss_scale,
    )
