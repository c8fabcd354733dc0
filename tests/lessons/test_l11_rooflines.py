"""Rooflines and errors of products: right units, and figures that say what they show."""

import json
import time

import numpy as np
import pytest
import torch
from legible import assert_legible
from record import Request, store

from mplab import FP16, FP32, TF32
from mplab.lessons.l11 import figures as l11, rooflines
from mplab.lessons.l11.explorer import SpeedUp
from mplab.lessons.l11.rooflines import Product, ProductError, Roofline
from mplab.lessons.recordings import Recording


def made():
    sizes = (64, 256, 1024)
    rates = {"FP32": (1e10, 8e10, 1e11), "FP16": (1e10, 1.6e11, 8e11)}
    products = (
        Product(
            n, fmt, rate, rooflines.work_per_byte(n, {"FP32": FP32, "FP16": FP16}[fmt])
        )
        for fmt, row in rates.items()
        for n, rate in zip(sizes, row, strict=True)
    )
    return Roofline("measured on paper", 2e9, tuple(products))


SIZES = (32, 64, 128, 256, 512)


def test_products_are_timed_and_slow_ones_left_out(monkeypatch):
    times = iter([0.25, *[0.5] * 5, 0.6, *[0.125] * 5])
    monkeypatch.setattr(
        rooflines, "seconds_of", lambda call, **how: call() is None or next(times)
    )
    where, copied, products = roof = rooflines.measured()
    assert (copied, roof.peak("FP16")) == (2.0**29, 65536 / 0.6)
    assert where.startswith("measured on this machine's CPU, ")
    assert products == tuple(
        (n, fmt, 2 * n**3 / seconds, n / share)
        for fmt, seconds, share in (
            ("FP32", 0.5, 6),
            ("FP16", 0.6, 3),
            ("BF16", 0.125, 3),
        )
        for n in SIZES[: 1 if fmt == "FP16" else 5]
    )


def test_a_recording_of_speed_is_read_with_its_words(tmp_path, monkeypatch):
    rows = [
        {
            "size": 256,
            "format": "FP16",
            "seconds": 1e-5,
            "per_second": 3e12,
            "per_byte": 85.0,
        },
        {"size": 512, "format": "TF32", "problem": "refused"},
    ]
    asked = Request(torch.device("cpu"), tmp_path, ["speed"])
    origin = asked.provenance(seconds=1.0) | {"date": "2026-01-01 00:00 UTC"}
    data = {"copy": {"bytes_per_second": 2e12}, "matmul": rows}
    monkeypatch.setattr("mplab.lessons.recordings.folder", lambda: tmp_path)
    assert rooflines.recorded() is None
    store(Recording("speed", origin, data, complete=False), tmp_path)
    roof = rooflines.recorded()
    assert roof == Roofline(
        "recorded on CPU on 2026-01-01, unfinished",
        2e12,
        (Product(256, "FP16", 3e12, 85.0),),
    )
    assert json.dumps(roof)


def test_a_short_call_is_repeated_and_on_cuda_a_lap_ends_when_the_work_is_done(
    monkeypatch,
):
    """A pretended stream: work is done only when somebody waits for the event after it."""
    assert 0.002 <= rooflines.seconds_of(lambda: time.sleep(0.002), "cpu") < 0.02
    stream = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing
            self.waited = False

        def record(self):
            self.place = len(stream)

        def synchronize(self):
            self.waited = True

        def elapsed_time(self, end):  # in milliseconds
            assert end.waited
            return sum(stream[self.place : end.place])

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert (
        rooflines.seconds_of(lambda: stream.append(2), "cuda", turn=0.01, warm=2)
        == 0.002
    )
    assert len(stream) == 2 + 1 + 3 * 5


def test_formats_that_torch_does_not_store_are_refused():
    with pytest.raises(
        ValueError, match="formats must be formats that torch stores; got 'TF32'"
    ):
        rooflines.measured((2,), (TF32,))  # it would measure FP32


def test_errors_are_those_of_products_of_rounded_matrices():
    rows = rooflines.matmul_errors((4,), (FP16, FP32), seed=3)
    generator = torch.Generator().manual_seed(3)
    a, b = (
        torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    low = (a.half() @ b.half()).double()
    assert rows[0].error == float((low - a @ b).norm() / (a @ b).norm())
    assert rows[1].error < rows[0].error / 1000


def test_the_figure_of_a_roofline_compares_with_fp32_at_the_largest_size():
    picture = l11.plot_roofline(made())
    assert_legible(picture)
    assert picture.claim == (
        "Beside FP32, products of size 1024 are 8 times as fast in FP16 (measured on paper)"
    )
    limit = picture.axes[0].get_lines()[-1]
    np.testing.assert_allclose(np.divide(limit.get_ydata(), limit.get_xdata()), 2)


def test_the_figure_of_errors_says_the_last_ones():
    rows = [
        ProductError(n, f, e * n, 1e-4)
        for f, e in (("FP16", 1e-5), ("BF16", 1e-4))
        for n in (8, 64)
    ]
    picture = l11.plot_matmul_errors(rows)
    assert_legible(picture)
    assert picture.claim == (
        "Numbers near 0.0001: products of size 64 are off by about 2⁻¹¹ in FP16 and 2⁻⁷ in BF16"
    )


def test_the_figure_of_errors_says_where_fp16_overflows():
    rows = rooflines.matmul_errors((8,), (FP16, FP32), magnitude=1e3)
    picture = l11.plot_matmul_errors(rows)
    assert_legible(picture)
    assert "off by about ∞ in FP16 and 2⁻" in picture.claim


def test_the_model_machine_gains_by_what_limits_it():
    """Large products gain what the units do, and small ones nothing."""
    explorer = SpeedUp()
    for size, least, most in ((64, 1, 1.1), (4096, 7.5, 8)):
        explorer.rows.value = explorer.size.value = size
        assert least <= explorer.speed_up < most
    explorer.rows.value = explorer.size.value = 8192
    for gain in (1, 2, 8):
        explorer.gain.value = gain
        assert explorer.speed_up == pytest.approx(gain, rel=0.02)
    explorer.rows.value = 16  # memory is the limit in both
    assert explorer.speed_up == pytest.approx(2, rel=0.05)
    explorer.size.value = 16  # the start is
    assert explorer.speed_up == pytest.approx(1, rel=0.01)
    assert "limited by the start" in explorer.state.value
