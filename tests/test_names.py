"""Every name of mplab that a text mentions is there."""

import json
import re
from importlib import import_module
from pathlib import Path

import mplab

PACKAGE = Path(mplab.__file__).parent
ROOT = PACKAGE.parent
NAME = re.compile(r"(?<![\w./-])mplab((?:\.[A-Za-z_]\w*)+)")
"""`mplab.` and what follows it; not a file's name or part of an address."""
KINDS = (
    "*.md",
    "*.toml",
    "lessons/**/*.md",
    "lessons/**/*.py",
    "lessons/**/*.ipynb",
    "data/*.[pm]*",
)
FILES = [*PACKAGE.rglob("*.py"), *(path for kind in KINDS for path in ROOT.glob(kind))]


def mentioned(path):
    """The dotted names in a file, in its order."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return list(dict.fromkeys(NAME.findall(text)))


def is_there(dotted):
    """Whether modules and attributes of these names exist, one within the other."""
    found = mplab
    for depth, name in enumerate(parts := dotted.strip(".").split(".")):
        if not hasattr(found, name):
            try:
                import_module("mplab." + ".".join(parts[: depth + 1]))
            except ModuleNotFoundError:
                # Of a dataclass or a named tuple.
                fields = getattr(found, "__annotations__", {})
                return name in fields and depth + 1 == len(parts)
        found = getattr(found, name)
    return True


def test_every_name_that_a_text_mentions_is_there():
    lost = {
        path: [name for name in mentioned(path) if not is_there(name)] for path in FILES
    }
    assert {str(path): names for path, names in lost.items() if names} == {}
