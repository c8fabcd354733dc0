"""Answers to A8: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "running": [
        """
def running_variance(x, fmt):
    u = fmt.unit_roundoff
    out = np.zeros((2, len(x) - 1))
    mean = float(x[0])
    m = 0.0
    for k in range(1, len(x)):
        old = mplab.round_to(x[k] - mean, fmt)
        mean = mplab.round_to(mean + mplab.round_to(old / (k + 1), fmt), fmt)
        new = mplab.round_to(x[k] - mean, fmt)
        m = mplab.round_to(m + mplab.round_to(old * new, fmt), fmt)
        out[0, k - 1] = mplab.round_to(m / k, fmt)
        out[1, k - 1] = 2 * u * abs(mean) * out[0, k - 1] ** 0.5
    return out
"""
    ],
    "freezing": [
        """
def finest_steps(k, room, start, goal, halvings, fmt):
    sign = 1 if start > goal else -1
    found = [math.nan, math.nan]
    for way in range(2):
        for j in range(halvings + 1):
            t, rest = rounded(start, fmt), 0.0
            while sign * t > sign * goal:
                state = t, rest
                step = k * (room - t) / 2**j
                if way == 0:
                    t = rounded(t + step, fmt)
                else:
                    due = rounded(step + rest, fmt)
                    t = rounded(t + due, fmt)
                    rest = rounded(due - rounded(t - state[0], fmt), fmt)
                if state == (t, rest):
                    break
            if sign * t <= sign * goal:
                found[way] = 2.0**-j
    return np.array(found)
"""
    ],
    "system": [
        """
@np.errstate(all="ignore")
def solve_rod(lower, diagonal, upper, b, fmt):
    n = len(b)
    fl = lambda v: rounded(v, fmt)
    main, up, f = [fl(diagonal[0])], [fl(v) for v in upper], []
    for i in range(n - 1):
        if main[i] == 0 or abs(main[i]) == math.inf or main[i] != main[i]:
            break
        f.append(fl(fl(lower[i]) / main[i]))
        main.append(fl(fl(diagonal[i + 1]) - fl(f[i] * up[i])))
    if len(main) < n or not 0 < abs(main[-1]) < math.inf:
        return {"x": np.zeros(n), "steps": 0, "error": 1.0, "why": "broken"}
    matrix = np.diag(diagonal) + np.diag(lower, -1) + np.diag(upper, 1)
    norm = np.abs(matrix).sum(axis=1).max()

    def judge(x):
        r = residual(lower, diagonal, upper, x, b)
        bottom = norm * np.abs(x).max() + np.abs(b).max()
        return r, (np.abs(r).max() / bottom if r.any() else 0.0)

    x, steps, tried = np.zeros(n), 0, []
    while True:
        r, error = judge(x)
        if error <= 2**-50:
            return {"x": x, "steps": steps, "error": error, "why": "converged"}
        tried.append((error, steps, x))
        if not np.isfinite(error) or min(tried[-3:])[0] >= min(tried[:-3], default=(math.inf,))[0]:
            return {"x": min(tried)[2], "steps": steps, "error": min(tried)[0], "why": "stuck"}
        s = 2.0 ** -np.floor(np.log2(np.abs(r).max()))
        y = [fl(r[0] * s)]
        for i in range(1, n):
            y.append(fl(fl(r[i] * s) - fl(f[i - 1] * y[-1])))
        z = [fl(y[-1] / main[-1])]
        for i in range(n - 2, -1, -1):
            z.insert(0, fl(fl(y[i] - fl(up[i] * z[0])) / main[i]))
        x, steps = x + np.array(z) / s, steps + 1
"""
    ],
    "plan": [
        """
def cheapest_plan(n, p, held, q):
    best = None
    b = 1
    while b <= p + 1 and 4 ** (b - 1) <= 2**held:
        m = n
        if n * 4 ** (b - 1) > 2**held:
            m = 2 ** (held - 2 * b + 2)
        s = math.ceil(q / b)
        steps = sum(range(s + 1)) * math.ceil(n / m)
        if best is None or steps < best[2]:
            best = (b, m, steps)
        b += 1
    return best
"""
    ],
    "dot": [
        """
from mplab.lessons.l17 import emulation

def unit_dot(x, y, p, held, q):
    b, m, _ = cheapest_plan(len(x), p, held, q)
    count = math.ceil(q / b)
    (xs, ex, _), (ys, ey, _) = (emulation.split(v, count, b) for v in (x, y))
    base = int(ex[0]) + int(ey[0]) - 2 * b * count
    total, top = 0, 0
    for s in range(1, count + 1):
        for t in range(1, count + 2 - s):
            for k in range(0, len(x), m):
                held_sum = int(xs[s - 1, k : k + m] @ ys[t - 1, k : k + m])
                top = max(top, abs(held_sum))
                total += held_sum * 2 ** (b * (2 * count - s - t + 2))
    return np.array([math.ldexp(total, base), float(top)])
"""
    ],
}

WRONG = {
    "running": [
        ("2 * abs(mean)", "abs(mean)"),
        (
            "    mean, m, columns",
            "    rounded = lambda v, _: float(np.float32(v))\n    mean, m, columns",
        ),
        ("rounded(distance / n, fmt)", "distance / n"),
        (
            "* rounded(reading - mean, fmt)",
            "* (reading - mean)",
        ),
        (
            "product = rounded(distance * rounded(reading - mean, fmt), fmt)",
            "product = distance * rounded(reading - mean, fmt)",
        ),
    ],
    "freezing": [
        ("rounded(start, fmt), 0.0", "start, 0.0"),
        ("default=math.nan", "default=0.0"),
        ("(room - t)", "(0 - t)"),
        (
            "due = rounded(due + rest, fmt)\n"
            "            new = rounded(t + due, fmt)\n"
            "            if compensated:\n"
            "                rest = rounded(due - rounded(new - t, fmt), fmt)",
            "due = due + rest\n"
            "            new = rounded(t + due, fmt)\n"
            "            if compensated:\n"
            "                rest = due - (new - t)",
        ),
        ("min((dt", "max((dt"),
    ],
    "system": [
        ("best, least, waited = x, error, 0", "best, least = x, error"),
        ("if waited == 3", "if waited == 2"),
        ("2.0**-50", "fmt.unit_roundoff"),
        ('"steps": steps, "error": least', '"steps": steps - waited, "error": least'),
        (
            "rounded(y[i] - rounded(factors[i] * y[i - 1], fmt), fmt)",
            "rounded(y[i] - factors[i] * y[i - 1], fmt)",
        ),
        (
            "        if error < least:\n"
            "            best, least, waited = x, error, 0\n"
            "        else:\n"
            "            waited += 1\n",
            "        waited = 0 if error < least / 2 else 3\n"
            "        if error < least:\n"
            "            best, least = x, error\n",
        ),
    ],
    "plan": [
        ("p + 2", "p + 1"),
        ("s * (s + 1) // 2", "s * s"),
        ("-(-n // m)", "max(n // m, 1)"),
    ],
    "dot": [
        ("*map(abs, sums)", "*sums"),
        ("range(slices - s)", "range(slices)"),
        (
            "b, m, _ = cheapest_plan(len(x), p, held, q)",
            "(b, _, _), m = cheapest_plan(len(x), p, held, q), len(x)",
        ),
        ("np.rint(rest)", "np.floor(rest)"),
        ("np.rint(rest)", "np.floor(rest + 0.5)"),
        ("np.rint(rest)", "np.trunc(rest + np.copysign(0.5, rest))"),
    ],
}
