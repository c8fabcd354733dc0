"""Assignment 2, rounding: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
"""

import math

from mplab import (
    BF16,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Rounding,
    decode,
    round_to,
    ulp,
)
from mplab.course import Exercise, but
from mplab.course.grading import Graded, Part

E4M3 = FP8_E4M3
OTHERS = (FP8_E5M2, FP16, BF16, TF32)
ALL = (*OTHERS, E4M3)


def shown(*cases):
    """Cases of E4M3, whose codes a counterexample can print."""
    return [(x, E4M3, *more) for x, *more in cases]


def drawn(rng, fmt, *, low=None, high=None):
    """A number between two powers of two, of either sign, with all bits of a float64."""
    low = fmt.emin if low is None else low
    high = fmt.emax if high is None else high
    return float(rng.choice((-1, 1)) * 2.0 ** rng.uniform(low, high))


def some(rng, fmts, count):
    return [(drawn(rng, fmt), fmt) for fmt in fmts for _ in range(count)]


def subnormal(rng):
    """Below the smallest normal number, at it, and around half of the smallest one."""
    cases = [(drawn(rng, f, low=f.emin - f.precision - 1, high=f.emin), f)
             for f in ALL for _ in range(8)]  # fmt: skip
    parts = (0.5, math.nextafter(0.5, 0), math.nextafter(0.5, 1))
    half = [(s * f.min_subnormal * h, f) for f in ALL for s in (-1, 1) for h in parts]
    return [*cases, *half, *((f.min_normal, f) for f in ALL)]


def middles(rng, fmts=ALL, *, aside=(0,)):
    """Exactly halfway between neighbours; `aside` adds the floats next to it."""
    for fmt in fmts:
        last = int(fmt.infinity_code or fmt.nan_code) - 2
        for code in rng.integers(0, last, 8):
            middle = (
                float(decode(int(code), fmt)) + float(decode(int(code) + 1, fmt))
            ) / 2
            middle *= int(rng.choice((-1, 1)))
            beside = {
                -1: math.nextafter(middle, -math.inf),
                1: math.nextafter(middle, math.inf),
            }
            yield from ((beside.get(side, middle), fmt) for side in aside)


def overflow(rng, *, infinite=True):
    """At max_finite and beyond it, on both sides of half a gap."""
    for fmt in ALL:
        top = fmt.max_finite
        gap = float(ulp(fmt.max_finite, fmt))
        beyond = top + gap / 2
        for x in (
            top,
            top + gap * rng.uniform(0.01, 0.49),
            beyond,
            math.nextafter(beyond, 0),
            top + gap * rng.uniform(0.51, 3),
            2 * top,
        ):
            yield (x, fmt)
            yield (-x, fmt)
        if infinite:
            yield from ((x, fmt) for x in (math.inf, -math.inf, math.nan))


# The gap ---------------------------------------------------------------------------------


def gap_of(x, fmt):
    return float(ulp(x, fmt))


def gap_formula(x, fmt, *, least="emin", relative=False):
    if relative:
        return abs(x) * fmt.epsilon
    exponent = math.frexp(x)[1] - 1 if x else fmt.emin
    exponent = max(exponent, getattr(fmt, least)) if least else exponent
    return math.ldexp(1.0, exponent - fmt.precision + 1)


GAP = Exercise(
    answer=gap_of,
    reason="A power of two: that of the last of `precision` bits, at the exponent of x.",
    argument="x, fmt",
    fmt=E4M3,
    cases=shown((1.0,), (1.9,), (2.0,), (-7.0,), (0.3,), (100.0,), (448.0,), (2.0**-6,),
                (2.0**-7,), (1.3 * 2.0**-9,), (0.0,), (math.nextafter(16.0, 0),)),
    misconceptions=(
        but(gap_formula, "Below the smallest normal number the gap stays the same.", least=""),
        but(gap_formula, "The gap is the same from one power of two to the next.", relative=True),
    ),
)  # fmt: skip

# To nearest ------------------------------------------------------------------------------


def even(x, fmt):
    return float(round_to(x, fmt))


def away(v):
    return math.copysign(math.floor(abs(v) + 0.5), v)


def rounded(x, fmt, *, steps=round, least="emin"):
    """Rounding, with an option for each mistake."""
    if not math.isfinite(x):
        return even(x, fmt)
    gap = gap_formula(x, fmt, least=least)
    y = math.copysign(abs(steps(x / gap) * gap), x)
    return even(2 * y, fmt) if abs(y) > fmt.max_finite else y


EVEN = Exercise(
    answer=even,
    reason="Count in gaps at x, round to an integer, ties to even; then look for overflow.",
    argument="x, fmt",
    fmt=E4M3,
    cases=shown((1.0,), (1.1,), (17.0,), (19.0,), (-19.0,), (-17.0,), (23.9,), (0.02,),
                (2.0**-10,), (math.nextafter(2.0**-10, 1),), (3 * 2.0**-10,), (17.004,), (-0.0,),
                (-1e-5,), (460.0,), (464.0,), (465.0,), (-500.0,), (math.inf,), (math.nan,)),
    misconceptions=(
        but(rounded, "Cutting bits off rounds toward zero, not to nearest.", steps=math.trunc),
        but(rounded, "A tie goes to the even neighbour, not away from zero.", steps=away),
        but(rounded, "Below the smallest normal number the gap stays the same.", least=""),
    ),
)  # fmt: skip

# Upward ----------------------------------------------------------------------------------


def toward_positive(x, fmt):
    return float(round_to(x, fmt, rounding=Rounding.TOWARD_POSITIVE))


def up_formula(x, fmt, *, steps):
    gap = gap_of(x, fmt)
    y = steps(x / gap) * gap
    return toward_positive(math.copysign(abs(y), x), fmt)


def outward(v):
    return math.copysign(math.ceil(abs(v)), v)


def one_more(v):
    return math.floor(v) + 1


UP = Exercise(
    answer=toward_positive,
    reason="At least x, and as small as possible; for negative numbers that is nearer to zero.",
    argument="x, fmt",
    fmt=E4M3,
    cases=shown((1.0,), (math.nextafter(1.0, 2),), (1.1,), (-1.1,), (17.0,), (-17.5,), (1e-6,),
                (-1e-6,), (0.02,), (-0.02,), (448.5,), (-448.5,), (-1e4,)),
    misconceptions=(
        but(up_formula, "Up is toward +infinity: a negative number comes nearer to zero.",
            steps=outward),
        but(up_formula, "A value of the format stays where it is.", steps=one_more),
    ),
)  # fmt: skip

# Twice -----------------------------------------------------------------------------------


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def twice(x, wide, fmt):
    return not same(even(x, fmt), even(even(x, wide), fmt))


def with_equal_nan(x, wide, fmt):
    return even(x, fmt) != even(even(x, wide), fmt)


def first_inexact(x, wide, fmt):
    return not same(even(x, wide), x)


def lands_on_tie(x, wide, fmt):
    y = even(x, wide)
    return y != x and math.isfinite(y) and (abs(y) / gap_of(y, fmt)) % 1 == 0.5


TWICE = Exercise(
    answer=twice,
    uses=("round_to",),
    reason="It differs if the first rounding reaches a tie, and the tie goes to the other side.",
    argument="x, wide, fmt",
    cases=[(x, FP16, E4M3) for x in (1.0, 17.0, 17.004, 17.3, 18.996, 19.004, -17.004, 1.1,
                                     500.0)],
    misconceptions=(
        but(with_equal_nan, "NaN is not equal to itself: ask math.isnan."),
        but(first_inexact, "An inexact first step alone does no harm, as for 1.1."),
        but(lands_on_tie, "A tie reached from the side where it goes does no harm."),
    ),
)  # fmt: skip


def beside_ties(rng):
    pairs = (
        (FP32, FP16),
        (FP32, BF16),
        (BF16, FP8_E5M2),
        (FP16, FP8_E5M2),
        (TF32, E4M3),
    )
    for wide, fmt in pairs:
        for x, _ in middles(rng, (fmt,), aside=(-1, 0, 1)):
            yield (x, wide, fmt)


def ordinary(rng):
    return [(drawn(rng, fmt, low=-6, high=6), wide, fmt)
            for wide, fmt in ((FP32, FP16), (BF16, FP8_E5M2), (FP16, E4M3), (TF32, FP8_E5M2))
            for _ in range(25)] + [
        (float(s * rng.uniform(500, 6e4)), FP32, E4M3) for s in (1, -1)
    ] + [(math.nextafter(m, 99), FP32, E4M3) for m in (17.0, 19.0)] + [
        (s * math.nextafter(m, far), FP32, fmt)  # one of the two results is NaN
        for m, far, fmt in ((464.0, 999, E4M3), (248.0, 0, FP8_E4M3FNUZ)) for s in (1, -1)
    ]  # fmt: skip


# By chance -------------------------------------------------------------------------------


def random_of(x, fmt, r, *, chance=lambda f, r: r < f, least="emin"):
    """Right by default, with an option for each mistake; nothing is rounded but the result."""
    gap = gap_formula(x, fmt, least=least)
    v = abs(x) / gap
    return math.copysign((math.floor(v) + chance(v - math.floor(v), r)) * gap, x)


RANDOM = Exercise(
    answer=random_of,
    uses=("round_to", "next_up", "next_down", "ulp"),
    reason="The fraction is the distance from the smaller neighbour, in gaps; compare r with it.",
    argument="x, fmt, r",
    fmt=E4M3,
    cases=shown((1.0, 0.5), (1.0, 0.0), (1.03, 0.2), (1.03, 0.3), (17.5, 0.7), (17.5, 0.8),
                (17.5, 0.2), (-1.03, 0.2), (-1.1, 0.5), (-17.4, 0.75), (0.0025, 0.2),
                (0.0025, 0.4), (17.5, 0.75), (0.0, 0.3), (-0.0, 0.3)),
    misconceptions=(
        but(random_of, "A value of the format must not move, even for r = 0.",
            chance=lambda f, r: r <= f),
        but(random_of, "The nearer neighbour must be the likelier one.",
            chance=lambda f, r: f > 0 and r >= f),
        but(random_of, "Below the smallest normal number the gap stays the same.", least=""),
    ),
)  # fmt: skip


def chances(rng, cases):
    return [(x, fmt, float(r)) for x, fmt in cases for r in (rng.random(), 0.0)]


def at_fraction(rng):
    """r exactly at the fraction, and the float before it."""
    for fmt in ALL:
        for k in rng.integers(1, 8, 6):
            x = (1 + fmt.epsilon * float(k) / 8) * float(rng.choice((-1, 1)))
            r = float(k) / 8
            yield (x, fmt, r)
            yield (x, fmt, math.nextafter(r, 0))


GRADED = {
    "gap_at": Graded(
        "gap_at",
        GAP,
        (
            Part("other formats", 1, "Use precision and emin of the format that is given.",
                 lambda rng: some(rng, OTHERS, 12)),
            Part("powers of two", 1,
                 "A power of two has the gap of the numbers above it; the float before it has not.",
                 lambda rng: [(x, f) for f in OTHERS
                              for k in (3, *rng.integers(f.emin, f.emax + 1, 6))
                              for x in (2.0 ** int(k), math.nextafter(2.0 ** int(k), 0))]),
            Part("subnormal numbers", 1, "Look at numbers below min_normal.",
                 lambda rng: [*subnormal(rng), *((0.0, f) for f in OTHERS)]),
        ),
    ),
    "round_even": Graded(
        "round_even",
        EVEN,
        (
            Part("other formats", 1, EVEN.reason, lambda rng: some(rng, OTHERS, 20)),
            Part("ties and the floats beside them", 2,
                 "Exactly halfway, even wins; the smallest distance from there decides otherwise.",
                 lambda rng: middles(rng, aside=(-1, 0, 1))),
            Part("subnormal numbers and zeros", 2, "Look at numbers below min_normal, and at -0.0.",
                 lambda rng: [*subnormal(rng), *((-0.0, f) for f in OTHERS)]),
            Part("overflow", 1, "Look around max_finite, at infinity and at NaN.", overflow),
        ),
    ),
    "round_up": Graded(
        "round_up",
        UP,
        (
            Part("other formats", 1, UP.reason,
                 lambda rng: [*some(rng, OTHERS, 20),
                              *((math.nextafter(s, to), f) for f in OTHERS
                                for s in (2.0 ** int(rng.integers(-6, 6)), -1.0)
                                for to in (-9, s, 99))]),
            Part("subnormal numbers and zeros", 2, "Look at numbers below min_normal, both signs.",
                 subnormal),
            Part("overflow", 1, "Look beyond max_finite on both sides.",
                 lambda rng: overflow(rng, infinite=False)),
        ),
    ),
    "round_twice": Graded(
        "twice_differs",
        TWICE,
        (
            Part("beside ties", 2, "Look at the floats next to a tie, on both sides.", beside_ties),
            Part("ordinary numbers and overflow", 1, TWICE.reason, ordinary),
        ),
    ),
    "round_random": Graded(
        "round_random",
        RANDOM,
        (
            Part("other formats", 1, RANDOM.reason,
                 lambda rng: chances(rng, [*some(rng, OTHERS, 12), (1.0, FP16)])),
            Part("r at the fraction", 1,
                 "r equal to the fraction does not go up; the float before it does.", at_fraction),
            Part("subnormal numbers", 1, "Look at numbers below min_normal.",
                 lambda rng: chances(rng, [*subnormal(rng), (0.0, FP16), (-0.0, FP16)])),
        ),
    ),
}  # fmt: skip
