"""Isolate a process by namespaces, limits and seccomp, which it cannot undo.

This runs inside the outer sandbox (bubblewrap), which already hides the machine. It makes a
second sandbox around each submission, so that it can reach neither the next submission nor the
process that starts them. It uses only the standard library, because a student's files must
replace nothing here, and it runs before anything else is imported.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)

# <linux/sched.h>: mount, hostname, IPC, user, process and network namespaces
_CLONE_NEWUSER = 0x10000000
_NAMESPACES = (
    0x00020000 | 0x04000000 | 0x08000000 | _CLONE_NEWUSER | 0x20000000 | 0x40000000
)

# <sys/mount.h>
_RDONLY = 1
_NOSUID = 2
_NODEV = 4
_NOEXEC = 8
_BIND = 0x1000
_REC = 0x4000
_PRIVATE = 0x40000

# <linux/prctl.h>
_SET_PDEATHSIG = 1
_SET_DUMPABLE = 4
_SET_SECCOMP = 22
_CAPBSET_DROP = 24
_SET_CHILD_SUBREAPER = 36
_SET_NO_NEW_PRIVS = 38

_TERMINALS = 8
"""Pseudo-terminals of a submission: `!command` needs one. A machine has some thousands in all."""

_ACCOUNTS = 4_000
"""How many accounts submissions may have; as many ids below them belong to nobody."""

WORK = "/submission"
"""The only folder that a submission can write to; in memory, and gone with it. It hides the
machine's own folder of this name, so nothing needed inside may lie there."""


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _set(option: int, value: int, more: Any = 0) -> None:
    _check(_libc.prctl(option, value, more, 0, 0), f"prctl {option}")


def enter_namespaces() -> None:
    """Enter new namespaces, which processes started from now on share."""
    uid = os.getuid()
    gid = os.getgid()
    # The files below belong to this user only while the memory is not hidden.
    _set(_SET_DUMPABLE, 1)
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
    device = _NOSUID | _NODEV
    closed = device | _NOEXEC
    _mount("none", "/", None, _REC | _PRIVATE)
    size = f"size={disk_bytes}"
    _mount("tmpfs", WORK, "tmpfs", device, f"{size},nr_inodes=5000,mode=0700")
    _mount("tmpfs", "/dev/shm", "tmpfs", device, f"{size},nr_inodes=500")
    terminals = f"ptmxmode=0666,max={_TERMINALS}"
    for kind, target, flags, data in (
        ("proc", "/proc", closed, ""),
        ("devpts", "/dev/pts", _NOSUID | _NOEXEC, terminals),
    ):
        try:
            _mount(kind, target, kind, flags, data)
        except OSError:
            # Containers may forbid it; then show nothing rather than too much.
            _mount("tmpfs", target, "tmpfs", _RDONLY | closed)
    # Mapping this device gives shared memory; see `filter_program`.
    _mount("/dev/null", "/dev/zero", None, _BIND)
    os.chdir(WORK)


def drop_privileges() -> None:
    """Drop, for good, every capability that the new user namespace granted."""
    _set(_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last that this kernel knows
    # _LINUX_CAPABILITY_VERSION_3, and 0 for this process
    header = struct.pack("Ii", 0x20080522, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def hide_memory() -> None:
    """Hide this process's memory from others of the same user, and die with the parent."""
    _set(_SET_DUMPABLE, 0)
    die_with_parent()


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, however it does."""
    if sys.platform == "linux":
        _set(_SET_PDEATHSIG, signal.SIGKILL)


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
    _set(_SET_CHILD_SUBREAPER, 1)
    _set(_SET_PDEATHSIG, signal.SIGTERM)


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
            # A process may stop or kill those whose real or saved id is its own: with the account's
            # ids a submission could stop this one first.
            os.setresuid(account - _ACCOUNTS, account, 0)
            os.kill(-1, signal.SIGKILL)  # spares the process that calls it
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def limit_resources(of_submission: dict[str, int]) -> None:
    """Set the limits that every process of a submission inherits; none can raise them."""
    limits = {
        "AS": of_submission["memory"],
        "CPU": of_submission["cpu_seconds"],
        "FSIZE": of_submission["disk_bytes"],
        "NPROC": of_submission["processes"],
        "NOFILE": 256,
        "CORE": 0,
        "MSGQUEUE": 0,
        "SIGPENDING": 1_000,
        "MEMLOCK": 1 << 20,
    }
    for name, value in limits.items():
        limit = getattr(resource, f"RLIMIT_{name}", None)
        if limit is None:  # macOS has fewer, and no sandbox
            continue
        hard = resource.getrlimit(limit)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        # At the hard limit on time a process is killed, as if from outside; a second before, it
        # gets a signal of its own.
        soft = value - 1 if name == "CPU" else value
        try:
            resource.setrlimit(limit, (soft, value))
        except ValueError:
            if sys.platform != "darwin":  # which lists limits that it does not keep
                raise


_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""<linux/audit.h>: how a filter knows a machine, in the order of the columns below."""

# System calls that no exercise needs: into other namespaces, file systems and processes, to
# memory that no limit above counts, and those that look into the machine's cache of files or change
# it, through which one kernel could tell the next a hidden input. Numbers: the kernel's syscall
# tables, x86_64 and aarch64.
_DENIED = """
ptrace            101 117
process_vm_readv  310 270
process_vm_writev 311 271
unshare           272  97
setns             308 268
mount             165  40
umount2           166  39
pivot_root        155  41
keyctl            250 219
add_key           248 217
request_key       249 218
bpf               321 280
perf_event_open   298 241
userfaultfd       323 282
memfd_create      319 279
shmget             29 194
msgget             68 186
semget             64 190
mq_open           240 180
io_setup          206   0
kcmp              312 272
open_by_handle_at 304 265
vmsplice          278  75
io_uring_setup    425 425
open_tree         428 428
move_mount        429 429
fsopen            430 430
fsmount           432 432
pidfd_getfd       438 438
mount_setattr     442 442
memfd_secret      447 447
fadvise64         221 223
readahead         187 213
mincore            27 232
preadv2           327 286
cachestat         451 451
process_madvise   440 440
"""

# Denied with some arguments, or hidden.
_FILTERED = """
clone              56 220
mmap                9 222
socket             41 198
socketpair         53 199
setsockopt         54 208
fcntl              72  25
madvise            28 233
clone3            435 435
"""

_EPERM = 1
_ENOSYS = 38

# <bits/socket.h>: local, IPv4, IPv6. Others, such as AF_VSOCK, are in no network namespace, or
# hold memory that is not counted.
_FAMILIES = (1, 2, 10)

# <sys/mman.h>
_MAP_SHARED = 0x01
_MAP_ANONYMOUS = 0x20

# <asm/socket.h>; memory in the buffers of sockets is counted by their number
_SO_SNDBUF = 7

# <asm-generic/fcntl.h>: locks on parts of a file, of which a process may hold millions
_SET_LOCKS = (6, 7, 37, 38)

# <asm-generic/mman-common.h>: to take pages of one's own files out of the machine's cache
_PAGE_OUT = (20, 21)

# <linux/bpf_common.h>, <linux/seccomp.h>
_LOAD = 0x20
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_IF_SET = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_KILL = 0x80000000


def system_calls(table: str, machine: str) -> dict[str, int]:
    """Read a machine's column of a table of system calls.

    Examples:
        >>> system_calls("mmap 9 222", "aarch64")
        {'mmap': 222}
    """
    column = 1 + list(_MACHINES).index(machine)
    lines = [line.split() for line in table.strip().splitlines()]
    return {line[0]: int(line[column]) for line in lines}


def filter_program(machine: str, families: tuple[int, ...] = _FAMILIES) -> bytes:
    """Build the seccomp filter for a machine, as an array of `struct sock_filter`.

    Besides whole system calls it denies shared memory without a file, which a process may hold
    uncounted: the pages stay when `madvise` takes them out of its view.
    Only sockets of these families are allowed.

    Raises:
        OSError: the machine is neither x86_64 nor aarch64.
    """
    if machine not in _MACHINES:
        raise OSError(f"no list of system calls for {machine}")
    calls = system_calls(_FILTERED, machine)
    deny = (_RETURN, 0, 0, _ERRNO | _EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    # A jump holds how many instructions it leaves out if its test holds, and if it does not.
    program = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch
        (_IF_EQUAL, 1, 0, _MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),  # 32-bit entry points have other numbers
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
        (_IF_AT_LEAST, 0, 1, 0x40000000),  # x32
        deny,
        # clone3 hides its flags behind a pointer; without it the C library uses clone.
        (_IF_EQUAL, 0, 1, calls["clone3"]),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    for number in system_calls(_DENIED, machine).values():
        program += [(_IF_EQUAL, 0, 1, number), deny]
    # Arguments lie from 16 on, eight bytes each; only their low halves count here.
    for name, argument, test, values, found, otherwise in (
        ("clone", 0, _IF_SET, (_CLONE_NEWUSER,), deny, allow),
        ("setsockopt", 2, _IF_EQUAL, (_SO_SNDBUF,), deny, allow),
        ("fcntl", 1, _IF_EQUAL, _SET_LOCKS, deny, allow),
        ("madvise", 2, _IF_EQUAL, _PAGE_OUT, deny, allow),
        ("socket", 0, _IF_EQUAL, families, allow, deny),
        ("socketpair", 0, _IF_EQUAL, families, allow, deny),
    ):
        left = len(values)
        program.append((_IF_EQUAL, 0, left + 3, calls[name]))
        program.append((_LOAD, 0, 0, 16 + 8 * argument))
        for value in values:
            program.append((test, left, 0, value))
            left -= 1
        program += [otherwise, found]
    program += [
        (_IF_EQUAL, 0, 4, calls["mmap"]),
        (_LOAD, 0, 0, 40),
        (_IF_SET, 0, 2, _MAP_ANONYMOUS),
        (_IF_SET, 0, 1, _MAP_SHARED),
        deny,
        allow,
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def filter_system_calls(*, families: tuple[int, ...] = _FAMILIES) -> None:
    """Deny this process and its children the system calls that `filter_program` lists."""
    program = filter_program(platform.machine(), families)
    array = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(array))
    _set(_SET_SECCOMP, 2, header)
