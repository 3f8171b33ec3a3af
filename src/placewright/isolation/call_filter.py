"""Filter of system calls: seccomp, through the system's libseccomp.

The filter refuses sockets, new processes, signals to other processes, memory that no limit counts,
and administration. A refused call fails with "operation not permitted", as for a user without the
right, so that libraries can continue.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
from functools import cache

_ALLOW, _FAIL = 0x7FFF0000, 0x00050000  # seccomp.h
_IS_NOT, _MASKED_IS = 1, 7
_CLONE_THREAD = 0x00010000
_MAP_SHARED_ANONYMOUS = 0x21
_INSERT_INPUT, _CONSOLE_CONTROL = 0x5412, 0x541C  # TIOCSTI, TIOCLINUX

_NETWORK = ("socket", "connect", "bind", "listen", "accept", "accept4", "socketcall")
_PROCESSES = ("execve", "execveat", "fork", "vfork", "setsid", "setpgid")
_OTHERS = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "kcmp", "migrate_pages", "move_pages", "tkill",
)  # fmt: skip
_UNCOUNTED = ("memfd_create", "memfd_secret", "shmget", "shmat", "msgget", "mq_open")
_KERNEL = (
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open",
    "userfaultfd", "add_key", "request_key", "keyctl", "unshare", "setns", "mount", "umount",
    "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsmount", "fsconfig",
    "fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at", "init_module",
    "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff",
    "sethostname", "setdomainname", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime",
    "acct", "quotactl", "syslog", "personality", "fanotify_init", "ioperm", "iopl",
)  # fmt: skip


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@cache
def _libseccomp() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    return library


def lacks_call_filter() -> str | None:
    """The reason why calls cannot be filtered here; None if they can."""
    if _libseccomp() is None:
        return "libseccomp.so.2, which blocks network and processes, is not installed"
    try:
        with open("/proc/sys/kernel/seccomp/actions_avail", encoding="ascii") as stream:
            return None if "errno" in stream.read() else "the kernel has no seccomp filters"
    except OSError:
        return "the kernel has no seccomp filters"


class _Filter:
    """A filter that allows all calls except those that are added."""

    def __init__(self) -> None:
        library = _libseccomp()
        if library is None:
            raise OSError(errno.ENOSYS, "no libseccomp")
        self._library = library
        self._context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ALLOW)))

    def refuse(self, call: str, *tests: _Comparison, with_error: int = errno.EPERM) -> None:
        """Let a call fail if all tests hold; calls that this kernel lacks are skipped."""
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number == -1:
            return
        result = self._library.seccomp_rule_add_array(
            self._context,
            ctypes.c_uint32(_FAIL | with_error),
            ctypes.c_int(number),
            ctypes.c_uint(len(tests)),
            (_Comparison * len(tests))(*tests),
        )
        if result != 0:
            raise OSError(-result, f"{call}: {os.strerror(-result)}")

    def load(self) -> None:
        """Activate the filter for this thread and all that it starts, permanently."""
        result = self._library.seccomp_load(self._context)
        self._library.seccomp_release(self._context)
        if result != 0:
            raise OSError(-result, os.strerror(-result))


def filter_calls() -> None:
    """Forbid network and new processes for this thread and all that it starts, permanently.

    Raises:
        OSError: the kernel refuses, or libseccomp is missing.
    """
    calls = _Filter()
    for call in (*_NETWORK, *_PROCESSES, *_OTHERS, *_UNCOUNTED, *_KERNEL):
        calls.refuse(call)
    # Threads may start. The arguments of `clone3` lie in memory that a filter cannot see; without
    # it, the C library uses `clone`.
    calls.refuse("clone", _Comparison(0, _MASKED_IS, _CLONE_THREAD, 0))
    calls.refuse("clone3", with_error=errno.ENOSYS)
    own = os.getpid()
    for call in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        calls.refuse(call, _Comparison(0, _IS_NOT, own, 0))
    calls.refuse("prlimit64", _Comparison(0, _IS_NOT, 0, 0))
    calls.refuse("mmap", _Comparison(3, _MASKED_IS, _MAP_SHARED_ANONYMOUS, _MAP_SHARED_ANONYMOUS))
    for request in (_INSERT_INPUT, _CONSOLE_CONTROL):
        calls.refuse("ioctl", _Comparison(1, _MASKED_IS, 0xFFFFFFFF, request))
    calls.load()
