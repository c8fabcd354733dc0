import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from mplab.course import files, load_digits
from mplab.course.files import course_folder


@pytest.fixture
def broken_course(tmp_path, monkeypatch):
    """A copy of the data folder that a test may break."""
    folder = shutil.copytree(course_folder("data"), tmp_path / "data")
    monkeypatch.setattr(files, "course_folder", lambda name: tmp_path / name)
    return folder


def test_digits_have_the_shapes_and_ranges_of_the_source():
    digits = load_digits()
    assert digits.images.shape == (1797, 8, 8)
    assert digits.images.dtype == np.uint8
    assert (digits.images.min(), digits.images.max()) == (0, 16)
    assert digits.labels.dtype == np.int64


def test_digits_have_as_many_of_each_class_as_the_uci_page_says():
    counts = np.bincount(load_digits().labels)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_a_caller_may_change_its_digits_without_changing_the_next_callers():
    first = load_digits()
    first.images[:] = 99
    first.labels[:] = 99
    second = load_digits()
    assert second.images.max() == 16
    assert second.labels.max() == 9


def test_one_flipped_bit_in_the_file_is_an_error_that_names_the_file(broken_course):
    path = broken_course / "digits.npy"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"load_digits: .*digits\.npy must have SHA-256 .*; got"):
        load_digits()


def test_a_truncated_file_is_an_error(broken_course):
    path = broken_course / "digits.npy"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="must have SHA-256"):
        load_digits()


def test_a_missing_file_is_an_error_that_says_what_to_do(broken_course):
    (broken_course / "digits.npy").unlink()
    with pytest.raises(ValueError, match=r"must be readable; got .* install mplab again"):
        load_digits()


def test_the_data_readme_states_the_checksum_that_is_enforced():
    text = (course_folder("data") / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"`([0-9a-f]{64})`", text) == [files.DIGITS_SHA256]


def test_an_unknown_folder_name_is_an_error():
    with pytest.raises(ValueError, match="course_folder: name must be 'lessons' or 'data'"):
        course_folder("solutions")


def test_an_installed_package_reads_the_course_inside_itself(tmp_path, monkeypatch):
    inside = tmp_path / "site-packages" / "mplab" / "_course" / "data"
    inside.mkdir(parents=True)
    (tmp_path / "site-packages" / "data").mkdir()  # another package's
    monkeypatch.setattr(files, "PACKAGE", tmp_path / "site-packages" / "mplab")
    assert course_folder("data") == inside.resolve()


def test_an_installation_without_lessons_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PACKAGE", tmp_path / "mplab")
    with pytest.raises(ValueError, match=r"lessons must lie in .*_course or .*; got neither"):
        course_folder("lessons")


def test_the_data_folder_holds_what_made_it():
    names = {path.name for path in Path(course_folder("data")).iterdir()}
    assert {"digits.npy", "make_digits.py", "README.md"} <= names
