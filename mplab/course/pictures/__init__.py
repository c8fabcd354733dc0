"""The figures: data in, a Picture with a sentence out."""

from mplab.common.fronts import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
