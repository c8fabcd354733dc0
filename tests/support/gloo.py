"""Two processes that train together over Gloo, as torchrun would start them."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_two(worker, *arguments, seconds):
    """Run a script of this folder in two processes, until both have ended without an error."""
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
    }
    how = {"stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, Path(__file__).with_name(worker), *arguments]
    started = []
    try:
        for rank in ("0", "1"):
            own = {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"}
            started.append(
                subprocess.Popen(command, env={**os.environ, **place, **own}, **how)
            )
        errors = [process.communicate(timeout=seconds)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(errors)
