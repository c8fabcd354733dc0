"""Build the bubblewrap command line, which limits what a program can see and do."""

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from mplab.common.files import course_folder
from mplab.common.installation import PACKAGE
from mplab.course.grading.isolation import WORK

_NOBODY = "65534"

_LIBRARIES = ("site-packages", "dist-packages")
"""Names of folders of installed libraries, wherever they lie."""

_SYSTEM = (
    "/usr",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/fonts",
)


def _system_paths() -> list[Path]:
    """List the folders that Python and its libraries need; none holds files of a course."""
    installed = sysconfig.get_paths()
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix]
    places += [installed[name] for name in ("purelib", "platlib", "stdlib")]
    # Libraries may lie elsewhere: `pip install --user`, a .pth file, a shared PYTHONPATH.
    libraries = [entry for entry in sys.path if Path(entry).name in _LIBRARIES]
    paths = {Path(place).absolute() for place in places}
    paths |= {Path(place).resolve() for place in [*places, *libraries]}
    paths |= {PACKAGE, course_folder("data"), *map(Path, _SYSTEM)}
    paths = {path for path in paths if path.exists()}
    return sorted(path for path in paths if not paths & set(path.parents))


def read_libraries() -> None:
    """Read what a submission sees into the machine's cache, as far as half the memory goes.

    A file that is read from the disk takes longer, and is counted as a fault. So a submission could
    leave a message by which files it reads, and the next one of its author find it.
    """
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    for top in _system_paths():
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                except OSError:  # a link, for instance
                    continue
                room -= os.fstat(file).st_size
                if room > 0:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
                os.close(file)


def import_path() -> list[str]:
    """Return `sys.path` for the sandbox: ours without the folder of a script or of the teacher."""
    roots = [*_system_paths(), PACKAGE.parent]
    kept = [Path(entry).resolve() for entry in sys.path if entry]
    kept.append(PACKAGE.parent)
    inside = [path for path in kept if any(map(path.is_relative_to, roots))]
    return list(dict.fromkeys(map(str, inside)))


def _view() -> list[str]:
    """Return bwrap's arguments for the file system: only what is needed, none of it writable."""
    arguments = ["--tmpfs", "/"]
    made: set[Path] = set()
    for path in _system_paths():
        if path.is_relative_to(WORK):
            raise RuntimeError(
                f"sandbox: {WORK} must be free for submissions; got {path}. Move it elsewhere."
            )
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
    # An installed package carries the assignments with their solutions.
    if lessons.is_dir():
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
    devices = ["--dev", "/dev", "--remount-ro", "/dev"]
    devices += ["--size", str(64 << 20), "--tmpfs", WORK]
    inner = [*devices, "--proc", "/proc", "--remount-ro", "/", *walls]
    variables = ["--clearenv"]
    for name, value in environment().items():
        variables += ["--setenv", name, value]
    program = [*variables, "--chdir", "/", "--", *command]
    if os.geteuid() != 0:
        nobody = ["--uid", _NOBODY, "--gid", _NOBODY]
        return ["bwrap", *_view(), *inner, *nobody, *program]
    # Only the next two programs see the host's /proc. It is bound whole, because the kernel
    # forbids the new mount that hides it if parts of the old one are covered.
    # bwrap builds its root on /tmp, which must be there for the inner one.
    outer = ["bwrap", *_view(), "--perms", "0555", "--dir", "/tmp"]
    outer += ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
    outer += ["--die-with-parent", "--"]
    drop = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    drop.append("--no-new-privs")
    return [*outer, *drop, "bwrap", "--bind", "/", "/", *inner, *program]
