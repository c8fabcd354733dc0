"""A5: what its hidden cases hold, and the story that it tells."""

import numpy as np
import pytest
import torch
from corpus import cells, hidden_cases, reference

pytestmark = pytest.mark.slow


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
