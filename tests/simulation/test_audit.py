"""The audit: what it must find equal, what it must explain, and that it sees a difference."""

import json

import pytest
import torch
from tiers import mostly_full, mostly_slow

from mplab import BF16, FP16
from mplab.commands.audit import record
from mplab.commands.main import main
from mplab.simulation._products import is_scalar
from mplab.simulation._replicas import replica_of
from mplab.simulation.audit import Row, audit, compare, table
from mplab.simulation.audit_cases import (
    Case,
    all_codes,
    cases,
    of_many_numbers,
    of_one_number,
    of_two_numbers,
)

FORMATS = pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)

_EQUAL = """
    sigmoid tanh exp exp2 expm1 log log2 log10 log1p reciprocal relu silu mish softplus elu
    hardswish hardsigmoid hardtanh leaky_relu log_sigmoid_forward abs neg sign ceil floor
    round trunc frac cos tan asin acos atan sinh cosh asinh acosh atanh erfc erfinv add sub
    mul div pow fmod remainder maximum minimum copysign hypot atan2 logaddexp lerp
    tanh_backward silu_backward mish_backward hardswish_backward hardsigmoid_backward
    hardtanh_backward threshold_backward leaky_relu_backward softplus_backward elu_backward
    log_sigmoid_backward
"""
EQUAL = _EQUAL.split()
"""Equal on all codes, in both formats."""

SCALAR = {"asin", "pow", "hypot"}
"""Those of them that torch computes in yet another way without vector instructions."""

SUMMED = """
    mm,addmm,bmm,baddbmm,mv,dot,conv2d,conv1d,sum of rows,sum of columns,mean,cumsum
    linalg_vector_norm,avg_pool2d,adaptive_avg_pool2d,max_pool2d,index_add,scatter_add
""".replace("\n", ",").split(",")
"""Equal where all sums are exact."""


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize("part", [of_one_number, lambda fmt: of_two_numbers(fmt, 1)])
def test_functions_of_one_or_two_numbers_are_equal_or_explained_to_the_last_case(part, fmt):
    for case in part(fmt):
        row = compare(case, fmt)
        if is_scalar() and case.title in SCALAR:
            continue
        assert not row.differing or case.title not in EQUAL, row
        replica = replica_of(case.name, fmt)
        if row.differing and not (replica and replica.partial):
            assert row.explained == row.differing, row


@FORMATS
def test_every_operation_named_equal_is_compared(fmt):
    titles = {case.title for case in cases(fmt, quick=True)}
    assert set(EQUAL) <= titles
    assert {name.strip() for name in SUMMED if name.strip()} <= titles


@pytest.mark.parametrize("fmt", mostly_slow([FP16, BF16], [FP16]), ids=lambda f: f.name)
@pytest.mark.usefixtures("replicated")
def test_sums_are_equal_where_they_are_exact_and_explained_where_they_are_not(fmt):
    for case in of_many_numbers(fmt):
        row = compare(case, fmt)
        if case.inputs == "exact sums" and case.title in SUMMED:
            assert not row.differing, row
        replica = replica_of(case.name, fmt)
        if replica is not None and not replica.partial:
            last_bits = 0.01 if "softmax" in case.title else 0  # of float32 exp and log
            assert row.explained >= (1 - last_bits) * row.differing, row


class Fake:
    """An operation whose half kernel is not the rounded float32 one."""

    __name__ = "fake"

    def __init__(self, low, wide=lambda x: x):
        self.low, self.wide = low, wide

    def __call__(self, x):
        return (self.wide if x.dtype == torch.float32 else self.low)(x)


def row_of(operation, *args, fmt=FP16):
    x = all_codes(fmt)
    return compare(Case("fake", operation, args or (x,), {}, "all codes"), fmt)


def test_a_kernel_that_differs_in_one_case_is_found_with_its_codes():
    def low(x):
        return torch.where(x == 1.5, torch.nextafter(x, x + 1), x)

    row = row_of(Fake(low))
    assert (row.tested, row.differing, row.ulps, row.explained) == (65536, 1, 1, 0)
    assert row.first == "(3E00): torch 3E01, simulated 3E00"
    assert row.explanation == ""


def test_a_kernel_that_confuses_the_zeros_is_found():
    row = row_of(Fake(lambda x: x + 0))
    assert row.differing == 1
    assert row.first == "(8000): torch 0000, simulated 8000"
    assert row.ulps == 0


def test_nans_of_any_code_are_one():
    assert row_of(Fake(lambda x: torch.where(x.isnan(), -x, x))).differing == 0


def test_a_last_bit_of_float32_explains_a_tie_that_goes_the_other_way():
    def midpoint(x):
        return (x.view(torch.int32) | 0x1000).view(torch.float32)

    def below(x):
        return (midpoint(x.float()).view(torch.int32) - 1).view(torch.float32).to(x.dtype)

    row = row_of(Fake(below, midpoint))
    assert row.differing > 1000
    assert row.explained > 0.999 * row.differing
    assert row.explanation.startswith("1 float32 ulp apart")


def test_a_few_float32_ulps_do_not_explain_a_kernel_that_rounds_toward_zero():
    def toward_zero(x):
        y = (x.float() * 1.1).to(x.dtype)
        return torch.where(y.float().abs() > (x.float() * 1.1).abs(), torch.nextafter(y, 0 * y), y)

    row = row_of(Fake(toward_zero, lambda x: x * 1.1))
    assert row.differing > 20_000
    assert row.explained < 0.02 * row.differing


def test_the_table_and_the_record_hold_every_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "mplab.simulation.audit.cases", lambda fmt, quick: list(of_one_number(fmt))[:20]
    )
    path = tmp_path / "audit.json"
    assert main(["audit", "--format", "FP16", "--quick", "--out", str(path)]) == 0
    shown = capsys.readouterr().out
    kept = json.loads(path.read_text())
    rows = [Row(**row) for row in kept["rows"]]
    assert rows == list(audit([FP16], quick=True))
    assert kept["torch"] == torch.__version__
    different = [row for row in rows if row.differing]
    assert len(rows) == 20
    assert f"FP16: {20 - len(different)} of 20 equal torch's kernel bit for bit" in shown
    for row in rows:
        assert row.operation in shown
    for row in different:
        assert (row.explanation or "not explained") in shown
        assert f"first {row.first}" in shown


def test_the_table_counts_what_is_equal_and_says_how_much_of_the_rest_is_explained(
    monkeypatch, capsys
):
    """By two operations that are what they are on every processor."""

    def one_off(x):
        return torch.where(x == 1.5, torch.nextafter(x, x + 1), x)

    fakes = [Fake(lambda x: x), Fake(one_off)]
    made = [Case("fake", fake, (all_codes(FP16),), {}, "all codes") for fake in fakes]
    monkeypatch.setattr("mplab.simulation.audit.cases", lambda fmt, quick: made)
    assert main(["audit", "--format", "FP16"]) == 0
    shown = capsys.readouterr().out
    assert "FP16: 1 of 2 equal torch's kernel bit for bit" in shown
    assert "equal on 65,536 results: fake (all codes)" in shown
    assert "first (3E00): torch 3E01, simulated 3E00" in shown


def test_an_operation_without_a_kernel_is_named_with_the_reason(monkeypatch):
    def refuse(x):
        raise RuntimeError("not implemented for 'Half'")

    fake = Case("fake", Fake(refuse), (all_codes(FP16),), {}, "all codes")
    monkeypatch.setattr("mplab.simulation.audit.cases", lambda fmt, quick: [fake])
    rows = list(audit([FP16]))
    assert "fake: no kernel: not implemented for 'Half'" in table(rows)
    assert record(rows, "cpu")["refused"][0]["operation"] == "fake"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_where_there_is_none(capsys):
    assert main(["audit", "--device", "cuda"]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@FORMATS
def test_cuda_kernels_round_functions_of_one_number_once(fmt):
    rows = [compare(case, fmt, device="cuda") for case in of_one_number(fmt)]
    assert sum(not row.differing for row in rows) > len(rows) // 2


@pytest.mark.slow
@pytest.mark.parametrize("fmt", mostly_full([FP16, BF16], [FP16]), ids=lambda f: f.name)
def test_the_whole_audit_explains_every_operation_with_a_complete_replica(fmt, record_property):
    rows = [row for row in audit([fmt]) if isinstance(row, Row)]
    by_title = {row.operation: row for row in rows}
    record_property("results compared", sum(row.tested for row in rows))
    equal = set(EQUAL) - (SCALAR if is_scalar() else set())
    assert [name for name in equal if by_title[name].differing] == []
    replicated = {"sigmoid_backward", "x + 0.1", "gelu_backward", "glu_backward", "xlogy"}
    for name in replicated:
        assert by_title[name].explained == by_title[name].differing, by_title[name]
