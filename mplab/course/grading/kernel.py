"""The program inside the sandbox: warmed up once, then forked for each submission.

It is started by path with `python -I`, so that no student's folder is on `sys.path` when
anything is imported. The grader does not trust its answers.
"""

import base64
import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

_MAX_TEXT = 60_000  # characters of output kept per cell

_MAX_IMAGES = 1_500_000  # bytes of pictures kept per cell, as base64

_KILLED = 113
"""The exit status of a guard whose process was killed."""

_LATE_SECONDS = 2.0
"""How long to wait for an interrupt that was sent when there was an answer already."""

_EXIT_SECONDS = 10.0
"""How long a guard that no longer listens may take to exit."""

_HEADER = struct.Struct(">I")


def packed(message: Any) -> bytes:
    """Write a message as it is sent: its length, then JSON."""
    body = json.dumps(message).encode()
    return _HEADER.pack(len(body)) + body


def receive(channel: socket.socket) -> Any:
    """Wait for one message.

    Raises:
        EOFError: the other side has gone.
    """
    # The file may read ahead. Nothing is lost: whoever sent a message waits for its answer.
    with channel.makefile("rb") as file:
        length = file.read(_HEADER.size)
        if len(length) < _HEADER.size:
            raise EOFError
        return json.loads(file.read(*_HEADER.unpack(length)))


class Outputs:
    """Records the outputs of a cell as a notebook holds them, within bounds."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Discard all outputs."""
        self.outputs: list[dict[str, Any]] = []
        self._text_left = _MAX_TEXT
        self._image_left = _MAX_IMAGES

    def text(self, name: str, text: str) -> None:
        """Add text to a stream."""
        kept = str(text)[: self._text_left]
        self._text_left -= len(kept)
        last = self.outputs[-1] if self.outputs else {}
        if last.get("name") == name:
            last["text"] += kept
        elif kept:
            output = {"output_type": "stream", "name": name, "text": kept}
            self.outputs.append(output)

    def show(self, data: dict[str, Any]) -> None:
        """Add a picture or a text that was displayed; other kinds are dropped."""
        image = data.get("image/png")
        text = str(data.get("text/plain", ""))
        if isinstance(image, bytes):
            image = base64.b64encode(image).decode("ascii")
        if isinstance(image, str) and len(image) <= self._image_left:
            self._image_left -= len(image)
            kept = {"image/png": image, "text/plain": text[:200]}
        else:
            kept = {"text/plain": text[: self._text_left]}
        self.outputs.append({"output_type": "display_data", "data": kept})

    def error(self, kind: str, message: str, lines: list[str]) -> None:
        """Add an error."""
        about = {"ename": kind[:100], "evalue": message[:2000]}
        trace = "\n".join(lines)[-8000:]
        self.outputs.append({"output_type": "error", "traceback": [trace], **about})


class _Stream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a cell."""

    def __init__(self, outputs: Outputs, name: str) -> None:
        self._outputs = outputs
        self._name = name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._outputs.text(self._name, text)
        return len(text)


def make_shell(outputs: Outputs) -> Any:
    """Make an IPython without terminal, history or network, whose outputs go to `outputs`."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets import Type
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        def publish(self, data: dict[str, Any], *_: Any, **__: Any) -> None:
            outputs.show(data)

    class Hook(DisplayHook):
        def write_output_prompt(self) -> None: ...

        def write_format_data(
            self, format_dict: dict[str, Any], md_dict: Any = None
        ) -> None:
            outputs.show(format_dict)

        def finish_displayhook(self) -> None: ...

    class Shell(InteractiveShell):
        display_pub_class = Type(Publisher)
        displayhook_class = Type(Hook)

        # There are no windows, and the kernel shows the figures of a cell itself.
        def enable_gui(self, gui: str | None = None) -> None: ...

        def enable_matplotlib(self, gui: str | None = None) -> tuple[None, str]:
            return None, "agg"

        # Private to IPython. Without the first, it keeps a second copy of all that a cell prints,
        # however much; without the second, it prints an exception instead of handing it over.
        def _tee(self, channel: str) -> Any:
            return contextlib.nullcontext()

        def _showtraceback(
            self, etype: type, evalue: BaseException, stb: list[str]
        ) -> None:
            outputs.error(etype.__name__, str(evalue), stb)

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.autoindent = False
    return Shell.instance(config=config)


class Kernel:
    """Runs the cells of a submission and calls its functions."""

    def __init__(self, shell: Any, outputs: Outputs, values: Any) -> None:
        self._shell = shell
        self._outputs = outputs
        self._values = values
        self._works = False
        self._counted_all = True
        self._interrupts = 0

    def serve(self, channel: socket.socket) -> None:
        """Answer requests until the grader has gone."""
        while True:
            signal.signal(signal.SIGINT, self._interrupt)
            request = receive(channel)
            self._await_interrupts(request["interrupts"])
            try:
                self._works = True
                answer = getattr(self, "do_" + request["do"])(request)
            except KeyboardInterrupt:
                answer = {"interrupted": True}
            except RecursionError:
                answer = {"failed": "RecursionError"}
            self._works = False
            # Else the submission took interrupts, and nobody knows how many.
            self._counted_all = signal.getsignal(signal.SIGINT) == self._interrupt
            channel.sendall(packed({**answer, "id": request["id"]}))

    def _await_interrupts(self, sent: int) -> None:
        """Let an interrupt of the request before pass, which two processes may still hand on."""
        until = time.monotonic() + _LATE_SECONDS
        while (
            self._counted_all and self._interrupts < sent and time.monotonic() < until
        ):
            time.sleep(0.001)
        self._interrupts = sent

    def _interrupt(self, *_: Any) -> None:
        """Count an interrupt; one that comes when there is an answer ends nothing."""
        self._interrupts += 1
        if self._works:
            raise KeyboardInterrupt

    def do_files(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write the files of the submission into the working folder."""
        for name, content in request["files"].items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(content))
        sys.path.append(os.getcwd())  # last: a file named like a library replaces none
        return {}

    def do_run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one cell."""
        self._outputs.clear()
        with self._captured():
            result = self._shell.run_cell(request["source"], store_history=False)
            self._show_figures()
        return {"outputs": self._outputs.outputs, "ok": bool(result.success)}

    def do_ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the value of a name, or the results of its function for each case."""
        from mplab.course.exercises.calls import watched
        from mplab.course.exercises.exercise import noticing_changes

        name = request["name"]
        if name not in self._shell.user_ns:
            return {"missing": True}
        answer = self._shell.user_ns[name]
        called: list[str] = []
        changed: list[Any] = []
        with self._captured():
            if request["cases"] is None:
                return {"values": [self._outcome(lambda: answer, ())]}
            if not callable(answer):
                return {"kind": type(answer).__name__[:50]}
            answer = watched(answer, request["uses"], called)
            answer = noticing_changes(answer, changed)
            values = []
            for case in request["cases"]:
                arguments = self._values.decode_own(case)
                values.append(self._outcome(answer, arguments))
        return {"values": values, "called": called[:1], "changed": bool(changed)}

    def _outcome(self, call: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
        try:
            return {"value": self._values.encode_value(call(*arguments))}
        except (Exception, SystemExit) as error:
            if isinstance(error, self._values.UnsupportedValue):
                return {"foreign": str(error)[:300]}
            return {"raised": type(error).__name__[:80], "message": str(error)[:300]}

    @contextlib.contextmanager
    def _captured(self) -> Any:
        """Keep what is printed, and close all figures in the end."""
        out = _Stream(self._outputs, "stdout")
        err = _Stream(self._outputs, "stderr")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                yield
            finally:
                if pyplot := sys.modules.get("matplotlib.pyplot"):
                    pyplot.close("all")

    def _show_figures(self) -> None:
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        for number in pyplot.get_fignums()[:10] if pyplot else ():
            picture = io.BytesIO()
            try:
                pyplot.figure(number).savefig(picture, format="png", dpi=72)
            except Exception:  # such as a formula that is none
                self._shell.showtraceback()
                continue
            shown = {"image/png": picture.getvalue(), "text/plain": "figure"}
            self._outputs.show(shown)


class ForkServer:
    """The warm process: forks an isolated process per submission, interrupts it, ends it."""

    def __init__(
        self,
        control: socket.socket,
        config: dict[str, Any],
        kernel: Kernel,
    ) -> None:
        self._control = control
        self._config = config
        self._kernel = kernel
        self._child = 0

    def serve(self) -> None:
        """Follow the grader's orders until it has gone."""
        self._control.sendall(packed({"ready": True}))
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._control, 64, 1)
            if not message:
                self._end()
                return
            order = message.decode("ascii").strip()
            killed = False
            if order == "start":
                self._start(descriptors[0])
            elif order == "interrupt" and self._child:
                os.kill(self._child, signal.SIGUSR1)
            elif order == "end":
                killed = self._end()
            elif order == "ended":
                killed = self._end(_EXIT_SECONDS)
            self._control.sendall(packed({"done": order, "killed": killed}))

    def _start(self, descriptor: int) -> None:
        self._child = os.fork()
        if self._child == 0:
            status = 1
            try:
                self._serve_isolated(descriptor)
            except EOFError:  # the grader has gone
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)  # it must never go on as the warm process
        os.close(descriptor)

    def _end(self, seconds: float = 0.0) -> bool:
        """End the submission, and return whether it was killed from outside.

        Args:
            seconds: to wait until it ends by itself, because it no longer listens.
        """
        child = self._child
        self._child = 0
        if not child:  # the submission belonged to an earlier warm process
            return bool(seconds)
        until = time.monotonic() + seconds
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return _killed(status)
            if time.monotonic() >= until:
                break
            time.sleep(0.01)
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        return False

    def _serve_isolated(self, descriptor: int) -> None:
        """Isolate the submission, and answer the grader's requests."""
        self._control.close()
        channel = socket.socket(fileno=descriptor)
        try:
            self._isolate()
        except OSError as error:
            channel.sendall(packed({"id": 1, "failed": str(error)}))
            raise
        if self._config["isolate"] or self._config["account"]:
            link_compiled()  # its own folder hides that of the warm process
        self._kernel.serve(channel)

    def _isolate(self) -> None:
        """Fork a guard outside the namespaces, their first process, and the kernel, in a chain.

        It returns in the kernel's process, and never in those above it.
        """
        from mplab.course.grading import isolation

        if self._config["isolate"]:
            isolation.enter_namespaces()
            isolation.hide_memory()
            _fork_and_guard(own_group=False)
            isolation.make_private_files(self._config["limits"]["disk_bytes"])
            isolation.drop_privileges()
            isolation.hide_memory()
            isolation.filter_system_calls()
            _fork_and_guard(own_group=False)
        elif account := self._config["account"]:
            isolation.make_own_folder(self._config["folder"], account)
            isolation.guard_account()
            _fork_and_guard(
                own_group=True, ending=lambda: isolation.end_account(account)
            )
            os.chdir(self._config["folder"])
            isolation.become_account(account)
        else:
            _fork_and_guard(own_group=True)
            os.chdir(self._config["folder"])
        isolation.limit_resources(self._config["limits"])


def _killed(status: int) -> bool:
    """Whether a process was killed, or reports this of the process that it guards.

    Short of memory, a machine kills processes by this signal; a program's own faults give others.
    """
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGTERM)
    return os.WEXITSTATUS(status) == _KILLED


def _fork_and_guard(*, own_group: bool, ending: Any = int) -> None:
    """Fork and return in the child; the parent passes signals on, waits, and exits with it.

    Args:
        own_group: whether the child leads a group of its own, which ends with it.
        ending: called when the group has been killed.
    """
    # Blocked signals wait until `sigwait` takes them, one after the other. A handler would run
    # inside another one, too, and a fork inside a fork waits for ever for the first one's locks.
    awaited = {signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child == 0:
        if own_group:
            os.setsid()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        return
    # The kernel listens to SIGINT; another guard, between this one and the kernel, to SIGUSR1.
    above_kernel = own_group or os.getpid() == 1
    interrupt = signal.SIGINT if above_kernel else signal.SIGUSR1
    kill = os.killpg if own_group else os.kill

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
        ending()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The guard holds no end of the channel: when the kernel dies, the grader reads end of file.
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    ended = 0
    while ended != child:
        number = signal.sigwait(awaited)
        if number == signal.SIGUSR1:
            os.kill(child, interrupt)
        elif number == signal.SIGTERM:
            end()
        ended = -1
        while ended not in (0, child):  # orphans come to a namespace's first process
            ended, status = os.waitpid(-1, os.WNOHANG)
    if own_group:
        end()
    os._exit(_KILLED if _killed(status) else 0)


def link_compiled() -> None:
    """Link this library's compiled functions into a writable folder, because numba uses no other.

    A submission then need not compile them, which takes seconds. numba's name for the folder is
    not documented: under another name, every submission compiles for itself.

    The linked files are read-only.
    """
    for compiled in Path(__file__).parents[2].glob("*/__pycache__/*.nb[ci]"):
        room = compiled.parents[1]
        name = f"{room.name}_{hashlib.sha1(str(room).encode()).hexdigest()}"
        folder = Path(os.environ["NUMBA_CACHE_DIR"], name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / compiled.name).symlink_to(compiled)


def main(config: dict[str, Any]) -> None:
    """Become the warm process."""
    control = socket.socket(fileno=config["control"])
    sys.path[:] = config["path"]
    from mplab.course.grading import isolation, serialization as values

    isolated = config["isolate"] or config["account"]
    if isolated:
        isolation.hide_memory()
        link_compiled()
    outputs = Outputs()
    shell = make_shell(outputs)
    namespace: dict[str, Any] = {}
    exec(config["warm"], namespace)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    if isolated:
        os.dup2(null, 2)
    ForkServer(control, config, Kernel(shell, outputs, values)).serve()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
