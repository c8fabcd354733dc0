"""The frame of all pages of `mplab export-html`, with their style and script."""

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from mplab.numbers.installation import VERSION

FILES = Path(__file__).parent / "site"

_MODULE = re.compile(r'<script type="module">(.*?)</script>', re.DOTALL)

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath fill='%230b57c4' d='M0 0h5v16H0z'/%3E%3Cpath fill='%2310894e' d='M6 4h4v12H6z'/%3E"
    "%3Cpath fill='%237a21dd' d='M11 10h5v6h-5z'/%3E%3C/svg%3E"
)
"""Three bars, each shorter than the one before."""

_PNG = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)")


def page(
    title: str, body: str, *, ways: Sequence[str] = (), kind: str = "", about: str = ""
) -> str:
    """Make a whole page that loads nothing: style, script and pictures are in it.

    Args:
        title: the window's title.
        body: the HTML of its main part.
        ways: links to other pages, for its head and its foot.
        kind: the class of the main part.
        about: a sentence or two for search engines.
    """
    style, script = ((FILES / name).read_text("utf-8") for name in ("style.css", "site.js"))
    links = "".join(f"<li{' class=last' * ('next' in way)}>{way}</li>" for way in ways)
    head, foot = (
        f'<nav aria-label="{name}"><ul class="ways">{links}</ul></nav>' if links else ""
        for name in ("Pages", "Pages, again")
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="{escape(about or title, quote=True)}">
<link rel="icon" href="{_ICON}">
{policy([script, *_MODULE.findall(body)])}
<style>{style}</style></head><body>
<a class="skip" href="#main">Skip to the text</a>
<header>{head}</header>
<main id="main" class="{kind}">
{body}
</main>
<footer>{foot}<p>mplab {VERSION}</p></footer>
<script>{script}</script></body></html>
"""


def policy(scripts: Sequence[str], *, more: str = "") -> str:
    """Write a page's content security policy for its head: run these scripts, load nothing.

    Args:
        scripts: as they stand in the page.
        more: other sources of scripts, in the policy's own words.

    Examples:
        >>> "script-src 'sha256-" in policy(["let x = 0"])
        True
    """
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join([*(f"'sha256-{digest}'" for digest in hashes), more]).strip()
    return (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'\">"
    )


def smaller(html: str, *, width: int | None = None) -> str:
    """Reduce a page's pictures to 256 colours, which a reader cannot tell from more.

    Args:
        html: the page, with pictures in it as base64 of PNG.
        width: the pixels that a picture is shrunk to.
    """
    from PIL import Image

    def shrunk(found: re.Match[str]) -> str:
        picture = Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB")
        if width:
            height = round(picture.height * width / picture.width)
            picture = picture.resize((width, height), Image.Resampling.LANCZOS)
        out = io.BytesIO()
        picture.quantize(256, dither=Image.Dither.NONE).save(out, "png", optimize=True)
        return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"

    return _PNG.sub(shrunk, html)
