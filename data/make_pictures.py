"""Draw the pictures in the lessons' answers anew: `python data/make_pictures.py [NUMBER ...]`.

A lesson that has not run, on GitHub for instance, shows its main picture below "What happened?".
This runs the lesson's cells on this machine, up to the figure before each such answer. README and
the site's card show lesson 1's, whose description in README is written anew, too.
"""

import ast
import io
import re
import sys

import nbformat
from IPython.display import display
from PIL import Image

from mplab.common.files import PICTURE, course_folder

LESSONS = course_folder("lessons")
README = LESSONS.parent / "README.md"


def last_value(source, space):
    """Run a cell, and return the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(source, space)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), space)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), space)


def draw(path):
    """Run a lesson up to each picture of its text, and write the file and its description."""
    notebook = nbformat.read(path, as_version=4)
    space = {"__name__": "lesson", "display": display}
    shown = None
    left = sum(bool(re.search(PICTURE, cell.source)) for cell in notebook.cells)
    for cell in notebook.cells:
        if not left:
            break
        if cell.cell_type == "code":
            shown = last_value(cell.source, space)
        elif found := re.search(PICTURE, cell.source):
            image = Image.open(io.BytesIO(shown.png())).convert("RGB").quantize(64)
            content = io.BytesIO()
            image.save(content, "png", optimize=True)
            (LESSONS / found[2]).write_bytes(content.getvalue())
            cell.source = cell.source.replace(found[1], shown.claim)
            text = README.read_text("utf-8")
            text = text.replace(f"![{found[1]}]", f"![{shown.claim}]")
            README.write_text(text, "utf-8")
            print(f"{found[2]}: {len(content.getvalue()):,} bytes; {shown.claim}")
            left -= 1
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for lesson in sorted(LESSONS.glob("*.ipynb")):
        if not sys.argv[1:] or str(int(lesson.name[:2])) in sys.argv[1:]:
            draw(lesson)
