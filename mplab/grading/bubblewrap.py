"""Build the bubblewrap command line, which limits what a program can see and do."""

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from mplab.course.files import course_folder
from mplab.grading.isolation import WORK
from mplab.numbers.installation import PACKAGE

_NOBODY = "65534"

_LIBRARIES = ("site-packages", "dist-packages")
"""Names of folders of installed libraries, wherever they lie."""


def _system_paths() -> list[Path]:
    """List the folders that Python and its libraries need; none holds files of a course."""
    prefixes = {
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        sysconfig.get_paths()["purelib"],
    }
    prefixes |= {sysconfig.get_paths()["platlib"], sysconfig.get_paths()["stdlib"]}
    paths = {Path(prefix).resolve() for prefix in prefixes} | {
        PACKAGE,
        course_folder("data"),
    }
    paths |= {Path(prefix).absolute() for prefix in prefixes}
    # Libraries may lie elsewhere: `pip install --user`, a .pth file, a shared PYTHONPATH.
    libraries = (Path(entry) for entry in sys.path if Path(entry).name in _LIBRARIES)
    paths |= {path.resolve() for path in libraries}
    usual = (
        "/usr",
        "/etc/ld.so.cache",
        "/etc/alternatives",
        "/etc/localtime",
        "/etc/fonts",
    )
    paths = {path for path in paths if path.exists()} | {
        Path(p) for p in usual if Path(p).exists()
    }
    return sorted(path for path in paths if not any(p in path.parents for p in paths))


def import_path() -> list[str]:
    """Return `sys.path` for the sandbox: ours without the folder of a script or of the teacher."""
    roots = [*_system_paths(), PACKAGE.parent]
    kept = [Path(entry).resolve() for entry in sys.path if entry]
    kept += [PACKAGE.parent]
    inside = [p for p in kept if any(p == root or root in p.parents for root in roots)]
    return list(dict.fromkeys(str(path) for path in inside))


def _view() -> list[str]:
    """Return bwrap's arguments for the file system: only what is needed, none of it writable."""
    arguments = ["--tmpfs", "/"]
    made: set[Path] = set()
    if hidden := [
        path for path in _system_paths() if Path(WORK) in (path, *path.parents)
    ]:
        raise RuntimeError(
            f"sandbox: {WORK} must be free for submissions; got {hidden[0]}. Move it elsewhere."
        )
    for path in _system_paths():
        for parent in reversed(path.parents[:-1]):
            if parent not in made:
                made.add(parent)
                arguments += ["--perms", "0755", "--dir", str(parent)]
        arguments += ["--ro-bind", str(path), str(path)]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if Path("/", name).is_symlink():
            arguments += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif Path("/", name).is_dir():
            arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    lessons = PACKAGE / "_course" / "lessons"
    if (
        lessons.is_dir()
    ):  # an installed package carries the assignments with their solutions
        arguments += ["--tmpfs", str(lessons)]
    return [*arguments, "--perms", "0755", "--dir", WORK]


def environment(work: str = WORK) -> dict[str, str]:
    """Return the environment variables of submissions in a folder; none are the teacher's."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": work,
        "TMPDIR": work,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": f"{work}/.matplotlib",
        "NUMBA_CACHE_DIR": f"{work}/.numba",
        "NUMBA_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "IPYTHONDIR": f"{work}/.ipython",
    }


def sandboxed(command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` in bubblewrap, as root or as an ordinary user.

    As root, the view is built first, because the interpreter may lie under a private home;
    then the user becomes nobody; then the namespaces are made by this user without rights.

    An ordinary user can only be mapped onto themselves: inside, the program is nobody; the
    machine outside still counts it as that user's. It sees none of their files and
    processes; but it shares the kernel's counts per user, such as the number of processes, and if
    the sandbox fails, nothing protects the user's files. Where that matters, grade as root, or as
    a user who owns nothing else.

    Source:
        user_namespaces(7), on who may write a uid_map; bubblewrap's --uid and --gid.
    """
    walls = ["--unshare-all", "--cap-drop", "ALL", "--die-with-parent", "--new-session"]
    devices = [
        "--dev",
        "/dev",
        "--remount-ro",
        "/dev",
        "--size",
        str(64 << 20),
        "--tmpfs",
        WORK,
    ]
    pairs = (("--setenv", name, value) for name, value in environment().items())
    variables = ["--clearenv", *(word for pair in pairs for word in pair)]
    if os.geteuid() != 0:
        inner = [*_view(), *devices, "--proc", "/proc", "--remount-ro", "/"]
        nobody = ["--uid", _NOBODY, "--gid", _NOBODY]
        return [
            "bwrap",
            *inner,
            *walls,
            *nobody,
            *variables,
            "--chdir",
            "/",
            "--",
            *command,
        ]
    # Only the next two programs see the host's /proc. It is bound whole, because the kernel
    # forbids the new mount that hides it if parts of the old one are covered.
    # bwrap builds its root on /tmp, which must be there for the inner one.
    outer = [*_view(), "--perms", "0555", "--dir", "/tmp"]
    outer += ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
    drop = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    drop += ["--no-new-privs"]
    inner = ["--bind", "/", "/", *devices, "--proc", "/proc", "--remount-ro", "/"]
    return [
        *("bwrap", *outer, "--die-with-parent", "--", *drop),
        *("bwrap", *inner, *walls, *variables, "--chdir", "/", "--", *command),
    ]
