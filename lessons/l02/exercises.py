"""The exercises of the lesson on formats: codes, values, gaps."""

import math

import mplab.lessons.solutions as solutions
from mplab import FP8_E4M3, FP16
from mplab.course.exercises.exercise import Exercise, known


class Code(int):
    """An integer that is shown as a code of eight bits."""

    def __repr__(self) -> str:
        return f"0x{int(self):02X}"


_ORDER = (0x38, 0x39, 0x40, 0xB8, 0x7E, 0x78, 0x08, 0x07, 0x01, 0x00, 0x80, 0x7F, 0xFF)

_CODES = tuple(Code(c) for c in (*_ORDER, *(c for c in range(256) if c not in _ORDER)))


def _exponent_not_raised(code: int) -> float:
    """Subnormals with the exponent that their field seems to say."""
    return solutions.decode_e4m3(code) / (1 if code & 0x78 else 2)


def _always_a_leading_1(code: int) -> float:
    trailing = code & 7
    if code & 0x78:
        return solutions.decode_e4m3(code)
    return math.copysign((1 + trailing / 8) * 2.0**-7, 0.5 - (code >> 7))


def _ieee(code: int) -> float:
    """Takes the whole top exponent for infinity and NaN."""
    if code >> 3 & 15 == 15:
        return math.nan if code & 7 else math.copysign(math.inf, 0.5 - (code >> 7))
    return solutions.decode_e4m3(code)


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
        ),
    ),
    "decode_e4m3": Exercise(
        answer=solutions.decode_e4m3,
        uses=("fields",),
        reason="Split the code into 1, 4 and 3 bits; mind exponent field 0, 0x7F and -0.0.",
        argument="code",
        cases=_CODES,
        fmt=FP8_E4M3,
        misconceptions=known(
            (
                _always_a_leading_1,
                "With exponent field 0 there is no leading 1: these are 0 and the subnormals.",
            ),
            (
                _exponent_not_raised,
                "Subnormals have the exponent of the smallest normal numbers, 1 - 7 = -6, not -7.",
            ),
            (
                _ieee,
                "E4M3 gives up infinity: of the top exponent only 0x7F and 0xFF are NaN.",
            ),
        ),
    ),
    "gap_fp16": Exercise(
        answer=solutions.gap_fp16,
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
                lambda x: 2.0 ** (math.frexp(x)[1] - 11),
                "Below 2^-14 the gaps stop shrinking: subnormals are all 2^-24 apart.",
            ),
        ),
    ),
}
