"""The reference in `mplab export-html`: the fronts as pages, from their docstrings, by pdoc."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from inspect import Signature, formatannotation
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from pdoc import doc, doc_ast, render

from mplab.commands._site import policy
from mplab.commands.main import COMMANDS
from mplab.course.files import replace_file
from mplab.numbers.installation import VERSION

ROOMS = (
    *("numbers", "arithmetic", "scaling", "course", "simulation", "training"),
    *("health", "hardware", "pictures", "explorers", "grading"),  # commands is for the shell
)

MORE = {"mplab.numbers.tensors": ["round_tensor"]}
"""What users are told of besides the fronts: it needs torch, and its room does not."""

_LONGEST = 100  # characters of a value that help a reader


class _Text:
    """Stands for an annotation or a default in a signature, and prints as written here."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def write_reference(folder: Path) -> None:
    """Write a page for the door and for each front, and the index of the search.

    Raises:
        OSError: the folder cannot be written.
    """
    with TemporaryDirectory() as templates, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # annotations that only a type checker can read
        (Path(templates) / "custom.css").write_text(_STYLE, encoding="utf-8")
        render.configure(
            docformat="google",
            footer_text=f"mplab {VERSION}",
            show_source=False,  # it is full of what the fronts hide
            template_directory=Path(templates),
        )
        pages = _pages()
        for name, page in pages.items():
            path = folder / f"{name.replace('.', '/')}.html"
            replace_file(path, _guarded(render.html_module(page, pages)).encode())
        replace_file(folder / "index.html", _guarded(render.html_index(pages)).encode())
        pages.pop("mplab")  # what it offers, a search finds in the rooms
        replace_file(folder / "search.js", render.search_index(pages).encode())


def _guarded(html: str) -> str:
    """A page under the policy of all pages, each of its links with words that can be read out.

    Its own script loads the index of the search.
    """
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    html = re.sub(r'(<a class="headerlink" href="#([^"]+)")>', r'\1 aria-label="link to \2">', html)
    return html.replace("<head>", "<head>" + policy(scripts, more="'strict-dynamic'"), 1)


def _pages() -> dict[str, doc.Module]:
    """The door, the fronts and what else users are told of, by their names."""
    rooms = [f"mplab.{room}" for room in ROOMS]
    pages = {}
    for name in ["mplab", *rooms]:
        pages[name] = _page(doc.Module.from_name(name).obj)
        for inner, names in MORE.items():
            if inner.rpartition(".")[0] == name:
                pages[inner] = _page(doc.Module.from_name(inner).obj, names)
                pages[inner].docstring = _sentence(pages[inner])  # the rest is of its neighbours
                pages[name].submodules = [pages[inner]]
    homes = {
        each.taken_from: (each.modulename, each.qualname)
        for page in reversed(pages.values())  # the door last: it wins
        for each in page.classes
    }
    for page in pages.values():
        for entry in _entries(page):
            _tidy(entry, homes)
    pages["mplab"].docstring += _tables(pages)
    pages["mplab"].submodules = [pages[name] for name in rooms]
    return pages


def _page(module: ModuleType, names: Sequence[str] = ()) -> doc.Module:
    """What pdoc says of these names of a module, else of all, lazily imported ones included."""
    front = ModuleType(module.__name__, module.__doc__)
    names = names or getattr(module, "__all__", dir(module))
    every = {name: getattr(module, name) for name in names if name[0] != "_"}
    held = {name: each for name, each in every.items() if not isinstance(each, ModuleType)}
    vars(front).update(held, __all__=list(held))
    page = doc.Module(front)
    for entry in page.variables:
        entry.docstring = _described(entry.name, getattr(front, entry.name))
    return page


def _described(name: str, value: object) -> str:
    """The docstring under a constant, in whichever file it is made, and the keys of a table."""
    found = (
        doc_ast.walk_tree(module).var_docstrings.get(name)
        for file, module in list(sys.modules.items())
        if file.startswith("mplab.") and vars(module).get(name) is value
    )
    parts = [next(filter(None, found), "")]
    if isinstance(value, Mapping):
        parts.append("Keys: " + ", ".join(f"`{key!r}`" for key in value) + ".")
    return "\n\n".join(filter(None, parts))


def _entries(space: doc.Namespace[Any]) -> Iterator[doc.Doc[Any]]:
    """All that a page shows, methods and attributes too."""
    for entry in space.own_members:
        yield entry
        if isinstance(entry, doc.Class):
            yield from _entries(entry)


def _tidy(entry: doc.Doc[Any], homes: Mapping[tuple[str, str], tuple[str, str]]) -> None:
    """Name classes by their fronts, not by their files, and leave out what says nothing."""
    if isinstance(entry, doc.Function):
        if entry.name == "__init__":  # the class says it; what stands here is a base's
            entry.docstring = ""
        signature = entry.signature
        entry.signature = signature.replace(
            parameters=[
                each.replace(
                    annotation=_annotation(each.annotation, homes), default=_default(each.default)
                )
                for each in signature.parameters.values()
            ],
            return_annotation=_annotation(signature.return_annotation, homes),
        )
    elif isinstance(entry, doc.Variable):
        entry.annotation = _annotation(entry.annotation, homes)
        value = entry.default_value
        if isinstance(value, Enum) and entry.name == value.name:
            entry.default_value = value.value
        elif "." in entry.qualname:
            entry.default_value = _default(value)
        if len(entry.default_value_str) > _LONGEST:
            entry.default_value_str = ""
        if entry.docstring.startswith("Alias for field number"):
            entry.docstring = ""
    elif isinstance(entry, doc.Class):
        entry.own_members = [each for each in entry.own_members if not _made_elsewhere(each)]
        entry.inherited_members = {
            homes[base]: members
            for base, members in entry.inherited_members.items()
            if base in homes
        }
        shown = [entry.own_members, *entry.inherited_members.values()]
        entry.members = {each.name: each for members in shown for each in members}
        entry.bases = [
            (*homes.get((file, name), (file, name)), _in_fronts(text, homes))
            for file, name, text in entry.bases
        ]


def _made_elsewhere(entry: doc.Doc[Any]) -> bool:
    """Whether another library gave a method to a class of ours: matplotlib does so with `set`."""
    return isinstance(entry, doc.Function) and not (
        entry.name.startswith("_") or entry.obj.__module__.startswith("mplab")
    )


def _annotation(annotation: Any, homes: Mapping[tuple[str, str], tuple[str, str]]) -> Any:
    if annotation is Signature.empty:
        return annotation
    return _Text(_in_fronts(formatannotation(annotation), homes))


def _in_fronts(text: str, homes: Mapping[tuple[str, str], tuple[str, str]]) -> str:
    """A type in words, with classes as users import them, or by their bare names."""

    def written(found: re.Match[str]) -> str:
        return ".".join(homes.get((found[1], found[2]), found.groups()[1:]))

    text = re.sub(r"ForwardRef\('([^']+)'[^)]*\)", r"\1", text)  # in a NamedTuple
    text = re.sub(r"\*<class '([\w.]+)'>", r"Unpack[\1]", text)
    return re.sub(r"\b(mplab[.\w]*)\.(\w+)", written, text).replace("typing.", "")


def _default(value: Any) -> Any:
    """A default, with formats and members of enumerations by their names."""
    if value is Signature.empty:
        return value
    return _Text(re.sub(r"<(?:Format )?([\w.]+): [^>]*>", r"\1", repr(value)))


def _sentence(page: doc.Module) -> str:
    """What a module is for."""
    return page.docstring.partition("\n")[0]


def _tables(pages: Mapping[str, doc.Module]) -> str:
    """The rooms with their names, and the commands, as the end of the first page's docstring."""
    lines = ["\n\n## Rooms\n", "| room | what it is for | names |", "|---|---|---|"]
    for name, page in pages.items():
        if name != "mplab":
            link = f"{name.replace('.', '/')}.html"
            names = ", ".join(f"[`{each}`]({link}#{each})" for each in page.members)
            lines.append(
                f"| `{name}` | {_sentence(page)} | {names} |"
            )  # pdoc links a page by itself
    lines += ["\n## Commands\n", "| in the shell | what it does |", "|---|---|"]
    lines += [f"| `mplab {name}` | {purpose} |" for name, purpose in COMMANDS.items()]
    lines += ["\n## Names\n", "What `mplab` itself offers; each of these is in a room, too."]
    return "\n".join(lines) + "\n"


_STYLE = """
html, main { scroll-behavior: auto }
main.pdoc a:not(.headerlink) { text-decoration: underline }
.pdoc { --def: #006400 }
.pdoc .attribution { opacity: 1 }
.pdoc-code :is(.k, .kc, .nb, .bp, .c1) { color: #006400 }
@media (min-width: 770px) { main { width: calc(64rem + var(--sidebar-width)) } }
main { overflow-wrap: break-word }
.pdoc .attr, .pdoc pre { overflow-wrap: anywhere }
.pdoc pre, .pdoc .param, .pdoc .return-annotation { white-space: pre-wrap }
.pdoc pre { padding-right: .5rem }
.pdoc pre > code { display: inline }
.pdoc .signature.condensed .param { display: inline }
.pdoc .signature.multiline .param { tab-size: 0; padding-left: 4rem; text-indent: -2rem }
.pdoc .module-info table { display: table; width: 100% }
.pdoc .module-info td { vertical-align: top }
@media (min-width: 770px) {
    .pdoc .module-info td:first-child { white-space: nowrap }
    .pdoc .module-info td:nth-child(2):not(:last-child) { min-width: 16rem }
}
@media (max-width: 769px) {
    .pdoc .classattr, .pdoc .inherited { margin-left: 1rem }
    .pdoc .docstring .pdoc-code { margin-left: 0; margin-right: 0 }
    .pdoc blockquote { margin-left: 1rem }
    .pdoc table { font-size: .8rem }
    .pdoc table th, .pdoc table td { padding: .2rem .3rem }
    .pdoc .module-info table { font-size: inherit }
    .pdoc .module-info thead { display: none }
    .pdoc .module-info td { display: block; border: 0; padding: 0 0 .3rem }
    .pdoc .module-info tr { display: block; padding: .6rem 0; border-top: 1px solid var(--accent2) }
}
"""
