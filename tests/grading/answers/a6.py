"""Answers to A6: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "scale": [
        """
def scale_of(x, fmt, headroom):
    if x.size and not np.isfinite(x).all():
        return float("nan")
    wanted = headroom * max((abs(float(v)) for v in x.ravel()), default=0.0)
    if wanted == 0:
        return 1.0
    scale = 1.0
    while scale < 2.0**126 and wanted * scale * 2 <= fmt.max_finite:
        scale *= 2
    while scale > 2.0**-126 and wanted * scale > fmt.max_finite:
        scale /= 2
    return scale
"""
    ],
    "codes": [
        """
def to_codes(x, scale, fmt):
    out = []
    for v in x.tolist():
        y = v * scale
        if math.isfinite(v) and abs(y) > fmt.max_finite:
            y = math.copysign(fmt.max_finite, v)
        out.append(int(mplab.encode(float(mplab.round_to(y, fmt)), fmt)))
    return np.array(out, dtype=np.uint8)
"""
    ],
    "delayed": [
        """
def delayed_shares(tensors, fmt, length, headroom):
    amaxes = [float(np.max(np.abs(x))) for x in tensors]
    out = np.zeros((3, len(tensors)))
    for step, x in enumerate(tensors):
        useful = [a for a in amaxes[:step] if math.isfinite(a) and a > 0][-length:]
        scale = scale_of(np.float32([max(useful)]), fmt, headroom) if useful else 1.0
        fine = x[np.isfinite(x)]
        back = mplab.decode(to_codes(fine, scale, fmt), fmt)
        over = np.abs(fine.astype(float) * scale) > fmt.max_finite
        out[:, step] = scale, over.sum() / x.size, ((back == 0) & (fine != 0)).sum() / x.size
    return out
"""
    ],
    "blocks": [
        """
def pack_mx(x, fmt, block):
    out = np.array([], np.uint8)
    for i in range(-(-len(x) // block)):
        part = x[i * block : (i + 1) * block].astype(np.float64)
        if not np.all(np.isfinite(part)):
            out = np.concatenate([out, [255], np.full(len(part), fmt.nan_code)])
            continue
        amax = np.abs(part).max()
        exponent = max(int(np.floor(np.log2(amax))) - fmt.emax, -127) if amax > 0 else -127
        held = mplab.round_to(part / 2.0**exponent, fmt, overflow=mplab.Overflow.SATURATE)
        out = np.concatenate([out, [127 + exponent], mplab.encode(held, fmt)])
    return out.astype(np.uint8)
"""
    ],
    "product": [
        """
def fp8_product(which, x, w, g):
    def values_of(t, fmt):
        s = scale_of(t, fmt, 1.0)
        return np.array([mplab.decode(to_codes(row, s, fmt), fmt) / s for row in t])
    x, w = values_of(x, mplab.FP8_E4M3), values_of(w, mplab.FP8_E4M3)
    g = values_of(g, mplab.FP8_E5M2)
    if which == "output":
        return np.einsum("ni,oi->no", x, w).astype(np.float32)
    if which == "grad_input":
        return np.einsum("no,oi->ni", g, w).astype(np.float32)
    return np.einsum("no,ni->oi", g, x).astype(np.float32)
"""
    ],
}

WRONG = {
    "scale": [
        (
            "    return math.ldexp(1.0",
            "    power = math.ceil(math.log2(fmt.max_finite / (headroom * amax)))\n"
            "    return math.ldexp(1.0",
        ),
        (
            "    if amax == 0:\n        return 1.0\n",
            "    fmt.max_finite / (headroom * amax)\n",
        ),
        ("np.max(np.abs(x)", "np.max(np.nan_to_num(np.abs(x))"),
        ("min(max(power, -126), 126)", "power"),
    ],
    "codes": [
        (
            "np.where(np.isfinite(x), clamped, product)",
            "clamped",
        ),
        ("round_to(kept, fmt)", "round_to(kept + 0.0, fmt) + 0.0"),
    ],
    "delayed": [
        ("history[-length:]", "history"),
        ("0 < amax < math.inf", "amax > 0"),
        ("<= fmt.min_subnormal / 2", "< fmt.min_subnormal"),
    ],
    "blocks": [
        ("[fmt.nan_code] * len(part)", "[fmt.nan_code] * block"),
        ("2.0**-exponent", "2.0**exponent"),
        ("len(x), block)", "len(x) // block * block, block)"),
        (
            "        amax = float",
            "        part = np.nan_to_num(part, posinf=0.0, neginf=0.0)\n        amax = float",
        ),
    ],
    "product": [
        (
            "return mplab.decode(codes, fmt), scale",
            "return np.float32(mplab.decode(codes, fmt)), scale",
        ),
        (
            "    product = {",
            "    w_scale = 1.0\n    x_scale = x_scale if which == 'output' else 1.0\n"
            "    product = {",
        ),
        (
            "cast(w, FP8_E4M3)",
            "to_codes(w.ravel(), x_scale, FP8_E4M3).reshape(w.shape), x_scale\n"
            "    w = mplab.decode(w, FP8_E4M3)",
        ),
    ],
}
