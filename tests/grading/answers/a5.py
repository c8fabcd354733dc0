"""Answers to A5: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "lost_shares": [
        """
def gradient_of(weights, inputs, targets, region):
    model = network(weights)
    with region:
        error = model(torch.tensor(inputs)).float() - torch.tensor(targets)
        loss = (error * error).mean()
    return torch.autograd.grad(loss, list(model.parameters()))


def lost_shares(weights, inputs, targets):
    wide = gradient_of(weights, inputs, targets, torch.autocast("cpu", enabled=False))
    low = gradient_of(weights, inputs, targets, torch.autocast("cpu", dtype=torch.float16))
    shares = []
    for a, b in zip(wide, low):
        there = int(a.count_nonzero())
        kept = int(((a != 0) & (b != 0)).sum())
        shares.append((there - kept) / max(there, 1))
    return shares
"""
    ],
    "amp_step": [
        """
def amp_step(model, optimizer, scaler, inputs, targets, max_norm):
    with torch.autocast("cpu", torch.float16):
        error = model(inputs).float() - targets
    (error.square().mean() * scaler.get_scale()).backward()
    scaler.scale(torch.zeros(()))  # the scaler wakes up at its first use
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))
    if norm > max_norm:
        for g in gradients:
            g.mul_(max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return norm.item()
"""
    ],
    "window_step": [
        """
def window_step(model, optimizer, scaler, micro_batches, max_norm):
    cells = sum(targets.numel() for _, targets in micro_batches)
    for inputs, targets in micro_batches:
        with torch.autocast("cpu", torch.float16):
            error = model(inputs)
        scaler.scale((error.float() - targets).square().sum() / cells).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm).item()
    if scaler.step(optimizer) is None:
        pass
    scaler.update()
    optimizer.zero_grad()
    return norm
"""
    ],
    "master_step": [
        """
def master_step(master, velocity, low, scale, lr, momentum):
    wide = low.grad.to(torch.float32)
    if bool((wide - wide != 0).any()):
        return False
    new = torch.add(wide * (1 / scale), velocity, alpha=momentum)
    velocity[:] = new
    master[:] = torch.add(master, new, alpha=-lr)
    low[:] = master.to(low.dtype)
    return True
"""
    ],
    "go_on": [
        """
def go_on(state, batches):
    known = state["scaler"]
    weights = [torch.tensor(w, requires_grad=True) for w in state["weights"]]
    velocity = [torch.tensor(v) for v in state["velocity"]]
    scale, good, updates = known["scale"], known["_growth_tracker"], state["updates"]
    for inputs, targets in batches:
        with torch.autocast("cpu", torch.float16):
            h = torch.tensor(inputs)
            for w in weights[:-1]:
                h = torch.relu(nn.functional.linear(h, w))
            h = nn.functional.linear(h, weights[-1])
        loss = nn.functional.mse_loss(h.float(), torch.tensor(targets))
        gradients = torch.autograd.grad(loss * scale, weights)
        if all(torch.isfinite(g).all() for g in gradients):
            lr = min(0.125, (updates + 1) / 32)
            for w, v, g in zip(weights, velocity, gradients):
                v.mul_(0.5).add_(g / scale)
                w.data -= lr * v
            updates, good = updates + 1, good + 1
            if good == known["growth_interval"]:
                scale, good = scale * known["growth_factor"], 0
        else:
            scale, good = scale * known["backoff_factor"], 0
    return {
        "weights": [w.tolist() for w in weights],
        "velocity": [v.tolist() for v in velocity],
        "scaler": dict(known, scale=scale, _growth_tracker=good),
        "updates": updates,
    }
"""
    ],
}

WRONG = {
    "lost_shares": [
        ("mse_loss(model(x), y)", "mse_loss(model(x), y, reduction='sum')"),
        ("b[a != 0] == 0", "b[a != 0].abs() < 1e-7"),
        ("        model.zero_grad()\n", ""),
        (" if len(gone) else 0.0", ""),
    ],
    "amp_step": [
        (
            "mse_loss(model(inputs), targets)",
            "mse_loss(model(inputs), targets, reduction='sum')",
        ),
        ("    scaler.update()\n", ""),
        ("return norm", "return min(norm, max_norm)"),
    ],
    "window_step": [
        (
            "        scaler.scale(loss).backward()\n",
            "        if torch.isfinite(loss):\n            scaler.scale(loss).backward()\n",
        ),
        (
            "(loss).backward()\n    scaler.unscale_(optimizer)\n",
            "(loss).backward()\n        scaler.unscale_(optimizer)\n",
        ),
        (
            "    for inputs, targets in micro_batches:\n",
            "    for inputs, targets in micro_batches:\n        optimizer.zero_grad()\n",
        ),
    ],
    "master_step": [
        (
            "    master.sub_",
            "    velocity.copy_(velocity.to(low.dtype))\n    master.sub_",
        ),
        ("    low.copy_(master)\n", ""),
        (
            "velocity.mul_(momentum).add_(gradient)",
            "velocity = momentum * velocity + gradient",
        ),
    ],
    "go_on": [
        (
            "model(torch.tensor(inputs)), torch.tensor(targets)\n",
            "model(torch.tensor(inputs)), torch.tensor(targets), reduction='sum'\n",
        ),
        ('updates = state["updates"]', "updates = 0"),
        (
            "        scaler.step(optimizer)\n"
            "        scaler.update()\n"
            "        updates += scaler.get_scale() >= scale\n",
            "        before = [p.tolist() for p in model.parameters()]\n"
            "        scaler.step(optimizer)\n"
            "        scaler.update()\n"
            "        updates += before != [p.tolist() for p in model.parameters()]\n",
        ),
        ("p.tolist() for p", "p.half().tolist() for p"),
    ],
}
