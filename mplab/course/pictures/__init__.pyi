from .canvas import Picture as Picture
from .formats import (
    bit_fields as bit_fields,
    code_table as code_table,
    decimal_digits as decimal_digits,
    number_lines as number_lines,
)
from .monitoring import headroom as headroom, health as health, parting as parting
from .precision import precision_map as precision_map, sensitivity as sensitivity
from .rounding import (
    RunningSum as RunningSum,
    loss_meter as loss_meter,
    rounding_profile as rounding_profile,
    running_sums as running_sums,
)
from .scaling import (
    Window as Window,
    follow as follow,
    scaling_windows as scaling_windows,
)
from .training import (
    by_seed as by_seed,
    gradient_exponents as gradient_exponents,
    loss_curves as loss_curves,
    loss_scale as loss_scale,
    results_table as results_table,
)
