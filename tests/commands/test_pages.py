"""What `mplab export-html` makes of lessons that have run: no kernel runs here."""

import base64
import email.message
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import page as pages
import pytest
from drawn import assert_as_it_was
from nbformat.v4 import new_output
from PIL import Image

from mplab.commands import export_html
from mplab.common.errors import UserError
from mplab.common.installation import VERSION
from mplab.course.site import export, front_page, reference, stalled
from mplab.training import RECIPES, train

RAN = nbformat.read(Path(__file__).with_name("lesson.json"), as_version=4)
"""A lesson with its outputs; in the last cell are its explorers."""
EXPLORERS = RAN.cells.pop().outputs
GUIDE = """# Guide

| 1 · [a](01_first.ipynb) | 45–90 | what a > b is |
|---|---|---|

[it](01_first.ipynb) [here](#guide) [there](https://x.y) [file](l01/figures.py)"""
HELP = """# Is it stuck?

Yes.

![A figure](l01/rescue.png)

[there](#1-what-to-do), [a lesson](01_first.ipynb#1.-A-question), [a table](SHEET.md)

## 1. What to do?"""
ENTRY = b'<nav><h2 id="n"></nav><main><section id="f">def f # 2<sup>\xe2\x88\x923</sup> <b>a</b>\n'
"""A page of the reference."""


def execute(client, env):
    client.nb.cells[0].outputs = [new_output("stream", text="not shown")]
    client.nb.cells[-1].outputs = EXPLORERS


def reduced(path):
    """A page without style, scripts, versions and colours of code; images are told."""

    def told(found):
        image = Image.open(io.BytesIO(base64.b64decode(found[2])))
        return f"{found[1]} {image.size} {image.convert('L').resize((3, 3)).tobytes().hex()}"

    text = path.read_text("utf-8").replace(f"mplab {VERSION}", "mplab")
    text = re.sub(r"data:image/(\w+);base64,([^\"]+)", told, text)
    text = re.sub(
        r"(?s)<style>.*?</style>|<script( type=\"module\")?>.*?</script>", "", text
    )
    return re.sub(
        r'sha256-[^\']*|<!-- e.*|<link.*|<span class="\w*">|</span>', "", text
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of a course, made twice: the second time nothing has changed."""
    folder, out = (tmp_path_factory.mktemp(name) for name in ("lessons", "pages"))
    nbformat.write(RAN, folder / "01_first.ipynb")
    for number in ("02", "05", "07", "19"):
        pages.write_lesson(folder / f"{number}_m.ipynb", [f"# More {number}", "1"])
    (folder / "README.md").write_text(GUIDE, encoding="utf-8")
    (folder / "STALLED.md").write_text(HELP, encoding="utf-8")
    (folder / "l01").mkdir()
    (folder / "l01" / "rescue.png").touch()
    urls = email.message.Message()
    urls["Project-URL"] = "Repository, https://github.com/a/b"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "course_folder", lambda name: folder)
        patch.setattr("importlib.metadata.metadata", lambda package: urls)
        patch.setenv("GITHUB_REPOSITORY", "a/b")
        (out / "api").mkdir()
        (out / "api" / "a.html").write_bytes(ENTRY)
        patch.setattr(reference, "write_reference", lambda *_: None)
        patch.setattr(front_page, "stalled_explorer", lambda: "<div>STALLED</div>")
        patch.setattr(front_page, "to_live_html", "LIVE {0.entry}".format)
        patch.setattr("nbclient.NotebookClient.execute", execute)
        export.export(out, {}, lessons=[1, 2, 5, 7])
        patch.setattr("nbclient.NotebookClient.execute", None)
        export_html.main(["--out", str(out), "--lesson", "1", "--lesson", "2"])
        with pytest.raises(
            UserError, match=r"no lesson 3\. There are 1, 2, 5, 7, 19\."
        ):
            export.export(out, {}, lessons=[3])
    return out


@pytest.mark.parametrize(
    "name", ["01_first", "05_m", "index", "teaching", "stalled", "search", "404"]
)
def test_a_page_holds_what_it_held(site, name):
    text = reduced(site / f"{name}.html")
    # What code does not fill in is left out.
    for line in (front_page.FILES / "front.html").read_text("utf-8").splitlines(True):
        text = text if "{" in line else text.replace(line, "")
    assert_as_it_was(text, __file__, f"{name}.txt")


@pytest.mark.parametrize("error", [None, AssertionError])
def test_a_lesson_that_ctrl_c_broke_off_is_not_written(tmp_path, monkeypatch, error):
    """nbclient takes the signal, ends the kernel, and goes on or stumbles."""

    def execute(client, **_):
        client._async_cleanup_kernel_future = "made when the signal came"
        if error:
            raise error

    monkeypatch.setattr("nbclient.NotebookClient.execute", execute)
    with pytest.raises(KeyboardInterrupt):
        export.export(tmp_path, {}, lessons=[1])
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("power", [0, 8, 24])
def test_the_recorded_runs_are_those_that_the_library_makes(power):
    """To a few digits: float32 sums are the machine's."""
    recorded = stalled.RECORDED["fp16"][str(power)]["loss"]
    every = stalled.RECORDED["every"]
    run = train(
        stalled.RECORDED["task"],
        replace(RECIPES["fp16-naive"], init_scale=2.0**power, dynamic=False),
        seed=stalled.RECORDED["seed"],
        steps=2 * every + 1,
        record_gradients_at=(),
        progress=False,
    )
    kept = [math.nan if loss is None else loss for loss in recorded[:3]]
    assert run.loss[::every] == pytest.approx(kept, rel=0.01, nan_ok=True)


def test_the_reference_has_what_a_front_offers_and_lists_rooms_and_commands(
    tmp_path, monkeypatch
):
    (tmp_path / "peers.txt").write_text("a < b\n")
    shown = {
        "mplab": ["FORMATS", "health"],
        "mplab.health": ["Finding"],
        "mplab.scaling": ["LossScaler"],
    }
    monkeypatch.setattr(reference, "MORE", shown)
    monkeypatch.setattr(reference, "ROOMS", ("health", "scaling"))
    monkeypatch.setattr(reference, "course_folder", lambda name: tmp_path)
    reference.write_reference(tmp_path / "api", {"fly": "see all"})
    pages = [tmp_path / "api" / f"{x}.html" for x in ("mplab", "mplab/health", "index")]
    text = "".join(
        re.sub(r"<nav.*?</nav>|<[^>]*>", "", reduced(x), flags=re.S) for x in pages
    )
    text = re.sub(r"(?<='FP16').*|(?s:^.*?(?=Rooms))|\s*(?=\n)", "", text)
    assert_as_it_was(text, __file__, "reference.txt")
    page = pages[1].read_text("utf-8")
    assert ' href="#Finding" aria-label="link to Finding">' in page
    assert page.count("Content-Security-Policy") == page.count("'strict-dynamic'") == 1
    index = (tmp_path / "api" / "search.js").read_text("utf-8")
    assert '"mplab.health.Finding"' in index
