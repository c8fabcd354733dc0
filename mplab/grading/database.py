"""The gradebook's database: one pool of connections for all of nbgrader's steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine as new_engine
from sqlalchemy.orm import scoped_session

_LOCK_SECONDS = 30
"""How long SQLite waits for a gradebook that another program has locked."""

_ENGINES: dict[str, Any] = {}

_GRADEBOOKS: dict[tuple[Any, ...], Any] = {}
"""The first gradebook opened for each database and course; it has read schema and course."""


def _create_engine(url: str, **options: Any) -> Any:
    """Return this process's connection pool for a database."""
    if url not in _ENGINES:
        if url.startswith("sqlite"):
            options["connect_args"] = {"timeout": _LOCK_SECONDS}
        _ENGINES[url] = new_engine(url, **options)
    return _ENGINES[url]


@contextmanager
def one_engine() -> Iterator[None]:
    """Let all of nbgrader's steps share one connection pool and read the schema once.

    nbgrader opens the gradebook eight times for a submission. With a new pool each time,
    SQLAlchemy compiles every statement again, connects, and asks for every table and the course.
    """
    from nbgrader import api

    book = api.Gradebook
    before = api.create_engine, book.__init__, book.close
    first = book.__init__

    def reopen(opened: Any, *what: Any) -> None:
        if known := _GRADEBOOKS.get(what):
            vars(opened).update(vars(known), db=scoped_session(known.db.session_factory))
        else:
            first(opened, *what)
            _GRADEBOOKS[what] = opened

    api.create_engine, book.__init__ = _create_engine, reopen
    book.close = lambda opened: opened.db.remove()
    try:
        yield
    finally:
        api.create_engine, book.__init__, book.close = before


def disconnect() -> None:
    """Close the pools of this process: a connection must not cross a fork."""
    _GRADEBOOKS.clear()
    while _ENGINES:
        _ENGINES.popitem()[1].dispose()
