"""Code of single lessons, in the folders l01 … l19 beside the notebooks.

It is imported from here in a checkout and in an installed package alike. `mplab lab` names the
learner's own folder in MPLAB_LESSONS: what lies there comes first, so that an edited figure is
the one that is drawn.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

__path__ = [
    str(folder)
    for folder in (
        *map(Path, filter(None, [os.environ.get("MPLAB_LESSONS")])),
        _PACKAGE / "_course" / "lessons",
        _PACKAGE.parent / "lessons",
    )
    if folder.is_dir()
]
