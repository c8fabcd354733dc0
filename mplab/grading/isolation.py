"""Isolate a process by namespaces, limits and seccomp, which it cannot undo.

This runs inside the outer sandbox (bubblewrap), which already hides the machine. It makes a
second sandbox around each submission, so that it can reach neither the next submission nor the
process that starts them. It uses only the standard library, because a student's files must
replace nothing here, and it runs before anything else is imported.
"""

import contextlib
import ctypes
import os
import platform
import resource
import struct
import sys
from contextlib import nullcontext
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

# <linux/sched.h>: mount, hostname, IPC, user, process and network namespaces
_CLONE_NEWUSER = 0x10000000

_NAMESPACES = (
    0x00020000 | 0x04000000 | 0x08000000 | _CLONE_NEWUSER | 0x20000000 | 0x40000000
)

# <sys/mount.h>
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _PRIVATE = (
    1,
    2,
    4,
    8,
    0x1000,
    0x4000,
    0x40000,
)

# <linux/prctl.h>
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = (
    1,
    4,
    22,
    24,
    38,
)

_SET_CHILD_SUBREAPER = 36

_SIGKILL, _SIGTERM = 9, 15  # signal(7)

_TERMINALS = 8
"""Pseudo-terminals of a submission: `!command` needs one. A machine has some thousands in all."""

WORK = "/submission"
"""The only folder that a submission can write to; in memory, and gone with it. It hides the
machine's own folder of this name, so nothing needed inside may lie there."""


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_namespaces() -> None:
    """Enter new namespaces, which processes started from now on share."""
    uid, gid = os.getuid(), os.getgid()
    # The files below belong to this user only while the memory is not hidden.
    _check(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")
    _check(_libc.unshare(_NAMESPACES), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _mount(
    source: str, target: str, kind: str | None, flags: int, data: str = ""
) -> None:
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _check(result, f"mount {target}")


def make_private_files(disk_bytes: int) -> None:
    """Mount an empty `WORK` of bounded size, and a `/proc` that shows only processes inside."""
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount(
        "tmpfs",
        WORK,
        "tmpfs",
        _NOSUID | _NODEV,
        f"size={disk_bytes},nr_inodes=5000,mode=0700",
    )
    _mount(
        "tmpfs",
        "/dev/shm",
        "tmpfs",
        _NOSUID | _NODEV,
        f"size={disk_bytes},nr_inodes=500",
    )
    try:
        _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    except OSError:  # containers may forbid it; then show nothing rather than too much
        _mount("tmpfs", "/proc", "tmpfs", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    try:
        _mount(
            "devpts",
            "/dev/pts",
            "devpts",
            _NOSUID | _NOEXEC,
            f"ptmxmode=0666,max={_TERMINALS}",
        )
    except OSError:  # as above
        _mount("tmpfs", "/dev/pts", "tmpfs", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    # Mapping this device gives shared memory; see `filter_program`.
    _mount("/dev/null", "/dev/zero", None, _BIND)
    os.chdir(WORK)


def drop_privileges() -> None:
    """Drop, for good, every capability that the new user namespace granted."""
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    for capability in range(64):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last that this kernel knows
    header = struct.pack(
        "Ii", 0x20080522, 0
    )  # _LINUX_CAPABILITY_VERSION_3, this process
    _check(_libc.capset(header, bytes(24)), "capset")


def hide_memory() -> None:
    """Hide this process's memory from others of the same user, and die with the parent."""
    _check(_libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
    die_with_parent()


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, however it does."""
    if sys.platform == "linux":
        _check(_libc.prctl(_SET_PDEATHSIG, 9, 0, 0, 0), "pdeathsig")


# Where namespaces are forbidden, as in most containers: root gives an account to each submission.
def make_own_folder(folder: str, account: int) -> None:
    """Make an empty folder for an account, and move the previous one out of its reach."""
    if os.path.exists(folder):
        os.rename(folder, f"{folder}-{os.getpid()}")
    os.mkdir(folder, 0o700)
    os.chown(folder, account, account)


def guard_account() -> None:
    """Adopt orphans, and outlive this process group and the parent to end the account."""
    os.setsid()
    _check(_libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
    _check(_libc.prctl(_SET_PDEATHSIG, _SIGTERM, 0, 0, 0), "pdeathsig")


def become_account(account: int) -> None:
    """Become an account for good, without root's rights, and with local sockets only."""
    os.setgroups([])
    os.setresgid(account, account, account)
    os.setresuid(account, account, account)
    drop_privileges()
    hide_memory()
    filter_system_calls(families=_FAMILIES[:1])


def end_account(account: int) -> None:
    """Kill every process of an account, wherever it hides."""
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(account, account, account)
            os.kill(-1, _SIGKILL)  # spares the process that calls it
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def limit_resources(
    *, memory: int, cpu_seconds: int, file_bytes: int, processes: int, files: int = 256
) -> None:
    """Set the limits that every process of a submission inherits; none can raise them."""
    limits = {
        "AS": memory,
        "CPU": cpu_seconds,
        "FSIZE": file_bytes,
        "NPROC": processes,
        "NOFILE": files,
        "CORE": 0,
        "MSGQUEUE": 0,
        "MEMLOCK": 1 << 20,
    }
    for name, value in limits.items():
        limit = getattr(resource, f"RLIMIT_{name}", None)
        if limit is None:  # macOS has fewer, and no sandbox
            continue
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with (
            contextlib.suppress(ValueError)
            if sys.platform == "darwin"
            else nullcontext()
        ):
            # At the hard limit on time a process is killed, as if from outside.
            resource.setrlimit(limit, (value - (name == "CPU"), value))


# System calls that no exercise needs: into other namespaces, file systems and processes, and
# to memory that no limit above counts. Numbers: the kernel's syscall tables, x86_64 and aarch64.
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}
_DENIED |= {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
}
_DENIED |= {"pivot_root": (155, 41), "keyctl": (250, 219), "add_key": (248, 217)}
_DENIED |= {"request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241)}
_DENIED |= {"userfaultfd": (323, 282), "memfd_create": (319, 279), "shmget": (29, 194)}
_DENIED |= {
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "kcmp": (312, 272),
}
_DENIED |= {
    "open_by_handle_at": (304, 265),
    "vmsplice": (278, 75),
    "io_uring_setup": (425, 425),
}
_DENIED |= {"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430)}
_DENIED |= {
    "fsmount": (432, 432),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
}
_DENIED |= {"memfd_secret": (447, 447)}

# Denied with some arguments: clone, mmap, socket, socketpair, setsockopt.
_SOME = ((56, 220), (9, 222), (41, 198), (53, 199), (54, 208))

_CLONE3, _EPERM, _ENOSYS = 435, 1, 38

# <bits/socket.h>: local, IPv4, IPv6. Others, such as AF_VSOCK, are in no network namespace, or
# hold memory that is not counted.
_FAMILIES = (1, 2, 10)

# <sys/mman.h>
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20

# <asm/socket.h>; memory in the buffers of sockets is counted by their number
_SO_SNDBUF = 7

# <linux/bpf_common.h>, <linux/seccomp.h>
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def filter_program(machine: str, families: tuple[int, ...] = _FAMILIES) -> bytes:
    """Build the seccomp filter for a machine, as an array of `struct sock_filter`.

    Besides whole system calls it denies shared memory without a file, which a process may hold
    uncounted: the pages stay when `madvise` takes them out of its view.
    Only sockets of these families are allowed.

    Raises:
        OSError: the machine is neither x86_64 nor aarch64.
    """
    if machine not in _AUDIT:
        raise OSError(f"no list of system calls for {machine}")
    own = list(_AUDIT).index(machine)
    clone, mmap, one_socket, two_sockets, option = (numbers[own] for numbers in _SOME)
    program = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch
        (_IF_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),  # 32-bit entry points have other numbers
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
        (_IF_AT_LEAST, 0, 1, 0x40000000),  # x32
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        # clone3 hides its flags behind a pointer; without it the C library uses clone.
        (_IF_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    deny, allow = (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ALLOW)
    for numbers in _DENIED.values():
        program += [(_IF_EQUAL, 0, 1, numbers[own]), deny]
    # Arguments lie from 16 on, eight bytes each; only their low halves count here.
    program += [
        (_IF_EQUAL, 0, 4, clone),
        (_LOAD, 0, 0, 16),
        (_IF_SET, 0, 1, _CLONE_NEWUSER),
    ]
    program += [deny, allow]
    program += [
        (_IF_EQUAL, 0, 5, mmap),
        (_LOAD, 0, 0, 40),
        (_IF_SET, 0, 2, _MAP_ANONYMOUS),
    ]
    program += [(_IF_SET, 0, 1, _MAP_SHARED), deny, allow]
    program += [
        (_IF_EQUAL, 0, 4, option),
        (_LOAD, 0, 0, 32),
        (_IF_EQUAL, 0, 1, _SO_SNDBUF),
    ]
    program += [deny, allow]
    count = len(families)
    program += [(_IF_EQUAL, 1, 0, one_socket), (_IF_EQUAL, 0, count + 3, two_sockets)]
    program += [(_LOAD, 0, 0, 16)]
    program += [(_IF_EQUAL, count - i, 0, family) for i, family in enumerate(families)]
    program += [deny, allow, allow]
    return b"".join(struct.pack("HBBI", *line) for line in program)


def filter_system_calls(*, families: tuple[int, ...] = _FAMILIES) -> None:
    """Deny this process and its children the system calls that `filter_program` lists."""
    program = filter_program(platform.machine(), families)
    array = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(array))
    _check(_libc.prctl(_SET_SECCOMP, 2, header, 0, 0), "seccomp")
