"""Assignment 9, four bits and equal bits: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
"""

import math
from functools import partial

import numpy as np

from mplab import (
    BF16,
    FP4_E2M1,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    Overflow,
    Rounding,
    decode,
    encode,
    next_up,
    round_to,
    values,
)
from mplab.course import Exercise, but
from mplab.course.grading import Graded, Part


def fl(x, fmt):
    return float(round_to(float(x), fmt))


def pick(rng, choices):
    return choices[rng.integers(len(choices))]


# Blocks with a choice --------------------------------------------------------------------


def tried(part, target, tensor, *, stored=True):
    """The error, the scale and the codes of a block whose largest element is to become `target`."""
    wanted = np.clip(np.abs(part).max() / target / tensor, 2.0**-6, 448.0)
    scale = fl(wanted, FP8_E4M3)
    scaled = part / ((scale if stored else wanted) * tensor)
    held = round_to(scaled, FP4_E2M1, overflow=Overflow.SATURATE)
    errors = held * (scale * tensor) - part
    return math.fsum(errors**2), scale, encode(held, FP4_E2M1)


def packed(x, *, targets=(6.0, 4.0), top=1536.0, stored=True, low=0):
    """Each block by the better of two scales, as bytes."""
    amax = float(np.abs(x).max())
    tensor = float(np.float32(amax / top)) or 1.0
    out = []
    for part in x.reshape(-1, 16):
        trials = [tried(part, target, tensor, stored=stored) for target in targets]
        _, scale, codes = min(trials, key=lambda trial: trial[0])
        halves = codes[low::2], codes[1 - low :: 2]
        out += [encode(scale, FP8_E4M3), *(halves[0] + 16 * halves[1])]
    return {"tensor": tensor, "bytes": np.array(out, np.uint8)}


def unpacked(pack):
    rows = pack["bytes"].reshape(-1, 9)
    scales = decode(rows[:, 0], FP8_E4M3)[:, None]
    codes = np.stack([rows[:, 1:] % 16, rows[:, 1:] // 16], axis=-1).reshape(-1, 16)
    return (decode(codes, FP4_E2M1) * (scales * pack["tensor"])).ravel()


def clear(x):
    """Whether no choice between the two scales hangs on the last digits of an error."""
    tensor = float(np.float32(np.abs(x).max() / 1536.0)) or 1.0
    for part in x.reshape(-1, 16):
        a, b = (tried(part, target, tensor)[0] for target in (6.0, 4.0))
        if a != b and abs(a - b) < 1e-9 * (a + b):
            return False
    return True


def blocks(rng, count, *, spread=(0, 0), outlier=0.0):
    cases = []
    while len(cases) < count:
        n = rng.integers(1, 5)
        x = rng.standard_normal((n, 16)) * np.exp2(
            rng.integers(spread[0], spread[1] + 1, (n, 1))
        )
        if outlier:
            x[np.arange(n), rng.integers(16, size=n)] *= outlier
        x = x.ravel()
        if clear(x):
            cases.append(x)
    return cases


def odd_blocks(rng, count):
    """Blocks of zeros of both signs, of one magnitude, and of tiny numbers beside large ones."""
    for _ in range(count):
        x = np.vstack([rng.standard_normal(16), rng.choice((0.0, -0.0), 16),
                       rng.choice((-3.0, 3.0), 16), rng.standard_normal(16) * 1e-6])  # fmt: skip
        x = rng.permutation(x).ravel()
        if clear(x):
            yield x
    yield rng.choice((0.0, -0.0), 32)
    yield beside(rng.choice((-1, 1), 16))


def beside(signs):
    """Values but for two numbers beside the middle of two of them, in float32 on it."""
    middles = np.array([0.25, 2.5]) + 2.0**-40
    return signs * np.array([6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5] * 2 + middles.tolist())


_STEADY = np.random.default_rng(9)

PACK = Exercise(
    answer=packed,
    uses=("round_to", "overflow", "encode", "decode"),
    reason="Try both scales on each block; the smaller sum of squared errors decides.",
    cases=[
        np.array([6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5, 0.0] * 2),
        np.array([4.0, 3.0, -2.0, 0.5, -1.5, 1.0, 0.0, -4.0] * 2),
        np.array([5.0] + [4.0] * 15 + [1.0, -0.1] * 8),
        np.array([48.0, 10.0, -3.0, 0.2] * 4 + [0.0, -0.0] * 8),
        np.array([1000.0] * 16 + [1e-3, -2e-3] * 8 + [0.3, 0.7, -0.9, 0.1] * 4),
        np.zeros(16),
        beside(np.ones(16)),
        (_STEADY.standard_normal((3, 16)) * np.array([[1.0], [20.0], [0.01]])).ravel(),
        (_STEADY.standard_normal((6, 16)) * 3).ravel(),
        np.round(np.random.default_rng(21).standard_normal(32) * 4) / 2,
        np.round(np.random.default_rng(7).standard_normal(32) * 4) / 2,
    ],
    misconceptions=(
        but(packed, "A scale for a goal of 4 is half as large again: 448 must have room for it.",
            top=2688.0),
        but(packed, "What is stored decides: divide by the scale after it was rounded.",
            stored=False),
        but(packed, "The first of two numbers stands in the low half of their byte.", low=1),
    ),
)  # fmt: skip

# Spread before the cast ------------------------------------------------------------------


HADAMARD = np.array(
    [[(-1.0) ** (i & j).bit_count() for j in range(16)] for i in range(16)]
)
"""Sylvester's matrix by its signs: minus where the common bits of row and column are odd."""


def spread(x, signs, *, share=0.25):
    rows = x.reshape(-1, 16)
    return (rows * signs @ HADAMARD * share).ravel()


def two_products(x, y, signs, *, right=True, share=0.25):
    """The product of two packed vectors, as they are and spread."""
    plain = unpacked(packed(x)) @ unpacked(packed(y))
    first = spread(x, signs, share=share)
    second = spread(y, signs, share=share) if right else y
    return np.array([plain, unpacked(packed(first)) @ unpacked(packed(second))])


def pairs(rng, count, *, outlier=0.0, length=(1, 5)):
    """Vectors whose products do not nearly cancel."""
    cases = []
    while len(cases) < count:
        n = 16 * rng.integers(*length)
        x, y = np.round(64 * (rng.standard_normal((2, n)) + 0.5)) / 64  # sums are exact
        if outlier:
            x[rng.integers(n)] *= outlier
        signs = rng.choice((-1.0, 1.0), 16)
        found = two_products(x, y, signs)
        if all(clear(v) for v in (x, y, spread(x, signs), spread(y, signs))) and min(
            abs(found)
        ) > 0.1 * np.abs(x) @ np.abs(y):
            cases.append((x, y, signs))
    return cases


SIGNS = np.array([1.0, -1, -1, 1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 1, 1, -1])

SPREAD = Exercise(
    answer=two_products,
    uses=("round_to", "overflow", "encode", "decode"),
    reason="Both vectors: signs, then the matrix over 4, then the pack of exercise 1.",
    argument="x, y, signs",
    tolerance=1e-9,
    cases=[
        (np.ones(16), np.ones(16), np.ones(16)),
        (np.ones(16), np.arange(16.0), SIGNS),
        (np.array([48.0] + [1.0] * 15), np.array([2.0, 0.5] * 8), SIGNS),
        *pairs(np.random.default_rng(1), 1, length=(2, 3)),
        *pairs(np.random.default_rng(2), 1, outlier=20.0, length=(3, 4)),
    ],
    misconceptions=(
        but(two_products, "Both vectors are spread, or their product is another one.",
            right=False),
        but(two_products, "The matrix is divided by 4, or the product is 16 times as large.",
            share=1.0),
    ),
)  # fmt: skip

# What chance brings back -----------------------------------------------------------------


def neighbours(size):
    """The values of E2M1 below and above; 4 and 6 for all that is larger."""
    lower = round_to(
        size, FP4_E2M1, rounding=Rounding.TOWARD_ZERO, overflow=Overflow.SATURATE
    )
    lower = np.minimum(lower, 4.0)
    return lower, next_up(lower, FP4_E2M1)


def half_steps(size):
    lower = np.minimum(np.floor(2 * size) / 2, 5.5)
    return lower, lower + 0.5


def chance(x, scale, *, most=6.0, around=neighbours):
    """Mean and deviation of a stochastic cast, and how many casts beat the nearest value."""
    size = np.minimum(np.abs(x) / scale, most)
    lower, upper = around(size)
    gap = upper - lower
    p = (size - lower) / gap
    variance = p * (1 - p) * gap**2
    error = np.minimum(p, 1 - p) * gap
    count = np.ceil(variance / np.where(error == 0, 1.0, error) ** 2)
    mean = np.copysign((lower + p * gap) * scale, x)
    deviation = scale * np.sqrt(np.maximum(variance, 0.0))
    return np.array([mean, deviation, np.maximum(count, 1.0)])


def scaled(rng, count, *, size=(0.0, 5.9), exact=False):
    for _ in range(count):
        scale = fl(2.0 ** rng.uniform(-6, 8), FP8_E4M3)
        magnitude = (
            rng.choice(values(FP4_E2M1)[:8], 8) if exact else rng.uniform(*size, 8)
        )
        yield (magnitude * scale * rng.choice((-1, 1), 8) + 0.0, scale)


CHANCE = Exercise(
    answer=chance,
    uses=("round_to", "ulp", "next_up", "next_down"),
    reason="Neighbours of |x| / scale, the share of the way between them, and the scale put back.",
    argument="x, scale",
    tolerance=1e-9,
    cases=[
        (np.array(x), scale)
        for x, scale in (
            ([1.25], 1.0), ([0.125, 2.25, 4.5], 1.0), ([2.5, -2.5], 0.5), ([0.0, 1.0, 6.0], 1.0),
            ([-0.11, -3.3, -5.0], 2.0), ([7.0, -9.0], 1.0), ([5.9, 0.011, 3.01], 1.0),
            ([-400.0, 900.0, 1499.0], 208.0),
        )
    ],
    misconceptions=(
        but(chance, "Past 6 there is no neighbour to go up to: it comes back as 6, every time.",
            most=math.inf),
        but(chance, "From 2 on neighbours are 1 apart, from 4 on 2.", around=half_steps),
    ),
)  # fmt: skip

# A sum that knows no arrivals ------------------------------------------------------------


def arriving(terms, arrivals, size, fmt, *, cut=False, merged=True):
    """The sum at every arrival, right by default, with an option for each mistake."""
    nodes = []
    part = 0.0
    inside = 0
    place = 0
    out = []

    def finished(part):
        level = 0
        while merged and nodes and nodes[-1][0] == level:
            part, level = fl(nodes.pop()[1] + part, fmt), level + 1
        nodes.append((level, part))

    for count in arrivals:
        for term in terms[place : place + count].tolist():
            part = fl(part + term, fmt)
            inside += 1
            if inside == size:
                finished(part)
                part = 0.0
                inside = 0
        place += count
        if inside and cut:
            finished(part)
            part = 0.0
            inside = 0
        total = part
        for _, node in nodes[::-1]:
            total = fl(total + node, fmt)
        out.append(total)
    return np.array(out)


def streams(rng, count, *, fmts=(BF16, FP16), length=(40, 90), most=12):
    for _ in range(count):
        n, fmt = int(rng.integers(*length)), pick(rng, fmts)
        arrivals = []
        while sum(arrivals) < n:
            arrivals.append(0 if rng.random() < 0.1 else int(rng.integers(1, most)))
        arrivals[-1] -= sum(arrivals) - n
        terms = np.asarray(round_to(rng.standard_normal(n) + 0.5, fmt))
        yield (terms, arrivals, int(rng.integers(3, 10)), fmt)


_TERMS = np.asarray(round_to(np.random.default_rng(3).standard_normal(24) + 1, BF16))

STREAM = Exercise(
    answer=arriving,
    uses=("round_to",),
    reason="Blocks are counted from the first term; only finished ones of one level are merged.",
    argument="terms, arrivals, size, fmt",
    cases=[(np.array(terms, float), *rest) for terms, *rest in (
        ([1, 2, 3], [3], 2, BF16),
        ([256, 1, 1, 1], [1, 1, 1, 1], 2, BF16),
        ([256, 1, 1, 1], [4], 4, BF16),
        ([16, 1, 1, 1, 1, 1], [0, 2, 0, 1, 3], 3, FP8_E4M3),
        (_TERMS, [5, 1, 7, 2, 9], 4, BF16),
        (_TERMS, [24], 2, BF16),
        (_TERMS, [3] * 8, 8, BF16),
        ([256, 1, 3, 3, 3, 1], [2, 4], 3, BF16),
        ([11, 24, 6, 14, 8, 1, 20], [7], 2, FP8_E4M3),
        ([8, 13, 20, 6, 1, 2, 28, 22, 8, 3], [10], 2, FP8_E4M3),
        ([13, 26, 28, 9, 4, 18, 20, 24, 20, 20, 28, 28, 28, 24, 20], [3, 4, 1, 7], 2, FP8_E4M3),
        ([26, 12, 7, 20, 26, 9, 11, 3, 28, 28, 20, 16, 16, 20, 22], [3, 4, 1, 7], 2, FP8_E4M3),
    )],
    misconceptions=(
        but(arriving, "An arrival ends no block: the next term still belongs to it.",
            cut=True),
        but(arriving, "Two blocks of one level become one of the next, and so on.", merged=False),
    ),
)  # fmt: skip

# Who made the difference? ----------------------------------------------------------------


def plain_bits(x):
    return x.view(np.int32).astype(np.int64)


def ordered(x):
    """FP32 numbers as integers; neighbours get consecutive integers."""
    bits = plain_bits(x)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def distance(x, y, *, order=ordered):
    """The most ulps between two tensors; a NaN is infinitely far from all other bits."""
    apart = np.abs(order(x) - order(y)).astype(np.float64)
    apart[np.isnan(x) | np.isnan(y)] = math.inf
    return float(apart[plain_bits(x) != plain_bits(y)].max(initial=0.0))


def bits_differ(x, y):
    return x.tobytes() != y.tobytes()


def judged(reads, a, b, *, differ=bits_differ, before=False, far=distance):
    """What each tensor has to do with the difference of two runs."""
    apart = [differ(x, y) for x, y in zip(a, b, strict=True)]
    looked = [range(k)[-1:] for k in range(len(a))] if before else reads
    words = []
    for k, itself in enumerate(apart):
        above = any(apart[j] for j in looked[k])
        if itself:
            words.append("passed on" if above else "made")
        else:
            words.append("hidden" if above else "same")
    ulps = np.array([far(x, y) for x, y in zip(a, b, strict=True)])
    return {"words": words, "ulps": ulps}


def by_value(x, y):
    return not np.array_equal(x, y)


def moved(x, rng, most=4):
    """A tensor with one number a few ulps away."""
    y = x.copy()
    place = rng.integers(y.size)
    y.view(np.int32)[place] += rng.integers(1, most) * (1 if rng.random() < 0.5 else -1)
    return y


def runs(rng, count, *, odd=0.0, length=(5, 12)):
    """Two runs of a graph: tensors that read earlier ones, and differ for reasons of their own."""
    for _ in range(count):
        n = rng.integers(*length)
        reads = [
            sorted(rng.permutation(k)[: rng.integers(0, 3)].tolist()) for k in range(n)
        ]
        a = [rng.standard_normal(4).astype(np.float32) for _ in range(n)]
        b = [moved(x, rng) if rng.random() < 0.4 else x.copy() for x in a]
        for x, y in zip(a, b, strict=True):
            if rng.random() < odd:
                place, kind = rng.integers(4), rng.integers(6)
                x[place], y[place] = ((0.0, -0.0), (np.nan, np.nan), (np.nan, 1.0), (-0.0, 1e-45),
                                      (np.inf, np.finfo(np.float32).max), (-1e38, 1e38)
                                      )[kind]  # fmt: skip
                if kind == 1 and rng.random() < 0.5:
                    y.view(np.int32)[place] ^= 1
        yield (reads, a, b)


def tensors(*rows_):
    return [np.array(row, np.float32) for row in rows_]


_NEXT = float(np.nextafter(np.float32(1), np.float32(2)))
_TINY = 2.0**-149

CULPRITS = Exercise(
    answer=judged,
    reason="Compare bits; what differs made it if all it reads is equal; ulps count floats.",
    argument="reads, a, b",
    cases=[(reads, tensors(*a), tensors(*b)) for reads, a, b in (
        ([[], [0]], ([1, 2], [3, 4]), ([1, 2], [3, 4])),
        ([[], [0], [1]], ([1, 2], [3, 4], [5, 6]),
         ([1, 2], [3, 5], [5, 7])),
        ([[], [0], [1]], ([1, 2], [3, 4], [5, 6]),
         ([_NEXT, 2], [3, 4], [5, 7])),
        ([[], [], [0], [0, 1]], ([1, 2], [1, 3], [1, 2], [1, 4]),
         ([1, 2], [_NEXT, 3], [1, 2], [1 - 2.0**-24, 4])),
        ([[], [0], [1]], ([0, 1], [np.nan, 1], [_TINY, 1]),
         ([-0.0, 1], [np.nan, 1], [-_TINY, 1])),
        ([[], [0], [0]], ([np.nan, 1], [np.inf, 1], [2, 8]),
         ([1, 1], [3.4028234663852886e38, 1], [1, 16])),
        ([[], [], [0]], ([1, 2], [1, 2], [3, 3]),
         ([1, 2], [1, 4], [3, 3.5])),
        ([[], [], []], ([_NEXT, 1], [5 * _TINY, 1], [1, -3]),
         ([4, 1], [1, 1], [np.nan, 1])),
        ([[]], ([-2e30, 1],), ([1e30, 1],)),  # more than 2^31 apart
    )],
    misconceptions=(
        but(judged, "A tensor need not read the one before it: look at what it reads.",
            before=True),
        but(judged, "A NaN equals a NaN of the same bits, and -0 is not 0.", differ=by_value),
        but(judged, "Bits of negative numbers count downward; 0 and -0 lie at the same place.",
            far=partial(distance, order=plain_bits)),
    ),
)  # fmt: skip

GRADED = {
    "pack": Graded(
        "pack",
        PACK,
        (
            Part("blocks of noise", 2, PACK.reason, lambda rng: blocks(rng, 8)),
            Part("blocks of many sizes", 1, "Where do scales end, above and below?",
                 lambda rng: [*blocks(rng, 5, spread=(-12, 6)), *blocks(rng, 4, outlier=20.0)]),
            Part("zeros, and one magnitude", 1, "What if both goals are equally good?",
                 lambda rng: odd_blocks(rng, 6)),
        ),
    ),
    "spread": Graded(
        "two_products",
        SPREAD,
        (
            Part("noise", 1, SPREAD.reason, lambda rng: pairs(rng, 5)),
            Part("an outlier", 1, SPREAD.reason, lambda rng: pairs(rng, 5, outlier=40.0)),
            Part("long vectors", 1, "Each block of 16 neighbours by itself.",
                 lambda rng: pairs(rng, 3, length=(5, 9))),
        ),
    ),
    "chance": Graded(
        "chances",
        CHANCE,
        (
            Part("within the range", 2, CHANCE.reason, lambda rng: scaled(rng, 10)),
            Part("exact and out of range", 1, "Where is there no chance at all?",
                 lambda rng: [*scaled(rng, 4, exact=True), *scaled(rng, 4, size=(5.0, 9.0))]),
            Part("near the neighbours", 1, "How often must a rare event be tried?",
                 lambda rng: [*scaled(rng, 4, size=(0.001, 0.05)), *scaled(rng, 4, size=(3.9, 4.1)),
                              *scaled(rng, 4, size=(1.95, 2.05))]),
        ),
    ),
    "stream": Graded(
        "stream_sum",
        STREAM,
        (
            Part("other arrivals", 1, STREAM.reason, lambda rng: streams(rng, 8)),
            Part("few bits", 1, STREAM.reason,
                 lambda rng: streams(rng, 8, fmts=(FP8_E4M3, FP8_E5M2), length=(20, 40))),
            Part("one at a time, and all at once", 1, "The sum is the same after as many terms.",
                 lambda rng: [*streams(rng, 4, most=2), *streams(rng, 4, most=80)]),
        ),
    ),
    "culprits": Graded(
        "culprits",
        CULPRITS,
        (
            Part("who made it", 2, CULPRITS.reason, lambda rng: runs(rng, 15)),
            Part("zeros and NaN", 1, "Bits decide, and how far is a NaN away?",
                 lambda rng: runs(rng, 15, odd=0.6)),
            Part("long runs", 1, "Follow what each tensor reads; odd numbers occur here, too.",
                 lambda rng: runs(rng, 6, odd=0.2, length=(30, 50))),
        ),
    ),
}  # fmt: skip
