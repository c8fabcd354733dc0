"""Real machines: probes of matrix units, recordings of measurements, rooflines."""

from mplab.common.fronts import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
