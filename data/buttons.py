"""Give each lesson links that open it in Colab or Binder, and a cell that installs mplab there.

python data/buttons.py    # after the repository in pyproject.toml was set or changed

Both stand in cells below the title; without a repository there are none.
"""

import nbformat

from mplab.common.files import course_folder
from mplab.course.site.frame import repository
from mplab.course.site.lesson_page import BUTTONS, launch_links

INSTALL = """\
from importlib.util import find_spec

if getattr(find_spec("mplab"), "origin", None) is None:  # as in Colab; else nothing is done
    %pip install --quiet "mplab[torch] @ git+{}" anywidget matplotlib"""


def with_buttons(notebook, name):
    """Return a copy of the lesson `name` with buttons for the current repository."""
    title, *rest = [cell for cell in notebook.cells if cell.id not in BUTTONS]
    added, new = [], nbformat.v4
    if links := [
        f"[Open in {place}]({url})" for place, url in launch_links(name).items()
    ]:
        added = [
            new.new_markdown_cell(" · ".join(links), id=BUTTONS[0]),
            new.new_code_cell(INSTALL.format(repository()), id=BUTTONS[1]),
        ]
    return nbformat.from_dict({**notebook, "cells": [title, *added, *rest]})


if __name__ == "__main__":
    for path in sorted(course_folder("lessons").glob("*.ipynb")):
        nbformat.write(with_buttons(nbformat.read(path, as_version=4), path.name), path)
