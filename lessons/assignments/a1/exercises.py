"""Assignment 1, formats and codes: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
"""

import math

from mplab.checks import Arguments, Exercise, Misconception
from mplab.codes import decode, encode, fields
from mplab.formats import Format
from mplab.grading.exercises import Graded, Part
from mplab.rounding import round_to

WARM = "import numpy as np, mplab; mplab.round_to(np.array([1.0]), mplab.FP16)"


def ieee(exponent_bits, trailing_bits):
    return Format("toy", exponent_bits=exponent_bits, precision=trailing_bits + 1)


def formats(rng, count, *, widest=6):
    """Widths that no library names, drawn for one student."""
    return [(int(rng.integers(2, widest)), int(rng.integers(1, 8))) for _ in range(count)]


def codes_of(rng, widths, *, low=0.0, high=1.0):
    """For each pair of widths a code between two shares of all codes without the sign."""
    cases = []
    for exponent_bits, trailing_bits in widths:
        size = 2 ** (exponent_bits + trailing_bits)
        code = int(rng.integers(int(low * size), max(int(high * size), int(low * size) + 1)))
        cases.append(Arguments((code, exponent_bits, trailing_bits)))
    return cases


def negative(cases):
    return [Arguments((c + 2 ** (e + t), e, t)) for c, e, t in cases]


# Fields ----------------------------------------------------------------------------------


def fields_of(code, exponent_bits, trailing_bits):
    return tuple(int(part) for part in fields(code, ieee(exponent_bits, trailing_bits)))


def fields_without_sign(code, exponent_bits, trailing_bits):
    _, exponent, trailing = fields_of(code, exponent_bits, trailing_bits)
    return 0, exponent, trailing


def fields_unbiased(code, exponent_bits, trailing_bits):
    sign, exponent, trailing = fields_of(code, exponent_bits, trailing_bits)
    return sign, exponent - 2 ** (exponent_bits - 1) + 1, trailing


FIELDS = Exercise(
    answer=fields_of,
    reason="From the left: one sign bit, then the exponent field, then the trailing significand.",
    argument="code, exponent_bits, trailing_bits",
    cases=[Arguments(c) for c in [(0, 5, 2), (1, 5, 2), (0x3C, 5, 2), (0xBC, 5, 2), (0xFF, 4, 3)]],
    misconceptions=(
        Misconception(fields_without_sign, "The topmost bit is the sign, 1 for negative numbers."),
        Misconception(fields_unbiased, "The stored exponent is asked for, before any bias."),
    ),
)

# Values ----------------------------------------------------------------------------------


def value_of(code, exponent_bits, trailing_bits):
    return float(decode(code, ieee(exponent_bits, trailing_bits)))


def value_formula(code, exponent_bits, trailing_bits, *, subnormals, specials):
    """The reading of a code by somebody who leaves out one of its cases."""
    sign, exponent, trailing = fields_of(code, exponent_bits, trailing_bits)
    bias, sign = 2 ** (exponent_bits - 1) - 1, (-1.0) ** sign
    if specials and exponent == 2**exponent_bits - 1:
        return math.nan if trailing else sign * math.inf
    if subnormals and exponent == 0:
        return sign * math.ldexp(trailing, 1 - bias - trailing_bits)
    return sign * math.ldexp(2**trailing_bits + trailing, exponent - bias - trailing_bits)


def all_implicit(*case):
    return value_formula(*case, subnormals=False, specials=True)


def all_finite(*case):
    return value_formula(*case, subnormals=True, specials=False)


VALUE = Exercise(
    answer=value_of,
    reason="Three kinds of exponent field: all zeros, all ones, and the others.",
    argument="code, exponent_bits, trailing_bits",
    cases=[Arguments(c) for c in [(0x3C, 5, 2), (0x40, 5, 2), (0xBD, 5, 2), (0x38, 4, 3)]],
    misconceptions=(
        Misconception(all_implicit, "Where the exponent field is 0 there is no implicit 1."),
        Misconception(all_finite, "Where the exponent field is all ones: infinity and NaN."),
    ),
)

# The largest finite value ------------------------------------------------------------------


def max_finite(exponent_bits, trailing_bits):
    return ieee(exponent_bits, trailing_bits).max_finite


def next_power(exponent_bits, trailing_bits):
    return 2.0 ** (2 ** (exponent_bits - 1))


def with_top_exponent(exponent_bits, trailing_bits):
    return 2.0 * max_finite(exponent_bits, trailing_bits)


MAX_FINITE = Exercise(
    answer=max_finite,
    reason="The largest exponent that is not all ones, and a significand of ones.",
    argument="exponent_bits, trailing_bits",
    cases=[Arguments(c) for c in [(2, 1), (5, 10), (8, 7)]],
    misconceptions=(
        Misconception(next_power, "That is the first power of two beyond the format."),
        Misconception(with_top_exponent, "The exponent field of all ones is not for numbers."),
    ),
)

# Encoding ----------------------------------------------------------------------------------


def encode_nearest(x, exponent_bits, trailing_bits):
    fmt = ieee(exponent_bits, trailing_bits)
    return int(encode(float(round_to(float(x), fmt)), fmt))


def encode_toward_zero(x, exponent_bits, trailing_bits):
    """What cutting the bits off gives; past the largest finite value, that value."""
    fmt = ieee(exponent_bits, trailing_bits)
    code = encode_nearest(min(abs(x), fmt.max_finite), exponent_bits, trailing_bits)
    code -= decode(code, fmt) > abs(x)
    return int(code + (math.copysign(1, x) < 0) * fmt.sign_code)


def tie_cases(rng):
    """Exactly halfway between neighbours: half of the ties go up and half go down."""
    cases = []
    for e, t in formats(rng, 24):
        fmt = ieee(e, t)
        code = int(rng.integers(0, 2 ** (e + t) - 2**t - 1))
        middle = (float(decode(code, fmt)) + float(decode(code + 1, fmt))) / 2
        cases.append(Arguments((middle if rng.integers(2) else -middle, e, t)))
    return cases


def subnormal_cases(rng):
    """Below the smallest normal number, and the last step up to it."""
    cases = []
    for e, t in formats(rng, 24):
        fmt = ieee(e, t)
        cases.append(Arguments((float(rng.uniform(-1, 1)) * fmt.min_normal, e, t)))
    return [*cases, Arguments((-0.0, 4, 3)), Arguments((ieee(4, 3).min_normal * 0.999, 4, 3))]


def overflow_cases(rng):
    """Around max_finite + half an ulp, where infinity begins."""
    cases = []
    for e, t in formats(rng, 8):
        fmt = ieee(e, t)
        bound = fmt.max_finite + 2.0 ** (fmt.emax - t - 1)
        for x in (bound, math.nextafter(bound, 0), -bound, math.inf, -math.inf):
            cases.append(Arguments((x, e, t)))
    return cases


ENCODE = Exercise(
    answer=encode_nearest,
    reason="Find the two neighbours in the format; nearest wins, and a tie goes to the even code.",
    argument="x, exponent_bits, trailing_bits",
    cases=[Arguments(c) for c in [(1.0, 5, 2), (1.75, 5, 2), (-3.3, 5, 2), (0.1, 4, 3)]],
    misconceptions=(
        Misconception(encode_toward_zero, "Cutting bits off rounds toward zero, not to nearest."),
    ),
)

# How many ----------------------------------------------------------------------------------

FINITE = Exercise(
    answer=2 * (2**8 - 2**3),
    reason="Count the codes, then take away those with an exponent field of ones.",
    misconceptions=(
        Misconception(2**9, "That is every code; some of them are not finite."),
        Misconception(2**9 - 2 * 2**3 - 1, "+0 and -0 are two codes."),
        Misconception(2**8 - 2**3, "The sign doubles their number."),
    ),
)

GRADED = {
    "fields": Graded(
        "fields_of",
        FIELDS,
        (
            Part("the cases of the notebook", 1, FIELDS.reason),
            Part("other widths", 1, "Use both widths; none is 8 bits.",
                 lambda rng: codes_of(rng, formats(rng, 40))),
            Part("negative numbers", 1, "The sign bit lies above both other fields.",
                 lambda rng: negative(codes_of(rng, formats(rng, 40)))),
        ),
    ),
    "value": Graded(
        "value_of",
        VALUE,
        (
            Part("normal numbers", 1, "Implicit 1, bias 2^(exponent_bits-1)-1.",
                 lambda rng: codes_of(rng, formats(rng, 40), low=0.5, high=0.75)),
            Part("subnormal numbers and zeros", 2, "Look at codes whose exponent field is 0.",
                 lambda rng: [*(a := codes_of(rng, [(3, t) for t in range(2, 9)], high=0.125)),
                              *negative(a), Arguments((16, 2, 2))]),
            Part("infinity and NaN", 1, "Look at codes whose exponent field is all ones.",
                 lambda rng: [Arguments((c, 3, 2)) for c in (28, 29, 30, 31, 60, 61)]),
        ),
    ),
    "max_finite": Graded(
        "max_finite",
        MAX_FINITE,
        (Part("every width", 2, MAX_FINITE.reason,
              lambda rng: [Arguments((e, t)) for e in range(2, 9) for t in range(1, 24)]),),
    ),
    "encode": Graded(
        "encode_nearest",
        ENCODE,
        (
            Part("numbers of middling size", 1, ENCODE.reason,
                 lambda rng: [Arguments((float(rng.uniform(-7, 7)), int(rng.integers(4, 6)), t))
                              for t in range(2, 8) for _ in range(6)]),
            Part("ties", 2, "Exactly halfway, the neighbour whose code is even wins.", tie_cases),
            Part("subnormal numbers and zeros", 2, "Below min_normal the spacing stays the same.",
                 subnormal_cases),
            Part("overflow", 1, "Infinity begins half an ulp above max_finite.", overflow_cases),
        ),
    ),
    "finite_codes": Graded(
        "finite_codes",
        FINITE,
        (Part("the number", 1, FINITE.reason),),
    ),
}  # fmt: skip
