"""The sandbox from outside: check that there is one, and talk to the submissions in it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from mplab.course.exercises.limit import ran_and_waited
from mplab.course.grading.bubblewrap import environment, import_path, sandboxed
from mplab.course.grading.kernel import packed, receive

_MESSAGE_BYTES = 4 << 20
"""The longest message taken from a submission. Reading JSON takes twenty times its length."""

_OUTPUT_BYTES = 16 << 20
"""The most that is kept of all outputs of a submission."""

_GRACE = 3.0  # seconds between an interrupt and the end

_SOCKET_BYTES = 212_992  # what a socket buffers at most, by Linux's default

_TICK = 0.25  # seconds between two checks of memory and processes

_ACCOUNT = 60_001
"""The first user id for submissions: Debian gives it to nobody, and any container has it."""


_MEMORY_LINES = re.compile(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)


class NoSandbox(RuntimeError):
    """Submissions of strangers cannot be run safely here; the message says what to do or why."""


class Died(Exception):
    """The submission's kernel is gone; the message is the reason, for the feedback."""


@dataclass(frozen=True)
class Limits:
    """Limits on the resources of one submission.

    Args:
        memory: bytes of address space per process; torch, numba and matplotlib need 2 GiB.
        resident: bytes in memory of all its processes together: private, shared and swapped,
            and what the buffers of their sockets can hold.
        processes: at once.
        cpu_seconds: of each process.
        cell_seconds: until a cell is interrupted; time waiting for a processor does not count.
        total_seconds: until the submission is ended, without waiting; if it waits longer than
            this, the machine is too busy to grade it.
        disk_bytes: of its working folder, which lies in memory.
    """

    memory: int = 4 << 30
    resident: int = 2 << 30
    processes: int = 64
    cpu_seconds: int = 240
    cell_seconds: float = 30.0
    total_seconds: float = 300.0
    disk_bytes: int = 64 << 20


class CellResult(NamedTuple):
    """The outputs of a cell as a notebook holds them, unchecked, and whether no error arose."""

    outputs: list[dict[str, Any]]
    ok: bool


def sandbox_problem() -> str | None:
    """Return why there is no sandbox on this machine; None if there is one."""
    if sys.platform != "linux":
        return f"the sandbox needs Linux; this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return "bubblewrap (the command bwrap) is not installed"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "running as root needs setpriv, of the package util-linux"
    return _trial()


def account_problem() -> str | None:
    """Return why submissions cannot run as another account here; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "another account for submissions needs Linux and root"
    return _trial(account=True)


@cache
def _trial(account: bool = False) -> str | None:
    """Try to start a process in a sandbox within the sandbox, and return what goes wrong."""
    try:
        with WarmSandbox(account=account) as sandbox, sandbox.session({}) as session:
            # Even this imports libraries that nothing imported before.
            if not session.run("pass").ok:
                return f"inside, libraries in {sys.prefix} or {sys.base_prefix} cannot be read"
    except (OSError, NoSandbox, Died) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        # With a traceback Python started, so the sandbox is there.
        if any(line.startswith("Traceback") for line in reason):
            return (
                f"the grader's own libraries do not start in the sandbox: {reason[-1]}"
            )
        return f"the kernel of this system refuses it: {' '.join(reason)}"
    return None


def require_sandbox() -> None:
    """Check that strangers' submissions can be run safely here.

    Raises:
        NoSandbox: they cannot; with the reason and the ways out.
    """
    problem = sandbox_problem()
    if problem is None:
        return
    raise NoSandbox(
        f"submissions run programs of people you do not know, and {problem}. Three ways out: "
        "(1) install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install "
        "bubblewrap), and in a container allow user namespaces (Docker: --security-opt "
        "seccomp=unconfined --security-opt systempaths=unconfined --security-opt "
        "apparmor=unconfined; Ubuntu 24.04 and later: sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0); (2) grade on a Linux machine, in a "
        "virtual machine or in WSL2; (3) if you know that every submission is harmless, say so: "
        "--trust-submissions."
    )


class WarmSandbox(contextlib.AbstractContextManager["WarmSandbox"]):
    """A warm process in a sandbox, in which submissions run one after the other.

    Args:
        warm: source to run once, before any submission: imports, and calls that compile.
        limits: what one submission may use.
        trusted: run without a sandbox. Only for submissions known to be harmless.
        account: run as another account instead, without namespaces. Only for root in a container
            that holds nothing but this submission.
    """

    def __init__(
        self,
        *,
        warm: str = "",
        limits: Limits | None = None,
        trusted: bool = False,
        account: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._warm = warm
        self._trusted = trusted
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def isolated(self) -> bool:
        """Whether submissions run in the sandbox."""
        return not (self._trusted or self._account)

    @property
    def process_id(self) -> int:
        """The id of the process, which is started if it is not running."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        return self._process.pid

    def _start(self) -> None:
        self.close()
        mine, theirs = socket.socketpair()
        folder = ""
        if not self.isolated:  # inside the sandbox there is a folder in memory instead
            self._folder = tempfile.TemporaryDirectory(prefix="mplab-submission-")
            folder = self._folder.name
        if self._account:
            Path(folder).chmod(0o711)
            folder += "/work"
            Path(folder).mkdir()
        config = {
            "control": theirs.fileno(),
            "path": import_path(),
            "warm": self._warm,
            "isolate": self.isolated,
            "account": _ACCOUNT + os.getpid() % 4_000 if self._account else 0,
            "folder": folder,
            "limits": asdict(self.limits),
        }
        program = str(Path(__file__).resolve().with_name("kernel.py"))
        command = [sys.executable, "-I", "-B", program, json.dumps(config)]
        if self.isolated:
            command = sandboxed(command)
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment(folder) if self._account else None,
            )
            theirs.close()
            self._control = mine
            mine.settimeout(600)  # beside 50 busy processes its imports take minutes
            try:
                receive(mine)
            except (OSError, ValueError, EOFError) as error:
                self.close()
                errors.seek(0)
                text = errors.read()[-2000:].decode(errors="replace")
                lines = text.strip().splitlines() or [str(error)]
                # the last line of a traceback matters most
                raise NoSandbox("\n".join([lines[-1], *lines[:-1]])) from error

    def order(self, word: str, descriptor: int | None = None) -> bool:
        """Tell the warm process to start, interrupt or end a submission, and wait for it.

        Returns:
            Whether the submission had been killed from outside.
        """
        if self._control is None:
            raise ConnectionError("the warm process was ended")
        self._control.settimeout(20)
        descriptors = [] if descriptor is None else [descriptor]
        socket.send_fds(self._control, [word.encode() + b"\n"], descriptors)
        try:
            return receive(self._control)["killed"] is True
        except EOFError as error:
            raise ConnectionError("the warm process ended") from error

    @contextlib.contextmanager
    def session(self, files: Mapping[str, bytes]) -> Iterator[Session]:
        """Start an isolated process for one submission, with its files.

        Raises:
            NoSandbox: it could not be started, was killed, or had to wait for a processor for too
                long, through no fault of the submission.
        """
        warm = psutil.Process(self.process_id)
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                self.order("start", theirs.fileno())
        except OSError as error:
            mine.close()
            self.close()
            raise NoSandbox(f"the sandbox does not answer: {error}") from error
        try:
            session = Session(self, mine, warm)
            session.put(files)
            yield session
        except (OSError, psutil.Error) as error:
            raise NoSandbox(f"the sandbox ended: {error}") from error
        finally:
            mine.close()
            try:
                self.order("end")
            except OSError:
                self.close()

    def close(self) -> None:
        """End the process and everything that runs in it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class _Threads:
    """The seconds that a submission's threads ran, and that they waited for a processor."""

    def __init__(self) -> None:
        self.ran = self.waited = 0.0
        self._known: dict[str, tuple[float, float]] = {}

    def look(self, processes: Sequence[psutil.Process]) -> None:
        """Add what has happened since the last look."""
        found = {
            task: ran_and_waited(task)
            for process in processes
            for task in glob(f"/proc/{process.pid}/task/*")
        }
        for task, (ran, waited) in found.items():
            ran_before, waited_before = self._known.get(task, (0.0, 0.0))
            self.ran += ran - ran_before
            self.waited += waited - waited_before
        self._known = found


def _without_waiting(passed: float, ran: float, waited: float) -> float:
    """Return how many of the seconds passed were a submission's own.

    Not those in which it waited for processors that others used; but its processes may wait for
    each other, so what they ran counts.
    """
    return max(passed - waited, min(ran, passed))


class Session:
    """One submission's kernel. Its replies are bounded, and not trusted."""

    def __init__(
        self, sandbox: WarmSandbox, channel: socket.socket, warm: psutil.Process
    ) -> None:
        self._sandbox = sandbox
        self._channel = channel
        self._number = 0
        self._received = 0
        self._dead: str | None = None
        self._warm = warm  # if it was killed, the sandbox may have another by now
        self._threads = _Threads()
        self._before: tuple[float, float] | None = None
        self._began = self._looked = time.monotonic()
        self._passed = 0.0
        self.interrupts = 0
        """How often something ran too long and was interrupted."""

    @property
    def spent(self) -> float:
        """The seconds that all requests took, without waiting."""
        return _without_waiting(self._passed, self._threads.ran, self._threads.waited)

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files beside the notebook."""
        encoded = {
            name: base64.b64encode(data).decode() for name, data in files.items()
        }
        try:
            failed = self._request({"do": "files", "files": encoded}, 20.0).get(
                "failed"
            )
        except Died as death:
            failed = str(death)
        if failed:  # nothing of the submission has run
            raise NoSandbox(str(failed)[:200])

    def run(self, source: str, *, seconds: float | None = None) -> CellResult:
        """Run a cell.

        Raises:
            Died: the kernel did not survive it.
        """
        reply = self._request({"do": "run", "source": source}, seconds)
        outputs = reply.get("outputs", [])
        if not isinstance(outputs, list) or len(outputs) > 1000:
            raise self._broken("its outputs are no list")
        if self._received > _OUTPUT_BYTES:
            text = "(the notebook shows too much to keep)\n"
            outputs = [{"output_type": "stream", "text": text}]
        return CellResult(
            [o for o in outputs if isinstance(o, dict)], reply.get("ok") is True
        )

    def ask(
        self,
        name: str,
        cases: Sequence[Any] | None,
        *,
        seconds: float | None = None,
        uses: Sequence[str] | None = None,
    ) -> Any:
        """Return the value of a name (`cases` None), or its function's results for encoded cases.

        It may call the library functions in `uses`, or all if None; the reply names other calls.

        Returns:
            The reply as it came: a dictionary of unknown content.

        Raises:
            Died: the kernel did not survive it.
        """
        return self._request(
            {"do": "ask", "name": name, "cases": cases, "uses": uses}, seconds
        )

    def _request(
        self, message: dict[str, Any], seconds: float | None
    ) -> dict[str, Any]:
        if self._dead:
            raise Died(self._dead)
        self._number += 1
        limits = self._sandbox.limits
        allowed = limits.cell_seconds if seconds is None else seconds
        allowed = min(allowed, limits.total_seconds - self.spent)
        self._began = time.monotonic()
        self._before = None
        try:
            known = {"id": self._number, "interrupts": self.interrupts}
            self._send(packed({**message, **known}), allowed)
            data = self._receive(allowed)
        finally:
            self._passed += time.monotonic() - self._began
        self._received += len(data)
        try:
            # NaN is no JSON, and for `int` no number, so that it raises.
            reply = json.loads(data.decode("utf-8", "replace"), parse_constant=int)
        except (ValueError, RecursionError) as error:
            raise self._broken("its answer is not what was asked for") from error
        if not isinstance(reply, dict) or reply.get("id") != self._number:
            raise self._broken("its answer is not what was asked for")
        return reply

    def _send(self, data: bytes, allowed: float) -> None:
        view = memoryview(data)
        self._channel.setblocking(False)
        while view:
            if not select.select([], [self._channel], [], _TICK)[1]:
                if self._watch() > allowed:
                    raise self._broken("it no longer listens")
                continue
            try:
                view = view[self._channel.send(view) :]
            except OSError as error:
                raise self._broken("its process ended", "ended") from error

    def _receive(self, allowed: float) -> bytes:
        data = bytearray()
        wanted = 4
        interrupted = False
        while len(data) < wanted:
            ready = select.select([self._channel], [], [], _TICK)[0]
            # Also while it keeps talking.
            late = not ready or time.monotonic() > self._looked + _TICK
            if late and self._watch() > allowed:
                spent = self.spent + allowed
                if interrupted or spent >= self._sandbox.limits.total_seconds:
                    raise self._broken("it ran too long and could not be interrupted")
                self._sandbox.order("interrupt")
                self.interrupts += 1
                interrupted = True
                allowed += _GRACE
            if not ready:
                continue
            try:
                part = self._channel.recv(1 << 16)
            except OSError:
                part = b""
            if not part:
                raise self._broken("its process ended", "ended")
            data += part
            if wanted == 4 and len(data) >= 4:
                wanted = 4 + int.from_bytes(data[:4], "big")
                if wanted > _MESSAGE_BYTES:
                    raise self._broken("it answered with too much")
        if len(data) > wanted:
            raise self._broken("it answered more than it was asked")
        return bytes(data[4:])

    def _watch(self) -> float:
        """Return the seconds that a request has taken, without waiting.

        Raises:
            Died: the submission's processes hold more memory than they may.
            NoSandbox: they have waited for too long.
        """
        self._looked = time.monotonic()
        used = 0
        limits = self._sandbox.limits
        processes = self._warm.children(recursive=True)
        self._threads.look(processes)
        for process in processes:
            with contextlib.suppress(psutil.Error, OSError):
                used += _memory_of(process)
        if self._sandbox.isolated:
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                # The newest is in the submission's namespaces.
                newest = max(processes, key=lambda p: (p.create_time(), p.pid))
                sockets = Path(f"/proc/{newest.pid}/net/sockstat").read_bytes()
                # The first line: "sockets: used 3"
                used += int(sockets.split()[2]) * _SOCKET_BYTES
        if used > limits.resident:
            most = limits.resident >> 20
            raise self._broken(f"it held more than {most} MiB of memory")
        ran = self._threads.ran
        waited = self._threads.waited
        passed = time.monotonic() - self._began
        together = self._passed + passed
        if together - _without_waiting(together, ran, waited) > limits.total_seconds:
            raise NoSandbox(
                "the machine is too busy: it waited too long for a processor"
            )
        self._before = before = self._before or (ran, waited)
        return _without_waiting(passed, ran - before[0], waited - before[1])

    def _broken(self, reason: str, order: str = "end") -> Died | NoSandbox:
        """End the submission, and return the error to raise."""
        self._dead = reason
        self._channel.close()
        try:
            if not self._sandbox.order(order):
                return Died(reason)
        except OSError:
            pass  # the warm process does not answer either, so nobody can tell whose fault it was
        return NoSandbox(
            "a process of the sandbox was killed, by the machine or by the submission itself"
        )


def _memory_of(process: psutil.Process) -> int:
    """Return the memory that a process holds, without the files that it has mapped, in bytes."""
    if sys.platform != "linux":
        return int(process.memory_info().rss)
    status = Path(f"/proc/{process.pid}/status").read_text(
        encoding="utf-8", errors="replace"
    )
    return 1024 * sum(int(size) for size in _MEMORY_LINES.findall(status))
