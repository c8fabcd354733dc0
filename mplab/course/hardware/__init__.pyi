from .probes import PROBES as PROBES
from .recordings import (
    Recording as Recording,
    first as first,
    load as load,
)
from .rooflines import (
    Roofline as Roofline,
    matmul_errors as matmul_errors,
    measured as measured,
    recorded as recorded,
)
