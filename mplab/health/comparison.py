"""Find the first difference between two runs from their digests."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mplab.common.tables import Table
from mplab.common.words import plural
from mplab.health.digest import BITS, SAMPLED, VERSION, Digest, Record, Site
from mplab.numbers.checks import quoted

_SHOWN = 8
"""The number of differences that a table lists."""


class Difference(NamedTuple):
    """A tensor whose bits differ between two runs.

    Attributes:
        step: the step of the run, from 0.
        site: the place, as in run_a.
        ulps: the distance in units in the last place of the dtype: the largest among the sampled
            numbers, or where these are equal, the difference of the sums of all. For integers,
            the difference itself. Infinity where one run has a NaN or an infinity and the other
            has none, NaN where both have others, and where dtype or shape differ.
        moved: how many of the sampled numbers differ.
        other: dtype and shape in run_b, where they differ; else empty.
    """

    step: int
    site: Site
    ulps: float
    moved: int
    other: str

    @property
    def apart(self) -> str:
        """The size of the difference, in words."""
        site = self.site
        if self.other:
            return f"{site.dtype} of {site.shape} against {self.other}"
        if self.ulps == math.inf:
            return "a number that is not finite against one that is"
        if math.isnan(self.ulps):
            return "numbers that are not finite, of other bits"
        unit = "ulp" if getattr(torch, site.dtype).is_floating_point else "in integers"
        size = math.prod(site.shape)
        if self.moved:
            sampled = min(SAMPLED, size)
            return (
                f"{self.ulps:,.0f} {unit} at most in the {self.moved} of {sampled} sampled "
                f"numbers that differ, of {size:,}"
            )
        free = "" if self.ulps else ", as where places or signs change"
        return (
            f"{self.ulps:,.0f} {unit} in the sum over {size:,} numbers{free}; those sampled are "
            f"equal"
        )


@dataclass(frozen=True, repr=False)
class Comparison:
    """The differences between two runs, from the first one on.

    Attributes:
        differences: all differences in run_a's order; at the first one the runs part.
        before: the last place that was equal before the first difference, if any.
        compared: the number of digests that were compared.
        steps: the numbers of the steps that both runs have.
        notes: what one run has and the other lacks, in sentences.
    """

    differences: list[Difference]
    before: str
    compared: int
    steps: list[int]
    notes: list[str]

    @property
    def first(self) -> Difference | None:
        """The first difference; None if everything that both runs have is equal."""
        return self.differences[0] if self.differences else None

    @property
    def equal(self) -> bool:
        """Whether all digests are equal, and each run has every digest of the other."""
        return bool(self.compared) and not self.differences and not self.notes

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if not self.compared:
            return "The runs have nothing in common that could be compared."
        if self.first is not None:
            step = self.first.step
            site = self.first.site
            return f"The runs part in step {step}, {site.direction}: {site}."
        same = f"{self.compared:,} digests of {plural(len(self.steps), 'step')}"
        if self.notes:
            return f"No difference in what both runs have: {same}."
        return f"The runs do not differ: {same} are equal."

    def _tables(self) -> list[Table]:
        if self.first is None:
            return []
        count = len(self.differences)
        last = self.differences[-1].step
        pairs = (
            ("part by", self.first.apart),
            ("equal until", self.before or "nothing was equal before"),
            (
                "from then on",
                f"{count:,} of {self.compared:,} digests differ, from step {self.first.step} to "
                f"{last}",
            ),
        )
        head = ("step", "direction", "what", "apart by")
        rows = tuple(
            (str(d.step), d.site.direction, str(d.site), d.apart)
            for d in self.differences[:_SHOWN]
        )
        return [Table("", (), pairs), Table("The first differences", head, rows)]

    def __repr__(self) -> str:
        return "\n".join([self.verdict, *self.notes, *map(repr, self._tables())])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        tables = "".join(table._repr_html_() for table in self._tables())
        return f"<p><b>{escape(self.verdict)}</b></p>{notes}{tables}"


def compare(
    run_a: Digest | str | os.PathLike[str], run_b: Digest | str | os.PathLike[str]
) -> Comparison:
    """Find the first step, layer and direction in which two runs differ, and by how many ulps.

    Bits are compared: a NaN is equal to a NaN of the same bits, and −0 differs from +0. Tensors
    that only one run has are listed and not compared.

    Args:
        run_a: a digest, or the file of one; differences are listed in its order of execution.
        run_b: the other digest or file.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file holds no digest of this version.

    Exactness:
        Equal tensors are found equal. Of different ones, one in 2^31 may be taken for equal; those
        that differ in only one number never are.

    Examples:
        >>> model = torch.nn.Linear(2, 1)
        >>> with Digest(model, torch.optim.SGD(model.parameters(), lr=0.1)) as digest:
        ...     _ = model(torch.ones(1, 2))
        >>> compare(digest, digest).verdict
        'The runs have nothing in common that could be compared.'
    """
    a = _record("run_a", run_a)
    b = _record("run_b", run_b)
    steps = [n for n in a.steps if n in b.steps]
    notes = list(_notes(a, b, steps))
    differences: list[Difference] = []
    before = ""
    compared = 0
    for n in steps:
        theirs = {site.place: (site, row) for site, row in _rows(b, n)}
        for site, row in _rows(a, n):
            if site.place not in theirs:
                continue
            other, numbers = theirs[site.place]
            compared += 1
            if (site.dtype, site.shape) != (other.dtype, other.shape):
                words = f"{other.dtype} of {other.shape}"
                differences.append(Difference(n, site, math.nan, 0, words))
            elif not np.array_equal(row, numbers):
                differences.append(Difference(n, site, *_ulps(site, row, numbers), ""))
            elif not differences:
                before = f"step {n}, {site.direction}: {site}"
    return Comparison(differences, before, compared, steps, notes)


def _rows(record: Record, step: int) -> Iterator[tuple[Site, np.ndarray]]:
    ids, rows = record.steps[step]
    return zip((record.sites[i] for i in ids), rows, strict=True)


def _notes(a: Record, b: Record, steps: list[int]) -> Iterator[str]:
    """Sentences about what one run has and the other lacks."""
    if len(a.steps) != len(b.steps) or len(steps) < len(a.steps):
        yield (
            f"Other lengths: run_a has {_listed(list(a.steps))}, run_b {_listed(list(b.steps))}; "
            f"{len(steps)} in common."
        )
    for name, mine, theirs in (("run_a", a, b), ("run_b", b, a)):
        alone: list[tuple[int, Site]] = []
        for n in steps:
            places = {site.place for site, _ in _rows(theirs, n)}
            for site, _ in _rows(mine, n):
                resumed = n and site.direction == "start"
                if site.place not in places and not resumed:
                    alone.append((n, site))
        if alone:
            first, site = alone[0]
            yield (
                f"Other tensors: {len(alone)} digests are in {name} alone; the first: step "
                f"{first}, {site.direction}: {site}."
            )
        if mine.error:
            yield f"The watch of {name} met an error of its own and stopped: {mine.error}"


def _listed(steps: Sequence[int]) -> str:
    if len(steps) > 1:
        return f"{len(steps)} steps, {steps[0]} to {steps[-1]}"
    return "1 step" if steps else "no steps"


def _ulps(site: Site, a: np.ndarray, b: np.ndarray) -> tuple[float, int]:
    """How far two tensors are apart, and how many of their sampled numbers differ."""
    dtype = getattr(torch, site.dtype)
    width = 8 * dtype.itemsize
    if dtype.is_complex:  # the real and the imaginary part are numbers of their own
        width //= 2
    half = 1 << (width - 1)
    differ = a[2:] != b[2:]
    moved = int(differ.sum())
    if not moved:
        # compare the sums modulo half the range of codes, so that a changed sign does not count
        apart = (int(a[0]) - int(b[0]) + half // 2) % half - half // 2
        return float(abs(apart)), 0
    codes = [x[2:][differ] for x in (a, b)]
    if not dtype.is_floating_point:
        ordered = [x.tolist() for x in codes]
    else:
        bits = [torch.from_numpy(x).to(BITS[dtype.itemsize]) for x in codes]
        finite, theirs = (x.view(dtype).double().isfinite() for x in bits)
        if not torch.equal(finite, theirs):
            return math.inf, moved
        if not finite.all():
            return math.nan, moved
        # negative numbers in descending order of their codes, as integers below zero
        ordered = [[n if n >= 0 else n ^ (half - 1) for n in x.tolist()] for x in codes]
    return float(max(abs(m - n) for m, n in zip(*ordered, strict=True))), moved


# Files -------------------------------------------------------------------------------------
def _record(argument: str, run: Any) -> Record:
    """The record of a digest, or of a file of one."""
    if isinstance(run, Digest):
        return run.record
    content = Path(run).read_bytes()
    try:
        return _parsed(content)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"compare: {argument} must hold a digest of version {VERSION}; got {Path(run).name} "
            f"({type(error).__name__}: {str(error)[:200]}). Write it with Digest(…, path=…)."
        ) from error


def _parsed(content: bytes) -> Record:
    """Read the record from lines of JSON; raises errors of several kinds if it is none."""
    head, *lines = content.split(b"\n")
    if not lines or json.loads(head) != {"mplab digest": VERSION}:
        raise ValueError(f"no digest of version {VERSION}")
    record = Record()
    for line in lines[:-1]:  # the last may be incomplete, if a process was killed
        stored = json.loads(line)
        if "error" in stored:
            record.error = str(stored["error"])
            continue
        for *names, shape in stored["new"]:
            if [*map(type, names)] != [str, str, str, str, int, str]:
                raise ValueError(f"a site is {quoted(names)}")
            record.sites.append(Site._make((*names, tuple(map(int, shape)))))
        number = stored["step"]
        ids = stored["sites"]
        places = np.array(ids, np.int64)
        numbers = np.array(stored["rows"], np.int64)
        if numbers.shape != (len(ids), 2 + SAMPLED) or type(number) is not int:
            raise ValueError(
                f"step {quoted(number)} has numbers of shape {numbers.shape}"
            )
        if places.min() < 0 or places.max() >= len(record.sites):
            raise ValueError(f"step {number} has places that the file does not name")
        record.steps[number] = places, numbers
    if not all(
        isinstance(getattr(torch, s.dtype, None), torch.dtype) for s in record.sites
    ):
        raise ValueError("a dtype that torch does not have")
    return record
