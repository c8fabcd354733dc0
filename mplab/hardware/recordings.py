"""Recordings of what a machine answered: small files with where they come from and a checksum.

`mplab record` writes them on a machine with a GPU; lessons read them on machines without.
A file that was edited is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mplab.course.files import course_folder, replace_file
from mplab.numbers.checks import one_of, quoted, text
from mplab.simulation.checks import path_of

VERSION = 1

SCHEMA: dict[str, dict[str, type]] = {
    "casts": {"formats": dict, "overflow": dict, "midpoints": dict, "compiled": dict},
    "tensorcores": {
        **{"probes": list, "sweeps": list, "samples": dict, "promotion": dict, "blocks": dict},
        "kernels": dict,
    },
    "training": {"runs": list},
    "larger": {"parameters": int, "runs": list},
    "speed": {"copy": dict, "matmul": list, "round_to": dict, "steps": list},
    "exponents": {"runs": list},
    "audit": {"rows": list, "refused": list},
}
"""The parts, in order of importance, and what a complete recording of each holds."""

_PROVENANCE: dict[str, type] = {
    **{"device": str, "cuda": bool, "driver": str, "torch": str, "numpy": str, "python": str},
    **{"mplab": str, "date": str, "command": str, "seeds": list, "rehearsal": bool},
    "seconds": float,
}

_NAME = re.compile(r"[a-z0-9-]+")


@dataclass(frozen=True)
class Recording:
    """What one part of `mplab record` measured.

    Attributes:
        part: one of `SCHEMA`.
        provenance: device, driver, versions, date, command and seeds.
        data: by the schema of the part; of an unfinished recording as far as it got.
        complete: whether the part came to its end.
        problem: why not, in words; empty if it did.
    """

    part: str
    provenance: dict[str, Any]
    data: dict[str, Any]
    complete: bool
    problem: str = ""

    @property
    def name(self) -> str:
        """The part and the device, as the file is called."""
        device = re.sub(r"[^a-z0-9]+", "-", self.provenance["device"].lower()).strip("-")
        return f"{self.part}-{device}"

    @property
    def words(self) -> str:
        """Where this comes from, for a caption."""
        where, day = self.provenance["device"], self.provenance["date"][:10]
        rehearsed = ", a rehearsal with tiny sizes" if self.provenance["rehearsal"] else ""
        unfinished = "" if self.complete else ", unfinished"
        return f"recorded on {where} on {day}{rehearsed}{unfinished}"

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the file, whole or not at all, and return its path.

        Raises:
            OSError: the file cannot be written.
            TypeError: `folder` is no path.
            ValueError: a field does not fit the schema of the part, or JSON does not have it.
        """
        place = path_of("Recording.save", "folder", folder, "folder")
        try:
            tree = {
                "mplab recording": VERSION,
                "part": self.part,
                "provenance": self.provenance,
                "data": _spelled(self.data),
                "complete": self.complete,
                "problem": self.problem,
            }
            _check(tree)
            content = _text(tree | {"sha256": _digest(tree)}) + "\n"
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"Recording.save: part, provenance, data, complete and problem must fit the "
                f"schema; got a recording where {error}. Correct it."
            ) from error
        path = place / f"{self.name}.json"
        replace_file(path, content.encode())
        return path


def _text(tree: Any, *, sort: bool = False) -> str:
    return json.dumps(tree, sort_keys=sort, allow_nan=False, separators=(",", ":"))


def _digest(tree: Mapping[str, Any]) -> str:
    """Of the contents, whatever their order; the file keeps the order of layers and models."""
    return hashlib.sha256(_text(tree, sort=True).encode()).hexdigest()


def _spelled(tree: Any) -> Any:
    """Infinity and NaN as words, floats to nine digits."""
    if isinstance(tree, float):
        return float(f"{tree:.9g}") if math.isfinite(tree) else str(tree)
    if isinstance(tree, dict):
        return {str(key): _spelled(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_spelled(value) for value in tree]
    return tree


def _check(tree: Any) -> None:
    """Raise ValueError where a document is no recording of this version."""
    if not isinstance(tree, dict) or tree.get("mplab recording") != VERSION:
        raise ValueError(f"no recording of version {VERSION}")
    part, data = tree.get("part"), tree.get("data")
    if part not in SCHEMA:
        raise ValueError(f"part is {part!r}, none of {', '.join(SCHEMA)}")
    _check_fields("provenance", tree.get("provenance"), _PROVENANCE, whole=True)
    for key, kind in (("complete", bool), ("problem", str)):
        if type(tree.get(key)) is not kind:
            raise ValueError(f"{key} is {tree.get(key)!r}")
    _check_fields("data", data, SCHEMA[part], whole=tree["complete"])


def _check_fields(name: str, found: Any, wanted: dict[str, type], *, whole: bool) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{name} is {type(found).__name__}, not an object")
    strange = set(found) ^ set(wanted) if whole else set(found) - set(wanted)
    if strange:
        raise ValueError(f"{name} has missing or unknown fields: {', '.join(sorted(strange))}")
    for key, value in found.items():
        if type(value) is not wanted[key] and not (wanted[key] is float and type(value) is int):
            raise ValueError(f"{name}.{key} is {type(value).__name__}, not {wanted[key].__name__}")


# Reading ---------------------------------------------------------------------------------
def folder() -> Path:
    """Where the recordings that came with the package lie."""
    return course_folder("data") / "recordings"


def _place(function: str, where: str | os.PathLike[str] | None) -> Path:
    """The folder that was asked for."""
    return folder() if where is None else path_of(function, "where", where, "folder")


def available(*, where: str | os.PathLike[str] | None = None) -> list[str]:
    """The names of the recordings that can be loaded.

    Args:
        where: a folder; None for the recordings that came with the package.

    Raises:
        TypeError: `where` is no path.
    """
    paths = _place("available", where)
    return sorted(path.stem for path in paths.glob("*.json"))


def load(name: str, *, where: str | os.PathLike[str] | None = None) -> Recording:
    """Load a recording, checked against its schema and its checksum.

    Args:
        name: as `available` has it, or a part alone where there is one recording of it.
        where: a folder; None for the recordings that came with the package.

    Raises:
        TypeError: `name` is no string, or `where` no path.
        ValueError: there is none of this name, or several; the file was edited, or is no
            recording of this version.
    """
    place = _place("load", where)
    text("load", "name", name)
    names = available(where=place)
    found = [n for n in names if n == name] or _names(name, place)
    if len(found) != 1 or not _NAME.fullmatch(name):
        raise ValueError(
            f"load: name must be one recording of {', '.join(names) or '(none)'}; got "
            f"{quoted(name)}. {how_to_record(name)}"
        )
    path = place / f"{found[0]}.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        _check({key: tree[key] for key in tree if key != "sha256"})
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"load: {path.name} must be a recording of version {VERSION}; got {error}. Record "
            "it again."
        ) from error
    digest = tree.pop("sha256", None)
    if set(tree) != {"mplab recording", "part", "provenance", "data", "complete", "problem"}:
        raise ValueError(f"load: {path.name} must have no fields of its own; got {sorted(tree)}.")
    if digest != _digest(tree):
        raise ValueError(
            f"load: {path.name} must be as it was recorded; got one that was changed since. "
            "Restore the file, or record it again."
        )
    part, provenance, data = tree["part"], tree["provenance"], tree["data"]
    return Recording(part, provenance, data, tree["complete"], tree["problem"])


def first(part: str, *, where: str | os.PathLike[str] | None = None) -> Recording | None:
    """The recording of a part that lessons show, or None where there is none.

    Complete ones of a CUDA device come before others, and those before rehearsals.

    Args:
        part: one of `SCHEMA`.
        where: a folder; None for the recordings that came with the package.

    Raises:
        TypeError: `where` is no path.
        ValueError: `part` is none.
    """
    one_of("first", "part", part, SCHEMA)
    where = _place("first", where)

    def rank(recording: Recording) -> tuple[bool, ...]:
        about = recording.provenance
        return bool(about["rehearsal"]), not about["cuda"], not recording.complete

    found = (load(name, where=where) for name in _names(part, where))
    return min(found, key=rank, default=None)


def _names(part: str, where: str | os.PathLike[str] | None) -> list[str]:
    """The recordings of a part."""
    return [name for name in available(where=where) if name.startswith(f"{part}-")]


def how_to_record(part: str = "") -> str:
    """What to do where there is no recording, in words.

    Examples:
        >>> how_to_record("casts")
        'On a machine with a CUDA device: mplab record --only casts --out data/recordings.'
    """
    part = text("how_to_record", "part", part).partition("-")[0]
    which = f"--only {part}" if part in SCHEMA else "--all"
    return f"On a machine with a CUDA device: mplab record {which} --out data/recordings."


def caption(part: str, *, where: str | os.PathLike[str] | None = None) -> str:
    """Words for a lesson: where the recording of a part comes from, or how to make one.

    Args:
        part: one of `SCHEMA`.
        where: a folder; None for the recordings that came with the package.

    Raises:
        TypeError: `where` is no path.
        ValueError: `part` is none.
    """
    one_of("caption", "part", part, SCHEMA)
    where = _place("caption", where)
    names = _names(part, where)
    if not names:
        return f"There is no recording of {part} yet.\n{how_to_record(part)}"
    return "; ".join(load(name, where=where).words for name in names)
