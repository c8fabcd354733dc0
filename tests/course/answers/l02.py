"""Answers to the exercises of lesson 02, right ones and wrong ones."""

import math

import ml_dtypes
import numpy as np

from mplab import FP8_E4M3, FP16, decode, encode, fields, next_up


def by_fields(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent = (code & 0x7F) >> 3
    trailing = code & 0x07
    if exponent == 15 and trailing == 7:
        return math.nan
    if exponent == 0:
        return sign * trailing * 2.0**-9
    return sign * (8 + trailing) * 2.0 ** (exponent - 10)


def by_the_fields(code):
    """With the library's fields, which lesson 2 draws."""
    sign, exponent, trailing = (int(field) for field in fields(code, FP8_E4M3))
    return by_fields(sign << 7 | exponent << 3 | trailing)


def by_dtype(code):
    return float(np.array(code, np.uint8).view(ml_dtypes.float8_e4m3fn))


def floor_of_logarithm(x):
    return 2.0 ** (max(math.floor(math.log2(x)), -14) - 10)


RIGHT = {
    "first_missing_integer": [2049, np.float64(2049)],
    "decode_e4m3": [by_dtype, by_the_fields],
    "gap_fp16": [
        lambda x: np.spacing(np.float16(x)),
        floor_of_logarithm,
        lambda x: float(next_up(x, FP16) - x),
        lambda x: float(decode(encode(x, FP16) + 1, FP16)) - x,
    ],
}
