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

WRONG = {
    "best_scale": [
        (
            "    def zeros(scaled):\n",
            "    def zeros(scaled):\n        scaled = np.float32(scaled)\n",
        ),
        ("np.abs(gradients).max()", "gradients.max()"),
        ("(scaled != 0) & ", ""),
        ("zeros(gradients), ", "zeros(gradients * 2.0**k), "),
    ],
    "after_run": [
        (
            'divmod(total, state["growth_interval"])',
            'max(total - state["growth_interval"] + 1, 0), total',
        ),
        (
            "    for _",
            "    factor = 0.5 if found_inf else 2.0\n    for _",
        ),
        ("float(mplab.round_to(scale * factor, mplab.FP32))", "scale * factor"),
    ],
    "window_gradient": [
        (
            "    gradient = np.mean(np.float64(micro), axis=0)\n    gradient = gradient / scale",
            "    gradient = np.zeros(len(micro[0]))\n"
            "    for one in micro:\n"
            "        gradient += one\n"
            "        gradient /= scale\n"
            "    gradient = gradient / len(micro)",
        ),
        (
            "not np.isfinite(micro).all()",
            "np.any(np.equal(micro, math.nan) | np.isinf(micro))",
        ),
    ],
    "end_window": [
        ("all(np.isfinite(g).all() for g in own)", "bool(np.isfinite(own[-1]).all())"),
        ("found_inf, 1", "False, 1"),
        (
            "np.isfinite(g).all()",
            "not any(x == math.nan or abs(x) == math.inf for x in g)",
        ),
        ("for g in own)", "for g in own[:1])"),
    ],
    "replay": [
        ("state, updates = saved", "updates = saved[1]"),
        ("(updates + 1) / warmup", "updates / warmup"),
    ],
}  # fmt: skip
