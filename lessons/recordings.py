"""Recordings of measurements on other machines: JSON files with their origin and a checksum.

`data/record.py` writes them on a machine with a GPU; lessons read them on machines without.
A file that was edited is refused.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mplab.common.files import course_folder
from mplab.numbers.checks import one_of, quoted

FORM = 1

SCHEMA: dict[str, dict[str, type]] = {
    "casts": {"formats": dict, "overflow": dict, "midpoints": dict, "compiled": dict},
    "tensorcores": {
        **{"probes": list, "sweeps": list},
        **dict.fromkeys(("samples", "promotion", "blocks", "kernels"), dict),
    },
    "training": {"runs": list},
    "larger": {"parameters": int, "runs": list},
    "speed": {"copy": dict, "matmul": list, "round_to": dict, "steps": list},
    "kernels": dict.fromkeys(
        (
            "numbers",
            "refusals",
            "constants",
            "steps",
            "functions",
            "norms",
            "sums",
            "marked",
        ),
        dict,
    ),
    "exponents": {"runs": list},
    "audit": {"rows": list, "refused": list},
}
"""The parts, in order of importance, and the fields of a complete recording of each. The audit is
no longer recorded, but can still be read."""

_PROVENANCE: dict[str, type] = {
    **dict.fromkeys(
        ["device", "driver", "torch", "numpy", "python", "mplab", "date", "command"],
        str,
    ),
    **{"cuda": bool, "rehearsal": bool, "seeds": list, "seconds": float},
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
        device = re.sub(r"[^a-z0-9]+", "-", self.provenance["device"].lower()).strip(
            "-"
        )
        return f"{self.part}-{device}"

    @property
    def words(self) -> str:
        """Where and when this was recorded, for a caption."""
        rehearsed = (
            ", a rehearsal with tiny sizes" if self.provenance["rehearsal"] else ""
        )
        unfinished = "" if self.complete else ", unfinished"
        where = "{device} on {date:.10}".format_map(self.provenance)
        return f"recorded on {where}{rehearsed}{unfinished}"


def digest_of(tree: Mapping[str, Any]) -> str:
    """Hash the contents regardless of their order, which the file keeps for layers and models."""
    text = json.dumps(tree, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check(what: str, tree: Any) -> None:
    """Raise ValueError where a document does not fit the schema of this version."""
    try:
        if not isinstance(tree, dict) or tree.get("mplab recording") != FORM:
            raise ValueError(f"no recording of version {FORM}")
        if tree.get("part") not in SCHEMA:
            raise ValueError(f"part {tree.get('part')!r}")
        of_all = {"mplab recording": int, "part": str, "provenance": dict, "data": dict}
        _fields(
            "the file", tree, of_all | {"complete": bool, "problem": str}, whole=True
        )
        _fields("provenance", tree["provenance"], _PROVENANCE, whole=True)
        _fields("data", tree["data"], SCHEMA[tree["part"]], whole=tree["complete"])
    except ValueError as error:
        raise ValueError(
            f"{what} must be a recording of version {FORM}; got {error}. Record it again."
        ) from error


def _fields(
    name: str, found: dict[str, Any], wanted: dict[str, type], *, whole: bool
) -> None:
    strange = set(found) - set(wanted)
    if whole:
        strange |= set(wanted) - set(found)
    if strange:
        raise ValueError(
            f"missing or unknown fields in {name}: {', '.join(sorted(strange))}"
        )
    for key, value in found.items():
        allowed = (int, float) if wanted[key] is float else (wanted[key],)
        if type(value) not in allowed:
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
    sha256 = tree.pop("sha256", None) if isinstance(tree, dict) else None
    check(f"load: {path.name}", tree)
    if sha256 != digest_of(tree):
        raise ValueError(
            f"load: {path.name} must be as it was recorded; got one that was changed since. "
            "Restore the file, or record it again."
        )
    return Recording(
        *(tree[key] for key in ("part", "provenance", "data", "complete", "problem"))
    )


def first(part: str, *, where: Where = None) -> Recording | None:
    """Load the recording of a part that lessons show, or None if there is none.

    Rehearsals come last; of the rest CUDA devices come first, and of these complete recordings.

    Args:
        part: one of `SCHEMA`.
        where: a folder; None for the recordings that came with the package.

    Raises:
        ValueError: there is no such part.
    """
    one_of("first", "part", part, SCHEMA)

    def rank(recording: Recording) -> tuple[bool, ...]:
        origin = recording.provenance
        return origin["rehearsal"], not origin["cuda"], not recording.complete

    found = (load(path.stem, where=where) for path in _paths(part, where))
    return min(found, key=rank, default=None)


def _how_to_record(part: str) -> str:
    which = f"--only {part}" if part in SCHEMA else "--all"
    return (
        "To make one, in a checkout on a machine with a CUDA device: "
        f"python data/record.py {which} --out data/recordings."
    )
