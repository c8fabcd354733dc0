import copy
import itertools
import math
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import assert_same_bits, breakpoints, not_a_numbers, run_script
from oracle import mix64, random_array, random_bits, table_of

import mplab
from mplab import FP8_E4M3, FP8_E5M2, FP16
from mplab.numbers import (
    Stream,
    Tally,
    events,
    kernels,
    round_to,
    tally,
    tensors,
    threads,
)
from mplab.numbers.formats import Event, Overflow, Rounding, Specials
from mplab.numbers.parameters import rounding_parameters
from mplab.numbers.rounding import _COMPILED

STOCHASTIC = {"rounding": Rounding.STOCHASTIC}
SIZES = [1, 2, 4095, 4097, 131071, 131073, 262143, 262144, 262145, 1_000_003]


@pytest.fixture(params=[1, 2, 3, 7])
def thread_count(request):
    before = threads.set_threads(request.param)
    yield request.param
    threads.set_threads(before)


# Random bits ---------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "step"), [(np.float64, 1), (np.float32, 512)])
@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 2.0), (0.0, 2.0**-9)], ids=["normal", "subnormal"]
)
def test_a_fraction_goes_up_exactly_when_the_published_bits_make_it_carry(
    dtype, step, low, high
):
    fmt = POWERS_OF_TWO if low else FP8_E4M3
    count = 200_000 if step > 1 else 5000
    for call in range(2):
        random = random_array(1, call, count)
        for missing, result in ((0, high), (step, low)):
            fraction = np.where(random % step == 0, 2**32 - random - missing, 0)
            x = (low + (high - low) * fraction / 2**32).astype(dtype)
            usable = (fraction > 0) & (random > 0)
            stream = Stream(1, calls=call)
            got = round_to(x, fmt, stream=stream, **STOCHASTIC)
            assert usable.sum() > 300
            assert (got[usable] == result).all()


POWERS_OF_TWO = mplab.Format(
    "E8M0", exponent_bits=8, precision=1, specials=mplab.Specials.NONE
)


@pytest.mark.parametrize("seed", [0, 9, 2**32, 2**64 - 1])
def test_each_run_of_2_to_the_32_elements_has_keys_of_its_own(seed):
    stream = Stream(seed, calls=4)
    keys = stream.keys()
    for run in (0, 1, 2, 1000):
        key = mix64((mix64((seed + mix64(4)) % 2**64) + run) % 2**64)
        assert keys(run) == (key % 2**32, key >> 32)
    assert repr(stream) == f"Stream({seed}, calls=5)"


def test_an_index_past_2_to_the_32_continues_in_the_next_run():
    parameters = rounding_parameters(FP16, np.dtype(np.float32))
    loop = kernels.loop_at("round", int(Rounding.STOCHASTIC), False)
    x = np.full(64, 1 + 2.0**-11, np.float32)
    out, start = np.empty_like(x), 2**32 + 5
    key = Stream(3).keys()(1)
    loop(x.ctypes.data, out.ctypes.data, 64, parameters.address, start, *key, 0)
    expected = [
        1 + 2.0**-10 * (random_bits(3, 0, start + i) >= 2**31) for i in range(64)
    ]
    assert_same_bits(out, np.array(expected, np.float32))


def test_pieces_cover_everything_once_and_never_cross_the_wrap(monkeypatch):
    seen = []
    before = threads.set_threads(5)
    threads.parallel(lambda *piece: seen.append(piece), 10_000_000, wrap=1 << 21)
    threads.set_threads(before)
    pieces = sorted(seen)
    assert [begin for begin, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
    assert pieces[-1][1] == 10_000_000
    assert all(begin >> 21 == (end - 1) >> 21 for begin, end in pieces)
    assert len(pieces) > 5


@pytest.mark.parametrize("call", [round_to, events, tally])
def test_each_stochastic_call_takes_the_next_bits(call):
    x, stream = np.full(100, 60000.0), Stream(5)  # goes to 57344, or overflows
    first, second = (call(x, FP8_E5M2, stream=stream, **STOCHASTIC) for _ in range(2))
    assert stream.calls == 2
    assert np.any(first != second)
    assert np.all(second == call(x, FP8_E5M2, stream=Stream(5, calls=1), **STOCHASTIC))


# Statistics of the random bits: deterministic, so the bands of five standard errors hold for good.


def walsh(x):
    """The Walsh-Hadamard transform, which is to XOR what Fourier's is to addition."""
    for half in 2 ** np.arange(x.size.bit_length() - 1):
        first, second = np.moveaxis(x.reshape(-1, 2, half), 1, 0)
        x = np.stack([first + second, first - second], 1).ravel()
    return x


def correlations(toss, calls, count=1 << 20):
    """Of fair coins ±1 within a call: at all lags to half the count, and at all XOR distances.

    In standard errors. `toss(call, count)` gives the coins of a call.
    """
    lagged, xored = np.zeros(count), np.zeros(count)
    for call in range(calls):
        coins = np.where(toss(call, count), 1.0, -1.0)
        lagged += np.fft.irfft(np.abs(np.fft.rfft(coins, 2 * count)) ** 2)[:count]
        xored += walsh(walsh(coins) ** 2) / count
    lags = np.arange(1, count // 2)
    pairs_twice = 2 * calls * count
    return lagged[lags] / np.sqrt(calls * (count - lags)), xored[1:] / np.sqrt(
        pairs_twice
    )


def by_stream(call, count):
    """Half of the numbers between 2048 and 2050 go up."""
    return (
        round_to(np.full(count, 2049.0), FP16, stream=Stream(call), **STOCHASTIC)
        == 2050
    )


@pytest.mark.parametrize("calls", [2, pytest.param(16, marks=pytest.mark.slow)])
def test_elements_of_a_call_are_independent(calls):
    for z in correlations(by_stream, calls):
        # Independence gives 2e-9 of half a million or a million.
        assert (np.abs(z) > 6).sum() == 0
        beyond, expected = (np.abs(z) > 3).sum(), 0.0027 * z.size
        assert abs(beyond - expected) < 6 * math.sqrt(expected)
        assert abs((z**2).mean() - 1) < 0.01


# Chunks and threads --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_depend_neither_on_chunks_nor_on_threads(thread_count, dtype):
    rng = np.random.default_rng(0)
    x = (
        rng.standard_normal(SIZES[-1]) * 2.0 ** rng.integers(-28, 18, SIZES[-1])
    ).astype(dtype)
    for size in SIZES:
        part, counts = x[:size], Tally()
        got = round_to(part, FP16, stream=Stream(4), **STOCHASTIC)
        random = random_array(4, 0, size)
        nearest = round_to(part, FP16, tally=counts)
        for tallied in (None, Tally()):
            in_place = part.copy()
            assert round_to(in_place, FP16, out=in_place, tally=tallied) is in_place
            assert_same_bits(in_place, nearest)
        in_place = part.copy()
        round_to(in_place, FP16, out=in_place, stream=Stream(4), **STOCHASTIC)
        assert_same_bits(in_place, got)
        raised = events(part, FP16)
        again = events(part, FP16, stream=Stream(4), **STOCHASTIC)
        for begin in range(0, size, 100_000):  # pieces too small to be divided
            piece = slice(begin, begin + 100_000)
            place = table_of(FP16).place(part[piece])
            assert_same_bits(nearest[piece], round_to(part[piece], FP16))
            assert_same_bits(raised[piece], events(part[piece], FP16))
            placed = place.round(Rounding.STOCHASTIC, Overflow.IEEE, random[piece])
            assert_same_bits(got[piece], placed.astype(dtype))
        assert counts.inexact == int((raised & 1).sum())
        assert ((again & 1) == (got != part)).all()


@pytest.mark.parametrize(
    "said, most",
    [("max 100000", 64), ("150000 100000", 2), ("50000 100000", 1), (None, 64)],
)
def test_a_container_s_limit_bounds_the_threads(said, most, tmp_path, monkeypatch):
    """`docker run --cpus` leaves all processors to a process, for a part of the time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(threads, "_CONTAINER", tmp_path / "cpu.max")
    if said:
        (tmp_path / "cpu.max").write_text(f"{said}\n")
    assert threads.processors() == most


def test_two_python_threads_may_round_at_once():
    x = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    expected = {fmt: round_to(x, fmt) for fmt in (FP16, FP8_E4M3)}
    wrong = []

    def work(fmt):
        for _ in range(10):
            counts = Tally()
            if not np.array_equal(round_to(x, fmt, tally=counts), expected[fmt]):
                wrong.append(fmt)
            if counts.total != x.size:
                wrong.append(counts)

    at_once(work, [*expected, *expected])
    assert wrong == []


def at_once(work, arguments):
    """A Python thread for each argument; all must end."""
    workers = [
        threading.Thread(target=work, args=(argument,)) for argument in arguments
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)


WITHOUT_TABLE = """
import hashlib
import numpy as np, numpy._core.umath as umath
if {removed}:
    del umath._UFUNC_API
from mplab import FP8_E4M3FNUZ, FP16, decode, encode, round_to
from mplab.arithmetic import add, exp, fma
from mplab.numbers import compiled

assert (compiled._UFUNC_API is None) == {removed}
bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32)
x = bits.view(np.float32)
digest = hashlib.sha256()
for fmt in (FP16, FP8_E4M3FNUZ):
    in_place = x.copy()
    round_to(in_place, fmt, out=in_place)
    square, nothing = round_to(x.reshape(256, -1), fmt), round_to(x[:0], fmt)
    codes = encode(in_place, fmt)
    numbers = in_place[:, None][:300], in_place[:300], in_place[7:8]
    sums = add(in_place, in_place, fmt), add(0.5, 0.25, fmt), fma(*numbers, fmt)
    ours = round_to(x, fmt), square, nothing, in_place, exp(in_place, fmt), *sums
    for result in (*ours, codes, decode(codes, fmt)):
        digest.update(result.tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_without_numpy_s_private_table_every_bit_is_the_same():
    made, called = (
        run_script(WITHOUT_TABLE.format(removed=removed)) for removed in (False, True)
    )
    assert made == called


FORKED = """
import os, signal
import numpy as np
from mplab import FP16, Rounding, Stream, round_to
from mplab.numbers import threads

threads.set_threads(2)
x = np.random.default_rng(0).standard_normal(1 << 20)
rules = {"rounding": Rounding.STOCHASTIC}
expected = round_to(x, FP16, stream=Stream(1), **rules)
for _ in range(3):
    if (child := os.fork()) == 0:
        signal.alarm(60)
        same = np.array_equal(round_to(x, FP16, stream=Stream(1), **rules), expected)
        os._exit(0 if same and threads.set_threads(1) == 2 else 3)  # as many as the parent
    assert np.array_equal(round_to(x, FP16, stream=Stream(1), **rules), expected)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork on this system")
def test_a_forked_child_rounds_after_its_parent_used_threads():
    assert run_script(FORKED).split() == ["0", "0", "0"]


COUNT_THREADS = """
import os, threading
from mplab.numbers.threads import parallel

names, all_at_once = set(), threading.Barrier(int(os.environ["OMP_NUM_THREADS"]))
def work(begin, end):
    all_at_once.wait(60)
    names.add(threading.current_thread().name)
parallel(work, 1 << 21, wrap=1 << 32)
print(sum(name.startswith("mplab") for name in names))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "made"), [("1", 0), ("3", 3)])
def test_omp_num_threads_is_respected(wanted, made):
    assert run_script(COUNT_THREADS, env={"OMP_NUM_THREADS": wanted}) == f"{made}\n"


def test_an_error_in_one_piece_reaches_the_caller():
    def work(begin, end):
        if begin:
            raise RuntimeError("piece failed")

    before = threads.set_threads(2)
    with pytest.raises(RuntimeError, match="piece failed"):
        threads.parallel(work, 1 << 20, wrap=1 << 32)
    assert threads.set_threads(before) == 2


# Small arrays, which a ufunc rounds ------------------------------------------------------


DETERMINISTIC = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["FP16", "FP8_E4M3FNUZ"])
def test_one_number_rounds_as_many_do_and_as_they_do_with_counts(name, dtype):
    fmt = mplab.FORMATS[name]
    x = breakpoints(fmt, dtype)[0][::61]
    x = np.concatenate([x, not_a_numbers(dtype)[0]])
    for rounding, overflow in itertools.product(DETERMINISTIC, Overflow):
        rules = {"rounding": rounding, "overflow": overflow}
        counted = round_to(x, fmt, tally=Tally(), **rules)
        assert_same_bits(round_to(x, fmt, **rules), counted, x)
        alone = [round_to(x[i : i + 1], fmt, **rules) for i in range(x.size)]
        assert_same_bits(np.concatenate(alone), counted, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["FP16", "BF16", "FP8_E4M3", "FP4_E2M1"])
@pytest.mark.parametrize("rounding", [Rounding.TIES_TO_EVEN, Rounding.STOCHASTIC])
def test_a_number_rounds_and_counts_alike_whatever_else_is_in_its_block(
    rounding, name, dtype
):
    fmt, random, size = getattr(mplab, name), np.random.default_rng(5), kernels.BLOCK
    ends = np.array([fmt.min_normal, fmt.max_finite, 0], dtype)
    normal = np.exp2(random.uniform(fmt.emin, fmt.emax, size)).astype(dtype)
    normal = np.concatenate([ends, -ends, normal, -normal])[: size - 1]
    below, above = np.nextafter(ends[0], 0), np.nextafter(ends[1], dtype(np.inf))
    most = min(1.5 * fmt.max_finite, float(np.finfo(dtype).max))
    results = []
    tiny, past = (below, -below, 0.75 * ends[0], ends[0] / 64), (above, most, np.inf)
    for last in (1, *ends, *tiny, *past, np.nan):
        x, counted = np.append(normal, dtype(last)), Tally()
        ways = [{"rounding": rounding} for _ in range(3)]
        for way in ways if rounding is Rounding.STOCHASTIC else ():
            way["stream"] = Stream(3)
        r, happened = round_to(x, fmt, **ways[0]), events(x, fmt, **ways[1])
        assert_same_bits(round_to(x, fmt, tally=counted, **ways[2]), r, x)
        results.append(r[:-1])
        number = ~np.isnan(r)
        expected = {
            "inexact": happened & int(Event.INEXACT), "underflow": happened & int(Event.UNDERFLOW),
            "overflow": happened & int(Event.OVERFLOW), "flushed": number & (r == 0) & (x != 0),
            "subnormal": number & (r != 0) & (abs(r) < fmt.min_normal), "nan": np.isnan(x),
            "infinite": np.isinf(x),
        }  # fmt: skip
        for field, met in expected.items():
            assert getattr(counted, field) == np.count_nonzero(met), (last, field)
    for r in results[1:]:
        assert_same_bits(r, results[0], normal)


def test_signaling_nans_and_ends_raise_no_flag_that_numpy_would_warn_of():
    for dtype in (np.float32, np.float64):
        tiny, most = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
        ends = np.array([tiny, most, -most, np.inf], dtype)
        x = np.concatenate([not_a_numbers(dtype)[0], ends])
        with np.errstate(all="raise"):
            for fmt, rounding in itertools.product(
                (FP16, FP8_E4M3, mplab.BF16), DETERMINISTIC
            ):
                for size in (*range(1, x.size), 37 * x.size):
                    round_to(np.resize(x, size), fmt, rounding=rounding)
                    round_to(np.resize(x, size)[::-1], fmt, rounding=rounding)


def test_a_small_array_is_refused_as_a_large_one_is():
    x = np.ones(3, np.float32)
    round_to(x, FP16)
    for rules in (
        {"rounding": 0},
        {"flush_inputs": 0},
        {"overflow": 0},
        {"flush_outputs": None},
    ):
        with pytest.raises(TypeError, match=r"^round_to: .* must be .*; got "):
            round_to(x, FP16, **rules)


def test_many_formats_one_after_the_other_keep_apart():
    x = np.array([1 + 2.0**-9, -7.3], np.float32)
    for _ in range(2):
        for precision, bias in itertools.product(range(2, 12), range(6)):
            fmt = mplab.Format(
                "some", exponent_bits=8, precision=precision, bias=127 - bias % 3
            )
            kept = x.view(np.int32) >> (24 - precision) << (24 - precision)
            got = round_to(x, fmt, rounding=Rounding.TOWARD_ZERO)
            assert_same_bits(got, kept.view(np.float32))


def test_two_python_threads_may_make_one_ufunc():
    x, wrong = np.linspace(-3, 3, 1000, dtype=np.float32), []
    expected = round_to(x, FP8_E4M3, tally=Tally())

    def work(number):
        for _ in range(50):
            rounding_parameters.cache_clear()
            _COMPILED.clear()
            if not np.array_equal(round_to(x, FP8_E4M3), expected):
                wrong.append(number)

    at_once(work, range(4))
    assert wrong == []


# Compiled code on disk -----------------------------------------------------------------

ROUND_AND_REPORT = """
import numpy as np
from mplab import FP16, FP8_E4M3FNUZ, Rounding, Stream, Tally, events, round_to
from mplab.numbers import kernels

for dtype in (np.float32, np.float64):
    x = np.array([0.1, 65520, 1e-9, np.nan], dtype)
    got = round_to(x, FP16)
    assert got[1] == np.inf and got[2] == 0, got
    round_to(x, FP16, rounding=Rounding.STOCHASTIC, stream=Stream(1), tally=Tally())
    round_to(x, FP8_E4M3FNUZ)
loops = [kernels._inner_loop(0, rare, width) for rare in (False, True) for width in (32, 64)]
print(sum(loop.cache_hits for loop in loops), end=" ")
counts = [kernels.loop_at("count", int(Rounding.STOCHASTIC), False, size) for size in (4, 8)]
stats = [loop.stats for loop in counts]
hits = sum(sum(known.cache_hits.values()) for known in stats)
print(hits, sum(sum(known.cache_misses.values()) for known in stats))
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert run_script(ROUND_AND_REPORT, env=environment) == "0 0 2\n"
    assert run_script(ROUND_AND_REPORT, env=environment) == "4 2 0\n"


@pytest.mark.slow
def test_processes_that_compile_two_modes_at_once_do_not_mix_them_up(tmp_path):
    """One has no index yet when the other saves: what the first wrote lies in its number's file."""
    code = """
import numpy as np
from numba.core.caching import IndexDataCacheFile
from mplab import FP16, Rounding, events
if {late}:
    IndexDataCacheFile._load_index = lambda self: {{}}
    IndexDataCacheFile._save_data = lambda self, name, data: None
print(*events(np.array([65521.0]), FP16, rounding=Rounding.{mode}))
"""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    for late, mode, flags in (
        (False, "TIES_TO_EVEN", 5),
        (True, "TOWARD_ZERO", 1),
        (False, "TOWARD_ZERO", 1),
    ):
        script = code.format(late=late, mode=mode)
        assert run_script(script, env=environment) == f"{flags}\n"


@pytest.fixture
def package_copy(tmp_path):
    """A copy of the package without compiled code, and a home beside it; writable again after."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(mplab.__file__).parent, tmp_path / "mplab", ignore=ignore)
    (tmp_path / "home").mkdir()
    yield tmp_path
    allow_writing(tmp_path, True)


def allow_writing(folder, yes):
    for path in [folder, *folder.rglob("*")]:
        every = 0o755 if path.is_dir() else 0o644
        path.chmod(every if yes else every & ~0o222)


def run_where_nothing_is_writable(folder, code):
    """Run code with `folder` as home, on its copy of the package, bound by file permissions."""
    command = [sys.executable, "-c", code]
    if os.geteuid() == 0:  # permissions do not bind root unless it gives up this right
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG"))
    }
    environment |= {"PYTHONPATH": str(folder), "HOME": str(folder / "home")}
    options = {"capture_output": True, "text": True, "cwd": "/", "timeout": 300}
    return subprocess.run(command, env=environment, **options)


CANNOT_WRITE = "import pathlib; pathlib.Path.home().joinpath('file').touch()"


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="no POSIX permissions")
@pytest.mark.parametrize("warm", [False, True], ids=["no cache", "a read-only cache"])
def test_where_no_folder_is_writable_it_compiles_uncached(package_copy, warm):
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("root, and no setpriv to become less")
    if warm:  # with less compiled than the script will ask for
        code = "import numpy as np, mplab; mplab.round_to(np.ones(3, np.float32), mplab.FP16)"
        done = run_where_nothing_is_writable(package_copy, code)
        assert done.returncode == 0, done.stderr
    compiled = sorted(package_copy.rglob("*.nbc"))
    assert bool(compiled) == warm
    allow_writing(package_copy, False)
    if (
        "PermissionError"
        not in run_where_nothing_is_writable(package_copy, CANNOT_WRITE).stderr
    ):
        pytest.skip("permissions do not bind here")
    done = run_where_nothing_is_writable(package_copy, ROUND_AND_REPORT)
    assert done.returncode == 0, done.stderr
    assert sorted(package_copy.rglob("*.nbc")) == compiled


# The expression for devices, on which the loops are modelled ----------------------------


def test_subnormals_of_a_format_high_in_float32_are_rounded_as_in_float64():
    high = mplab.Format(
        "high", exponent_bits=2, precision=4, bias=-115, specials=Specials.NONE
    )
    x = np.array([1.3, 2.5, 3.5, 14.9], np.float32) * np.float32(high.min_subnormal)
    assert_same_bits(
        round_to(x, high), round_to(x.astype(np.float64), high).astype(np.float32)
    )
    assert (round_to(x, high) / high.min_subnormal).tolist() == [1, 2, 4, 15]


def test_the_bits_of_a_stream_are_the_same_in_the_torch_expression():
    for seed, call, bits in ((0, 0, 32), (2**64 - 1, 3, 32), (5, 0, 8), (6, 0, 1)):
        like = torch.zeros(5000)
        got = tensors._random_bits(like, *Stream(seed, calls=call, bits=bits).keys()(0))
        expected = random_array(seed, call, 5000) >> (32 - bits) << (32 - bits)
        assert_same_bits(got.numpy(), expected)


def test_read_only_numbers_at_odd_addresses_are_rounded_counted_and_added():
    odd = np.zeros(73, np.uint8)[1:].view(np.float64)
    odd[:] = np.linspace(-2, 2, 9)
    odd.flags.writeable = False
    for call in (
        lambda x: tally(x, FP8_E4M3).inexact,
        lambda x: events(x, FP8_E4M3),
        lambda x: round_to(x, FP8_E4M3, stream=Stream(2), **STOCHASTIC),
        lambda x: mplab.arithmetic.sum(x, accumulator_format=FP8_E4M3),
    ):
        np.testing.assert_equal(call(odd), call(odd.copy()))


def test_a_copy_of_a_format_s_facts_points_to_numbers_of_its_own():
    facts = rounding_parameters(FP16, np.dtype(np.float32), Overflow.IEEE)
    for twin in (copy.deepcopy(facts), pickle.loads(pickle.dumps(facts))):
        assert twin.address == twin.numbers.ctypes.data != facts.address


@pytest.mark.slow
def test_without_numba_s_compiler_a_sentence_says_so():
    code = (
        "import mplab; "
        "assert mplab.round_to(0.7, 'e4m3') == 0.6875; mplab.tally([0.7], 'fp16')"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "mplab: loops must be compiled; got NUMBA_DISABLE_JIT=1. Unset" in run.stderr
