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
        ("return math.ldexp(1.0, ", "return math.ldexp(1.0, -", "what would divide"),
        ("fmt.max_finite", "448.0 if fmt.has_infinity else fmt.max_finite", "of E4M3 only"),
        (
            "fmt.max_finite",
            "240.0 if fmt.name == 'FP8_E4M3' else fmt.max_finite",
            "no exponent for infinity",
        ),
        (
            "    return math.ldexp(1.0",
            "    power = math.ceil(math.log2(fmt.max_finite / (headroom * amax)))\n"
            "    return math.ldexp(1.0",
            "Rounded up",
        ),
        (
            "    return math.ldexp(1.0",
            "    power = round(math.log2(fmt.max_finite / (headroom * amax)))\n"
            "    return math.ldexp(1.0",
            "The nearest power of two",
        ),
        ("power = exponent - e - (c > top)", "power = fmt.emax - (e - 1)", "Exponents alone"),
        (
            "return math.ldexp(1.0, min(max(power, -126), 126))",
            "return fmt.max_finite / (headroom * amax)",
            "A power of two is asked for",
        ),
        ("return 1.0", "return math.inf", "NaN of every zero"),
        (
            "    if amax == 0:\n        return 1.0\n",
            "    fmt.max_finite / (headroom * amax)\n",
            "before anything is divided",
        ),
        ("return 1.0", "return 0.0", "cannot be undone"),
        ("np.max(np.abs(x)", "np.max(np.nan_to_num(np.abs(x))", "taken out of amax"),
        (
            "np.max(np.abs(x)",
            "np.max(np.abs(x[np.isfinite(x)])",
            "was left out of amax",
        ),
        (
            "np.max(np.abs(x), initial=0.0))",
            "np.max(x)) if x.size else 0.0\n    if amax <= 0:\n        return 1.0",
            "Negative numbers",
        ),
        ("frexp(headroom * amax)", "frexp(amax / headroom)", "so the scale is smaller"),
        ("frexp(headroom * amax)", "frexp(amax)", "headroom was left out"),
        ("min(max(power, -126), 126)", "power", "Beyond 2^126"),
    ],
    "codes": [
        ("astype(np.float64) * scale", "astype(np.float64) / scale", "dividing undoes it"),
        ("fmt.max_finite", "(448.0 if fmt.has_infinity else fmt.max_finite)", "that of E4M3"),
        (
            "fmt.max_finite",
            "(240.0 if fmt.name == 'FP8_E4M3' else fmt.max_finite)",
            "no exponent for infinity",
        ),
        ("np.where(np.isfinite(x), clamped, product)", "product", "by itself"),
        (
            "    kept = np.where(np.isfinite(x), clamped, product)",
            "    top = fmt.max_finite\n"
            "    x = np.where(np.isfinite(x), np.clip(x.astype(np.float64), -top, top), x)\n"
            "    kept = x * scale",
            "The product has to fit",
        ),
        ("np.where(np.isfinite(x), clamped, product)", "clamped", "Only finite numbers"),
        ("product = x", "x = np.nan_to_num(x)\n    product = x", "nobody can find it"),
        (
            "    clamped",
            "    with np.errstate(over='ignore'):\n"
            "        product = np.float64(np.float32(product))\n"
            "    clamped",
            "rounded to float32",
        ),
        ("round_to(kept, fmt)", "round_to(kept + 0.0, fmt) + 0.0", "keeps the sign"),
        (
            "round_to(kept, fmt)",
            "round_to(mplab.round_to(kept, mplab.FP16, overflow=mplab.Overflow.SATURATE), fmt)",
            "through FP16",
        ),
        (
            "round_to(kept, fmt)",
            "round_to(kept, fmt, rounding=mplab.Rounding.TOWARD_ZERO)",
            "toward zero",
        ),
    ],
    "delayed": [
        (
            "        scale = scale_of(",
            "        own = float(np.max(np.abs(x)))\n"
            "        if 0 < own < math.inf:\n"
            "            history.append(own)\n"
            "            amax = math.nan\n"
            "        scale = scale_of(",
            "not known before its cast",
        ),
        ("scale_of(np.array(history[-length:]), fmt", "scale_of(x, fmt", "current scaling"),
        ("history[-length:]", "history", "is forgotten"),
        ("history[-length:]", "history[-length - 1:]", "one tensor too long"),
        ("history[-length:]", "history[-1:]", "not the latest"),
        ("history[-length:]", "np.mean(history[-length:]) if history else []", "a mean"),
        ("0 < amax < math.inf", "0 <= amax < math.inf", "A tensor of zeros"),
        ("0 < amax < math.inf", "amax > 0", "every scale from it"),
        (
            "float(np.max(np.abs(x)))",
            "float(np.max(np.abs(x[np.isfinite(x)])))",
            "as a whole",
        ),
        ("(x != 0) & ", "", "not lost by it"),
        ("<= fmt.min_subnormal / 2", "< fmt.min_subnormal", "rounds up"),
        ("<= fmt.min_subnormal / 2", "< fmt.min_normal", "Subnormal numbers"),
        ("scaled > fmt", "scaled >= fmt", "itself is not clipped"),
        (
            "(scaled > fmt.max_finite)",
            "~np.isfinite(mplab.round_to(scaled, fmt))",
            "although it would round",
        ),
        ("fmt, headroom)", "fmt, 1.0)", "headroom was left out"),
    ],
    "blocks": [
        (
            "floor_log2 = math.frexp(amax)[1] - 1",
            "floor_log2 = math.ceil(math.log2(amax)) if amax else 0",
            "not ceil",
        ),
        ("floor_log2 - fmt.emax", "floor_log2", "Take off emax"),
        (
            "        packed += [exponent",
            "        exponent += amax / 2.0**exponent > fmt.max_finite\n"
            "        packed += [exponent",
            "does not ask for max_finite",
        ),
        ("[exponent + 127", "[exponent + 128", "plus 127"),
        ("2.0**-exponent", "2.0**exponent", "is divided by it"),
        ("np.max(np.abs(part))", "np.max(np.abs(x))", "a scale of its own"),
        (
            "*to_codes(part, 2.0**-exponent, fmt)",
            "*mplab.encode(mplab.round_to(part / 2.0**exponent, fmt), fmt)",
            "the element saturates",
        ),
        ("else -127", "else 0", "A block of zeros"),
        ("np.max(np.abs(part))", "abs(np.max(part))", "Negative numbers"),
        ("len(x), block)", "len(x) // block * block, block)", "it counts"),
        (
            "floor_log2 = math.frexp(amax)[1] - 1",
            "floor_log2 = int(np.floor(np.log2(np.float32(amax)))) if amax else 0",
            "log2 in float32",
        ),
        (
            "        amax = float",
            "        part = np.nan_to_num(part, posinf=0.0, neginf=0.0)\n        amax = float",
            "has to show it",
        ),
        (
            "        packed += [exponent + 127, *to_codes(part, 2.0**-exponent, fmt)]",
            "        packed += [*to_codes(part, 2.0**-exponent, fmt), exponent + 127]",
            "before the codes",
        ),
    ],
    "product": [
        ("cast(g, FP8_E5M2)", "cast(g, FP8_E4M3)", "Gradients want range"),
        ("FP8_E4M3", "FP8_E5M2", "want digits"),
        (
            "    x, x_scale = cast(x, FP8_E4M3)\n"
            "    w, w_scale = cast(w, FP8_E4M3)\n"
            "    g, g_scale = cast(g, FP8_E5M2)\n",
            "    x, x_scale = cast(x, FP8_E5M2)\n"
            "    w, w_scale = cast(w, FP8_E5M2)\n"
            "    g, g_scale = cast(g, FP8_E4M3)\n",
            "exchanged",
        ),
        (
            "    product = {",
            "    x_scale = w_scale = g_scale = 1.0\n    product = {",
            "carries both",
        ),
        (
            "    product = {",
            "    w_scale = 1.0\n    x_scale = x_scale if which == 'output' else 1.0\n"
            "    product = {",
            "only one scale",
        ),
        (" / (", " * (", "divide."),
        (
            "cast(w, FP8_E4M3)",
            "to_codes(w.ravel(), x_scale, FP8_E4M3).reshape(w.shape), x_scale\n"
            "    w = mplab.decode(w, FP8_E4M3)",
            "has a scale of its own",
        ),
        ("scale_of(tensor, fmt, 1.0)", "scale_of(tensor, FP8_E4M3, 1.0)", "range of E5M2"),
        (
            "scale_of(tensor, fmt, 1.0)",
            "scale_of(tensor, fmt, 1.0) if fmt is FP8_E4M3 else 1.0",
            "small gradients",
        ),
        (
            "    x, x_scale = cast(x, FP8_E4M3)\n    w, w_scale = cast(w, FP8_E4M3)\n",
            "    x_scale = w_scale = 1.0\n    if which == 'output':\n"
            "        (x, x_scale), (w, w_scale) = cast(x, FP8_E4M3), cast(w, FP8_E4M3)\n",
            "read FP8 too",
        ),
        (
            "return np.float32(product[which]())",
            "return np.float32(mplab.round_to(np.float64(product[which]()), FP8_E4M3, "
            "overflow=mplab.Overflow.SATURATE))",
            "Only the operands",
        ),
        (
            '        "output": lambda: x @ w.T / (x_scale * w_scale),\n'
            '        "grad_input": lambda: g @ w / (g_scale * w_scale),\n'
            '        "grad_weight": lambda: g.T @ x / (g_scale * x_scale),\n'
            "    }\n",
            '        "output": lambda: half(x @ w.T) / (x_scale * w_scale),\n'
            '        "grad_input": lambda: half(g @ w) / (g_scale * w_scale),\n'
            '        "grad_weight": lambda: half(g.T @ x) / (g_scale * x_scale),\n'
            "    }\n"
            "    half = lambda sums: mplab.round_to(sums, mplab.FP16)\n",
            "A sum in FP16",
        ),
    ],
}
