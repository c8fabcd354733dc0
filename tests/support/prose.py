"""What lessons say: their cells, and the words among these."""

from functools import cache

import nbformat

from mplab.common.files import course_folder


@cache
def cells(lesson):
    """The cells of a lesson, by its number."""
    (path,) = course_folder("lessons").glob(f"{lesson:02}_*.ipynb")
    return nbformat.read(path, as_version=4).cells


@cache
def prose(lesson):
    """Its text."""
    return "\n\n".join(
        cell.source for cell in cells(lesson) if cell.cell_type == "markdown"
    )


def source(lesson, name):
    """The code of one of its cells."""
    return next(cell.source for cell in cells(lesson) if cell.id == name)


def ran(lesson, *names, seed=0, **space):
    """What there is after cells of a lesson have run in turn, with a seed in place of their 0."""
    for name in names:
        code = source(lesson, name).replace("manual_seed(0)", f"manual_seed({seed})")
        exec(code, space)
    return space
