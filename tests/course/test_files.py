import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import mplab
from mplab.common import digits, files
from mplab.common.files import course_folder, replace_file
from mplab.course import load_digits


@pytest.fixture
def broken_course(tmp_path, monkeypatch):
    """A copy of the data folder that a test may break."""
    folder = shutil.copytree(course_folder("data"), tmp_path / "data")
    monkeypatch.setattr(digits, "course_folder", lambda name: tmp_path / name)
    return folder


def test_digits_have_the_shapes_ranges_and_counts_of_the_source():
    """As many of each class as the UCI page says."""
    images, labels = load_digits()
    assert (images.shape, images.dtype, labels.dtype) == (
        (1797, 8, 8),
        np.uint8,
        np.int64,
    )
    assert (images.min(), images.max()) == (0, 16)
    counts = np.bincount(labels)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_a_caller_may_change_its_digits_without_changing_the_next_callers():
    first = load_digits()
    first.images[:] = first.labels[:] = 99
    assert [array.max() for array in load_digits()] == [16, 9]


def test_a_file_with_one_flipped_bit_and_a_missing_one_are_errors_that_name_it(
    broken_course,
):
    path = broken_course / "digits.npy"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"load_digits: .*digits\.npy must have SHA-256 .*; got"
    ):
        load_digits()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"digits\.npy"):
        load_digits()


def test_the_data_readme_states_the_checksum_that_is_enforced():
    text = (course_folder("data") / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"`([0-9a-f]{64})`", text) == [digits.DIGITS_SHA256]


def test_an_installed_package_reads_the_course_inside_itself(tmp_path, monkeypatch):
    inside = tmp_path / "site-packages" / "mplab" / "_course" / "data"
    inside.mkdir(parents=True)
    (tmp_path / "site-packages" / "data").mkdir()  # another package's
    monkeypatch.setattr(files, "PACKAGE", tmp_path / "site-packages" / "mplab")
    assert course_folder("data") == inside.resolve()


def test_an_installation_without_lessons_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PACKAGE", tmp_path / "mplab")
    with pytest.raises(
        FileNotFoundError, match=r"lessons must lie in .*_course or .*; got neither"
    ):
        course_folder("lessons")


# Writing


def test_a_file_is_made_with_its_folder_and_replaced_whole(tmp_path):
    path = tmp_path / "new" / "file"
    for content in (b"first", b"second, and longer"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")

    monkeypatch.setattr(
        os, "fsync", mock.Mock(side_effect=OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_another_program_has_open_for_a_moment_is_replaced_after_it(
    tmp_path, monkeypatch
):
    """Windows refuses to rename over an open file."""
    path = tmp_path / "file"
    rename = Path.replace
    refusals = [PermissionError(13, "Access is denied")] * 3

    def refuse_first(partial, target):
        if refusals:
            raise refusals.pop()
        return rename(partial, target)

    monkeypatch.setattr(Path, "replace", refuse_first)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    refusals += [PermissionError(13, "Access is denied")] * 99
    with pytest.raises(PermissionError):
        replace_file(path, b"newer")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_with_the_file_that_could_not_be_written(
    tmp_path, monkeypatch
):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*lesson\.ipynb'"):
        replace_file(tmp_path / "lesson.ipynb", b"new")
    assert not list(tmp_path.iterdir())


def test_a_process_killed_while_it_writes_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    code = "import os, signal; from mplab.common.files import replace_file; "
    code += "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL); "
    code += f"replace_file({str(path)!r}, b'new')"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.slow
def test_two_processes_that_write_one_file_leave_what_one_of_them_wrote(tmp_path):
    path = tmp_path / "file"
    code = (
        "import sys\n"
        "from mplab.common.files import replace_file\n"
        f"for _ in range(200): replace_file({str(path)!r}, sys.argv[1].encode() * 100_000)\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, letter]) for letter in "ab"]
    seen = set()
    while any(process.poll() is None for process in both):
        if path.exists():
            seen |= {(len(content), *set(content)) for content in [path.read_bytes()]}
    assert [process.returncode for process in both] == [0, 0]
    assert seen <= {(100_000, ord("a")), (100_000, ord("b"))}
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_but_this_function_writes_beside_a_file_and_renames():
    package = Path(mplab.__file__).parent
    writers = [
        path for path in package.rglob("*.py") if '.partial"' in path.read_text("utf-8")
    ]
    assert writers == [package / "common" / "files.py"]
