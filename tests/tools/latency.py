"""How long a reader waits: from a key press to the new picture, for every explorer, in Chromium.

    python tests/tools/latency.py [--presses 24] [EXPLORER ...]

One explorer at a time is moved by its first slider, or by its first list, a press after the last
one was answered. Both times are taken in the page: that of the key's event (of the change, for a
list), and that of the frame that follows the change of the picture. Beside them stand what the
callback costs of CPU time in the kernel, which is the same on a busy machine, and what went
through the websocket for one press. An explorer that lives in the page is measured in JupyterLab
and in a page of its own, and its CPU time is that of its listener, layout included. This measures;
it asserts nothing.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import every_explorer
import lab_browser
import page as pages

from mplab.explorers.modules import PageExplorer

GOALS = {"svg": 60, "img": 250, "page": 16}
"""Milliseconds that nine presses of ten should take, by what the picture is made of."""

IN_PAGE = every_explorer.kinds(PageExplorer)

WATCHED = """
import time
from mplab.explorers import Explorer
def timed(visibly):
    def run(self, action):
        start = time.process_time()
        visibly(self, action)
        with open("cpu.txt", "a") as log:
            print(1000 * (time.process_time() - start), file=log)
    return run
Explorer.visibly = timed(Explorer.visibly)
"""

WATCH = """area => {
    window.pressed = window.seen = null;
    area.addEventListener('keydown', event => { window.pressed = event.timeStamp; }, true);
    area.addEventListener('change', event => {
        if (event.target.type !== 'range') window.pressed = event.timeStamp;
    }, true);
    const picture = () => [...area.querySelectorAll('svg, img, table')]
        .map(shown => shown.src || shown.outerHTML).join();
    let last = picture();
    new MutationObserver(() => {
        if (picture() === last) return;
        last = picture();
        requestAnimationFrame(() => { window.seen = performance.now(); });
    }).observe(area, {subtree: true, childList: true, attributes: true});
}"""
WAITED = "() => window.seen && window.pressed && window.seen - window.pressed"


def measure(explorer, presses, frames, settle=every_explorer.ANSWER):
    """Milliseconds of each press, and frames and bytes of the websocket for one."""
    explorer.area.evaluate(WATCH)
    sliders = explorer.area.locator(".noUi-handle, input[type=range]")
    control = sliders.first if sliders.count() else explorer.area.locator("select").first
    control.scroll_into_view_if_needed()
    times, sizes, counts = [], [], []
    forward = True
    for _ in range(presses):
        explorer.page.evaluate(settle)
        explorer.page.evaluate("() => { window.pressed = window.seen = null; }")
        forward = turn(control, forward)
        frames.clear()
        if sliders.count():
            control.press("ArrowRight" if forward else "ArrowLeft")
        else:
            control.press("Space")
            explorer.page.keyboard.press("ArrowDown" if forward else "ArrowUp")
            explorer.page.keyboard.press("Enter")
        explorer.page.wait_for_function(WAITED, timeout=1000 * lab_browser.MOVE)
        times.append(explorer.page.evaluate(WAITED))
        sizes.append(sum(frames))
        counts.append(len(frames))
    return times, statistics.median(counts), statistics.median(sizes)


def turn(control, forward):
    """Whether to go on forward, or to turn at an end."""
    ends = """e => e.options ? [e.selectedIndex, 0, e.options.length - 1]
        : e.type === 'range' ? [e.value, e.min, e.max].map(Number)
        : ['now', 'min', 'max'].map(which => Number(e.getAttribute('aria-value' + which)))"""
    value, low, high = control.evaluate(ends)
    return value < high if forward else value <= low


def row(name, times, goal, cpu, messages, size):
    """One line of the table."""
    median, slow = statistics.median(times), statistics.quantiles(times, n=10)[-1]
    return (
        f"{name:<25}{len(times):>8}{median:>8.0f}{slow:>8.0f}{goal:>6}"
        f"{statistics.median(cpu):>8.1f}{max(cpu):>8.1f}{messages:>10.0f}{size / 1024:>7.1f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("explorers", nargs="*", help="which (default: all)")
    parser.add_argument("--presses", type=int, default=24, help="of each (default 24)")
    options = parser.parse_args()
    print(
        f"ms from key press to new picture; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    )
    print(f"{'':<25}{'presses':>8}{'median':>8}{'p90':>8}{'goal':>6}"
          f"{'CPU':>8}{'worst':>8}{'messages':>10}{'KiB':>7}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        folder, frames = Path(folder), []
        alone = [name for name in IN_PAGE if name in (options.explorers or IN_PAGE)]
        notebook = every_explorer.write(
            folder / "lessons", WATCHED, *map(every_explorer.made, alone)
        )
        opened = lab_browser.open_lesson(
            notebook, folder=folder, artefacts=Path("artefacts/latency"),
            snapshots=False,
        )  # fmt: skip
        with opened as lesson:
            lesson.page.on("websocket", lambda socket: listen(socket, frames))
            lesson.page.reload()
            lesson.page.wait_for_function(lab_browser.OPENED)
            lesson.page.evaluate(lab_browser.READY)
            lesson.run_all()
            for name, explorer in every_explorer.explorers(lesson).items():
                if options.explorers and name not in options.explorers:
                    continue
                log = folder / "lessons" / "cpu.txt"
                log.write_text("")
                kind = explorer.area.evaluate("e => e.querySelector('svg, img').tagName")
                times, messages, size = measure(explorer, options.presses, frames)
                cpu = [float(line) for line in log.read_text().split()]
                print(row(name, times, GOALS[kind.lower()], cpu, messages, size), flush=True)
            for i, name in enumerate(alone):
                area = lesson.page.locator(".mplab-page").nth(i)
                print_page(name, lesson.page, area, options.presses, frames)
        with pages.browser() as running:
            for name in alone:
                with pages.opened(
                    running, every_explorer.kinds(PageExplorer)[name](), folder
                ) as page:
                    area = page.locator(".mplab-page")
                    print_page(f"{name}, own page", page, area, options.presses, [])


def print_page(name, page, area, presses, frames):
    """The line of an explorer that lives in the page: its CPU time is that of its listener."""
    explorer = every_explorer.Explorer(page, area)
    times, messages, size = measure(explorer, presses, frames, "new Promise(requestAnimationFrame)")
    area.locator("input[type=range]").first.focus()
    print(row(name, times, GOALS["page"], page.evaluate(pages.MOVES), messages, size), flush=True)


def listen(socket, frames):
    """Keep the size of what comes from the kernel."""
    socket.on("framereceived", lambda data: frames.append(len(data)))


if __name__ == "__main__":  # as a script, but not where pytest looks for doctests
    main()
