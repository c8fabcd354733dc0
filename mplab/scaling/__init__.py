"""Scales for low precision: of the loss, of a tensor and of its blocks.

`GradScaler` and tensors in FP8, FP6 and FP4 need torch, which is imported on first use; the rules
for loss scales and for tensor scales do not need it.
"""

from mplab.common.fronts import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
