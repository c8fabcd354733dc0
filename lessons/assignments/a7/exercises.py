"""Assignment 7, the clinic: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
The references compute in NumPy with `round_to`; what the notebook does with torch is compared
with them, so the two have no code in common.
"""

import math

import numpy as np

from mplab import BF16, FP16, FP32, round_to
from mplab.course import Exercise, but
from mplab.course.grading import Graded, Part

WARM = """
import numpy as np, torch, mplab
torch.set_num_threads(1)
layer = torch.nn.Linear(2, 2)
torch.optim.SGD(layer.parameters(), lr=0.1)  # the first optimizer imports a second's worth
with torch.autocast("cpu", dtype=torch.float16):
    layer(torch.ones(1, 2)).float().sum().backward()
"""

quiet = np.errstate(all="ignore")
"""Silences warnings, because these exercises are about infinities."""


def low(x, fmt):
    """Rounded to a format, as float32."""
    return round_to(np.asarray(x, np.float32), fmt)


# Triage: the patients ----------------------------------------------------------------------


def adam_in(fmt, w, g, moments, step):
    """Adam with every result in a format; its eps of 1e-8 is 0 in FP16."""
    m = low(0.9 * moments[0] + low(0.1 * g, fmt), fmt)
    v = low(0.999 * moments[1] + low(0.001 * low(g * g, fmt), fmt), fmt)
    moments[:] = m, v
    size = low(np.sqrt(low(v / (1 - 0.999**step), fmt)), fmt)
    return low(w - low(0.01 * m / (1 - 0.9**step) / (size + low(1e-8, fmt)), fmt), fmt)


@quiet
def patient(
    rng, steps=5, *, fmt=FP16, weights=FP32, scale=None, size=1.0, rate=0.05, start=0.0, dead=0,
    faint=0, spike=None, flood=None, column=False, adam=False, stale=False, beside=False,
):  # fmt: skip
    """Train a linear model on one batch with the faults asked for, and record it.

    `spike` and `flood` are steps with an odd batch: one whose scaled gradient overflows, one
    whose outputs do. `scale` is the first loss scale; None is a run without a scaler.
    """
    x = rng.uniform(0.5, 1.5, (16, 8)) * rng.choice((-1, 1), (16, 8))
    x[:, :dead] = 0.0
    x[:, :faint] *= 1e-6
    x[:, 7] = 7e4 if column else x[:, 7]
    w = low(start + np.zeros(8), weights)
    y = (x @ w if start else 0.0) + size * rng.standard_normal(16)
    seen = low(w, fmt)
    moments = [np.zeros(8, np.float32)] * 2
    now = scale or 1.0
    rows = []
    for step in range(steps):
        seen = seen if stale else low(w, fmt)
        inputs = low(x * (1e6 if step == flood else 1.0), fmt)
        miss = low(inputs @ seen, fmt) - y * (1e8 if step == spike else 1.0)
        loss = float(np.mean(np.float32(miss) ** 2))
        scaled = low(low(now * miss / 8, fmt) @ inputs, fmt)
        gradient = low(scaled / now, FP32)
        skipped = scale is not None and not np.isfinite(gradient).all()
        before = w
        if adam:
            w = adam_in(weights, w, gradient, moments, step + 1)
        elif not skipped:
            w = low(w - rate * gradient, weights)
        if beside:
            w = low(w - rate * gradient, weights)
        moved = (w != before) & ~(np.isnan(w) & np.isnan(before))
        rows.append(
            {
                "loss": float(f"{loss:.8g}"),
                "scale": now,
                "skipped": skipped,
                "zeros": float(np.mean(gradient == 0)),
                "moved": float(np.mean(moved)),
                "bad": int(np.sum(~np.isfinite(w))),
            }
        )
        now *= 0.5 if skipped else 1.0
    held = {FP32: "float32", FP16: "float16", BF16: "bfloat16"}[weights]
    return {"weights": held} | columns(rows)


def columns(rows):
    return {key: [row[key] for row in rows] for key in rows[0]}


def sixteen(rng):
    return {"fmt": (fmt := (FP16, BF16)[rng.integers(2)]), "weights": fmt}


FAULTS = {
    "healthy": lambda rng, n: dict(scale=1024.0),
    "healthy with dead inputs": lambda rng, n: dict(
        scale=256.0, dead=rng.integers(1, 4)
    ),
    "healthy in sixteen bits": lambda rng, n: sixteen(rng),
    "healthy in FP16": lambda rng, n: dict(weights=FP16),
    "healthy but for the first scale": lambda rng, n: dict(scale=2.0**18),
    "healthy and still skipping": lambda rng, n: dict(scale=2.0 ** (20 + n)),
    "healthy but for an odd batch": lambda rng, n: dict(
        scale=1024.0, spike=rng.integers(n)
    ),
    "forward": lambda rng, n: dict(scale=65536.0, column=True, start=rng.uniform(1, 2)),
    "forward without a scaler": lambda rng, n: dict(column=True, start=1.0),
    "forward in one batch": lambda rng, n: dict(
        scale=1024.0, start=0.5, flood=rng.integers(1, n)
    ),
    "gradients": lambda rng, n: dict(size=float(10 ** rng.uniform(-9, -7.7))),
    "gradients but for a few": lambda rng, n: dict(size=5e-3, faint=rng.integers(6, 8)),
    "updates": lambda rng, n: dict(start=1.0, rate=2e-5, **sixteen(rng)),
    "updates after skips": lambda rng, n: dict(
        start=1.0, rate=2e-5, scale=2.0**18, fmt=FP16, weights=BF16
    ),
    "copies": lambda rng, n: dict(stale=True, fmt=(FP16, BF16)[rng.integers(2)]),
    "copies after skips": lambda rng, n: dict(scale=2.0**18, stale=True),
    "half": lambda rng, n: dict(
        weights=FP16,
        adam=True,
        dead=rng.integers(1, 4),
        start=rng.integers(2),
    ),
    "second step": lambda rng, n: dict(
        scale=float(2 ** rng.integers(6, 12)),
        beside=True,
        spike=rng.integers(1, n),
    ),
    "second step at once": lambda rng, n: dict(scale=1024.0, beside=True, spike=0),
}
"""The options of `patient` by the fault: the diagnosis first, then how the run differs."""


def patient_with(fault, rng, steps):
    return patient(rng, steps, **FAULTS[fault](rng, steps))


def patients(rng, names):
    """Three of each kind, of several lengths, in an order drawn for one student."""
    cases = [
        patient_with(name, rng, int(rng.integers(6, 13)))
        for name in names
        for _ in range(3)
    ]
    return [cases[i] for i in rng.permutation(len(cases))]


def step(rng, *, loss=None, skipped=False, zeros=0.0, moved=1.0, bad=0):
    """A step of a healthy run, but for what is given."""
    loss = rng.uniform(1, 2) if loss is None else loss
    return {
        "loss": loss,
        "skipped": skipped,
        "zeros": zeros,
        "moved": moved,
        "bad": bad,
    }


def recorded(*steps):
    scales = {"weights": "float32", "scale": [1024.0] * len(steps)}
    return scales | columns(steps)


def first_alarms(rng):
    """A single bad weight, and a loss of minus infinity."""
    return [
        recorded(step(rng), step(rng, bad=1)),
        recorded(step(rng), step(rng, loss=-math.inf)),
    ]


def near_standstill(rng):
    """Shares of exactly one half, and losses that are alike in some steps, or only rise."""
    low, high = sorted(float(x) for x in rng.uniform(1, 2, 2))
    return [
        recorded(step(rng, zeros=0.25), step(rng, zeros=0.75)),
        recorded(step(rng, moved=0.25), step(rng, moved=0.75)),
        recorded(*(step(rng, moved=share) for share in (0.25, 0.375, 0.25))),
        *(recorded(*(step(rng, loss=loss) for loss in losses)) for losses in (
            (high, high, low), (high, high, high, low), (high, low, low), (low, high),
            (low, high, low), (low, math.nextafter(low, 0)))),
        recorded(*(step(rng, zeros=share) for share in (0.375, 1.0, 0.375))),
        recorded(*(step(rng, moved=share) for share in (0.625, 0.625, 0.0))),
        recorded(*(step(rng, loss=low) for _ in range(3))),
    ]  # fmt: skip


def near_skips(rng):
    """One applied step, the last; and skips by turns, with an odd batch that changes the loss."""
    one, two, three = (float(x) for x in rng.uniform(1, 2, 3))
    last = recorded(
        *(
            step(rng, loss=one, skipped=s, moved=float(not s))
            for s in (True, True, False)
        )
    )
    by_turns = (
        ((one, one, two, two, three), (1, 0, 1, 0, 1)),
        ((one, one, two, two), (0, 1, 0, 1)),
    )
    return [last, *(recorded(*(step(rng, loss=loss, skipped=bool(s), moved=float(not s))
                               for loss, s in zip(*run, strict=True)))
                    for run in by_turns)]  # fmt: skip


# Triage: the diagnosis ---------------------------------------------------------------------


def breakdown(r):
    """The cause of the first number that is not finite; None if there is none."""
    for loss, bad, skipped in zip(r["loss"], r["bad"], r["skipped"], strict=True):
        if not math.isfinite(loss):
            return "forward"
        if bad:
            return "second step" if skipped else "half"
    return None


def standstill(r, *, order=("gradients", "updates", "copies")):
    """What keeps a run from learning, judged by the steps that were applied."""
    loss = r["loss"]
    steps = range(len(r["loss"]))
    counted = [i for i in steps if not r["skipped"][i]]
    after = [i for i in counted if i + 1 in steps]
    found = {
        "gradients": bool(counted) and np.mean([r["zeros"][i] for i in counted]) > 0.5,
        "updates": bool(counted) and np.mean([r["moved"][i] for i in counted]) < 0.5,
        "copies": bool(after) and all(loss[i] == loss[i + 1] for i in after),
    }
    return next((name for name in order if found[name]), "healthy")


def diagnosis(record):
    return breakdown(record) or standstill(record)


def alarmed_by_skips(r):
    return breakdown(r) or ("forward" if any(r["skipped"]) else standstill(r))


def any_nan_is_forward(r):
    return diagnosis(r) if all(map(math.isfinite, r["loss"])) else "forward"


def still(r, **changes):
    return breakdown(r) or standstill(r, **changes)


def shown_patients():
    """One patient of each of some kinds, in short records, so that a counterexample can be read."""
    kinds = ["healthy", "healthy with dead inputs", "forward", "healthy but for the first scale",
             "gradients", "updates", "copies", "second step", "half", "forward without a scaler",
             "healthy in FP16", "second step at once", "healthy and still skipping",
             "copies after skips", "updates after skips"]  # fmt: skip
    lengths = {"healthy but for the first scale": 5, "updates after skips": 6, "second step": 4,
               "copies after skips": 6}  # fmt: skip
    return [
        patient_with(kind, np.random.default_rng(7), lengths.get(kind, 3))
        for kind in kinds
    ]


TRIAGE = Exercise(
    answer=diagnosis,
    reason="Walk through the steps: what stopped being finite first, or else what stands still?",
    argument="record",
    cases=[
        *shown_patients(),
        *near_standstill(np.random.default_rng(7))[-4:],
        *near_skips(np.random.default_rng(7)),
    ],
    misconceptions=(
        but(
            alarmed_by_skips,
            "A skipped step is no fault in itself: ask whether the unscaled loss is finite.",
        ),
        but(
            any_nan_is_forward,
            "NaN weights make every later loss NaN: ask what was still finite before.",
        ),
        but(
            still,
            "Weights also stand still where no gradient arrives: ask for the gradients first.",
            order=("updates", "gradients", "copies"),
        ),
    ),
)

# A norm written by hand --------------------------------------------------------------------


@quiet
def norm(x, eps, *, wide=np.float64, squares=""):
    """The norm, in float64 by default, with options that widen too little or too late."""
    x = x.astype(wide)
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    square = centred * centred
    if squares == "late":
        square = (np.float16(centred) * np.float16(centred)).astype(wide)
    variance = square.mean(-1, keepdims=True)
    if squares == "one pass":
        variance = (x * x).mean(-1, keepdims=True) - mean * mean
    return np.float16(centred / np.sqrt(variance + eps))


def narrow_rows(rng, count, low, high, *, widths=(5, 33), centre=0.0):
    """Rows with amplitudes between two powers of two; FP32 must decide every digit."""
    cases = []
    while len(cases) < count:
        shape = rng.integers(1, 4), rng.integers(*widths)
        size = 2.0 ** rng.uniform(low, high, (shape[0], 1))
        signs = rng.choice((-1, 1), (shape[0], 1))
        x = np.float16(signs * centre + size * rng.uniform(-1, 1, shape))
        eps = float(rng.choice((1e-5, 1e-6, 1e-10)))
        exact = np.float64(norm(x, eps))
        error = np.abs(np.float64(norm(x, eps, wide=np.float32)) - exact)
        if np.all((error <= 1e-3 * np.abs(exact)) & (np.abs(exact) > 2.0**-12)):
            cases.append((x, eps))
    return cases


def constant_rows(rng):
    """All elements are equal, so that only eps is under the root."""
    return [
        (
            np.full((2, 2 ** int(rng.integers(1, 5))), rng.uniform(-9, 9), np.float16),
            eps,
        )
        for eps in (1e-5, 1e-10)
        for _ in range(3)
    ]


NORM = Exercise(
    answer=norm,
    reason="In each row mean squared distance and eps under the root; widen first, round last.",
    argument="x, eps",
    tolerance=2.0**-8,
    cases=[
        (np.float16(x), eps)
        for x, eps in [
            ([[1.0, -1.0, 3.0, 1.0]], 1e-6),
            ([[5.0, 5.0]], 1e-10),
            ([[400.0, -400.0, 200.0, 0.0]], 1e-6),
            ([[1.0, -1.0], [3e4, -2e4]], 1e-6),
            ([[6e-4, -2e-4, 1e-4, 3e-4]], 1e-10),
            ([[1e-3, -1e-3, 2e-3, 0.0]], 1e-5),
            ([[2001.0, 2002.0, 2004.0]], 1e-6),
            ([[3e4, 2e4, 4e4, 1e4]], 1e-6),
            ([[6e4, -6e4, -6e4, -5e4]], 1e-6),
        ]
    ],
    misconceptions=(
        but(
            norm,
            "In FP16 a square is infinite from 256 on, and 1/sqrt(inf) is 0: the row is gone.",
            wide=np.float16,
        ),
        but(
            norm,
            "The square is infinite before it is widened.",
            wide=np.float32,
            squares="late",
        ),
        but(
            norm,
            "Mean of squares minus square of the mean: both are large, their digits cancel.",
            wide=np.float32,
            squares="one pass",
        ),
    ),
)

# Attention ---------------------------------------------------------------------------------


@quiet
def attention(q, k, v, keep, *, wide=np.float64, early=True, mask=-np.inf, top=True):
    """Attention, in float64 by default, with options that widen late or mask with a number."""
    root = np.sqrt(wide(q.shape[1]))
    logits = (wide(q) @ wide(k).T if early else wide(q @ k.T)) / root
    hidden = np.where(keep, logits, wide(mask))
    peak = np.maximum(hidden.max(-1, keepdims=True), -1e30)
    weights = np.exp(hidden - peak * top)
    values = wide(np.where(keep.any(0)[:, None], v, 0))
    total = np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    return np.float16(weights @ values / total)


def whole(rng, shape, largest):
    """Whole numbers, so that FP32 holds every logit exactly."""
    return np.float16(rng.integers(-largest, largest + 1, shape))


def kept(rng, rows, columns, *, empty=0, padding=0):
    """A random mask in which every row sees something, but for `empty` rows."""
    keep = rng.random((rows, columns)) < 0.6
    keep[np.arange(rows), rng.integers(0, columns - padding, rows)] = True
    keep[rng.permutation(rows)[:empty]] = False
    keep[:, columns - padding :] = False
    return keep


def heads(rng, count, *, far=0.0, uneven=1.0, empty=0, padding=0, garbage=False):
    """Heads of 16 numbers. `far` is a first product that all logits of a head share.

    `uneven` multiplies the logits of the first row.
    """
    for _ in range(count):
        rows = rng.integers(2, 5)
        columns = rng.integers(5, 9)
        width = 16
        q, k = whole(rng, (rows, width), 2), whole(rng, (columns, width), 2)
        if far:
            q[:, 0], k[:, 0] = 1024.0, far / 1024
        q[0] *= np.float16(uneven)
        v = np.float16(rng.uniform(0.5, 2.0, (columns, 3)))
        keep = kept(rng, rows, columns, empty=empty, padding=padding)
        if garbage:
            v[columns - padding :] = rng.choice((np.nan, np.inf, -np.inf), (padding, 3))
            k[columns - padding :] = rng.choice((np.nan, np.inf, 6e4), (padding, width))
        yield (q, k, v, keep)


def far_keys(rng, count):
    """Many keys far below the largest logit, whose values are large enough to count."""
    for _ in range(count):
        columns, width = rng.integers(40, 80), 16
        q, k = np.zeros((2, 1, width), np.float16)
        k = np.repeat(k, columns, axis=0)
        q[:, 0] = 4.0
        k[1:, 0] = -rng.integers(9, 13, columns - 1)
        v = np.float16(rng.uniform(500, 1000, (columns, 3)))
        v[0] = 1.0
        yield (q, k, v, np.ones((1, columns), bool))


def small_heads():
    """Two keys or three, two numbers each."""
    v = np.float16([[1.0], [2.0]])
    nan = np.float16([[1.0], [np.nan]])
    large = np.float16([[1.0], [2000.0]])

    def case(q, k, keep, v=v):
        return (np.float16(q), np.float16(k), v, np.array(keep, bool))

    four = [0.0] * 3
    return [
        case([[2.0, *four]], [[0.0, *four], [1.0, *four]], [[1, 1]]),
        case([[2.0, *four]], [[0.0, *four], [1.0, *four]], [[1, 0]]),
        case([[20.0, *four]], [[10.0, *four], [9.875, *four]], [[1, 1]]),
        case([[512.0, *four]], [[512.0, *four], [1.0, *four]], [[1, 1]]),
        case([[512.0, 2.0, 0, 0]], [[512.0, 1.0, 0, 0], [512.0, 0.0, 0, 0]], [[1, 1]]),
        case([[2.0, *four]] * 2, [[1.0, *four], [1.0, *four]], [[1, 0], [0, 0]]),
        case([[-512.0, *four]], [[512.0, *four], [512.0, *four]], [[1, 0]]),
        case([[512.0, *four]], [[1.0, *four], [512.0, *four]], [[1, 0]]),
        case([[2.0, *four]], [[1.0, *four], [1.0, *four]], [[1, 0]], nan),
        case([[2.0, *four]], [[0.0, *four], [-9.0, *four]], [[1, 1]], large),
        case(
            [[512.0, *four], [1.0, *four]], [[512.0, *four], [1.0, *four]], [[1, 1]] * 2
        ),
    ]


ATTENTION = Exercise(
    answer=attention,
    reason="Logits over the root of the width, in FP32; what is hidden takes no part.",
    argument="q, k, v, keep",
    tolerance=2.0**-7,
    cases=small_heads(),
    misconceptions=(
        but(
            attention,
            "The product is infinite before it is widened: the softmax sees inf - inf.",
            wide=np.float32,
            early=False,
        ),
        but(
            attention,
            "A row that sees nothing gets a mean of what is hidden; with -1e9 everywhere, too.",
            wide=np.float32,
            mask=-1e9,
        ),
        but(
            attention,
            "Subtract the largest logit of a row first: exp overflows FP32 from 89 on.",
            wide=np.float32,
            top=False,
        ),
    ),
)

# A training step ---------------------------------------------------------------------------


@quiet
def training(x, y, scale, limit, interval, fused, *, clip="unscaled", twice=False,
             every=False):  # fmt: skip
    """What `train` of the notebook shows, with torch's formulas in NumPy.

    Returns (scale, rate, move) of each step, and how near the run came to the largest FP16 number.
    """
    w = m = v = np.zeros(x.shape[2], np.float32)
    rows = []
    counted = 0
    applied = 0
    good = 0
    nearest = math.inf
    for inputs, wanted in zip(x, y, strict=True):
        rate = 0.1 / (1 + counted)
        before = w
        now = scale
        miss = low(low(inputs, FP16) @ low(w, FP16), FP16) - wanted
        out = low(scale * 2 * miss / len(wanted), FP32)
        scaled = low(low(out, FP16) @ low(inputs, FP16), FP32)
        for largest in filter(None, (np.abs(out).max(), np.abs(scaled).max())):
            nearest = min(nearest, abs(math.log(largest / FP16.max_finite)))
        scaled = low(scaled, FP16)
        finite = bool(np.isfinite(scaled).all())
        g = scaled / np.float32(scale)
        norm = float(np.linalg.norm(np.float64(scaled if clip == "scaled" else g)))
        if not norm <= limit:
            g = g * np.float32(limit / norm)
        for turn in range(1 + twice):
            if finite or turn:
                applied += 1
                if fused:
                    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                    size = np.sqrt(v / (1 - 0.999**applied)) + 1e-8
                    w = np.float32(w - rate * m / (1 - 0.9**applied) / size)
                else:
                    w = np.float32(w - rate * g)
        good = good + 1 if finite else 0
        scale = scale if finite else scale / 2
        scale, good = (scale * 2, 0) if good == interval else (scale, good)
        counted += finite or every
        rows.append(
            (now, rate, float(np.linalg.norm(np.float64(w) - np.float64(before))))
        )
    return np.array(rows), nearest


def trained(*arguments, **changes):
    return training(*arguments, **changes)[0]


def runs(rng, count, *, steps=8, rows=8, inputs=4, scales=(6, 12), odd=0, limits=(-2, 2),
         intervals=(50,), fused=(0, 1), grid=None, dead=0, blank=0):  # fmt: skip
    """Batches of noise, some of them odd; no decision may hang on the last digits of a sum."""
    cases = []
    while len(cases) < count:
        x = rng.uniform(0.5, 1.5, (steps, rows, inputs)) * rng.choice(
            (-1, 1), (rows, inputs)
        )
        y = rng.uniform(0.5, 2.0, (steps, rows)) * rng.choice((-1, 1), (steps, rows))
        limit = 2.0 ** rng.uniform(*limits)
        x[:, :, :dead] = 0.0  # weights that no step moves
        x[rng.permutation(steps)[:blank]] = 0.0  # an update that moves nothing
        if grid:
            x, y, limit = (np.round(grid * part) / grid for part in (x, y, limit))
        y[rng.permutation(steps)[:odd]] *= 1e7
        arguments = (
            np.float32(x),
            np.float32(y),
            float(2.0 ** rng.integers(*scales)),
            float(limit),
            int(rng.choice(intervals)),
            bool(rng.choice(fused)),
        )
        if training(*arguments)[1] > 0.02:
            cases.append(arguments)
    return cases


def few(seed, **kind):
    """Three steps with batches of two rows and two inputs, in eighths."""
    small = {"steps": 3, "rows": 2, "inputs": 2, "grid": 8}
    [case] = runs(np.random.default_rng(seed), 1, **small | kind)
    return case


TRAIN = Exercise(
    answer=trained,
    reason="unscale_, clip, scaler.step, update; then ask whether the scaler skipped the step.",
    argument="x, y, scale, limit, interval, fused",
    tolerance=0.01,
    cases=[
        few(1, limits=(9, 10), fused=(0,), scales=(4, 5)),
        few(2, limits=(-2, -1), fused=(0,), scales=(8, 9)),
        few(3, limits=(-2, -1), fused=(0,), scales=(30, 31), steps=2),
        few(4, odd=1, fused=(0,)),
        few(9, odd=1, fused=(1,)),
        few(8, limits=(-3, -2), scales=(13, 14), fused=(0,)),
        few(6, intervals=(1,), scales=(4, 5), fused=(0,)),
        few(7, odd=1, intervals=(1,), scales=(5, 6), steps=4),
        few(11, blank=1, fused=(0,), scales=(4, 5)),
    ],
    misconceptions=(
        but(
            trained,
            "The limit is for true gradients; before unscale_ they are `scale` times as long.",
            clip="scaled",
        ),
        but(
            trained,
            "A second step applies good gradients twice, and those that were to be skipped once.",
            twice=True,
        ),
        but(
            trained,
            "The rate follows the updates that were made, and a skipped step makes none.",
            every=True,
        ),
    ),
)

# Claims ------------------------------------------------------------------------------------

FORMATS = {"float16": FP16, "bfloat16": BF16}
CLAIMS = ("fp32 backward", "rescue", "floor", "memory", "notice")


@quiet
def gradient_of(fmt, weight, x, size, scale):
    """The unscaled `.grad` of `scale * size * (x @ W.T).sum()` under autocast."""
    out = low(np.full((len(x), len(weight)), np.float32(size) * np.float32(scale)), fmt)
    return low(out.T @ low(x, fmt), fmt) / np.float32(scale)


def evidence(claim, dtype, weight, x, size, scale, *, narrow=None, bytes_each=8):
    """What each measurement gives, or would give if a claim were true."""
    fmt = narrow or FORMATS[dtype]
    scaled, plain = (gradient_of(fmt, weight, x, size, s) for s in (scale, 1.0))
    if claim == "fp32 backward":
        return float(np.mean(scaled == 0))
    if claim == "rescue":
        return float(np.mean((plain == 0) & (scaled != 0)))
    if claim == "floor":
        return float(np.mean(~np.isfinite(scaled)))
    if claim == "memory":
        return bytes_each * weight.size
    return float(np.sum(low(x, fmt) @ low(weight, fmt).T))


def believing(sentence, claim, **changes):
    """A misconception: one claim is taken for true, the others are measured."""

    def answer(asked, *rest):
        return evidence(asked, *rest, **(changes if asked == claim else {}))

    return but(answer, sentence)


def layers(rng, claim, count, *, sizes=(-30, -18), scales=(0, 1)):
    """Layers of whole numbers; no gradient lies where two ways to add could differ."""
    for _ in range(count):
        shape = rng.integers(1, 4), rng.integers(2, 9)
        weight = np.float32(rng.integers(1, 5, shape))
        x = np.float32(
            2.0 ** rng.integers(-4, 4, (1, shape[1])) * rng.uniform(1.05, 1.3)
        )
        x[:, rng.random(shape[1]) < 0.2] = 0.0
        x[:, ::2] *= -1
        if claim == "notice":
            x = np.float32(rng.integers(1, 5, (2, shape[1])))
        size = 2.0 ** int(rng.integers(*sizes))
        scale = 2.0 ** int(rng.integers(*scales))
        yield (claim, str(rng.choice(tuple(FORMATS))), weight, x, size, scale)


def on_claim(claim, *, rescued=0, **kind):
    """`rescued` counts layers in which a scale keeps some of the gradient from being zero."""
    return Part(
        f"the claim {claim!r}", 1, "Measure what the sentence asks for, with the given dtype.",
        lambda rng: [*layers(rng, claim, 12, **kind),
                     *layers(rng, claim, rescued, sizes=(-30, -25), scales=(8, 17))],
    )  # fmt: skip


KINDS = {
    "fp32 backward": {"rescued": 12},
    "rescue": {"scales": (8, 17)},
    "floor": {"sizes": (-3, 3), "scales": (-28, 24)},
    "memory": {},
    "notice": {},
}

EVIDENCE = Exercise(
    answer=evidence,
    reason="Do what the claim's line says, in the given dtype, and return the number you see.",
    argument="claim, dtype, weight, x, size, scale",
    tolerance=1e-3,
    cases=[
        (claim, dtype, np.float32([[1, 2, 3]]), np.float32([x]), size, scale)
        for claim, dtype, x, size, scale in [
            ("fp32 backward", "float16", [1.1, 4.4, 0], 2.0**-20, 1.0),
            ("fp32 backward", "float16", [1.1, 4.4, 0], 2.0**-26, 1.0),
            ("fp32 backward", "float16", [1.1, 0.3, 0], 2.0**-24, 1.0),
            ("fp32 backward", "float16", [1.1, 4.4, 0], 2.0**-26, 1024.0),
            ("fp32 backward", "bfloat16", [1.1, 4.4, 0], 2.0**-26, 1.0),
            ("rescue", "float16", [1.1, 4.4, 0], 2.0**-26, 1024.0),
            ("rescue", "bfloat16", [1.1, 4.4, 0], 2.0**-26, 1024.0),
            ("floor", "float16", [1.1, 4.4, 0.3], 1.0, 2.0**-26),
            ("floor", "float16", [1.1, 4.4, 0.3], 1.0, 2.0**14),
            ("floor", "float16", [1.1, 4.4, 0.3], 1.0, 2.0**20),
            ("memory", "float16", [1, 2, 3], 1.0, 1.0),
            ("memory", "bfloat16", [1, 2, 3], 1.0, 1.0),
            ("notice", "bfloat16", [1, 2, 3], 1.0, 1.0),
        ]
    ],
    misconceptions=(
        believing(
            ".grad is FP32, but the zeros in it were made before, in the layer's own format.",
            "fp32 backward",
            narrow=FP32,
        ),
        believing(
            "BF16 has FP32's exponents: there is nothing for a scale to rescue.",
            "rescue",
            narrow=FP16,
        ),
        believing(
            "Under autocast parameters and their gradients stay FP32: four bytes each.",
            "memory",
            bytes_each=4,
        ),
    ),
)

GRADED = {
    "triage": Graded(
        "triage",
        TRIAGE,
        (
            Part("who made the first NaN", 1, "What was still finite in the step before?",
                 lambda rng: patients(rng, ["forward", "forward without a scaler", "half",
                                            "forward in one batch", "second step",
                                            "second step at once", "healthy"])
                 + first_alarms(rng)),
            Part("what stands still", 1, "Gradients, updates, or copies of the weights?",
                 lambda rng: patients(rng, ["gradients", "gradients but for a few", "updates",
                                            "copies", "healthy with dead inputs",
                                            "healthy in sixteen bits"])
                 + near_standstill(rng)),
            Part("with skipped steps between", 1, "Only the steps that were applied count.",
                 lambda rng: patients(rng, ["updates after skips", "copies after skips",
                                            "healthy but for the first scale",
                                            "healthy and still skipping",
                                            "healthy but for an odd batch", "forward"])
                 + near_skips(rng)),
        ),
    ),
    "norm": Graded(
        "layer_norm",
        NORM,
        (
            Part("large rows", 1, NORM.reason,
                 lambda rng: narrow_rows(rng, 12, 8, 15.5)),
            Part("small, constant and distant rows", 1, "What are eps, and the digits left?",
                 lambda rng: [*narrow_rows(rng, 8, -16, -6), *constant_rows(rng),
                              (np.zeros((2, 4), np.float16), 1e-6),
                              *narrow_rows(rng, 8, 0, 2, centre=2000.0)]),
            Part("wide rows", 1, "A long row has a large sum.",
                 lambda rng: [*narrow_rows(rng, 6, 9, 11, widths=(300, 500), centre=500.0),
                              *((np.stack([x, -x]), eps)  # rows along the last axis
                                for x, eps in narrow_rows(rng, 2, 8, 12))]),
        ),
    ),
    "attention": Graded(
        "attend",
        ATTENTION,
        (
            Part("logits past FP16", 1, ATTENTION.reason,
                 lambda rng: [*heads(rng, 6), *heads(rng, 6, far=5e5), *heads(rng, 3, far=6e4),
                              *heads(rng, 3, uneven=1024.0), *far_keys(rng, 3)]),
            Part("masks", 1, "A hidden place takes no part, whatever the true logits are.",
                 lambda rng: [*heads(rng, 6, empty=1), *heads(rng, 6, far=-5e5, padding=1)]),
            Part("what padding holds", 1, "A place that no row may see can hold anything.",
                 lambda rng: heads(rng, 8, padding=2, garbage=True)),
        ),
    ),
    "train": Graded(
        "train",
        TRAIN,
        (
            Part("clipping at other scales", 2, "Which norm does the optimizer receive?",
                 lambda rng: [*runs(rng, 4, fused=(0,)), *runs(rng, 2, scales=(20, 24), steps=14)]),
            Part("odd batches", 1, "In a skipped step nothing moves, and nothing counts.",
                 lambda rng: [*runs(rng, 3, odd=2, fused=(0,)), *runs(rng, 3, odd=2, fused=(1,)),
                              *runs(rng, 2, odd=1, dead=1), *runs(rng, 2, blank=3, fused=(0,))]),
            Part("a scale that grows", 1, "A scale can change for two reasons.",
                 lambda rng: runs(rng, 4, odd=1, scales=(4, 7), intervals=(2, 3))),
        ),
    ),
    "evidence": Graded("evidence", EVIDENCE, tuple(on_claim(c, **KINDS[c]) for c in CLAIMS)),
}  # fmt: skip
