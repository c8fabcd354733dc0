"""Kernels that a teacher opens: on a submission behind the walls of grading, elsewhere as ever."""

import os

import pytest
from classroom import WALLS
from jupyter_client import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory

from mplab.grading.folder import create_course
from mplab.grading.provisioner import SandboxProvisioner
from mplab.grading.sandbox import sandbox_problem

TRIES = """
import mmap, os, socket
tries = {
    "memory without a name": lambda: os.memfd_create("x"),
    "memory without a file": lambda: mmap.mmap(-1, 4096),
    "another machine": lambda: socket.socket(socket.AF_VSOCK),
    "the network": lambda: socket.create_connection(("127.0.0.1", %d), 2),
    "the key": lambda: open(%r),
}
for name, act in tries.items():
    try:
        act()
        print(name)
    except OSError:
        pass
print("as", os.getuid())
"""


def shown(course, folder, source, monkeypatch):
    """What a kernel prints that is opened on a folder of a course, and started once again."""

    def provisioner(self, kernel_id, kernel_spec, parent):
        return SandboxProvisioner(kernel_id=kernel_id, kernel_spec=kernel_spec, parent=parent)

    monkeypatch.setattr(KernelProvisionerFactory, "create_provisioner_instance", provisioner)
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(course.root / folder))
    manager.restart_kernel(now=True)
    client = manager.blocking_client()
    texts = []
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        client.execute_interactive(
            source, timeout=60, store_history=False,
            output_hook=lambda m: texts.append(m["content"].get("text", "")),
        )  # fmt: skip
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return "".join(texts).splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not WALLS, reason=str(sandbox_problem()))
@pytest.mark.filterwarnings("ignore:.*(Unraisable|unclosed|encryption|TCP).*")
def test_a_kernel_on_a_submission_has_the_walls_of_grading(tmp_path, monkeypatch):
    from stage import Listener

    course = create_course(tmp_path / "course")
    submission = course.root / "submitted" / "s01" / "a1"
    submission.mkdir(parents=True)
    with Listener() as listener:
        source = TRIES % (listener.port, str(course.root / ".mplab" / "key"))
        assert shown(course, "submitted/s01/a1", source, monkeypatch) == ["as 65534"]
        assert listener.calls == 0
        allowed = shown(course, "source/a1", source, monkeypatch)
    assert allowed[-1] == f"as {os.getuid()}"
    assert {"memory without a name", "memory without a file", "the network", "the key"} <= set(
        allowed
    )
