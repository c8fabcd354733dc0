"""The page on which a person gives points: in Chromium, and who it refuses over HTTP."""

import base64
import contextlib
import http.server
import json
import queue
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch
from urllib.parse import urlsplit

import lab_browser
import postgres
import pytest
import requests
from cases import run_script
from classroom import (
    ROSTER,
    autograded,
    configure,
    grade_id,
    notebook,
    released,
    run,
    submit,
    with_students,
    with_walls,
)
from gloo import free_port
from nbformat.v4 import new_markdown_cell
from sqlalchemy import Engine, event
from tiers import mostly_slow

from mplab.course.grading import autograding, review
from mplab.course.grading.exporting import grades
from mplab.course.grading.feedback import in_process, typeset, write_feedback
from mplab.course.grading.folder import Course, create_course
from mplab.course.grading.review import questions, serve

BY_HAND = "a1-words-answer"
NAME = "<script>window.ran = 1</script>"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def served(course, port=0):
    """The first address of the page of a course, which a thread serves until the tests end."""
    told = queue.Queue()
    threading.Thread(target=serve, args=(course, port, told.put), daemon=True).start()
    return re.search(r"http\S+", told.get(timeout=30))[0]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return served(create_course(tmp_path_factory.mktemp("bare") / "course"))


@pytest.mark.slow
def test_only_who_has_the_token_gets_in_and_no_later_address_carries_it(bare):
    address, _, token = bare.partition("/?token=")
    for wrong in ("/", "/?token=", "/?token=x", "/review.js", "/a1/a1/x/s01", "/none"):
        answer = requests.get(address + wrong, allow_redirects=False)
        assert answer.status_code == 403 and not answer.cookies, wrong
    session = requests.Session()
    answer = session.get(bare)
    assert answer.ok and answer.url == address + "/" and token not in answer.text
    cookie = answer.history[0].headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and token in cookie
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(
        policy
    )
    assert "unsafe-inline" not in "".join(
        p for p in policy if not p.startswith("style-src-attr")
    )
    for path in (
        "/gradebook.db",
        "/../nbgrader_config.py",
        "/review.py",
        "/page/list.html",
        "/api/contents",
        "/formgrader",
        "/?path=submitted/s01/a1",
        "/a1/a1/x/s01",
    ):
        answer = session.get(address + path, allow_redirects=False)
        assert answer.status_code == (200 if "?" in path else 404), path


def test_another_host_and_a_form_of_another_page_are_refused(bare):
    address, _, token = bare.partition("/?token=")
    own, port = urlsplit(address).netloc.split(":")
    hosts = {f"localhost:{port}": 200, f"evil.example:{port}": 403, own: 403}
    for host, status in {**hosts, f"{own}.evil:{port}": 403}.items():
        headers = {"Host": host, "Cookie": f"mplab-{port}={token}"}
        assert requests.get(address, headers=headers).status_code == status, host
    session = requests.Session()
    session.get(bare)
    # A page on another port may set cookies of this host: a form that knows both is still foreign.
    cookie = f"2|{'0' * 8}|{'0' * 32}|0"
    session.cookies.set(f"mplab-{port}-xsrf", cookie, domain=own)
    for sent, origin, status in (
        ({}, address, 403),
        ({"_xsrf": "x"}, address, 403),
        ({"_xsrf": cookie}, None, 403),
        ({"_xsrf": cookie}, "null", 403),
        ({"_xsrf": cookie}, f"http://{own}:{int(port) + 1}", 403),
        ({"_xsrf": cookie}, address, 404),  # of the page's own: there is no such answer
    ):
        data, headers = {"points": "1", **sent}, {"Origin": origin} if origin else {}
        answer = session.post(f"{address}/a1/a1/x/s01", data=data, headers=headers)
        assert answer.status_code == status, (sent, origin)


@pytest.mark.parametrize("port", mostly_slow([0, 1, -1], [0]))
def test_no_other_port_of_this_machine_hears_the_token(tmp_path, monkeypatch, port):
    """Cookies ignore ports, so the page has an address of its own, where there is one."""
    if port < 0:  # as on macOS

        def refuse(address, create=review.create_server):
            if address[0] != "127.0.0.1":
                raise OSError("Can't assign requested address")
            return create(address)

        monkeypatch.setattr(review, "create_server", refuse)
    chosen = free_port() if port > 0 else 0
    first = served(create_course(tmp_path / "course"), chosen)
    token, session = first.partition("token=")[2], requests.Session()
    with ear() as (other, heard):
        for address in (first, f"http://127.0.0.1:{other}/"):
            session.get(address)
    (told,) = heard
    # Elsewhere it is heard, as SECURITY.md says.
    assert (token in told) == (port != 0) == first.startswith("http://127.0.0.1:")


@pytest.mark.slow
def test_whoever_waits_for_a_lock_or_for_typesetting_keeps_nobody_else_waiting(
    course,
):
    first = served(course)
    show, save, _ = reading(course, first, "s02")
    hidden = hidden_fields(show()) | {"mark": "of another page"}
    begun, done = threading.Event(), threading.Event()

    def slowly(*_):
        begun.set()
        done.wait(60)

    with (
        ThreadPoolExecutor(2) as pool,
        patch("mplab.course.grading.feedback.in_process", slowly),
    ):
        with course.marking():
            waiting = pool.submit(show), pool.submit(save, ["1", "1"], "", hidden)
            assert begun.wait(60)
            assert "being read" in requests.Session().get(first, timeout=30).text
            assert [each.done() for each in waiting] == [False, False]
        done.set()
    assert waiting[1].result().status_code == 400


@pytest.mark.slow
def test_a_page_has_each_picture_once_and_a_bounded_length():
    cell = new_markdown_cell("![x](attachment:x.png)" * 30)
    cell.attachments = {"x.png": {"image/png": PNG}}
    ((text,), plain) = typeset([cell], 10, 1 << 20)
    assert text.count(PNG) == 1 and not plain
    assert in_process(10, 4, str, "1234") == "1234"
    assert in_process(10, 3, str, "1234") is None
    # Ctrl-C in a terminal reaches it as well; only the parent answers.
    assert in_process(10, 9, eval, "__import__('signal').raise_signal(2) or 'goes on'")


@pytest.mark.slow
def test_an_assignment_with_a_due_date_and_no_release_is_not_listed(tmp_path):
    course = create_course(tmp_path / "course")
    with course.gradebook() as gradebook:
        gradebook.update_or_create_assignment("a2", duedate="2026-11-30 12:00")
    answer = requests.Session().get(served(course))
    assert answer.ok and "Nothing has been graded yet" in answer.text


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_is_none_is_refused(tmp_path, port):
    with pytest.raises(ValueError, match=f"--port must be a free port; got {port}"):
        serve(create_course(tmp_path / "course"), port)


# In Chromium ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    course = create_course(tmp_path_factory.mktemp("review") / "course")
    (course.root / "roster.csv").write_text(
        ROSTER.replace("Bo", NAME), encoding="utf-8"
    )
    released(course)
    for student in ("s01", "s02", "s03"):
        submit(course, student, notebook(course))
    autograded(course)
    return course


@pytest.fixture
def course(graded, tmp_path):
    return Course(shutil.copytree(graded.root, tmp_path / "course"))


@pytest.mark.slow
def test_a_mark_stays_given_until_its_answer_changes_and_then_is_shown_beside_it(
    course,
):
    """A regrade once asked the person again for 34 of 44 marks."""

    def waits(student="s03"):
        with course.gradebook() as gradebook:
            grade = gradebook.find_grade(BY_HAND, "a1", "a1", student)
            return grade.needs_manual_grade, grade.manual_score

    def graded(**options):
        return len([x for x in autograded(course, **options)
                    if not x.done_before])  # fmt: skip

    assert waits() == (True, None)
    show, save, _ = reading(course, served(course), "s03")
    hidden = hidden_fields(show())
    assert save(["0.5", "1"], "", hidden).status_code == 303
    assert waits() == (False, 1.5)
    name = f"{BY_HAND}: weights, with a number: 0.5; {BY_HAND}: gradients, with a number: 1"
    assert [grade.parts for grade in grades(course, ["a1"])] == ["", "", name, ""]
    (course.root / "submitted/s03/a1/a1.ipynb").touch()
    (course.root / "checks/a1/exercises.py").touch()
    assert graded() == 0  # content counts, and not when it was written
    released(course)
    assert graded() == 0
    submit(course, "s03", notebook(course, extra="# something else"))
    assert graded() == 1 and waits() == (False, 1.5)
    assert graded(students=["s03"], force=True) == 1 and waits() == (False, 1.5)
    submit(course, "s03", notebook(course, **{BY_HAND: "Another answer."}))
    for force in (False, True):  # nobody has read the new one yet
        assert graded(students=["s03"], force=force) == 1 and waits() == (True, 1.5)
    stale = save(["0.5", "1"], "", hidden)  # from a page with the old one
    assert stale.status_code == 400 and waits() == (True, 1.5)
    assert (
        "meanwhile another answer came in" in stale.text
        and "Another answer." in stale.text
    )
    shown = show()
    told = "(weights, with a number 0.5, gradients, with a number 1)"
    assert f"person 1 gave 1.5 before the answer changed {told}, " in shown
    (grade,) = grades(course, ["a1"])[2:3]
    assert "Another answer." in shown and grade[2:4] == (16, 18)
    assert grade.parts == ""
    write_feedback(course, "a1", students=["s03"])
    page = (course.root / "feedback/s03/a1/a1.html").read_text()
    assert "16 of 18 points" in page and "17.5" not in page
    # It took too long.
    with patch("mplab.course.grading.feedback.in_process", return_value=None):
        assert "Another answer." in show()


def hidden_fields(page):
    return dict(re.findall(r'name="(_xsrf|seen|mark)" value="(.*?)"', page))


def reading(course, first, student):
    """A browser of its own: how it shows an answer, how it saves, and itself."""
    session = requests.Session()
    session.get(first)
    origin = first.partition("/?")[0]
    place = f"{origin}/a1/a1/{BY_HAND}/{student}"

    def show():
        return session.get(place).text

    def save(points, comment, hidden):
        form = {"points": points, "comment": comment, **hidden}
        headers = {"Origin": origin}
        return session.post(place, data=form, headers=headers, allow_redirects=False)

    return show, save, session


@pytest.mark.slow
def test_a_second_person_s_save_is_refused_and_shows_both_marks(course):
    """It took the place of the first one's, in silence."""
    first = served(course)
    show_one, save_one, _ = reading(course, first, "s01")
    show_two, save_two, _ = reading(course, first, "s01")
    one = hidden_fields(show_one())
    two = hidden_fields(show_two())
    assert save_one(["1", "0.5"], "Which tie?", one).status_code == 303
    refused = save_two(["0", "0"], "Nothing here", two)
    assert refused.status_code == 400
    assert "somebody else gave 1.5 of 2, which" in refused.text
    assert "saved: 1" in refused.text and "saved: Which tie?" in refused.text
    assert "Nothing here" in refused.text
    with course.gradebook() as book:
        assert book.find_grade(BY_HAND, "a1", "a1", "s01").manual_score == 1.5
    again = two | hidden_fields(refused.text)
    assert save_two(["0", "0"], "Mine counts", again).status_code == 303
    long = save_one(["1", "1"], "x" * 10_001, hidden_fields(show_one()))
    assert long.status_code == 400 and "more than 10,000 characters" in long.text
    with course.gradebook() as book:
        assert book.find_grade(BY_HAND, "a1", "a1", "s01").manual_score == 0
        comment = book.find_comment(BY_HAND, "a1", "a1", "s01").comment
        assert comment.endswith("Mine counts")


@pytest.mark.slow
def test_points_for_parts_of_an_earlier_rubric_are_not_saved(course):
    """In another order, they went to each other's parts."""
    show, save, _ = reading(course, served(course), "s01")
    exercises = course.root / "checks/a1/exercises.py"
    text = exercises.read_text()
    for rubric in ({"gradients": 1, "weights": 1}, {"all": 2}):
        hidden = hidden_fields(show())
        exercises.write_text(f"{text}\nRUBRIC = {{{BY_HAND!r}: {rubric}}}\n")
        refused = save(["1", "0"], "Which tie?", hidden)
        assert refused.status_code == 400 and "the rubric changed" in refused.text
        assert refused.text.count('name="points"') == len(rubric)
        assert refused.text.count('step="any" value=""') == len(rubric)
        assert "Which tie?" in refused.text
    assert save(["2"], "", hidden_fields(refused.text)).status_code == 303


@pytest.mark.slow
def test_equal_answers_get_one_mark_from_somebody_with_a_name(course):
    first = served(course)
    show, save, session = reading(course, first, "s01")
    submit(course, "s03", notebook(course, **{BY_HAND: "A third answer."}))
    autograded(course)
    page = show()
    assert "The same answer:" in page and page.count('/s02">s02</a> (waiting)') == 1
    assert "/s03" not in page.partition("The same answer:")[2].partition("<button")[0]
    name = {"reader": "Eva", **hidden_fields(page)}
    origin = first.partition("/?")[0]
    assert (
        session.post(origin, data=name, headers={"Origin": origin}).status_code == 200
    )
    form = hidden_fields(show()) | {"same": "yes"}
    assert save(["0.5", "0.5"], "Which\r\ntie?", form).status_code == 303
    with course.gradebook() as book:
        found = [book.find_grade(BY_HAND, "a1", "a1", s) for s in ("s01", "s02", "s03")]
        assert [grade.manual_score for grade in found[:2]] == [1.0, 1.0]
        assert found[2].needs_manual_grade
    page = show()
    assert re.search(r"Eva gave 1, \w{3} \d+ \w{3} \d{4}, \d\d:\d\d", page)
    assert '<button type="button">Which\ntie?</button>' in page
    write_feedback(course, "a1", students=["s02"])
    page = (course.root / "feedback/s02/a1/a1.html").read_text()
    assert re.search(r"Which<br ?/?>\s*tie\?", page)


@pytest.mark.slow
@with_walls
def test_a_database_that_stops_and_starts_costs_no_grade_and_no_point(
    tmp_path, monkeypatch
):
    with postgres.server() as database:
        course = with_students(tmp_path / "course")
        configure(course, f"c.CourseDirectory.db_url = {database('stops')!r}")
        released(course)
        for student in ("s01", "s02", "s03"):
            submit(course, student, notebook(course))
        save, calls = autograding.save, []

        def stopping(*about):
            calls.append(about)
            if len(calls) == 2:
                database.stop()
            return save(*about)

        monkeypatch.setattr(autograding, "save", stopping)
        monkeypatch.setattr(autograding, "_PAUSES", (0.0, 0.1))
        lines = autograded(course)
        assert sorted(str(line.score) for line in lines) == ["16.0", "None", "None"]
        told = [line.remark for line in lines if line.score is None]
        assert all("a technical reason: OperationalError" in remark for remark in told)
        assert run(course, "autograde", "a1") == 2
        database.start()
        lines = autograded(course)
        assert [line.score for line in lines] == [16.0] * 3
        assert sum(line.done_before for line in lines) == 1
        # Of who gives points by hand.
        first = served(course)
        show, give, _ = reading(course, first, "s02")
        hidden = hidden_fields(show())
        database.stop()
        told = give(["1", "1"], "Which tie?", hidden)
        assert told.status_code == 503 and "Reload this page when it does" in told.text
        assert show() == told.text
        database.start()
        assert give(["1", "1"], "Which tie?", hidden).status_code == 303
        with course.gradebook() as book:
            assert book.find_submission("a1", "s02").score == 18


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_a_page_and_a_save_ask_the_database_no_more_often_for_a_larger_class(
    course,
):
    """For 118 students a save took 840 questions, and a page two for each part of a notebook."""
    show, save, _ = reading(course, served(course), "s01")
    counts = []
    for more in (0, 30):
        with course.gradebook() as book:
            for i in range(more):
                book.update_or_create_student(f"x{i}")
                book.update_or_create_submission("a1", f"x{i}")
        asked = []

        def count(*about, asked=asked):
            asked.append(about)

        event.listen(Engine, "before_cursor_execute", count)
        hidden = hidden_fields(show())
        counts.append(len(asked))
        assert save(["1", "1"], "", hidden).status_code == 303
        counts.append(len(asked))
        event.remove(Engine, "before_cursor_execute", count)
    assert counts[2:] <= counts[:2] and counts[0] < 8 and counts[1] < 16


@pytest.mark.slow
def test_a_process_that_typesets_a_page_has_nothing_to_import():
    """Each page paid 1.4 seconds of CPU time for nbgrader's modules and Matplotlib's."""
    code = (
        "from nbformat.v4 import new_markdown_cell\n"
        "from mplab.course.grading import feedback\n"
        "feedback.typeset([new_markdown_cell('x')], 60, 1 << 20)\n"
        'there = \'{"nbgrader.api", "matplotlib.figure"} <= set(__import__("sys").modules)\'\n'
        "print(feedback.in_process(60, 9, eval, f'str({there})'))"
    )
    assert run_script(code) == "True\n"


@pytest.mark.slow
def test_a_missing_notebook_is_said(course):
    show, _, _ = reading(course, served(course), "s02")
    (course.root / "autograded/s02/a1/a1.ipynb").unlink()
    assert "Not handed in." in show()


@pytest.fixture
def page():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = lab_browser.launched(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


@pytest.mark.browser
def test_a_person_reads_gives_points_and_goes_on_by_key(course, page):
    assert [q.name for q in questions(course, "a1") if q.by_hand] == [BY_HAND]
    page.goto(served(course))
    row = page.get_by_role("row").filter(has_text="graded by hand")
    assert re.sub(r"\s+", " ", row.inner_text()).endswith("2 3 – 3")
    row.get_by_role("link").click()
    page.get_by_text("s01 Ada Löwe").wait_for()
    assert (
        "Which would you choose for weights" in page.locator(".question").inner_text()
    )
    page.get_by_role("heading", name="Model answer").wait_for()
    page.get_by_label("weights").fill("1")
    page.get_by_label("gradients").fill("0.5")
    page.get_by_text("Together 1.5 of 2").wait_for()
    page.get_by_label("Comment").fill("Which tie? np <b>")
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/s02")  # loaded: its keys are listened to
    page.get_by_text(f"s02 {NAME}").wait_for()
    for key, student in (("n", "s03"), ("p", "s02"), ("p", "s01")):
        page.keyboard.press(key)
        page.wait_for_url(f"**/{student}")
    assert [x.input_value() for x in page.locator("[name=points]").all()] == [
        "1",
        "0.5",
    ]
    assert page.get_by_label("Comment").input_value() == "Which tie? np <b>"
    for wrong in ("2.5", "-1", "nan", "inf", "x", ""):
        page.goto(page.url)
        page.get_by_label("weights").evaluate(
            "(e, v) => { e.type = 'text'; e.value = v }", wrong
        )
        page.locator("form").evaluate(
            "form => { form.noValidate = true; form.requestSubmit() }"
        )
        page.get_by_text(
            "Not saved: weights, with a number must be a number from 0 to 1."
        ).wait_for()
    with course.gradebook() as gradebook:
        grade = gradebook.find_grade(BY_HAND, "a1", "a1", "s01")
        assert (grade.manual_score, grade.needs_manual_grade) == (1.5, False)
        parts = "- weights, with a number: 1 of 1\n- gradients, with a number: 0.5 of 1"
        comment = gradebook.find_comment(BY_HAND, "a1", "a1", "s01").comment
        assert comment == f"{parts}\n\nWhich tie? np <b>"
        assert gradebook.find_submission("a1", "s01").score == 16 + 1.5
        assert gradebook.find_grade(BY_HAND, "a1", "a1", "s02").needs_manual_grade
    page.get_by_role("link", name="all questions").click()
    page.get_by_role("link", name="Fields").click()
    page.get_by_text("✔ other widths: 1 of 1").wait_for()
    assert page.get_by_label("Points").input_value() == "3"


@pytest.mark.browser
def test_two_assistants_get_different_answers_and_see_who_reads_what(course, page):
    first = served(course)
    other = page.context.browser.new_context().new_page()
    names = {}
    for each in (page, other):
        each.goto(first)
        names[each] = each.get_by_label("You are").input_value()
        each.get_by_role("link", name="graded by hand").click()
    students = [each.url.rpartition("/")[2] for each in (page, other)]
    assert len(set(students)) == 2 and len(set(names.values())) == 2
    third = page.context.browser.new_context().new_page()
    third.goto(first)
    row = third.get_by_role("row").filter(has_text="graded by hand").inner_text()
    for student, name in zip(students, names.values(), strict=True):
        assert f"{student}: {name.strip('.')}" in row


@contextlib.contextmanager
def ear():
    """A server of somebody else's; its port, and the paths that were asked for."""
    heard = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(f"{self.path} {self.headers}")
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], heard
    finally:
        server.shutdown()
        server.server_close()


def hostile(course, there):
    """Put all that a browser might run, fetch or follow into a graded notebook."""
    script = f"<script>window.ran = 1; fetch('{there}/script')</script>"
    markdown = "\n\n".join(
        [
            "[click me](javascript:window.ran=1)",
            f"[my derivation]({there}/link) <{there}/auto> <a href='{there}/a'>plain</a>",
            f"![text]({there}/picture) ![svg](attachment:x.svg) ![png](attachment:x.png)",
            "![a picture by its name only](attachment:y.png)",
            f"<img src='{there}/img' onerror='window.ran=1'><svg onload='window.ran=1'/>",
            f"<iframe srcdoc='{script}'></iframe><form action='{there}/form'><button>send</button>",
            f"{script}<style>@import '{there}/css'; body {{ display: none }}</style>",
            "<nav><a data-key='n' href='/gradebook.db'>next</a></nav>",
        ]
    )
    data = {
        "text/html": script,
        "image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg'>{script}</svg>",
        "application/javascript": "window.ran = 1",
        "image/png": f'"><img src="{there}/png" onerror="window.ran=1">',
    }
    path = course.root / "autograded/s02/a1/a1.ipynb"
    book = json.loads(path.read_text())
    for cell in book["cells"]:
        if grade_id(cell) == BY_HAND:
            cell["source"] = markdown
            cell["attachments"] = {
                "x.svg": {"image/svg+xml": data["image/svg+xml"]}, "x.png": {"image/png": PNG},
                "y.png": {"image/png": base64.b64encode(script.encode()).decode()},
            }  # fmt: skip
        elif cell["cell_type"] == "code":
            cell["outputs"] = [
                {"output_type": "display_data", "data": {kind: text}, "metadata": {}}
                for kind, text in data.items()
            ] + [{"output_type": "stream", "name": "stdout", "text": script}]
    path.write_text(json.dumps(book))


@pytest.mark.browser
def test_nothing_of_an_answer_runs_is_fetched_or_can_be_followed(course, page):
    told = []
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("console", lambda message: told.append(message.text))
    with ear() as (port, heard):
        there = f"http://127.0.0.1:{port}"
        hostile(course, there)
        first = served(course)
        address = first.partition("/?")[0]
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(first)
        for name in (BY_HAND, "fields"):
            page.goto(f"{address}/a1/a1/{name}/s02")
            page.get_by_text(f"s02 {NAME}").wait_for()
            answer = page.locator(".answer").first
            inside = answer.locator(
                "a, script, iframe, form, button, svg, object, style, link"
            )
            assert inside.count() == 0
            # The picture among the attachments; what is no picture, under whatever name, is none.
            pasted = answer.locator("img").evaluate_all(
                "all => all.map(i => i.src.slice(0, 22) + i.naturalWidth)"
            )
            assert pasted == ["data:image/png;base64,1"] * (name == BY_HAND)
            if name == BY_HAND:
                for text in (
                    f"my derivation [{there}/link]",
                    f"{there}/auto",
                    "[picture: text]",
                ):
                    assert text in answer.inner_text()
                page.get_by_text("click me").click()
        page.evaluate(
            "() => { document.body.appendChild(document.createElement('script')).text"
            " = 'window.ran = 2' }"
        )
        page.wait_for_timeout(500)
        # The policy holds where the rest did not.
        assert page.evaluate("() => window.ran") is None
        assert heard == [] and all(url.startswith(address + "/") for url in asked)
        assert [text for text in told if "Content Security Policy" not in text] == []
