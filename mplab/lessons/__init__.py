"""Code of single lessons, in the folders l01 … l19 beside the notebooks.

It is imported from here both in a checkout and in an installed package. `mplab lab` sets
MPLAB_LESSONS to the learner's own folder, which comes first, so that a figure edited there is
the one that is drawn.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

# Installed, the lessons lie inside the package, and that comes first: any package may leave a
# folder "lessons" beside ours. In a checkout they lie at the top.
_FOLDERS = _PACKAGE / "_course" / "lessons", _PACKAGE.parent / "lessons"

__path__ = [*filter(None, [os.environ.get("MPLAB_LESSONS")])]
__path__ += [str(folder) for folder in _FOLDERS if folder.is_dir()][:1]
