"""What a saved notebook shows of an explorer until its cell runs again.

JupyterLab saves the id of a widget, not its state: opened again, the notebook shows an error in
its place. So an explorer is displayed twice, alive, and as HTML that is hidden unless that fails.
"""

import base64
from html import escape

import ipywidgets
from IPython.display import display

SAVED = '<div class="mplab-saved">'

_STYLE = """<style>.mplab-saved { display: none }
.jp-OutputArea:has(.jp-OutputArea-output.jupyter-widgets) .mplab-saved { display: block }
.jp-OutputArea:has(.mplab-saved) > :has(> .jp-OutputArea-output.jupyter-widgets) { display: none }
</style>"""
"""JupyterLab gives the class jupyter-widgets to an output itself where it cannot show a widget."""


def display_and_save(explorer: ipywidgets.DOMWidget, html: str) -> None:
    """Display an explorer, and HTML to show in its place where there is no kernel."""
    bundle = explorer._repr_mimebundle_()
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    display(data, metadata=metadata, raw=True)
    display({"text/html": f"{SAVED}{_STYLE}{html}</div>"}, raw=True)


def saved_picture(question: str, svg: str, sentence: str) -> str:
    """Write a question, a picture and its sentence, and how to bring them to life."""
    image = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    encoded = base64.b64encode(image.encode()).decode()
    return (
        f"<p><b>{escape(question)}</b></p>"
        f'<img style="width:45rem;max-width:100%" alt="" src="data:image/svg+xml;base64,{encoded}">'
        f"<p>{escape(sentence)}</p><p><b>This is how the cell left it.</b> To move it, run"
        " all cells: menu Run, Run All Cells.</p>"
    )
