"""One step of each kind of matrix unit again, in integers and fractions, one element at a time.

Formats are only asked for their facts. `Double` stands for FP64, which the library has no format
for. An operand's scale is a float, 1.0 where there is none.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import copysign, floor, inf, isfinite, isnan, nan

import numpy as np
import oracle

import mplab
from mplab import FP16, FP32, Format, Overflow, Rounding
from mplab.numbers import Specials

EVEN = Rounding.TIES_TO_EVEN
IEEE = Overflow.IEEE


@dataclass(frozen=True)
class Double:
    exponent_bits = 11
    precision = 53
    bias = 1023
    specials = Specials.IEEE
    signed = True
    has_zero = True


def split(x, emin):
    """Significand times 2^exponent, the exponent that of the format's leading bit."""
    q = abs(Fraction(x))
    exponent = max(oracle.exponent_of(q), emin) if q else emin
    return Fraction(x) / Fraction(2) ** exponent, exponent


def special(a, b, c):
    """The sum if a number in it is not finite, else None."""
    terms = [
        x * y for x, y in zip(a, b, strict=True) if not (isfinite(x) and isfinite(y))
    ]
    terms += [] if isfinite(c) else [c]
    return sum(terms) if terms else None


def products(a, b, fmts, scales):
    """Significand and exponent of each product, those of the scales included."""
    for x, y, (s, t) in zip(a, b, scales, strict=True):
        (m, e), (n, f) = split(x, fmts[0].emin), split(y, fmts[1].emin)
        (p, g), (q, h) = split(s, -127), split(t, -127)
        yield m * n * p * q, e + f + g + h


def one_step(
    a,
    b,
    c,
    fmts,
    output,
    terms,
    bits,
    written,
    *,
    scales=None,
    zeros_align=False,
    floor=-126,
):
    """D = C + Σ a·b for one element: all terms aligned to one exponent, and cut."""
    if (found := special(a, b, c)) is not None:
        return found
    scales = scales or [(1.0, 1.0)] * len(a)
    if any(isnan(x) for pair in scales for x in pair):
        return nan
    parts = [*products(a, b, fmts, scales), split(c, output.emin)]
    exponents = [e for m, e in parts if m or zeros_align]
    if floor is not None:
        exponents.append(floor)
    if not exponents:
        return 0.0
    unit = Fraction(2) ** (max(exponents) - bits)
    total = sum(int(m * Fraction(2) ** e / unit) for m, e in parts) * unit
    return write(total, output, written)


def write(total, output, written=23):
    """A sum in FP16 to nearest, or cut to FP32."""
    if output is FP16:
        return oracle.round_fraction(total, FP16, EVEN, IEEE) + 0.0
    if abs(total) >= 2**128:
        return inf if total > 0 else -inf
    register = (
        FP32
        if written == 23
        else Format("short", exponent_bits=8, precision=written + 1)
    )
    return oracle.round_fraction(total or 0.0, register, Rounding.TOWARD_ZERO, IEEE)


def groups_of_sixteen(a, b, c, scales, scale_format):
    """FP4 with scales: exact sums of sixteen products, aligned by their scales' exponents."""
    if not isfinite(c) or any(isnan(x) for pair in scales for x in pair):
        return (
            c
            if not isfinite(c) and not any(isnan(x) for p in scales for x in p)
            else nan
        )
    parts = [split(c, -126)]
    exponents = [-126, parts[0][1]] if c else [-126]
    for k in range(0, len(a), 16):
        dot = sum(
            Fraction(a[p]) * Fraction(b[p]) for p in range(k, min(k + 16, len(a)))
        )
        (m, e), (n, f) = (split(s, scale_format.emin) for s in scales[k])
        parts.append((dot * m * n, e + f))
        exponents += [e + f] * (m * n != 0)
    unit = Fraction(2) ** (max(exponents) - 35)
    return write(sum(int(m * Fraction(2) ** e / unit) for m, e in parts) * unit, FP32)


def fused(x, y, c, fmt):
    """x·y + c rounded once to nearest."""
    if (found := special([x], [y], c)) is not None:
        return found
    q = Fraction(x) * Fraction(y) + Fraction(c)
    if not q:
        return (
            -0.0
            if c == 0 and copysign(1, x) * copysign(1, y) == copysign(1, c) == -1
            else 0.0
        )
    return oracle.round_fraction(q, fmt, EVEN, IEEE)


def in_pairs(a, b, c, terms, flush):
    """CDNA1 and CDNA2: every product and sum rounded to FP32, two by two, C last."""

    def tiny(x):
        return copysign(0.0, x) if flush and abs(x) < 2.0**-126 else x

    sums = [tiny(fused(x, y, 0.0, FP32)) for x, y in zip(a, b, strict=True)]
    sums += [0.0] * (terms - len(sums))
    while len(sums) > 1:
        sums = [
            tiny(fused(x, 1.0, y, FP32))
            for x, y in zip(sums[::2], sums[1::2], strict=True)
        ]
    return tiny(fused(c, 1.0, sums[0], FP32))


def products_first(a, b, c, fmts, lanes):
    """CDNA3: cut sums of products, then the sum with C, rounded down and written to nearest."""
    finite = [xy for xy in zip(a, b, strict=True) if all(map(isfinite, xy))]
    exact = [Fraction(x) * Fraction(y) for x, y in finite]
    past = [copysign(inf, x) for x in exact if abs(x) >= 2**128]
    found = special(a, b, c)
    if past or found is not None:  # what is past FP32 counts as infinite
        return sum(past, found or 0.0)
    parts = list(products(a, b, fmts, [(1.0, 1.0)] * len(a)))
    sums = []
    tops = []
    for lane in range(lanes):
        if own := [(m, e) for m, e in parts[lane::lanes] if m]:
            tops.append(max(e for _, e in own))
            bit = Fraction(2) ** (tops[-1] - 24)
            sums.append(sum(int(m * Fraction(2) ** e / bit) for m, e in own) * bit)
    total = Fraction(0)
    if tops:
        bit = Fraction(2) ** (max(tops) - 24)
        total = sum(floor(s / bit) for s in sums) * bit
    of_c = split(c, -126)[1]
    top = max([-126, *tops, *[of_c] * (c != 0)])
    bits = [Fraction(2) ** (top - 31), Fraction(2) ** (top - 24)]
    rest = 0 if lanes == 2 and of_c < top - 25 else floor(Fraction(c) / bits[1])
    total = floor(total / bits[0]) * bits[0] + rest * bits[1]
    return oracle.round_fraction(total or 0.0, FP32, EVEN, IEEE)


def chained(a, b, c, terms, step):
    """All elements of a product; `step` takes factors of one step, C, and where they begin."""
    result = np.empty(c.shape)
    for i, j in np.ndindex(*c.shape):
        total = float(c[i, j])
        for k in range(0, a.shape[1], terms):
            row = a[i, k : k + terms].tolist()
            column = b[k : k + terms, j].tolist()
            total = step(row, column, total, (i, j, k))
        result[i, j] = total
    return result


def block(kind, fmts, output, rng, shape):
    """Random operands whose terms interact, lie far apart, cancel, are subnormal, or special."""
    m, k, n = shape
    parts = [(m, k), (k, n), (m, n)]
    formats = (*fmts, output)
    if kind == "codes":  # every code is as likely: infinities and NaNs among them
        return [codes(f, p, rng) for f, p in zip(formats, parts, strict=True)]
    spread = {"near": 2, "far": 12, "low": 4, "high": 4, "cancel": 6}[kind]
    emin, emax = (
        (fmts[0].emin, fmts[0].emax) if isinstance(fmts[0], Format) else (-1022, 1023)
    )
    centre = {"low": emin // 2, "high": emax // 2 + 1}.get(kind, 0)
    x = [
        rng.standard_normal(p)
        * 2.0 ** np.minimum(rng.integers(-spread, spread + 1, p) + scale, 1020)
        for p, scale in zip(parts, (centre, centre, 2 * centre), strict=True)
    ]
    if kind == "cancel":  # in every other row the first two thirds, and then C
        third = k // 3
        x[0][::2, third : 2 * third], x[1][third : 2 * third] = (
            -x[0][::2, :third],
            x[1][:third],
        )
    x = [np.where(rng.random(y.shape) < 0.1, 0.0, y) for y in x]
    return [entered(y, f) for y, f in zip(x, formats, strict=True)]


def entered(x, fmt):
    if not isinstance(fmt, Format):
        return x
    return mplab.round_to(x, fmt, overflow=Overflow.SATURATE)


def codes(fmt, shape, rng):
    if not isinstance(fmt, Format):
        return rng.integers(0, 1 << 64, shape, dtype=np.uint64).view(np.float64)
    return np.asarray(
        mplab.decode(rng.integers(0, 1 << fmt.bits, shape), fmt), np.float64
    )
