"""Assignment 4, a loss scaler: the references, the public cases, and what is graded.

For the teacher and the grader only; the notebook gets `checks.json`, which is made from this.
tests/grading/test_a4.py holds the references against `torch.amp.GradScaler`.
"""

import math

import numpy as np

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, round_to
from mplab.course import Exercise, but
from mplab.course.grading import Graded, Part


def sign(rng):
    return rng.choice((-1, 1))


# A static scale ----------------------------------------------------------------------------


def best_scale(gradients, fmt):
    """Try one exponent after the other, downward from one that is too large."""
    k = fmt.emax + 5 - math.frexp(float(np.abs(gradients).max()))[1]
    while not np.isfinite(round_to(gradients * 2.0**k, fmt)).all():
        k -= 1
    return k, zeros(gradients, fmt), zeros(gradients * 2.0**k, fmt)


def zeros(gradients, fmt):
    return int(np.sum((gradients != 0) & (round_to(gradients, fmt) == 0)))


def scale_formula(gradients, fmt, *, rounds=True, subnormals=True):
    """The exponent and the zeros, with an option for each mistake."""
    k, before, after = best_scale(gradients, fmt)
    sizes = np.abs(gradients)
    if not subnormals:
        some = sizes[sizes > 0]
        before, after = (int(np.sum(some * 2.0**e < fmt.min_normal)) for e in (0, k))
    if not rounds and sizes.max() * 2.0**k > fmt.max_finite:
        k -= 1
    return k, before, after


ROWS = (
    ([1.0, 0.25], FP16),
    ([-5.0, 1e-8, 2.0], FP16),
    ([1e-4, 3e-6, 2e-8, 0.0], FP16),
    ([2.0**-25, 2.0**-24, 1.5 * 2.0**-25, 2.0**-40, 1e-12], FP16),
    ([65519.0 * 2.0**-20, 3e-8], FP16),
    ([1.0, 2.0**-25 + 2.0**-65], FP16),  # in float32 the tie
    ([65520.0 * 2.0**-20, 3e-8], FP16),
    ([3e5, 1.0, 2.0**-26], FP16),
    ([0.9, -0.01, 2.0**-11], FP8_E4M3),
)
CASES = [(np.array(row), fmt) for row, fmt in ROWS]

SCALE = Exercise(
    answer=best_scale,
    uses=("round_to",),
    reason="The largest |gradient| alone decides the exponent; then count what rounds to 0.",
    argument="gradients, fmt",
    cases=CASES,
    misconceptions=(
        but(scale_formula, "Rounding decides: less than half a gap past max_finite still fits.",
            rounds=False),
        but(scale_formula, "Subnormal numbers are values; only what is nearest to 0 becomes 0.",
            subnormals=False),
    ),
)  # fmt: skip


def gradients_of(rng, fmt, top, *, low):
    """From 2^low up to about 2^top, both signs, one of them 0; the largest is negative."""
    some = 2.0 ** rng.uniform(low, top - 0.1, 30) * rng.choice((-1, 1), 30)
    some[rng.integers(30)] = 0.0
    return (rng.permutation(np.append(some, -(2.0**top))), fmt)


def ordinary_gradients(rng):
    small = [gradients_of(rng, fmt, rng.uniform(-12, 3), low=fmt.emin - fmt.precision - 8)
             for fmt in (FP16, FP8_E5M2, FP8_E4M3) for _ in range(6)]  # fmt: skip
    return [
        *small,
        *(gradients_of(rng, BF16, rng.uniform(2, 9), low=-60) for _ in "abc"),
    ]


def large_gradients(rng):
    return [gradients_of(rng, fmt, fmt.emax + rng.uniform(1.2, 9), low=fmt.emin - 6)
            for fmt in (FP16, FP8_E5M2, FP8_E4M3) for _ in range(4)]  # fmt: skip


def edges(rng):
    """The largest gradient around the place where infinity begins, the small ones around zero."""
    for fmt in (FP16, FP8_E5M2, FP8_E4M3):
        beyond = fmt.max_finite + 2.0 ** (fmt.emax - fmt.precision)
        inside = fmt.max_finite + rng.uniform(0.1, 0.9) * (beyond - fmt.max_finite)
        for top in (
            fmt.max_finite,
            inside,
            math.nextafter(beyond, 0),
            beyond,
            1.001 * beyond,
        ):
            k = rng.integers(3, 15)
            zero = fmt.min_subnormal * np.array(
                [0.5, math.nextafter(0.5, 1), 0.75, 1.0, 1.5, 0.25]
            )
            both = [sign(rng) * top * 2.0**-k, *zero, *-zero * 2.0**-k]
            yield (np.array(both), fmt)


# The state machine -------------------------------------------------------------------------


def state_of(scale=1024.0, tracker=0, interval=3, growth=2.0, backoff=0.5):
    """As `torch.amp.GradScaler.state_dict` gives it."""
    return {
        "scale": float(scale),
        "growth_factor": growth,
        "backoff_factor": backoff,
        "growth_interval": interval,
        "_growth_tracker": tracker,
    }


def single(number):
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def moved(scale, factor, times):
    """The scale after `times` products, each rounded; a product that overflows is left out."""
    for _ in range(times):
        after = single(scale * factor)
        if after in (scale, math.inf):
            break
        scale = after
    return scale


def after_run(state, found_inf, steps):
    """In closed form: count the moves of the scale instead of making each step."""
    if found_inf:
        scale = moved(state["scale"], state["backoff_factor"], steps)
        return {**state, "scale": scale, "_growth_tracker": 0}
    growths, tracker = divmod(
        state["_growth_tracker"] + steps, state["growth_interval"]
    )
    scale = moved(state["scale"], state["growth_factor"], growths)
    return {**state, "scale": scale, "_growth_tracker": tracker}


def keeping_the_count(state, found_inf, steps):
    after = after_run(state, found_inf, steps)
    kept = {"_growth_tracker": state["_growth_tracker"]} if found_inf else {}
    return after | kept


def one_step_late(state, found_inf, steps):
    interval = state["growth_interval"]
    late = after_run(state | {"growth_interval": interval + 1}, found_inf, steps)
    return late | {"growth_interval": interval}


RUN = Exercise(
    answer=after_run,
    uses=("round_to",),
    reason="An overflow moves the scale at each step, good steps once per full interval.",
    argument="state, found_inf, steps",
    cases=[
        (state_of(), False, 1),
        (state_of(tracker=2), False, 1),
        (state_of(tracker=2), True, 1),
        (state_of(), True, 1),
        (state_of(tracker=1), False, 7),
        (state_of(65536.0, 1990, 2000), False, 9),
        (state_of(65536.0, 1990, 2000), False, 12),
        (state_of(1.0, 5, 10), True, 3),
        (state_of(96.0, 1, 2, 1.5, 0.125), False, 1),
        (state_of(96.0, 1, 2, 1.5, 0.125), True, 1),
        (state_of(1234.0, 0, 1, 1.1), False, 1),
        (state_of(2.0**24, 2, 3), False, 1),
        (state_of(2.0**127, 1, 2), False, 1),
        (state_of(2.0**-148, 0, 5), True, 4),
        (state_of(64.0, 7, 2_000_000), False, 9_999_999),
    ],
    misconceptions=(
        but(keeping_the_count,
            "After an overflow the count of good steps begins at 0 again."),
        but(one_step_late,
            "The step that completes the interval grows the scale, not the one after it."),
    ),
)  # fmt: skip


def power(rng, low=-20, high=30):
    return 2.0 ** int(rng.integers(low, high))


def fresh(state):
    """Count from 0, so that forgetting to reset the count costs only one part."""
    return {**state, "_growth_tracker": 0}


def any_state(rng, *, interval=None, **factors):
    """The count lies anywhere below the interval, and often just below it."""
    interval = interval or int(rng.integers(2, 12))
    tracker = interval - 1 if rng.integers(2) else int(rng.integers(interval))
    return state_of(power(rng, 4), tracker, interval, **factors)


def some_factors(rng):
    growth = float(rng.choice((1.1, 1.5, 3.0, 1.7)))
    return {"growth": growth, "backoff": float(rng.choice((0.9, 0.3, 0.125, 0.7)))}


def one_step(rng):
    return [(any_state(rng), bool(found), 1) for found in (0, 1) for _ in range(20)]


def other_factors(rng):
    grown = [(any_state(rng, **some_factors(rng)), False, int(rng.integers(1, 9)))
             for _ in range(12)]  # fmt: skip
    backed = [(fresh(any_state(rng, **some_factors(rng))), True, int(rng.integers(1, 9)))
              for _ in range(12)]  # fmt: skip
    each = [
        (any_state(rng, interval=1, growth=1.1, backoff=0.9), found, 5)
        for found in (False, True)
    ]
    return [*grown, *backed, *each]


def ends_of_float32(rng):
    """Just below 2^128 and around 2^-149, where a factor of 0.9 no longer moves anything."""
    up = [(state_of(2.0 ** (127 - k) * float(f), int(rng.integers(2)), 2), False, 2 * k)
          for k in range(1, 7) for f in (1.0, single(rng.uniform(1, 1.9)))]  # fmt: skip
    there = [(state_of(2.0**127, 4, 5), False, n) for n in (1, int(rng.integers(2, 9)))]
    down = [(state_of(2.0 ** -rng.integers(100, 149), 0, 3, backoff=b), True, n)
            for b in (0.5, 0.9, 0.3) for n in (2, 60, 2_000)]  # fmt: skip
    return [*up, *there, *down]


def long_runs(rng):
    for found in (False, True):
        for _ in range(6):
            interval = int(rng.integers(1_000, 10**9))
            state = state_of(
                power(rng), 0 if found else int(rng.integers(interval)), interval
            )
            yield (state, found, int(rng.integers(10**9, 10**12)))


# The window --------------------------------------------------------------------------------


def clipped(gradient, max_norm):
    norm = math.sqrt(float(np.sum(gradient**2)))
    return gradient * (max_norm / norm) if norm > max_norm else gradient


def window_gradient(micro, scale, max_norm, *, first=False, total=False, clip=clipped):
    """Right by default, with an option for each mistake; no sum of these cases is rounded."""
    wide = np.array(micro, np.float64)
    if not np.isfinite(wide).all():
        return None
    gradient = wide.sum(axis=0) if total else wide.mean(axis=0)
    if first:
        return clip(gradient, max_norm) / scale
    return clip(gradient / scale, max_norm)


def by_element(gradient, max_norm):
    return np.clip(gradient, -max_norm, max_norm)


def floats(*rows):
    return [np.array(row, np.float32) for row in rows]


WINDOW = Exercise(
    answer=window_gradient,
    reason="Add up, divide by the number and by the scale, look at all of it, then clip.",
    argument="micro, scale, max_norm",
    tolerance=1e-5,
    cases=[
        (floats((0.25, -0.5)), 1.0, 1.0),
        (floats((6.0, 8.0)), 1.0, 1.0),
        (floats((256.0, -512.0)), 1024.0, 1.0),
        (floats((6144.0, 8192.0)), 1024.0, 1.0),
        (floats((0.0, 0.0)), 1024.0, 1.0),
        (floats((256.0, 0.0), (256.0, 512.0), (-128.0, 64.0), (0.0, 64.0)), 1024.0, 1.0),
        (floats((12288.0, 0.0), (0.0, -8192.0)), 1024.0, 2.0),
        (floats((math.inf, 1.0)), 65536.0, 1.0),
        (floats((1.0, 2.0), (-math.inf, 1.0), (1.0, 3.0)), 65536.0, 1.0),
        (floats((1.0, 2.0), (1.0, 1.0), (math.nan, 3.0)), 65536.0, 1.0),
        (floats((3.0, -4.0)), 0.125, 5.0),
    ],
    misconceptions=(
        but(window_gradient, "Clipped while scaled, gradients come out max_norm / scale long.",
            first=True),
        but(window_gradient, "The loss of a window is the mean of its micro-batches.", total=True),
        but(window_gradient, "Clipping each number bends the direction: shrink all by one factor.",
            clip=by_element),
    ),
)  # fmt: skip


def whole(rng, count, size, top):
    """Integers, whose sums are exact in any order."""
    return [np.float32(rng.integers(-top, top + 1, size)) for _ in range(count)]


def long_enough(rng, *, count):
    """A window and a scale that give a norm above 1, and a max_norm below that norm."""
    micro = whole(rng, count, 5, 500)
    norm = float(np.linalg.norm(np.mean(micro, axis=0)))
    scale = 2.0 ** (math.floor(math.log2(norm)) - int(rng.integers(2, 6)))
    return (micro, scale, rng.uniform(0.5, 0.9) * norm / scale)


def short_enough(rng, *, count):
    micro, scale, max_norm = long_enough(rng, count=count)
    return (micro, scale, 4 * max_norm)


def rescaled(rng, case):
    """The same window with another scale, from 2^-8 to 2^24."""
    micro, scale, max_norm = case
    factor = 2.0 ** int(rng.integers(-8, 25)) / scale
    return ([g * np.float32(factor) for g in micro], scale * factor, max_norm)


def one_batch(rng):
    return [rescaled(rng, kind(rng, count=1)) for kind in (long_enough, short_enough)
            for _ in range(10)]  # fmt: skip


def several_batches(rng):
    return [rescaled(rng, kind(rng, count=rng.integers(2, 9)))
            for kind in (long_enough, short_enough) for _ in range(12)]  # fmt: skip


def spoilt_windows(rng):
    """One bad number somewhere; in some windows two infinities that would cancel."""
    for bad in (math.inf, -math.inf, math.nan) * 4:
        micro, scale, max_norm = rescaled(
            rng, long_enough(rng, count=rng.integers(2, 6))
        )
        place = rng.integers(5)
        micro[rng.integers(len(micro))][place] = bad
        yield (micro, scale, max_norm)
    both = whole(rng, 3, 4, 9)
    both[0][1], both[2][1] = math.inf, -math.inf
    yield (both, 8.0, 1.0)
    yield short_enough(rng, count=3)


def zeros_and_edges(rng):
    silent = [np.zeros(3, np.float32)] * int(rng.integers(1, 5))
    at = [([np.float32([3 * k, 0, -4 * k])], float(s), 5.0 * k / s)
          for k, s in ((1, 1), (int(rng.integers(2, 9)), 64), (2, 0.25))]  # fmt: skip
    cancelling = whole(rng, 2, 4, 99)
    cancelling += [-g for g in cancelling] + [np.float32([4, 0, 3, 0])]
    sparse = [np.zeros(4, np.float32) for _ in range(3)]
    sparse[rng.integers(3)][rng.integers(4)] = 96.0
    return [(silent, power(rng), 1.0), *at, (cancelling, 0.0625, 2.0),
            (sparse, 16.0, 0.5), (sparse, 16.0, 8.0)]  # fmt: skip


# Several optimizers ------------------------------------------------------------------------


def end_window(state, gradients):
    stepped = [bool(np.isfinite(np.concatenate(own)).all()) for own in gradients]
    return stepped, after_run(state, False in stepped, 1)


def once_for_each(state, gradients):
    stepped, _ = end_window(state, gradients)
    for good in stepped:
        state = after_run(state, not good, 1)
    return stepped, state


def all_together(state, gradients):
    stepped, after = end_window(state, gradients)
    return [all(stepped)] * len(stepped), after


INF, NAN = math.inf, math.nan
GOOD, UP, DOWN, LOST = (
    floats(row) for row in ((1.0, -2.0), (INF, 3.0), (5.0, -INF), (NAN, 0.0))
)
LATER = floats((1.0, 2.0), (3.0,), (4.0, INF))
SOONER = floats((1.0, INF), (3.0,), (4.0, 5.0))

END = Exercise(
    answer=end_window,
    uses=("round_to",),
    reason="Each optimizer looks at its own gradients; the scale moves once for all.",
    argument="state, gradients",
    cases=[
        (state_of(tracker=tracker), gradients)
        for tracker, gradients in (
            (0, [GOOD]),
            (2, [GOOD]),
            (1, [UP]),
            (1, [GOOD, GOOD]),
            (1, [UP, GOOD]),
            (2, [GOOD, LOST]),
            (0, [DOWN, UP]),
            (1, [LATER]),
            (1, [SOONER]),
            (1, [GOOD, DOWN, GOOD]),
        )
    ],
    misconceptions=(
        but(once_for_each,
            "One window is one step of the scale, however many optimizers there are."),
        but(all_together,
            "An optimizer skips for its own gradients, not for those of another."),
    ),
)  # fmt: skip


def parameters(rng, bad=None):
    """One to three arrays of several shapes; one number is bad."""
    own = [
        np.float32(rng.normal(size=rng.integers(1, 5)))
        for _ in range(rng.integers(1, 4))
    ]
    if bad is not None:
        spoilt = own[rng.integers(len(own))]
        spoilt[rng.integers(len(spoilt))] = bad
    return own


def optimizers(rng, count, bad, *, at=None):
    """`count` optimizers, of which those in `at` overflow, or a random one."""
    which = {rng.integers(count)} if at is None else at
    return [parameters(rng, bad if i in which else None) for i in range(count)]


def one_optimizer(rng):
    return [(fresh(any_state(rng)), optimizers(rng, 1, bad))
            for bad in (None, INF, -INF, NAN) for _ in range(6)]  # fmt: skip


def several_optimizers(rng):
    for count in (2, 3, 4):
        for bad in (INF, -INF, NAN):
            yield (fresh(any_state(rng)), optimizers(rng, count, bad))
        yield from (
            (fresh(any_state(rng)), optimizers(rng, count, INF, at=at))
            for at in ({0}, {count - 1})
        )


def all_or_none(rng):
    return [(any_state(rng), optimizers(rng, count, NAN, at=at))
            for count in (2, 3) for at in (set(), set(range(count))) for _ in range(4)]  # fmt: skip


# A job and its crashes ---------------------------------------------------------------------


def replay(state, log, warmup, *, resume=None, counts="updates", rewinds=True):
    """Scales and rates over a log, right by default, with an option for each mistake."""
    start = (state, 0)
    now = start
    saved = None
    scales = []
    rates = []
    for entry in log:
        state, updates = now
        if entry == "save":
            saved = now
        elif entry == "crash":
            back, then = saved or start
            now = (resume(back) if resume else back, then if rewinds else updates)
        else:
            found = state["scale"] > entry
            scales.append(state["scale"])
            rates.append(0.0 if found else min(1.0, (updates + 1) / warmup))
            counted = counts == "windows" or not found
            now = (after_run(state, found, 1), updates + counted)
    return scales, rates


def from_65536(saved):
    return {**saved, "scale": 65536.0, "_growth_tracker": 0}


ANY = math.inf
JOB = Exercise(
    answer=replay,
    uses=("round_to",),
    reason="Each window has scale, rate and update; a crash goes back to all of the checkpoint.",
    argument="state, log, warmup",
    tolerance=1e-9,
    cases=[
        (state_of(1024.0), [ANY, ANY, ANY, ANY], 2),
        (state_of(1024.0), [256.0, 256.0, 256.0, 256.0], 4),
        (state_of(1024.0), [1024.0, 1023.0, ANY], 1),
        (state_of(4.0), [ANY, "save", ANY, ANY, "crash", ANY, ANY, ANY], 10),
        (state_of(1024.0), [512.0, 512.0, "save", ANY, "crash", 512.0, ANY, ANY], 8),
        (state_of(1024.0), [512.0, ANY, ANY, "crash", 512.0, ANY], 4),
        (state_of(64.0, 1), ["save", ANY, ANY, "save", ANY, "crash", ANY, "crash", ANY], 9),
    ],
    misconceptions=(
        but(replay, "After a crash the scaler goes on with the saved scale, not with 65536.",
            resume=from_65536),
        but(replay, "A crash also undoes the updates since the checkpoint, and their warm-up.",
            rewinds=False),
        but(replay, "A skipped window is no update: the scheduler must not count it.",
            counts="windows"),
    ),
)  # fmt: skip


def windows(rng, state, count, *, below=4):
    """Limits around the scale, some of which overflow."""
    scale = state["scale"]
    return [float(rng.choice((scale * 2.0 ** rng.integers(-below, 3), ANY, ANY)))
            for _ in range(count)]  # fmt: skip


def bare_logs(rng):
    for _ in range(10):
        state = any_state(rng, interval=int(rng.integers(2, 6)))
        limits = windows(rng, state, 40)
        yield (state, [state["scale"] / 2, *limits], int(rng.integers(5, 60)))


def hopeless_logs(rng):
    """The infinity comes from the forward pass, so no scale helps for some time."""
    return [(any_state(rng, interval=4), [ANY] * 3 + [0.0] * n + [ANY] * 9, 20)
            for n in (5, rng.integers(6, 40))]  # fmt: skip


def jobs(rng, *, crashes):
    """Windows, checkpoints and crashes; a crash loses the changes since the checkpoint."""
    for _ in range(8):
        state = any_state(rng, interval=int(rng.integers(3, 6)))
        log = [state["scale"] / 4, *windows(rng, state, 5), "save", ANY]
        for _ in range(crashes):
            some = windows(rng, state, rng.integers(4, 9), below=2)
            log += [
                *some,
                "save",
                ANY,
                ANY,
                state["scale"] / 8,
                "crash",
                ANY,
                "crash",
                *some,
            ]
        yield (state, log, int(rng.integers(30, 90)))


def crash_first(rng):
    state = any_state(rng, interval=3)
    return [(state, [state["scale"] / 2, ANY, ANY, "crash", *windows(rng, state, 9)], 30)
            for _ in range(4)]  # fmt: skip


GRADED = {
    "best_scale": Graded(
        "best_scale",
        SCALE,
        (
            Part("all four formats", 1, SCALE.reason, ordinary_gradients),
            Part("gradients beyond the format", 1, "A scale may be below 1.", large_gradients),
            Part("around infinity and around zero", 1,
                 "Both ends are decided by rounding, ties included.", edges),
        ),
    ),
    "after_run": Graded(
        "after_run",
        RUN,
        (
            Part("one step", 1, RUN.reason, one_step),
            Part("other factors", 1, "Take the factors from the state; round each product.",
                 other_factors),
            Part("where float32 ends", 1, "Look at scales near 2^128 and below 2^-100.",
                 ends_of_float32),
            Part("10^12 steps", 1, "Count what moves the scale; do not make every step.",
                 long_runs),
        ),
        seconds=5.0,
    ),
    "window_gradient": Graded(
        "window_gradient",
        WINDOW,
        (
            Part("one micro-batch", 1, WINDOW.reason, one_batch),
            Part("several micro-batches", 1, WINDOW.reason, several_batches),
            Part("one bad number", 1, "One number that is not finite spoils the window.",
                 spoilt_windows),
            Part("zeros, and norms at the threshold", 1,
                 "Shrink only what is longer than max_norm; a norm may be 0.", zeros_and_edges),
        ),
    ),
    "end_window": Graded(
        "end_window",
        END,
        (
            Part("one optimizer", 1, "Look at all numbers of all parameters.", one_optimizer),
            Part("some optimizers overflow", 1, END.reason, several_optimizers),
            Part("all overflow, or none", 1, "However many they are, it is one step of the scale.",
                 all_or_none),
        ),
    ),
    "replay": Graded(
        "replay",
        JOB,
        (
            Part("without a crash", 1, "The warm-up counts updates only; the rest is piece 2.",
                 lambda rng: [*bare_logs(rng), *hopeless_logs(rng)]),
            Part("one crash", 1, JOB.reason, lambda rng: jobs(rng, crashes=1)),
            Part("many crashes", 1, "The last checkpoint stays until the next one.",
                 lambda rng: jobs(rng, crashes=4)),
            Part("a crash before the first checkpoint", 1,
                 "Without a checkpoint the job begins again as it began.", crash_first),
        ),
    ),
}  # fmt: skip
