"""Write lessons/l04/photograph.png anew: `python data/make_photograph.py`.

It is the explorer of exposures as it begins, for pages without JavaScript, from Chromium.
"""

import base64
import io
import shutil

from PIL import Image
from playwright.sync_api import sync_playwright

from mplab.common.files import course_folder
from mplab.course.explorers.modules import to_live_html
from mplab.lessons.l04.explorer import Photograph

CANVASES = "all => all.map((each) => each.toDataURL().split(',')[1])"


def main() -> None:
    """Open the explorer, and join the left half of its original and the right half beside it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page()
        page.set_content(to_live_html(Photograph()))
        canvases = page.locator("canvas").evaluate_all(CANVASES)
        browser.close()
    read = [Image.open(io.BytesIO(base64.b64decode(data))) for data in canvases]
    whole, stored = [image.convert("RGB") for image in read]
    half = whole.width // 2
    whole.paste(stored.crop((half, 0, *whole.size)), (half, 0))
    path = course_folder("lessons") / "l04" / "photograph.png"
    whole.quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    main()
