"""`mplab doctor`: say what this machine has, and what each missing thing turns off."""

import argparse
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mplab.common.installation import (
    PACKAGE,
    VERSION,
    how_to_install,
    version_of,
)
from mplab.common.words import plural
from mplab.numbers.threads import processors

_PACKAGES = {
    "numpy": "mplab needs it",
    "ml_dtypes": "mplab needs it",
    "numba": "mplab needs it",
    "torch": "no simulation, training or health, and no lessons with networks",
    "tqdm": "no progress bars, so no training with one",
    "matplotlib": "no figures and no explorers",
    "ipywidgets": "no explorers",
    "anywidget": "no explorers",
    "jupyterlab": "no lessons",
    "pdoc": "no `mplab export-html`",
    "nbgrader": "no `mplab grade`",
    "jupyterhub": "no class on a Hub",
}
"""What mplab does not do without each package."""

_MATRIX_UNITS = (
    ("FP16", (7, 0)),
    ("BF16", (8, 0)),
    ("TF32", (8, 0)),
    ("FP8", (8, 9)),
)
"""The first CUDA compute capability whose matrix units multiply each format."""


class Component(NamedTuple):
    """One thing this machine may have: what was found ("" if nothing), and what is off without."""

    what: str
    found: str
    without: str


def main(argv: Sequence[str] | None = None) -> int:
    """Print what this machine has, and what each missing thing turns off.

    Returns:
        0, or 1 where numbers were asked for and differ from other machines'.
    """
    parser = argparse.ArgumentParser(
        prog="mplab doctor",
        description="Say what this machine has, and what each missing thing turns off.",
    )
    parser.add_argument(
        "--numbers",
        action="store_true",
        help="say whether this machine computes the same bits as others",
    )
    options = parser.parse_args(argv)
    print(f"mplab {VERSION} in {PACKAGE}")
    print(
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    components = [
        *packages(),
        processor(),
        cuda_device(),
        compile_cache(),
        bubblewrap(),
    ]
    width = max(len(component.what) for component in components)
    for what, found, without in components:
        print(f"  {what:{width}}  {found or 'missing: ' + without}")
    return numbers() if options.numbers else 0


def numbers() -> int:
    """Print whether this machine computes the same bits as others; return 1 if not."""
    from mplab.commands import reproducibility

    # Said first: a slow machine takes minutes.
    print("Numbers, arithmetic, matrix units and linear systems:", flush=True)
    wrong = reproducibility.differing()
    count = len(reproducibility.stored_digests())
    print(f"  {count - len(wrong)} of {count} digests are those of other machines")
    for name in wrong:
        print(f"  differs: {name}")
    if version_of("torch"):
        print("Float32 functions of torch, which are this machine's own:")
        for name, result in reproducibility.torch_functions():
            print(f"  {name:8} {result}")
    return bool(wrong)


def packages() -> list[Component]:
    """Look for the packages that mplab needs."""
    return [
        Component(name, version_of(name), f"{off}; {how_to_install(name)}")
        for name, off in _PACKAGES.items()
    ]


def processor() -> Component:
    """Name the processor and count the cores this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    name = names[0] if names else platform.processor() or platform.machine()
    cores = plural(processors(), "core")
    return Component("processor", f"{name}, {cores} for this process", "")


def cuda_device() -> Component:
    """Look for a CUDA device and the formats its matrix units multiply."""
    off = "real mixed precision runs on the CPU: FP16 and BF16 right but slow, FP8 simulated only"
    try:
        import torch
    # OSError: a shared library of torch is missing.
    except (ImportError, OSError) as error:
        return Component("CUDA device", "", f"torch cannot be imported ({error})")
    if torch.version.cuda is None or not torch.cuda.is_available():
        return Component("CUDA device", "", off)
    capability = torch.cuda.get_device_capability()
    formats = ", ".join(matrix_formats(capability)) or "none of the formats here"
    name = torch.cuda.get_device_name()
    dotted = ".".join(map(str, capability))
    return Component(
        "CUDA device", f"{name}, capability {dotted}; matrix units: {formats}", off
    )


def matrix_formats(capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the formats that matrix units of a CUDA compute capability multiply.

    Source:
        NVIDIA's tables of features by compute capability: FP16 from 7.0 (Volta), BF16 and TF32
        from 8.0 (Ampere), FP8 from 8.9 (Ada).

    Examples:
        >>> matrix_formats((8, 6)), matrix_formats((7, 0)), matrix_formats((6, 2))
        (('FP16', 'BF16', 'TF32'), ('FP16',), ())
        >>> matrix_formats((8, 0)) == matrix_formats((8, 8)) != matrix_formats((8, 9))
        True
    """
    return tuple(name for name, first in _MATRIX_UNITS if capability >= first)


def compile_cache() -> Component:
    """Look for the folder where compiled loops are kept from one process to the next."""
    off = "each process compiles the loops it uses anew (set NUMBA_CACHE_DIR to a writable folder)"
    try:
        from numba import njit

        # numba chooses the folder by the function's file: `processors` lies beside most loops.
        folder = njit(cache=True)(processors).stats.cache_path
    except (ImportError, RuntimeError):  # RuntimeError: numba found no writable folder
        return Component("compile cache", "", off)
    return Component("compile cache", str(folder), off)


def bubblewrap() -> Component:
    """Look for bubblewrap, the sandbox in which other people's notebooks can run."""
    return Component(
        "bubblewrap",
        shutil.which("bwrap") or "",
        "notebooks of others cannot run in a sandbox",
    )
