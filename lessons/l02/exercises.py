"""The exercises of the lesson on formats: codes, values, gaps."""

import math
from collections.abc import Callable

from mplab import FP8_E4M3, FP16, decode, ulp
from mplab.course.exercise import Exercise, known


class Code(int):
    """An integer that is shown as a code of eight bits."""

    def __repr__(self) -> str:
        return f"0x{int(self):02X}"


_ORDER = (0x38, 0x39, 0x40, 0xB8, 0x7E, 0x78, 0x08, 0x07, 0x01, 0x00, 0x80, 0x7F, 0xFF)

_CODES = tuple(Code(c) for c in (*_ORDER, *(c for c in range(256) if c not in _ORDER)))


def _decode(code: int) -> float:
    return float(decode(int(code), FP8_E4M3))


def _decoded_by(
    significand: Callable[[int, int], float], exponent: Callable[[int], int]
) -> object:
    """A decoder that misreads a field."""

    def answer(code: int) -> float:
        sign, biased, trailing = code >> 7, code >> 3 & 15, code & 7
        if code & 0x7F == 0x7F:
            return math.nan
        return (-1.0) ** sign * significand(biased, trailing) * 2.0 ** exponent(biased)

    return answer


def _significand(biased: int, trailing: int) -> float:
    return (biased > 0) + trailing / 8


def _ieee(code: int) -> float:
    """Takes the whole top exponent for infinity and NaN."""
    if code >> 3 & 15 == 15:
        return math.nan if code & 7 else math.copysign(math.inf, 0.5 - (code >> 7))
    return _decode(code)


def _all_finite(code: int) -> float:
    return (-1.0) ** (code >> 7) * 480.0 if code & 0x7F == 0x7F else _decode(code)


def _gap(x: float) -> float:
    return float(ulp(x, FP16))


def _true_exponent(x: float) -> int:
    return math.frexp(x)[1] - 1


_GAP_CASES = (
    1.0,
    1.5,
    2.0,
    3.0,
    1000.0,
    2047.0,
    2048.0,
    1 + FP16.epsilon,
    0.75,
    0.5,
    32768.0,
    65472.0,
    FP16.min_normal,
    FP16.min_normal / 2,
    3 * FP16.min_subnormal,
    FP16.min_subnormal,
)

EXERCISES: dict[str, Exercise] = {
    "first_missing_integer": Exercise(
        answer=2049.0,
        reason="FP16 has 11 significant bits: find where the gap between its numbers grows past 1.",
        misconceptions=known(
            (
                2048.0,
                "2048 is 2^11, a power of two, so it is there; the gap after it is 2.",
            ),
            (
                1025.0,
                "Ten bits are stored, but the leading 1 is not: there are 11 in all.",
            ),
            (
                65505.0,
                "Long before the range ends, at 65504, the gaps have grown past 1.",
            ),
            (257.0, "That is BF16's, which has 8 significant bits; FP16 has 11."),
            (4097.0, "One bit too many: at 2^11 the gap is already 2^(11-10) = 2."),
        ),
    ),
    "decode_e4m3": Exercise(
        answer=_decode,
        uses=("fields",),
        reason="Split the code into 1, 4 and 3 bits; mind exponent field 0, 0x7F and -0.0.",
        argument="code",
        cases=_CODES,
        fmt=FP8_E4M3,
        misconceptions=known(
            (
                _decoded_by(lambda e, t: 1 + t / 8, lambda e: e - 7),
                "With exponent field 0 there is no leading 1: these are 0 and the subnormals.",
            ),
            (
                _decoded_by(_significand, lambda e: e - 7),
                "Subnormals have the exponent of the smallest normal numbers, 1 - 7 = -6, not -7.",
            ),
            (
                _ieee,
                "E4M3 gives up infinity: of the top exponent only 0x7F and 0xFF are NaN.",
            ),
            (_all_finite, "The code of all ones, 0x7F or 0xFF, is NaN, not 480."),
            (
                _decoded_by(_significand, lambda e: max(e, 1) - 8),
                "The bias is 2^(4-1) - 1 = 7, so that the field 7 means 2^0.",
            ),
        ),
    ),
    "gap_fp16": Exercise(
        answer=_gap,
        uses=(
            "round_to",
            "next_up",
            "next_down",
            "encode",
            "decode",
            "fields",
            "values",
        ),
        reason="The gap is 2^(e-10) where 2^e is the power of two at or below x, and e >= -14.",
        cases=_GAP_CASES,
        fmt=FP16,
        misconceptions=known(
            (
                lambda x: FP16.epsilon,
                "epsilon is the gap after 1; it doubles with each binade.",
            ),
            (
                lambda x: FP16.epsilon * x,
                "The gap is the same all through a binade; it does not grow with x in between.",
            ),
            (
                lambda x: 2.0 ** (_true_exponent(x) - 10),
                "Below 2^-14 the gaps stop shrinking: subnormals are all 2^-24 apart.",
            ),
            (
                lambda x: 2.0 ** (max(_true_exponent(x), -14) - 11),
                "11 bits count the leading 1; the last of them weighs 2^(e-10), not 2^(e-11).",
            ),
            (
                lambda x: 1.0 if x >= 2 else _gap(x),
                "Above 2 the gaps go on growing; only from 1024 to 2048 are they 1.",
            ),
        ),
    ),
}
