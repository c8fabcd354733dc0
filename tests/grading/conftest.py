"""A released course, made once, and a copy of it for each test that asks."""

import shutil

import classroom
import pytest

from mplab.course.grading.folder import Course


@pytest.fixture(scope="session", autouse=True)
def read_no_libraries():
    """Let no test wait until the machine has read gigabytes; `test_sandbox.py` tries it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mplab.course.grading.autograding.read_libraries", int)
        yield


@pytest.fixture
def bare(tmp_path):
    """A course with students whose assignment has not been released."""
    return classroom.with_students(tmp_path / "course")


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """A released course; tests copy it."""
    course = classroom.with_students(tmp_path_factory.mktemp("released") / "course")
    classroom.released(course)
    return course


@pytest.fixture
def course(released, tmp_path):
    return Course(shutil.copytree(released.root, tmp_path / "course"))
