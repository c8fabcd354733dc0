"""Recordings of measurements on other machines: JSON files with their origin and a checksum.

`data/record.py` writes them on a machine with a GPU; lessons read them on machines without.
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
from mplab.numbers.checks import one_of, quoted

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
"""The parts, in order of importance, and the fields of a complete recording of each. The audit is
no longer recorded, but can still be read."""

_PROVENANCE: dict[str, type] = {
    **{"device": str, "cuda": bool, "driver": str, "torch": str, "numpy": str, "python": str},
    **{"mplab": str, "date": str, "command": str, "seeds": list, "rehearsal": bool},
    "seconds": float,
}


@dataclass(frozen=True)
class Recording:
    """The measurements of one part of `data/record.py` on one device.

    Attributes:
        part: one of `SCHEMA`.
        provenance: device, driver, versions, date, command and seeds.
        data: the measurements by the part's schema; an unfinished recording has some of them.
        complete: whether the part finished.
        problem: why it did not finish, in words; empty if it did.
    """

    part: str
    provenance: dict[str, Any]
    data: dict[str, Any]
    complete: bool
    problem: str = ""

    @property
    def name(self) -> str:
        """The part and the device: the file's name without its extension."""
        device = re.sub(r"[^a-z0-9]+", "-", self.provenance["device"].lower()).strip("-")
        return f"{self.part}-{device}"

    @property
    def words(self) -> str:
        """Where and when this was recorded, for a caption."""
        where, day = self.provenance["device"], self.provenance["date"][:10]
        rehearsed = ", a rehearsal with tiny sizes" if self.provenance["rehearsal"] else ""
        unfinished = "" if self.complete else ", unfinished"
        return f"recorded on {where} on {day}{rehearsed}{unfinished}"

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the file atomically, and return its path.

        Raises:
            ValueError: a field does not fit the part's schema, or JSON cannot hold it.
        """
        tree = {
            "mplab recording": VERSION,
            "part": self.part,
            "provenance": self.provenance,
            "data": _spelled(self.data),
            "complete": self.complete,
            "problem": self.problem,
        }
        _check("Recording.save: the recording", tree)
        path = Path(folder) / f"{self.name}.json"
        replace_file(path, (_text(tree | {"sha256": _digest(tree)}) + "\n").encode())
        return path


def _text(tree: Any, *, sort: bool = False) -> str:
    return json.dumps(tree, sort_keys=sort, allow_nan=False, separators=(",", ":"))


def _digest(tree: Mapping[str, Any]) -> str:
    """Hash the contents whatever their order; the file keeps the order of layers and models."""
    return hashlib.sha256(_text(tree, sort=True).encode()).hexdigest()


def _spelled(tree: Any) -> Any:
    """Convert for JSON: infinity and NaN to words, floats to nine digits."""
    if isinstance(tree, float):
        return float(f"{tree:.9g}") if math.isfinite(tree) else str(tree)
    if isinstance(tree, dict):
        return {str(key): _spelled(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_spelled(value) for value in tree]
    return tree


def _check(what: str, tree: Any) -> None:
    """Raise ValueError where a document does not fit the schema of this version."""
    try:
        if not isinstance(tree, dict) or tree.get("mplab recording") != VERSION:
            raise ValueError(f"no recording of version {VERSION}")
        if tree.get("part") not in SCHEMA:
            raise ValueError(f"part {tree.get('part')!r}")
        of_all = {"mplab recording": int, "part": str, "provenance": dict, "data": dict}
        _fields("the file", tree, of_all | {"complete": bool, "problem": str}, whole=True)
        _fields("provenance", tree["provenance"], _PROVENANCE, whole=True)
        _fields("data", tree["data"], SCHEMA[tree["part"]], whole=tree["complete"])
    except ValueError as error:
        raise ValueError(
            f"{what} must be a recording of version {VERSION}; got {error}. Record it again."
        ) from error


def _fields(name: str, found: dict[str, Any], wanted: dict[str, type], *, whole: bool) -> None:
    strange = set(found) ^ set(wanted) if whole else set(found) - set(wanted)
    if strange:
        raise ValueError(f"missing or unknown fields in {name}: {', '.join(sorted(strange))}")
    for key, value in found.items():
        if type(value) is not wanted[key] and not (wanted[key] is float and type(value) is int):
            raise ValueError(f"{name}.{key} of type {type(value).__name__}")


# Reading ---------------------------------------------------------------------------------
Where = str | os.PathLike[str] | None


def folder() -> Path:
    """The folder of the recordings that came with the package."""
    return course_folder("data") / "recordings"


def _paths(part: str, where: Where) -> list[Path]:
    """The files of the recordings of one part."""
    return sorted((folder() if where is None else Path(where)).glob(f"{part}-*.json"))


def load(name: str, *, where: Where = None) -> Recording:
    """Load a recording, and check its schema and its checksum.

    Args:
        name: part and device, such as "casts-nvidia-h200", or the part alone if it has only one
            recording.
        where: a folder; None for the recordings that came with the package.

    Raises:
        ValueError: no recording, or several, of this name; the file was edited, or is not a
            recording of this version.
    """
    part = name.partition("-")[0]
    paths = [path for path in _paths(part, where) if name in (part, path.stem)]
    if part not in SCHEMA or len(paths) != 1:
        raise ValueError(
            f"load: name must be that of one recording; got {quoted(name)}, of which there are "
            f"{len(paths)}. {_how_to_record(part)}"
        )
    (path,) = paths
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        tree = None
    digest = tree.pop("sha256", None) if isinstance(tree, dict) else None
    _check(f"load: {path.name}", tree)
    if digest != _digest(tree):
        raise ValueError(
            f"load: {path.name} must be as it was recorded; got one that was changed since. "
            "Restore the file, or record it again."
        )
    return Recording(*(tree[key] for key in ("part", "provenance", "data", "complete", "problem")))


def first(part: str, *, where: Where = None) -> Recording | None:
    """Load the recording of a part that lessons show, or None if there is none.

    Complete recordings of a CUDA device come before others, and those before rehearsals.

    Args:
        part: one of `SCHEMA`.
        where: a folder; None for the recordings that came with the package.

    Raises:
        ValueError: there is no such part.
    """
    one_of("first", "part", part, SCHEMA)

    def rank(recording: Recording) -> tuple[bool, ...]:
        about = recording.provenance
        return bool(about["rehearsal"]), not about["cuda"], not recording.complete

    found = (load(path.stem, where=where) for path in _paths(part, where))
    return min(found, key=rank, default=None)


def _how_to_record(part: str) -> str:
    which = f"--only {part}" if part in SCHEMA else "--all"
    return (
        "To make one, in a checkout on a machine with a CUDA device: "
        f"python data/record.py {which} --out data/recordings."
    )


def caption(part: str, *, where: Where = None) -> str:
    """Caption for a lesson: where the recording of a part comes from, or how to make one.

    Args:
        part: one of `SCHEMA`.
        where: a folder; None for the recordings that came with the package.

    Raises:
        ValueError: there is no such part.
    """
    one_of("caption", "part", part, SCHEMA)
    paths = _paths(part, where)
    if not paths:
        return f"There is no recording of {part} yet.\n{_how_to_record(part)}"
    return "; ".join(load(path.stem, where=where).words for path in paths)
