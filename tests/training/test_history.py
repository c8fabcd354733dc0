"""A run comes back from its file bit for bit, and a broken file is refused."""

import json

import numpy as np
import pytest
import torch

from mplab import Tally
from mplab.training import History, exponent_histogram
from mplab.training.exponents import pooled
from mplab.training.history import sample


def example() -> History:
    x = np.array([1e-9, -3.0, 0.0, np.inf, 2.0**-149])
    return History(
        task="t", recipe="fp16-naive", compute_format="FP16", seed=3, device="cpu", simulated=True,
        loss=np.array([0.1, np.nan, 1 / 3]), loss_scale=np.array([65536.0, 32768.0, np.inf]),
        skipped=np.array([True, False, False]), metrics={"r2": 0.1 + 0.2},
        gradients={0: {"layer 1": exponent_histogram(x)}, 7: {}}, flushed={0: {"layer 1": (2, 5)}},
        samples={0: {"layer 1": sample(x, -x)}, 7: {}},
        tally={"layer": {"0": Tally(total=5, exact=5)}}, environment={"torch": "2.13.0"},
        settings={"init_scale": None, "weight_format": "FP32"},
    )  # fmt: skip


def test_a_saved_run_comes_back_bit_for_bit(tmp_path):
    run = example()
    path = tmp_path / "run.json"
    run.save(path)
    again = History.load(path)
    np.testing.assert_equal(vars(again), vars(run))  # nested arrays and NaN, too
    kept = [again.loss, again.loss_scale, again.skipped]
    kept += [*again.gradients[0]["layer 1"][:2], *again.samples[0]["layer 1"]]
    types = [float, float, bool, np.int64, np.int64, np.int64, float, float]
    assert [part.dtype for part in kept] == types


def test_saving_replaces_the_file_only_when_it_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    example().save(path)
    before = path.read_bytes()
    broken = example()
    broken.metrics = {"r2": object()}
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("change", [
    lambda stored: stored.pop("loss"), lambda stored: stored.pop("mplab history"),
    lambda stored: stored.update({"mplab history": 2}),
    lambda stored: stored["samples"]["0"]["layer 1"].pop(),
    lambda stored: stored["samples"]["0"]["layer 1"][0].pop(),
    lambda stored: stored.update(extra=1), lambda stored: stored["loss"].pop(),
    lambda stored: stored.update(loss=[["a"]]),
    lambda stored: stored.update(tally={"layer": {"0": {"no such counter": 1}}}),
    lambda stored: stored.update(gradients=[]),
    lambda stored: stored["flushed"]["0"]["layer 1"].pop(),
])  # fmt: skip
def test_a_changed_file_is_refused_with_the_reason(tmp_path, change):
    path = tmp_path / "run.json"
    example().save(path)
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))
    with pytest.raises(
        ValueError, match=r"History\.load: .* must hold a History of version 3"
    ):
        History.load(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b"\xff\xfe\x00"])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"History\.load: .*Run the training again"):
        History.load(path)


def test_exponents_are_exact_at_powers_of_two_and_among_subnormals():
    powers = 2.0 ** np.arange(-1074, 1024)
    found = exponent_histogram(powers)
    assert found.exponents.tolist() == list(range(-1074, 1024))
    assert set(found.counts.tolist()) == {1}
    below = exponent_histogram(np.nextafter(powers[60:], 0))
    assert below.exponents[0] == -1015


def test_pooled_histograms_count_what_one_of_all_numbers_counts():
    parts = [np.ldexp(np.arange(9.0), k) for k in (-3, 4, 0)] + [np.zeros(2)]
    one = pooled(map(exponent_histogram, parts))
    for found, right in zip(
        one, exponent_histogram(np.concatenate(parts)), strict=True
    ):
        assert np.array_equal(found, right)


def test_arrays_and_tensors_of_any_shape_are_counted_alike():
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    one = exponent_histogram(x)
    other = exponent_histogram(torch.from_numpy(x).requires_grad_())
    assert one.counts.tolist() == other.counts.tolist()
    assert one.counts.sum() == 60


def test_a_histogram_of_nothing_is_empty():
    found = exponent_histogram(np.array([0.0, -0.0, np.nan]))
    assert found.exponents.size == found.counts.size == 0
    assert (found.zeros, found.nonfinite) == (2, 1)


def test_a_sample_spreads_over_the_tensor_and_takes_both_from_one_place():
    x = torch.arange(100.0).reshape(4, 25)
    kept = sample(x, -2 * x)
    assert (
        kept.places.tolist() == kept.exact.tolist() == [6, 18, 31, 43, 56, 68, 81, 93]
    )
    assert (kept.stored == -2 * kept.exact).all()
    assert sample(x[:0], x[:0]).places.size == 0
    assert sample(x.ravel()[:3], x.ravel()[:3]).places.tolist() == [0, 1, 2]


def test_exponents_of_low_tensors_are_counted_and_what_is_no_number_is_refused():
    for dtype in (torch.bfloat16, torch.float8_e5m2, torch.float16):
        found = exponent_histogram(torch.tensor([0.75, -2.0, 0.0]).to(dtype))
        assert (found.exponents.tolist(), found.zeros) == ([-1, 0, 1], 1)
    for x in (
        np.ma.array([1.0], mask=[1]),
        np.array(["1"]),
        torch.ones(2, dtype=torch.complex64),
    ):
        with pytest.raises(TypeError, match="exponent_histogram: x must be"):
            exponent_histogram(x)
    with pytest.raises(ValueError, match="holds exactly; got 9223372036854775807"):
        exponent_histogram(np.array([2**63 - 1]))  # 2^63 in float64
