"""`mplab compare`: exit codes, one line for what is wrong, and the figure."""

import pytest
import torch

from mplab.commands.main import main
from mplab.health import Digest


@pytest.fixture
def runs(tmp_path):
    """Files of two equal runs and of one that starts with another weight."""
    for name, weight in (("a", 1.0), ("same", 1.0), ("other", 2.0)):
        model = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(model.weight, weight)
        torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Digest(model, optimizer, path=tmp_path / f"{name}.json"):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
    return tmp_path


def compared(folder, a, b, *options):
    return main(
        ["compare", str(folder / f"{a}.json"), str(folder / f"{b}.json"), *options]
    )


def test_equal_runs_end_with_0_and_others_with_1(runs, capsys):
    assert compared(runs, "a", "same") == 0
    assert (
        capsys.readouterr().out
        == "The runs do not differ: 9 digests of 1 step are equal.\n"
    )
    assert compared(runs, "a", "other") == 1
    said = capsys.readouterr().out
    assert said.startswith(
        'The runs part in step 0, start: "weight" of the model (Linear)'
    )


def test_the_figure_is_written(runs, capsys):
    assert compared(runs, "a", "other", "--plot", str(runs / "p.png")) == 1
    assert (runs / "p.png").read_bytes().startswith(b"\x89PNG")
    assert f"Written: {runs / 'p.png'}" in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_line(runs, capsys):
    assert compared(runs, "a", "nowhere") == 2
    (runs / "text.json").write_text("no digest")
    assert compared(runs, "text", "a") == 2
    lines = capsys.readouterr().err.splitlines()
    assert "nowhere.json" in lines[0]
    assert lines[1].startswith(
        "mplab compare: compare: run_a must hold a digest of version 2; got"
    )
    assert len(lines) == 2
    with pytest.raises(SystemExit, match="2"):
        compared(runs, "a", "same", "--plot", "p.gif")
    assert "--plot must be a .png or .svg; got p.gif" in capsys.readouterr().err


def test_the_figure_is_never_one_of_the_runs(runs, capsys):
    image = (runs / "a.json").rename(runs / "a.svg")
    before = image.read_bytes()
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(runs / "other.json"), str(image), "--plot", str(image)])
    assert image.read_bytes() == before
    assert "--plot must not be one of the runs; got" in capsys.readouterr().err
