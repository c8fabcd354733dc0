"""Round all 2^32 float32 numbers and compare every result with another library's, by code.

The casts of ml_dtypes (BF16, FP8) and NumPy (FP16) are right from float32, though not from float64.
NumPy's takes 65 ns for each number that over- or underflows, so that it is asked where FP16 has
something to decide, from 2^-26 to 2^17, and torch everywhere.
"""

from typing import NamedTuple

import numpy as np
import torch

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, decode, round_to

REFERENCED = {fmt.name: fmt for fmt in (FP16, BF16, FP8_E4M3, FP8_E5M2)}
CHUNK = 1 << 22


class Comparison(NamedTuple):
    """What one format showed over all inputs; the first differences are printed."""

    inputs: int
    differences: int


def cast(x, fmt):
    """The codes of float32 numbers by another library; they share sign and exponent."""
    with np.errstate(all="ignore"):
        if fmt is not FP16:
            return x.astype(fmt.dtype).view(f"u{fmt.dtype.itemsize}")
        codes = torch.from_numpy(x).half().view(torch.int16).numpy().view(np.uint16)
        if 2.0**-26 <= abs(x[0]) < 2.0**17:
            assert np.array_equal(x.astype(np.float16).view(np.uint16), codes)
    return codes


def compare(fmt, total=1 << 32):
    """Round the float32 with bits 0 .. total − 1 and compare with the cast to `fmt.dtype`."""
    with np.errstate(invalid="ignore"):
        value_of = (
            decode(np.arange(1 << fmt.bits), fmt).astype(np.float32).view(np.uint32)
        )
    within_chunk = np.arange(CHUNK, dtype=np.uint32)
    ours = np.empty(CHUNK, np.float32)
    differences = 0
    for begin in range(0, total, CHUNK):
        x = (within_chunk + np.uint32(begin)).view(np.float32)
        round_to(x, fmt, out=ours)
        codes = cast(x, fmt)
        wrong = np.flatnonzero(ours.view(np.uint32) != value_of[codes])
        for i in wrong[: 5 if differences == 0 else 0]:
            print(f"0x{begin + i:08X}: ours {ours[i]!r}, theirs 0x{codes[i]:X}")
        differences += wrong.size
    return Comparison(total, differences)
