"""The two commands of the README: what they install, and for which Pythons."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import mplab

ROOT = Path(__file__).parent.parent
if not (ROOT / "constraints.txt").exists():
    pytest.skip(
        "the tested versions are listed only in a checkout", allow_module_level=True
    )

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
EXTRAS = PROJECT["optional-dependencies"]
OLDEST = PROJECT["requires-python"].removeprefix(">=") + ".0"
LEARNERS_NEED = {"numpy", "ml_dtypes", "numba", "torch", "jupyterlab", "matplotlib"}
LEARNERS_NEED |= {
    "mpmath",
    "lazy_loader",
    "ipywidgets",
    "anywidget",
    "traitlets",
    "jupyter_server",
}
EXTRA_OF = {
    **dict.fromkeys(["common", "numbers", "arithmetic", "course/exercises"], ()),
    **dict.fromkeys(["scaling", "simulation", "training", "health"], ("torch",)),
    **dict.fromkeys(["course/pictures", "course/explorers", "lessons"], ("lab",)),
    "course/site": ("docs",),
    "commands": ("docs", "grade"),
    "course/grading": ("grade", "cluster", "hub"),
}
MORE_FOR = {"numbers": {"torch"}, "common": {"tqdm", "ipython"}}
MORE_FOR["health"] = {"lightning", "transformers", "keras"}
MORE_FOR["course/explorers"] = MORE_FOR["course/site"] = {"ipython"}
"""torch where there is one (`numbers.tensors`), a bar where one is asked for (`common.progress`,
for rooms whose extra brings tqdm), the trainers and layers of others, and IPython, the only one
that calls what `explorers.saved` and `site.narrow` display with it."""


def brought_by(*extras):
    """The packages that an installation with these extras asks for."""
    found = set()
    todo = [*PROJECT["dependencies"], *(e for name in extras for e in EXTRAS[name])]
    for entry in todo:
        others = re.fullmatch(r"mplab\[(.*)\]", entry)
        found |= (
            brought_by(*others[1].split(","))
            if others
            else {re.split(r"[<>=]", entry)[0]}
        )
    return found


def pins():
    """The tested versions by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def installed():
    """What is installed here in its tested version: name and metadata."""
    found = {}
    for name, version in pins().items():
        try:
            known = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        if known["Version"].partition("+")[0] == version:
            found[name] = known
    if len(found) < len(pins()) // 2:
        pytest.skip("this environment was made without constraints.txt")
    return found


@pytest.mark.parametrize("python", [OLDEST, "3.11.2", "3.12.0", "3.13.0", "3.14.0"])
def test_every_tested_version_is_for_each_python_that_is_allowed(python):
    """3.11.2 is Debian 12's own: one pin that shut it out broke the README's first command."""
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)
    wanted = {name: known.get("Requires-Python") for name, known in installed().items()}
    shut_out = {
        f"{name}=={pins()[name]}": rule
        for name, rule in wanted.items()
        if rule and not SpecifierSet(rule).contains(python)
    }
    assert shut_out == {}


def test_every_package_that_the_tests_ran_with_has_its_tested_version_written_down():
    """Of what mplab asks for and, in turn, of what that asks for.

    A torch that is built for CUDA chooses its libraries itself.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    known = {canonicalize_name(name) for name in pins()}
    installed()  # skips elsewhere
    seen = set()
    left = [("mplab", frozenset(PROJECT["optional-dependencies"]))]
    while left:
        name, extras = left.pop()
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": e}) for e in extras | {""}):
                continue
            step = canonicalize_name(requirement.name), frozenset(requirement.extras)
            of_cuda = name == "torch" and step[0].startswith(
                ("cuda-", "nvidia-", "triton")
            )
            if step not in seen and not of_cuda:
                seen.add(step)
                left.append(step)
    assert {name for name, _ in seen} - known - {"mplab"} == set()


def dry_run(target):
    """The commands of a target in an environment that is not there yet."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", "--dry-run", target, "VENV=not-there", "VENV_ARGS="]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_make_lab_installs_what_a_learner_needs_and_no_tools_of_developers():
    assert re.findall(r"--editable (\S+)", dry_run("lab")) == ["'.[lab]'"]
    assert brought_by("lab") - {"tqdm"} == LEARNERS_NEED


def test_the_number_core_needs_five_packages_and_torch_two_more():
    assert brought_by() == {"numpy", "ml_dtypes", "numba", "mpmath", "lazy_loader"}
    assert brought_by("torch") - brought_by() == {"torch", "tqdm"}


def test_each_extra_declares_every_package_that_its_rooms_import():
    """Not only what another package happens to bring."""
    known_as = {
        "PIL": "pillow",
        "IPython": "ipython",
        "dateutil": "python-dateutil",
        "yaml": "pyyaml",
    }
    package = Path(mplab.__file__).parent
    for room, extras in EXTRA_OF.items():
        names = set()
        for path in (
            (ROOT if room == "lessons" else package).joinpath(room).rglob("*.py")
        ):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names.add(node.module)
        tops = (
            {name.split(".")[0] for name in names}
            - set(sys.stdlib_module_names)
            - {"mplab"}
        )
        asked = {known_as.get(name, name) for name in tops}
        assert asked - brought_by(*extras) - MORE_FOR.get(room, set()) == set(), room


def test_make_test_installs_every_extra_at_once():
    (asked,) = set(re.findall(r"--editable '\.\[(\S+)\]'", dry_run("test")))
    everything = {name for extra in EXTRAS for name in brought_by(extra)}
    assert brought_by(*asked.split(",")) == everything


def test_the_workflows_run_what_is_there():
    """They cannot run here: they are read, and so is what they name."""
    import yaml

    targets = set(
        re.findall(r"(?m)^([a-z-]+)(?= ?[a-z-]*:)", (ROOT / "Makefile").read_text())
    )
    named = set()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            for step in job["steps"]:
                by_hash = re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", ""))
                assert ("run" in step) != bool(by_hash), path.name
                named |= set(
                    re.findall(r"^(?:make )?([a-z-]+|\.ci/run)$", step.get("run", ""))
                )
    assert named == {"test", "pages", ".ci/run"}
    assert "test" in targets and "pages" in targets and (ROOT / ".ci" / "run").exists()


def test_containers_install_the_learners_extra_and_start_the_lab():
    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"(?m)^CMD (.*)$", docker)
    assert json.loads(command)[:2] == ["mplab", "lab"]
    folder = json.loads(command)[-1].removeprefix("--dir=")
    run = re.search(r"docker run [^`]*", (ROOT / "README.md").read_text("utf-8"))[0]
    assert f"VOLUME {folder}\n" in docker and f":{folder} " in run
    assert "-p 127.0.0.1:8888:8888" in run
    assert "--file .binder/environment.yml" in docker and ".binder/postBuild" in docker
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert (
        (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve().is_file()
    )
    assert container["postAttachCommand"].startswith("mplab lab ")
    assert "--editable ." in container["postCreateCommand"]  # the workspace's code runs
    environment = (ROOT / ".binder" / "environment.yml").read_text(encoding="utf-8")
    for allowed in (f"python{PROJECT['requires-python']}", EXTRAS["torch"][0]):
        assert f"- {allowed.replace('torch', 'pytorch-cpu')}\n" in environment
    build = ROOT / ".binder" / "postBuild"
    assert os.access(build, os.X_OK) and "--editable '.[lab]'" in build.read_text()


def test_the_conda_recipe_asks_for_what_pyproject_asks_for():
    import yaml

    known_as = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    recipe = yaml.safe_load(
        (ROOT / ".conda" / "recipe.yaml").read_text(encoding="utf-8")
    )
    numbers, lab = (output["requirements"]["run"] for output in recipe["outputs"])
    named = {"python" + PROJECT["requires-python"], *PROJECT["dependencies"]}
    assert {entry.replace(" ", "") for entry in numbers} == named
    named = {"mplab==${{version}}", *EXTRAS["torch"], *EXTRAS["lab"][1:]}
    asked = [entry.partition(" ") for entry in lab]
    assert {known_as.get(n, n) + rule.replace(" ", "") for n, _, rule in asked} == named
    assert recipe["context"]["version"] == mplab.__version__


def test_no_page_installs_a_name_that_nobody_has_registered():
    """`pip install mplab` would fetch whatever somebody else puts there."""
    pages = [ROOT / "README.md", *(ROOT / "lessons").rglob("*.md")]
    for page in pages:
        assert not re.search(r"pip install[^`\n]*\bmplab", page.read_text("utf-8")), (
            page
        )


def test_the_citation_and_the_changes_speak_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^version: (.*)$", citation) == [mplab.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, _, day = re.findall(r"(?m)^## (\d.*)$", changes)[0].partition(", ")
    assert version == mplab.__version__
    assert re.findall(r"(?m)^date-released: (.*)$", citation) == [day]


@pytest.mark.skipif(
    not ((ROOT / ".git").exists() and shutil.which("git")),
    reason="needs a git checkout",
)
def test_a_checkout_that_git_makes_on_windows_has_unix_line_ends(tmp_path):
    """With others, /bin/sh found no command in the script that the image runs."""
    command = ["git", "clone", "--quiet", "--shared", "--config", "core.autocrlf=true"]
    subprocess.run([*command, str(ROOT), str(tmp_path / "mplab")], check=True)
    done = subprocess.run(
        ["git", "ls-files", "--eol"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path / "mplab",
    )
    lines = done.stdout.splitlines()
    assert lines and [line for line in lines if re.search("w/(crlf|mixed)", line)] == []
