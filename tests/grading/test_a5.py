"""A5: the references, which know nothing of torch, against torch itself; and the story it tells."""

import numpy as np
import pytest
import torch
from corpus import cells, hidden_cases, reference
from torch import nn

from mplab import FP16

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def teacher():
    """All names of exercises.py."""
    return reference("a5", "lost_shares").__globals__


@pytest.fixture(scope="module")
def notebook():
    """All names of the notebook with its solutions."""
    space = {}
    for text in cells("a5").values():
        exec(
            "\n".join(line for line in text.splitlines() if "load_public" not in line),
            space,
        )
    return space


def hidden(exercise):
    return hidden_cases("a5", exercise, seed=5)


def torch_gradients(notebook, weights, inputs, targets, *, scale=1.0, low=True):
    model = notebook["network"](weights)
    with torch.autocast("cpu", dtype=torch.float16, enabled=low):
        loss = nn.functional.mse_loss(
            model(torch.tensor(inputs)), torch.tensor(targets)
        )
    (loss * scale).backward()
    return [p.grad.numpy() for p in model.parameters()]


def test_the_backward_pass_of_the_references_is_that_of_autocast_to_the_last_bits(
    teacher, notebook
):
    exact = total = 0
    for weights, inputs, targets in hidden("lost_shares"):
        for scale in (1.0, 2.0**12):
            real = torch_gradients(notebook, weights, inputs, targets, scale=scale)
            arrays = [np.asarray(w) for w in weights]
            ours = teacher["backward"](
                arrays, *map(np.asarray, (inputs, targets)), scale=scale
            )
            for a, b in zip(ours, real, strict=True):
                np.testing.assert_allclose(
                    a, b, rtol=2.0**-8, atol=2 * FP16.min_subnormal
                )
                exact, total = exact + np.sum(a == b), total + a.size
    assert exact > 0.98 * total


def test_what_the_references_take_for_lost_is_nonzero_in_float32(notebook):
    for weights, inputs, targets in hidden("lost_shares"):
        wide = torch_gradients(notebook, weights, inputs, targets, low=False)
        low = torch_gradients(notebook, weights, inputs, targets)
        shares = reference("a5", "lost_shares")(weights, inputs, targets)
        counted = [
            np.sum((a != 0) & (b == 0)) / max(np.sum(a != 0), 1)
            for a, b in zip(wide, low, strict=True)
        ]
        np.testing.assert_allclose(shares, counted, rtol=1e-12)


def test_the_norm_of_a_window_is_that_of_all_its_rows_at_once_in_float32(notebook):
    answer, compared = reference("a5", "window_step"), 0
    for weights, windows, max_norm, scale in hidden("window_step"):
        norm = answer(weights, windows[:1], max_norm, scale)[0][0]
        inputs, targets = (
            [row for batch in windows[0] for row in batch[i]] for i in (0, 1)
        )
        wide = torch_gradients(notebook, weights, inputs, targets, low=False)
        if np.isfinite(norm):
            compared += 1
            true = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in wide))
            assert norm == pytest.approx(true, rel=5e-3)
    assert compared > 15


def test_float32_holds_every_number_of_the_exercise_on_master_weights():
    for case in hidden("master_step"):
        rows = np.asarray(reference("a5", "master_step")(*case))
        finite = rows[np.isfinite(rows)]
        assert np.array_equal(finite, finite.astype(np.float32))


def test_hidden_cases_hold_skips_growth_and_cuts_after_a_skipped_step():
    steps = [reference("a5", "amp_step")(*case) for case in hidden("amp_step")]
    changes = np.concatenate([np.diff([row[2] for row in rows]) for rows in steps])
    assert np.any(changes > 0) and np.any(changes < 0)
    resumed = [reference("a5", "go_on")(*case) for case in hidden("go_on")]
    assert all(numbers[0] == 1 for numbers in resumed)
    assert sum(bool(cuts) for _, _, cuts in hidden("go_on")) >= 6


def test_the_colleague_s_run_stands_still_in_fp16_and_the_solution_rescues_it(notebook):
    her, watched = notebook["her_step"], notebook["watched"]
    fp32 = watched(her(torch.float32), "FP32").loss
    fp16 = watched(her(torch.float16), "FP16").loss
    rescued = watched(notebook["amp_step"], "FP16", scaled=True).loss
    assert np.all(fp16 == 1) and fp32[-1] < 0.05
    assert rescued[-1] == pytest.approx(fp32[-1], rel=0.3)
