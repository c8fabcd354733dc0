"""The frame of all pages of `mplab export-html`, with their style and script."""

import base64
import hashlib
import io
import os
import re
from collections.abc import Sequence
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

from PIL import Image

from mplab.common.installation import VERSION
from mplab.course.explorers.modules import joined

FILES = Path(__file__).parent / "page"

_MODULE = re.compile(r'<script type="module">(.*?)</script>', re.DOTALL)

_SVG = re.compile('(?<=src=")data:image/svg[+]xml;base64,([A-Za-z0-9+/=]+)')


def page(
    title: str,
    body: str,
    *,
    ways: Sequence[str] = (),
    kind: str = "",
    about: str = "",
    card: str = "card.png",
) -> str:
    """Make a whole page that loads nothing: style, script and pictures are in it.

    Args:
        title: the window's title.
        body: the HTML of its main part.
        ways: links to other pages, for its head and its foot.
        kind: the class of the main part.
        about: a sentence or two for search engines.
        card: the file beside the page that a link to it shows as its picture.
    """
    spelling = joined("spelling.js").replace("export ", "")  # a script is no module
    own = (FILES / "site.js").read_text("utf-8")
    script = f'"use strict";\n{spelling}{own}'
    return (
        (FILES / "page.html")
        .read_text("utf-8")
        .format(
            title=escape(title),
            about=escape(about or title),
            card=card_of(card),
            policy=policy([script, *_MODULE.findall(body)]),
            style=(FILES / "style.css").read_text("utf-8"),
            script=script,
            ways="".join(f"<li>{way}</li>" for way in ways),
            kind=kind,
            body=_SVG.sub(_as_text, body),
            version=VERSION,
        )
    )


def card_of(card: str) -> str:
    """Write which picture a link to the page shows; it needs a whole address."""
    picture = address() and address() + card
    return f'<meta property="og:image" content="{picture}">' if picture else ""


def repository() -> str:
    """Return the address that pyproject.toml gives as `Repository`; empty if it gives none."""
    lines: list[str] = metadata.metadata("mplab").get_all("Project-URL") or []
    return dict(line.split(", ", 1) for line in lines).get("Repository", "")


def address() -> str:
    """Return the address where GitHub publishes the site; empty if it does not."""
    owner, _, name = os.environ.get("GITHUB_REPOSITORY", "").partition("/")
    return f"https://{owner}.github.io/{name}/" if name else ""


def policy(scripts: Sequence[str], *, more: str = "") -> str:
    """Write a page's content security policy for its head: run these scripts, load nothing.

    Args:
        scripts: as they stand in the page.
        more: other sources of scripts, in the policy's own words.

    Examples:
        >>> "script-src 'sha256-" in policy(["let x = 0"])
        True
    """
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in scripts
    ]
    allowed = " ".join([*(f"'sha256-{digest}'" for digest in hashes), more]).strip()
    return (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'\">"
    )


def _as_text(figure: re.Match[str]) -> str:
    """Write the address of a figure, which is in base64, in fewer letters."""
    svg = base64.b64decode(figure[1]).decode()
    for mark in '%&# "\n':  # the last three end an address in a list of them
        svg = svg.replace(mark, f"%{ord(mark):02X}")
    return f"data:image/svg+xml,{svg}"


def first_figure(notebook: Any) -> bytes:
    """Return the first figure of a lesson that ran as a PNG file; empty if there is none."""
    out = io.BytesIO()
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    pictures = (output.get("data", {}).get("image/png") for output in outputs)
    if data := next(filter(None, pictures), ""):
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        image.convert("RGB").quantize(64).save(out, "png", optimize=True)
    return out.getvalue()
