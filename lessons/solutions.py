"""A solution to each coding exercise of the lessons.

The checks compare answers with it, and the exported pages show it.

Each runs in its lesson's notebook, with the names that are imported there. The contract stands in
the notebook's stub. Answers to assignments do not belong here: this file is published.
"""

import math

import numpy as np

import mplab
from mplab import BF16, FP8_E4M3, FP16, FP32, Format, Rounding, round_to, ulp

REGISTER = Format("E8M13", exponent_bits=8, precision=14)


# 1
def flushed_share(x):
    nonzero = x[x != 0]
    if len(nonzero) == 0:
        return 0.0
    return np.mean(round_to(nonzero, FP16) == 0)


def smallest_scale(gradient):
    scale = 1.0
    while round_to(gradient * scale, FP16) == 0:
        scale *= 2
    return scale


# 2
def decode_e4m3(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent, trailing = code >> 3 & 15, code & 7
    if exponent == 15 and trailing == 7:
        return math.nan
    # Subnormal: no leading 1, and the exponent of the smallest normal number.
    if exponent == 0:
        return sign * trailing / 8 * 2.0**-6
    return sign * (1 + trailing / 8) * 2.0 ** (exponent - 7)


def gap_fp16(x):
    e = max(math.frexp(x)[1] - 1, -14)
    return 2.0 ** (e - 10)


# 3
def round_e4m3(x):
    e = max(np.frexp(x)[1] - 1, -6)
    gap = 2.0 ** (e - 3)
    return np.copysign(round(abs(x) / gap) * gap, x)


def chance_up(x):
    e = np.frexp(x)[1] - 1
    return x / 2.0 ** (e - 7) % 1  # a division by a power of two is exact


# 4
def saturating_cast(x):
    return round_to(np.clip(x, -448.0, 448.0), FP8_E4M3)


def count_fates(x):
    stored = np.abs(round_to(x, FP16))
    flushed = (stored == 0) & (x != 0)
    subnormal = (stored > 0) & (stored < FP16.min_normal)
    overflowed = np.isinf(stored) & np.isfinite(x)
    return [int(flushed.sum()), int(subnormal.sum()), int(overflowed.sum())]


# 5
def pairwise_sum(x):
    if len(x) < 2:
        return float(x[0]) if len(x) else 0.0
    half = len(x) // 2
    return round_to(pairwise_sum(x[:half]) + pairwise_sum(x[half:]), FP16)


def kahan_sum(x):
    total = lost = 0.0
    for term in x:
        corrected = round_to(term - lost, FP16)
        new = round_to(total + corrected, FP16)
        lost = round_to(round_to(new - total, FP16) - corrected, FP16)
        total = new
    return total


def two_sum(a, b):
    s = a + b
    taken_b = s - a
    taken_a = s - taken_b
    return s, (a - taken_a) + (b - taken_b)


def two_product(a, b):
    bits = np.finfo(a.dtype).nmant + 1
    factor = a.dtype.type(2 ** ((bits + 1) // 2) + 1)

    def halves(x):
        c = factor * x
        high = c - (c - x)
        return high, x - high

    a_high, a_low = halves(a)
    b_high, b_low = halves(b)
    p = a * b
    e = a_high * b_high - p
    e = e + a_high * b_low
    e = e + a_low * b_high
    return p, e + a_low * b_low


# 6
def step_sum(a, b):
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x * y != 0]
    if not pairs:
        return 0.0
    largest = max(np.frexp(x)[1] - 1 + np.frexp(y)[1] - 1 for x, y in pairs)
    unit = 2.0 ** (largest - 13)
    return sum(int(x * y / unit) for x, y in pairs) * unit  # `int` cuts toward zero


def promoted_sum(x):
    total = 0.0
    for start in range(0, len(x), 128):
        part = 0.0
        for term in x[start : start + 128]:
            part = round_to(part + term, REGISTER, rounding=Rounding.TOWARD_ZERO)
        total = round_to(total + part, FP32)
    return total


# 7
def dead_share(w, delta):
    asked = delta != 0
    if not asked.any():
        return 0.0
    return np.mean(round_to(w + delta, BF16)[asked] == w[asked])


def stochastic_round(x, r):
    low = round_to(x, BF16, rounding=Rounding.TOWARD_NEGATIVE)
    if low == x:
        return x
    high = round_to(x, BF16, rounding=Rounding.TOWARD_POSITIVE)
    return high if r < (x - low) / (high - low) else low


# 8
def exponents(x):
    kept = x[np.isfinite(x) & (x != 0)]
    return np.frexp(kept)[1] - 1


def awake_from(shares):
    asleep = [i for i, share in enumerate(shares) if share >= 0.9]
    first = asleep[-1] + 1 if asleep else 0
    return first if first < len(shares) else -1


# 9
def next_state(scale, good_steps, found_inf, growth_interval):
    if found_inf:
        return scale / 2, 0
    if good_steps + 1 == growth_interval:
        return scale * 2, 0
    return scale, good_steps + 1


def clipped(gradients, scale, max_norm):
    true = gradients / scale
    norm = np.sqrt(np.sum(true**2))
    return true * (max_norm / norm) if norm > max_norm else true


# 10
def result_precision(operation, inputs, lower, wide, low):
    if operation in lower:
        return low
    if operation in wide:
        return 24
    return inputs[0] if len(set(inputs)) == 1 else 24


def safe_rms(x):
    return np.sqrt(np.mean(x.astype(np.float32) ** 2))


# 11
def speed_up(n, peak32, peak16, bandwidth):
    def seconds(peak, width):
        return max(2 * n**3 / peak, 3 * n**2 * width / bandwidth)

    return seconds(peak32, 4) / seconds(peak16, 2)


def step_speed_up(shares, factors):
    return 1 / np.sum(shares / factors)


# 12
def fp8_scale(amax):
    scale = 1.0
    while amax * scale > 448:
        scale /= 2
    while 0 < amax * scale * 2 <= 448:
        scale *= 2
    return scale


def delayed_scales(amaxes, length):
    scales = [1.0]
    for i in range(1, len(amaxes)):
        scales.append(fp8_scale(max(amaxes[max(0, i - length) : i])))
    return np.array(scales)


# 13
def name_the_fault(finite, zeros, lost, moved, repeats):
    if finite < 1:
        return 1
    if zeros > 0.5:
        return 2
    if lost > 0.5:
        return 3
    return 4 if moved > 0.5 and repeats > 0.5 else 0


# 14
def log_sum_exp(x):
    largest = np.max(x)
    if largest == -np.inf:
        return largest
    return largest + np.log(np.sum(np.exp(x - largest)))


def dot_backward_error(a, b, result):
    off = abs(np.sum(a * b) - result)
    # How far a relative change of 1 in each element moves the sum.
    reach = np.sum(np.abs(a * b))
    if off == 0:
        return 0.0
    return off / reach if reach else np.inf


# 15
def system_backward_error(a, x, b):
    off = np.max(np.abs(b - a @ x))
    norm = np.max(np.sum(np.abs(a), axis=1))
    return off / (norm * np.max(np.abs(x)) + np.max(np.abs(b))) if off else 0.0


def refine_once(a, b, x, lower, upper):
    residual = b - a @ x
    largest = np.max(np.abs(residual))
    if largest == 0:
        return x
    power = 2.0 ** (1 - np.frexp(largest)[1])
    r = round_to(residual * power, FP16)
    y = mplab.arithmetic.solve_triangular(lower, r, FP16, lower=True)
    return x + mplab.arithmetic.solve_triangular(upper, y, FP16, lower=False) / power


# 16
def frozen_at(k, room, dt, fmt):
    t, before = mplab.round_to(90.0, fmt), None
    while t != before:
        t, before = mplab.round_to(t - dt * k * (t - room), fmt), t
    return t


def kahan_step(t, lost, step):
    due = mplab.round_to(step + lost, BF16)
    new = mplab.round_to(t + due, BF16)
    arrived = mplab.round_to(new - t, BF16)
    return new, mplab.round_to(due - arrived, BF16)


def variance_ratio(delta, ulp):
    below = delta // ulp * ulp
    share = (delta - below) / ulp
    return ((1 - share) * below**2 + share * (below + ulp) ** 2) / delta**2


# 17
def unit_products(k, p, held, q):
    b = p + 1
    while k * 4 ** (b - 1) > 2**held:  # k products of two slices must fit
        b -= 1
    s = -(-q // b)  # rounded up
    return s * (s + 1) // 2


def split_row(x, widths):
    rest, rows = np.array(x, float), []
    unit = 2.0 ** (np.frexp(np.max(np.abs(rest)))[1] + 1)
    for b in widths:
        unit /= 2.0**b
        rows.append(np.rint(rest / unit))
        rest = rest - rows[-1] * unit
    return np.array(rows)


def moduli_needed(k, q):
    taken, product = [], 1
    for m in range(256, 1, -1):
        if product > 2 * k * 4**q:
            break
        if all(np.gcd(m, other) == 1 for other in taken):
            taken, product = [*taken, m], product * m
    return len(taken)


# 18
def nvfp4_scales(x):
    largest = np.max(np.abs(x).reshape(-1, 16), axis=1)
    tensor = np.max(largest) / (6 * 448)
    return mplab.round_to(np.maximum(largest / 6 / tensor, 2.0**-6), mplab.FP8_E4M3)


def stochastic_e2m1(x, u):
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    size = np.minimum(np.abs(x), 6)
    at = np.minimum(np.searchsorted(values, size, side="right") - 1, 6)
    low, high = values[at], values[at + 1]
    return np.copysign(np.where(u < (size - low) / (high - low), high, low), x)


# 19
def count_orders(a, b):
    from itertools import permutations

    counts = {}
    for order in permutations(round_to(a * b, BF16)):
        total = 0.0
        for term in order:
            total = float(round_to(total + term, BF16))
        counts[total] = counts.get(total, 0) + 1
    return counts


def invariant_matmul(kernel, x, w):
    rows = []
    for start in range(0, len(x), 8):
        eight = np.zeros((8, x.shape[1]), np.float32)
        some = x[start : start + 8]
        eight[: len(some)] = some
        rows.append(kernel(eight, w)[: len(some)])
    return np.concatenate(rows)


def first_divergence(a, b):
    for i, ((_, x), (_, y)) in enumerate(zip(a, b, strict=True)):
        if x.tobytes() != y.tobytes():
            return i
    return None


# 20
def mean_error(x):
    return np.mean((round_to(x, BF16) - x) / ulp(x, BF16))


def untied_weights(scores):
    largest = scores.max()
    shared = (scores == largest).sum() > 1
    return round_to(np.exp(scores - largest - shared), BF16)


def steps_to_half(s):
    steps = 0
    while s < 0.5:
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
        steps += 1
    return steps
