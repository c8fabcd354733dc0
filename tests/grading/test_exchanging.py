"""The exchange: where it is, who can reach it, and what comes in and goes out through it."""

import stat

import hub
import pytest
from classroom import run
from nbgrader.exchange import ExchangeError, ExchangeFactory
from nbgrader.exchange.default import ExchangeCollect

from mplab.course.grading.collecting import collect
from mplab.course.grading.exchanging import (
    inbound,
    publish_assignment,
    publish_feedback,
)
from mplab.course.grading.folder import create_course

ROSTER = "id,first_name,last_name,email\ns01,Ada,Wu,\ns02,Bo,Ek,\n"
NAME = "%s+a1+2026-01-02 03:04:05.000000 UTC+x"


@pytest.fixture
def place():
    with hub.public_folder() as folder:
        yield folder


@pytest.fixture
def course(place):
    """A course whose exchange lies outside it, with something to publish."""
    made = create_course(
        place / "course", course_id="numerics", exchange=place / "srv" / "exchange"
    )
    (made.root / "roster.csv").write_text(ROSTER)
    release = made.root / "release" / "a1"
    release.mkdir(parents=True)
    (release / "a1.ipynb").write_text("first")
    return made


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_init_names_the_course_and_its_exchange_and_closes_the_new_folder(
    course, place
):
    config = course.config()
    assert config.CourseDirectory.course_id == "numerics"
    assert config.Exchange.root == str(place / "srv" / "exchange")
    assert inbound(course) == place / "srv" / "exchange" / "numerics" / "inbound"
    assert mode(place / "srv" / "exchange") == 0o1777 and mode(course.root) == 0o700
    assert create_course(course.root).config() == config


def test_init_without_options_keeps_the_folder_s_name_and_an_exchange_inside(tmp_path):
    config = create_course(tmp_path / "my course").config()
    assert config.CourseDirectory.course_id == "my_course"
    assert config.Exchange.root == str(tmp_path / "my course" / "exchange")


@pytest.mark.parametrize("course_id", ["", "a/b", "..", "é", "x" * 65])
def test_an_id_that_is_no_plain_name_is_refused_before_anything_is_made(
    tmp_path, course_id
):
    with pytest.raises(ValueError, match="--course-id must be"):
        create_course(tmp_path / "c", course_id=course_id, exchange=tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["course_id", "exchange"])
def test_an_id_or_exchange_for_a_course_that_is_there_is_refused(course, place, other):
    with pytest.raises(ValueError, match="--exchange are for a new course"):
        create_course(
            course.root, **{other: place / "x" if other == "exchange" else "x"}
        )


def test_an_exchange_that_cannot_be_made_is_refused_with_the_command_that_makes_it(
    tmp_path,
):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"--exchange must .*install -d -m 1777 .*file/exchange"
    ):
        create_course(tmp_path / "c", exchange=tmp_path / "file" / "exchange")


# Out -----------------------------------------------------------------------------------------
def test_a_release_is_published_and_published_again_for_everybody_to_read(course):
    outbound = inbound(course).parent / "outbound" / "a1"
    for text in ("first", "second"):
        (course.root / "release" / "a1" / "a1.ipynb").write_text(text)
        publish_assignment(course, "a1")
        assert (outbound / "a1.ipynb").read_text() == text
    assert mode(outbound) == 0o755 and mode(outbound / "a1.ipynb") == 0o644
    assert mode(inbound(course)) & 0o777 == 0o733  # to hand in, not to look around


def test_what_keeps_nbgrader_from_publishing_is_told(course):
    with pytest.raises(
        ValueError, match=r"--publish: .* got .*a2.* install -d -m 1777"
    ):
        publish_assignment(course, "a2")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_feedback_is_published_for_those_who_handed_in_through_the_exchange(course):
    for student, secret in (("s00", b"\xff"), ("s01", b"secret"), ("s02", None)):
        for step in ("feedback", "submitted"):
            (course.root / step / student / "a1").mkdir(parents=True)
        page = course.root / "feedback" / student / "a1/a1.html"
        page.write_text(f"page of {student}")
        page.chmod(0o600)
        if secret:
            (
                course.root / "submitted" / student / "a1/submission_secret.txt"
            ).write_bytes(secret)
    publish_assignment(course, "a1")
    assert publish_feedback(course, "a1", ["s00", "s01", "s02"]) == ["s00", "s02"]
    pages = inbound(course).parent / "feedback"
    assert [page.read_text() for page in pages.iterdir()] == ["page of s01"]
    assert mode(pages) == 0o711  # nobody sees whose pages there are
    assert [mode(page) for page in pages.iterdir()] == [0o644]


# In ------------------------------------------------------------------------------------------
def hand_in(course, account, text="mine"):
    folder = inbound(course) / (NAME % account)
    folder.mkdir(parents=True)
    (folder / "a1.ipynb").write_text(text)
    return folder


def test_nbgrader_s_own_collect_is_refused_since_it_follows_links(course, tmp_path):
    folder = hand_in(course, "s01")
    (folder / "key").symlink_to(course.root / ".mplab" / "key")
    config = course.config()
    about = {"coursedir": course.directory(assignment_id="a1"), "config": config}
    with pytest.raises(ExchangeError, match="mplab grade"):
        ExchangeFactory(config=config).Collect(**about).start()
    assert not (course.root / "submitted").exists()
    # nbgrader's own hands the teacher's key to whoever reads the submission, such as its program
    ExchangeCollect(**about).do_copy(str(folder), str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "key").read_bytes() == course.key()


@pytest.mark.parametrize("account", ["s01-x", "s01_x", "s01.x", "S01", "s011"])
def test_an_account_whose_name_begins_like_an_id_hands_in_for_nobody(course, account):
    hand_in(course, "s01")
    hand_in(course, account, text="not mine")
    assert collect(course, "a1", inbound(course)).students == ["s01"]
    assert (course.root / "submitted/s01/a1/a1.ipynb").read_text() == "mine"


def test_collect_without_a_place_takes_the_exchange(course, tmp_path, capsys):
    hand_in(course, "s01")
    (tmp_path / "s02").mkdir()
    (tmp_path / "s02" / "a1.ipynb").write_text("sent")
    for words in ([], [str(tmp_path)]):
        assert run(course, "collect", "a1", *words) == 0
    assert capsys.readouterr().out.count("1 submission in") == 2
    for words, reason in (
        (["a77"], "ASSIGNMENT must be one of a1, a2"),
        (["a1", "no.zip"], "PLACE must be a folder or a zip file; got no.zip (FileNot"),
        (
            ["a1", __file__],
            f"PLACE must be a folder or a zip file; got {__file__} (BadZ",
        ),
    ):
        assert run(course, "collect", *words) == 2
        assert capsys.readouterr().err.startswith(f"mplab grade collect: {reason}")
    assert {p.name for p in (course.root / "submitted").iterdir()} == {"s01", "s02"}


def test_release_with_publish_publishes(course, capsys, monkeypatch):
    monkeypatch.setattr(
        "mplab.course.grading.releasing.release", lambda *_, **__: ["tried"]
    )
    assert run(course, "release", "a1", "--publish") == 0
    assert "tried\nPublished: a1" in capsys.readouterr().out
    assert (inbound(course).parent / "outbound" / "a1" / "a1.ipynb").exists()
