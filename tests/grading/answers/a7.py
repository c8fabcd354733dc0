"""Answers to A7: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "triage": [
        """
def triage(record):
    rows = list(zip(*(record[k] for k in ("loss", "skipped", "bad", "zeros", "moved"))))
    for loss, skipped, bad, *_ in rows:
        if loss != loss or abs(loss) == math.inf:
            return "forward"
        if bad > 0:
            return ("half", "second step")[skipped]
    done = [row for row in rows if not row[1]]
    if done and sum(row[3] for row in done) / len(done) > 0.5:
        return "gradients"
    if done and sum(row[4] for row in done) / len(done) < 0.5:
        return "updates"
    pairs = [(a[0], b[0]) for a, b in zip(rows, rows[1:]) if not a[1]]
    return "copies" if pairs and {a - b for a, b in pairs} == {0.0} else "healthy"
"""
    ],
    "norm": [
        """
@np.errstate(all="ignore")
def layer_norm(x, eps):
    out = torch.nn.functional.layer_norm(torch.from_numpy(x).double(), x.shape[-1:], eps=eps)
    return out.half().numpy()
""",
        """
@np.errstate(all="ignore")
def layer_norm(x, eps):
    largest = np.maximum(np.abs(x).max(-1, keepdims=True), np.float16(2**-24)).astype(np.float64)
    y = x / largest
    y = y - y.mean(-1, keepdims=True)
    return np.float16(y / np.sqrt((y * y).mean(-1, keepdims=True) + eps / largest**2))
""",
    ],
    "attention": [
        """
def attend(q, k, v, keep):
    q, k, v = (torch.from_numpy(t).float()[None] for t in (q, k, v))
    seen = torch.from_numpy(keep.any(0))[None, :, None]
    k, v = k.where(seen, 0.0), v.where(seen, 0.0)
    mask = torch.from_numpy(keep)[None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].half()
""",
        """
def attend(q, k, v, keep):
    out = np.zeros((len(q), v.shape[1]), np.float16)
    for i in range(len(q)):
        see = np.flatnonzero(keep[i])
        if see.size:
            logits = (k[see].astype(float) * q[i].astype(float)).sum(1) * len(q[i]) ** -0.5
            share = np.exp(logits - logits.max())
            out[i] = (share / share.sum()) @ v[see].astype(float)
    return out
""",
    ],
    "train": [
        """
def train(x, y, scale, limit, interval, fused):
    layer = torch.nn.Linear(x.shape[2], 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    kind = torch.optim.Adam if fused else torch.optim.SGD
    optimizer = kind(layer.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    made, rows = 0, []
    for i in range(len(x)):
        old = layer.weight.detach().numpy().copy()
        rate = optimizer.param_groups[0]["lr"] = 0.1 / (1 + made)
        layer.weight.grad = None
        with torch.autocast("cpu", dtype=torch.float16):
            out = layer(torch.from_numpy(x[i]))
        loss = torch.nn.functional.mse_loss(out.float()[:, 0], torch.from_numpy(y[i]))
        now = scaler.get_scale()
        scaler.scale(loss).backward()
        made += bool(torch.isfinite(layer.weight.grad).all())
        torch.nn.utils.clip_grad_norm_(layer.parameters(), limit * now)
        scaler.step(optimizer)
        scaler.update()
        new = layer.weight.detach().numpy()
        rows.append([now, rate, np.linalg.norm(new - old)])
    return rows
"""
    ],
    "evidence": [
        """
def evidence(claim, dtype, weight, x, size, scale):
    low = {"float16": torch.float16, "bfloat16": torch.bfloat16}[dtype]
    def run(scale):
        w = torch.tensor(weight, requires_grad=True)
        with torch.autocast("cpu", dtype=low):
            first = torch.nn.functional.linear(torch.tensor(x), w)
            w.data.mul_(0)
            second = torch.nn.functional.linear(torch.tensor(x), w)
        ((first.float() * size).sum() * scale).backward()
        return second, w, w.grad.numpy() / np.float32(scale)
    second, w, gradient = run(scale)
    if claim == "notice":
        return float(second.float().detach().sum())
    if claim == "memory":
        return (w.element_size() + w.grad.element_size()) * w.numel()
    if claim == "rescue":
        return np.mean((run(1.0)[2] == 0) & (gradient != 0))
    wrong = gradient == 0 if claim == "fp32 backward" else ~np.isfinite(gradient)
    return np.mean(wrong)
"""
    ],
}

WRONG = {
    "triage": [
        ("np.mean", "np.median"),
        (
            "after and all(loss[i] == loss[i + 1] for i in after)",
            "after and len(set(loss)) == 1",
        ),
        (
            "loss[i] == loss[i + 1]",
            "math.isclose(loss[i], loss[i + 1], rel_tol=1e-6)",
        ),
        (
            "    for i in steps:",
            '    if record["weights"] == "float16":\n        return "half"\n    for i in steps:',
        ),
        ('if not record["skipped"][i]]', "if True]"),
    ],
    "norm": [
        ("np.sqrt(variance + eps)", "(np.sqrt(variance) + eps)"),
        (
            "wide = x.astype(np.float64)",
            "wide, eps = x, max(eps, 1e-3)",
        ),
        (
            "mean = wide.mean(-1, keepdims=True)",
            "mean = x.sum(-1, keepdims=True) / np.float16(x.shape[-1])",
        ),
    ],
    "attention": [
        ("hidden.max(-1", "logits.max(-1"),
        ("hidden.max(-1, keepdims=True)", "hidden.max()"),
        ("logits, -np.inf)", "logits, -65504.0)"),
        (
            "np.maximum(hidden.max(-1, keepdims=True), -1e30)",
            "hidden.max(-1, keepdims=True)",
        ),
    ],
    "train": [
        ("scaler.get_scale() >= now", "bool((layer.weight != before).any())"),
        (
            "updates += scaler.get_scale() >= now",
            "updates += scaler.get_scale() == now",
        ),
        (
            "torch.nn.utils.clip_grad_norm_(layer.parameters(), limit)",
            "pass",
        ),
    ],
    "evidence": [
        ('"fp32 backward": scaled == 0', '"fp32 backward": plain == 0'),
        (
            "~scaled.isfinite()",
            "~scaled.isfinite() | (scaled == 0)",
        ),
        (
            "return layer(inputs).float().sum().item()",
            'pass\n        with torch.autocast("cpu", dtype=low):\n'
            "            return layer(inputs).float().sum().item()",
        ),
    ],
}
