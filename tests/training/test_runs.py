"""`mplab train`: nothing that is done is done again, and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from mplab.commands.main import main
from mplab.training import RECIPES, TASKS, gather, load_runs, runs, train
from mplab.training.runs import checkpoint_path

TASK = "digits-autoencoder"


def command(out, *options, task=TASK):
    return ["train", "--task", task, "--out", str(out), "--quiet", *map(str, options)]


def text(found):
    return json.dumps([run.to_json() for run in found])


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def refused(capsys):
    """Run a command that is refused, and return the one line that it says."""

    def told(arguments):
        capsys.readouterr()
        assert main(arguments) == 2
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1
        return shown

    return told


@pytest.mark.slow
def test_runs_are_gathered_tabulated_and_plotted(tmp_path, capsys):
    out, png, svg = (tmp_path / name for name in ("run.json", "run.png", "run.svg"))
    options = ("--recipe", "fp32", "fp16-scaled", "--seeds", 0, 1, "--steps", 12)
    assert main(command(out, *options, "--plot", png, "--plot", svg)) == 0
    found = load_runs(out)
    wanted = list(product(("fp32", "fp16-scaled"), (0, 1)))
    assert [(run.recipe, run.seed) for run in found] == wanted
    shown = capsys.readouterr().out
    assert "digits-autoencoder, seeds 0 and 1" in shown
    assert "FP16 with loss scaling" in shown
    assert png.read_bytes().startswith(b"\x89PNG")
    assert {*tmp_path.iterdir()} == {out, png, svg}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--recipe", "fp64"), "recipe must be one of fp32, "),
        (
            ("--recipe", "fp32", "--device", "gpu"),
            "--device gpu cannot be used here: Expected",
        ),
        (("--recipe", "fp32", "--device", "meta"), "--device meta cannot be used here"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(tmp_path, refused, options, error):
    assert error in refused(command(tmp_path / "run.json", *options))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"mplab runs": 99, "runs": []}',
        pytest.param(b"[" * 200_000, id="deep"),
    ],
)
def test_a_file_of_another_kind_is_refused_and_kept(tmp_path, refused, content):
    out = tmp_path / "run.json"
    out.write_bytes(content)
    told = refused(command(out, "--recipe", "fp32", "--steps", 3))
    assert "must hold runs of version 1" in told
    assert out.read_bytes() == content


def test_a_file_that_another_process_writes_is_refused(tmp_path, refused):
    out = tmp_path / "run.json"
    asked = command(out, "--recipe", "fp32", "--steps", 3)
    with runs._alone(out):
        assert "which another process writes" in refused(asked)
    assert main(asked) == 0


def test_on_windows_a_file_that_another_process_writes_is_refused_too(
    tmp_path, monkeypatch
):
    """Without fcntl two processes wrote one file, and the runs of one were lost."""
    held = []

    def locking(descriptor, mode, length):
        assert (mode, length) == ("LK_NBLCK", 1)
        if held:
            raise PermissionError(13, "Permission denied")
        held.append(descriptor)

    fake = SimpleNamespace(locking=locking, LK_NBLCK="LK_NBLCK")
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    monkeypatch.setattr(sys, "platform", "win32")
    out = tmp_path / "run.json"
    with (
        runs._alone(out),
        pytest.raises(ValueError, match="another process"),
        runs._alone(out),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_another_process_removed_meanwhile_does_not_count(
    tmp_path, monkeypatch
):
    fcntl = pytest.importorskip("fcntl")
    lock = tmp_path / "run.json.lock"
    monkeypatch.setattr(fcntl, "flock", lambda *_: lock.unlink())
    with (
        pytest.raises(ValueError, match="another process"),
        runs._alone(tmp_path / "run.json"),
    ):
        pass


def test_the_catalogue_names_every_task_with_its_verdict_and_every_recipe(capsys):
    assert main(["train", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for task in TASKS.values():
        assert any(line.split()[:2] == [task.name, task.verdict] for line in lines)
    assert {line.split()[0] for line in lines} > set(RECIPES)


# From Python -----------------------------------------------------------------------------


def gathered(recipes, out, *, task=TASK, **options):
    return gather(task, recipes, out, progress=False, **{"steps": 3, **options})


def test_gathering_returns_the_runs_asked_for_recipe_by_recipe_and_tells_of_each(
    tmp_path,
):
    out = tmp_path / "run.json"
    told = []
    stored = []

    def tell(run):
        told.append((run.recipe, run.seed))
        stored.append([(r.recipe, r.seed) for r in load_runs(out)])

    found = gathered(["bf16", "fp32"], str(out), seeds=[1, 0], told=tell)
    assert told == [("bf16", 1), ("bf16", 0), ("fp32", 1), ("fp32", 0)]
    assert [(run.recipe, run.seed) for run in found] == told
    # Each was in the file by then.
    assert stored == [told[:count] for count in (1, 2, 3, 4)]
    assert text(found) == text(load_runs(out))
    single = train(TASK, "bf16", seed=1, steps=3, progress=False)
    assert text(found[:1]) == text([single])
    assert set(files(tmp_path)) == {"run.json"}


def test_gathering_again_trains_only_what_is_missing_and_returns_only_what_was_asked(
    tmp_path,
):
    out = tmp_path / "run.json"
    told = []
    first = gathered(["fp32", "bf16"], out)
    again = gathered(["fp16-scaled", "fp32", "fp32"], out, told=told.append)
    assert [run.recipe for run in told] == ["fp16-scaled"]
    assert [run.recipe for run in again] == ["fp16-scaled", "fp32"]
    assert text(again[1:]) == text(first[:1])
    assert [run.recipe for run in load_runs(out)] == ["fp32", "bf16", "fp16-scaled"]


def test_runs_of_versions_whose_recipes_had_more_options_are_read(tmp_path):
    out = tmp_path / "run.json"
    first = gathered(["fp16-scaled"], out)
    written = out.read_text()
    plain = '"max_norm": null'
    former = '"native": false, "device": "cpu", "checkpointing": true'
    assert plain in written
    out.write_text(written.replace(plain, f"{plain}, {former}"))
    assert text(load_runs(out)) == text(first)
    again = gathered(["fp16-scaled"], out, told=pytest.fail)
    assert text(again) == text(first)
    out.write_text(written.replace(plain, f'{plain}, "native": true'))
    assert load_runs(out)[0].settings == first[0].settings | {"native": True}
    with pytest.raises(ValueError, match="runs of the same fp16-scaled's setting"):
        gathered(["fp16-scaled"], out)


def test_gathering_goes_on_from_the_checkpoint_of_a_run_that_was_cut_off(tmp_path):
    out = tmp_path / "run.json"
    checkpoint = checkpoint_path(out, "fp16-scaled", 0)
    left = iter(range(2))  # the third step is broken off
    watcher = SimpleNamespace(step=lambda *_: next(left), close=lambda: None)
    options = {"steps": 5, "progress": False, "checkpoint": checkpoint, "save_every": 2}
    with pytest.raises(StopIteration):
        train(TASK, "fp16-scaled", watch=lambda *_: watcher, **options)
    before = torch.load(checkpoint, weights_only=True)
    before["identity"]["settings"]["native"] = (
        False  # as versions that had this option stored
    )
    before["history"]["loss"][0] = 0.5  # a step that is not trained again keeps this
    torch.save(before, checkpoint)
    (run,) = gathered(["fp16-scaled"], out, steps=5)
    whole = train(TASK, "fp16-scaled", steps=5, progress=False)
    assert run.loss[0] == 0.5 != whole.loss[0]
    assert run.loss[1:].tolist() == whole.loss[1:].tolist()
    assert not checkpoint.exists()


def test_recipes_and_tasks_of_one_s_own_are_gathered_under_their_names(tmp_path):
    out = tmp_path / "run.json"
    mine = replace(RECIPES["fp16-scaled"], name="mine", init_scale=4.0)
    task = replace(TASKS[TASK], name="short", steps=2)
    found = gathered(["fp32", mine, mine], out, task=task, steps=None)
    assert [(run.task, run.recipe, len(run.loss)) for run in found] == [
        ("short", "fp32", 2),
        ("short", "mine", 2),
    ]
    assert found[1].loss_scale.tolist() == [4.0, 4.0]
    assert text(gathered([mine], out, task=task, steps=2)) == text(found[1:])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"recipes": [replace(RECIPES["fp32"], max_norm=1.0)]},
            "the same fp32's settings",
        ),
        ({"task": replace(TASKS[TASK], name="other")}, "the same task"),
        ({"task": replace(TASKS[TASK], steps=4), "steps": None}, "the same steps"),
        ({"device": "cuda"}, "the same fp32's device"),
    ],
)
def test_runs_that_cannot_join_a_file_are_refused_and_the_file_stays(
    tmp_path, changed, named
):
    out = tmp_path / "run.json"
    gathered(["fp32"], out)
    before = files(tmp_path)
    with pytest.raises(
        ValueError, match=f"^gather: out must hold runs of {named}; got "
    ):
        gathered(**{"recipes": ["fp32"], "out": out, **changed})
    assert files(tmp_path) == before


def test_runs_of_an_apple_gpu_are_kept_when_it_is_asked_for_again(tmp_path):
    out = tmp_path / "run.json"
    gathered(["fp32"], out)
    out.write_text(out.read_text("utf-8").replace('"device": "cpu"', '"device": "mps"'))
    assert [run.device for run in gathered(["fp32"], out, device="mps")] == ["mps"]
    with pytest.raises(ValueError, match="with 'mps' instead of 'cuda'"):
        gathered(["fp32"], out, device="cuda")


def test_a_folder_of_the_file_is_made_and_a_folder_is_no_file(tmp_path, refused):
    options = "--recipe", "fp32", "--steps", 1
    assert main(command(tmp_path / "new" / "run.json", *options)) == 0
    for folder in (".", "", tmp_path):
        assert "out must be a file; got the folder" in refused(
            command(folder, *options)
        )


def test_a_recipe_of_a_file_that_is_not_asked_for_may_have_changed_since(tmp_path):
    out = tmp_path / "run.json"
    old = replace(RECIPES["fp32"], name="old", max_norm=1.0)
    gathered([old], out)
    gathered(["fp32"], out)
    assert [run.recipe for run in load_runs(out)] == ["old", "fp32"]


@pytest.mark.parametrize(("changed", "message"), [
    ({"task": "chess"}, "gather: task must be one of sigmoid-autoencoder.*got 'chess'"),
    ({"recipes": ["fp32", "fp64"]}, "gather: recipe must be one of fp32.*got 'fp64'"),
    (
        {"recipes": ["fp32", replace(RECIPES["fp32"], max_norm=1.0)]},
        "gather: recipes must have names of their own; got two .* called 'fp32'",
    ),
    ({"steps": 0}, "gather: steps must be an integer, at least 1; got 0"),
    ({"save_every": 0}, "gather: save_every must be an integer, at least 1; got 0"),
    ({"seeds": [0, -1]}, "gather: seeds must be an integer, not negative.*got -1"),
])  # fmt: skip
def test_what_cannot_be_gathered_is_refused_before_any_file_is_written(
    tmp_path, changed, message
):
    with pytest.raises(ValueError, match=f"^{message}"):
        gathered(**{"recipes": ["fp32"], "out": tmp_path / "run.json", **changed})
    assert list(tmp_path.iterdir()) == []


def start(arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "mplab", *arguments], stderr=subprocess.PIPE
    )


def wait_for(path, process, seconds=600):
    """Until a file exists, or the process ends; the limit is only for one that does neither."""
    end = time.monotonic() + seconds
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    return path.exists()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_command_goes_on_and_its_file_is_that_of_one_that_was_not(tmp_path):
    """Killed in its second run."""
    recipes = "fp16-scaled", "bf16-stochastic"
    options = ("--recipe", *recipes, "--steps", 200, "--save-every", 4)
    plain, out = (tmp_path / name / "run.json" for name in ("plain", "killed"))
    for path in (plain, out):
        path.parent.mkdir()
    process = start(command(out, *options))
    try:
        checkpoint = checkpoint_path(out, "bf16-stochastic", 0)
        assert wait_for(checkpoint, process), process.stderr.read()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert [run.recipe for run in load_runs(out)] == ["fp16-scaled"]
    assert main(command(out, *options)) == main(command(plain, *options)) == 0
    assert files(out.parent) == files(plain.parent)


@pytest.mark.parametrize(
    ("plot", "out"),
    [
        ("run.html", "run.json"),
        ("run", "run.json"),
        ("nowhere/run.png", "run.json"),
        ("run.svg", "run.svg"),  # the figure would replace the runs
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_before_training(
    tmp_path, capsys, plot, out
):
    options = ["--recipe", "fp32", "--plot", tmp_path / plot]
    with pytest.raises(SystemExit, match="2"):
        main(command(tmp_path / out, *options))
    assert (
        "--plot must be a .png or .svg in a folder that is" in capsys.readouterr().err
    )
    assert not (tmp_path / out).exists()
