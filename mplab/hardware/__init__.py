"""What real machines answer and cost: probes, recordings, rooflines, benchmarks."""

from mplab.numbers.installation import needs

needs("mplab.hardware", "torch")

from mplab.hardware.probes import PROBES
from mplab.hardware.recordings import Recording, available, caption, first, load
from mplab.hardware.rooflines import Roofline, matmul_errors, measured, recorded

__all__ = [
    "PROBES",
    "Recording",
    "Roofline",
    "available",
    "caption",
    "first",
    "load",
    "matmul_errors",
    "measured",
    "recorded",
]
