"""A processor that has other work."""

import contextlib
import os
import subprocess
import sys


@contextlib.contextmanager
def crowded_processor(others=3):
    """The number of a processor that endless processes share, each of a session of its own."""
    core = min(os.sched_getaffinity(0))
    endless = f"import os; os.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    with contextlib.ExitStack() as ended:
        for _ in range(others):
            command = [sys.executable, "-c", endless]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, start_new_session=True
            )
            ended.callback(process.communicate)
            ended.callback(process.kill)
            process.stdout.readline()
        yield core
