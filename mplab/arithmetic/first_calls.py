"""Compile what first calls need.

`make lab` runs this when it installs, and `mplab lab` beside JupyterLab, at low priority.
"""

import numpy as np

from mplab.arithmetic import operations, reductions
from mplab.numbers.codes import decode, encode
from mplab.numbers.formats import FP16, Rounding
from mplab.numbers.options import Stream
from mplab.numbers.rounding import round_to, tally

if __name__ == "__main__":
    for dtype in "df":
        x = np.ones(3, dtype)
        round_to(x, FP16)
        decode(encode(x, FP16), FP16)
        for operation in (operations.add, operations.multiply):
            operation(x, x, FP16)
        tally(x, FP16)
        reductions.sum(x, accumulator_format=FP16)
        round_to(x, FP16, rounding=Rounding.STOCHASTIC, stream=Stream(0))
