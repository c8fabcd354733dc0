"""Real machines: probes of matrix units, recordings of measurements, rooflines."""

from typing import TYPE_CHECKING

from mplab.numbers.fronts import lazily

lazily(__name__)

if TYPE_CHECKING:
    from mplab.hardware.probes import PROBES as PROBES
    from mplab.hardware.recordings import (
        Recording as Recording,
        caption as caption,
        first as first,
        load as load,
    )
    from mplab.hardware.rooflines import (
        Roofline as Roofline,
        matmul_errors as matmul_errors,
        measured as measured,
        recorded as recorded,
    )
