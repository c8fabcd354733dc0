"""The compiled loops of `mplab.arithmetic`: long sums that round at every step.

Every step ends in `kernels._round_bits`. The exact sum of two float64 is rounded to odd first
(see `operations`), so every mode is correct, and a product may enter unrounded, as in a fused
multiply-add. The inner loops run over lanes, which are independent sums, and so vectorise; a
single sum has one lane, where each step waits for the one before. The mode, and whether the format
needs rare steps, are compiled in. Sequential sums have loops of their own; the other orders follow
a plan, which costs tens of nanoseconds per step.

numba's cache on disk checks only the file of a loop, which is this one. Callees are here, in
`mplab.numbers.kernels` or `step_loops`; `_EDITION` makes those files part of the key, so that a
loop that mentions it is recompiled when one of the files changes.
"""

import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numba import njit, types

from mplab.numbers import step_loops
from mplab.numbers.compiled import compiled, readable
from mplab.numbers.formats import Rounding
from mplab.numbers.kernels import ANY, _random_bits, _round_bits, _unpack
from mplab.numbers.parameters import LoopOptions
from mplab.numbers.step_loops import to_odd
from mplab.numbers.threads import parallel

_EDITION = zlib.crc32(Path(step_loops.__file__).read_bytes(), step_loops._EDITION)

_STOCHASTIC = int(Rounding.STOCHASTIC)
_TOWARD_NEGATIVE = int(Rounding.TOWARD_NEGATIVE)


_NUMBERS = readable(types.float64, 1)
_MATRIX = readable(types.float64, 2)
_FACTS = readable(types.int64, 1)


@cache
def odd_adder() -> Callable[..., None]:
    """Compile a loop that writes x + y, rounded to odd, to an array."""

    def add_all_to_odd(x, y, out, mode):
        for i in range(out.size):
            out[i] = np.int64(to_odd(x[i], y[i], mode)).view(np.float64)

    signature = _NUMBERS, _NUMBERS, types.float64[::1], types.int64
    return compiled(signature, add_all_to_odd, _EDITION)


@njit(forceinline=True)
def _keys_from(keys, index, lanes):
    """Return the keys of lanes from an index on, and where the next 2^32 elements begin."""
    run = np.uint64(index >> 32)
    last = np.uint64((index + lanes - 1) >> 32)
    begin = (np.int64(run) + 1) << 32
    return begin, keys[run, 0], keys[run, 1], keys[last, 0], keys[last, 1]


@njit(forceinline=True)
def _enter(bits, index, near, salt, rule):
    """Round the bits of a float64, the element `index` of its call.

    A rule is the mode, whether the format has special cases, its parameters, and the keys.
    """
    mode, special_cases, known, _ = rule
    random = np.uint32(0)
    if mode == _STOCHASTIC:
        begin, key0, key1, next0, next1 = near
        key0, key1 = (key0, key1) if index < begin else (next0, next1)
        random = _random_bits(index, key0, key1 ^ salt)
    return np.int64(_round_bits(bits, mode, special_cases, random, known, ANY)[0]).view(
        np.float64
    )


@njit(forceinline=True)
def _multiply(scalar, lanes, out, rounded, index, rule):
    """Write scalar · lanes to `out`, exact or rounded; products of FP32 values are exact."""
    for j in range(out.size):
        out[j] = scalar * lanes[j]
    if rounded:
        near = _keys_from(rule[3], index, out.size)
        for j in range(out.size):
            bits = np.float64(out[j]).view(np.int64)
            out[j] = _enter(bits, index + j, near, 0, rule)


@njit(forceinline=True)
def _add(x, y, sign, out, index, salt, rule):
    """Write x + sign · y to `out`, rounded."""
    near = _keys_from(rule[3], index, out.size)
    for j in range(out.size):
        bits = to_odd(x[j], sign * y[j], rule[0])
        out[j] = _enter(bits, index + j, near, salt, rule)


@njit(forceinline=True)
def _add_one(x, y, index, salt, rule):
    """Add two numbers and round the sum."""
    near = _keys_from(rule[3], index, 1)
    return _enter(to_odd(x, y, rule[0]), index, near, salt, rule)


@njit(forceinline=True)
def _salt(n):
    """Return what step n of a term changes in its second key: steps must not share random bits."""
    return n * 0x9E3779B9 & 0xFFFFFFFF


# Sequential sums, in blocks or in one piece ----------------------------------------------
@njit(forceinline=True)
def _in_sequence(a, b, block, rounded, out, trace, index, rule, of_product):
    """Compute the sums of one row of the product, all columns together.

    Sums go to `fresh`, because an addition in place does not vectorise: the compiler cannot see
    that it is in place.
    """
    depth, lanes = b.shape
    nothing = 0.0 if rule[0] == _TOWARD_NEGATIVE else -0.0
    term = np.empty(lanes)
    part = np.empty(lanes)
    fresh = np.empty(lanes)
    total = np.full(lanes, nothing)
    for begin in range(0, depth, block):
        end = min(begin + block, depth)
        part[:] = nothing
        for k in range(begin, end):
            i = index + k * lanes
            _multiply(a[k], b[k], term, rounded, i, of_product)
            _add(part, term, 1.0, fresh, i, 0, rule)
            part, fresh = fresh, part
            if trace.size:
                trace[k] = part
        if block < depth:
            i = index + (end - 1) * lanes
            _add(total, part, 1.0, fresh, i, _salt(1), rule)
            total, fresh = fresh, total
    out[:] = total if block < depth else part


@njit(forceinline=True)
def _one_in_sequence(a, b, block, rounded, out, trace, index, rule, of_product):
    """Do the same for a single column, whose sum stays in a register."""
    depth = b.shape[0]
    nothing = 0.0 if rule[0] == _TOWARD_NEGATIVE else -0.0
    part = total = nothing
    for begin in range(0, depth, block):
        end = min(begin + block, depth)
        part = nothing
        for k in range(begin, end):
            i = index + k
            term = a[k] * b[k, 0]
            if rounded:
                bits = np.float64(term).view(np.int64)
                near = _keys_from(of_product[3], i, 1)
                term = _enter(bits, i, near, 0, of_product)
            part = _add_one(part, term, i, 0, rule)
            if trace.size:
                trace[k, 0] = part
        if block < depth:
            total = _add_one(total, part, index + end - 1, _salt(1), rule)
    out[0] = total if block < depth else part


# Plans: any other order is a list of steps on the rows of a workspace, so that only one addition
# is compiled. A step is (kind, x, y, out): see `_follow`.
_TOTAL, _LOST, _TERM, _AFTER, _GONE, _NOTHING, _LEVELS = range(7)

_PLUS, _MINUS, _COPY = range(3)

_DEPTH = 40
"""Levels of a tree: no memory holds more than 2^40 terms."""


@njit
def _plan_step(steps, count, kind, x, y, out):
    steps[count] = kind, x, y, out
    return count + 1


@njit
def _plan_term(steps, pairwise, k):
    """Plan the steps that add term k; return their number."""
    n = 0
    if pairwise:  # neighbours are added as a binary counter carries
        n = _plan_step(steps, n, _PLUS, _NOTHING, _TERM, _TERM)
        level = 0
        while (k >> level) & 1:
            n = _plan_step(steps, n, _PLUS, _LEVELS + level, _TERM, _TERM)
            level += 1
        steps[n - 1, 3] = _LEVELS + level
    else:  # Kahan 1965: the lost part of a term corrects the next term
        n = _plan_step(steps, n, _MINUS, _TERM, _LOST, _TERM)
        n = _plan_step(steps, n, _PLUS, _TOTAL, _TERM, _AFTER)
        n = _plan_step(steps, n, _MINUS, _AFTER, _TOTAL, _GONE)
        n = _plan_step(steps, n, _MINUS, _GONE, _TERM, _LOST)
        n = _plan_step(steps, n, _COPY, _AFTER, _AFTER, _TOTAL)
    return n


@njit
def _plan_end(steps, pairwise, depth):
    """Plan the last steps, which leave the result in the row of the total."""
    n = 0
    if pairwise:  # the parts without a neighbour, the shortest first
        for level in range(_DEPTH):
            if (depth >> level) & 1:
                kind = _PLUS if n else _COPY
                n = _plan_step(steps, n, kind, _LEVELS + level, _TOTAL, _TOTAL)
    return n


@njit(forceinline=True)
def _follow(steps, count, rows, fresh, index, rule):
    """Execute the steps of a plan on the rows of the workspace.

    Sums go to `fresh` first, as in `_in_sequence`.
    """
    for n in range(count):
        kind = steps[n, 0]
        x = rows[steps[n, 1]]
        y = rows[steps[n, 2]]
        out = rows[steps[n, 3]]
        if kind <= _MINUS:
            sign = 1.0 if kind == _PLUS else -1.0
            _add(x, y, sign, fresh, index, _salt(n), rule)
            out[:] = fresh
        else:
            out[:] = x


@cache
def _loop_for(
    mode: int, special_cases: bool, sequential: bool, alone: bool
) -> Callable[..., None]:
    """Make a loop that writes a @ b to `out`, and the running sums of a single row to `trace`.

    `alone`: b has one column. numba leaves the other branch out, which halves the seconds that
    the first sum of a learner takes to compile.
    """

    def in_sequence(a, b, out, trace, numbers, of_product, keys, plan, row):
        _, block, rounded = plan
        rule = mode, special_cases, _unpack(numbers), keys[0]
        product = mode, special_cases, _unpack(of_product), keys[1]
        depth, lanes = b.shape
        for i in range(a.shape[0]):
            index = (row + i) * (depth + 1) * lanes
            rest = out[i], trace, index, rule, product
            if alone:
                _one_in_sequence(a[i], b, block, rounded, *rest)
            else:
                _in_sequence(a[i], b, block, rounded, *rest)

    def planned(a, b, out, trace, numbers, of_product, keys, plan, row):
        pairwise, _, rounded = plan
        rule = mode, special_cases, _unpack(numbers), keys[0]
        product = mode, special_cases, _unpack(of_product), keys[1]
        depth, lanes = b.shape
        steps = np.empty((_DEPTH + 8, 4), np.int64)
        rows = np.empty((_LEVELS + _DEPTH, lanes))
        fresh = np.empty(lanes)
        nothing = 0.0 if mode == _TOWARD_NEGATIVE else -0.0
        for i in range(a.shape[0]):
            rows[:_LEVELS] = nothing
            rows[_LOST] = 0.0
            for k in range(depth + 1):
                at = ((row + i) * (depth + 1) + k) * lanes
                if k < depth:
                    _multiply(a[i, k], b[k], rows[_TERM], rounded, at, product)
                    count = _plan_term(steps, pairwise, k)
                else:
                    count = _plan_end(steps, pairwise, depth)
                _follow(steps, count, rows, fresh, at, rule)
                if trace.size and k < depth:
                    trace[k] = rows[_TOTAL]
            out[i] = rows[_TOTAL]

    sums = types.float64[:, ::1]
    keys = types.int64[:, :, ::1]
    plan = types.Tuple((types.boolean, types.int64, types.boolean))
    signature = _MATRIX, _MATRIX, sums, sums, _FACTS, _FACTS, keys, plan, types.int64
    return compiled(signature, in_sequence if sequential else planned, _EDITION)


def run(
    a: np.ndarray,
    b: np.ndarray,
    *,
    order: str,
    block: int,
    addition: LoopOptions,
    product: LoopOptions | None,
    traced: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Multiply matrices with every addition rounded, on several threads if there are many rows.

    Args:
        a: float64, shape (M, K), contiguous, values of FP32.
        b: float64, shape (K, N), contiguous, values of FP32.
        order: of the K terms: "pairwise", "kahan", or else one after the other.
        block: for the latter, the number of terms summed before they are added to the total.
        addition: how sums are rounded.
        product: how products are rounded, in the same mode; None if they enter the sums exactly.
        traced: whether to keep the running sums; only for M = 1.

    Returns:
        The sums, shape (M, N), and the running sums, shape (K, N), or (0, N) if not traced.
    """
    (rows, depth), lanes = a.shape, b.shape[1]
    out = np.zeros((rows, lanes))
    trace = np.empty((depth if traced else 0, lanes))
    if depth == 0:
        return out, trace
    steps = addition, product or addition
    special_cases = any(step["parameters"].special_cases for step in steps)
    sequential = order not in ("pairwise", "kahan")
    alone = sequential and lanes == 1
    loop = _loop_for(int(addition["mode"]), special_cases, sequential, alone)
    runs = range((rows * (depth + 1) * lanes >> 32) + 1)
    sources = [step["keys"] or (lambda run: (0, 0)) for step in steps]
    keys = np.array([[source(run) for run in runs] for source in sources])
    numbers = [step["parameters"].numbers for step in steps]
    plan = (order == "pairwise", block, product is not None)
    cost = depth * lanes

    def work(begin: int, end: int) -> None:
        # Both ends round down: no row is skipped.
        first = begin // cost
        last = end // cost
        some = (a[first:last], b, out[first:last], trace)
        loop(*some, *numbers, keys, plan, first)

    parallel(work, rows * cost, wrap=rows * cost)
    return out, trace
