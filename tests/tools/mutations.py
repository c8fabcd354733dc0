"""Print which wrong answers the checks let pass: `python tests/tools/mutations.py [NAME ...]`.

Every right answer to an exercise is changed in one place: a constant, a comparison, a format, a
rounding, an operator, an order, a condition. The exercise's check must tell each such mutant from
the answer; in an assignment that is the notebook's check with the hidden cases of one student.
Mutants that are right as well stand in `equivalents.txt`, with the reason. A mutant has a process
of its own, and four times the seconds of the answer. NAME is an exercise (`kahan_sum`, `a3 stall`)
or how it begins; `--sample 9` takes at most nine mutants of each answer.
"""

import os

# Only then a process can fork.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import ast
import math
import random
import re
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "support"))

import corpus
import numpy as np
import torch

import mplab
from mplab.course import EXERCISES, equal
from mplab.course.exercises.exercise import _without_torch
from mplab.course.grading.exercises import _read_outcome
from mplab.course.grading.serialization import encode_value

STUDENT = 1
"""The seed of the hidden cases."""

# What a node becomes ---------------------------------------------------------------------
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.FloorDiv: ast.Div, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip
COMMUTE = ast.Add | ast.Mult | ast.BitAnd | ast.BitOr | ast.BitXor
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq, ast.LtE, ast.GtE), ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
NAMES = {"round": ["int"]}
"""What can stand for a name, be it alone or after a point."""
for _row in (
    "min max", "minimum maximum", "amin amax", "argmin argmax", "any all", "floor ceil trunc",
    "FP8_E4M3 FP8_E5M2", "FP16 BF16", "FP32 TF32", "float16 bfloat16", "float64 float32 float16",
    "float8_e4m3fn float8_e5m2", "TOWARD_ZERO TOWARD_NEGATIVE TOWARD_POSITIVE TIES_TO_EVEN",
    "TIES_TO_EVEN TIES_TO_AWAY", "SATURATE IEEE", "next_up next_down", "emin emax", "isnan isinf",
    "max_finite min_normal", "min_subnormal min_normal", "rint floor", "inf nan",
):  # fmt: skip
    for _name in _row.split():
        NAMES.setdefault(_name, []).extend(set(_row.split()) - {_name})
NAMES = {name: sorted(set(others)) for name, others in NAMES.items()}


def number(value: float) -> ast.expr:
    """A number as it is written: a negative one with its sign before it."""
    negative = math.copysign(1, value) < 0
    constant = ast.Constant(-value if negative else value)
    return ast.UnaryOp(ast.USub(), constant) if negative else constant


def of_values(node: ast.AST) -> Iterator[ast.AST]:
    """Other constants and names, no sign, no magnitude."""
    match node:
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            changed = (value + 1, value - 1, -value, 2 * value)
            yield from (
                number(other) for other in changed if repr(other) != repr(value)
            )
        case ast.Name(name, ast.Load()):
            yield from (ast.Name(other, ast.Load()) for other in NAMES.get(name, ()))
        case ast.Attribute(value, "T", ast.Load()):
            yield value
        case ast.Attribute(value, name, ast.Load()):
            yield from (
                ast.Attribute(value, other, ast.Load()) for other in NAMES.get(name, ())
            )
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), value):
            yield value
        case ast.Call(ast.Name("abs") | ast.Attribute(_, "abs"), [value], []):
            yield value


def of_operations(node: ast.AST) -> Iterator[ast.AST]:
    """Other operators and comparisons, other orders of operands, slices without an end."""
    match node:
        case ast.BinOp(left, operator, right):
            if other := OPERATORS.get(type(operator)):
                yield ast.BinOp(left, other(), right)
            if not isinstance(operator, COMMUTE):
                yield ast.BinOp(right, operator, left)
        case ast.AugAssign(target, operator, value) if type(operator) in OPERATORS:
            yield ast.AugAssign(target, OPERATORS[type(operator)](), value)
        case ast.Compare(left, operators, values):
            for i, operator in enumerate(operators):
                for other in COMPARISONS[type(operator)]:
                    yield ast.Compare(
                        left, [*operators[:i], other(), *operators[i + 1 :]], values
                    )
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(
                ast.Or() if isinstance(operator, ast.And) else ast.And(), values
            )
            for i in range(len(values)):
                yield ast.BoolOp(operator, [*values[:i], *values[i + 1 :]])
        case ast.Call(function, [first, second, *more], keywords):
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name not in ("min", "max", "minimum", "maximum", "add"):
                yield ast.Call(function, [second, first, *more], keywords)
        case ast.Slice(lower, upper, step):
            yield from [ast.Slice(None, upper, step)] if lower else []
            yield from [ast.Slice(lower, None, step)] if upper else []


def of_control(node: ast.AST) -> Iterator[ast.AST]:
    """Conditions that always or never hold, and loops from the end."""
    match node:
        case ast.If(_, body, rest):
            yield from (
                ast.If(ast.Constant(held), body, rest) for held in (True, False)
            )
        case ast.IfExp(_, body, rest):
            yield from (body, rest)
        case ast.While(_, body, rest):
            yield ast.While(ast.Constant(False), body, rest)
        case ast.comprehension(target, items, [_, *more], asynchronous):
            yield ast.comprehension(target, items, more, asynchronous)
        case ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.For(target, items, body, rest):
            backward = ast.parse(
                f"reversed(list({ast.unparse(items)}))", mode="eval"
            ).body
            yield ast.For(target, backward, body, rest, lineno=0)
        case ast.ListComp(_, [_]):
            yield ast.parse(f"{ast.unparse(node)}[::-1]", mode="eval").body


def mutants(text: str) -> dict[str, str]:
    """The texts with one change each, by what was changed: `x = [a → b] + c`."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    whole, found, texts = ast.unparse(tree), {}, set()
    for parent in list(ast.walk(tree)):
        for name, value in ast.iter_fields(parent):
            row = value if isinstance(value, list) else [value]
            for i, node in enumerate(row):
                if getattr(parent, "arg", "") == "strict":
                    continue  # what zip does with unequal lengths, which no case has
                for change in (of_values, of_operations, of_control):
                    for other in change(node):
                        new = [*row[:i], other, *row[i + 1 :]]
                        setattr(parent, name, new if isinstance(value, list) else other)
                        changed = ast.unparse(tree)
                        setattr(parent, name, value)
                        if changed not in texts | {whole}:
                            texts.add(changed)
                            found[described(whole, changed, found)] = changed
    return found


def described(whole: str, changed: str, taken: dict[str, str]) -> str:
    """The first line that differs, with what differs in it as `[before → after]`."""
    pairs = zip(whole.splitlines(), changed.splitlines(), strict=False)
    before, after = next((a.strip(), b.strip()) for a, b in pairs if a != b)

    a, b = (re.findall(r"[\w.<>=!]+|.", line) for line in (before, after))
    start = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
        min(len(a), len(b)),
    )
    backward = zip(a[start:][::-1], b[start:][::-1], strict=False)
    end = next(
        (i for i, (x, y) in enumerate(backward) if x != y), min(len(a), len(b)) - start
    )
    parts = (
        a[:start],
        a[start : len(a) - end],
        b[start : len(b) - end],
        a[len(a) - end :],
    )
    name = "{}[{} → {}]{}".format(*map("".join, parts))
    same = sum(other.partition(" #")[0] == name for other in taken)
    return f"{name} #{same + 1}" if same else name


# Right answers ---------------------------------------------------------------------------
class Subject(NamedTuple):
    """An exercise: the texts of its right answers, and what makes the check of a text."""

    name: str
    texts: list[str]
    check: Callable[[], Callable[[str], bool]]


def reached(tree: ast.Module, answer: ast.expr) -> str:
    """The imports of a module, what an expression in it needs, and the expression."""
    made = {
        getattr(name, "id", getattr(name, "name", "")): statement
        for statement in tree.body
        for name in getattr(statement, "targets", [statement])
    }
    needed, new = {}, {"": answer}
    while new:
        needed |= new
        used = {
            n.id
            for part in new.values()
            for n in ast.walk(part)
            if isinstance(n, ast.Name)
        }
        new = {name: made[name] for name in used & made.keys() - needed.keys()}
    kept = [s for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom)]
    kept += [s for s in tree.body if s in needed.values()]
    last = ast.Assign([ast.Name("ANSWER", ast.Store())], answer, lineno=0)
    return ast.unparse(ast.Module([*kept, last], []))


def subjects() -> Iterator[Subject]:
    """All exercises; of a value, how it is computed is not checked, and one text is enough."""
    for path in sorted((corpus.TESTS / "course" / "answers").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        [right] = [s.value for s in tree.body if ast.unparse(s).startswith("RIGHT = ")]
        for key, listed in zip(right.keys, right.values, strict=True):
            answers = (
                listed.elts
                if callable(EXERCISES[key.value].answer)
                else listed.elts[:1]
            )
            texts = [reached(tree, answer) for answer in answers]
            yield Subject(key.value, texts, partial(lesson_check, key.value))
    for name in corpus.NAMES:
        for exercise, others in corpus.answers(name).RIGHT.items():
            texts = [corpus.cells(name)[f"{exercise}-answer"], *others]
            texts = texts if "def " in texts[0] else texts[:1]
            yield Subject(
                f"{name} {exercise}", texts, partial(assignment_check, name, exercise)
            )


def lesson_check(name: str) -> Callable[[str], bool]:
    exercise = EXERCISES[name]
    wanted = exercise.outcomes(exercise.answer)
    single = [replace(exercise, cases=[case]) for case in exercise.cases][: len(wanted)]

    def passes(text: str) -> bool:
        space = {**vars(mplab), "np": np, "math": math}
        exec(text, space)
        given = (_without_torch(one.outcomes(space["ANSWER"])[0]) for one in single)
        return all(equal(*pair, exercise) for pair in zip(given, wanted, strict=True))

    return passes


def assignment_check(name: str, exercise: str) -> Callable[[str], bool]:
    exec(corpus.assignment(name).warm, {})
    graded = corpus.assignment(name).graded[exercise]
    hidden = [case for part in graded.parts for case in graded.cases(part, STUDENT)]
    known = replace(graded.exercise, cases=[*graded.exercise.cases, *hidden])
    wanted = known.outcomes(known.answer)

    def passes(text: str) -> bool:
        given = corpus.answer(name, exercise, text)
        if not callable(known.answer):
            return equal(given, known.answer, known)
        for case, outcome in zip(known.cases, wanted, strict=True):
            asked = encode_value(case if isinstance(case, tuple) else (case,))
            [reply] = corpus.Answering(given).ask("", [asked])["values"]
            if not equal(_read_outcome(reply), outcome, known):
                return False
        return True

    return passes


# Trials ----------------------------------------------------------------------------------
def tried(
    passes: Callable[[str], bool], text: str, seconds: float
) -> tuple[int, float]:
    """0 if a text passes in a process of its own, and the CPU seconds that it took."""
    if not (child := os.fork()):
        failed = True
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            # Ends it, in compiled code, too.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            warnings.simplefilter("ignore")
            failed = not passes(text)
        finally:
            os._exit(failed)
    _, status, usage = os.wait4(child, 0)
    return status, usage.ru_utime + usage.ru_stime


@dataclass
class Row:
    """What became of the mutants of an exercise."""

    name: str
    killed: int = 0
    equivalent: int = 0
    passed: list[str] = field(default_factory=list)
    """Those that pass, and are not named as equivalent."""
    stale: list[str] = field(default_factory=list)
    """Those named as equivalent that are killed, or are no mutants at all."""


def row_of(subject: Subject, known: set[str], sample: int | None = None) -> Row:
    """Let the mutants of an exercise, or a sample for each answer, meet its check."""
    row, passes, tables = (
        Row(subject.name),
        subject.check(),
        [*map(mutants, subject.texts)],
    )
    there = Counter(name for table in tables for name in table)
    for text, found in zip(subject.texts, tables, strict=True):
        failed, seconds = tried(passes, text, 60)
        if failed:
            raise SystemExit(f"{subject.name}: the check fails a right answer:\n{text}")
        chosen = random.Random(text).sample(
            list(found), min(sample or len(found), len(found))
        )
        for name in chosen:
            status, _ = tried(passes, found[name], 0.3 + 4 * seconds)
            row.killed += status != 0
            row.equivalent += status == 0 and name in known
            row.passed += [name] if status == 0 and name not in known else []
            wrong = (
                os.WIFEXITED(status) and status and name in known and there[name] == 1
            )
            row.stale += [name] if wrong else []
    row.stale += known - there.keys()
    return row


def equivalents() -> dict[str, set[str]]:
    """The mutants that are right as well, by exercise."""
    path = Path(__file__).with_name("equivalents.txt")
    found: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            exercise, _, name = line.strip().partition(": ")
            found.setdefault(exercise, set()).add(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sample", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = equivalents()
    rows = []
    for subject in subjects():
        if given.names and not subject.name.startswith(tuple(given.names)):
            continue
        row = row_of(subject, known.get(subject.name, set()), given.sample)
        print(
            f"{row.name}: {row.killed} killed, {row.equivalent} equivalent,"
            f" {len(row.passed)} pass",
            flush=True,
        )
        rows.append(row)
    if not rows:
        parser.error("no exercise of mplab begins so")
    print(f"all: {sum(row.killed for row in rows)} killed")
    for row in rows:
        for name in row.passed:
            print(f"{row.name} lets pass: {name}")
        for name in row.stale:
            print(f"{row.name}, named as equivalent, and is not: {name}")
    sys.exit(any(row.passed or row.stale for row in rows))


if __name__ == "__main__":
    main()
