"""`mplab train`: nothing that is done is done again, and nothing is lost."""

import json
import os
import re
import shutil
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
from mplab.commands.train import _version, named_task
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
    "content", [b"", b"{", b"[]", b'{"mplab runs": 99, "runs": []}']
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


def test_runs_of_versions_that_had_the_option_native_are_read(tmp_path):
    out = tmp_path / "run.json"
    first = gathered(["fp16-scaled"], out)
    written = out.read_text()
    plain = '"checkpointing": false'
    assert plain in written
    out.write_text(written.replace(plain, f'{plain}, "native": false'))
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
])  # fmt: skip
def test_what_cannot_be_gathered_is_refused_before_any_file_is_written(
    tmp_path, changed, message
):
    with pytest.raises(ValueError, match=f"^{message}"):
        gathered(**{"recipes": ["fp32"], "out": tmp_path / "run.json", **changed})
    assert list(tmp_path.iterdir()) == []


# A task of one's own, by the command ------------------------------------------------------
OWN = """
import torch
from mplab.training import Split, Task

def data():
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
    return Split((x[:64], x[:64, :1]), (x[64:], x[64:, :1]))

def mse(output, split):
    return {"mse": float((output - split.test[1]).square().mean())}

TASK = Task(
    "mine", 40, 16, data, lambda: torch.nn.Linear(4, 1), torch.nn.functional.mse_loss, mse,
    lambda parameters: torch.optim.Adam(parameters, lr=RATE),
)
NUMBER = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a package of two tasks of one name, in which one works."""
    folder = tmp_path / "here"
    (folder / "own_tasks").mkdir(parents=True)
    texts = {
        "__init__": "", "one": OWN.replace("RATE", "0.01"), "two": OWN.replace("RATE", "0.02"),
        "broken": "import torch\nraise ZeroDivisionError('in the data')",
        "lacking": "import a_package_that_nobody_has", "leaving": "raise SystemExit('usage')",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / "own_tasks" / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield folder
    forget()


def test_a_task_of_one_s_own_is_trained_by_the_place_it_is_from(own, capsys):
    recipes = "fp32", "fp16-scaled"
    one = command("one.json", "--recipe", *recipes, task="own_tasks.one:TASK")
    assert main([*one, "--plot", "one.png"]) == 0
    assert re.search(r"own_tasks.one:TASK@[0-9a-f]{8}, seed 0", capsys.readouterr().out)
    found = load_runs("one.json")
    assert {run.task.partition("@")[0] for run in found} == {"own_tasks.one:TASK"}
    assert [(run.recipe, len(run.loss)) for run in found] == [
        (recipe, 40) for recipe in recipes
    ]
    assert set(found[0].metrics) == {"mse"}
    before = (own / "one.json").read_bytes()
    assert main(one) == 0  # repeats nothing
    assert (own / "one.json").read_bytes() == before


def interrupt(*_, **__):
    raise KeyboardInterrupt


def edit(folder, name, old, new):
    """Change a module of the package, and forget what was imported of it, as a new process has."""
    file = folder / "own_tasks" / f"{name}.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_tasks"]:
        del sys.modules[name]


def test_a_changed_task_does_not_join_the_runs_of_the_old_one(own, refused):
    one = command("a.json", "--recipe", "fp32", task="own_tasks.one:TASK")
    assert main(one) == 0
    edit(own, "one", "def data", "# a comment alone, and empty lines\n\n\ndef data")
    assert main([*one, "--seeds", "0", "1"]) == 0
    assert len(load_runs("a.json")) == 2
    before = (own / "a.json").read_bytes()
    edit(own, "one", "lr=0.01", "lr=0.003")
    told = "out must hold runs of the same task; got a.json with 'own_tasks.one:TASK@"
    assert told in refused([*one, "--seeds", "2"])
    assert (own / "a.json").read_bytes() == before
    edit(own, "one", "lr=0.003", "lr=0.01")  # and back
    assert main([*one, "--seeds", "2"]) == 0


def test_a_checkpoint_of_a_task_before_its_change_is_refused(
    own, refused, monkeypatch, capsys
):
    one = command("a.json", "--recipe", "fp32", "--steps", 5, task="own_tasks.one:TASK")
    with monkeypatch.context() as cut:
        cut.setattr(runs, "_save", interrupt)
        assert main(one) == 130
    assert "interrupted. The same command goes on" in capsys.readouterr().err
    edit(own, "one", "lr=0.01", "lr=0.003")
    assert "checkpoint must be of this run" in refused(one)
    assert not (own / "a.json").exists()


def test_the_files_beside_a_task_that_hold_its_functions_belong_to_its_code(own):
    def place(folder=own):
        sys.path.insert(0, str(folder))
        forget()
        found = named_task("own_tasks.three:TASK")
        return _version("own_tasks.three:TASK", found)

    (own / "own_tasks" / "three.py").write_text("from own_tasks.one import TASK")
    first = place()
    edit(own, "two", "0.02", "0.5")  # another's
    assert place() == first
    shutil.copytree(own, own.parent / "there")
    assert place(own.parent / "there") == first
    edit(own, "one", "lr=0.01", "lr=0.003")
    assert place() != first == place(own.parent / "there")


def test_wrong_metrics_of_a_task_are_one_line_before_training(own, refused):
    edit(own, "one", '{"mse": float((output - split.test[1]).square().mean())}', "3.0")
    told = refused(command("a.json", "--recipe", "fp32", task="own_tasks.one:TASK"))
    assert told.startswith("mplab train: train: task must have metrics that")
    assert {path.name for path in own.iterdir()} == {"own_tasks"}


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError])
def test_an_exception_of_one_s_own_task_keeps_its_traceback(own, error):
    edit(
        own,
        "one",
        "def data():",
        f"def data():\n    raise {error.__name__}('mine: in the data')",
    )
    with pytest.raises(error, match="mine: in the data"):
        main(command("a.json", "--recipe", "fp32", task="own_tasks.one:TASK"))


@pytest.mark.parametrize(("task", "error"), [
    ("nothing_here:TASK", "there is no module 'nothing_here' in "),
    ("own_tasks.one:NUMBER", "The tasks in own_tasks.one are: TASK."),
    ("own_tasks:TASK", "The tasks in own_tasks are: none."),
    ("own_tasks.one:", "The tasks in own_tasks.one are: TASK."),
    (":TASK", "there is no module '' in "),
    ("own_tasks/one.py:TASK", "there is no module 'own_tasks/one' in "),
])  # fmt: skip
def test_a_task_that_is_not_there_is_one_line(own, refused, task, error):
    told = refused(command("run.json", "--recipe", "fp32", task=task))
    assert told.startswith(
        "mplab train: --task must be package.module:NAME, where NAME is a Task"
    )
    assert error in told
    assert not (own / "run.json").exists()


@pytest.mark.parametrize("module", ["broken", "lacking", "leaving"])
def test_an_error_of_one_s_own_module_is_shown_as_it_is(own, capsys, module):
    """Python's own traceback, or main's sentence on the package that is not installed."""
    given = command("run.json", "--recipe", "fp32", task=f"own_tasks.{module}:TASK")
    if module == "lacking":
        assert main(given) == 2
        assert "a_package_that_nobody_has" in capsys.readouterr().err
    else:
        with pytest.raises((ZeroDivisionError, SystemExit), match=r"in the data|usage"):
            main(given)
    assert not (own / "run.json").exists()


# Killed ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("plot", ["run.html", "run", "nowhere/run.png"])
def test_a_plot_that_cannot_be_written_is_refused_before_training(
    tmp_path, capsys, plot
):
    options = ["--recipe", "fp32", "--plot", tmp_path / plot]
    with pytest.raises(SystemExit, match="2"):
        main(command(tmp_path / "run.json", *options))
    assert (
        "--plot must be a .png or .svg in a folder that is" in capsys.readouterr().err
    )
    assert not (tmp_path / "run.json").exists()
