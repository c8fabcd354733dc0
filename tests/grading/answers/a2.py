"""Answers to A2: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "gap_at": [
        """
def gap_at(x, fmt):
    low, gap = fmt.min_normal, fmt.min_subnormal
    while abs(x) >= 2 * low:
        low, gap = 2 * low, 2 * gap
    return gap
"""
    ],
    "round_even": [
        """
def round_even(x, fmt):
    if math.isnan(x):
        return x
    sign = math.copysign(1.0, x)
    beyond = sign * (math.inf if fmt.has_infinity else math.nan)
    if math.isinf(x):
        return beyond
    gap = gap_at(x, fmt)
    lower = math.floor(abs(x) / gap)
    rest = abs(x) / gap - lower
    up = rest > 0.5 or (rest == 0.5 and lower % 2 == 1)
    y = (lower + up) * gap
    return beyond if y > fmt.max_finite else sign * y
"""
    ],
    "round_up": [
        """
def round_up(x, fmt):
    near = round_even(x, fmt)
    if x < -fmt.max_finite:
        return -fmt.max_finite
    if x > fmt.max_finite:
        return math.inf if fmt.has_infinity else math.nan
    if near >= x:
        return near
    return math.copysign(near + gap_at(x, fmt), x)
"""
    ],
    "round_twice": [
        """
def twice_differs(x, wide, fmt):
    return repr(round_even(x, fmt)) != repr(round_even(round_even(x, wide), fmt))
"""
    ],
    "round_random": [
        """
def round_random(x, fmt, r):
    gap = gap_at(x, fmt)
    rest = abs(x) % gap
    y = abs(x) - rest + (gap if r * gap < rest else 0.0)
    return y if math.copysign(1, x) > 0 else -y
"""
    ],
}

WRONG = {
    "gap_at": [
        ("math.frexp(x)[1] - 1 if x", "math.floor(math.log2(abs(x))) if x"),
        ("precision + 1", "precision"),
        ("[1] - 1 if", "[1] if"),
        ("max(exponent, fmt.emin)", "0"),
    ],
    "round_even": [
        (
            "    magnitude = round(abs(x) / gap) * gap\n",
            "    raised = abs(x) / gap + 0.5\n    whole = math.floor(raised)\n"
            "    magnitude = (whole - (raised == whole and whole % 2)) * gap\n",
        ),
        ("math.inf if fmt.has_infinity else math.nan", "fmt.max_finite"),
        (
            "math.copysign(magnitude, x)",
            "magnitude if x > 0 else -magnitude + 0.0",
        ),
    ],
    "round_up": [
        ("math.ceil(x / gap)", "math.ceil(x / gap - 1e-9)"),
        (
            "    rounded = max(rounded, -fmt.max_finite) if rounded < 0 else rounded",
            "    if rounded < -fmt.max_finite:\n"
            "        rounded = -math.inf if fmt.has_infinity else math.nan",
        ),
        ("math.copysign(rounded, x)", "rounded"),
        (
            "gap = gap_at(x, fmt)",
            "gap = 2.0 ** (math.frexp(x)[1] - fmt.precision)",
        ),
    ],
    "round_twice": [
        ("return once != twice and", "return False and"),
        (
            "round_even(round_even(x, wide), fmt)",
            "round_even(x, wide)",
        ),
    ],
    "round_random": [
        (
            "return math.copysign((lower + (r < steps - lower)) * gap, x)",
            "return (lower + (r < steps - lower)) * gap * (1 if x > 0 else -1)",
        ),
        ("(lower + (r < steps - lower))", "math.floor(steps + r)"),
        (
            "    return math.copysign(",
            "    lower = math.floor(x / gap)\n"
            "    return (lower + (r < x / gap - lower)) * gap\n    (",
        ),
    ],
}
