"""Assignment 5, mixed-precision training: the references, the public cases, what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
The references are NumPy and know nothing of torch: each operation's result is rounded to FP16
where autocast on a CPU would do it. Kernels may add in another order, so the cases are drawn
such that nothing cancels, and results are compared to one part in a hundred.
"""

import math
from itertools import pairwise

import numpy as np

from mplab import BF16, FP16, round_to
from mplab.course import Exercise, but
from mplab.course.grading import Graded, Part

WARM = "import numpy, torch, torch._dynamo, mplab.training, mplab.pictures"  # torch.optim's own

TOLERANCE, STEADY = 1e-2, 8e-3
RATE = 0.125


# One backward pass -----------------------------------------------------------------------


def rounded(x, fmt=FP16):
    """Values of a format; None leaves them as they are."""
    return (
        np.asarray(x, np.float64)
        if fmt is None
        else round_to(np.asarray(x, np.float64), fmt)
    )


@np.errstate(all="ignore")
def backward(weights, inputs, targets, *, scale=1.0, fmt=FP16):
    """The gradients of the scaled mean squared error, layer by layer."""
    low = [rounded(w, fmt) for w in weights]
    kept = [rounded(inputs, fmt)]
    for weight in low:
        kept.append(np.maximum(rounded(kept[-1] @ weight.T, fmt), 0.0))
    output = rounded(kept[-2] @ low[-1].T, fmt)  # no ReLU after the last layer
    flow = rounded(2 * (output - targets) / output.size * scale, fmt)
    gradients = []
    for weight, entering in zip(reversed(low), reversed(kept[:-1]), strict=True):
        gradients.insert(0, rounded(flow.T @ entering, fmt))
        flow = np.where(entering > 0, rounded(flow @ weight, fmt), 0.0)
    return gradients


def finite(gradients):
    return all(bool(np.isfinite(g).all()) for g in gradients)


def arrays(batch):
    return tuple(np.asarray(rows, np.float64) for rows in batch)


def flat(*lists):
    return [float(x) + 0.0 for arrays in lists for a in arrays for x in np.ravel(a)]


# Lost gradients --------------------------------------------------------------------------


def lost(weights, inputs, targets, *, slip="", nudge=0):
    """Return the share of entries nonzero in FP32 that are zero in FP16, by layer.

    `nudge` 1 or -1 lets FP16's outputs err by its spacing, and makes gradients a tenth longer or
    a fifth as long, as if only the largest term of a sum had survived rounding.
    """
    weights = [np.asarray(w, np.float64) for w in weights]
    inputs, targets = arrays((inputs, targets))
    wide = backward(weights, inputs, targets, fmt=None)
    scale = {-1: 0.2, 0: 1.0, 1: 1.1}[nudge]
    targets = targets + nudge * np.maximum(targets * FP16.epsilon, FP16.min_subnormal)
    low = backward(weights, inputs, targets, scale=scale)
    if slip == "end":
        low = [rounded(g) for g in wide]
    floor = FP16.min_normal if slip == "normal" else 0.0
    gone = [(abs(a) <= floor) & (b != 0) for a, b in zip(low, wide, strict=True)]
    if slip == "all":
        return [float(np.mean(a == 0)) for a in low]
    return [float(g.sum() / (b != 0).sum()) if (b != 0).any() else 0.0
            for g, b in zip(gone, wide, strict=True)]  # fmt: skip


ONE = [[1.0]]
TINY = 2.0**-27

LOST = Exercise(
    answer=lost,
    reason="Run both backward passes; count entries that are zero in the second alone.",
    argument="weights, inputs, targets",
    cases=[
        ([ONE], ONE, [[2.0]]),
        ([ONE], ONE, [[0.5]]),
        ([[[0.0]]], ONE, [[TINY]]),
        ([[[0.0]]], ONE, [[2.0**-20]]),
        ([[[0.0]]], [[64.0]], [[TINY]]),
        ([[[0.0]]], ONE, [[2.0**-50]]),
        ([[[0.0]]], ONE, [[2.0**-25]]),  # 2^-24 remains
        ([[[0.0]]], [[1.0], [1.0]], [[1.5 * 2.0**-26], [0.0]]),  # half of it
        ([[[0.0, 0.0]]], [[1.0, 0.0]], [[0.5]]),
        ([[[0.0, 0.0]]], [[1.0, 2.0**-10]], [[2.0**-20]]),
        ([[[1.0]], [[2.0**-10]]], ONE, [[2.0**-10 + 2.0**-18]]),
        ([[[-1.0]], [[1.0]]], ONE, [[1.0]]),
        ([[[1.0], [-1.0]], [[2.0**-8, 1.0]]], ONE, [[2.0**-8 + 2.0**-19]]),
    ],
    tolerance=1e-6,
    misconceptions=(
        but(lost, "Rounding FP32's result comes too late: they were lost on the way back.",
            slip="end"),
        but(lost, "What is zero in FP32, too, is not lost.", slip="all"),
        but(lost, "Below 2^-14 FP16 has subnormal numbers: those are small, not lost.",
            slip="normal"),
    ),
)  # fmt: skip


def plain(x):
    """FP32 numbers as lists."""
    return np.asarray(x, np.float32).astype(np.float64).tolist()


def positive(rng, *shape):
    """Numbers between 1/2 and 1: sums of their products cancel nothing."""
    return rng.uniform(0.5, 1.0, shape)


def outputs(weights, inputs):
    for w in weights[:-1]:
        inputs = np.maximum(inputs @ np.asarray(w).T, 0.0)
    return inputs @ np.asarray(weights[-1]).T


def a_network(rng, depth, *, input_exponent=0, deaths=False):
    """Weights, inputs and targets just above the outputs, so that gradients are small."""
    sizes = [int(n) for n in rng.integers(2, 5, depth)] + [rng.integers(1, 3)]
    weights = [positive(rng, n, m) * 2.0 ** -rng.integers(1, 5) * 2.0 ** -rng.choice((0, 9), (n, 1))
               for m, n in pairwise(sizes)]  # fmt: skip
    inputs = positive(rng, rng.integers(2, 5), sizes[0]) * 2.0**input_exponent
    inputs = inputs * 2.0 ** -rng.choice((0, 9), sizes[0])
    if deaths:
        inputs[:, rng.integers(sizes[0])] = 0.0
        if depth > 1:
            weights[0][rng.integers(sizes[1])] *= -1
    out = outputs(weights, inputs)
    # In FP16, too, outputs must stay below targets: the gap is large against its rounding.
    gap = positive(rng, *out.shape) * 2.0 ** rng.uniform(-24, -12)
    weights[-1] = weights[-1] * min(1.0, gap.min() / out.max() * 4)
    targets = outputs(weights, inputs) + gap
    return ([plain(w) for w in weights], plain(inputs), plain(targets))


def negated(rows):
    return [[-x for x in row] for row in rows]


def mirrored(cases):
    """The same networks with outputs, targets and hence gradients of the other sign."""
    return [([*weights[:-1], negated(weights[-1])], inputs, negated(targets))
            for weights, inputs, targets in cases]  # fmt: skip


def networks(rng, count, *, some=None, **kind):
    """Networks without a gradient near FP16's smallest number; `some` filters them."""
    cases = []
    while len(cases) < count:
        case = a_network(rng, rng.integers(1, 6), **kind)
        shares = lost(*case)
        steady = all(lost(*case, nudge=nudge) == shares for nudge in (-1, 1))
        if steady and (some is None or some(case, shares)):
            cases.append(case)
    return cases


def partial_loss(shares):
    """Whether a layer loses some of its gradient and keeps some."""
    return any(0 < share < 1 for share in shares)


def unlike(*slips):
    """Whether a case tells these slips apart from the right answer."""
    return lambda case, shares: all(lost(*case, slip=slip) != shares for slip in slips)


# Steps with a scaler ---------------------------------------------------------------------


class Run:
    """Weights, gradients as torch's `.grad` keeps them, scale and count of good steps."""

    def __init__(self, weights, scale, *, interval=2, good=0):
        self.weights = [np.asarray(w, np.float64) for w in weights]
        self.clear()
        self.scale, self.good, self.interval, self.calls = scale, good, interval, 0

    def clear(self):
        self.grads = [np.zeros_like(w) for w in self.weights]

    def add(self, batch, *, share=1.0):
        gradients = backward(self.weights, *arrays(batch), scale=self.scale * share)
        self.grads = [a + b for a, b in zip(self.grads, gradients, strict=True)]

    def unscale(self):
        self.grads = [g / self.scale for g in self.grads]

    @np.errstate(all="ignore")
    def clip(self, max_norm):
        norm = float(np.sqrt(sum(np.sum(g * g) for g in self.grads)))
        factor = np.minimum(1.0, np.float64(max_norm) / norm) if norm else 1.0
        self.grads = [g * factor for g in self.grads]
        return norm

    def apply(self):
        self.calls += 1
        self.weights = [
            w - RATE * g for w, g in zip(self.weights, self.grads, strict=True)
        ]

    def update(self, found):
        self.good = 0 if found else self.good + 1
        if found:
            self.scale /= 2
        elif self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0

    def finish(self, max_norm, slip=""):
        """Unscale, clip, step or skip, and update; return the norm."""
        found = not finite(self.grads)
        if slip == "early":
            norm = self.clip(max_norm)
        self.unscale()
        if slip != "early":
            norm = self.clip(max_norm)
        if not found or slip == "raw":
            self.apply()
        self.update(found)
        return norm


@np.errstate(all="ignore")
def windows(weights, parts, max_norm, scale, *, slip="", nudge=1.0):
    """Norm, optimizer's steps, scale, most rows at once and weights after each window."""
    run = Run(weights, scale)
    rows = []
    for window in parts:
        total = sum(len(x) for x, _ in window)
        if slip != "zero":
            run.clear()
        for inputs, targets in window:
            if slip == "each":
                run.clear()
            share = {"equal": 1 / len(window), "sum": 1.0}.get(
                slip, len(inputs) / total
            )
            run.add((np.asarray(inputs) * nudge, targets), share=share)
            if slip == "each":
                norm = run.finish(max_norm)
        if slip != "each":
            norm = run.finish(max_norm, slip)
        norm = norm if math.isfinite(norm) else math.inf
        most = float(max(len(x) for x, _ in window))
        rows.append([norm, float(run.calls), run.scale, most, *flat(run.weights)])
    return rows


def steps(weights, batches, *rest, **changes):
    """Norm, optimizer's steps, scale and weights after each batch: windows of one batch each."""
    rows = windows(weights, [[batch] for batch in batches], *rest, **changes)
    return [[*row[:3], *row[4:]] for row in rows]


def single(x=1.0, y=2.0):
    return ([[x]], [[y]])


ZERO = [[[0.0]]]

STEP = Exercise(
    answer=steps,
    reason="Clear, forward in autocast, scaled backward, unscale, clip, step, update.",
    argument="weights, batches, max_norm, scale",
    cases=[
        (ZERO, [single()], 10.0, 1024.0),
        (ZERO, [single()], 1.0, 1024.0),
        (ZERO, [single()], 10.0, 65536.0),
        (ZERO, [single()] * 2, 10.0, 2.0),
        (ZERO, [([[1.0], [1.0]], [[2.0], [4.0]])], 10.0, 256.0),
        (ZERO, [single()] * 3, 10.0, 1024.0),
        (ZERO, [single()] * 4, 1.0, 32768.0),
        ([[[0.0, 0.0]]], [([[0.75, 1.0]], [[2.0]])], 1.0, 256.0),
        ([[[0.5]], [[0.5]]], [single(), single(1.0, 3.0)], 1.0, 256.0),
    ],
    tolerance=TOLERANCE,
    misconceptions=(
        but(steps, "The clip saw gradients times the scale: unscale them first.", slip="early"),
        but(steps, "The optimizer's own step also takes gradients that are infinite.", slip="raw"),
        but(steps, "Gradients of the step before are still there; infinite ones stay for ever.",
            slip="zero"),
    ),
)  # fmt: skip


@np.errstate(invalid="ignore")  # infinity less infinity
def alike(answer, case):
    """Whether another order of additions would give the same outcome."""
    exact = np.asarray(answer(*case), np.float64)
    for nudge in (1 + 2.0**-9, 1 - 2.0**-9):
        other = np.asarray(answer(*case, nudge=nudge), np.float64)
        same = exact == other  # infinities
        if not np.all(same | (np.abs(exact - other) <= STEADY * np.abs(exact))):
            return False
    return True


def batch_of(rng, width, out, *, rows=None, reach=2.0):
    rows = rng.integers(1, 4) if rows is None else rows
    return (plain(positive(rng, rows, width)), plain(positive(rng, rows, out) * reach))


def started(rng, *, deep):
    """Weights whose outputs lie below the targets."""
    width, middle, out = (int(n) for n in rng.integers(1, 4, 3))
    if deep:
        return [
            plain(positive(rng, middle, width) / 4),
            plain(positive(rng, out, middle) / 4),
        ]
    return [plain(positive(rng, out, width) / 16)]


def runs(rng, count, *, scales=(4, 11), norms=(0.05, 20.0), length=(1, 4),
         some=lambda rows: True):  # fmt: skip
    """Batches whose outcome does not depend on the order of additions; `some` filters them."""
    cases = []
    while len(cases) < count:
        weights = started(rng, deep=bool(rng.choice((False, True))))
        width, out = len(weights[0][0]), len(weights[-1])
        steps_ = rng.integers(*length, endpoint=True)
        batches = [batch_of(rng, width, out, reach=4.0) for _ in range(steps_)]
        norm = float(np.float32(np.exp(rng.uniform(*np.log(norms)))))
        case = (weights, batches, norm, 2.0 ** int(rng.integers(*scales)))
        if some(steps(*case)) and alike(steps, case):
            cases.append(case)
    return cases  # fmt: skip


def skipped(rows):
    return [math.isinf(row[0]) for row in rows]


def going_on(rows):
    """Skipped at first, but not at the end."""
    return skipped(rows)[0] and not skipped(rows)[-1]


def clipping(rng):
    long = runs(rng, 6, norms=(0.02, 0.05))
    return [*long, *runs(rng, 6, norms=(50.0, 99.0))]


def growing(rng):
    """Good steps until the scale is too large, and back."""

    def later(rows):
        return not skipped(rows)[0] and any(skipped(rows)[:-1])

    cases = runs(rng, 5, length=(6, 9), scales=(8, 14), norms=(0.02, 0.1), some=later)
    return cases + runs(rng, 3, length=(3, 5), scales=(1, 3), norms=(0.02, 0.1))


def partly(rng):
    """The gradient of one layer overflows, that of the other does not."""
    cases = []
    while len(cases) < 6:
        weights = [plain(positive(rng, 2, 2)), plain(positive(rng, 1, 2) * 2.0**-5)]
        if len(cases) % 2:
            weights = [
                plain(positive(rng, 2, 2) * 2.0**-6),
                plain(positive(rng, 1, 2) * 8),
            ]
        case = (weights, [batch_of(rng, 2, 1, reach=4.0) for _ in range(5)], 0.25,
                2.0 ** int(rng.integers(11, 16)))  # fmt: skip
        run = Run(weights, case[3])
        run.add(case[1][0])
        one = finite(run.grads[:1]) != finite(run.grads[1:])
        if one and going_on(steps(*case)) and alike(steps, case):
            cases.append(case)
    return cases


# Windows of micro-batches ----------------------------------------------------------------


THREE = ([[1.0], [1.0], [1.0]], [[2.0], [2.0], [2.0]])
ONE_HALF = [[[0.5]]]

WINDOW = Exercise(
    answer=windows,
    reason="Each micro-batch counts by its rows; unscale, clip, step and update once a window.",
    argument="weights, windows, max_norm, scale",
    cases=[
        (ZERO, [[single()]], 10.0, 256.0),
        (ZERO, [[single(), single(1.0, 4.0)]], 10.0, 256.0),
        (ZERO, [[single(1.0, 6.0), THREE]], 10.0, 256.0),
        (ZERO, [[single(), single(1.0, 4.0)]], 0.5, 256.0),
        (ZERO, [[single(), single(1.0, 8.0)]], 10.0, 16384.0),
        (ZERO, [[single(1.0, 8.0), single()]] * 3, 10.0, 16384.0),
        (ZERO, [[single(), single(1.0, 4.0)]] * 2, 10.0, 2.0),
        (ZERO, [[single(), single(1.0, 6.0), THREE]] * 3, 1.0, 256.0),
        (ONE_HALF, [[single(), single(1e5)], [single()]], 10.0, 256.0),
    ],
    tolerance=TOLERANCE,
    misconceptions=(
        but(windows, "A micro-batch with fewer rows counts less, by its share of the rows.",
            slip="equal"),
        but(windows, "The losses are means: as they are, their sum is too long.", slip="sum"),
        but(windows, "A step in each micro-batch makes many short steps of one long one.",
            slip="each"),
    ),
)  # fmt: skip


def cut(rng, count, *, sizes, length=(1, 3), norms=(50.0, 99.0)):
    """Windows of micro-batches whose numbers of rows are drawn from `sizes`."""
    cases = []
    while len(cases) < count:
        weights = started(rng, deep=bool(rng.integers(2)))
        width, out = len(weights[0][0]), len(weights[-1])
        parts = []
        for _ in range(rng.integers(*length, endpoint=True)):
            rows = rng.permutation(sizes)[: rng.integers(2, 4, endpoint=True)]
            parts.append(
                [batch_of(rng, width, out, rows=int(n), reach=4.0) for n in rows]
            )
        norm = float(np.float32(np.exp(rng.uniform(*np.log(norms)))))
        case = (weights, parts, norm, 2.0 ** int(rng.integers(4, 9)))
        if alike(windows, case):
            cases.append(case)
    return cases


def one_infinite(rng):
    """One micro-batch of the first window overflows, each in turn; the next windows do not."""
    cases = []
    while len(cases) < 8:
        weights = started(rng, deep=False)
        width, out = len(weights[0][0]), len(weights[-1])
        parts = [
            [batch_of(rng, width, out, rows=2) for _ in range(3)] for _ in range(4)
        ]
        at = len(cases) % 3
        inputs, targets = parts[0][at]
        parts[0][at] = (inputs, plain(np.asarray(targets) * 64))
        case = (weights, parts, 0.25, 2.0 ** int(rng.integers(11, 14)))
        seen = skipped(windows(*case))
        if seen[0] and not any(seen[1:]) and alike(windows, case):
            cases.append(case)
    # Its loss is infinite already.
    beyond = [[single(), single(float(rng.integers(10**5, 10**6)))], [single()]]
    return [*cases, (ONE_HALF, beyond, 10.0, 256.0)]


# Master weights --------------------------------------------------------------------------


@np.errstate(all="ignore")
def masters(start, targets, fmt, scale, rate, momentum, *, slip=""):
    """Whether it stepped, master weights, velocity and working copy after each gradient."""
    master = np.asarray(start, np.float64)
    velocity = np.zeros_like(master)
    low = rounded(master, fmt)
    rows = []
    for target in targets:
        grad = rounded((low - np.asarray(target)) * scale, fmt)
        true = rounded(grad / scale, fmt) if slip == "narrow" else grad / scale
        fine = bool(np.isfinite(grad).all()) or slip == "blind"
        if fine:
            velocity = momentum * velocity + true
        if fine and slip == "low":
            master = low = rounded(low - rate * velocity, fmt)
        elif fine:
            master = master - rate * velocity
            low = rounded(master, fmt)
        rows.append([float(fine), *flat([master, velocity, low])])
    return rows


INF, NAN = math.inf, math.nan

MASTER = Exercise(
    answer=masters,
    reason="Widen and unscale, look for infinity and NaN, then velocity, master, working copy.",
    argument="start, targets, fmt, scale, lr, momentum",
    cases=[
        ([1.0], [[0.5]], BF16, 1.0, 0.25, 0.0),
        ([1.0], [[0.5]], BF16, 256.0, 0.25, 0.0),
        ([1.0], [[0.5]] * 2, BF16, 1.0, 0.25, 0.0),
        ([1.0], [[0.5]] * 4, BF16, 1.0, 2.0**-9, 0.0),
        ([1.0], [[0.5]] * 2, FP16, 1.0, 0.25, 0.5),
        ([1.0], [[0.5], [0.875 - 2.0**-10]], BF16, 1.0, 0.25, 0.5),
        ([0.0], [[2.0**-28]], FP16, 65536.0, 0.5, 0.0),
        ([1.0], [[0.5], [INF], [0.5]], FP16, 1024.0, 0.25, 0.5),
        ([1.0], [[NAN], [0.5]], BF16, 1024.0, 0.25, 0.5),
    ],
    misconceptions=(
        but(masters, "Half a gap or less changes nothing in the working copy: step the master.",
            slip="low"),
        but(masters, "Divided in 16 bits the gradient is flushed again: widen it first.",
            slip="narrow"),
        but(masters, "A gradient that is infinite or NaN must change nothing.", slip="blind"),
    ),
)  # fmt: skip


def exact(case):
    """Whether FP32 holds every number on the way, so that no order of operations matters."""
    rows = np.asarray(masters(*case))
    return bool(np.all((rows == rows.astype(np.float32)) | ~np.isfinite(rows)))


def value(rng, fmt, exponent, *, bits=3):
    """A number of few bits, of either sign."""
    steps = 2**bits + int(rng.integers(2**bits))
    return float(rng.choice((-1, 1))) * steps * 2.0 ** (exponent - bits)


def gradients(rng, count, *, steps, rate, momentum=(0.0,), width=(1, 3), exponents=(-1, 1),
              scales=(1, 8), fmts=(FP16, BF16), start=None, bad=False):  # fmt: skip
    """Cases that FP32 computes exactly. `bad` puts infinities or a NaN among the targets."""
    cases = []
    while len(cases) < count:
        fmt, size = (
            fmts[len(cases) % len(fmts)],
            rng.integers(*width, endpoint=True),
        )
        first = [value(rng, fmt, 0) if start is None else start for _ in range(size)]
        targets = [
            [x + value(rng, fmt, int(rng.integers(*exponents)), bits=1) for x in first]
            for _ in range(rng.integers(*steps, endpoint=True))
        ]
        if bad:
            at = rng.integers(len(targets) - 2)
            targets[at][rng.integers(size)] = NAN if len(cases) % 4 == 3 else INF
            targets[at + 1][0] = -INF
        scale, lr = 2.0 ** int(rng.integers(*scales)), 2.0 ** -int(rng.integers(*rate))
        case = (first, targets, fmt, scale, lr, float(rng.choice(momentum)))
        if exact(case):
            cases.append(case)
    return cases


# Going on --------------------------------------------------------------------------------


def state_of(weights, *, velocity=None, scale=256.0, good=0, interval=3, updates=4):
    """A checkpoint as the notebook describes it."""
    velocity = velocity or [plain(np.zeros_like(w)) for w in weights]
    scaler = {"scale": scale, "growth_factor": 2.0, "backoff_factor": 0.5,
              "growth_interval": interval, "_growth_tracker": good}  # fmt: skip
    return {
        "weights": weights,
        "velocity": velocity,
        "scaler": scaler,
        "updates": updates,
    }


def went_on(state, batches, slip="", nudge=1.0):
    """The state after more batches, and whether each was skipped."""
    skips = []
    known, updates = state["scaler"], state["updates"]
    run = Run(state["weights"], known["scale"], interval=known["growth_interval"],
              good=known["_growth_tracker"])  # fmt: skip
    if slip == "scaler":
        run = Run(state["weights"], 65536.0, interval=2000)
    velocity = [
        np.asarray(v, np.float64) * (slip != "velocity") for v in state["velocity"]
    ]
    for inputs, targets in batches:
        run.clear()
        run.add((np.asarray(inputs) * nudge, targets))
        run.unscale()
        found = not finite(run.grads)
        skips.append(found)
        if not found:
            rate = RATE * min(1.0, (updates + 1) / 4)
            velocity = [0.5 * v + g for v, g in zip(velocity, run.grads, strict=True)]
            run.weights = [
                w - rate * v for w, v in zip(run.weights, velocity, strict=True)
            ]
        run.update(found)
        updates += slip == "skips" or not found
    scaler = {
        **known, "scale": run.scale, "growth_interval": run.interval, "_growth_tracker": run.good
    }  # fmt: skip
    after = {
        "weights": run.weights,
        "velocity": velocity,
        "scaler": scaler,
        "updates": updates,
    }
    return after, skips


def numbers_of(state):
    scaler = state["scaler"]
    return [float(state["updates"]), scaler["scale"], float(scaler["_growth_tracker"]),
            *flat(state["weights"], state["velocity"])]  # fmt: skip


@np.errstate(all="ignore")
def resumed(state, batches, cuts, *, slip="", nudge=1.0):
    """Whether pieces end as the whole does, and the numbers of the last checkpoint."""
    whole, _ = went_on(state, batches, slip, nudge)
    for first, last in zip([0, *cuts], [*cuts, len(batches)], strict=True):
        state, _ = went_on(state, batches[first:last], slip, nudge)
    numbers = numbers_of(state)
    return [float(numbers == numbers_of(whole)), *numbers]


LIGHT = [[[0.3]]]


def one_layer_overflows():
    """The gradient of the first layer is infinite and that of the last is not, and conversely."""
    pairs = ((0.01, 64.0), (2.0, 0.32))
    return [(state_of([[[first]], [[last]]], scale=65536.0), [single(1.0, 1.0)], [])
            for first, last in pairs]  # fmt: skip


RESUME = Exercise(
    answer=resumed,
    uses=("encode_value", "decode_value"),
    reason="All that the next step depends on comes from the state, and goes into the next one.",
    argument="state, batches, cuts",
    cases=[
        (state_of(LIGHT), [single()], []),
        (state_of(LIGHT, velocity=[[[-1.0]]]), [single()], []),
        (state_of(LIGHT, updates=0), [single()], []),
        (state_of(LIGHT, updates=1), [single()] * 2, []),
        (state_of(LIGHT, good=2), [single()], []),
        (state_of(LIGHT), [single(0.0)], []),  # a step in which no weight moves
        (state_of(LIGHT, scale=65536.0, updates=1), [single(1.0, 4.0)] * 3, []),
        (state_of(LIGHT, good=1), [single()] * 3, [1]),
        (state_of(LIGHT), [([[1.0], [1.0]], [[2.0], [4.0]])], []),
        (state_of([[[0.3, 0.7, 0.9]]]), [([[1.0, 0.5, 0.25]], [[4.0]])] * 4, [1, 2]),
        (state_of(LIGHT, scale=16384.0, updates=0), [single(1.0, 4.0)] * 4, [2, 2, 3]),
    ],
    tolerance=TOLERANCE,
    misconceptions=(
        but(resumed, "A scaler that begins anew has another scale and another interval.",
            slip="scaler"),
        but(resumed, "Without its velocity the optimizer begins again from rest.", slip="velocity"),
        but(resumed, "A skipped step is no update: the warm-up must not count it.", slip="skips"),
    ),
)  # fmt: skip


def states(rng, count, *, length=(2, 4), scales=(4, 9), pieces=0,
           some=lambda skips: not any(skips)):  # fmt: skip
    """States in the middle of a run; `pieces` counts the cuts; `some` filters by the skips."""
    cases = []
    while len(cases) < count:
        weights = started(rng, deep=bool(rng.integers(2)))
        velocity = [plain(-positive(rng, *np.shape(w)) / 8) for w in weights]
        state = state_of(weights, velocity=velocity, scale=2.0 ** int(rng.integers(*scales)),
                         good=int(rng.integers(1, 3)), interval=int(rng.integers(3, 5)),
                         updates=int(rng.integers(1, 3)))  # fmt: skip
        width, out = len(weights[0][0]), len(weights[-1])
        batches = [batch_of(rng, width, out, reach=4.0)
                   for _ in range(rng.integers(*length, endpoint=True))]  # fmt: skip
        cuts = sorted(int(c) for c in rng.integers(1, len(batches), pieces))
        case = (state, batches, cuts)
        _, skips = went_on(state, batches)
        if some(skips) and alike(resumed, case):
            cases.append(case)
    return cases


GRADED = {
    "lost_shares": Graded(
        "lost_shares",
        LOST,
        (
            Part("deep networks", 1, LOST.reason,
                 lambda rng: [*networks(rng, 6, some=lambda c, s: len(s) > 2 and partial_loss(s)),
                              *mirrored(networks(rng, 3, some=lambda c, s: partial_loss(s)))]),
            Part("large inputs", 1, "Where in the backward pass does the rounding happen?",
                 lambda rng: networks(rng, 5, input_exponent=8, some=unlike("end"))),
            Part("zeros that are not lost, small numbers that are not zero", 1,
                 "Compare with FP32, entry by entry.",
                 lambda rng: [*networks(rng, 3, deaths=True, some=unlike("all")),
                              *networks(rng, 2, some=unlike("normal")),
                              ([[[1 + 2.0**-12]]], ONE, ONE),  # 1.0 in 16 bits
                              ([[[0.0, 0.0]]], [[1.0, 0.5]], [[2.0**-25]]),
                              ([plain(-positive(rng, 2, 2)), plain(positive(rng, 1, 2))],
                               plain(positive(rng, 3, 2)), plain(positive(rng, 3, 1)))]),
        ),
    ),
    "amp_step": Graded(
        "steps_seen",
        STEP,
        (
            Part("long and short gradients", 1, STEP.reason, clipping),
            Part("skipped steps", 1, "A skipped step leaves the weights and halves the scale.",
                 lambda rng: runs(rng, 6, length=(4, 6), scales=(13, 16), norms=(0.05, 0.2),
                                  some=going_on)),
            Part("a scale that grows until it is too large", 1,
                 "Look at scale, weights and norm over many steps.", growing),
            Part("one layer overflows", 1, "One infinite gradient in any layer skips the step.",
                 partly),
        ),
    ),
    "window_step": Graded(
        "windows_seen",
        WINDOW,
        (
            Part("micro-batches of one size", 1, WINDOW.reason,
                 lambda rng: cut(rng, 8, sizes=(2, 2, 2, 2), length=(2, 3))),
            Part("micro-batches of different sizes", 1, "The window is one batch, cut up.",
                 lambda rng: cut(rng, 8, sizes=(1, 2, 3, 5), norms=(0.05, 50.0))),
            Part("one micro-batch overflows", 1,
                 "One infinity spoils the window, and only this one.", one_infinite),
            Part("many windows, clipped", 1, "Clip and count by windows.",
                 lambda rng: cut(rng, 5, sizes=(1, 2, 4), length=(4, 6), norms=(0.02, 0.1))),
        ),
    ),
    "master_step": Graded(
        "masters_seen",
        MASTER,
        (
            Part("small updates that add up", 1, MASTER.reason,
                 lambda rng: gradients(rng, 8, steps=(5, 8), rate=(8, 11))),
            Part("momentum", 1, "The velocity is FP32 and outlives the step.",
                 lambda rng: gradients(rng, 8, steps=(3, 5), rate=(2, 6), momentum=(0.5, 0.75),
                                       width=(2, 4))),
            Part("tiny gradients", 1, "Which of the operations are done in FP32?",
                 lambda rng: gradients(rng, 6, steps=(1, 2), rate=(1, 4), exponents=(-31, -26),
                                       scales=(15, 19), fmts=(FP16,), start=0.0)),
            Part("infinities and NaN", 1, "After a bad gradient the run goes on as before it.",
                 lambda rng: gradients(rng, 8, steps=(4, 6), rate=(2, 5), momentum=(0.5,),
                                       bad=True)),
        ),
    ),
    "go_on": Graded(
        "resumed_seen",
        RESUME,
        (
            Part("states in the middle of a run", 1, RESUME.reason,
                 lambda rng: [*states(rng, 8, length=(2, 5)),
                              (state_of(LIGHT, good=1, updates=int(rng.integers(3))),
                               [single(0.0), *[single(float(rng.choice((0.5, 1.0))))] * 2], [])]),
            Part("skipped steps", 1, "After a skip: what has changed, and what has not?",
                 lambda rng: states(rng, 6, length=(4, 6), scales=(13, 16),
                                    some=lambda skips: skips[0] and not skips[-1])
                 + one_layer_overflows()),
            Part("runs in pieces, bit by bit", 1, "Compare the two ends number by number.",
                 lambda rng: [*states(rng, 3, length=(3, 5), pieces=2),
                              *states(rng, 3, length=(5, 7), scales=(12, 15), pieces=3,
                                      some=lambda skips: skips[0] and not skips[-1])]),
        ),
    ),
}  # fmt: skip
