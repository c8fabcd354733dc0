"""The page on which a person reads answers and gives points.

It lists the answers that wait, and shows them one at a time, question by question. It is a small
server of its own, without a notebook server that a submission could act on. Answers are sanitised,
and the page's policy lets a browser run and fetch nothing else.
"""

import asyncio
import hashlib
import itertools
import operator
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from socket import create_server, socket
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from nbformat import NotebookNode, v4
from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    Notebook,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
)
from sqlalchemy import Integer, cast, func
from sqlalchemy.exc import OperationalError
from tornado import httpserver, web

from mplab.course.grading.dates import show_time
from mplab.course.grading.feedback import typeset
from mplab.course.grading.folder import Course, read_notebooks
from mplab.course.grading.gradebook import due_words, read_parts, with_parts
from mplab.course.grading.submissions import answers_before, mark_of, marked

_PAGE = Path(__file__).parent / "page"

_FILES = {"review.css": "text/css", "review.js": "text/javascript"}

_SECONDS = 5.0
"""Time to typeset an answer; some texts take a Markdown parser hours."""

_PAGE_BYTES = 16 << 20
"""Of a question and its answer; pasted pictures take at most half of it. Past it, plain text."""

_READING = 300.0
"""Seconds for which an answer that somebody opened is not given to somebody else."""

_COMMENT_CHARACTERS = 10_000

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "style-src-attr 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer" a form would name no origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Question(NamedTuple):
    """A cell with points: its text in the release, and the cell that holds the answer."""

    assignment: str
    notebook: str
    name: str
    points: float
    answer: str
    text: str
    model: str
    by_hand: bool
    rubric: Mapping[str, float]

    @property
    def title(self) -> str:
        """The last heading above it, or its id."""
        headings = re.findall(r"^#+ +(.+)", self.text, re.MULTILINE)
        return str(headings[-1]).replace("`", "") if headings else self.name

    @property
    def parts(self) -> list[tuple[str, float]]:
        """The parts that get points, each with its maximum."""
        return list(self.rubric.items()) or [("Points", self.points)]

    def address(self, student: str = "") -> str:
        """The address of the page of a student's answer; without a student, how all begin."""
        names = (self.assignment, self.notebook, self.name, student)
        return "/".join(quote(name, safe="") for name in names)


def questions(course: Course, assignment: str) -> list[Question]:
    """List the questions of a released assignment.

    Raises:
        ValueError: it has not been released.
    """
    found = []
    rubric = course.assignment(assignment).rubric
    solved = read_notebooks(course.root / "source" / assignment)
    for stem, notebook in course.skeletons(assignment).items():
        models = marked(solved[stem]) if stem in solved else {}
        answers = answers_before(notebook)
        texts: list[str] = []
        for cell in notebook.cells:
            mark = mark_of(cell)
            if mark.get("grade"):
                name = mark["grade_id"]
                by_hand = bool(mark.get("solution"))
                answer = name if by_hand else answers.get(name, name)
                question = Question(
                    assignment=assignment,
                    notebook=stem,
                    name=name,
                    points=float(mark["points"]),
                    answer=answer,
                    text="\n\n".join(texts),
                    model=models[answer].source if answer in models else "",
                    by_hand=by_hand,
                    rubric=rubric.get(name, {}),
                )
                found.append(question)
                texts = []
            elif cell.cell_type == "markdown":
                texts.append(cell.source)
    return found


def _cells_of(
    question: Question, cells: Mapping[str, NotebookNode]
) -> list[NotebookNode]:
    """Return what a page shows: question, answer, the outputs of its check, model answer."""
    there = question.answer in cells
    answer = cells[question.answer] if there else v4.new_markdown_cell()
    check = v4.new_code_cell()
    if question.name != question.answer and question.name in cells:
        # The second is nbgrader's number.
        check.outputs = cells[question.name].get("outputs", [])[:1]
    text = question.model if there else ""
    model = NotebookNode(cell_type=answer.cell_type, source=text)
    return [v4.new_markdown_cell(question.text), answer, check, model]


_NAMES = (Assignment.name, Notebook.name, BaseCell.name)
"""The columns with the first three fields of a question."""


def _of_cells(query: Any) -> Any:
    """Let a query know the names of each grade's cell."""
    query = query.select_from(Grade).join(Grade.cell).join(BaseCell.notebook)
    return query.join(Notebook.assignment)


_Respond = Callable[[], Any]


def _in_thread(
    work: Callable[..., _Respond],
) -> Callable[..., Awaitable[None]]:
    """Let a handler wait in a thread for the gradebook, its lock, and typesetting.

    It returns how to answer: only Tornado's own thread, which serves everybody, may do that.
    """

    async def answered(page: _Handler, *names: str) -> None:
        page.reader = page.find_reader()
        try:
            respond = await asyncio.to_thread(work, page, *names)
        except OperationalError as error:
            raise web.HTTPError(503) from error
        respond()

    return answered


class _Handler(web.RequestHandler):
    """Answers requests that have the cookie and use the printed address."""

    reader: str

    def initialize(self) -> None:
        self.course = self.settings["course"]
        # One for all requests: what SQLAlchemy has compiled stays with it. Each closes its own
        # connection.
        self.gradebook = self.settings["gradebook"]
        self.root = self.settings["root"]
        self.opened: dict[str, tuple[str, float]] = self.settings["opened"]

    def find_reader(self, name: str = "") -> str:
        """Return what the user of this browser is called, from now on by this name if given."""
        if self.current_user:  # of a Hub
            return str(self.current_user["name"])
        cookie = f"{self.settings['cookie']}-reader"
        known = unquote(self.get_cookie(cookie, ""))[:40]
        name = name or known or f"person {next(self.settings['people'])}"
        self.set_cookie(cookie, quote(name), httponly=True, samesite="Strict")
        return name

    def being_read(self) -> dict[str, str]:
        """Return the answers that people have opened and may still read, by the person."""
        since = time.monotonic() - _READING
        opened = list(self.opened.items())  # at once: threads come here, too
        return {who: address for who, (address, when) in opened if when > since}

    def set_default_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        # A page on another port of this machine could set the cookie that Tornado compares.
        origin = urlsplit(self.request.headers.get("Origin", "")).netloc
        if self.request.method != "GET" and origin != self.request.host:
            raise web.HTTPError(403)
        self.enter()

    def enter(self) -> None:
        """Refuse requests without the token; on a Hub, its log-in replaces this check."""
        token = self.settings["cookie_secret"]
        cookie = self.settings["cookie"]
        sent = self.get_query_argument("token", "") or self.get_cookie(cookie, "")
        known = secrets.compare_digest(sent.encode(), token.encode())
        if self.request.host not in self.settings["hosts"] or not known:
            raise web.HTTPError(403)
        if "token" in self.request.query_arguments:
            self.set_cookie(cookie, token, httponly=True, samesite="Strict")
            self.redirect("/")

    def write_error(self, status_code: int, **_: Any) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        text = {
            403: "Open the address that mplab grade serve printed.",
            404: "Not found.",
            503: "The gradebook's database does not answer. Reload this page when it does: then "
            "your browser sends again what you typed.",
        }
        self.finish(f"{status_code}. {text.get(status_code, 'That did not work.')}\n")


class _File(_Handler):
    """The page's own style and script; at any other address there is nothing."""

    def get(self, name: str) -> None:
        if name not in _FILES:
            raise web.HTTPError(404)
        self.set_header("Content-Type", _FILES[name])
        self.finish((_PAGE / name).read_bytes())


class _List(_Handler):
    """All questions of the released assignments, and who reads what."""

    def post(self) -> None:
        """Call the reader as they wish."""
        self.find_reader(self.get_body_argument("reader", "")[:40])
        self.redirect(self.root, status=303)

    @_in_thread
    def get(self) -> _Respond:
        self.opened.pop(self.reader, None)
        reading = self.being_read()
        with self.gradebook as book:
            waiting = func.sum(cast(Grade.needs_manual_grade, Integer))
            query = _of_cells(book.db.query(*_NAMES, func.count(), waiting))
            query = query.group_by(*_NAMES)
            counts = {tuple(row[:3]): row[3:] for row in query}
            tables = {}
            for name in sorted(assignment.name for assignment in book.assignments):
                rows = []
                # A due date is known before the release.
                with suppress(ValueError):
                    for question in questions(self.course, name):
                        counted = counts.get(question[:3], (0, 0))
                        address = question.address()
                        now = [
                            f"{unquote(place.removeprefix(address))}: {who}"
                            for who, place in reading.items()
                            if place.startswith(address)
                        ]
                        rows.append((question, address, *counted, now))
                    tables[name] = sorted(rows, key=lambda row: not row[0].by_hand)
        page = self.render_string(
            "list.html",
            root=self.root,
            course=self.course.root.name,
            tables=tables,
            due={name: due_words(self.course, name) for name in tables},
            reader=self.reader,
            named=bool(self.current_user),
        )
        return partial(self.finish, page)


class _Answer(_Handler):
    """One answer, with the field for its points."""

    @_in_thread
    def get(self, assignment: str, notebook: str, name: str, student: str) -> _Respond:
        """Show a student's answer; without a student, go to the first answer that waits."""
        with self._grades(assignment, notebook, name) as (question, grades):
            if not student:
                return self._go_on(question, grades, 0)
            page = self._page(question, grades, student)
        self.opened[self.reader] = question.address(student), time.monotonic()
        return partial(self.finish, page)

    @_in_thread
    def post(self, assignment: str, notebook: str, name: str, student: str) -> _Respond:
        """Record points and comment, and go to the next answer that waits."""
        points = self.get_body_arguments("points")
        words = self.get_body_argument("comment", "").replace("\r\n", "\n")
        asked = assignment, notebook, name
        try:
            # Neither a grader nor another page comes between comparing and writing.
            with self.course.marking(), self._grades(*asked) as (question, grades):
                if len(words) > _COMMENT_CHARACTERS:
                    raise ValueError(
                        f"the comment has more than {_COMMENT_CHARACTERS:,} characters"
                    )
                place = _place(grades, student)
                self._refuse_change(question, student, grades[student])
                pairs = zip(question.parts, points, strict=True)
                scores = [_points(part, text) for part, text in pairs]
                comment = words.strip()
                if question.rubric:
                    comment = with_parts(question.rubric, scores, comment)
                marked = [student]
                if self.get_body_argument("same", ""):
                    same = self._same(question, grades, student)
                    marked += [each for each in same if grades[each].needs_manual_grade]
                for each in marked:
                    grade = grades[each]
                    grade.manual_score = sum(scores)
                    grade.needs_manual_grade = False
                    if row := self._comment(grade, question):
                        row.manual_comment = comment or None
                    self._sign(question, each)
                respond = self._go_on(question, grades, place + 1)
                self.gradebook.db.commit()
                return respond
        except ValueError as wrong:
            self.set_status(400)
            error = f"Not saved: {wrong}."
        except OperationalError as failed:
            self.set_status(503)
            cause = " ".join(str(failed.orig).split())
            error = f"Not saved: the gradebook cannot be written ({cause}). Save again."
        with self._grades(*asked) as (question, grades):
            if self._is_stale(question, student):  # they may be of other parts
                points = [""] * len(question.parts)
            page = self._page(question, grades, student, (points, words), error)
        return partial(self.finish, page)

    def _refuse_change(self, question: Question, student: str, grade: Grade) -> None:
        """Refuse a page that shows another answer, rubric or points than there are now.

        Raises:
            ValueError: they have changed.
        """
        if self._is_stale(question, student):
            raise ValueError(
                "meanwhile another answer came in, or the rubric changed; read it first"
            )
        now = _digest_of_points(grade, self._comment(grade, question))
        if self.get_body_argument("mark", "") != now:
            raise ValueError(
                f"meanwhile somebody else gave {grade.score:g} of {question.points:g}, which "
                "stands beside the fields. If yours shall count, save again"
            )

    def _go_on(
        self, question: Question, grades: Mapping[str, Grade], place: int
    ) -> _Respond:
        """Go to the next answer that waits; else to the list.

        An answer that somebody else has open comes last.
        """
        students = list(grades)
        turned = students[place:] + students[:place]
        waiting = [each for each in turned if grades[each].needs_manual_grade]
        found = waiting or (students if place == 0 else [])
        addresses = [question.address(student) for student in found]

        # In one thread, so that no two people are given the same.
        def hand_out() -> None:
            reading = self.being_read()
            reading.pop(self.reader, None)
            free = [each for each in addresses if each not in reading.values()]
            address = next(iter(free or addresses), "")
            self.opened[self.reader] = address, time.monotonic()
            self.redirect(self.root + address, status=303)

        return hand_out

    @contextmanager
    def _grades(
        self, assignment: str, notebook: str, name: str
    ) -> Iterator[tuple[Question, dict[str, Grade]]]:
        """Find a question and all its grades, in the order of the students' ids."""
        with self.gradebook as book:
            try:
                question = next(
                    each
                    for each in questions(self.course, assignment)
                    if (each.notebook, each.name) == (notebook, name)
                )
            except (StopIteration, ValueError) as error:
                raise web.HTTPError(404) from error
            # In one question to the database, and not in three for each student.
            query = _of_cells(book.db.query(Student.id, Grade)).join(Grade.notebook)
            query = query.join(SubmittedNotebook.assignment)
            query = query.join(SubmittedAssignment.student)
            query = query.filter(*map(operator.eq, _NAMES, question[:3]))
            yield question, dict(sorted(map(tuple, query)))

    def _seen(self, question: Question, student: str) -> str:
        """Return the digest of an answer as it is now."""
        answers = self.course.read("answers", question.assignment, student)
        return str(answers.get(f"{question.notebook}/{question.name}", ""))

    def _version(self, question: Question, student: str) -> str:
        """Return the digest of an answer and of the parts that get points, as they are now."""
        there = self._seen(question, student), question.parts
        return hashlib.sha256(repr(there).encode()).hexdigest()

    def _is_stale(self, question: Question, student: str) -> bool:
        sent = self.get_body_argument("seen", "")
        return bool(sent != self._version(question, student))

    def _same(
        self, question: Question, students: Iterable[str], student: str
    ) -> list[str]:
        """Return the others who gave the same answer."""
        seen = self._seen(question, student)
        others = [each for each in students if seen and each != student]
        return [each for each in others if self._seen(question, each) == seen]

    def _comment(self, grade: Grade, question: Question) -> Any:
        """Return the row of the comment on an answer; None if it can have none."""
        query = self.gradebook.db.query(Comment).join(Comment.cell)
        query = query.filter(Comment.notebook_id == grade.notebook_id)
        return query.filter(BaseCell.name == question.answer).one_or_none()

    def _sign(self, question: Question, student: str) -> None:
        """Record who gave the points of an answer, and when."""
        now = show_time(datetime.now(UTC), self.course.zone())
        place = (question.assignment, student)
        signed = {question.name: [self.reader, now]}
        self.course.write("marks", *place, self.course.read("marks", *place) | signed)

    def _others(self, grade: Grade) -> Any:
        """Return the other grades of a notebook, by the names of their cells."""
        columns = (Grade.needs_manual_grade, Grade.score, Grade.max_score)
        query = self.gradebook.db.query(BaseCell.name, *columns).join(Grade.cell)
        query = query.filter(Grade.notebook_id == grade.notebook_id)
        return query.filter(Grade.id != grade.id)

    def _bank(self, comment: Any) -> list[str]:
        """Return the comments on this question so far."""
        if comment is None:
            return []
        comments = self.gradebook.db.query(Comment.manual_comment)
        comments = comments.filter(Comment.cell_id == comment.cell_id).distinct()
        return sorted({read_parts(text)[1] for (text,) in comments if text} - {""})

    def _page(
        self,
        question: Question,
        grades: Mapping[str, Grade],
        student: str,
        typed: tuple[list[str], str] | None = None,
        error: str = "",
    ) -> bytes:
        """Write the page of an answer, with what was typed if it could not be saved."""
        place = _place(grades, student)
        grade = grades[student]
        comment = self._comment(grade, question)
        seen = self._version(question, student)  # before it is read
        folder = self.course.root / "autograded" / student / question.assignment
        book = read_notebooks(folder).get(question.notebook)
        cells = marked(book) if book else {}
        shown = _cells_of(question, cells)
        (asked, answer, check, model), _ = typeset(shown, _SECONDS, _PAGE_BYTES)
        earlier: dict[str, str] = {}
        words = (comment.comment if comment else "") or ""
        if question.rubric:
            earlier, words = read_parts(words)
        elif not grade.needs_manual_grade:
            earlier = {"Points": f"{grade.score:g}"}
        now = {} if grade.needs_manual_grade else earlier
        signed = self.course.read("marks", question.assignment, student)
        near = [question.address(each) for each in grades]
        person = grade.student
        return self.render_string(
            "answer.html",
            root=self.root,
            question=question,
            who=" ".join(filter(None, (student, person.first_name, person.last_name))),
            asked=asked,
            answer=answer + check,
            model=model,
            number=place + 1,
            count=len(grades),
            waiting=sum(each.needs_manual_grade for each in grades.values()),
            before=near[place - 1] if place else "",
            after="".join(near[place + 1 : place + 2]),
            earlier=", ".join(f"{name} {points}" for name, points in earlier.items()),
            typed=typed or ([now.get(name, "") for name, _ in question.parts], words),
            saved=now if error else {},
            words=words,
            error=error,
            seen=seen,
            shown=_digest_of_points(grade, comment),
            there=book is not None,
            grade=grade,
            has_comment=comment is not None,
            bank=self._bank(comment),
            given_by=signed.get(question.name, ("A person", "")),
            same={each: grades[each] for each in self._same(question, grades, student)},
            marks=self._others(grade),
        )


def _points(part: tuple[str, float], text: str) -> float:
    """Read the points given for a part."""
    name, most = part
    with suppress(ValueError):
        if 0 <= (points := float(text)) <= most:  # NaN is neither
            return points
    raise ValueError(f"{name} must be a number from 0 to {most:g}")


def _place(grades: Mapping[str, Grade], student: str) -> int:
    if student not in grades:
        raise web.HTTPError(404)
    return list(grades).index(student)


def _digest_of_points(grade: Grade, comment: Any) -> str:
    """Return a digest of an answer's points and comment, as they are now."""
    words = comment.comment if comment else None
    there = (grade.manual_score, grade.auto_score, grade.needs_manual_grade, words)
    return hashlib.sha256(repr(there).encode()).hexdigest()


def application(
    course: Course, token: str, host: str, port: int, *, hub: bool = False
) -> web.Application:
    """Return the server's pages for a course; only whoever knows the token may see them.

    As a service of a Hub, it serves users who are logged in there and whose role allows it.
    """
    part = "([^/]+)"
    root = "/"
    pages: dict[str, Any] = {"": _List, f"{part}/{part}/{part}/([^/]*)": _Answer}
    pages["(.*)"] = _File
    if hub:
        from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated

        root = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
        # The Hub's log-in, and no more.
        own = {"enter": web.authenticated(lambda page: None)}
        pages = {
            path: type("", (HubOAuthenticated, page), own)
            for path, page in pages.items()
        }
        pages = {"oauth_callback": HubOAuthCallbackHandler, **pages}
    return web.Application(
        [(root + path, page) for path, page in pages.items()],
        course=course,
        gradebook=course.gradebook(),
        root=root,
        hosts=[f"{name}:{port}" for name in (host, "localhost")],
        cookie=f"mplab-{port}",
        opened={},
        people=itertools.count(1),
        cookie_secret=token,
        template_path=str(_PAGE),
        xsrf_cookies=True,
        xsrf_cookie_name=f"mplab-{port}-xsrf",  # JupyterLab's has the usual name
        xsrf_cookie_kwargs={"httponly": True, "samesite": "Strict"},
    )


def _listener(port: int) -> socket:
    """Listen for this machine alone, at an address that no other server has.

    A browser sends a cookie to all ports of an address. Only 127.0.0.1 is used where there is no
    other (macOS), and for a port that somebody chose: tunnels and WSL lead there.
    """
    if not port:
        host = IPv4Address("127.1.0.0") + secrets.randbelow(1 << 23)
        with suppress(OSError):
            return create_server((str(host), 0))
    return create_server(("127.0.0.1", port))


def serve(
    course: Course,
    port: int = 0,
    log: Callable[[str], None] = print,
    *,
    hub: bool = False,
) -> None:
    """Serve the page on this machine until interrupted.

    Args:
        course: a course.
        port: a port of 127.0.0.1; 0 for a free one, at an address of its own.
        log: called with the address to open.
        hub: as a service that a Hub starts, which names the port and says who may see the page.

    Raises:
        ValueError: the port cannot be opened.
    """
    if hub:
        if not (own := os.environ.get("JUPYTERHUB_SERVICE_URL")):
            raise ValueError(
                "--hub must be in the command of a service that JupyterHub starts."
            )
        port = urlsplit(own).port or 0

    async def run() -> None:
        try:
            if port not in range(1 << 16):
                raise OSError("it must be 0 to 65535")
            listener = _listener(port)
        except OSError as error:
            raise ValueError(
                f"--port must be a free port; got {port} ({error})."
            ) from error
        token = secrets.token_urlsafe(32)
        host, number = listener.getsockname()
        server = httpserver.HTTPServer(
            application(course, token, host, number, hub=hub), max_body_size=1 << 20
        )
        listener.setblocking(False)
        server.add_socket(listener)
        # Else the token, which signs the Hub's cookies, would be in its log.
        if not hub:
            log(f"Open http://{host}:{number}/?token={token}\nCtrl-C here ends it.")
        await asyncio.Event().wait()

    asyncio.run(run())
