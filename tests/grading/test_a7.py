"""A7: patients are made with a fault each, and the programs in the complaints are broken."""

import re

import nbformat
import numpy as np
import pytest
from corpus import ROOT, answer, assignment, judge

pytestmark = pytest.mark.slow

MODULE = assignment("a7").graded["triage"].exercise.answer.__globals__


def complaints():
    """The programs that the questions show, by the exercise that asks to repair them."""
    notebook = nbformat.read(ROOT / "a7" / "a7.ipynb", as_version=4)
    shown = {}
    for cell in notebook.cells:
        for program in re.findall(r"```python\n(.*?)```", cell.source, re.DOTALL):
            shown[cell.id.removeprefix("a7-")] = program
    return shown


def cured(program, *changes):
    for before, after in changes:
        assert before in program
        program = program.replace(before, after)
    return program


@pytest.mark.parametrize("kind", MODULE["FAULTS"])
def test_the_diagnosis_is_the_fault_with_which_a_patient_was_made(kind):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        record = MODULE["patient_with"](kind, rng, int(rng.integers(6, 13)))
        diagnosis = MODULE["diagnosis"](record)
        assert diagnosis == next(d for d in (diagnosis, "-") if kind.startswith(d)), (
            record
        )


def test_no_single_entry_of_a_record_gives_the_diagnosis_away():
    """Look-alikes: the same skips, scales, zero shares, or repeated losses under two names."""

    def seen(kind, steps=8):
        return MODULE["patient_with"](kind, np.random.default_rng(1), steps)

    twin, patient = seen("healthy but for the first scale", 3), seen("forward", 3)
    assert twin["skipped"] == patient["skipped"] == [True] * 3
    gradients, updates = seen("gradients"), seen("updates")
    assert gradients["moved"] == updates["moved"] == [0.0] * 8
    for kind in ("gradients", "updates", "copies"):
        assert len(set(seen(kind)["loss"])) == 1
    for kind in ("half", "second step at once"):
        assert np.isnan(seen(kind)["loss"][1:]).all()


def test_the_norm_in_the_complaint_is_broken_and_widening_mends_it():
    shown = complaints()
    quiet = "@np.errstate(all='ignore')\n"
    judgement = judge("a7", "norm", answer("a7", "norm", quiet + shown["norm"]))
    assert not judgement.passed and max(judgement.earned) == 0
    wide = cured(
        shown["norm"],
        ("    mean =", "    x = x.astype(np.float32)\n    mean ="),
        ("return centred / np.sqrt(variance + np.float16(eps))",
         "return np.float16(centred / np.sqrt(variance + eps))"),
    )  # fmt: skip
    assert set(judge("a7", "norm", answer("a7", "norm", wide)).earned) == {3}


def test_the_loop_in_the_complaint_is_broken_and_four_lines_mend_it():
    shown = complaints()
    judgement = judge("a7", "train", answer("a7", "train", shown["train"]))
    assert not judgement.passed and max(judgement.earned) == 0
    mended = cured(
        shown["train"],
        ("        torch.nn.utils", "        scaler.unscale_(optimizer)\n        torch.nn.utils"),
        ("        optimizer.step()\n", ""),
        ("updates += 1", "updates += scaler.get_scale() >= now\n        rows.append((now, "
         "optimizer.param_groups[0]['lr'], float((layer.weight.detach() - before).norm())))"),
        ("        optimizer.zero_grad()\n", "        optimizer.zero_grad()\n"
         "        now, before = scaler.get_scale(), layer.weight.detach().clone()\n"),
        ("    updates = 0\n", "    updates, rows = 0, []\n"),
    ) + "    return np.array(rows)\n"  # fmt: skip
    judgement = judge("a7", "train", answer("a7", "train", mended))
    assert judgement.passed and set(judgement.earned) == {4}, judgement.message


def test_a_limit_times_a_constant_is_right_at_one_scale_only():
    """Why the hidden cases use other scales: the remedy passes where its number was found."""
    [(x, y, _, limit, interval, _)] = MODULE["runs"](
        np.random.default_rng(5), 1, scales=(8, 9), limits=(-2, -1), fused=(0,)
    )
    right = MODULE["trained"]
    at_256, at_64 = (
        np.allclose(
            right(x, y, scale, 256.0 * limit, interval, False, clip="scaled"),
            right(x, y, scale, limit, interval, False),
            rtol=0.01,
        )
        for scale in (256.0, 64.0)
    )
    assert at_256 and not at_64
