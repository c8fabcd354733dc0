"""Answers to A4: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "best_scale": [
        """
def best_scale(gradients, fmt):
    def rounded(k):
        return mplab.round_to(np.ldexp(gradients, k), fmt)
    def lost(k):
        return np.count_nonzero(gradients) - np.count_nonzero(rounded(k))
    low, high = -400, 400
    while high - low > 1:
        k = (low + high) // 2
        low, high = (k, high) if np.isfinite(rounded(k)).all() else (low, k)
    return [low, lost(0), lost(low)]
"""
    ],
    "after_run": [
        """
def after_run(state, found_inf, steps):
    state = dict(state)
    while steps > 0:
        before = state["scale"]
        if found_inf:
            steps -= 1
            state["_growth_tracker"] = 0
            with np.errstate(over="ignore"):
                state["scale"] = float(np.float32(before * state["backoff_factor"]))
        else:
            jump = min(steps, state["growth_interval"] - state["_growth_tracker"])
            steps -= jump
            state["_growth_tracker"] += jump
            if state["_growth_tracker"] < state["growth_interval"]:
                break
            state["_growth_tracker"] = 0
            with np.errstate(over="ignore"):
                grown = float(np.float32(before * state["growth_factor"]))
            state["scale"] = grown if grown < math.inf else before
        if state["scale"] == before:
            steps = 0 if found_inf else steps % state["growth_interval"]
    return state
"""
    ],
    "window_gradient": [
        """
def window_gradient(micro, scale, max_norm):
    total = [0.0] * len(micro[0])
    for gradient in micro:
        gradient = gradient / np.float32(scale * len(micro))
        for i, g in enumerate(gradient.tolist()):
            total[i] += g
    if not all(math.isfinite(t) for t in total):
        return None
    factor = max_norm / (math.hypot(*total) + 1e-6)
    return [t * min(factor, 1.0) for t in total]
"""
    ],
    "end_window": [
        """
def end_window(state, gradients):
    found = [0] * len(gradients)
    for i, own in enumerate(gradients):
        for g in own:
            found[i] += sum(not math.isfinite(x) for x in g.ravel().tolist())
    state = after_run(state, sum(found) > 0, 1)
    return np.array(found) == 0, state
"""
    ],
    "replay": [
        """
def replay(state, log, warmup):
    done, scales, rates = 0, [], []
    disk = dict(state, done=0)
    live = dict(disk)
    for entry in log:
        if isinstance(entry, str):
            live, disk = (dict(disk), disk) if entry == "crash" else (live, dict(live))
            continue
        done = live.pop("done")
        scales.append(live["scale"])
        good = live["scale"] <= entry
        if good:
            done += 1
        rates.append(min(done, warmup) / warmup if good else 0.0)
        live = dict(after_run(live, not good, 1), done=done)
    return scales, rates
"""
    ],
}

FINITE = "np.isfinite(micro).all()"
LENGTHS = (
    "    norm = np.linalg.norm(gradient)\n"
    "    if norm > max_norm:\n"
    "        gradient = gradient * (max_norm / norm)\n"
    "    return gradient"
)
QUIET = (
    "    with np.errstate(all='ignore'):\n"
    "        norm = np.linalg.norm(gradient)\n"
    "        return gradient * (max_norm / norm) if norm > max_norm else gradient"
)
WINDOW = (
    "    if not np.isfinite(micro).all():\n"
    "        return None\n"
    "    gradient = np.sum(micro, axis=0) / len(micro)\n"
    "    gradient = gradient / scale\n"
)

SAVED = (
    "    saved = state, updates\n"
    "    scales, rates = [], []\n"
    "    for entry in log:\n"
    '        if entry == "save":\n'
    "            saved = state, updates\n"
    '        elif entry == "crash":\n'
    "            state, updates = saved\n"
)


def blind(test):
    """A window that overlooks some bad numbers, and the edit that puts it in place."""
    seen = WINDOW.replace(f"not {FINITE}", test)
    return WINDOW + LENGTHS, seen + QUIET


WRONG = {
    "best_scale": [
        (
            "np.isfinite(mplab.round_to(largest * 2.0**k, fmt))",
            "largest * 2.0**k <= fmt.max_finite",
            "less than half a gap",
        ),
        ("np.abs(gradients).max()", "gradients.max()", ""),
        ("(scaled != 0) & ", "", ""),
        (
            "mplab.round_to(scaled, fmt) == 0",
            "abs(scaled) < fmt.min_normal",
            "nearest to 0 becomes 0",
        ),
        ("zeros(gradients), ", "zeros(gradients * 2.0**k), ", ""),
    ],
    "after_run": [
        ("steps, 0\n", "steps, state['_growth_tracker']\n", "begins at 0 again"),
        (
            'divmod(total, state["growth_interval"])',
            'divmod(total, state["growth_interval"] + 1)',
            "not the one after it",
        ),
        (
            'divmod(total, state["growth_interval"])',
            'max(total - state["growth_interval"] + 1, 0), total',
            "",
        ),
        (
            "    for _",
            "    factor = 0.5 if found_inf else 2.0\n    for _",
            "",
        ),
        ("float(mplab.round_to(scale * factor, mplab.FP32))", "scale * factor", ""),
    ],
    "window_gradient": [
        (
            "    gradient = gradient / scale\n" + LENGTHS,
            LENGTHS.replace("return gradient", "return gradient / scale"),
            "Clipped while scaled",
        ),
        (
            "    gradient = np.sum(micro, axis=0) / len(micro)\n    gradient = gradient / scale",
            "    gradient = np.zeros(len(micro[0]))\n"
            "    for one in micro:\n"
            "        gradient += one\n"
            "        gradient /= scale\n"
            "    gradient = gradient / len(micro)",
            "",
        ),
        ("np.sum(micro, axis=0) / len(micro)", "np.sum(micro, axis=0)", "is the mean of"),
        (LENGTHS, "    return np.clip(gradient, -max_norm, max_norm)", "bends the direction"),
        (*blind("np.any(np.equal(micro, math.nan) | np.isinf(micro))"), ""),
    ],
    "end_window": [
        (
            "    return stepped, after_run(state, found_inf, 1)",
            "    for good in stepped:\n"
            "        state = after_run(state, not good, 1)\n"
            "    return stepped, state",
            "however many optimizers",
        ),
        ("return stepped,", "return [not found_inf] * len(stepped),", "not for those of another"),
        ("found_inf, 1", "False, 1", ""),
        (
            "np.isfinite(g).all()",
            "not any(x == math.nan or abs(x) == math.inf for x in g)",
            "",
        ),
        ("for g in own)", "for g in own[:1])", ""),
    ],
    "replay": [
        (
            "state, updates = saved",
            'state, updates = {**saved[0], "scale": 65536.0, "_growth_tracker": 0}, saved[1]',
            "not with 65536",
        ),
        ("state, updates = saved", "updates = saved[1]", ""),
        ("state, updates = saved", "state = saved[0]", "and their warm-up"),
        ("updates += not found_inf", "updates += 1", "must not count it"),
        ("(updates + 1) / warmup", "updates / warmup", ""),
    ],
}  # fmt: skip
