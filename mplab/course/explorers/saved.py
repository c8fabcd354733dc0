"""What a saved notebook shows of an explorer until its cell runs again.

A notebook saves the id of a widget, not its state: opened again, exported or on GitHub it has
nothing to show. So an explorer is displayed twice, alive, and as HTML that hides where the living
one is in the page.
"""

import base64
import re
from abc import abstractmethod
from html import escape
from typing import Any

from IPython.display import display

SAVED = '<div class="mplab-saved">'

STILL = (
    "<p><b>This is how the cell left it.</b> To move it, run all cells: menu Run,"
    " Run All Cells.</p>"
)

_STYLE = """<style>:root:has(.{living}) .mplab-saved:has(.{saved}) {{ display: none }}
.jp-OutputArea:has(.mplab-saved) .jp-OutputArea-output.jupyter-widgets:not(:has(*)) {{
  display: none }}
</style>"""
"""JupyterLab writes words, without an element, where it cannot show a widget."""


class Displayed:
    """A widget that is displayed alive, and as HTML for a notebook that is opened again."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}: run its cell in Jupyter to use it."

    @abstractmethod
    def saved_html(self) -> str:
        """Write what is shown where there is no kernel."""

    def _ipython_display_(self) -> None:
        widget: Any = self
        living = f"mplab-living-{widget.model_id}"
        saved = f"mplab-saved-{widget.model_id}"
        widget.add_class(living)
        bundle = widget._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        # Where no widget is shown, as in VS Code without a kernel, its words stood above the HTML.
        display({**data, "text/plain": ""}, metadata=metadata, raw=True)
        style = _STYLE.format(living=living, saved=saved)
        html = f'{SAVED}{style}<div class="{saved}">{self.saved_html()}</div></div>'
        display({"text/html": html, "text/plain": repr(self)}, raw=True)


def saved_picture(question: str, svg: str, sentence: str) -> str:
    """Write a question, a picture and its sentence, and how to bring them to life."""
    image = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    # An image has no box around its picture: the padding would cut it.
    image = re.sub(' style="[^"]*?(?=fill:|")', ' style="', image, count=1)
    image = re.sub(r"light-dark\(([^,]+),[^)]*\)[^)]*\)\)", r"\1", image)
    encoded = base64.b64encode(image.encode()).decode()
    return (
        f"<p><b>{escape(question)}</b></p>"
        f'<img width="720" style="max-width:100%" alt="" src="data:image/svg+xml;base64,{encoded}">'
        f"<p>{escape(sentence)}</p>{STILL}"
    )
