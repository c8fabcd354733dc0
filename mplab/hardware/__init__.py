"""Real machines: probes of matrix units, recordings of measurements, rooflines."""

from mplab.numbers import installation

installation.needs("mplab.hardware", "torch")

from mplab.hardware.probes import PROBES as PROBES
from mplab.hardware.recordings import Recording as Recording
from mplab.hardware.recordings import caption as caption
from mplab.hardware.recordings import first as first
from mplab.hardware.recordings import load as load
from mplab.hardware.rooflines import Roofline as Roofline
from mplab.hardware.rooflines import matmul_errors as matmul_errors
from mplab.hardware.rooflines import measured as measured
from mplab.hardware.rooflines import recorded as recorded
