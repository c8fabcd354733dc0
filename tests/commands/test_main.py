import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import nbformat
import pytest
from drawn import assert_as_it_was

import mplab
from mplab.commands import doctor, lab, reproducibility
from mplab.commands.lab import copy_lessons, find_lesson
from mplab.commands.main import main
from mplab.common.errors import UserError
from mplab.common.files import course_folder as lessons_folder

FIRST, SECOND, FIGURES = "01_first.ipynb", "02_second.ipynb", "l01/figures.py"
RECORD = ".mplab-lessons.json"
VERSION_1, VERSION_2 = (
    json.dumps(
        {"cells": [{"cell_type": "markdown", "source": f"version {n}", "id": "a"}]}
    )
    for n in (1, 2)
)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A course of two lessons, which `mplab lab` takes for its own."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in (FIRST, SECOND):
        (folder / name).write_text(VERSION_1)
    (folder / ".hidden").write_text("")
    for name in (FIGURES, "l01/exercises.py", "a1/figures.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(VERSION_1)
    monkeypatch.setattr(lab, "course_folder", lambda name: folder)
    return folder


@pytest.fixture
def mine(source, tmp_path):
    """A folder to which these lessons were copied."""
    copy_lessons(source, tmp_path / "new" / "mine")
    return tmp_path / "new" / "mine"


def first_cell(path):
    return json.loads(path.read_text())["cells"][0]["source"]


def files_in(folder):
    """The paths of all files within a folder."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def started(monkeypatch):
    """The command that this process would have become."""
    commands = []
    monkeypatch.setattr(lab, "_compile_beside", lambda: None)
    monkeypatch.setattr(os, "execv", lambda path, command: commands.append(command))
    return commands


def run(*arguments):
    """Run the real command in a process of its own."""
    code = "from mplab.commands.main import main; raise SystemExit(main())"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# Copying


def test_lessons_are_copied_into_a_new_folder_with_a_record_in_json(mine):
    assert files_in(mine) == {FIRST, SECOND, RECORD}
    assert set(json.loads((mine / RECORD).read_text())) == {FIRST, SECOND}


def test_a_copy_has_room_below_each_prediction_and_question_by_hand_and_no_picture(
    tmp_path,
):
    """Its own cells draw the pictures of the text, and a link would lead nowhere."""
    source = lessons_folder("lessons")
    copy_lessons(source, tmp_path)
    for path in tmp_path.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        yours = [cell for cell in notebook.cells if cell.cell_type == "raw"]
        before = [old.source for old, cell in pairwise(notebook.cells) if cell in yours]
        assert len(before) == len(yours) >= 6
        assert all(re.search(r"\*\*Predict|✍", text) for text in before)
        asked = sum(cell.source.count("**Predict.**") for cell in notebook.cells)
        assert sum(text.count("**Predict.**") for text in before) == asked
        texts = [
            (folder / path.name).read_text("utf-8") for folder in (source, tmp_path)
        ]
        assert [text.count("![") for text in texts] == [1, 0]


def test_an_edited_file_is_kept_and_said_so_also_when_a_newer_version_exists(
    source, mine
):
    (mine / FIRST).write_text("my work")
    assert copy_lessons(source, mine)[1:] == [f"  {FIRST}: kept, with your changes"]
    (source / FIRST).write_text(VERSION_2)
    said = "\n".join(copy_lessons(source, mine))
    assert "newer version: --reset renews it and keeps yours" in said
    assert (mine / FIRST).read_text() == "my work"


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_copy_that_ends_early_loses_no_work_and_the_next_one_finishes_it(
    source, mine, monkeypatch, reset, writes
):
    (mine / FIRST).write_text("my work")
    for name in (FIRST, SECOND):
        (source / name).write_text(VERSION_2)
    left = [None] * writes

    def full(path, content, *, write=lab.replace_file):
        if not left:
            raise OSError(28, "No space left on device")
        left.pop()
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(lab, "replace_file", full)
        with contextlib.suppress(OSError):
            copy_lessons(source, mine, reset=reset)
    copy_lessons(source, mine, reset=reset)
    assert first_cell(mine / SECOND) == "version 2"
    kept = [
        p.name for p in mine.rglob("*") if p.is_file() and p.read_text() == "my work"
    ]
    assert kept == [FIRST]
    if reset:
        assert first_cell(mine / FIRST) == "version 2"


def opened_and_run(path):
    """What JupyterLab writes into a notebook that somebody opens, runs and saves."""
    notebook = json.loads(path.read_text())
    notebook["metadata"] = {"language_info": {"name": "python", "version": "3.13.1"}}
    notebook["cells"][0]["outputs"] = ["a picture"]
    path.write_text(json.dumps(notebook, indent=1))
    return path.read_text()


def test_a_lesson_that_was_opened_and_run_keeps_its_outputs_and_is_updated(
    source, mine
):
    """Opening one was called an edit, and a corrected lesson never arrived."""
    saved = opened_and_run(mine / FIRST)
    assert copy_lessons(source, mine)[1:] == []
    assert (mine / FIRST).read_text() == saved
    (source / FIRST).write_text(VERSION_2)
    assert copy_lessons(source, mine)[1:] == []
    assert first_cell(mine / FIRST) == "version 2"


def test_records_of_version_0_2_hold_digests_of_bytes(source, mine):
    record = hashlib.sha256((mine / FIRST).read_bytes()).hexdigest()
    (mine / RECORD).write_text(json.dumps({FIRST: record}))
    (source / FIRST).write_text(VERSION_2)
    assert copy_lessons(source, mine)[1:] == []
    assert first_cell(mine / FIRST) == "version 2"


def test_a_deleted_lesson_comes_back(source, mine):
    (mine / SECOND).unlink()
    copy_lessons(source, mine)
    assert first_cell(mine / SECOND) == "version 1"


@pytest.mark.parametrize(
    "record", [None, "", "{", "[]", "null", '{"01_first.ipynb": 7}']
)
def test_without_a_readable_record_no_work_is_lost(source, mine, record):
    (mine / FIRST).write_text("my work")
    (mine / RECORD).unlink() if record is None else (mine / RECORD).write_text(record)
    copy_lessons(source, mine)
    assert (mine / FIRST).read_text() == "my work"


def test_reset_restores_and_keeps_only_the_edited_file(source, mine):
    (mine / FIRST).write_text("my work")
    copy_lessons(source, mine, reset=True)
    assert first_cell(mine / FIRST) == "version 1"
    (backup,) = mine.glob("before-reset-*")
    assert files_in(backup) == {FIRST} and (backup / FIRST).read_text() == "my work"


def test_two_resets_within_a_second_lose_nothing(source, mine, monkeypatch):
    monkeypatch.setattr(lab.time, "strftime", lambda form: "before-reset-now")
    (mine / FIRST).write_text("work 1")
    copy_lessons(source, mine, reset=True)
    (mine / FIRST).write_text("work 2")
    with pytest.raises(FileExistsError, match="Try again"):
        copy_lessons(source, mine, reset=True)
    assert (mine / "before-reset-now" / FIRST).read_text() == "work 1"
    assert (mine / FIRST).read_text() == "work 2"


def test_the_originals_are_opened_in_place(source):
    before = sorted(source.iterdir())
    assert "originals" in copy_lessons(source, source, reset=True)[0]
    assert sorted(source.iterdir()) == before


LOOK = """
from mplab.lessons.l16 import exercises, explorer
import mplab
print(explorer.__file__, exercises.__file__)
assert mplab.check("flush_threshold", 2.0**-25)
"""


@pytest.mark.slow
def test_a_learner_has_notebooks_and_imports_the_code_where_it_is_installed(
    tmp_path, started
):
    main(["lab", "--dir", str(tmp_path)])
    assert not list(tmp_path.rglob("*.py"))
    sheet = tmp_path / "SHEET.md"
    assert sheet.read_bytes() == (lessons_folder("lessons") / sheet.name).read_bytes()
    sheet.write_text("mine")
    main(["lab", "--dir", str(tmp_path)])
    assert sheet.read_text() == "mine"
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    ours = lessons_folder("lessons") / "l16"
    assert done.stdout == f"{ours / 'explorer.py'} {ours / 'exercises.py'}\n"


# Choosing


@pytest.mark.parametrize(
    "wanted", ["2", "02", "02_second", "02_second.ipynb", "lessons/02_second"]
)
def test_a_lesson_is_found_by_number_stem_or_file_name(source, wanted):
    assert find_lesson(wanted, source=source).name == SECOND


@pytest.mark.parametrize("wanted", ["3", "0", "second", "", "²", "../01"])
def test_an_unknown_lesson_is_an_error_that_lists_the_lessons(source, wanted):
    with pytest.raises(
        UserError, match=r"(?s)must be the number.*01_first\n  02_second"
    ):
        find_lesson(wanted, source=source)


# Starting


def test_lab_becomes_jupyterlab_with_its_token_on_loopback_and_never_adds_allow_root(
    source, started, tmp_path
):
    main(["lab", "2", "--dir", str(tmp_path / "mine")])
    (command,) = started
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    url, root, connection = command[3:]
    assert url == f"--LabApp.default_url=/lab/tree/{SECOND}"
    assert root == f"--ServerApp.root_dir={tmp_path / 'mine'}"
    assert connection.startswith("--ServerApp.kernel_websocket_connection_class=")


@pytest.mark.slow
def test_lab_compiles_what_first_calls_need_without_waiting(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    lab._compile_beside()
    assert not list(tmp_path.rglob("*.nbc"))
    while not list(tmp_path.rglob("kernels._inner_loop*.nbc")):
        time.sleep(0.1)  # a test that hangs is ended


def test_lab_starts_where_nothing_can_be_compiled_beside_it(monkeypatch, capfd):
    monkeypatch.setattr(sys, "executable", "/no such/python")
    monkeypatch.setenv("PATH", "")
    lab._compile_beside()
    assert capfd.readouterr() == ("", "")


def test_lab_passes_unknown_options_on_in_their_order(source, started, tmp_path):
    main(["lab", "--port", "8890", "--dir", str(tmp_path), "--no-browser", "--d=1"])
    (command,) = started
    assert command[-4:] == ["--port", "8890", "--no-browser", "--d=1"]
    assert f"--LabApp.default_url=/lab/tree/{FIRST}" in command


def test_on_windows_jupyterlab_is_a_subprocess_and_its_exit_code_ours(
    source, started, tmp_path, monkeypatch
):
    monkeypatch.setattr(lab.platform, "system", lambda: "Windows")
    monkeypatch.setattr(lab.signal, "signal", lambda *_: None)
    monkeypatch.setattr(lab.subprocess, "call", lambda command: 7)
    assert main(["lab", "--dir", str(tmp_path)]) == 7 and started == []


def test_an_unknown_lesson_exits_with_2_and_one_message(
    source, started, tmp_path, capsys
):
    assert main(["lab", "9", "--dir", str(tmp_path / "mine")]) == 2
    assert capsys.readouterr().err.startswith("mplab lab: LESSON must be")
    assert not (tmp_path / "mine").exists()
    assert started == []


def test_a_folder_that_cannot_be_made_exits_with_2_and_one_message(
    source, tmp_path, capsys
):
    (tmp_path / "file").write_text("")
    assert main(["lab", "--dir", str(tmp_path / "file")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("mplab lab: ")


# The process


def test_help_lists_the_commands_and_imports_nothing_heavy():
    code = (
        "import sys; from mplab.commands.main import main\n"
        "try: main(['--help'])\n"
        "finally: print(sorted({'torch', 'numba', 'matplotlib', 'jupyterlab'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[]\n")
    assert all(
        f"    {command}  " in done.stdout for command in ("lab", "doctor", "probe")
    )


@pytest.mark.parametrize("arguments", [[], ["fly"], ["doctor", "--now"]])
def test_a_wrong_command_line_exits_with_2_and_a_usage(arguments):
    done = run(*arguments)
    assert done.returncode == 2 and "usage: mplab" in done.stderr


@pytest.mark.slow
def test_version_is_the_one_of_the_package_which_can_be_run_as_a_module():
    command = [sys.executable, "-m", "mplab", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout == f"mplab {mplab.__version__}\n"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs a shell with pipes as on Unix")
def test_a_reader_that_leaves_early_gets_no_complaint():
    code = "from mplab.commands.main import main; raise SystemExit(main())"
    command = f"'{sys.executable}' -u -c '{code}' doctor | head -n 1"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("\n") == 1 and done.stderr == ""


def test_a_command_without_an_output_runs(monkeypatch):
    """As after `mplab doctor >&-` in a shell."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(doctor, "main", lambda rest: print("said") or 0)
    assert main(["doctor"]) == 0
    sys.stdout.close()


def test_what_a_terminal_obeys_is_not_printed(monkeypatch, capsys):
    wild = "\x00\x1f\x7e\x7f\r\x9f\xa0\u202a\u202e\u202f\u2065\u2066\u2069\t\n"
    monkeypatch.setattr(doctor, "main", lambda rest: print(wild, end="") or 0)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "??~???\xa0??\u202f\u2065??\t\n"

    def fail(rest):
        raise UserError(wild)

    monkeypatch.setattr(doctor, "main", fail)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "mplab doctor: ??~???\xa0??\u202f\u2065??\t\n\n"


def test_doctor_names_a_folder_in_which_compiled_loops_are():
    mplab.round_to(0.1, mplab.FP16)
    folder = Path(doctor.compile_cache().found)
    assert [*folder.glob("*.nbi")]


@pytest.mark.parametrize("there", [True, False])
def test_doctor_says_what_is_found_and_what_each_missing_thing_turns_off(
    there, monkeypatch, capsys
):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/bwrap" * there)
    monkeypatch.setattr(doctor, "version_of", lambda name: "1.2" * there)
    monkeypatch.setattr("torch.version.cuda", "12")
    for name, found in {"is_available": there, "get_device_capability": (8, 9),
                        "get_device_name": "GPU"}.items():  # fmt: skip
        monkeypatch.setattr(f"torch.cuda.{name}", lambda found=found: found)
    assert doctor.main([]) == 0
    said = capsys.readouterr().out.split("\n", 2)[2]
    local = r"(?<=processor      ).+(?=, \d+ core)|\d+ cores?|(?<=cache  ).+"
    assert_as_it_was(re.sub(local, "", said), __file__, f"doctor-{there:d}.txt")


def test_doctor_says_what_it_compares_before_the_minutes_it_takes(monkeypatch, capsys):
    said = []
    monkeypatch.setattr(
        reproducibility, "differing", lambda: said.append(capsys.readouterr().out) or []
    )
    monkeypatch.setattr(reproducibility, "torch_functions", list)
    assert doctor.numbers() == 0
    assert said[0].startswith("Numbers, arithmetic, matrix units")


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "main", mock.Mock(side_effect=KeyboardInterrupt))
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "mplab doctor: interrupted.\n"


@pytest.mark.slow
def test_a_terminal_of_few_letters_gets_question_marks_not_an_error():
    code = (
        "from mplab.commands import doctor, main\n"
        "doctor.main = lambda rest: print('R² of 2⁻¹⁴ × 3') or 0\n"
        "raise SystemExit(main.main(['doctor']))"
    )
    command, env = (
        [sys.executable, "-c", code],
        os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    done = subprocess.run(command, capture_output=True, env=env, check=True)
    assert done.stdout.decode("latin-1").strip() == "R² of 2?¹? × 3"


def test_a_page_gets_each_message_of_its_kernel_at_once(monkeypatch):
    from jupyter_server.services.kernels.connection.channels import (
        ZMQChannelsWebsocketConnection,
    )

    from mplab.commands.websocket import PromptConnection

    done = []
    monkeypatch.setattr(
        ZMQChannelsWebsocketConnection, "connect", lambda _: done.append("connect")
    )
    connection = PromptConnection.__new__(PromptConnection)
    page = SimpleNamespace(set_nodelay=lambda value: done.append(("no delay", value)))
    monkeypatch.setattr(PromptConnection, "websocket_handler", page)
    connection.connect()
    assert done == [("no delay", True), "connect"]


def test_what_jupyterlab_is_told_to_leave_out_is_there_to_leave_out():
    """A plugin that JupyterLab renames would come back without a word."""
    from jupyterlab.commands import get_app_dir

    schemas, folder = Path(get_app_dir()) / "schemas", lab._DEFAULTS / "labconfig"
    overrides, page = (
        json.loads((folder / name).read_text("utf-8"))
        for name in ("default_setting_overrides.json", "page_config.json")
    )
    for plugin, settings in overrides.items():
        schema = schemas / f"{plugin.replace(':', '/')}.json"
        known = json.loads(schema.read_text("utf-8"))["properties"]
        assert settings.keys() <= known.keys(), plugin
    for extension in page["disabledExtensions"]:
        ours = extension.startswith("@jupyterlab/")
        assert not ours or (schemas / extension).is_dir(), extension
