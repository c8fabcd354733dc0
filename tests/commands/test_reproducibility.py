"""Numbers, arithmetic, matrix units and linear systems have the same bits on every machine."""

import numpy as np
import pytest
from flushing import where_subnormals_are_flushed

from mplab.commands import doctor, reproducibility


@pytest.fixture(scope="module")
def here():
    return dict(reproducibility.digests())


def test_this_machine_computes_the_digests_of_the_others(here):
    stored = reproducibility.stored_digests()
    differing = [name for name in here | stored if here.get(name) != stored.get(name)]
    assert differing == [], (
        "was a format or a function added? `python -m mplab.commands.reproducibility` writes"
        " the lines of reproducibility.txt; look at what changed"
    )


def test_a_thread_that_flushes_subnormals_computes_them_too(here):
    found = where_subnormals_are_flushed(lambda: dict(reproducibility.digests()))
    assert [name for name in here if found[name] != here[name]] == []


def test_a_digest_sees_the_sign_of_zero_and_takes_all_nans_as_one():
    nans = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert len({reproducibility._digest(x) for x in nans}) == 1
    zeros = np.float32([0.0, -0.0, 1e-45])
    assert len({reproducibility._digest(x) for x in zeros}) == 3


def test_doctor_names_what_differs_and_what_is_the_machine_s_own(monkeypatch, capsys):
    stored = reproducibility.stored_digests()
    monkeypatch.setattr(reproducibility, "digests", lambda: iter(stored.items()))
    assert doctor.main(["--numbers"]) == 0
    said = capsys.readouterr().out
    assert f"{len(stored)} of {len(stored)} digests" in said and "differs" not in said
    for name in ("sqrt", "exp", "randn", "relu"):
        assert f"\n  {name} " in said
    others = stored | {"exp FP16": "0000000000"}
    monkeypatch.setattr(reproducibility, "digests", lambda: iter(others.items()))
    assert doctor.main(["--numbers"]) == 1
    said = capsys.readouterr().out
    assert f"{len(stored) - 1} of {len(stored)} digests" in said
    assert "\n  differs: exp FP16\n" in said
