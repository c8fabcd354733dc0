"""The figures of health: where two runs part."""

import numpy as np
import torch
from every_figure import report
from legible import assert_legible

from mplab import pictures as figures
from mplab.health import Digest, compare
from mplab.health.records import Evidence
from mplab.health.reports import Report


def digest(layers=2, start=0, change=None, steps=6):
    torch.manual_seed(0)
    parts = [torch.nn.Linear(4, 4) for _ in range(layers)]
    parts[0].weight.detach().view(-1).view(torch.int32)[0] += start
    model = torch.nn.Sequential(*parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Digest(model, optimizer) as found:
        for step in range(steps):
            if step == change:
                model[layers // 2].bias.detach()[0] *= 1.5
            optimizer.zero_grad()
            model(torch.ones(8, 4)).square().mean().backward()
            optimizer.step()
    return found


def cells(axes):
    """Exponents of a panel, NaN where it is white."""
    (mesh,) = axes.collections
    return np.ma.filled(mesh.get_array(), np.nan)


def test_two_runs_are_drawn_by_layer_and_step_with_a_ring_where_they_part():
    found = compare(digest(), digest(change=3))
    picture = assert_legible(figures.parting(found))
    # Pixels, as of a colour bar, would stay as they are where the cells turn dark.
    assert b"<image" not in picture._drawn("svg")
    assert (
        picture.claim == "The runs part in step 3, forward: the output of 1 (Linear)."
    )
    forward, backward, update = picture.axes[:3]
    assert [label.get_text() for label in forward.get_yticklabels()][:2] == ["1", "0"]
    assert [line.get_xydata().tolist() for line in forward.lines] == [[[3.5, 0.5]]]
    assert [len(axes.lines) for axes in (backward, update)] == [0, 0]
    for axes in (forward, backward, update):
        assert np.isnan(cells(axes)[:, :3]).all()
        assert not np.isnan(cells(axes)[0, 3:]).any()
    assert np.isnan(cells(forward)[1, 3])  # the layer before it differs a step later
    largest = max(
        d.ulps for d in found.differences if (d.step, d.site.layer) == (5, "1")
        and d.site.direction == "update"
    )  # fmt: skip
    assert cells(update)[0, 5] == np.log2(largest)


def test_long_names_leave_room_for_the_axes_and_one_step_is_one():
    told = report()
    for step in told.steps:
        for kind in (step.outputs, step.gradients):
            for name in list(kind):
                kind[f"transformer.encoder.self_attn.out_proj {name}"] = kind.pop(name)
    assert_legible(figures.headroom(told))
    claim = figures.health(Report([], told.steps[:1], Evidence())).claim
    assert claim == "No problems found in 1 step"
