"""The sandbox from outside: what runs in it is bounded, alone, and gone afterwards."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from busy import crowded_processor
from cases import run_script
from classroom import WALLS, has_walls, with_walls

from mplab import Format
from mplab.common.installation import PACKAGE
from mplab.course.grading import isolation, sandbox as sandbox_module
from mplab.course.grading.bubblewrap import read_libraries, sandboxed
from mplab.course.grading.isolation import filter_program
from mplab.course.grading.sandbox import (
    Died,
    Limits,
    NoSandbox,
    Session,
    WarmSandbox,
    sandbox_problem,
)
from mplab.course.grading.sanitise import rebuild_output
from mplab.course.grading.serialization import encode_value

LIMITS = Limits(resident=200 << 20, disk_bytes=8 << 20)
"""Time is as for a class: what shall run out of it says so, so that a busy machine ends nothing."""


@pytest.fixture(scope="module")
def sandbox():
    with WarmSandbox(limits=LIMITS, trusted=not WALLS) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox):
    with sandbox.session({}) as session:
        yield session


def said(ran):
    """The texts that a cell has shown, and nothing of its pictures."""
    return "".join(o.get("text") or o["data"]["text/plain"] for o in ran.outputs)


def test_a_cell_shows_what_ipython_would_show(session):
    assert said(session.run("print('out'); 6 * 7")) == "out\n42"
    failed = session.run("1 / 0")
    assert not failed.ok
    assert failed.outputs[-1]["ename"] == "ZeroDivisionError"
    assert said(session.run("%%capture x\nprint(3)\n")) == ""
    assert (
        said(session.run("await __import__('asyncio').sleep(0, 'awaited')"))
        == "'awaited'"
    )
    assert said(session.run("import sys; print('err', file=sys.stderr)")) == "err\n"


@with_walls
def test_libraries_that_lie_outside_the_environment_are_there_inside(
    tmp_path, monkeypatch
):
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    (libraries / "elsewhere.py").write_text("x = 6 * 7")
    (tmp_path / "secret.py").write_text("x = 1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(libraries), str(tmp_path)])
    with WarmSandbox() as sandbox, sandbox.session({}) as session:
        assert said(session.run("import elsewhere; print(elsewhere.x)")) == "42\n"
        assert not session.run("import secret").ok


@with_walls
def test_the_sandbox_starts_although_nothing_that_it_shows_lies_below_tmp(monkeypatch):
    """As in a checkout below a home: bubblewrap in bubblewrap needs the folder, too."""
    monkeypatch.setattr(
        "mplab.course.grading.bubblewrap._system_paths", lambda: [Path("/usr")]
    )
    done = subprocess.run(
        sandboxed(["/usr/bin/true"]), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_libraries_that_do_not_start_are_not_blamed_on_bubblewrap(monkeypatch):
    def fail(*_):
        raise NoSandbox(
            "Traceback (most recent call last):\n  ...\nImportError: no numpy\n"
        )

    monkeypatch.setattr(WarmSandbox, "session", fail)
    assert sandbox_module._trial.__wrapped__() == (
        "the grader's own libraries do not start in the sandbox: ImportError: no numpy"
    )


def test_what_a_submission_shows_is_bounded_in_all_and_it_goes_on(session):
    show = "import os, base64; from IPython.display import display\n"
    show += "display({'image/png': base64.b64encode(os.urandom(1 << 20)).decode()}, raw=True)"
    kept = sum(len(str(session.run(show).outputs)) for _ in range(30))
    assert 10 << 20 < kept < 20 << 20
    session.run("def f(): return 3")
    assert session.ask("f", [{"tuple": []}])["values"] == [{"value": {"int": "0x3"}}]


def test_nothing_of_one_submission_is_there_for_the_next(sandbox):
    with sandbox.session({"left.py": b"x = 1"}) as session:
        session.run("import left, builtins, mplab; builtins.poison = mplab.poison = 1")
        session.run("open('mark', 'w').write('x')")
    with sandbox.session({}) as session:
        probe = "import builtins, mplab, sys, os; print(hasattr(builtins, 'poison'), "
        probe += (
            "hasattr(mplab, 'poison'), 'left' in sys.modules, os.path.exists('mark'))"
        )
        shown = said(session.run(probe))
    assert shown.startswith("False False False")
    assert sandbox_problem() or shown == "False False False False\n"


linux = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone tells how long a process waited"
)
WORK = "import time\ndef work(seconds):\n    end = time.thread_time() + seconds\n"
WORK += "    while time.thread_time() < end: pass\n"


def put_on(core, sandbox):
    for process in psutil.Process(sandbox.process_id).children(recursive=True):
        process.cpu_affinity([core])


@pytest.mark.slow
@linux
def test_fifty_busy_processes_of_a_neighbour_end_no_honest_cell(sandbox):
    thread = "import threading\nt = threading.Thread(target=work, args=[0.15])\n"
    child = "import os\nif not os.fork():\n    work(0.15)\n    os._exit(0)\nos.wait()"
    with sandbox.session({}) as session, crowded_processor(50) as core:
        put_on(core, sandbox)
        for code in ("work(0.15)", thread + "t.start(); t.join()", child):
            begun = time.monotonic()
            assert session.run(WORK + code, seconds=1).ok, code
            assert time.monotonic() - begun > 2, "the processor was not busy"
        assert session.interrupts == 0 and session.spent < 3


@pytest.mark.slow
@linux
def test_a_submission_that_has_waited_too_long_is_graded_later():
    """`autograde` tries again alone what raises this."""
    with (
        WarmSandbox(
            limits=replace(LIMITS, total_seconds=2), trusted=not WALLS
        ) as brief,
        pytest.raises(NoSandbox, match="the machine is too busy"),
        brief.session({}) as session,
        crowded_processor() as core,
    ):
        put_on(core, brief)
        session.run(WORK + "work(1.5)")


@pytest.mark.slow
@linux
def test_a_submission_s_own_busy_processes_are_no_neighbours(session):
    code = "import os\nfor _ in range(2): os.fork() or work(60)\nwork(60)"
    begun = time.monotonic()
    session.run(WORK + code, seconds=1)
    assert (session.interrupts, time.monotonic() - begun < 30) == (1, True)


@pytest.mark.slow
def test_an_endless_cell_is_interrupted_and_the_next_one_runs(sandbox, session):
    stopped = session.run("while True: pass", seconds=1)
    assert stopped.outputs[-1]["ename"] == "KeyboardInterrupt"
    assert session.run("def f(x):\n    while True: pass").ok
    assert session.ask("f", [{"tuple": [None]}], seconds=1).get("interrupted")


@pytest.mark.slow
def test_an_interrupt_that_comes_when_there_is_an_answer_strikes_no_other_cell(
    sandbox, session
):
    *_, guard, _ = psutil.Process(sandbox.process_id).children(recursive=True)
    for _ in range(2):
        guard.suspend()
        threading.Timer(0.3, guard.resume).start()
        session.interrupts += 1
        sandbox.order("interrupt")
        assert said(session.run("import time; time.sleep(0.6); 2")) == "2"
    sandbox.order("interrupt")
    time.sleep(1)
    assert said(session.run("3")) == "3"
    session.interrupts += 1
    assert said(session.run("4")) == "4"  # it never comes


def test_a_function_is_asked_for_values_and_their_outcomes_come_as_data(session):
    session.run("def f(x): return 1 / x\nvalue = 3")
    one, zero = {"tuple": [{"float": (1.0).hex()}]}, {"tuple": [{"int": "0x0"}]}
    first, second = session.ask("f", [one, zero])["values"]
    assert first == {"value": {"float": (1.0).hex()}}
    assert second["raised"] == "ZeroDivisionError"
    assert session.ask("value", None)["values"] == [{"value": {"int": "0x3"}}]
    assert session.ask("nothing", None)["missing"] is True


def test_a_case_with_a_format_that_the_student_registered_is_asked_as_any_other(
    session,
):
    session.run("import mplab\ndef f(x): return x.name")
    session.run("mplab.FORMATS['A'] = mplab.Format('A', exponent_bits=4, precision=3)")
    case = encode_value((Format("A", exponent_bits=4, precision=3),))
    assert session.ask("f", [case])["values"] == [{"value": {"text": "A"}}]


@with_walls
@pytest.mark.parametrize(("code", "seconds", "reason"), [
    ("import os; os._exit(3)", None, "its process ended"),
    ("import ctypes; ctypes.string_at(0)", None, "its process ended"),
    pytest.param("import signal; signal.signal(2, signal.SIG_IGN)\nwhile 1: pass", 1,
                 "not be interrupted", marks=pytest.mark.slow),
    ("import time; x = [bytearray(50 << 20) for _ in range(9)]; time.sleep(60)", None,
     "MiB of memory"),
])  # fmt: skip
def test_a_kernel_that_ends_says_why_and_the_lane_goes_on(
    sandbox, code, seconds, reason
):
    with sandbox.session({}) as session:
        with pytest.raises(Died, match=reason):
            session.run(code, seconds=seconds)
        with pytest.raises(Died, match=reason):
            session.run("1")
    with sandbox.session({}) as session:
        assert said(session.run("1")) == "1"


@with_walls
def test_a_submission_has_no_rights_no_network_and_little_to_write_on(session):
    probe = """
import os, json, socket
lines = open("/proc/self/status").read().splitlines()
status = dict(l.split(":\\t", 1) for l in lines if ":\\t" in l)
def can(path):
    try: open(path, "w").close(); return True
    except OSError: return False
print(json.dumps({"uid": os.getuid(), "caps": [status[k] for k in ("CapEff", "CapPrm", "CapBnd")],
    "seccomp": status["Seccomp"], "new": status["NoNewPrivs"],
    "processes": sorted(int(p) for p in os.listdir("/proc") if p.isdigit()),
    "writable": [folder for folder in ("", "/tmp", "/dev", "/usr", "/etc", "/submission")
                 if can(folder + "/x")],
    "network": os.listdir("/sys/class/net") if os.path.isdir("/sys/class/net") else [],
    "names": sorted(set(os.environ) & {"USER", "MPLAB_SECRET", "SSH_AUTH_SOCK", "VIRTUAL_ENV"})}))
"""
    found = json.loads(said(session.run(probe)))
    assert found["uid"] != 0
    assert set(found["caps"]) == {"0000000000000000"}
    assert (found["seccomp"], found["new"]) == ("2", "1")
    assert found["processes"] in ([1, 2], [])
    assert found["writable"] == ["/submission"]
    assert found["network"] == found["names"] == []


@pytest.mark.slow
@with_walls
@pytest.mark.skipif(
    not os.access(PACKAGE, os.W_OK), reason="nothing is compiled into the package"
)
def test_what_the_library_has_compiled_is_read_inside_and_no_submission_can_change_it():
    code = "import numpy as np, mplab; mplab.round_to(np.array([1.0]), mplab.FP16)"
    warm = (
        "from numba.core import event\nwith event.install_recorder('numba:run_pass') as passes:\n"
        f"    {code}\nmplab.passes = len(passes.buffer)"
    )
    probe = """
import glob, mplab, os
mine, held = os.environ["NUMBA_CACHE_DIR"], []
kept = glob.glob(os.path.dirname(mplab.__file__) + "/numbers/__pycache__/*.nbi")
for path in (kept[0], kept[0] + ".x"):
    try: held.append(open(path, "ab"))
    except OSError: pass
from numba.core import event
with event.install_recorder("numba:run_pass") as passes:
    mplab.encode(1.0, mplab.FP16)  # which nobody has called in the warm process
print(mplab.passes, len(passes.buffer), len(held), os.path.exists(mine + "/x"))
os.mkdir(mine + "/x")
"""
    run_script(f"{code}; mplab.encode(1.0, mplab.FP16)")  # compiles if nobody has yet
    with WarmSandbox(warm=warm) as sandbox:
        for _ in range(2):
            with sandbox.session({}) as session:
                assert said(session.run(probe)) == "0 0 0 False\n"


def test_nothing_that_is_needed_inside_may_lie_where_submissions_write(monkeypatch):
    """A checkout below the folder of the same name was once hidden, and no kernel started."""
    paths = [Path("/submission/course")]
    monkeypatch.setattr("mplab.course.grading.bubblewrap._system_paths", lambda: paths)
    with pytest.raises(RuntimeError, match="must be free for submissions"):
        sandboxed(["true"])


@with_walls
def test_an_ordinary_user_s_submissions_are_nobody_inside(monkeypatch):
    """The other way to build the walls, tried as whoever runs this."""
    monkeypatch.setattr("mplab.course.grading.bubblewrap.os.geteuid", lambda: 1000)
    command = sandboxed(
        [sys.executable, "-c", "import os; print(os.getuid(), os.getgid())"]
    )
    assert command[:1] == ["bwrap"] and "setpriv" not in command
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("65534 65534\n", "")


@with_walls
def test_the_disk_of_a_submission_is_small_and_in_memory(session):
    shown = session.run(
        "open('a', 'wb').write(bytes(6 << 20)); open('b', 'wb').write(bytes(6 << 20))"
    )
    assert not shown.ok


def test_memory_is_looked_at_also_while_a_submission_keeps_answering(session):
    """Each answer comes long before the quarter of a second that the grader waits for one."""
    with pytest.raises(Died, match="it held more than 200 MiB of memory"):
        session.run("held = []")
        for _ in range(500):
            session.run("held.append(bytearray(2 << 20))")
    with pytest.raises(Died):
        session.run("1")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux tells")
def test_memory_that_processes_share_counts_too():
    """Without walls it is only counted; behind them there is none that has no file."""
    share = (
        "import mmap, time\nheld = mmap.mmap(-1, 300 << 20)\n"
        "for i in range(300): held[i << 20 : i + 1 << 20] = bytes(1 << 20)\ntime.sleep(10)"
    )
    with (
        WarmSandbox(limits=LIMITS, trusted=True) as sandbox,
        sandbox.session({}) as session,
        pytest.raises(Died, match="it held more than 200 MiB of memory"),
    ):
        session.run(share)


@with_walls
@pytest.mark.parametrize("code", [
    "import mmap; mmap.mmap(-1, 1 << 20)",
    "import mmap; mmap.mmap(-1, 1 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)",
    "import mmap, os; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20)",
    "import socket; socket.socket(40, socket.SOCK_STREAM)",  # AF_VSOCK, to the host
    "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "import socket as s; s.socketpair()[0].setsockopt(s.SOL_SOCKET, s.SO_SNDBUF, 1 << 20)",
    "import os; held = [os.openpty() for _ in range(9)]",
    "import fcntl; fcntl.lockf(open('x', 'w'), fcntl.LOCK_EX, 1, 2)",
    "import ctypes, platform\n"  # io_setup, of whose events a machine has 65,536
    "number = {'x86_64': 206}.get(platform.machine(), 0)\n"
    "if ctypes.CDLL(None).syscall(number, 9, ctypes.byref(ctypes.c_ulong())): raise OSError",
    "import ctypes, os, platform\n"  # vmsplice, which holds pages in a pipe
    "number = {'x86_64': 278}.get(platform.machine(), 75)\n"
    "if ctypes.CDLL(None).syscall(number, os.pipe()[1], None, 0, 0): raise OSError",
    "import os; os.posix_fadvise(os.open(os.__file__, 0), 0, 0, os.POSIX_FADV_DONTNEED)",
    "import os; os.preadv(os.open(os.__file__, 0), [bytearray(9)], 0, os.RWF_NOWAIT)",
    "import ctypes, platform\n"  # mincore
    "number = {'x86_64': 27}.get(platform.machine(), 232)\n"
    "if ctypes.CDLL(None).syscall(number, 0, 0, 0): raise OSError",
], ids=["anonymous", "flags", "zeros", "vsock", "netlink", "buffer", "pty", "locks", "events",
        "pages", "out of the cache", "whether cached", "what is cached"])  # fmt: skip
def test_what_no_count_would_see_or_all_of_a_machine_share_is_denied(session, code):
    ran = session.run(code)
    assert not ran.ok
    assert ran.outputs[-1]["ename"] in ("PermissionError", "OSError")


@with_walls
def test_what_honest_code_needs_of_them_is_there(session):
    code = """
import asyncio, mmap, multiprocessing.shared_memory, os, socket
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
socket.socket(socket.AF_INET).close()
assert mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)[0] == 0
held = multiprocessing.Array("d", 4); held[0] = 2.5
if os.fork() == 0: held[1] = 3.5; os._exit(0)
os.wait(); assert list(held[:2]) == [2.5, 3.5]
await asyncio.sleep(0)
!echo shell
"""
    ran = session.run(code)
    assert said(ran).split() == ["shell"], ran


@pytest.mark.slow
@with_walls
def test_what_the_buffers_of_sockets_can_hold_counts_as_memory(session, monkeypatch):
    pairs = (
        "import socket as s, time\npairs = [s.socketpair() for _ in range(30)]\n"
        "others = [s.socket(s.AF_INET, s.SOCK_DGRAM) for _ in range(60)]\ntime.sleep(1)"
    )
    assert session.run(pairs).ok
    monkeypatch.setattr(sandbox_module, "_SOCKET_BYTES", 4 << 20)  # 480 MiB in all
    with pytest.raises(Died, match="it held more than 200 MiB of memory"):
        session.run("time.sleep(1)")


@pytest.mark.slow
def test_figures_are_shown_whatever_the_magic_and_a_broken_one_ends_nothing(session):
    code = "%matplotlib\n%matplotlib inline\n%matplotlib notebook\n%matplotlib widget\n"
    code += "import matplotlib.pyplot as plt\nplt.plot([1]); plt.show(); x = 1"
    assert "image/png" in session.run(code).outputs[-1]["data"]
    broken = session.run(r"plt.title('$\frac1$'); plt.figure()")
    assert broken.outputs[-2]["ename"] == "ValueError"
    assert "image/png" in broken.outputs[-1]["data"]
    session.run("def f(n): plt.plot([n]); plt.show(); return n")
    session.ask("f", [{"tuple": [{"int": "0x1"}]}])
    assert "image/png" not in str(session.run("x").outputs), "for each of many cases"


def test_half_of_a_surrogate_pair_costs_this_character_where_it_is_shown(session):
    ran = session.run(
        r"print('a\ud800b \U0001f600 \\ud800'); raise ValueError('a\udfffb')"
    )
    printed, failed = map(rebuild_output, ran.outputs)
    assert printed.text == "a\ufffdb \U0001f600 \\ud800\n"
    assert failed.evalue == "a\ufffdb"
    session.run(r"def f(): raise KeyError('\ud800')")
    assert session.ask("f", [{"tuple": []}])["values"][0]["raised"] == "KeyError"


def test_an_answer_that_prints_and_warns_calls_nothing_of_the_library(session):
    code = "import warnings, mplab\ndef f(x):\n    print(x)\n    warnings.warn('hm')\n    return x"
    case = [{"tuple": [{"int": "0x3"}]}]
    assert session.run(code).ok
    asked = session.ask("f", case, uses=())
    assert (asked["values"], asked["called"]) == ([{"value": {"int": "0x3"}}], [])
    assert session.run("def f(x): return mplab.decode(x, mplab.FP16)").ok
    again = session.ask("f", case, uses=())
    assert again.get("called") == ["decode"], again


def test_an_answer_that_changes_its_argument_is_noticed(session):
    case = [{"tuple": [{"list": [{"int": "0x3"}]}]}]
    assert session.run("def f(x): return x[0]\ndef g(x): return x.pop()").ok
    for name, changed in (("f", False), ("g", True)):
        reply = session.ask(name, case)
        assert (reply["values"], reply["changed"]) == (
            [{"value": {"int": "0x3"}}],
            changed,
        )


@pytest.mark.slow
@with_walls
def test_a_process_of_the_sandbox_that_is_killed_is_no_fault_of_the_submission(sandbox):
    count, ended = 1, []
    while len(ended) < count:  # one process in each session, from the kernel outwards
        with sandbox.session({}) as session:
            outermost = psutil.Process(sandbox.process_id)
            processes = [*reversed(outermost.children(recursive=True)), outermost]
            processes[len(ended)].kill()
            try:  # without the outermost the rest may go on, and lose nothing
                ended.append(
                    said(session.run("import time; time.sleep(5); print(1)")) == "1\n"
                )
            except NoSandbox as error:
                ended.append("was killed, by the machine or by" in str(error))
            count = len(processes)
    assert all(ended) and count >= 5
    # Nobody can tell who it was.
    with (
        sandbox.session({}) as session,
        pytest.raises(NoSandbox),
    ):
        session.run("import os; os.kill(os.getpid(), 9)")
    with (
        WarmSandbox(limits=replace(LIMITS, cpu_seconds=3)) as brief,
        brief.session({}) as session,
        pytest.raises(Died, match="its process ended"),
    ):
        session.run("while True: pass")


@pytest.mark.slow
@with_walls
def test_a_container_without_user_namespaces_is_noticed():
    program = "from mplab.course.grading.sandbox import sandbox_problem; print(sandbox_problem())"
    isolated = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--unshare-user",
        "--disable-userns",
        "--",
    ]
    done = subprocess.run(
        [*isolated, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "the kernel of this system refuses it: " in done.stdout


TOLD_TWICE = """
import concurrent.futures.thread, os, signal, time  # the first holds a lock in each fork
from mplab.course.grading import kernel

def ending():
    for _ in range(200):
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)

guard = os.fork()
if guard == 0:
    kernel._fork_and_guard(own_group=True, ending=ending)
    time.sleep(600)
while os.waitpid(guard, os.WNOHANG)[0] == 0:
    os.kill(guard, signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_guard_that_is_told_to_end_while_it_ends_does_end():
    run_script(TOLD_TWICE)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives accounts")
def test_a_submission_cannot_stop_the_process_that_ends_its_account():
    account = 63_999
    stop = f"""
import os, signal, time
os.setresuid({account}, {account}, {account})
until = time.monotonic() + 60
print("begun", flush=True)
while time.monotonic() < until:
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        pass
"""
    end = (
        f"from mplab.course.grading import isolation; isolation.end_account({account})"
    )
    for _ in range(5):
        command = [sys.executable, "-c", stop]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as hostile:
            hostile.stdout.readline()
            subprocess.run([sys.executable, "-c", end], check=True, timeout=30)
            assert hostile.wait(30) == -signal.SIGKILL


@pytest.mark.slow
@with_walls
def test_nothing_outlives_a_grader_that_is_killed():
    program = (
        "import time; from mplab.course.grading.sandbox import WarmSandbox\n"
        "sandbox = WarmSandbox(warm='# outlive-7c1f')\n"
        "with sandbox.session({}) as s:\n"
        "    s.run('import os, time\\nif os.fork() == 0: time.sleep(60)')\n"
        "    print('up', flush=True); time.sleep(60)"
    )
    grader = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with grader:
        assert grader.stdout.readline() == b"up\n"
        tree = psutil.Process(grader.pid).children(recursive=True)
        assert len(tree) >= 4
        grader.kill()
    assert psutil.wait_procs(tree, timeout=10)[1] == []


# The filter of system calls -----------------------------------------------------------------
NUMBERS = {  # of <asm/unistd.h>: denied, and then clone3
    "x86_64": "27 29 64 68 101 155 165 166 187 206 221 240 248-250 272 278 298 304 308 310-312 "
              "319 321 323 327 425 428-430 432 438 440 442 447 451 435",
    "aarch64": "0 39-41 75 97 117 180 186 190 194 213 217-219 223 232 241 265 268 270-272 279 280 "
               "282 286 425 428-430 432 438 440 442 447 451 435",
}  # fmt: skip
SOME = ["clone", "mmap", "socket", "socketpair", "setsockopt", "fcntl"]
OF_SOME = {"x86_64": (56, 9, 41, 53, 54, 72), "aarch64": (220, 222, 198, 199, 208, 25)}
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(program, machine, number, *arguments):
    """Run a filter as the kernel does, on the call that seccomp describes to it."""
    data = struct.pack("<IIQ6Q", number, machine, 0, *(arguments + (0,) * 6)[:6])
    place = 0
    while True:
        code, if_true, if_false, k = program[place]
        place += 1
        if code == 0x20:
            (word,) = struct.unpack_from("<I", data, k)
        elif code == 0x06:
            return {0x7FFF0000: "allow", 0x50001: "EPERM", 0x50026: "ENOSYS",
                    0x80000000: "kill"}[k]  # fmt: skip
        else:
            holds = {0x15: word == k, 0x35: word >= k, 0x45: bool(word & k)}[code]
            place += if_true if holds else if_false


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_filter_denies_these_calls_and_no_other(machine):
    program = list(struct.iter_unpack("HBBI", filter_program(machine)))

    def call(number, *arguments):
        return verdict(program, AUDIT[machine], number, *arguments)

    *denied, clone3 = [
        number
        for word in NUMBERS[machine].split()
        for number in range(int(word.split("-")[0]), int(word.split("-")[-1]) + 1)
    ]
    found = {number: call(number) for number in range(600)}
    some = dict(zip(SOME, OF_SOME[machine], strict=True))
    assert found.pop(clone3) == "ENOSYS"
    assert found.pop(some["socket"]) == found.pop(some["socketpair"]) == "EPERM"
    assert sorted(n for n, what in found.items() if what == "EPERM") == sorted(denied)
    assert set(found.values()) == {"EPERM", "allow"}
    assert call(0x40000000) == "EPERM" and call(0x3FFFFFFF) == "allow"
    for other in {*AUDIT.values(), 0x40000003} - {AUDIT[machine]}:
        assert verdict(program, other, 1) == "kill"
    for name, arguments, wanted in (
        ("clone", [0x10000000], "EPERM"), ("clone", [0x11], "allow"),
        ("mmap", [0, 0, 0, 0x21], "EPERM"), ("mmap", [0, 0, 0, 0x22], "allow"),
        ("mmap", [0, 0, 0, 0x01], "allow"), ("setsockopt", [3, 1, 7], "EPERM"),
        ("setsockopt", [3, 1, 8], "allow"), ("socket", [16], "EPERM"),
        *[(name, [family], "allow") for name in ("socket", "socketpair") for family in (1, 2, 10)],
        ("socketpair", [40], "EPERM"), *[("fcntl", [3, lock], "EPERM") for lock in (6, 7, 37, 38)],
        *[("fcntl", [3, other], "allow") for other in (0, 1, 2, 3, 4, 5, 8, 36, 39, 1030)],
    ):  # fmt: skip
        assert call(some[name], *arguments) == wanted, (name, arguments)
    local = list(struct.iter_unpack("HBBI", filter_program(machine, (1,))))
    for family in (1, 2, 10):
        found = verdict(local, AUDIT[machine], some["socket"], family)
        assert found == ("allow" if family == 1 else "EPERM")


@pytest.mark.parametrize(("machine", "header", "prefix"), [
    ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "__NR_"),
    ("aarch64", "/usr/include/asm-generic/unistd.h", "__NR(?:3264)?_"),
])  # fmt: skip
def test_the_filter_s_names_have_the_numbers_of_the_kernel_s_headers(
    machine, header, prefix
):
    if not Path(header).is_file():
        pytest.skip("no headers of the kernel")
    text = Path(header).read_text()
    for table in (isolation._DENIED, isolation._FILTERED):
        for name, number in isolation.system_calls(table, machine).items():
            there = re.search(rf"#define {prefix}{name}\s+(\d+)", text)
            assert there is None or int(there[1]) == number, name


def test_another_machine_has_no_filter():
    with pytest.raises(OSError, match="riscv64"):
        filter_program("riscv64")


def test_where_a_sandbox_is_required_a_broken_one_is_an_error(monkeypatch):
    """It once skipped its own tests."""
    monkeypatch.delenv("MPLAB_REQUIRE_SANDBOX", raising=False)
    assert (has_walls(None), has_walls("no bwrap")) == (True, False)
    monkeypatch.setenv("MPLAB_REQUIRE_SANDBOX", "1")
    assert has_walls(None)
    with pytest.raises(RuntimeError, match="no bwrap, and MPLAB_REQUIRE_SANDBOX=1"):
        has_walls("no bwrap")


def test_a_submission_that_no_longer_listens_is_ended(sandbox):
    stop = "import os, signal, threading\ndef f(x): return 1\n"
    stop += "threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGSTOP)).start()"
    with sandbox.session({}) as session:
        assert session.run(stop).ok
        time.sleep(0.2)
        # 2 MB; a socket holds a tenth.
        cases = [{"tuple": [{"text": "x" * 1000}]}] * 2000
        with pytest.raises(Died, match="it no longer listens"):
            session.ask("f", cases, seconds=0.3)
    with sandbox.session({}) as session:
        assert said(session.run("1")) == "1"


def framed(reply):
    body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    return struct.pack(">I", len(body)) + body


@pytest.fixture
def faked():
    """A session, the submission's end of its channel, and the orders that it gave."""
    orders = []
    fake = SimpleNamespace(limits=LIMITS, isolated=False, order=orders.append)
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield Session(fake, mine, psutil.Process()), theirs, orders


@pytest.mark.parametrize(("answer", "reason"), [
    (framed([1]), "is not what was asked for"),
    (framed({"id": 2, "ok": True}), "is not what was asked for"),
    (framed(b"{"), "is not what was asked for"),
    (framed(b'{"id": 1, "ok": NaN}'), "is not what was asked for"),
    (framed(b"[" * 100_000), "is not what was asked for"),
    (framed({"id": 1}) + b"x", "answered more than it was asked"),
    (struct.pack(">I", (4 << 20) + 1), "answered with too much"),
    (framed({"id": 1, "outputs": {}}), "its outputs are no list"),
    (framed({"id": 1, "outputs": [0] * 1001}), "its outputs are no list"),
], ids=range(9))  # fmt: skip
def test_a_kernel_that_answers_otherwise_than_asked_is_ended(faked, answer, reason):
    """Whatever holds the submission's end of the channel may write there what it likes."""
    session, theirs, orders = faked
    theirs.sendall(answer)
    for source in ("1", "2"):  # and nothing more is asked of it
        with pytest.raises(Died, match=reason):
            session.run(source)
    assert orders == ["end"]


def test_what_a_kernel_may_answer_is_taken(faked):
    session, theirs, _ = faked
    theirs.sendall(framed({"id": 1, "outputs": [{}, 3] * 500, "ok": 1}))
    assert session.run("1") == ([{}] * 500, False)
    theirs.sendall(framed({"id": 2, "ok": True}))
    assert session.run("2") == ([], True)


def test_every_limit_of_a_submission_is_set(session):
    names = ["AS", "CPU", "FSIZE", "NPROC", "NOFILE", "CORE", "MSGQUEUE", "MEMLOCK"]
    ask = "import resource as r; print([r.getrlimit(getattr(r, 'RLIMIT_' + n)) for n in {}])"
    shown = said(session.run(ask.format(names)))
    hard = (LIMITS.memory, 240, LIMITS.disk_bytes, 64, 256, 0, 0, 1 << 20)
    soft = (LIMITS.memory, 239, *hard[2:])
    assert shown == f"{list(zip(soft, hard))}\n"  # noqa: B905


@pytest.mark.slow
@with_walls
def test_a_cell_that_was_stopped_says_so_to_its_author():
    from mplab.course.grading.execute import _outputs

    with (
        WarmSandbox(limits=replace(LIMITS, cell_seconds=0.3)) as sandbox,
        sandbox.session({}) as session,
    ):
        assert _outputs(session, "1")[-1].output_type == "display_data"
        assert (
            _outputs(session, "while True: pass")[-1].text
            == "Stopped: it ran too long.\n"
        )
        assert session.interrupts == 1


FAULTS = """
import mmap, resource

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt

missed = 0
for path in {paths!r}:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)
        before = faults()
        total = sum(pages[i] for i in range(0, len(pages), mmap.PAGESIZE))
        missed += faults() > before
print(missed)
"""


@pytest.mark.slow
@with_walls
def test_no_file_tells_a_submission_who_has_read_it_before():
    """By the faults of files that nobody has read, a hand-in left bits for the next one."""
    folder = Path(sysconfig.get_paths()["stdlib"], "encodings")
    paths = [str(path) for path in sorted(folder.glob("cp*.py"))]
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with WarmSandbox() as sandbox:
        with sandbox.session({}) as session:
            missed = int(said(session.run(FAULTS.format(paths=paths[::2]))))
        assert missed > len(paths) / 4, "the files of the first hand-in were in memory"
        read_libraries()
        with sandbox.session({}) as session:
            missed = int(said(session.run(FAULTS.format(paths=paths))))
        assert missed < len(paths) / 20  # a busy machine may drop a page at any time


@with_walls
def test_a_submission_cannot_take_a_file_out_of_the_machine_s_cache(session):
    probe = """
import mmap, sys
with open(mmap.__file__ if hasattr(mmap, "__file__") else sys.executable, "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
for advice in (20, 21, mmap.MADV_RANDOM):
    try:
        pages.madvise(advice)
        print("taken")
    except OSError as error:
        print(error.errno)
"""
    assert said(session.run(probe)).split() == ["1", "1", "taken"]
