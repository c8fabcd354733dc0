"""Assignment 1, formats and codes: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
"""

import math
from functools import cache

from mplab import Format, decode, encode, fields, round_to
from mplab.course import Exercise, Misconception, but
from mplab.course.grading import Graded, Part


@cache
def ieee(exponent_bits, trailing_bits):
    return Format("toy", exponent_bits=exponent_bits, precision=trailing_bits + 1)


def formats(rng, count):
    """Widths that no library names, drawn for one student."""
    return [(int(rng.integers(2, 6)), int(rng.integers(1, 8))) for _ in range(count)]


def codes_of(rng, widths, *, low=0.0, high=1.0):
    """Draw a code without sign bit for each pair of widths, from `low` to `high` of the range."""
    for exponent_bits, trailing_bits in widths:
        size = 2 ** (exponent_bits + trailing_bits)
        code = int(
            rng.integers(int(low * size), max(int(high * size), int(low * size) + 1))
        )
        yield (code, exponent_bits, trailing_bits)


def negative(cases):
    return [(c + 2 ** (e + t), e, t) for c, e, t in cases]


# Fields ----------------------------------------------------------------------------------


def fields_of(code, exponent_bits, trailing_bits):
    return tuple(int(part) for part in fields(code, ieee(exponent_bits, trailing_bits)))


def unbiased(code, exponent_bits, trailing_bits):
    sign, exponent, trailing = fields_of(code, exponent_bits, trailing_bits)
    return sign, exponent - 2 ** (exponent_bits - 1) + 1, trailing


def unmasked(code, exponent_bits, trailing_bits):
    sign, _, trailing = fields_of(code, exponent_bits, trailing_bits)
    return sign, code >> trailing_bits, trailing


FIELDS = Exercise(
    answer=fields_of,
    reason="From the left: one sign bit, then the exponent field, then the trailing significand.",
    argument="code, exponent_bits, trailing_bits",
    cases=[(0, 5, 2), (1, 5, 2), (0x3C, 5, 2), (0xBC, 5, 2), (0xFF, 4, 3)],
    misconceptions=(
        Misconception(unbiased, "The stored exponent is asked for, before any bias."),
        Misconception(unmasked, "The exponent field ends below the sign bit."),
    ),
)

# Values ----------------------------------------------------------------------------------


def value_of(code, exponent_bits, trailing_bits):
    return float(decode(code, ieee(exponent_bits, trailing_bits)))


def value_formula(
    code, exponent_bits, trailing_bits, *, subnormals=True, low=1, high=0
):
    """The value of a code, with an option for each mistake."""
    sign, exponent, trailing = fields_of(code, exponent_bits, trailing_bits)
    if exponent == 2**exponent_bits - 1:
        return value_of(code, exponent_bits, trailing_bits)
    bias = 2 ** (exponent_bits - 1) - 1 + high
    if subnormals and exponent == 0:
        magnitude = math.ldexp(trailing, low - bias - trailing_bits)
    else:
        significand = 2**trailing_bits + trailing
        magnitude = math.ldexp(significand, exponent - bias - trailing_bits)
    return -magnitude if sign else magnitude


def smallest_normal(rng):
    """Codes whose exponent field is 1, where the implicit 1 begins."""
    return [(2**t + int(rng.integers(2**t)), e, t) for e, t in formats(rng, 8)]


def small_codes(rng):
    """Small numbers and zeros of both signs; the last two are -0."""
    drawn = [*codes_of(rng, [(3, t) for t in range(2, 9)] * 2, high=0.125)]
    return [*drawn, *negative(drawn), (8, 2, 1), (32, 2, 3)]


def specials(rng):
    """Both infinities, and NaN of both signs with significands drawn for one student."""
    return [
        ((sign << (e + t)) + ((2**e - 1) << t) + trailing, e, t)
        for e, t in formats(rng, 8)
        for sign in (0, 1)
        for trailing in (0, int(rng.integers(1, 2**t)))
    ]


def widths(rng):
    """All widths up to those of FP32, in an order drawn for one student."""
    every = [(e, t) for e in range(2, 9) for t in range(1, 24)]
    return [every[i] for i in rng.permutation(len(every))[:100]]


VALUE = Exercise(
    answer=value_of,
    reason="Three kinds of exponent field: all zeros, all ones, and the others.",
    argument="code, exponent_bits, trailing_bits",
    cases=[
        (0x3C, 5, 2),
        (0x40, 5, 2),
        (0xBD, 5, 2),
        (0x38, 4, 3),
        (0x80, 5, 2),
        (0x03, 5, 2),
        (0x7C, 5, 2),
        (0xFC, 5, 2),
        (0x7D, 5, 2),
    ],
    misconceptions=(
        but(
            value_formula,
            "Where the exponent field is 0 there is no implicit 1.",
            subnormals=False,
        ),
        but(
            value_formula,
            "The bias is one less than half the codes of the exponent.",
            high=1,
        ),
        but(
            value_formula,
            "Subnormals have the exponent of the smallest normal number.",
            low=0,
        ),
    ),
)

# The largest finite value ------------------------------------------------------------------


def max_finite(exponent_bits, trailing_bits):
    return ieee(exponent_bits, trailing_bits).max_finite


def past_the_end(exponent_bits, trailing_bits):
    return math.ldexp(1.0, 2 ** (exponent_bits - 1))


def with_the_top_exponent(exponent_bits, trailing_bits):
    return math.ldexp(2.0 - 2.0**-trailing_bits, 2 ** (exponent_bits - 1))


MAX_FINITE = Exercise(
    answer=max_finite,
    reason="The largest exponent that is not all ones, and a significand of ones.",
    argument="exponent_bits, trailing_bits",
    cases=[(3, 2), (5, 10), (8, 7), (2, 3)],
    misconceptions=(
        Misconception(
            past_the_end, "That is the first power of two beyond the format."
        ),
        Misconception(
            with_the_top_exponent, "The exponent field of all ones is not for numbers."
        ),
    ),
)

# Encoding ----------------------------------------------------------------------------------


def encode_nearest(x, exponent_bits, trailing_bits):
    fmt = ieee(exponent_bits, trailing_bits)
    return int(encode(float(round_to(float(x), fmt)), fmt))


def away(steps):
    return math.floor(steps + 0.5)


def encode_formula(x, exponent_bits, trailing_bits, *, rounding=round, early=False):
    """The encoding, with an option for each mistake."""
    fmt = ieee(exponent_bits, trailing_bits)
    sign = (math.copysign(1, x) < 0) * fmt.sign_code
    x, infinity = abs(x), int(fmt.infinity_code)
    if x == math.inf or (early and x > fmt.max_finite):
        return sign + infinity
    exponent = max(math.frexp(x)[1] - 1, fmt.emin) if x else fmt.emin
    steps = rounding(math.ldexp(x, trailing_bits - exponent))
    return sign + min(steps + ((exponent - fmt.emin) << trailing_bits), infinity)


def tie_cases(rng):
    """Exactly halfway between neighbours: half of the ties go up and half go down."""
    for e, t in formats(rng, 24):
        fmt = ieee(e, t)
        code = rng.integers(0, 2 ** (e + t) - 2**t - 1)
        middle = (float(decode(code, fmt)) + float(decode(code + 1, fmt))) / 2
        yield (middle if rng.integers(2) else -middle, e, t)


def subnormal_cases(rng):
    """Below the smallest normal number, and the last step up to it."""
    for e, t in formats(rng, 24):
        fmt = ieee(e, t)
        yield (rng.uniform(-1, 1) * fmt.min_normal, e, t)
    yield (-0.0, 4, 3)
    yield (ieee(4, 3).min_normal * 0.999, 4, 3)


def overflow_cases(rng):
    """Around max_finite + half an ulp, where infinity begins, and far beyond it."""
    for e, t in formats(rng, 8):
        fmt = ieee(e, t)
        bound = fmt.max_finite + 2.0 ** (fmt.emax - t - 1)
        for x in (
            fmt.max_finite + 2.0 ** (fmt.emax - t - 2),
            bound,
            math.nextafter(bound, 0),
            -bound,
            4 * bound,
            math.inf,
            -math.inf,
        ):
            yield (x, e, t)


ENCODE = Exercise(
    answer=encode_nearest,
    reason="Find the two neighbours in the format; nearest wins, and a tie goes to the even code.",
    argument="x, exponent_bits, trailing_bits",
    cases=[
        (1.0, 5, 2),
        (1.75, 5, 2),
        (-3.3, 5, 2),
        (0.1, 4, 3),
        (1.125, 5, 2),
        (1.375, 5, 2),
        (1.125 + 2.0**-40, 5, 2),  # in float32 a tie
        (1.99, 5, 2),
        (3 * 2.0**-16, 5, 2),
        (1.6 * 2.0**-16, 5, 2),
        (-0.0, 5, 2),
        (59000.0, 5, 2),
        (61440.0, 5, 2),
        (-1e6, 5, 2),
        (math.inf, 5, 2),
    ],
    misconceptions=(
        but(
            encode_formula,
            "Cutting bits off rounds toward zero, not to nearest.",
            rounding=int,
        ),
        but(
            encode_formula,
            "A tie goes to the even code, not away from zero.",
            rounding=away,
        ),
        but(
            encode_formula,
            "Overflow is decided after rounding: 59000 rounds to 57344.",
            early=True,
        ),
    ),
)

# How many ----------------------------------------------------------------------------------

FINITE = Exercise(
    answer=2 * (2**8 - 2**3),
    reason="Count the codes, then take away those with an exponent field of ones.",
    misconceptions=(
        Misconception(2**9, "That is every code; some of them are not finite."),
        Misconception(2**8 - 2**3, "The sign doubles their number."),
        Misconception(
            2**9 - 2, "Not only the infinities: NaN has codes, too, many of them."
        ),
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
                 lambda rng: [*codes_of(rng, formats(rng, 40), low=0.5, high=0.75),
                              *smallest_normal(rng)]),
            Part("subnormal numbers and zeros", 2, "Look at codes whose exponent field is 0.",
                 small_codes),
            Part("infinity and NaN", 1, "Look at codes whose exponent field is all ones.",
                 specials),
        ),
    ),
    "max_finite": Graded(
        "max_finite", MAX_FINITE, (Part("every width", 2, MAX_FINITE.reason, widths),)
    ),
    "encode": Graded(
        "encode_nearest",
        ENCODE,
        (
            Part("numbers of middling size", 1, ENCODE.reason,
                 lambda rng: [(rng.uniform(-7, 7), int(rng.integers(4, 6)), t)
                              for t in range(2, 8) for _ in range(6)]),
            Part("ties", 2, "Exactly halfway, the neighbour whose code is even wins.", tie_cases),
            Part("subnormal numbers and zeros", 2, "Below min_normal the spacing stays the same.",
                 subnormal_cases),
            Part("overflow", 1, "Infinity begins half an ulp above max_finite.", overflow_cases),
        ),
    ),
    "finite_codes": Graded("finite_codes", FINITE, (Part("the number", 1, FINITE.reason),)),
}  # fmt: skip

RUBRIC = {
    "a1-words-answer": {"weights, with a number": 1, "gradients, with a number": 1}
}
