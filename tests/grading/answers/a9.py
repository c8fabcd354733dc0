"""Answers to A9: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "pack": [
        """
def pack(x):
    amax = float(np.abs(x).max())
    tensor = float(np.float32(amax / 1536.0)) if amax else 1.0
    out = []
    for start in range(0, len(x), 16):
        part = [float(v) for v in x[start : start + 16]]
        best = None
        for goal in (6.0, 4.0):
            wanted = max(abs(v) for v in part) / goal / tensor
            scale = float(mplab.round_to(min(max(wanted, 1 / 64), 448.0), mplab.FP8_E4M3))
            unit = scale * tensor
            held = [
                float(mplab.round_to(max(-6.0, min(6.0, v / unit)), mplab.FP4_E2M1)) for v in part
            ]
            wrong = math.fsum((h * unit - v) ** 2 for h, v in zip(held, part))
            if best is None or wrong < best[0]:
                codes = [int(mplab.encode(h, mplab.FP4_E2M1)) for h in held]
                best = wrong, int(mplab.encode(scale, mplab.FP8_E4M3)), codes
        out.append(best[1])
        out += [best[2][i] | best[2][i + 1] << 4 for i in range(0, 16, 2)]
    return {"tensor": tensor, "bytes": np.array(out, dtype=np.uint8)}
"""
    ],
    "spread": [
        """
def two_products(x, y, signs):
    def turn(v):
        out = []
        for start in range(0, len(v), 16):
            part = v[start : start + 16] * signs
            step = 1
            while step < 16:
                part = part.reshape(-1, 2, step)
                part = np.stack([part[:, 0] + part[:, 1], part[:, 0] - part[:, 1]], axis=1).ravel()
                step *= 2
            out.append(part / 4)
        return np.concatenate(out)
    def back(v):
        return unpack(pack(v))
    return np.array([np.sum(back(x) * back(y)), np.sum(back(turn(x)) * back(turn(y)))])
"""
    ],
    "chance": [
        """
def chances(x, scale):
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    rows = []
    for v in x:
        size = min(abs(v) / scale, 6.0)
        low = max(n for n in values if n <= size)
        high = min(n for n in values if n >= size)
        deviation = math.sqrt((size - low) * (high - size))
        error = min(size - low, high - size)
        casts = math.ceil((deviation / error) ** 2) if error else 1
        rows.append((math.copysign(size * scale, v), deviation * scale, casts))
    return np.array(rows).T
""",
        """
def chances(x, scale):
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    rows = []
    for v in x:
        z = abs(float(v)) / scale
        if z >= 6 or z in values:
            rows.append((math.copysign(min(z, 6) * scale, v), 0.0, 1.0))
            continue
        low = max(w for w in values if w < z)
        high = min(w for w in values if w > z)
        p = (z - low) / (high - low)
        casts = max(p, 1 - p) / min(p, 1 - p)
        rows.append((float(v), scale * (high - low) * math.sqrt(p * (1 - p)), math.ceil(casts)))
    return np.array(rows).T
""",
    ],
    "stream": [
        """
def stream_sum(terms, arrivals, size, fmt):
    def fl(v):
        return float(mplab.round_to(float(v), fmt))
    kept, part, inside, results = {}, 0.0, 0, []
    coming = iter(terms.tolist())
    for count in arrivals:
        for _ in range(count):
            part, inside = fl(part + next(coming)), inside + 1
            if inside == size:
                level = 0
                while level in kept:
                    part, level = fl(kept.pop(level) + part), level + 1
                kept[level], part, inside = part, 0.0, 0
        total = part
        for level in sorted(kept):
            total = fl(total + kept[level])
        results.append(total)
    return np.array(results)
"""
    ],
    "culprits": [
        """
def culprits(reads, a, b):
    def place(v):
        n = int(np.array(v, np.float32).view(np.uint32))
        return n if n < 2**31 else 2**31 - n
    table = {
        (False, False): "same", (False, True): "hidden", (True, False): "made",
        (True, True): "passed on",
    }
    other, words, far = set(), [], []
    for k in range(len(a)):
        most = 0.0
        for x, y in zip(a[k].ravel(), b[k].ravel()):
            if x.tobytes() != y.tobytes():
                other.add(k)
                most = max(most, math.inf if x != x or y != y else abs(place(x) - place(y)))
        words.append(table[k in other, bool(other & set(reads[k]))])
        far.append(most)
    return {"words": words, "ulps": np.array(far, float)}
"""
    ],
}

WRONG = {
    "pack": [
        ("x.reshape(-1, 16)", "np.float32(x).astype(float).reshape(-1, 16)"),
        (
            "math.fsum((held * (scale * tensor) - block) ** 2)",
            "np.max(np.abs(held * (scale * tensor) - block))",
        ),
        ("low + 16 * high", "low + 8 * high"),
        ("four[0] < six[0]", "four[0] <= six[0]"),
    ],
    "spread": [
        (
            "(spread(x), spread(y))",
            "(spread(x), (y.reshape(-1, 16) @ matrix / 4).ravel())",
        ),
        ("@ matrix / 4", "@ matrix / 16"),
        (
            "        [unpack(pack(a)) @ unpack(pack(b)) for a, b in "
            "((x, y), (spread(x), spread(y)))]",
            "        [unpack(pack(x)) @ unpack(pack(y)),\n"
            "         spread(unpack(pack(x))) @ spread(unpack(pack(y)))]",
        ),
    ],
    "chance": [
        (
            "np.copysign(size * scale, x), np.sqrt(variance) * scale",
            "np.copysign(size, x), np.sqrt(variance)",
        ),
        (
            "nearest = np.minimum(above, below)",
            "nearest = above + below",
        ),
        ("np.sqrt(variance)", "variance"),
        ("np.ceil(casts)", "np.maximum(np.floor(casts), 1)"),
    ],
    "stream": [
        ("while blocks % 2 == 0", "if blocks % 2 == 0"),
        (
            "                while blocks % 2 == 0:\n"
            "                    part = mplab.round_to(nodes.pop() + part, fmt)\n"
            "                    blocks //= 2\n"
            "                nodes.append(part)\n                part = 0.0\n        total = part\n"
            "        for node in reversed(nodes):",
            "                nodes.append(part)\n                part = 0.0\n        total = 0.0\n"
            "        for node in [*nodes, part]:",
        ),
        ("divmod(known, size)", "known, 0"),
        (
            "    nodes, part, known",
            "    fmt = mplab.FP32\n    nodes, part, known",
        ),
        (
            "total = part\n        for node in reversed(nodes):",
            "total = 0.0\n        for node in [*nodes, part]:",
        ),
        ("for node in reversed(nodes)", "for node in nodes"),
    ],
    "culprits": [
        (".astype(np.int64)", ""),
        (
            "x.tobytes() != y.tobytes()",
            "not np.allclose(x, y, equal_nan=True)",
        ),
        ("return np.max(", "return np.mean("),
    ],
}
