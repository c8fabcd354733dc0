"""The limit itself: where an interruption may arrive, and where it must not."""

import os
import sys
import threading
import time

import nbformat
import pytest
from busy import crowded_processor
from nbclient import NotebookClient

from mplab.course.exercises.limit import TooLong, _Watcher, ends_within, ran_and_waited


def spin(seconds=float("inf")):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.slow
def test_code_that_ends_just_at_the_limit_is_never_interrupted_afterwards():
    """Whichever comes first: an exception that is set may not be raised in what follows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # else the watching thread comes 5 ms late
    try:
        for i in range(100):
            ends_within(0.01, lambda i=i: spin(0.007 + i * 6e-5))
            for _ in range(100):
                pass
    finally:
        sys.setswitchinterval(before)
    assert ends_within(60, lambda: spin(0.0))
    assert not ends_within(0.01, lambda: spin(60))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", [(_Watcher, "stop"), (threading.Thread, "join")])
def test_an_interruption_that_comes_as_the_watch_ends_stays_inside(
    monkeypatch, where, when
):
    """Python raises it as soon as a function begins, before any `try` in that."""
    real = getattr(*where)
    raised = []
    before = threading.enumerate()

    def interrupted(self):
        if when == "after":
            real(self)
        if not raised:
            raised.append(True)
            raise TooLong
        real(self)

    monkeypatch.setattr(*where, interrupted)
    assert ends_within(60, lambda: None)
    assert raised
    assert threading.enumerate() == before


def test_of_two_limits_the_shorter_decides():
    inner = []
    assert not ends_within(0.1, lambda: inner.append(ends_within(60, spin)))
    assert inner == []
    assert ends_within(60, lambda: inner.append(ends_within(0.1, spin)))
    assert inner == [False]


def test_what_the_code_raises_is_raised_and_the_watching_thread_ends():
    before = threading.enumerate()
    with pytest.raises(ZeroDivisionError):
        ends_within(60, lambda: 1 / 0)
    with pytest.raises(TooLong):  # not of this limit
        ends_within(60, lambda: (_ for _ in ()).throw(TooLong))
    assert threading.enumerate() == before


def test_another_thread_may_be_limited():
    found = []
    thread = threading.Thread(target=lambda: found.append(ends_within(0.1, spin)))
    thread.start()
    spin(0.3)  # while this one computes, undisturbed
    thread.join()
    assert found == [False]


def test_an_import_is_neither_interrupted_nor_counted(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import time\ntime.sleep(0.5)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = []

    def code():
        import slow_to_import

        found.append(slow_to_import.whole)

    assert ends_within(0.2, code)
    assert found == [True]


def test_a_compilation_is_neither_interrupted_nor_counted():
    """Interrupted in llvmlite's cleanup, the process ended with a segmentation fault."""
    found = {}
    source = "import time\ndef clean_up(): time.sleep(0.5)"
    exec(compile(source, "/usr/lib/site-packages/llvmlite/llvm.py", "exec"), found)
    assert ends_within(0.2, found["clean_up"])


ENDLESS = """
import mplab

def smallest_scale(g):
    s = 1.0
    while -abs(g) * s <= 2.0**-25:
        s = min(2 * s, 2.0**99)

mplab.check("smallest_scale", smallest_scale, seconds=0.5)
"""


@pytest.mark.slow
def test_in_a_kernel_an_endless_answer_gets_its_verdict_and_the_next_cell_runs():
    cells = [nbformat.v4.new_code_cell(source) for source in (ENDLESS, "1 + 1")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120).execute()
    shown = [cell.outputs[-1]["data"]["text/plain"] for cell in notebook.cells]
    assert "did not finish in 0.5 s" in shown[0] and shown[1] == "2"


def test_what_is_profiled_after_a_limit_ends():
    def forever():
        while True:
            pass

    def profiled():
        before = sys.getprofile()
        sys.setprofile(lambda *_: None)
        try:
            (lambda: None)()
        finally:
            sys.setprofile(before)

    assert ends_within(1.0, lambda: None)
    assert ends_within(1.0, profiled)
    assert not ends_within(0.02, forever)
    assert ends_within(1.0, profiled)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone tells how long a thread waited"
)
def test_time_in_line_for_a_busy_processor_does_not_count():
    def work(seconds):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    before = os.sched_getaffinity(0)
    with crowded_processor() as core:
        os.sched_setaffinity(0, [core])  # of this thread alone
        try:
            begun = time.monotonic()
            assert ends_within(1.0, lambda: work(0.6))
            assert time.monotonic() - begun > 1.0, "the processor was not busy"
            assert not ends_within(0.3, lambda: work(60))
        finally:
            os.sched_setaffinity(0, before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")
def test_the_seconds_that_a_thread_ran_are_those_that_the_system_counts():
    spin(0.02)
    ran, _ = ran_and_waited(f"/proc/self/task/{threading.get_native_id()}")
    assert ran == pytest.approx(time.thread_time(), rel=0.1, abs=0.1)
    assert ran_and_waited("/nowhere") == (0.0, 0.0)
