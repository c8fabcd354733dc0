"""A notebook with every explorer of the package, and how a reader operates one in a browser."""

from collections import namedtuple
from importlib import import_module

import lab_browser

from mplab.common.files import course_folder
from mplab.course.explorers.modules import PageExplorer
from mplab.course.explorers.widget import Explorer as Live

SETUP = """
import numpy as np
from mplab.training import exponent_histogram
from mplab.training import train
"""

SHOWN_WITH = {
    "RangeMap": "{f'layer {k}': exponent_histogram(np.random.default_rng(k).normal(size=999)"
    " * 2.0 ** (5 * k - 30)) for k in range(3)}",
    "TrainingTheatre": "[train('digits-autoencoder', recipe, steps=60, progress=False,"
    " record_gradients_at=(0, 30, 59)) for recipe in ('fp32', 'fp16-naive')]",
}
"""What an explorer without defaults is given."""

CONTROLS = ".noUi-handle, select:enabled, input:enabled, button:enabled"

# What a reader sees: the picture, and the sentence that a screen reader says.
SEEN = """area => ({
    picture: area.querySelector('svg')?.outerHTML,
    sentence: area.querySelector('[role=status]:not(.mplab-gone)')?.innerText,
})"""

# The kernel answers in turn, so once it has answered a question, it has answered the control moved
# before. The browser may be late to tell of a choice, hence the patience where nothing changes.
ANSWER = """async () => {
    await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestKernelInfo();
    await new Promise(requestAnimationFrame);
}"""
NOTEBOOK = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const cells = notebook.widgets.map(cell => cell.model.id + cell.model.type);
    return JSON.stringify([cells, notebook.activeCellIndex, notebook.mode]);
}"""
"""What a key could do to the notebook: its cells, the active one and the mode."""
ANSWERED = f"""async (area, before) => {{
    let after = before;
    const same = part => after[part] === before[part];
    for (let patience = 15; patience > 0 && (same('picture') || same('sentence')); patience--) {{
        await ({ANSWER})();
        after = ({SEEN})(area);
    }}
    return after;
}}"""


def kinds(base=Live):
    """The explorers of the library and of all lessons by name, so that no new one is forgotten.

    Those whose pictures come from the kernel, or, of `PageExplorer`, those that live in the page.
    """
    import_module("mplab.course.explorers")
    for path in course_folder("lessons").glob("l*/explorer.py"):
        import_module(f"mplab.lessons.{path.parent.name}.explorer")
    ours = [
        kind for kind in base.__subclasses__() if kind.__module__.startswith("mplab.")
    ]
    return {
        kind.__name__: kind for kind in sorted(ours, key=lambda kind: kind.__name__)
    }


def made(name, given=""):
    """The source of a cell that makes an explorer."""
    kind = (kinds() | kinds(PageExplorer))[name]
    return f"from {kind.__module__} import {name}\n{name}({given})"


def write(folder, *more):
    """Write a notebook into the new `folder`: a cell for each explorer, and `more`; its name."""
    sources = [
        SETUP,
        *(made(name, SHOWN_WITH.get(name, "")) for name in kinds()),
        *more,
    ]
    lab_browser.write_notebook(folder, "explorers.ipynb", sources)
    return "explorers.ipynb"


def explorers(lesson):
    """The explorers of the open notebook, by name."""
    areas = lesson.page.locator(f"{lab_browser.OUTPUT}:has(> .jupyter-widgets)")
    return {name: Explorer(lesson.page, areas.nth(i)) for i, name in enumerate(kinds())}


Way = namedtuple("Way", "there back")
"""Two actions on a control, of which the second undoes the first."""


class Explorer:
    """An explorer in the page, as a reader sees and operates it."""

    def __init__(self, page, area):
        """That in the output `area`."""
        self.page = page
        self.area = area

    def seen(self):
        """The picture and the sentence."""
        return self.area.evaluate(SEEN)

    def after(self, action):
        """What is seen before an action, and once the kernel has answered it."""
        before = self.seen()
        action()
        return before, self.area.evaluate(ANSWERED, before)

    def controls(self):
        """Everything that can be operated now, and what kind of control it is."""
        found = self.area.locator(CONTROLS).filter(visible=True).all()
        return [
            (control, control.evaluate("e => e.type || 'slider'")) for control in found
        ]

    def operate(self):
        """Move every control by keyboard and by mouse, there and back.

        Returns:
            What a reader would complain about, and how many moves were made.
        """
        complaints = []
        count = 0
        for number, (control, kind) in enumerate(self.controls()):
            for hand, way in WAYS[kind](self.page, control).items():
                count += 1
                before, after = self.after(way.there)
                # Such as a step back from the first.
                if after == before and way.back is None:
                    self.stir(control)
                    before, after = self.after(way.there)
                words = f"{kind} {number} by {hand}"
                if same := {part for part in after if after[part] == before[part]}:
                    complaints.append(f"{words}: the same {same}")
                if way.back and self.after(way.back)[1] != before:
                    complaints.append(f"{words}: moved back, it shows something else")
        return complaints, count

    def heard(self):
        """Which keys pressed in a control of each kind changed the notebook, or chose nothing."""
        found = []
        for control, kind in dict(
            (kind, (c, kind)) for c, kind in self.controls()
        ).values():
            control.focus()
            before = self.page.evaluate(NOTEBOOK)
            for key in (*"bddxma", "ArrowDown", "ArrowUp"):
                place = control.evaluate("e => e.selectedIndex")
                self.page.keyboard.press(key)
                if self.page.evaluate(NOTEBOOK) != before:
                    return [*found, f"{key} in a {kind}"]
                moved = control.evaluate("e => e.selectedIndex") != place
                if (
                    key == "ArrowDown"
                    and kind == "select-one"
                    and place == 0
                    and not moved
                ):
                    found.append(f"{key} does not choose from a list")
        return found

    def stir(self, but):
        """Move what else moves by keyboard, each button twice."""
        control = but.element_handle()
        for other, kind in self.controls():
            if WAYS[kind] in (slider, button) and not other.evaluate(
                "(e, x) => e === x", control
            ):
                for _ in range(1 + (WAYS[kind] is button)):
                    self.after(WAYS[kind](self.page, other)["keyboard"].there)


def slider(page, handle):
    """An arrow key; the handle dragged a quarter of the way towards the further end."""
    value, low, high = (
        float(handle.get_attribute(f"aria-value{which}"))
        for which in ("now", "min", "max")
    )
    keys = ("ArrowRight", "ArrowLeft") if value < high else ("ArrowLeft", "ArrowRight")
    handle.scroll_into_view_if_needed()
    track = handle.locator(
        "xpath=ancestor::*[contains(@class, 'noUi-base')]"
    ).bounding_box()
    start, height = middle(handle)
    there = start + track["width"] * (0.25 if value - low < high - value else -0.25)

    def drag(end):
        page.mouse.move(middle(handle)[0], height)
        page.mouse.down()
        page.mouse.move(end, height)
        page.mouse.up()
        # Ipywidgets keeps back the last place while the kernel is busy.
        page.evaluate(ANSWER)

    return {
        "keyboard": Way(*(lambda key=key: handle.press(key) for key in keys)),
        "mouse": Way(lambda: drag(there), lambda: drag(start)),
    }


def middle(control):
    """Where a control is on the page."""
    box = control.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def dropdown(page, select):
    """Space opens the list, and an arrow and Enter choose; so does a click."""
    chosen, last = select.evaluate("e => [e.selectedIndex, e.options.length - 1]")
    keys = ("ArrowDown", "ArrowUp") if chosen < last else ("ArrowUp", "ArrowDown")

    def choose(open_list, key):
        open_list()
        page.keyboard.press(key)
        page.keyboard.press("Enter")

    def ways(open_list):
        return Way(*(lambda key=key: choose(open_list, key) for key in keys))

    return {
        "keyboard": ways(lambda: select.press("Space")),
        "mouse": ways(select.click),
    }


def entry(page, field):
    """Another number typed, and Enter."""
    before = field.input_value()

    def type_in(words):
        field.fill(words)
        field.press("Enter")

    return {"keyboard": Way(lambda: type_in("3"), lambda: type_in(before))}


def button(page, found):
    """Space, or a click; what undoes it is not known."""
    return {
        "keyboard": Way(lambda: found.press("Space"), None),
        "mouse": Way(found.click, None),
    }


def choice(page, found):
    """Space, or a click, on a button of several; none on the chosen one."""
    group = found.locator("xpath=..").locator("button")
    chosen = group.evaluate_all(
        "all => all.findIndex(e => e.classList.contains('mod-active'))"
    )
    other = group.nth(chosen)
    if "mod-active" in found.get_attribute("class"):
        return {}
    return {
        "keyboard": Way(lambda: found.press("Space"), lambda: other.press("Space")),
        "mouse": Way(found.click, other.click),
    }


def checkbox(page, box):
    """Space, or a click."""
    return {
        "keyboard": Way(lambda: box.press("Space"), lambda: box.press("Space")),
        "mouse": Way(box.click, box.click),
    }


WAYS = {
    "slider": slider, "select-one": dropdown, "text": entry, "checkbox": checkbox, "submit": button,
    "button": choice,
}  # fmt: skip
"""How each kind of control is moved, by what the browser calls it."""


NAMED = {
    "MatrixStep": (
        6, {"large product 2^": ["4", "5", "15"], "small product 2^": ["-9", "-10", "-11"]},
    ),
    "UpdateStagnation": (7, {"|Δ| = 2^": ["-7", "-8"], "weight": ["1.0"]}),
    "ScalerTimeline": (
        9,
        {"first scale 2^": ["15", "16"], "growth interval": ["25", "2000"], "step": ["24", "53"]},
    ),
    "AmaxHistory": (
        12, {"history": ["16", "4", "1"], "spike 2^": ["18", "14", "4", "5"], "margin 2^": ["4"]},
    ),
    "Refiner": (
        15, {"condition 2^": ["7", "14"], "A times 2^": ["18", "-14", "-15", "-16"]},
    ),
}  # fmt: skip
"""Of explorers with too many positions for a page: the lesson, and what it names of a control."""
