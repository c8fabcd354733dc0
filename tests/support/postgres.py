"""A PostgreSQL server of one's own, in a folder that goes with it, behind a Unix socket."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest


def programs():
    """The folder of PostgreSQL's programs; skips where there is none."""
    places = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        Path(shutil.which("initdb") or "-").parent,
    ]
    if not (found := [place for place in places if (place / "initdb").is_file()]):
        if os.environ.get("MPLAB_REQUIRE_POSTGRES") == "1":
            pytest.fail(
                "PostgreSQL is not installed, and MPLAB_REQUIRE_POSTGRES=1 asks for it"
            )
        pytest.skip("PostgreSQL is not installed")
    return found[0]


@contextmanager
def server():
    """Start a server: what makes a database of a name and gives its URL."""
    place = programs()
    # It refuses to run as root, and takes a socket's path of 107 letters at most.
    who = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    folder = tempfile.mkdtemp(prefix="mplab-pg-", dir="/tmp")
    if who:
        shutil.chown(folder, **who)

    def call(program, *arguments):
        subprocess.run([place / program, *arguments], cwd=folder, check=True, **who,
                       stdout=subprocess.DEVNULL, timeout=120)  # fmt: skip

    try:
        make = f"initdb -D {folder}/data -U postgres --auth=trust --no-sync"
        call(*make.split())
        options = (
            f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        )
        control = f"pg_ctl -D {folder}/data -w -l {folder}/log".split()
        start = partial(call, *control, "-o", options, "start")
        start()
        try:

            def database(name):
                call("createdb", "-h", folder, "-U", "postgres", name)
                return f"postgresql+psycopg://postgres@/{name}?host={folder}"

            database.folder = Path(folder)
            database.start = start
            database.stop = partial(call, *control, "-m", "immediate", "stop")
            yield database
        finally:
            with suppress(subprocess.CalledProcessError):  # it has been stopped
                database.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
