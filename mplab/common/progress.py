"""A progress bar that leaves nothing behind, in a terminal or in a saved notebook."""

import sys
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from typing import Any

from mplab.common.installation import require_packages


def counted(items: Iterable[Any], name: str, *, progress: bool, **options: Any) -> Any:
    """Iterate over items behind a progress bar, which disappears at the end.

    Args:
        items: the items to iterate over.
        name: the words beside the bar.
        progress: whether to show the bar; if not, tqdm need not be installed.
        options: further options of `tqdm.tqdm`.
    """
    if not progress:
        return items
    require_packages("a progress bar (progress=True)", "tqdm")
    from tqdm import tqdm

    shell: Any = (
        sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    )
    page = _Output(shell.execution_count) if hasattr(shell, "kernel") else None
    # 90 letters fit into a cell's output, whose width tqdm cannot ask for.
    return tqdm(
        items, desc=name, leave=False, ncols=90 if page else None, file=page, **options
    )


class _Output:
    """A file for tqdm that shows its latest line below a notebook's cell.

    A bar of widgets would stay in the saved notebook, dead.
    """

    encoding = "utf-8"

    def __init__(self, cell: int) -> None:
        self.handle = _place(cell)

    def write(self, line: str) -> None:
        shown = f"<pre>{escape(line.strip())}</pre>" if line.strip() else ""
        self.handle.update({"text/html": shown}, raw=True)

    def flush(self) -> None:
        """Do nothing: `write` has already shown the line."""


@lru_cache(1)
def _place(cell: int) -> Any:
    """Return the one place below a cell that all its bars share."""
    from IPython.display import display

    return display({"text/html": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
