"""Run JupyterLab's kernels in the sandbox too, when a teacher opens a student's notebook.

`mplab grade serve` selects this provisioner. A kernel in a submission's folder runs in the
sandbox; any other kernel, such as one for the teacher's source, starts as usual.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from mplab.grading.bubblewrap import import_path, sandboxed
from mplab.grading.isolation import filter_program
from mplab.grading.sandbox import Limits, require_sandbox

_NETLINK = 16  # AF_NETLINK of <bits/socket.h>: without it ZeroMQ finds no address of its own

_STEPS = ("submitted", "autograded", "feedback")


def submission_of(folder: str | Path) -> Path | None:
    """Return the submission that a folder lies in; None if it lies in none.

    Examples:
        >>> submission_of("/srv/course/source/a1") is None
        True
    """
    path = Path(folder).resolve()
    for place in (path, *path.parents):
        step, course = place.parent.parent, place.parent.parent.parent
        if step.name in _STEPS and (course / "nbgrader_config.py").is_file():
            return place
        if place.name in _STEPS and (place.parent / "nbgrader_config.py").is_file():
            return path
    return None


class SandboxProvisioner(LocalProvisioner):  # type: ignore[misc, unused-ignore]
    """Starts a kernel in bubblewrap if it is opened on a submission.

    It talks over sockets in a private folder, because the sandbox has no network, and is
    interrupted by a message, because signals do not get in.
    """

    _sockets: str | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Choose a private folder for the sockets, before the connection file is written."""
        self._submission = submission_of(kwargs.get("cwd") or Path.cwd())
        if self._submission is not None:
            require_sandbox()
            if self._sockets is None:  # a restarted kernel keeps its sockets
                self._sockets = tempfile.mkdtemp(prefix="mplab-k-")
            Path(self._sockets).chmod(0o711)
            inner = Path(self._sockets, "s")
            inner.mkdir(exist_ok=True)
            inner.chmod(0o777)  # as root, the kernel is nobody; the name of the folder is secret
            manager: Any = self.parent
            manager.transport, manager.ip = "ipc", str(inner / "k")
            manager.cache_ports = False
            self.kernel_spec.interrupt_mode = "message"
        return await super().pre_launch(**kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Launch the kernel, in the sandbox if it belongs to a submission."""
        if self._submission is None or self._sockets is None:
            return await super().launch_kernel(cmd, **kwargs)
        with tempfile.TemporaryFile() as rules:
            rules.write(filter_program(platform.machine(), (_NETLINK,)))
            rules.seek(0)
            kwargs |= {"cwd": "/", "pass_fds": [rules.fileno()]}
            return await super().launch_kernel(self._walled(cmd, rules.fileno()), **kwargs)

    def _walled(self, command: list[str], rules: int) -> list[str]:
        """Put the command in the sandbox: the submission readable, the sockets writable."""
        assert self._submission is not None and self._sockets is not None
        inner = Path(self._sockets, "s")
        manager: Any = self.parent
        written = str(manager.connection_file)
        connection = inner / "connection.json"
        shutil.copyfile(written, connection)
        connection.chmod(0o644)
        words = [word.replace(written, str(connection)) for word in command]
        limits = Limits()
        bounds = [f"--as={limits.memory}", f"--nproc={limits.processes}", "--core=0"]
        bounds += [f"--fsize={limits.disk_bytes}", "--nofile=256"]
        start = ["sh", "-c", 'cd "$0"; exec "$@"', str(self._submission)]
        python, *rest = words
        return sandboxed(
            ["prlimit", *bounds, "--", *start, python, "-P", *rest],
            readable=[self._submission],
            writable=[inner],
            environment={"PYTHONPATH": ":".join(import_path())},
            rules=rules,
        )

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the sockets."""
        await super().cleanup(restart=restart)
        if self._sockets is not None and not restart:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
