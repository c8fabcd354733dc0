"""Draw README's picture anew: `python data/make_rescue.py` writes lessons/l01/rescue.png.

It runs the cells of lesson 1 up to that figure, on this machine's kernels.
"""

import io

import nbformat
from PIL import Image

from mplab.course.files import course_folder

LESSON = course_folder("lessons") / "01_why_did_training_stop.ipynb"
FIGURE = "real-curves"


def main() -> None:
    """Run the cells, and write the picture."""
    notebook = nbformat.read(LESSON, as_version=4)
    cells = {cell.id: cell for cell in notebook.cells}
    space = {"__name__": "lesson"}
    for name in ("setup", "surprise", "rescue", "real", FIGURE):
        exec(cells[name].source, space)
    picture = space["figures"].rescue(
        space["fp32"], [space["fp16"], space["scaled"]], space["real"]
    )
    image = Image.open(io.BytesIO(picture.png())).convert("RGB").quantize(64)
    content = io.BytesIO()
    image.save(content, "png", optimize=True)
    (LESSON.parent / "l01" / "rescue.png").write_bytes(content.getvalue())
    print(picture.claim)


if __name__ == "__main__":
    main()
