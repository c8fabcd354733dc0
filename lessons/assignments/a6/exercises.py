"""Assignment 6, the scales of FP8: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
"""

import math

import numpy as np

from mplab import (
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP8_E5M2FNUZ,
    decode,
    encode,
    round_to,
    values,
)
from mplab.course import Exercise, but
from mplab.course.grading import Graded, Part

E4M3 = FP8_E4M3
E5M2 = FP8_E5M2
OTHERS = (E5M2, FP8_E4M3FNUZ, FP8_E5M2FNUZ)
SCALES = [2.0**k for k in range(-126, 127)]
HEADROOMS = (1.0, 1.5, 2.0, 3.0)


def floats(*numbers):
    return np.array(numbers, np.float32)


def normal(rng, *shape, power=0):
    """Normally distributed numbers about 2^power."""
    return np.ldexp(rng.normal(size=shape), int(power)).astype(np.float32)


def pick(rng, choices):
    return choices[rng.integers(len(choices))]


# One scale -------------------------------------------------------------------------------


def magnitude(x):
    return float(np.max(np.abs(x), initial=0.0))


def scale_of(x, fmt, headroom):
    """The largest of the allowed powers of two that fits, by trying each."""
    amax = magnitude(x)
    if not math.isfinite(amax):
        return math.nan
    if amax == 0:
        return 1.0
    fits = [s for s in SCALES if headroom * amax * s <= fmt.max_finite]
    return max(fits, default=SCALES[0])


def by_exponents(x, fmt, headroom):
    amax = magnitude(x)
    if not math.isfinite(amax) or amax == 0:
        return scale_of(x, fmt, headroom)
    exponent = fmt.emax - (math.frexp(amax * headroom)[1] - 1)
    return math.ldexp(1.0, min(max(exponent, -126), 126))


SCALE = Exercise(
    answer=scale_of,
    reason="The largest power of two s for which headroom * amax * s is at most max_finite.",
    argument="x, fmt, headroom",
    cases=[(floats(*x), fmt, headroom) for x, fmt, headroom in (
        ((1.0,), E4M3, 1.0), ((1.0,), E5M2, 1.0), ((0.5, -3.0), E4M3, 1.0), ((1.8,), E4M3, 1.0),
        ((1.75,), E4M3, 1.0), ((3.5,), E5M2, 1.0), ((1.0,), E4M3, 2.0), ((1.25,), E4M3, 1.5),
        ((448.0, 1e5), E4M3, 1.0), ((0.0, -0.0), E4M3, 1.0), ((1e-40,), E4M3, 1.0),
        ((1.0, math.inf), E4M3, 1.0), ((1.0, math.nan), E4M3, 1.0), ((math.nan, 1.0), E5M2, 1.0),
    )],
    misconceptions=(
        but(by_exponents, "Exponents alone do not tell: 1.8 * 2^8 lies past 448."),
    ),
)  # fmt: skip


def scales(rng, fmts):
    return [(normal(rng, 5, power=rng.integers(-60, 60)), fmt, pick(rng, HEADROOMS))
            for fmt in fmts for _ in range(12)]  # fmt: skip


def at_the_edge(rng):
    """Where headroom * amax * scale is max_finite itself, and the floats beside it."""
    for fmt in (E4M3, *OTHERS):
        for headroom in HEADROOMS:
            edge = math.ldexp(fmt.max_finite / headroom, int(rng.integers(-30, 30)))
            for away in (0.0, -math.inf, math.inf):
                amax = (
                    np.nextafter(np.float32(edge), np.float32(away)) if away else edge
                )
                yield (floats(-amax, amax / 3), fmt, headroom)
            yield (floats(edge, edge / 3), fmt, headroom)


def nothing_and_too_much(rng):
    for fmt in (E4M3, E5M2):
        for headroom in HEADROOMS:
            x = normal(rng, 4)
            for bad in (math.inf, -math.inf, math.nan):
                y = x.copy()
                y[rng.integers(4)] = bad
                yield (y, fmt, headroom)
            yield (np.zeros(3, np.float32), fmt, headroom)
            yield (normal(rng, 3, power=-140), fmt, headroom)
            yield (np.zeros(0, np.float32), fmt, headroom)
    # Times 2^-126 the most that FP4 still holds.
    largest = floats(rng.uniform(2.9, 3.1) * 1e38)
    yield from ((largest, FP4_E2M1, headroom) for headroom in HEADROOMS)


# Codes -----------------------------------------------------------------------------------


def to_codes(x, scale, fmt, *, divide=False, clamp=True, wide=True):
    """A cast, right by default, with an option for each mistake."""
    x = x.astype(np.float64)
    with np.errstate(over="ignore"):
        y = x / scale if divide else x * scale
        y = y if wide else y.astype(np.float32).astype(np.float64)
    if clamp:
        y = np.where(np.isfinite(x), np.clip(y, -fmt.max_finite, fmt.max_finite), y)
    return np.asarray(encode(round_to(y, fmt), fmt))


CODES = Exercise(
    answer=to_codes,
    uses=("round_to", "overflow", "encode"),
    reason="Multiply in float64, clamp what is finite to ±max_finite, then round once and encode.",
    argument="x, scale, fmt",
    cases=[(floats(*x), scale, fmt) for x, scale, fmt in (
        ((1.0, -3.0), 16.0, E4M3), ((0.001,), 2.0**17, E4M3), ((300.0,), 1.0, E4M3),
        ((29.0, -30.0), 16.0, E4M3), ((1e5, -7e4), 1.0, E5M2), ((2.0**20,), 2.0**-15, E4M3),
        ((-0.0, -1e-9), 1.0, E4M3), ((1e38,), 2.0**10, E4M3),
        ((math.nan,), 1.0, E4M3), ((math.inf, -math.inf), 1.0, E4M3),
        ((math.inf, -math.inf, math.nan), 2.0**-4, E5M2),
        ((-0.0, -1e-9, 2.0), 1.0, FP8_E4M3FNUZ),
        ((17 - 2.0**-19,), 1 + 2.0**-23, E4M3), ((17.004,), 1.0, E4M3), ((1.18, 1.19), 1.0, E4M3),
    )],
    misconceptions=(
        but(to_codes, "The scale multiplies before the cast; dividing undoes it afterwards.",
            divide=True),
        but(to_codes, "The rounding does not saturate by itself: 480 must become 448.",
            clamp=False),
        but(to_codes, "A product rounded to float32 can become a tie that it is not.",
            wide=False),
    ),
)  # fmt: skip


def power(rng, low=-20, high=20):
    return 2.0 ** int(rng.integers(low, high))


def fitting(rng):
    """Numbers of both signs, of which the largest comes to the upper half of the range."""
    for fmt in (E4M3, *OTHERS):
        for _ in range(6):
            exponent = int(rng.integers(-20, 20))
            x = (
                rng.uniform(-1, 1, 12)
                * 2.0 ** (fmt.emax - exponent)
                * 2.0 ** -rng.integers(0, 9, 12)
            )
            yield (x.astype(np.float32), 2.0**exponent, fmt)


def too_large(rng):
    """Around and far beyond the largest number; with large scales beyond FP32, too."""
    for fmt in (E4M3, *OTHERS):
        for _ in range(4):
            scale = power(rng)
            x = (
                fmt.max_finite
                / scale
                * rng.uniform(0.5, 2.5, 8)
                * rng.choice((-1, 1), 8)
            )
            yield (x.astype(np.float32), scale, fmt)
        huge = floats(*(rng.uniform(1, 3, 2) * 1e38), -1e38)
        yield (huge, power(rng, 4, 20), fmt)


def rare(rng):
    """Infinities and NaN among other numbers, and zeros of both signs, exact and flushed."""
    for fmt in (E4M3, *OTHERS):
        for _ in range(4):
            scale = power(rng)
            least = fmt.min_subnormal / scale
            x = [
                math.inf,
                -math.inf,
                math.nan,
                0.0,
                -0.0,
                -0.3 * least,
                0.3 * least,
                -least,
                least,
            ]
            yield (floats(*rng.permutation(x)), scale, fmt)


def beside_ties(rng):
    """Products at a tie, and products that rounding to float32 would turn into one."""
    for fmt in (E4M3, *OTHERS):
        table = values(fmt)[: fmt.max_code + 1]
        found = []
        while len(found) < 12:
            code = rng.integers(fmt.max_code)
            tie = (table[code] + table[code + 1]) / 2
            scale = np.float32(rng.uniform(0.5, 2))
            x = np.float32(tie / float(scale))
            product = float(x) * float(scale)
            up = code % 2 == 0  # then the tie itself goes down
            if np.float32(product) == tie and (product > tie if up else product < tie):
                found.append((floats(x, -x), float(scale), fmt))
        ties = [
            (table[c] + table[c + 1]) / 2 for c in rng.integers(0, fmt.max_code, 12)
        ]
        exponent = int(rng.integers(-20, 20))
        yield from found
        yield (np.ldexp(ties, -exponent).astype(np.float32), 2.0**exponent, fmt)


# A row of tensors ------------------------------------------------------------------------


def delayed(tensors, fmt, length, headroom, *, own=False, of=list):
    """The scales and the shares, right by default, with an option for each mistake."""
    history, rows = [], []
    for x in tensors:
        enters = [magnitude(x)] if np.isfinite(x).all() and x.any() else []
        known = history + enters if own else history
        scale = scale_of(np.array(of(known[-length:])), fmt, headroom)
        y = np.abs(x.astype(np.float64)) * scale
        clipped = (y > fmt.max_finite) & np.isfinite(x)
        flushed = (y <= fmt.min_subnormal / 2) & (x != 0)
        rows.append((scale, np.mean(clipped), np.mean(flushed)))
        history += enters
    return np.array(rows).T


def stack(*rows):
    return np.array(rows, np.float32)


DELAYED = Exercise(
    answer=delayed,
    uses=("round_to", "overflow", "encode", "decode"),
    reason="The scale from at most `length` useful tensors before; then what it clips and flushes.",
    argument="tensors, fmt, length, headroom",
    tolerance=1e-6,  # shares may be float32
    cases=[
        (stack((1, 0.5), (1, 0.25), (1, 0.5)), E4M3, 2, 1.0),
        (stack((448, 449), (2.0**-9, 2.0**-10), (0, 470)), E4M3, 1, 1.0),
        (stack((4, 2.0**-11), (1, 0), (2, 0.001), (1, 1e-5), (1, 1e-9)), E4M3, 2, 1.0),
        (stack((1, 0.5), (4e4, 1e4), (1, 1e-3), (1, 1e-3), (1, 1e-3), (2, 1)), E4M3, 2, 1.0),
        (stack((1, 0.5), (1, 0.5), (3, 2)), E5M2, 4, 3.0),
        (stack((8, 1), (0, 0), (0, 0), (9, 0.1)), E4M3, 2, 1.0),
        (stack((1, 0.5), (math.inf, 7), (1, math.nan), (1, 0.5)), E4M3, 2, 1.0),
    ],
    misconceptions=(
        but(delayed, "This tensor's magnitude is not known before its cast.", own=True),
        but(delayed, "The largest of the history decides, not the latest.",
            of=lambda known: known[-1:]),
    ),
)  # fmt: skip


def rows_of(rng, steps, size, *, spread=0.0):
    """Tensors about powers of two that wander."""
    powers = np.exp2(rng.normal(0, spread, (steps, 1)) + rng.uniform(-3, 3))
    return (rng.normal(size=(steps, size)) * powers).astype(np.float32)


def formats_and_rooms(rng):
    return [(pick(rng, (E4M3, *OTHERS)), HEADROOMS[i % 4]) for i in range(6)]


def wandering(rng):
    return [(rows_of(rng, 14, 8, spread=5.0), fmt, int(rng.integers(1, 7)), headroom)
            for fmt, headroom in formats_and_rooms(rng)]  # fmt: skip


def spiked(rng):
    """Calm tensors and one spike that the history remembers for a while."""
    for fmt, headroom in formats_and_rooms(rng):
        length = int(rng.integers(2, 7))
        tensors = rows_of(rng, 20, 6)
        tensors[rng.integers(3, 8)] *= np.float32(2.0 ** rng.integers(8, 40))
        yield (tensors, fmt, length, headroom)


def interrupted(rng):
    """Tensors of zeros, and tensors with an infinity or NaN, among tensors that differ."""
    for fmt, headroom in formats_and_rooms(rng):
        tensors = rows_of(rng, 16, 5, spread=4.0)
        first, second, third, fourth = rng.choice(np.arange(2, 15), 4, replace=False)
        tensors[[first, second]] = 0
        tensors[third, rng.integers(5)] = pick(rng, (math.inf, -math.inf))
        tensors[fourth, rng.integers(5)] = math.nan
        yield (tensors, fmt, int(rng.integers(2, 4)), headroom)


def at_both_ends(rng):
    """Numbers at the very places where clipping and flushing begin, before any history."""
    for fmt in (E4M3, *OTHERS):
        top, least = np.float32(fmt.max_finite), np.float32(fmt.min_subnormal / 2)
        near = [top, np.nextafter(top, np.float32(math.inf)), top * np.float32(1.02), -2 * top, 0.0,
                -0.0, least, np.nextafter(least, np.float32(1)), -1.5 * least, -least,
                np.float32(fmt.min_normal) / 2]  # fmt: skip
        for headroom in (1.0, 3.0):
            row = floats(*rng.choice(near, 24))
            row[:11] = near
            tensors = np.stack([row, normal(rng, 24)])
            yield (tensors, fmt, 2, headroom)


# Blocks ----------------------------------------------------------------------------------


def log_down(amax):
    return math.frexp(amax)[1] - 1


def log_up(amax):
    return log_down(amax) + (math.frexp(amax)[0] > 0.5)


def pack_mx(x, fmt, block, *, log=log_down, emax=True):
    """Packed blocks, right by default, with an option for each mistake."""
    packed = []
    for start in range(0, x.size, block):
        part = x[start : start + block]
        amax = magnitude(part)
        if not math.isfinite(amax):
            packed += [255, *[fmt.nan_code] * part.size]
            continue
        exponent = max(log(amax) - emax * fmt.emax, -127) if amax > 0 else -127
        codes = to_codes(part, 2.0**-exponent, fmt).tolist()
        packed += [exponent + 127, *codes]
    return np.array(packed, np.uint8)


BLOCKS = Exercise(
    answer=pack_mx,
    uses=("round_to", "overflow", "encode"),
    reason="For each block: the code of 2^(floor(log2 amax) - emax), then x divided by it.",
    argument="x, fmt, block",
    cases=[(floats(*x), fmt, block) for x, fmt, block in (
        ((1.0, -0.5, 0.25, 0.0), E4M3, 4), ((3.0, 1.0), E4M3, 2), ((-4.0, 1.0), E4M3, 2),
        ((1.0, 2.0, 64.0, 100.0), E4M3, 2), ((1.0, 1.0, 5.0), E4M3, 2), ((1.9, -0.1), E4M3, 2),
        ((1.9, 0.3), E5M2, 2), ((5.0, 0.7), FP4_E2M1, 2), ((0.0, -0.0), E4M3, 2),
        ((1024 - 2.0**-14, 1.0), E4M3, 2), ((1.0, math.inf, 1.0, 2.0), E4M3, 2),
        ((math.nan, 1.0), E5M2, 2), ((1.0, 2.0, math.inf), E4M3, 2),
    )],
    misconceptions=(
        but(pack_mx, "The exponent of amax is rounded down: floor, not ceil.", log=log_up),
        but(pack_mx, "Take off emax: the largest number goes to the top of the range.",
            emax=False),
    ),
)  # fmt: skip


def blocks(rng, fmts):
    """Whole blocks, each about a power of two of its own."""
    for fmt in fmts:
        for block in (32, 16):
            powers = np.exp2(rng.integers(-20, 20, (3, 1)))
            x = rng.normal(size=(3, block)) * powers
            yield (x.astype(np.float32).ravel(), fmt, block)


def with_a_rest(rng):
    """The last block is shorter: it may hold one element, or be the only block."""
    return [(normal(rng, size, power=rng.integers(-20, 20)), pick(rng, (E4M3, E5M2)), 32)
            for size in (33, 63, rng.integers(34, 60), rng.integers(2, 31), 1)
            for _ in range(2)]  # fmt: skip


def tops(rng):
    """The largest of a block at each place between two powers of two, and just below one."""
    for fmt in (E4M3, E5M2, FP6_E2M3):
        below = [
            np.nextafter(np.float32(2.0**k), np.float32(0))
            for k in (10, 30, 60, -60, 1)
        ]
        for top in (
            *below,
            *np.ldexp([1.0, 1.3, 1.74, 1.76, 1.88, 1.97], rng.integers(-9, 9)),
        ):
            x = top * rng.uniform(-0.9, 0.9, 8)
            x[rng.integers(8)] = rng.choice((-1, 1)) * top
            yield (x.astype(np.float32), fmt, 8)


def strange_blocks(rng):
    """Among other blocks: zeros, infinity, NaN, numbers that FP32 holds as subnormal."""
    for fmt in (E4M3, E5M2):
        for _ in range(4):
            x = normal(rng, 5, 8)
            x[0] = rng.choice((-0.0, 0.0), 8)
            x[1, rng.integers(8)] = pick(rng, (math.inf, -math.inf))
            x[2, rng.integers(8)] = math.nan
            x[3] = np.ldexp(x[3], -130)
            yield (x[rng.permutation(5)].ravel(), fmt, 8)
        yield (np.append(x[4], np.float32([1.0, math.nan])), fmt, 8)


# Three products --------------------------------------------------------------------------


ROLES = {"output": "xw", "grad_input": "gw", "grad_weight": "gx"}


def product(which, x, w, g, *, formats=(E4M3, E4M3, E5M2), undo=True, raw=""):
    """A product of a linear layer, right by default, with an option for each mistake."""
    held, scales = {}, {}
    for name, tensor, fmt in zip("xwg", (x, w, g), formats, strict=True):
        scale = scale_of(tensor, fmt, 1.0)
        held[name], scales[name] = decode(to_codes(tensor, scale, fmt), fmt), scale
        if name in raw and which != "output":
            held[name] = tensor.astype(np.float64) * scale
    first, second = ROLES[which]
    a, b = held[first], held[second]
    a = a.T if which == "grad_weight" else a
    b = b.T if which == "output" else b
    with np.errstate(over="ignore", invalid="ignore"):
        total = a @ b / (scales[first] * scales[second] if undo else 1.0)
        return total.astype(np.float32)


def cancelling(which, small):
    """448² + small² - 448², added along the axis of this product."""
    left, right = (
        np.tile(stack((448.0, small, end)), (3, 1)) for end in (448.0, -448.0)
    )
    tensors = dict.fromkeys("xwg", left)
    first, second = ROLES[which]
    tensors[first] = left.T if which == "grad_weight" else left
    tensors[second] = right if which == "output" else right.T
    return (which, *tensors.values())


X = stack((1.0, -3.0, 0.3), (0.02, 7.0, -1.1))
W = stack((0.0003, -0.00011, 0.0005), (7e-5, 0.001, -0.0002))
G = stack((1e-6, 2.3e-14), (-3e-14, 5e-13))  # more powers of two than E4M3 reaches
PRODUCT = Exercise(
    answer=product,
    uses=("round_to", "overflow", "encode", "decode"),
    reason="Scale each tensor and cast it to its format, sum the products, undo both scales.",
    argument="which, x, w, g",
    cases=[
        ("output", stack((3.0, 0.4)), stack((0.1, 0.0)), stack((1e-6,))),
        *((which, X, W, G) for which in ROLES),
        ("grad_weight", X, W, stack((math.nan, 0.0), (1.0, 1.0))),
        cancelling("output", 2.0**-7),
    ],
    misconceptions=(
        but(product, "Gradients want range: E5M2, not E4M3.", formats=(E4M3, E4M3, E4M3)),
        but(product, "The result still carries both scales.", undo=False),
        but(product, "The backward products read FP8 too, not what was saved in FP32.",
            raw="xw"),
    ),
)  # fmt: skip


def layers(rng, which, *, count=4):
    """A layer of other sizes and magnitudes; few enough products for exact sums."""
    for _ in range(count):
        n, outputs, inputs = (rng.integers(2, most) for most in (7, 8, 12))
        shapes = (n, inputs), (outputs, inputs), (n, outputs)
        x, w, g = (normal(rng, *shape, power=rng.integers(-12, 6)) for shape in shapes)
        g[-1, :] *= np.float32(2.0**-26)
        g[:, -1] *= np.float32(2.0**-26)
        yield (which, x, w, np.ldexp(g, -12))


def far_apart(rng, which):
    """Sums that float64 holds exactly; in float32 what is small is gone before they cancel."""
    return cancelling(which, 2.0 ** -rng.integers(7, 10))


def spoilt_layers(rng):
    """An infinity or NaN in one operand, and an operand of zeros."""
    for which in ROLES:
        for name in range(3):
            [(_, *tensors)] = layers(rng, which, count=1)
            tensors[name].flat[rng.integers(tensors[name].size)] = pick(
                rng, (math.inf, math.nan)
            )
            [(_, *others)] = layers(rng, which, count=1)
            others[name][:] = 0
            yield (which, *tensors)
            yield (which, *others)


GRADED = {
    "scale": Graded(
        "scale_of",
        SCALE,
        (
            Part("other formats", 1, SCALE.reason,
                 lambda rng: scales(rng, (E4M3, *OTHERS, FP6_E3M2, FP4_E2M1))),
            Part("exactly at the top", 1, "Look where headroom * amax * scale is max_finite.",
                 at_the_edge),
            Part("zeros, tiny numbers, what is not finite", 1,
                 "Look at empty tensors and zeros, at amax below 2^-126, at infinity and NaN.",
                 nothing_and_too_much),
        ),
    ),
    "codes": Graded(
        "to_codes",
        CODES,
        (
            Part("other formats and scales", 1, CODES.reason, fitting),
            Part("saturation", 1, "Look beyond ±max_finite, also where the product leaves FP32.",
                 too_large),
            Part("infinity, NaN and zeros", 1, "Only finite numbers saturate; zeros have a sign.",
                 rare),
            Part("ties, and products beside them", 1, "Round once, from the exact product.",
                 beside_ties),
        ),
    ),
    "delayed": Graded(
        "delayed_shares",
        DELAYED,
        (
            Part("magnitudes that wander", 1, DELAYED.reason, wandering),
            Part("a spike", 1, "Follow the spike: when it comes, and while it is remembered.",
                 spiked),
            Part("zeros, infinity and NaN on the way", 1,
                 "Which tensors enter the history, and which take no place in it?", interrupted),
            Part("where clipping and flushing begin", 1,
                 "Look at max_finite, and at half of min_subnormal.", at_both_ends),
        ),
    ),
    "blocks": Graded(
        "pack_mx",
        BLOCKS,
        (
            Part("other formats and blocks", 1, BLOCKS.reason,
                 lambda rng: blocks(rng, (E4M3, E5M2, FP6_E3M2, FP6_E2M3, FP4_E2M1))),
            Part("a shorter last block", 1, "Count the blocks for 33 numbers.", with_a_rest),
            Part("the top of a block", 1, "Look at amax just below a power of two.", tops),
            Part("zeros, tiny numbers, what is not finite", 1,
                 "Look at a block of zeros, at infinity and NaN, and at scales below 2^-127.",
                 strange_blocks),
        ),
    ),
    "product": Graded(
        "fp8_product",
        PRODUCT,
        (
            Part("forward", 1, PRODUCT.reason,
                 lambda rng: [*layers(rng, "output"), far_apart(rng, "output")]),
            Part("backward", 1, "Look at formats, scales and transposition of both gradients.",
                 lambda rng: [*layers(rng, "grad_input"), *layers(rng, "grad_weight"),
                              far_apart(rng, "grad_input"), far_apart(rng, "grad_weight")]),
            Part("zeros, infinity and NaN", 1, "An infinity must show; zeros must not make NaN.",
                 spoilt_layers),
        ),
    ),
}  # fmt: skip
