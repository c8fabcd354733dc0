"""Answers to A3: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "stall": [
        """
def stall(start, step, fmt):
    reached = fmt.min_normal  # its gap is twice its share of the last bit
    while reached * 2.0 ** (1 - fmt.precision) < 2 * step:
        reached *= 2
    if start < reached:
        return float(mplab.round_to(reached, fmt))
    gap = float(mplab.ulp(start, fmt))
    odd = start / gap % 2 == 1
    return rounded(start + gap, fmt) if odd and step == gap / 2 else start
"""
    ],
    "lane_sum": [
        """
def lane_sum(x, lanes, fmt):
    rows = -(-len(x) // lanes)
    padded = np.zeros(rows * lanes)
    padded[: len(x)] = x
    totals = np.zeros(lanes)
    for row in padded.reshape(rows, lanes):
        totals = mplab.round_to(totals + row, fmt)
    def tree(totals):
        if len(totals) == 1:
            return float(totals[0])
        first, second = np.split(totals, 2)
        return tree(mplab.round_to(first + second, fmt))
    return tree(totals)
"""
    ],
    "compensated": [
        """
def compensated(total, lost, x, fmt):
    if len(x) == 0:
        return total, lost
    given = rounded(lost + float(x[0]), fmt)
    after = rounded(given + total, fmt)
    lacks = rounded(given - rounded(after - total, fmt), fmt)
    return compensated(after, lacks, x[1:], fmt)
"""
    ],
    "promoted_dot": [
        """
def promoted_dot(a, b, every, fmt, wide):
    total = partial = 0.0
    for i, product in enumerate(mplab.round_to(np.asarray(a) * np.asarray(b), fmt), 1):
        partial = rounded(partial + product, fmt)
        if i % every == 0:
            total, partial = rounded(total + partial, wide), 0.0
    return rounded(total + partial, wide)
"""
    ],
    "running_means": [
        """
def running_means(x, fmt):
    means = []
    for term in x:
        before = means[-1] if means else 0.0
        shift = rounded(float(term) - before, fmt) / (len(means) + 1)
        means.append(rounded(before + rounded(shift, fmt), fmt))
    return means
"""
    ],
}

WRONG = {
    "stall": [
        ("fmt.precision + power", "fmt.precision"),
        ("fmt.precision + power", "fmt.precision - 1 + power"),
        (
            "2.0 ** (fmt.precision + power)",
            "2.0**fmt.precision * step",
        ),
    ],
    "lane_sum": [
        (
            "totals[i] + totals[i + half]",
            "totals[2 * i] + totals[2 * i + 1]",
        ),
        (
            "    while len(totals) > 1:",
            "    for other in totals[1:]:\n"
            "        totals[0] = rounded(totals[0] + other, fmt)\n"
            "    while False:",
        ),
        ("range(len(x))", "range(len(x) // lanes * lanes)"),
    ],
    "compensated": [
        ("took = rounded(new - total, fmt)", "took = new - total"),
        ("term + lost", "term - lost"),
        (
            "return total, lost",
            "return rounded(total + lost, fmt), 0.0",
        ),
    ],
    "promoted_dot": [
        ("rounded(a[i] * b[i], fmt)", "a[i] * b[i]"),
        (
            "rounded(total + partial, wide)",
            "rounded(total + partial, fmt)",
        ),
        (
            "range(0, len(a), every)",
            "range(0, len(a) - every + 1, every)",
        ),
    ],
    "running_means": [
        (
            "mean, shown = 0.0, []",
            "return [rounded(np.mean(x[: n + 1]), fmt) for n in range(len(x))]",
        ),
        (
            "rounded(rounded(term - mean, fmt) / n, fmt)",
            "rounded(rounded(term / n, fmt) - rounded(mean / n, fmt), fmt)",
        ),
    ],
}
