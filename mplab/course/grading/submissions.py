"""Read submissions: rebuild the notebook from the release and the text of its cells.

Only the text of a submitted notebook's cells, their order, and their links to the assignment's
cells are kept. Metadata, outputs, tags and ids come from the release, so nobody can forge them.
"""

import base64
import copy
import errno
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from nbformat import NotebookNode, convert, from_dict, v4

NOTEBOOK_BYTES = 20 << 20  # outputs, which are dropped, may be large

SECRET = "submission_secret.txt"
"""The file that `nbgrader submit` adds, so that only its author can fetch the feedback."""

_DROPPED = re.compile(rb'"(?:outputs|widgets)"\s*:\s*[\[{]\Z')

_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+["\\]', re.DOTALL)
"""The rest of a string with its quotation mark, or with half of an escape at the end of a part."""

_BRACKET = re.compile(rb'[^"\[\]{}]*+["\[\]{}]')

_NOTEBOOKS = 100  # looked at in a submission

_CELLS = 500

_CELL_CHARACTERS = 200_000

_IMAGES = {
    "image/png": rb"\x89PNG\r\n\x1a\n",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8[79]a",
    "image/webp": rb"RIFF....WEBP",
}

_IMAGE_NAME = re.compile(r"[\w. ()+-]{1,100}")

_PASTED = re.compile(r"\]\(data:image/[a-z]+;base64,[\w+/=]+\)", re.ASCII)
"""A picture as Colab pastes it into Markdown; elsewhere it is an attachment of the cell."""

_IMAGE_CHARACTERS = 8 << 20  # in base64, of one cell

_LISTED = 5  # further notebooks named in a note

ANOTHER = "it belongs to another account"

_OURS = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}
"""Errors of the machine, not of the file."""


class RejectedSubmission(ValueError):
    """A submission that cannot be graded; the message is the reason, for its author."""


def open_regular(path: Path, owner: int | None = None) -> IO[bytes]:
    """Open a regular file once, and check what was opened.

    Its author can put a link in its place between two looks at a name.

    Args:
        path: the file.
        owner: the number of the user who must own it; None for any.

    Raises:
        RejectedSubmission: it is a link, a device, or another account's; its name is not in it.
        OSError: this machine fails, whatever the file is.
    """
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError as error:
        if error.errno in _OURS:
            raise
        raise RejectedSubmission("it is a link or cannot be read") from error
    file = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    reason = ""
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not an ordinary file"
    elif owner not in (None, status.st_uid):
        reason = ANOTHER
    elif status.st_nlink > 1 and status.st_uid != path.parent.stat().st_uid:
        # Its owner's own hard links, as of a backup, do no harm; and nobody may make another's
        # submission unreadable by linking to it.
        reason = "it is a hard link to somebody else's file"
    if reason:
        file.close()
        raise RejectedSubmission(reason)
    return file


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file, unless it is somebody else's or longer than `limit`.

    Raises:
        RejectedSubmission: it is one of these, or not a regular file; the message names it.
        OSError: this machine fails, whatever the file is.
    """
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except RejectedSubmission as reason:
        raise RejectedSubmission(f"{shown_name(path.name)}: {reason}") from reason
    if len(content) > limit:
        raise RejectedSubmission(
            f"{shown_name(path.name)} has more than {limit >> 20} MiB"
        )
    return content


def shown_name(name: str) -> str:
    """Make a student's file name safe to print."""
    return repr(name[:80])


def without_outputs(notebook: IO[bytes], until: float) -> bytes:
    """Read a notebook of any size, without the outputs of its cells and the state of its widgets.

    What it drops is never in memory: a notebook of a gigabyte costs no more than its text.
    Reading ends when too much is kept. What is no JSON in UTF-8 comes back in part or whole.

    Args:
        notebook: the file, from its beginning.
        until: when reading ends, by `time.thread_time`; a gigabyte takes two to ten seconds.

    Raises:
        RejectedSubmission: it takes too long, or is cut off.

    Examples:
        >>> import io, math
        >>> cell = io.BytesIO(
        ...     b'{"cells": [{"source": "[", "outputs": [{"text": ["]"]}]}]}'
        ... )
        >>> without_outputs(cell, until=math.inf)
        b'{"cells": [{"source": "[", "outputs": []}]}'
    """
    kept = bytearray()
    depth = dropped = 0  # a value is dropped from its bracket at this depth to its end
    quoted = escaped = False
    while len(kept) <= NOTEBOOK_BYTES and (part := notebook.read(1 << 20)):
        if time.thread_time() > until:
            raise RejectedSubmission("it takes too long to read")
        begin = 0
        place = int(escaped)
        escaped = False
        while found := (_STRING if quoted else _BRACKET).match(part, place):
            place = found.end()
            mark = part[place - 1 : place]
            if mark == b'"':
                quoted = not quoted
            elif quoted:
                escaped = True  # what follows is in the next part
            elif mark in b"[{":
                depth += 1
                if not dropped:
                    kept += part[begin:place]
                    begin = place
                    # A key, with blanks around its colon, is shorter.
                    dropped = depth if _DROPPED.search(kept[-60:]) else 0
            else:
                if dropped == depth:
                    dropped = 0
                    begin = place - 1
                depth -= 1
        if not dropped:
            kept += part[begin:]
    if len(kept) <= NOTEBOOK_BYTES and (depth or quoted):
        raise RejectedSubmission("it is cut off")
    return bytes(kept)


def notebooks_in(folder: Path) -> list[Path]:
    """List the notebooks of a submission, which may lie in a folder inside it."""
    return sorted(islice(folder.rglob("*.ipynb"), _NOTEBOOKS))


def read_submission(
    folder: Path, skeletons: Mapping[str, NotebookNode]
) -> tuple[dict[str, NotebookNode], list[str]]:
    """Read the notebooks of a submission that can be graded, with notes for author and teacher.

    Args:
        folder: a submission as it came.
        skeletons: the notebooks of the release, by name without suffix.

    Raises:
        RejectedSubmission: there is no notebook that can be graded.
    """
    if folder.is_symlink() or folder.parent.is_symlink() or not folder.is_dir():
        raise RejectedSubmission("it is not a folder")
    found = {str(path.relative_to(folder)): path for path in notebooks_in(folder)}
    notes: list[str] = []
    notebooks = {}
    for name, path in _choose(found, skeletons, notes).items():
        cells = _adopted(
            skeletons[name], read_cells(read_regular(path, NOTEBOOK_BYTES)), notes
        )
        notebooks[name] = rebuild(skeletons[name], cells)
        notes += possible_lost_points(skeletons[name], cells)
    return notebooks, notes


def _choose(
    found: Mapping[str, Path], skeletons: Mapping[str, NotebookNode], notes: list[str]
) -> dict[str, Path]:
    """Find the file for each notebook of the release; a single one counts whatever its name.

    A browser calls a second download `a1 (1).ipynb`: it counts if it is the only one.
    """
    chosen = {}
    for name in skeletons:
        copy_of = re.compile(re.escape(name) + r" ?\(\d+\)\.ipynb")
        copies = [path for path in found if copy_of.fullmatch(path)]
        if f"{name}.ipynb" in found:
            chosen[name] = found[f"{name}.ipynb"]
        elif len(copies) == 1:
            chosen[name] = found[copies[0]]
    if not chosen and len(found) == 1 and len(skeletons) == 1:
        return dict(zip(skeletons, found.values(), strict=True))
    if not chosen:
        wanted = ", ".join(f"{name}.ipynb" for name in skeletons)
        names = ", ".join(shown_name(name) for name in sorted(found)[:_LISTED])
        several = f", but {len(found)} others ({names}); hand in one" if found else ""
        raise RejectedSubmission(f"there is no notebook {wanted} in it{several}")
    others = sorted(name for name in found if found[name] not in chosen.values())
    for name in others[:_LISTED]:
        notes.append(f"Not graded: {shown_name(name)}, a further notebook.")
    return chosen


class RawCell(NamedTuple):
    """All that is taken from a submitted cell; images are those pasted into its Markdown."""

    kind: str
    source: str
    grade_id: str
    images: Mapping[str, str] = MappingProxyType({})


def read_cells(content: bytes) -> list[RawCell]:
    """Read the cells of a notebook written by anybody.

    Raises:
        RejectedSubmission: it is not a notebook of format 3 or 4, or exceeds the limits.
    """
    try:
        data = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RejectedSubmission(
            "the notebook is not valid JSON; save it again in JupyterLab"
        ) from error
    if isinstance(data, dict) and data.get("nbformat") == 3:
        try:
            data = convert(from_dict(data), 4)
        except Exception:  # anything, if it is none of this format
            data = None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or data.get("nbformat") != 4:
        raise RejectedSubmission(
            "the file is no notebook of format 4; save it again in JupyterLab"
        )
    if len(cells) > _CELLS:
        raise RejectedSubmission(f"the notebook has more than {_CELLS} cells")
    return [_raw_cell(cell) for cell in cells if isinstance(cell, dict)]


def _raw_cell(cell: Mapping[str, Any]) -> RawCell:
    source = plain_text(cell.get("source"))
    code = cell.get("cell_type") == "code"
    if len(source if code else _PASTED.sub("", source)) > _CELL_CHARACTERS:
        raise RejectedSubmission(
            f"a cell has more than {_CELL_CHARACTERS:,} characters"
        )
    metadata = cell.get("metadata")
    mark = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = mark.get("grade_id") if isinstance(mark, dict) else None
    if not isinstance(grade_id, str):
        grade_id = ""
    if code:
        return RawCell("code", source, grade_id)
    return RawCell("markdown", source, grade_id, images_in(cell.get("attachments")))


def plain_text(value: Any) -> str:
    """Return a text of a notebook, which may be a list of lines; empty if it is none.

    Half of a surrogate pair, which no file in UTF-8 can hold, is replaced, and so is a zero byte.
    """
    if isinstance(value, list):
        value = "".join(line for line in value if isinstance(line, str))
    if not isinstance(value, str):
        return ""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", value)


def image_kind(data: Any) -> str:
    """Return the kind of an image in base64, by its content; empty if that is not shown."""
    try:
        content = base64.b64decode("".join(data.split()), validate=True)
    except (AttributeError, ValueError):
        return ""
    for kind, start in _IMAGES.items():
        if re.match(start, content, re.S):
            return kind
    return ""


def images_in(attachments: Any) -> dict[str, str]:
    """Return the images among the attachments of a cell, in base64, by their names."""
    found: dict[str, str] = {}
    left = _IMAGE_CHARACTERS
    for name, kinds in attachments.items() if isinstance(attachments, dict) else ():
        data = next(iter(kinds.values()), "") if isinstance(kinds, dict) else ""
        fits = isinstance(data, str) and len(data) <= left
        if fits and _IMAGE_NAME.fullmatch(name) and image_kind(data):
            found[name] = "".join(data.split())
            left -= len(data)
    return found


def _adopted(
    skeleton: NotebookNode, cells: Sequence[RawCell], notes: list[str]
) -> list[RawCell]:
    """Find answers that lost nbgrader's marks, as in Colab or Deepnote.

    An answer is found by the name of its function, or because it alone stands where the stub stood
    between cells of the release.
    """
    found = list(cells)
    answers = {
        name: cell
        for name, cell in marked(skeleton).items()
        if mark_of(cell).get("solution")
    }
    adopted = []
    for name, cell in answers.items():
        function = re.search(r"^def \w+\(", cell.source, re.MULTILINE)
        # A stub that nobody touched: the answer may stand in a cell of its own.
        stubs = [i for i, raw in enumerate(found) if raw.grade_id == name]
        touched = [i for i in stubs if found[i].source.strip() != cell.source.strip()]
        if not function or touched or len(stubs) > 1:
            continue
        there = re.compile(f"^{re.escape(function[0])}", re.MULTILINE)
        for i in reversed(range(len(found))):
            raw = found[i]
            if raw.kind == "code" and not raw.grade_id and there.search(raw.source):
                for stub in stubs:
                    found[stub] = found[stub]._replace(grade_id="")
                found[i] = raw._replace(grade_id=name)
                if raw.source.strip() != cell.source.strip():
                    adopted.append(name)
                break
    matcher = SequenceMatcher(
        a=[cell.source.strip() for cell in skeleton.cells],
        b=[raw.source.strip() for raw in found],
        autojunk=False,
    )
    lost = answers.keys() - {raw.grade_id for raw in found}
    for kind, i, end, *place in matcher.get_opcodes():
        stub = skeleton.cells[min(i, len(skeleton.cells) - 1)]
        name = mark_of(stub).get("grade_id")
        if kind != "replace" or end != i + 1 or name not in lost:
            continue
        own = [
            k
            for k in range(*place)
            if found[k].kind == stub.cell_type and not found[k].grade_id
        ]
        for k in own[-1:]:
            answer = found[k]
            if answer.kind == "markdown":
                images = {n: d for k in own for n, d in found[k].images.items()}
                words = "\n\n".join(found[k].source for k in own)
                answer = answer._replace(source=words, images=images)
            found[k] = answer._replace(grade_id=name)
            adopted.append(name)
    if adopted:
        notes.append(
            f"Found by name or place, because marks were lost: {', '.join(sorted(adopted))}."
        )
    return found


def rebuild(skeleton: NotebookNode, cells: Sequence[RawCell]) -> NotebookNode:
    """Rebuild a notebook from the release, with the answers and the added cells of a submission.

    If several cells claim to be the same one, the last counts; the others run as added cells.
    Missing cells are put back, and a grade cell never stands before its answer.
    """
    roles = marked(skeleton)
    last = {cell.grade_id: i for i, cell in enumerate(cells) if cell.grade_id in roles}
    order: list[str | RawCell] = []
    for i, raw in enumerate(cells):
        if last.get(raw.grade_id) == i:
            order.append(raw.grade_id)
        elif raw.grade_id not in roles or mark_of(roles[raw.grade_id]).get("solution"):
            order.append(raw)
    _complete(order, list(roles), answers_before(skeleton))
    rebuilt = copy.copy(skeleton)
    rebuilt.metadata = copy.deepcopy(skeleton.metadata)
    rebuilt.cells = []
    for number, entry in enumerate(order):
        if isinstance(entry, RawCell):
            make = v4.new_code_cell if entry.kind == "code" else v4.new_markdown_cell
            cell = make(entry.source)
        else:
            cell = copy.deepcopy(roles[entry])
            if entry in last and mark_of(cell).get("solution"):
                answer = cells[last[entry]]
                cell.source = answer.source
                if answer.images:
                    cell.attachments = {
                        name: {image_kind(data): data}
                        for name, data in answer.images.items()
                    }
        cell.id = f"cell-{number}"
        rebuilt.cells.append(cell)
    return rebuilt


def possible_lost_points(skeleton: NotebookNode, cells: Sequence[RawCell]) -> list[str]:
    """List what may have cost an honest submission points, in sentences for the teacher.

    An answer in a cell that lost nbgrader's marks may come after its check, and a cell that was
    copied with its marks may hold an older attempt.
    """
    roles = marked(skeleton)
    answers = [name for name, cell in roles.items() if mark_of(cell).get("solution")]
    found = [cell.grade_id for cell in cells if cell.grade_id in roles]
    missing = [name for name in answers if name not in found]
    repeated = [name for name in answers if found.count(name) > 1]
    notes = []
    if missing:
        notes.append(
            f"No cell is marked as {', '.join(missing)}: deleted, or pasted elsewhere."
        )
    if repeated:
        notes.append(
            f"More than one cell is marked as {', '.join(repeated)}: the last one counts."
        )
    if list(dict.fromkeys(found)) != [name for name in roles if name in found]:
        notes.append("The cells stand in another order than in the release.")
    return notes


def _complete(
    order: list[str | RawCell], names: list[str], answers: Mapping[str, str]
) -> None:
    """Put missing cells after the one they follow in the release, and checks after answers."""
    for previous, name in zip(["", *names], names, strict=False):
        if name not in order:
            order.insert(order.index(previous) + 1 if previous else 0, name)
    for name, answer in answers.items():
        if order.index(name) < order.index(answer):
            order.remove(name)
            order.insert(order.index(answer) + 1, name)


def marked(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """Return the cells with nbgrader's marks, by their id."""
    return {
        mark["grade_id"]: cell for cell in notebook.cells if (mark := mark_of(cell))
    }


def mark_of(cell: NotebookNode) -> Any:
    """Return the mark of nbgrader on a cell; an empty one if it has none."""
    mark = cell.metadata.get("nbgrader", {})
    return mark if mark.get("grade_id") else {}


def answers_before(skeleton: NotebookNode) -> dict[str, str]:
    """Find the last answer before each grade cell of the release."""
    answers: dict[str, str] = {}
    answer = ""
    for cell in skeleton.cells:
        mark = mark_of(cell)
        if mark.get("solution"):
            answer = mark["grade_id"]
        elif mark.get("grade") and answer:
            answers[mark["grade_id"]] = answer
    return answers


def answers_of(stem: str, notebook: NotebookNode) -> dict[str, str]:
    """Hash the answer that each grade cell of a notebook is about."""
    cells = marked(notebook)
    before = answers_before(notebook)
    answers = {}
    for name, cell in cells.items():
        if mark_of(cell).get("grade"):
            answer = cells[before.get(name, name)]
            text = f"{answer.source}{answer.get('attachments', '')}"
            answers[f"{stem}/{name}"] = hashlib.sha256(text.encode()).hexdigest()
    return answers


def escape_html_in_markdown(text: str) -> str:
    """Change Markdown so that no `<` begins an HTML element, wherever it is shown.

    Formgrader renders a notebook's Markdown inside the teacher's JupyterLab, HTML and all. An
    invisible blank after `<` keeps the text as its author sees it, in code as well.

    Examples:
        >>> escape_html_in_markdown("a <b, <script>") == "a <\u200bb, <\u200bscript>"
        True
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "<\u200b", text)
