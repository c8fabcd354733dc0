"""Assignment 3, accumulation: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
"""

import math

import numpy as np

from mplab import (
    BF16,
    FP6_E2M3,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Format,
    round_to,
    ulp,
)
from mplab.course import Exercise, but
from mplab.course.grading import Graded, Part

E4M3 = FP8_E4M3
OTHERS = (FP8_E5M2, FP16, BF16)


def rounded(x, fmt):
    return float(round_to(float(x), fmt))


def exact(x, fmt):
    return x


def odd_formats(rng, count):
    """Formats that nobody builds, drawn for one student."""
    widths = [(int(rng.integers(5, 7)), int(rng.integers(3, 10))) for _ in range(count)]
    return [Format(f"E{e}M{p - 1}", exponent_bits=e, precision=p) for e, p in widths]


def value(rng, fmt, low, high):
    """A value of the format between two powers of two."""
    return rounded(2.0 ** rng.uniform(low, high), fmt)


def terms(rng, fmt, count, *, low=-2.0, high=2.0, signed=False):
    """Values of a format with sizes between two powers of two."""
    x = 2.0 ** rng.uniform(low, high, count)
    return round_to(x * rng.choice((-1, 1), count) if signed else x, fmt)


def each(rng, more=3):
    return [*OTHERS, *odd_formats(rng, more)]


# Where it stops --------------------------------------------------------------------------


def power_above(step):
    significand, exponent = math.frexp(step)
    return exponent - (significand == 0.5)


def power_beyond(step):
    return math.frexp(step)[1]


def stall_of(start, step, fmt, *, power=power_above, late=rounded):
    """Stop at the power of two whose gap is twice the step (a tie); from beyond, after one step."""
    stop = 2.0 ** (fmt.precision + power(step))
    return rounded(start + step, fmt) if start >= stop else late(stop, fmt)


STALL = Exercise(
    answer=stall_of,
    uses=("round_to", "ulp"),
    reason="Compare the step with half the gap at the total, and look at ties.",
    argument="start, step, fmt",
    fmt=E4M3,
    cases=[(start, step, E4M3) for start, step in (
        (0.0, 1.0), (0.0, 0.25), (0.0, 1.5), (3.0, 1.0), (0.0, 5.0), (20.0, 1.0), (18.0, 1.0),
        (30.0, 1.0), (64.0, 1.0), (0.0, 2.0**-9), (0.0, 32.0), (416.0, 16.0), (448.0, 16.0))]
        + [(0.0, 1.0, FP32)],
    misconceptions=(
        but(stall_of, "Half a gap is a tie, and an even total wins it: it stops there already.",
            power=power_beyond),
        but(stall_of, "That place lies beyond max_finite: the total overflows on the way.",
            late=exact),
    ),
)  # fmt: skip


def ordinary_stalls(rng):
    """From nothing or little, with steps of all digits, far below overflow."""
    for fmt in (*each(rng, 4), TF32, FP32):
        for _ in range(8):
            step = value(
                rng, fmt, max(fmt.emin, -40), min(fmt.emax - fmt.precision - 2, 40)
            )
            start = rounded(step * rng.integers(0, 2 ** (fmt.precision - 1)), fmt)
            yield (start, step, fmt)


def powers_of_two(rng):
    """Steps that come to ties, subnormal ones too; in FP32 too far to add one by one."""
    for fmt in (*each(rng), FP32):
        least, most = fmt.emin - fmt.precision + 1, fmt.emax - fmt.precision - 1
        some = [least, *rng.integers(least, min(most, 60), 6)]
        yield from ((0.0, 2.0 ** int(k), fmt) for k in some)
    yield from ((0.0, 2.0 ** int(k), FP32) for k in rng.integers(-60, 60, 30))


def large_totals(rng):
    """Odd and even totals where the step is half a gap, or less."""
    for fmt in (*each(rng), FP32):
        for _ in range(8):
            start = value(rng, fmt, 2, min(fmt.emax - 1, 60))
            gap = float(ulp(start, fmt))
            start = (start // (2 * gap) * 2 + float(rng.integers(2))) * gap
            step = rounded(gap * rng.choice((0.5, 0.5, rng.uniform(0.1, 0.49))), fmt)
            yield (start, step, fmt)


def last_totals(rng):
    """At max_finite and before it, with steps around half the last gap."""
    for fmt in (E4M3, FP6_E2M3, *each(rng)):
        gap = float(ulp(fmt.max_finite, fmt))
        step = rounded(gap * rng.uniform(0.55, 3), fmt)
        for start in (0.0, fmt.max_finite - gap, fmt.max_finite):
            yield from ((start, s, fmt) for s in (gap / 2, gap / 4, step))


# In lanes --------------------------------------------------------------------------------


def strided(i, count, lanes):
    return i % lanes


def in_blocks(i, count, lanes):
    return i // -(-count // lanes)


def lanes_of(x, lanes, fmt, *, lane=strided, rounding=rounded):
    totals = [0.0] * lanes
    for i, term in enumerate(x):
        at = lane(i, len(x), lanes)
        totals[at] = rounding(totals[at] + float(term), fmt)
    while len(totals) > 1:
        half = len(totals) // 2
        pairs = zip(totals[:half], totals[half:], strict=True)
        totals = [rounding(a + b, fmt) for a, b in pairs]
    return rounded(totals[0], fmt)


_SEED = np.random.default_rng(3)
_SHORT = terms(_SEED, E4M3, 11, signed=True)
_LONG = terms(_SEED, E4M3, 40, low=-1, high=1)

LANES = Exercise(
    answer=lanes_of,
    uses=("round_to", "ulp"),
    reason="Which lane takes a term, and which totals meet, decides the roundings.",
    argument="x, lanes, fmt",
    fmt=E4M3,
    cases=[(np.array(x), lanes, E4M3) for x, lanes in (
        ([1.0, 2.0], 2), ([1.5], 4), ([], 2), ([16.0, 1.0, 16.0, 1.0], 2),
        ([16.0, 1.0, 1.0, 0.5], 4), ([1.0, 16.0, 1.0, 18.0], 4), ([1.0] * 20, 4),
        (_SHORT, 2), (_SHORT, 4), (_LONG, 8), (_LONG, 1))],
    misconceptions=(
        but(lanes_of, "Term i goes to lane i % lanes: neighbours go to different lanes.",
            lane=in_blocks),
        but(lanes_of, "Every addition rounds, not only the last one.", rounding=exact),
    ),
)  # fmt: skip


def lane_cases(rng, fmts, counts, lanes=(2, 4, 8), **kind):
    return [(terms(rng, fmt, rng.integers(*counts), **kind),
             int(rng.choice(lanes)), fmt) for fmt in fmts]  # fmt: skip


def full_lanes(rng):
    return [(terms(rng, fmt, lanes * rng.integers(4, 8), signed=bool(lanes % 3 - 1)),
             lanes, fmt) for fmt in each(rng, 4) for lanes in (4, 8)]  # fmt: skip


def ragged(rng):
    fmts = each(rng, 4)
    few = lane_cases(rng, fmts, (1, 7), (8,))
    return [*lane_cases(rng, fmts, (9, 12), (4,)), *lane_cases(rng, fmts, (17, 24), (8,)), *few,
            (np.zeros(0), 4, FP16)]  # fmt: skip


def stagnating(rng):
    """Terms of about one size, more of them than one accumulator takes."""
    fmts = [FP8_E5M2, E4M3, *(f for f in odd_formats(rng, 12) if f.precision < 6)]
    return lane_cases(rng, fmts[:6], (50, 80), (4, 8, 16), low=-1.5, high=1.5)


# Compensated -----------------------------------------------------------------------------


def compensated_of(total, lost, x, fmt, *, kept=True, against="corrected", op=rounded):
    for term in map(float, x):
        corrected = op(term + kept * lost, fmt)
        new = rounded(total + corrected, fmt)
        took = op(new - total, fmt)
        given = corrected if against == "corrected" else term
        lost = op(given - took, fmt)
        total = new
    return total, lost


_CURVED = terms(_SEED, E4M3, 12, low=-2, high=3)

COMPENSATED = Exercise(
    answer=compensated_of,
    uses=("round_to", "ulp"),
    reason="Four operations for each term, each rounded; the loss goes to the next term.",
    argument="total, lost, x, fmt",
    fmt=E4M3,
    cases=[(*state, np.array(x), E4M3) for state, x in (
        ((0.0, 0.0), [1.5]), ((0.0, 0.0), [1.0, 2.0, 4.0]), ((16.0, 0.0), [1.0]),
        ((16.0, 1.0), [1.0]), ((16.0, 0.0), [1.0, 1.0, 1.0]), ((2.0, 0.0), []),
        ((-16.0, 0.0), [1.25, 0.5]), ((16.0, 1.0), [1.125]), ((0.0, 0.0), _CURVED),
        ((9.0, -0.4375), _CURVED), ((0.0, 0.0), [1.0] * 40), ((0.125, 0.0), [2.25]))],
    misconceptions=(
        but(compensated_of, "What was lost never reaches the next term.", kept=False),
        but(compensated_of, "Compare with the corrected term, which carries the earlier loss.",
            against="term"),
        but(compensated_of, "All four operations round to the format, not only the total.",
            op=exact),
    ),
)  # fmt: skip


def state_of(rng, fmt, total):
    """A total, and a loss of up to half its gap."""
    half = float(ulp(total, fmt)) / 2
    return total, rounded(half * rng.uniform(-1, 1), fmt)


def from_nothing(rng):
    return [(0.0, 0.0, terms(rng, fmt, 12, signed=bool(i % 2)), fmt)
            for i, fmt in enumerate(each(rng, 7))]  # fmt: skip


def resumed(rng):
    """From a state in the middle, where the old loss decides."""
    for fmt in each(rng, 7):
        state = state_of(rng, fmt, value(rng, fmt, 3, 7))
        yield (*state, terms(rng, fmt, 6), fmt)
    # What a term took of a total far below it has more digits than the format.
    for fmt in OTHERS:
        yield (0.75 * fmt.epsilon, 0.0, terms(rng, fmt, 1, low=0, high=1), fmt)
    yield (*state_of(rng, BF16, value(rng, BF16, 3, 7)), np.zeros(0), BF16)


def small_beside_large(rng):
    """Terms below half a gap of the total: without the loss it would not move."""
    for fmt in (*OTHERS, E4M3, *odd_formats(rng, 2)):
        total = rounded(2.0 ** rng.integers(3, 6) * rng.uniform(1, 2), fmt)
        x = round_to(float(ulp(total, fmt)) * rng.uniform(0.05, 0.45, 24), fmt)
        yield (total * float(rng.choice((-1, 1))), 0.0, x, fmt)


# Promoted --------------------------------------------------------------------------------


def promoted_of(a, b, every, fmt, wide, *, wide_inside=False, reset=True):
    total = partial_sum = 0.0
    for i in range(len(a)):
        term = rounded(float(a[i]) * float(b[i]), fmt)
        partial_sum = rounded(partial_sum + term, wide if wide_inside else fmt)
        if i + 1 == len(a) or (i + 1) % every == 0:
            total = rounded(total + partial_sum, wide)
            partial_sum = 0.0 if reset else partial_sum
    return total


def products(rng, fmt, count, **kind):
    return terms(rng, fmt, count, **kind), terms(rng, fmt, count, **kind)


_A, _B = products(_SEED, E4M3, 22, low=0, high=2)
_C, _D = products(_SEED, E4M3, 12, signed=True)
_ONES = np.ones(20)
_E5M5 = Format("E5M5", exponent_bits=5, precision=6)

PROMOTED = Exercise(
    answer=promoted_of,
    uses=("round_to", "ulp"),
    reason="Product, partial sum and total have a rounding each; look at where a group ends.",
    argument="a, b, every, fmt, wide",
    cases=[(np.array(a), np.array(b), every, E4M3, wide) for a, b, every, wide in (
        ([1.5], [2.0], 1, FP16), ([1.125], [1.125], 1, FP16), ([16.0, 1.0], [1.0, 1.0], 2, FP16),
        ([16.0, 1.0], [1.0, 1.0], 1, FP16), ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], 2, FP16),
        ([], [], 4, FP16), (_ONES, _ONES, 8, FP16), (_ONES, _ONES, 20, FP16),
        (_C, _D, 4, FP16), (_A, _B, 5, FP16), (_A, _B, 1, _E5M5), (_A, _B, 11, _E5M5))],
    misconceptions=(
        but(promoted_of, "The partial sum is kept in the narrow format, that of the products.",
            wide_inside=True),
        but(promoted_of, "A new partial sum begins at 0.0; the old one has been added.",
            reset=False),
    ),
)  # fmt: skip


def promotions(rng, counts, groups, *, rest=0, signed=False):
    """Whole groups and a rest, in pairs of a format and a wider one."""
    pairs = [
        (E4M3, FP16),
        (FP8_E5M2, _E5M5),
        (BF16, TF32),
        (FP8_E5M2, BF16),
        (_E5M5, FP16),
    ]
    for fmt, wide in pairs:
        every = int(rng.integers(*groups))
        count = every * rng.integers(*counts) + rest % every
        a, b = products(rng, fmt, count, low=-1, high=2, signed=signed)
        yield (a, b, every, fmt, wide)


def ends_of_promotion(rng):
    """Narrow products in a wide accumulator, and a narrow accumulator."""
    for a, b, _, fmt, wide in promotions(rng, (1, 2), (20, 30)):
        yield from ((a, b, every, fmt, wide) for every in (1, len(a)))


# Running means ---------------------------------------------------------------------------


def moved(mean, x, n, fmt):
    return rounded(mean + rounded(rounded(x - mean, fmt) / n, fmt), fmt)


def rounded_once(mean, x, n, fmt):
    return rounded(mean + (x - mean) / n, fmt)


def means_of(x, fmt, *, step=moved, first=1):
    mean = 0.0
    n = float(first)
    shown = []
    for term in map(float, x):
        mean, n = step(mean, term, n, fmt), exact(n + 1, fmt)
        shown.append(mean)
    return np.array(shown)


def total_over_count(x, fmt):
    total = 0.0
    shown = []
    for n, term in enumerate(map(float, x), 1):
        total = rounded(total + term, fmt)
        shown.append(rounded(total / n, fmt))
    return np.array(shown)


_LOSSES = round_to(np.linspace(3.0, 0.5, 20) + _SEED.uniform(-0.4, 0.4, 20), E4M3)

MEANS = Exercise(
    answer=means_of,
    uses=("round_to", "ulp"),
    reason="Three roundings for each term: the difference, its n-th part, the new mean.",
    argument="x, fmt",
    fmt=E4M3,
    cases=[(np.array(x), E4M3) for x in (
        [1.5], [1.0, 2.0], [], [384.0, 448.0], [0.5, 9.0], [1.0, 0.5, 6.5], [1.0, 0.5, 15.0],
        [-7.0, 2.0, 0.5, 1.125], [448.0] * 5, [2.0, 3.5, 1.0, 0.75, 5.0, 1.75], _LOSSES)],
    misconceptions=(
        but(total_over_count, "The mean is in range, but the total is not, or stops."),
        but(means_of, "Difference, quotient and new mean are rounded, each of them.",
            step=rounded_once),
        but(means_of, "n counts the new term as well: it is 1 at the first one.", first=2),
    ),
)  # fmt: skip


def meters(rng):
    """Losses that fall, in more steps than a narrow count can count."""
    for fmt in (FP8_E5M2, E4M3, E4M3, FP8_E5M2, *odd_formats(rng, 4), BF16, FP16):
        n = rng.integers(22, 30)
        x = np.linspace(rng.uniform(2, 6), rng.uniform(0.3, 1), n) * rng.uniform(
            0.8, 1.2, n
        )
        yield (round_to(x, fmt), fmt)


def near_overflow(rng):
    for fmt in (*OTHERS, E4M3, *odd_formats(rng, 2)):
        x = fmt.max_finite * rng.uniform(0.5, 1, rng.integers(6, 12))
        yield (round_to(x, fmt), fmt)


def both_signs(rng):
    return [(terms(rng, fmt, 10, signed=True), fmt)
            for fmt in (*each(rng, 6), E4M3, E4M3)]  # fmt: skip


GRADED = {
    "stall": Graded(
        "stall",
        STALL,
        (
            Part("other formats", 1, "Only the precision of the format and the step decide.",
                 ordinary_stalls),
            Part("steps that are powers of two", 1, "Half a gap is a tie.", powers_of_two),
            Part("totals that are large already", 1,
                 "Beyond that place a tie moves an odd total once.", large_totals),
            Part("around the largest finite value", 1, "Look at overflow, and at ties before it.",
                 last_totals),
        ),
        seconds=8.0,
    ),
    "lane_sum": Graded(
        "lane_sum",
        LANES,
        (
            Part("full lanes in other formats", 1, LANES.reason, full_lanes),
            Part("lanes that are not full", 1, "Lengths that are no multiple of the lanes.",
                 ragged),
            Part("long sums", 1, "Here one accumulator would stop.", stagnating),
        ),
    ),
    "compensated": Graded(
        "compensated",
        COMPENSATED,
        (
            Part("from nothing, in other formats", 1, COMPENSATED.reason, from_nothing),
            Part("from a state in the middle", 2, "A loss that is handed in counts as well.",
                 resumed),
            Part("small terms beside a large total", 1, "Only the loss makes such a total move.",
                 small_beside_large),
        ),
    ),
    "promoted_dot": Graded(
        "promoted_dot",
        PROMOTED,
        (
            Part("whole groups, other formats", 1, PROMOTED.reason,
                 lambda rng: [*promotions(rng, (3, 6), (3, 6)),
                              *promotions(rng, (3, 6), (3, 6), signed=True)]),
            Part("a group that is not full", 2, "The terms after the last whole group count.",
                 lambda rng: [*promotions(rng, (4, 7), (3, 6), rest=2),
                              *promotions(rng, (0, 1), (9, 12), rest=7)]),
            Part("groups of one, and of all", 1, "Groups of one: narrow products, wide total.",
                 ends_of_promotion),
        ),
    ),
    "running_means": Graded(
        "running_means",
        MEANS,
        (
            Part("a falling loss", 1, MEANS.reason, meters),
            Part("both signs", 1, "The difference has a sign; nothing else changes.", both_signs),
            Part("close to the largest finite value", 1, "No step may leave the range.",
                 near_overflow),
        ),
    ),
}  # fmt: skip
