"""The figures: data in, a Picture with a sentence out."""

from mplab.numbers.installation import needs as _needs

_needs("mplab.pictures", "torch", "matplotlib")

from mplab.numbers.tables import Table as Table
from mplab.pictures.canvas import Picture as Picture
from mplab.pictures.formats import bit_fields as bit_fields
from mplab.pictures.formats import code_table as code_table
from mplab.pictures.formats import decimal_digits as decimal_digits
from mplab.pictures.formats import number_lines as number_lines
from mplab.pictures.monitoring import health as health
from mplab.pictures.monitoring import parting as parting
from mplab.pictures.pages import report as report
from mplab.pictures.pages import results_table as results_table
from mplab.pictures.performance import memory as memory
from mplab.pictures.precision import precision_map as precision_map
from mplab.pictures.precision import sensitivity as sensitivity
from mplab.pictures.recordings import recorded_runs as recorded_runs
from mplab.pictures.scaling import Window as Window
from mplab.pictures.scaling import follow as follow
from mplab.pictures.scaling import scaling_windows as scaling_windows
from mplab.pictures.rounding import Sum as Sum
from mplab.pictures.rounding import loss_meter as loss_meter
from mplab.pictures.rounding import rounding_profile as rounding_profile
from mplab.pictures.rounding import running_sums as running_sums
from mplab.pictures.training import by_seed as by_seed
from mplab.pictures.training import gradient_exponents as gradient_exponents
from mplab.pictures.training import loss_curves as loss_curves
from mplab.pictures.training import loss_scale as loss_scale
