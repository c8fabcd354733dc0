"""Draw the picture of README and of lesson 1 anew: `python data/make_rescue.py`.

It runs the lesson's own cells up to that figure, on this machine's kernels, writes
lessons/l01/rescue.png, and puts it into the lesson as well, so that it shows before anything runs.
"""

import base64
import io

import nbformat
from PIL import Image

from mplab.course.files import course_folder

LESSON = course_folder("lessons") / "01_why_did_training_stop.ipynb"
FIGURE, SHOWN_IN = "real-curves", "real-what"


def main() -> None:
    """Run the cells, and write the picture."""
    notebook = nbformat.read(LESSON, as_version=4)
    cells = {cell.id: cell for cell in notebook.cells}
    space = {"__name__": "lesson"}
    for name in ("setup", "surprise", "rescue", "real", FIGURE):
        exec(
            cells[name].source.rpartition("figures.rescue(")[0] or cells[name].source,
            space,
        )
    picture = space["figures"].rescue(
        space["fp32"], [space["fp16"], space["scaled"]], space["real"]
    )
    image = Image.open(io.BytesIO(picture.png())).convert("RGB").quantize(64)
    content = io.BytesIO()
    image.save(content, "png", optimize=True)
    (LESSON.parent / "l01" / "rescue.png").write_bytes(content.getvalue())
    data = base64.b64encode(content.getvalue()).decode()
    cells[SHOWN_IN].attachments = {"rescue.png": {"image/png": data}}
    nbformat.write(notebook, LESSON)
    print(picture.claim)


if __name__ == "__main__":
    main()
