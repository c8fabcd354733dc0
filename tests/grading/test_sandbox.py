"""The sandbox from outside: what runs in it is bounded, alone, and gone afterwards."""

import json
import os
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from busy import crowded_processor
from classroom import WALLS, with_walls

from mplab.grading import sandbox as sandbox_module
from mplab.grading.bubblewrap import sandboxed
from mplab.grading.isolation import filter_program
from mplab.grading.sandbox import Died, Limits, NoSandbox, WarmSandbox, sandbox_problem
from mplab.numbers.installation import PACKAGE

LIMITS = Limits(resident=200 << 20, disk_bytes=8 << 20)
"""Time is as for a class: what shall run out of it says so, so that a busy machine ends nothing."""


@pytest.fixture(scope="module")
def sandbox():
    with WarmSandbox(limits=LIMITS, trusted=not WALLS) as sandbox:
        yield sandbox


def said(ran):
    return "".join(o.get("text", "") + o.get("shown", "") for o in ran.outputs)


def test_a_cell_shows_what_ipython_would_show(sandbox):
    with sandbox.session({}) as session:
        assert said(session.run("print('out'); 6 * 7")) == "out\n42"
        failed = session.run("1 / 0")
        assert not failed.ok
        assert failed.outputs[-1]["error"] == "ZeroDivisionError"
        assert said(session.run("%%capture x\nprint(3)\n")) == ""
        assert (
            said(session.run("await __import__('asyncio').sleep(0, 'awaited')"))
            == "'awaited'"
        )
        assert said(session.run("import sys; print('err', file=sys.stderr)")) == "err\n"


@pytest.mark.slow
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
        "mplab.grading.bubblewrap._system_paths", lambda: [Path("/usr")]
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


@pytest.mark.slow
def test_what_a_submission_shows_is_bounded_in_all_and_it_goes_on(sandbox):
    show = "import os, base64; from IPython.display import display\n"
    show += "display({'image/png': base64.b64encode(os.urandom(1 << 20)).decode()}, raw=True)"
    with sandbox.session({}) as session:
        kept = sum(len(str(session.run(show).outputs)) for _ in range(30))
        assert 10 << 20 < kept < 20 << 20
        session.run("def f(): return 3")
        assert session.ask("f", [{"tuple": []}])["values"] == [
            {"value": {"int": "0x3"}}
        ]


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


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone tells how long a process waited"
)
def test_time_in_line_for_a_busy_processor_is_not_the_submission_s(sandbox):
    work = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"
    with sandbox.session({}) as session, crowded_processor() as core:
        for process in psutil.Process(sandbox.process_id).children(recursive=True):
            process.cpu_affinity([core])
        begun = time.monotonic()
        assert session.run(work.format(0.6), seconds=1).ok
        assert time.monotonic() - begun > 1, "the processor was not busy"
        assert (
            session.run(work.format(60), seconds=1).outputs[-1]["error"]
            == "KeyboardInterrupt"
        )


@pytest.mark.slow
def test_an_endless_cell_is_interrupted_and_the_next_one_runs(sandbox):
    with sandbox.session({}) as session:
        stopped = session.run("while True: pass", seconds=1)
        assert stopped.outputs[-1]["error"] == "KeyboardInterrupt"
        assert said(session.run("2")) == "2"
        asked = session.run("def f(x):\n    while True: pass")
        assert asked.ok
        assert session.ask("f", [{"tuple": [None]}], seconds=1).get("interrupted")


def test_a_function_is_asked_for_values_and_their_outcomes_come_as_data(sandbox):
    with sandbox.session({}) as session:
        session.run("def f(x): return 1 / x\nvalue = 3")
        one, zero = {"tuple": [{"float": (1.0).hex()}]}, {"tuple": [{"int": "0x0"}]}
        first, second = session.ask("f", [one, zero])["values"]
        assert first == {"value": {"float": (1.0).hex()}}
        assert second["raised"] == "ZeroDivisionError"
        assert session.ask("value", None)["values"] == [{"value": {"int": "0x3"}}]
        assert session.ask("nothing", None)["missing"] is True


@pytest.mark.slow
@with_walls
@pytest.mark.parametrize(("before", "code", "seconds", "reason"), [
    ("", "import os; os._exit(3)", None, "its process ended"),
    ("", "import ctypes; ctypes.string_at(0)", None, "its process ended"),
    ("import signal; signal.signal(2, signal.SIG_IGN)", "while 1: pass", 1, "not be interrupted"),
    ("import time", "x = [bytearray(50 << 20) for _ in range(9)]; time.sleep(60)", None,
     "MiB of memory"),
])  # fmt: skip
def test_a_kernel_that_ends_says_why_and_the_lane_goes_on(
    sandbox, before, code, seconds, reason
):
    with sandbox.session({}) as session:
        assert session.run(before).ok
        with pytest.raises(Died, match=reason):
            session.run(code, seconds=seconds)
        with pytest.raises(Died, match=reason):
            session.run("1")
    with sandbox.session({}) as session:
        assert said(session.run("1")) == "1"


@with_walls
def test_a_submission_has_no_rights_no_network_and_little_to_write_on(sandbox):
    probe = """
import os, json, socket
lines = open("/proc/self/status").read().splitlines()
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
    with sandbox.session({}) as session:
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
import glob, os, sys
mine, held = os.environ["NUMBA_CACHE_DIR"], []
kept = glob.glob(os.path.dirname(mplab.__file__) + "/numbers/__pycache__/*.nbi")
for path in (kept[0], kept[0] + ".x"):
    try: held.append(open(path, "ab"))
    except OSError: pass
print(mplab.passes, len(held), os.path.exists(mine))
os.makedirs(mine)
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True
    )  # compiles if nobody has yet
    with WarmSandbox(warm=warm) as sandbox:
        for _ in range(2):
            with sandbox.session({}) as session:
                assert said(session.run("import mplab" + probe)) == "0 0 False\n"


def test_nothing_that_is_needed_inside_may_lie_where_submissions_write(monkeypatch):
    """A checkout below the folder of the same name was once hidden, and no kernel started."""
    paths = [Path("/submission/course")]
    monkeypatch.setattr("mplab.grading.bubblewrap._system_paths", lambda: paths)
    with pytest.raises(RuntimeError, match="must be free for submissions"):
        sandboxed(["true"])


@with_walls
def test_an_ordinary_user_s_submissions_are_nobody_inside(monkeypatch):
    """The other way to build the walls, tried as whoever runs this."""
    monkeypatch.setattr("mplab.grading.bubblewrap.os.geteuid", lambda: 1000)
    command = sandboxed(
        [sys.executable, "-c", "import os; print(os.getuid(), os.getgid())"]
    )
    assert command[:1] == ["bwrap"] and "setpriv" not in command
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("65534 65534\n", "")


@with_walls
def test_the_disk_of_a_submission_is_small_and_in_memory(sandbox):
    with sandbox.session({}) as session:
        shown = session.run(
            "open('a', 'wb').write(bytes(6 << 20)); open('b', 'wb').write(bytes(6 << 20))"
        )
        assert not shown.ok


def test_memory_is_looked_at_also_while_a_submission_keeps_answering(sandbox):
    """Each answer comes long before the quarter of a second that the grader waits for one."""
    with sandbox.session({}) as session:
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
    "import ctypes, os, platform\n"  # vmsplice, which holds pages in a pipe
    "number = {'x86_64': 278}.get(platform.machine(), 75)\n"
    "if ctypes.CDLL(None).syscall(number, os.pipe()[1], None, 0, 0): raise OSError",
], ids=["anonymous", "flags", "zeros", "vsock", "netlink", "buffer", "pty", "pages"])  # fmt: skip
def test_what_no_count_would_see_or_all_of_a_machine_share_is_denied(sandbox, code):
    with sandbox.session({}) as session:
        ran = session.run(code)
        assert not ran.ok
        assert ran.outputs[-1]["error"] in ("PermissionError", "OSError")


@with_walls
def test_what_honest_code_needs_of_them_is_there(sandbox):
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
    with sandbox.session({}) as session:
        ran = session.run(code)
        assert said(ran).split() == ["shell"], ran


@pytest.mark.slow
@with_walls
def test_what_the_buffers_of_sockets_can_hold_counts_as_memory(sandbox, monkeypatch):
    pairs = "import socket, time\npairs = [socket.socketpair() for _ in range(60)]\ntime.sleep(1)"
    with sandbox.session({}) as session:
        assert session.run(pairs).ok
        monkeypatch.setattr(sandbox_module, "_SOCKET_BYTES", 4 << 20)  # 480 MiB in all
        with pytest.raises(Died, match="it held more than 200 MiB of memory"):
            session.run("time.sleep(1)")


def test_half_of_a_surrogate_pair_costs_this_character(sandbox):
    with sandbox.session({}) as session:
        assert (
            said(session.run(r"print('a\ud800b \U0001f600 \\ud800')"))
            == "a?b 😀 \\ud800\n"
        )
        failed = session.run(r"raise ValueError('a\udfffb')").outputs[-1]
        assert failed["message"] == "a?b"
        json.dumps(failed, ensure_ascii=False).encode()
        session.run(r"def f(): raise KeyError('\ud800')")
        session.run(r"def g(): return '\ud800'")
        assert session.ask("f", [{"tuple": []}])["values"] == [
            {"raised": "KeyError", "message": "'\\ud800'"}
        ]
        assert session.ask("g", [{"tuple": []}])["values"] == [{"value": {"text": "?"}}]


def test_half_a_pair_in_bytes_that_a_submission_wrote_itself_does_no_harm():
    reply = sandbox_module._parsed(b'["\xed\xa0\x80", "\\uD800"]')
    assert reply == ["\ufffd\ufffd\ufffd", "?"]
    with pytest.raises(ValueError, match="no JSON"):
        sandbox_module._parsed(b"[NaN]")


def test_an_answer_that_prints_and_warns_calls_nothing_of_the_library(sandbox):
    code = "import warnings, mplab\ndef f(x):\n    print(x)\n    warnings.warn('hm')\n    return x"
    case = [{"tuple": [{"int": "0x3"}]}]
    with sandbox.session({}) as session:
        assert session.run(code).ok
        asked = session.ask("f", case, uses=())
        assert (asked["values"], asked["called"]) == ([{"value": {"int": "0x3"}}], [])
        assert session.run("def f(x): return mplab.decode(x, mplab.FP16)").ok
        again = session.ask("f", case, uses=())
        assert again.get("called") == ["decode"], again


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
                ended.append("was killed, not by its submission" in str(error))
            count = len(processes)
    assert all(ended) and count >= 5
    with (
        sandbox.session({}) as session,
        pytest.raises(NoSandbox),
    ):  # nobody can tell who it was
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
    program = (
        "from mplab.grading.sandbox import sandbox_problem; print(sandbox_problem())"
    )
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


@pytest.mark.slow
@with_walls
def test_nothing_outlives_a_grader_that_is_killed():
    program = (
        "import time; from mplab.grading.sandbox import WarmSandbox\n"
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


def test_the_filter_is_a_program_whose_jumps_stay_inside():
    for machine in ("x86_64", "aarch64"):
        program = list(struct.iter_unpack("HBBI", filter_program(machine)))
        for place, (code, if_true, if_false, _) in enumerate(program):
            if code & 7 == 5:
                assert place + 1 + max(if_true, if_false) < len(program)
        assert program[-1][0] == 6 and program[-1][3] == 0x7FFF0000
    with pytest.raises(OSError, match="riscv64"):
        filter_program("riscv64")


@pytest.mark.slow
@with_walls
def test_a_cell_that_was_stopped_says_so_to_its_author():
    from mplab.grading.execute import _outputs

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
