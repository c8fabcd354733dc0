"""Assignment 8, numerics in few bits: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
"""

import math
from fractions import Fraction
from functools import partial

import numpy as np

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, round_to, ulp
from mplab.course import Exercise, but
from mplab.course.grading import Graded, Part


def fl(x, fmt):
    return float(round_to(float(x), fmt))


def pick(rng, choices):
    return choices[rng.integers(len(choices))]


# A variance on the way -------------------------------------------------------------------


def running(x, fmt, *, divide=lambda n: n - 1, before_only=False):
    """Welford's rows: the variance after each reading, and how uncertain the data leave it."""
    mean = fl(x[0], fmt)
    m2 = 0.0
    rows = []
    for n in range(2, len(x) + 1):
        before = fl(x[n - 1] - mean, fmt)
        mean = fl(mean + fl(before / n, fmt), fmt)
        after = before if before_only else fl(x[n - 1] - mean, fmt)
        m2 = fl(m2 + fl(before * after, fmt), fmt)
        variance = fl(m2 / divide(n), fmt)
        error = 2 * fmt.unit_roundoff * abs(mean) * math.sqrt(variance)
        rows.append((variance, error))
    return np.array(rows).T


def one_pass(x, fmt):
    """The textbook formula, in the format."""
    rows = []
    total = 0.0
    squares = 0.0
    for n, reading in enumerate(x, 1):
        total = fl(total + reading, fmt)
        squares = fl(squares + fl(reading * reading, fmt), fmt)
        mean = fl(total / n, fmt)
        m2 = fl(squares - fl(total * mean, fmt), fmt)
        variance = fl(m2 / max(n - 1, 1), fmt)
        error = 2 * fmt.unit_roundoff * abs(mean) * math.sqrt(max(variance, 0.0))
        rows.append((variance, error))
    return np.array(rows[1:]).T


def readings(rng, fmt, count, *, mean=0.0, sd=1.0):
    x = mean * (1 if rng.random() < 0.5 else -1) + sd * rng.standard_normal(count)
    return (np.asarray(round_to(x, fmt)), fmt)


VARIANCE = Exercise(
    answer=running,
    uses=("round_to",),
    reason="Round each result; the mean moves before the product; the second row takes u.",
    argument="x, fmt",
    tolerance=1e-12,
    cases=[(np.array(x), fmt) for x, fmt in (
        ([1.0, 3.0], FP16),
        ([-2.0, 2.0, 3.0], BF16),
        ([5.0, 5.0, 5.0], FP8_E4M3),
        ([-1.5, -9.0, 9.0, 9.0], FP8_E4M3),  # each rounding counts
        ([-1.0, 0.40625, 0.8125, -0.34375, 0.8125, 0.1015625], FP8_E4M3),
        ([64.0, 64.5, 63.25, 65.0, 64.25, 63.5, 66.0], BF16),
        (round_to(-9 + np.sin(np.arange(12.0)), BF16), BF16),
    )],
    misconceptions=(
        but(one_pass, "The mean of squares cancels against the square of the mean."),
        but(running, "Of n readings, n - 1 distances are free: divide by n - 1.",
            divide=lambda n: n),
        but(running, "One distance is from the old mean, the other from the new one; not twice "
            "from the old.", before_only=True),
    ),
)  # fmt: skip

# A step that is not lost -----------------------------------------------------------------


def cooled(k, room, start, goal, dt, fmt, *, kept=False):
    """Whether a run reaches the goal; if not, it returns to an earlier state."""
    t = fl(start, fmt)
    rest = 0.0
    seen = set()
    side = start > goal
    while (t, rest) not in seen:
        if (t <= goal) if side else (t >= goal):
            return True
        seen.add((t, rest))
        due = dt * k * (room - t)
        due = fl(due + rest, fmt) if kept else due
        new = fl(t + due, fmt)
        rest = fl(due - fl(new - t, fmt), fmt) if kept else 0.0
        t = new
    return False


KAHAN = partial(cooled, kept=True)


def finest(k, room, start, goal, halvings, fmt, *, plain=cooled):
    """The shortest step that reaches the goal, plain and compensated; NaN if none does."""
    steps = [2.0**-j for j in range(halvings + 1)]
    return np.array(
        [min((dt for dt in steps if way(k, room, start, goal, dt, fmt)), default=math.nan)
         for way in (plain, KAHAN)]
    )  # fmt: skip


def half_a_gap(k, room, start, goal, dt, fmt, *, ties):
    """Whether a step moves, by a rule at the goal instead of along the way."""
    step = abs(dt * k * (room - fl(goal, fmt)))
    limit = 0.5 * float(ulp(fl(goal, fmt), fmt))
    return step > limit or (ties and step == limit)


def cups(rng, fmts, count, *, heating=False):
    """Rooms, goals and rates whose two answers differ, and mostly lie between the ends."""
    cases = []
    while len(cases) < count:
        fmt = pick(rng, fmts)
        k = float(pick(rng, (0.25, 0.5, 0.375, 0.75)))
        room = fl(rng.uniform(1, 40), fmt)
        far = float(rng.uniform(30, 60)) * (-1 if heating else 1)
        near = float(rng.uniform(2, 14)) * (-1 if heating else 1)
        arguments = (
            k,
            room,
            float(fl(room + far, fmt)),
            float(fl(room + near, fmt)),
            5,
            fmt,
        )
        plain, kahan = finest(*arguments)
        if arguments[2] != arguments[3] and plain < 1 and kahan < plain:
            cases.append(arguments)
    return cases


def between(rng):
    """A start that the format rounds up, away from the goal; and a goal out of reach."""
    start = 62 + rng.uniform(0.05, 0.3)
    return [(0.25, 20.0, start, goal, 6, FP8_E4M3) for goal in (60.0, 10.0)]


FREEZING = Exercise(
    answer=finest,
    uses=("round_to", "ulp", "next_up", "next_down"),
    reason="Follow the run: it is at its goal, or in a state in which it has been before.",
    argument="k, room, start, goal, halvings, fmt",
    cases=[
        (0.25, 20.0, 60.0, 30.0, 5, BF16),
        (0.5, 20.0, 88.0, 32.0, 6, FP8_E4M3),
        (0.25, 20.0, 60.0, 21.0, 4, FP8_E4M3),
        (0.5, 16.0, 64.0, 24.0, 6, FP8_E5M2),
        (0.375, 28.0, -20.0, 20.0, 6, FP8_E4M3),
        (0.5, 16.0, 48.0, 20.0, 6, FP8_E4M3),
        (0.75, 20.0, 56.0, 26.0, 6, FP8_E4M3),
        (0.5, 0.0, 30.0, 36.0, 2, FP8_E4M3),
        (0.25, 36.0, 8.0, 32.0, 6, FP8_E4M3),
        (0.5, 20.0, 30.0, 28.0, 8, FP8_E4M3),
        (0.5, -20.0, -30.0, -28.0, 8, FP8_E4M3),
        (0.25, 20.0, 30.5, 30.0, 8, BF16),
        (0.25, 20.0, 30.0, 30.0, 2, BF16),
        (0.25, 20.0, 62.1, 60.0, 6, FP8_E4M3),  # begins at 64
    ],
    misconceptions=(
        but(finest, "A tie at an odd significand still moves: half a gap is not always lost.",
            plain=partial(half_a_gap, ties=False)),
        but(finest, "A tie at an even significand is lost: half a gap is not always enough.",
            plain=partial(half_a_gap, ties=True)),
    ),
)  # fmt: skip

# A system with three diagonals -----------------------------------------------------------


def power_of_two(top):
    """The scale of a residual: it brings the largest magnitude into [1, 2)."""
    return 2.0 ** (1 - math.frexp(top)[1])


def row_sum(lower, diagonal, upper):
    """The largest sum of magnitudes in a row."""
    rows = np.abs(diagonal)
    rows[1:] += np.abs(lower)
    rows[:-1] += np.abs(upper)
    return rows.max()


def column_sum(lower, diagonal, upper):
    return row_sum(upper, diagonal, lower)


@np.errstate(all="ignore")
def solve(lower, diagonal, upper, b, fmt, *, stored=fl, zero_only=False, low=False,
          scale=power_of_two, norm=row_sum, keep="best", patience=3, most=math.inf,
          end="stuck"):  # fmt: skip
    """Factors in the format, and corrections until three in a row bring no smaller error."""
    n = len(b)
    main = [stored(v, fmt) for v in diagonal]
    up = [stored(v, fmt) for v in upper]
    share = [stored(v, fmt) for v in lower]
    for i in range(n):
        if main[i] == 0 or not (zero_only or math.isfinite(main[i])):
            return {"x": np.zeros(n), "steps": 0, "error": 1.0, "why": "broken"}
        if i + 1 < n:
            share[i] = fl(share[i] / main[i], fmt)
            main[i + 1] = fl(main[i + 1] - fl(share[i] * up[i], fmt), fmt)

    def substituted(r):
        z = [fl(v, fmt) for v in r]
        for i in range(1, n):
            z[i] = fl(z[i] - fl(share[i - 1] * z[i - 1], fmt), fmt)
        z[n - 1] = fl(z[n - 1] / main[n - 1], fmt)
        for i in range(n - 2, -1, -1):
            z[i] = fl(fl(z[i] - fl(up[i] * z[i + 1], fmt), fmt) / main[i], fmt)
        return np.array(z)

    def left(x):
        r = b - diagonal * x
        r[1:] -= lower * x[:-1]
        r[:-1] -= upper * x[1:]
        return np.array([fl(v, fmt) for v in r]) if low else r

    weight = norm(lower, diagonal, upper)
    x = np.zeros(n)
    steps = 0
    least = math.inf
    best = np.zeros(n)
    waited = 0
    while True:
        r = left(x)
        size = weight * np.abs(x).max() + np.abs(b).max()
        error = np.abs(r).max() / size if r.any() else 0.0
        if error <= 2.0**-50:
            return {"x": x, "steps": steps, "error": error, "why": "converged"}
        waited = 0 if error < least else waited + 1
        if error < least:
            least, best = error, x
        if waited == patience or not math.isfinite(error) or steps == most:
            x, error = (best, least) if keep == "best" else (x, error)
            return {"x": x, "steps": steps, "error": error, "why": end}
        s = scale(np.abs(r).max())
        steps = steps + 1
        x = x + substituted(r * s) / s


def rough(rng, fmts, count):
    """Rods with rough factors: alternately one that no patience helps, and one that it does."""
    cases = []
    while len(cases) < count:
        n, fmt = int(rng.integers(4, 7)), pick(rng, fmts)
        lower, upper = -rng.uniform(0.4, 0.7, (2, n - 1))
        case = (lower, rng.uniform(1, 1.3, n), upper, rng.standard_normal(n), fmt)
        why = solve(*case)["why"]
        if why == "stuck":
            helped = solve(*case, patience=math.inf, most=60)["why"] == "converged"
        else:
            helped = solve(*case, patience=1)["why"] == "stuck"
        if helped == (why == "converged") == bool(len(cases) % 2):
            cases.append(case)
    return cases


def rods(rng, fmt, count, *, power=(0, 1)):
    """Rods: what a place hands to each neighbour is a share of what it has."""
    for _ in range(count):
        n = int(rng.integers(3, 9))
        size = 2.0 ** int(rng.integers(*power))
        diagonal = size * rng.uniform(1, 2, n) * rng.choice((-1, 1), n)
        lower, upper = (
            size * rng.uniform(0.1, 0.45, n - 1) * rng.choice((-1, 1), n - 1)
            for _ in range(2)
        )
        yield (lower, diagonal, upper, rng.standard_normal(n) * 3, fmt)


def singular(rng, fmt, count):
    """Rods whose last pivots nearly vanish or do, and those that leave the format."""
    for i in range(count):
        [(lower, diagonal, upper, b, _)] = rods(rng, fmt, 1)
        if i % 3 == 0:  # exactly: the second pivot is 0 in every format
            lower[0] = upper[0] = diagonal[0] = diagonal[1] = float(rng.integers(1, 9))
        if i % 3 == 1:
            place = int(rng.integers(len(diagonal)))
            diagonal[place] = pick(rng, (0.0 if place == 0 else 3e38, -3e38))
        if i % 3 == 2:  # nearly: rounding decides the last pivot
            diagonal[1] = lower[0] * upper[0] / diagonal[0] * (1 + fmt.unit_roundoff)
        yield (lower, diagonal, upper, b, fmt)


def rod(low, main, up, b, fmt):
    return (*(np.array(part, float) for part in (low, main, up, b)), fmt)


SYSTEM = Exercise(
    answer=solve,
    uses=("round_to",),
    reason="Factors and corrections in the format, operation by operation; scale, error and each "
    "end in float64, as the text has them.",
    argument="lower, diagonal, upper, b, fmt",
    tolerance=1e-9,
    cases=[
        rod([1], [2, 2], [1], [3, 3], FP16),
        rod([1], [2, 2], [1], [0, 0], FP16),
        rod([-1, -1], [3, 3, 3], [-1, -1], [1, 0.1, -2], FP16),
        rod([0.3, 0.4], [1.1, 0.9, 1.2], [0.2, -0.3], [1, 0, 0.3], BF16),
        rod([1], [1, 1], [1], [1, 2], FP16),
        rod([1], [0, 1], [1], [1, 2], BF16),
        rod([0.3], [1e5, 1.3], [0.7], [1, 2], FP16),
        rod([1.001], [1, 1.002], [1.001], [0.3, -0.7], FP16),
        rod([1, 1], [2, 1.5, 1], [1, 1], [1, 2, 3], FP16),
        rod([0.3, 0.2], [1, 1, 1e6], [0.3, 0.4], [1, 2, 3], FP16),
        rod([0], [1, 1e-5], [1], [1, 1], FP16),  # the correction is infinite
        rod([1 + 9 / 64], [1, 2 + 91 / 128], [1.5], [0, 1], FP8_E5M2),  # to and fro for ever
        rod([-0.6, -0.7], [1.1, 1.3, 1], [-0.5, -0.7], [0, 2, -1], FP8_E5M2),
        rod([-0.5, -0.7], [1, 1, 1], [-0.6, -0.7], [3, -2, 3], FP8_E5M2),
        rod([-0.5, -0.7, -0.4], [1, 1.1, 1.1, 1.3], [-0.5, -0.6, -0.6], [2, 3, -3, -1], FP8_E5M2),
        rod([-0.5, -0.7, -0.7, -0.7], [1.1, 1.1, 1.3, 1.3, 1.1], [-0.5, -0.6, -0.7, -0.4],
            [3, -2, 0, 1, 0], FP8_E4M3),
        rod([0.3, 0.4, 0.1], [1.1, 2.3, 0.9, 0.7], [1.2, -0.3, 0.5], [1, -4, 0, 0.3], FP8_E4M3),
    ],
    misconceptions=(
        but(solve, "In the format the residual is made of rounding errors: take float64.",
            low=True),
        but(solve, "Unscaled, a small residual leaves the range of the format.",
            scale=lambda top: 1.0),
        but(solve, "Scale by a power of two: any other factor rounds once more.",
            scale=lambda top: 1 / top),
        but(solve, "Of all x so far the best one is the answer, not the last.", keep="last"),
        but(solve, "One correction that does not help proves nothing: wait for three in a row.",
            patience=1),
        but(solve, "Ten corrections may be too few: only three in a row that bring no smaller "
            "error end the loop.", most=10),
        but(solve, "What has stopped falling above 2^-50 is stuck: it has not converged.",
            end="converged"),
        but(solve, "The backward error compares r with norm(A) * max |x| + max |b|, not with b "
            "alone.", norm=lambda *_: 0.0),
        but(solve, "Row i holds lower[i-1], diagonal[i] and upper[i]: the norm is the largest "
            "sum of a row, not of a column.", norm=column_sum),
        but(solve, "The three diagonals are rounded before the first division.",
            stored=lambda v, _: float(v)),
        but(solve, "A pivot that is infinite or NaN breaks the factors, too.", zero_only=True),
    ),
)  # fmt: skip

# The cheapest exact plan -----------------------------------------------------------------


def plan(n, p, held, q, *, promoted=True, widths=None):
    """Slices, sums and steps of the plan with the fewest steps: all widths are tried."""
    found = {}
    for b in widths(n, p, held) if widths else range(1, p + 2):
        m = min(n, 2**held // 4 ** (b - 1))
        if m >= (1 if promoted else n):
            slices = -(-q // b)
            found[b] = slices * (slices + 1) // 2 * max(-(-n // m), 1)
    least = min(found.values())
    b = min(b for b in found if found[b] == least)
    return b, min(n, 2**held // 4 ** (b - 1)), least


def widest(n, p, held):
    """The widest slice that both the format and one product allow."""
    return [min(p + 1, held // 2 + 1)]


def tasks(rng, count, *, n=(10, 5000), p=(3, 12), held=(13, 25), q=(20, 64)):
    for _ in range(count):
        width = int(rng.integers(*p)), int(rng.integers(*held)), int(rng.integers(*q))
        yield (int(rng.integers(*n)), *width)


PLAN = Exercise(
    answer=plan,
    reason="For each width: the longest exact sum, the sums in n, the pairs; the least product.",
    argument="n, p, held, q",
    cases=[
        (64, 11, 24, 53), (1024, 4, 14, 53), (4096, 11, 24, 53), (1000, 4, 14, 53),
        (1, 11, 24, 53), (100, 8, 24, 53), (300, 11, 24, 50), (5000, 3, 12, 40),
        (16, 11, 9, 30), (64, 6, 31, 53), (3, 24, 24, 60), (2048, 11, 21, 24),
        (1025, 4, 14, 24), (37, 11, 20, 11), (20, 3, 6, 8), (7, 3, 24, 53), (70, 5, 30, 24),
        (1, 11, 8, 53), (1, 3, 6, 8),
    ],
    misconceptions=(
        but(plan, "A sum may be promoted in between, and then slices may be wider.",
            promoted=False),
        but(plan, "The widest slices make the shortest sums; compare all widths.", widths=widest),
    ),
)  # fmt: skip

# A product of two rows -------------------------------------------------------------------


def cut(x, b, slices, *, whole=round, own=False):
    """Integers and unit of each slice, in exact fractions."""
    rest = [Fraction(float(v)) for v in x]
    tops = [Fraction(2) ** math.frexp(v if own else max(map(abs, x)))[1] for v in x]
    parts = []
    for s in range(1, slices + 1):
        units = [2 * top / 2 ** (s * b) for top in tops]
        part = [whole(r / u) for r, u in zip(rest, units, strict=True)]
        rest = [r - v * u for r, v, u in zip(rest, part, units, strict=True)]
        parts.append((part, units))
    return parts


def unit_dot(x, y, p, held, q, *, add=float, whole=round, own=False):
    """The product by slices, and the largest sum that the unit held."""
    b, m, _ = plan(len(x), p, held, q)
    slices = -(-q // b)
    left, right = (
        cut(np.asarray(v).tolist(), b, slices, whole=whole, own=own) for v in (x, y)
    )
    total = 0 * add(0)
    largest = 0
    for s in range(slices):
        for t in range(slices - s):
            (i, u), (j, v) = left[s], right[t]
            products = [a * c for a, c in zip(i, j, strict=True)]
            sums = [sum(products[k : k + m]) for k in range(0, len(x), m)]
            largest = max(largest, *map(abs, sums))
            exact = sum(products) * u[0] * v[0]
            if own:
                exact = sum(a * d * e for a, d, e in zip(products, u, v, strict=True))
            total = total + add(exact)
    return np.array([float(total), float(largest)])


exact_dot = partial(unit_dot, add=Fraction)


def rows(rng, count, *, sign=True, spread=0, units=((11, 24), (4, 14), (8, 20), (3, 12), (6, 31)),
         length=(20, 60), q=(20, 54)):  # fmt: skip
    for _ in range(count):
        n = int(rng.integers(*length))
        x, y = rng.uniform(0.5, 1, (2, n)) * np.exp2(
            rng.integers(-spread, spread + 1, (2, n))
        )
        x, y = (v * (rng.choice((-1, 1), n) if sign else 1) for v in (x, y))
        p, held = pick(rng, units)
        yield (x, y * 2.0 ** int(rng.integers(-40, 40)), p, held,
                      int(rng.integers(*q)))  # fmt: skip


def hidden_rows(rng, count):
    """Each row is large where the other is small, so the slices do not hold their product."""
    for x, y, *unit in [*rows(rng, count)]:  # all rows are drawn first
        power = rng.integers(0, 24, len(x))
        yield (np.ldexp(x, power), np.ldexp(y, -power), *unit)


DOT = Exercise(
    answer=exact_dot,
    uses=("round_to", "split"),
    reason="One grid for each row, ties to even, pairs up to slices + 1, m products, an exact end.",
    argument="x, y, p, held, q",
    cases=[
        (np.array(x), np.array(y), *unit)
        for x, y, unit in (
            ([0.75, 0.171875], [0.5, -0.25], (4, 14, 8)),
            ([0.84375, 0.65625], [0.5, -0.25], (4, 14, 10)),  # halfway between integers
            ([1.0, 0.5, -0.3], [1.0, 1.0, 1.0], (3, 12, 12)),
            ([0.0, 0.0], [1.0, -1.0], (4, 14, 10)),
            ([0.9, 0.8, 0.7, 0.95, 0.99], [0.7, 0.9, 0.97, 0.6, 0.55], (4, 9, 20)),
            ([0.1, 3e-4, 0.7, -0.2], [0.3, 800.0, -0.1, 0.9], (11, 24, 20)),
            ([1.0, -1.0, 1e-9, 0.1], [1.0, 1.0, 1.0, 1e-9], (11, 22, 53)),
            ([0.99] * 20, [0.93] * 20, (3, 6, 8)),
            ([0.9, 0.8, 0.1], [-0.9, -0.7, 0.3], (4, 14, 8)),
            ([0.7] * 9, [0.9] * 9, (4, 5, 16)),
            ([0.95, 0.89, 0.61, 0.65, 0.94, 0.5], [932.47, 920.1, 751.58, 667.15, 654.55, 642.49],
             (11, 24, 53)),
        )
    ],
    misconceptions=(
        but(exact_dot, "Numbers of a row must share their unit, or products cannot be added.",
            own=True),
        but(exact_dot, "Cut instead of rounded, rests are twice as long, all to one side.",
            whole=math.trunc),
        but(exact_dot, "Promoted sums are added as integers; the one rounding comes at the end.",
            add=float),
    ),
)  # fmt: skip

GRADED = {
    "running": Graded(
        "running_variance",
        VARIANCE,
        (
            Part("other formats", 1, VARIANCE.reason,
                 lambda rng: [readings(rng, fmt, int(rng.integers(5, 30)))
                              for fmt in (FP16, BF16, FP8_E4M3, FP8_E5M2) for _ in range(4)]),
            Part("a mean far from zero", 1, "What does the format keep of a distance?",
                 lambda rng: [readings(rng, fmt, 20, mean=mean)
                              for fmt in (FP16, BF16) for mean in (8.0, 30.0, 60.0)
                              for _ in range(3)]),
            Part("readings that hardly vary", 1, "A variance of 0 has no error bar.",
                 lambda rng: [readings(rng, fmt, 12, mean=mean, sd=sd) for fmt in (FP16, BF16)
                              for mean, sd in ((7.0, 0.0), (50.0, 0.2), (3.0, 0.02))
                              for _ in range(3)]),
        ),
    ),
    "freezing": Graded(
        "finest_steps",
        FREEZING,
        (
            Part("cups that cool", 1, FREEZING.reason,
                 lambda rng: [*cups(rng, (FP8_E4M3, FP8_E5M2), 8), *between(rng)]),
            Part("cups that warm", 1, "A goal can lie above the start.",
                 lambda rng: cups(rng, (FP8_E4M3, FP8_E5M2), 8, heating=True)),
            Part("eight significant bits", 1, "The same with finer gaps.",
                 lambda rng: [*cups(rng, (BF16,), 2), *cups(rng, (BF16,), 1, heating=True)]),
        ),
    ),
    "system": Graded(
        "solve_rod",
        SYSTEM,
        (
            Part("systems that converge", 2, SYSTEM.reason,
                 lambda rng: [*rods(rng, FP16, 5), *rods(rng, BF16, 4),
                              *rods(rng, FP16, 3, power=(-11, -5))]),
            Part("rough factors", 1, "Has the error stopped falling, and which x was the best?",
                 lambda rng: [*rough(rng, (FP8_E4M3, FP8_E5M2), 8),
                              *rods(rng, FP8_E4M3, 4)]),
            Part("pivots", 1, "Look at each pivot before you divide by it.",
                 lambda rng: [*singular(rng, FP16, 6), *singular(rng, BF16, 3)]),
        ),
    ),
    "plan": Graded(
        "cheapest_plan",
        PLAN,
        (
            Part("16-bit units", 1, PLAN.reason,
                 lambda rng: tasks(rng, 30, p=(8, 12), held=(20, 26))),
            Part("8-bit units", 1, PLAN.reason,
                 lambda rng: tasks(rng, 30, p=(3, 5), held=(9, 15))),
            Part("short and long sums", 1, "Try one product, and a million.",
                 lambda rng: [*tasks(rng, 15, n=(1, 60), p=(3, 7), held=(16, 32)),
                              *tasks(rng, 15, n=(1, 9), p=(3, 25), held=(9, 32), q=(5, 30)),
                              *tasks(rng, 15, n=(10**5, 10**6))]),
        ),
    ),
    "dot": Graded(
        "unit_dot",
        DOT,
        (
            Part("rows of both signs", 2, DOT.reason, lambda rng: [*rows(rng, 8, spread=3),
                              *rows(rng, 10, spread=9, units=((11, 24),), q=(50, 54))]),
            Part("positive rows, which fill the sums", 1, "How long may a sum be?",
                 lambda rng: [*rows(rng, 4, sign=False),
                              *rows(rng, 6, sign=False, units=((3, 7), (4, 8), (3, 8), (4, 9)),
                                    length=(70, 150), q=(8, 24))]),
            Part("large beside small", 2, "Which pairs does the plan leave out?",
                 lambda rng: hidden_rows(rng, 10)),
        ),
    ),
}  # fmt: skip

RUBRIC = {"a8-words-answer": {"the proof": 1, "the judgement": 1}}
