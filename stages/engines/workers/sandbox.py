"""Confines a worker that reads untrusted input: seccomp rejects system calls, Landlock rejects files (Linux).

`confine` applies the restrictions that the kernel offers, and `lacking` names the missing ones. A process cannot remove
them again, and its later threads inherit them. A rejected call fails with EPERM, as if an administrator had
forbidden it.
System calls newer than this list fail with ENOSYS, as on an old kernel, so libc uses older ones.

The filter names the rejected calls and allows the rest. A list of the calls that Python and its libraries need would
depend on their versions and on libc. docs/explanation/security.md describes the result.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_PROJECT = os.path.realpath(f"{__file__}/../../../..")
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
# Names and numbers on x86-64 and on aarch64, "-" where aarch64 has no such call. Source: Linux, asm/unistd_64.h and
# asm-generic/unistd.h. In this order: other processes, network, memory shared by name, keys, kernel, files.
_REFUSED = """
fork 57 - vfork 58 - execve 59 221 execveat 322 281 ptrace 101 117 process_vm_readv 310 270 process_vm_writev 311 271
kcmp 312 272 tkill 200 130 rt_sigqueueinfo 129 138 rt_tgsigqueueinfo 297 240 setpriority 141 140 ioprio_set 251 30
sched_setparam 142 118 sched_setscheduler 144 119 sched_setattr 314 274 sched_setaffinity 203 122
migrate_pages 256 238 move_pages 279 239
socket 41 198 socketpair 53 199
shmget 29 194 shmat 30 196 shmctl 31 195 semget 64 190 semop 65 193 semtimedop 220 192 semctl 66 191 msgget 68 186
msgsnd 69 189 msgrcv 70 188 msgctl 71 187 mq_open 240 180 mq_unlink 241 181
add_key 248 217 request_key 249 218 keyctl 250 219
setns 308 268 unshare 272 97 chroot 161 51 pivot_root 155 41 mount 165 40 umount2 166 39 bpf 321 280
perf_event_open 298 241 userfaultfd 323 282 fanotify_init 300 262 swapon 167 224 swapoff 168 225 init_module 175 105
finit_module 313 273 delete_module 176 106 kexec_load 246 104 kexec_file_load 320 294 reboot 169 142 acct 163 89
quotactl 179 60 syslog 103 116 sethostname 170 161 setdomainname 171 162 settimeofday 164 170 clock_settime 227 112
clock_adjtime 305 266 adjtimex 159 171 iopl 172 - ioperm 173 - personality 135 92
creat 85 - truncate 76 45 rename 82 - renameat 264 38 renameat2 316 276 link 86 - linkat 265 37 symlink 88 -
symlinkat 266 36 unlink 87 - unlinkat 263 35 mkdir 83 - mkdirat 258 34 rmdir 84 - mknod 133 - mknodat 259 33 chmod 90 -
fchmod 91 52 fchmodat 268 53 chown 92 - fchown 93 55 lchown 94 - fchownat 260 54 utime 132 - utimes 235 -
futimesat 261 - utimensat 280 88 setxattr 188 5 lsetxattr 189 6 fsetxattr 190 7 removexattr 197 14 lremovexattr 198 15
fremovexattr 199 16 open_by_handle_at 304 265 name_to_handle_at 303 264
"""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the numbers, and AUDIT_ARCH_*: a call through another table of numbers (32-bit) ends the process."""
_FIRST_NEW = 424
"""From this number (Linux 5.1) on all processors share the numbers, including clone3, openat2, io_uring and pidfds."""
_NEW_BUT_HARMLESS = (436, 439, 441, 449)
"""close_range, faccessat2, epoll_pwait2, futex_waitv."""
_LOAD, _EQUAL, _AT_LEAST, _SHARES_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_CREATE_RULES, _ADD_RULE, _RESTRICT = 444, 445, 446
_ALL_OF_FILES, _READ_FILE, _READ_FOLDER = (1 << 13) - 1, 1 << 2, 1 << 3
"""LANDLOCK_ACCESS_FS_* of its first version."""
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/dev/null", "/dev/zero", "/dev/urandom"),
)

_libc = ctypes.CDLL(None, use_errno=True)


def lacking() -> list[str]:
    """Says in words what this kernel or processor cannot reject; empty where everything is confined."""
    has = {
        "network, new processes, writing (seccomp)": _has_seccomp(),
        "reading files (Landlock, Linux 5.13)": _has_landlock(),
    }
    return [what for what, is_there in has.items() if not is_there]


def confine(code: Iterable[str]) -> None:
    """Rejects network, other processes, all writing, and reading outside of libraries, `stages/` and paths `code`.

    OSError where the kernel offers a restriction and then fails to apply it.
    """
    if sys.platform != "linux":
        return
    # Without this promise only root may restrict a process.
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    # Files first: the filter of calls rejects all three of Landlock's (444 to 446).
    if _has_landlock():
        _restrict_files(code)
    if _has_seccomp():
        _restrict_calls()


def _has_seccomp() -> bool:
    """With filters the kernel reports a null pointer as a bad address, without them as an invalid argument."""
    if sys.platform != "linux" or os.uname().machine not in _ARCHITECTURES:
        return False
    return _libc.prctl(_SET_SECCOMP, _FILTER, None, 0, 0) == -1 and ctypes.get_errno() == errno.EFAULT


def _has_landlock() -> bool:
    return sys.platform == "linux" and _libc.syscall(_CREATE_RULES, None, 0, 1) > 0


def _restrict_files(code: Iterable[str]) -> None:
    handled = ctypes.c_uint64(_ALL_OF_FILES)
    rules = _checked(_libc.syscall(_CREATE_RULES, ctypes.byref(handled), 8, 0))
    readable = dict.fromkeys(_readable(code), _READ_FILE | _READ_FOLDER)
    # Python lists the folders that it imports from.
    readable[_PROJECT] = _READ_FOLDER
    for path, rights in readable.items():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            # Not on this machine: few have /nix/store.
            continue
        # The kernel rejects a rule that would allow listing a file.
        rule = struct.pack("<Qi", rights if os.path.isdir(path) else rights & ~_READ_FOLDER, place)
        _checked(_libc.syscall(_ADD_RULE, rules, 1, rule, 0))
        os.close(place)
    _checked(_libc.syscall(_RESTRICT, rules, 0))
    os.close(rules)


def _readable(code: Iterable[str]) -> set[str]:
    """Folders and files. Not the whole project, which holds data, nor a whole prefix, which may be a home folder."""
    folders = {os.path.realpath(path) for path in sys.path} - {_PROJECT}
    libraries = {f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")}
    loader = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return {*folders, *libraries, *loader, *code, *_SYSTEM, f"{_PROJECT}/stages"}


def _restrict_calls() -> None:
    packed = [struct.pack("<HBBI", *one) for one in call_filter(os.uname().machine)]

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    program = Program(len(packed), b"".join(packed))
    _checked(_libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0))


def call_filter(machine: str) -> Iterator[tuple[int, int, int, int]]:
    """The filter of system calls in BPF: operation, instructions to skip if true and if false, value."""
    column, architecture = _ARCHITECTURES[machine]
    refuse, allow = (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    # Offsets in struct seccomp_data: the number at 0, the architecture at 4, arguments of eight bytes each from 16.
    yield from ((_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0))
    # Before the test for new calls, which would reject these as well.
    for number in _NEW_BUT_HARMLESS:
        yield from ((_EQUAL, 0, 1, number), allow)
    yield from ((_AT_LEAST, 0, 1, _FIRST_NEW), (_RETURN, 0, 0, _ERROR | errno.ENOSYS))
    for number in _REFUSED.split()[1 + column :: 3]:
        if number != "-":
            yield from ((_EQUAL, 0, 1, int(number)), refuse)
    for _, *numbers, argument, operation, is_refused, values in _by_argument():
        if numbers[column] is None:
            continue
        yield from ((_EQUAL, 0, 2 + 2 * len(values), numbers[column]), (_LOAD, 0, 0, 16 + 8 * argument))
        for value in values:
            yield from ((operation, not is_refused, is_refused, value), refuse)
        yield allow
    yield allow


def _by_argument() -> tuple[tuple[Any, ...], ...]:
    """Calls that depend on one argument: name, numbers, position, test, whether to reject if it is true, values.

    The kernel reads the lower 32 bits of these arguments, and so does the filter.
    """
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    return (
        ("open", 2, None, 1, _SHARES_BITS, True, (writes,)),
        ("openat", 257, 56, 2, _SHARES_BITS, True, (writes,)),
        ("clone", 56, 220, 0, _SHARES_BITS, False, (0x10000,)),  # CLONE_THREAD
        # Signals to this process alone: Python's and those of a library that aborts.
        ("kill", 62, 129, 0, _EQUAL, False, (os.getpid(),)),
        ("tgkill", 234, 131, 0, _EQUAL, False, (os.getpid(),)),
        ("prlimit64", 302, 261, 0, _EQUAL, False, (0,)),  # 0 is the process itself
        ("prctl", 157, 167, 0, _EQUAL, True, (1,)),  # PR_SET_PDEATHSIG, to outlive the parent
        ("ioctl", 16, 29, 1, _EQUAL, True, (0x5412, 0x541C)),  # TIOCSTI, TIOCLINUX: to type into a terminal
        # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals to others. F_SETPIPE_SZ: a pipe's buffer is outside RLIMIT_AS.
        ("fcntl", 72, 25, 1, _EQUAL, True, (8, 10, 15, 1031)),
    )


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"a worker cannot be confined: {os.strerror(ctypes.get_errno())}")
    return result
