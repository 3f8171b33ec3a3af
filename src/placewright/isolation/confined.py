"""Confines this process permanently: files, system calls, network, memory and CPU time.

Rules for the files of a process: Landlock, of Linux 6.2 and later.

Constants and structures are those of include/uapi/linux/landlock.h; the numbers of the calls are
equal on all architectures.

Filter of system calls: seccomp, through the system's libseccomp.

The filter refuses sockets, new processes, signals to other processes, memory that no limit counts,
and administration. A refused call fails with "operation not permitted", as for a user without the
right, so that libraries can continue.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from placewright.errors import InputError
from placewright.io.machine import memory_bytes

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # flags of `unshare`
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/opt", "/run/opengl-driver")
_READ_ONLY_DEVICE = "/dev/zero"  # no limit counts a shared mapping of it that can be written
_DEVICES = ("null", "full", "random", "urandom")
_ACCELERATORS = ("nvidia*", "dri/*", "accel/*", "kfd")
_OPEN_FILES = 4096
_CPU_GRACE_SECONDS = 5  # between SIGXCPU and SIGKILL


@dataclass(frozen=True)
class Limits:
    """Limits of an isolated process."""

    memory: float  # bytes of allocated memory; mapped files do not count
    cpu: float  # CPU seconds of all threads together
    files: float  # largest size of a file in bytes

    @classmethod
    def usual(cls) -> Limits:
        """The default: three quarters of the memory, one hour per core, files of 8 GiB."""
        return cls(0.75 * memory_bytes(), 3600.0 * (os.cpu_count() or 1), float(8 << 30))

    def apply(self) -> None:
        """Limit this process permanently.

        Raises:
            OSError, ValueError: the system refuses.
        """
        _lower(resource.RLIMIT_DATA, int(self.memory))
        seconds = max(1, int(self.cpu))  # SIGXCPU follows, then SIGKILL
        _lower(resource.RLIMIT_CPU, seconds, seconds + _CPU_GRACE_SECONDS)
        _lower(resource.RLIMIT_FSIZE, int(self.files))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it; the parent tells it
        _lower(resource.RLIMIT_NOFILE, _OPEN_FILES)
        _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, soft: int, hard: int | None = None) -> None:
    """Set both limits unless the present limits are lower."""
    _, present = resource.getrlimit(which)
    most = soft if hard is None else hard
    limit = most if present == resource.RLIM_INFINITY else min(most, present)
    resource.setrlimit(which, (min(soft, limit), limit))


def require_isolation() -> None:
    """Check that this system can confine a process of an ordinary user.

    Raises:
        InputError: it cannot; the message names the missing parts.
    """
    if sys.platform != "linux":
        raise InputError(f"argument `isolate` needs Linux, this is {sys.platform}; leave it out")
    missing = [reason for reason in (lacks_file_rules(), lacks_call_filter()) if reason]
    if missing:
        raise InputError(f"argument `isolate` is not possible here: {'; '.join(missing)}")


def confine(
    readable: Sequence[Path], writable: Sequence[Path], limits: Limits, parent: int
) -> None:
    """Restrict this process permanently to the named files and limits.

    Call it before a second thread starts, which would not be confined.

    Args:
        readable: files and folders beside Python, its packages and the system's libraries.
        writable: folders.
        limits: of memory, CPU time and files.
        parent: number of the process that this one ends with.

    Raises:
        OSError, ValueError: the system refuses a part; then nothing foreign may be read.
    """
    end_with_parent(parent)
    with contextlib.suppress(OSError):  # not permitted to all users; the filter of calls suffices
        _leave_network()
    drop_capabilities()
    process_control(PR_SET_NO_NEW_PRIVS, 1)
    limits.apply()
    system = [Path(name) for name in (*_SYSTEM, _READ_ONLY_DEVICE)]
    restrict_files([*_python_folders(), *system, *readable], writable, _devices())
    filter_calls()


def _leave_network() -> None:
    """Enter an empty network namespace; the user ID stays."""
    user, group = os.getuid(), os.getgid()
    unshare(_NEW_USER | _NEW_NETWORK)
    for name, text in (
        ("uid_map", f"{user} {user} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _python_folders() -> list[Path]:
    """Folders of the interpreter, its packages and libraries of the environment."""
    added = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    named = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *added]
    return [Path(name).resolve() for name in dict.fromkeys(named) if name and name != "/"]


def _devices() -> list[Path]:
    root = Path("/dev")
    fixed = [root / name for name in _DEVICES]
    return fixed + [path for pattern in _ACCELERATORS for path in sorted(root.glob(pattern))]


_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_LEAST_VERSION = 3  # earlier versions do not stop the truncation of files
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE, _DEVICE_CONTROL = (
    1 << at for at in (1, 2, 3, 14, 15)
)
_ALL_OF_FILES = {3: (1 << 15) - 1, 5: (1 << 16) - 1}  # version -> all rights that it knows
_TCP_SINCE, _TCP = 4, 0b11  # bind and connect of TCP
_SCOPES_SINCE, _SCOPES = 6, 0b11  # abstract sockets and signals
_EXECUTE, _MAKE_SPECIAL = 1 << 0, (1 << 6) | (1 << 9) | (1 << 10) | (1 << 11) | (1 << 12)
_READ = _READ_FILE | _READ_FOLDER
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version() -> int:
    """Version of the kernel's Landlock; 0 if it is missing or turned off."""
    try:
        return kernel_call(
            _CREATE, ctypes.c_void_p(None), ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)
        )
    except OSError:
        return 0


def lacks_file_rules() -> str | None:
    """The reason why files cannot be restricted here; None if they can."""
    if landlock_version() < _LEAST_VERSION:
        return "the kernel has no Landlock of version 3 (Linux 6.2), which restricts files"
    return None


def restrict_files(
    readable: Iterable[Path], writable: Iterable[Path], devices: Iterable[Path]
) -> None:
    """Restrict the files of this thread and all that it starts; `no_new_privs` must be set.

    Args:
        readable: files and whole folders; missing ones are skipped.
        writable: folders in which files may also be created and removed, but no links, pipes or
            devices.
        devices: files that may be read, written and controlled.

    Raises:
        OSError: the kernel refuses.
    """
    version = landlock_version()
    handled = _ALL_OF_FILES[5 if version >= 5 else 3]
    rules = _Ruleset(
        handled,
        _TCP if version >= _TCP_SINCE else 0,
        _SCOPES if version >= _SCOPES_SINCE else 0,
    )
    size = 8 if version < _TCP_SINCE else 16 if version < _SCOPES_SINCE else 24
    ruleset = kernel_call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in readable:
            _allow(ruleset, path, _READ & handled)
        for path in writable:
            _allow(ruleset, path, handled & ~(_EXECUTE | _MAKE_SPECIAL))
        for path in devices:
            _allow(ruleset, path, (_READ | _WRITE_FILE | _TRUNCATE | _DEVICE_CONTROL) & handled)
        kernel_call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
            return
        raise
    try:
        allowed = rights if path.is_dir() else rights & _OF_A_FILE
        rule = _PathBeneath(allowed, handle)
        kernel_call(
            _ADD,
            ctypes.c_int(ruleset),
            ctypes.c_int(_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(handle)


PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITIES_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 of linux/capability.h


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def kernel_call(number: int, *arguments: object) -> int:
    """Make the system call with this number.

    Raises:
        OSError: it failed.
    """
    return _checked(_library().syscall(ctypes.c_long(number), *arguments))


def process_control(option: int, value: int) -> None:
    """Call `prctl` with one value.

    Raises:
        OSError: it failed.
    """
    zeros = [ctypes.c_ulong(0)] * 3
    _checked(_library().prctl(ctypes.c_int(option), ctypes.c_ulong(value), *zeros))


def unshare(flags: int) -> None:
    """Move this process into new namespaces.

    Raises:
        OSError: the system does not permit it.
    """
    _checked(_library().unshare(ctypes.c_int(flags)))


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def drop_capabilities() -> None:
    """Give up all privileges of the superuser and of a namespace's owner.

    Raises:
        OSError: the system refuses.
    """
    header = _Header(_CAPABILITIES_VERSION, 0)
    none = (_Capabilities * 2)()
    _checked(_library().capset(ctypes.byref(header), ctypes.byref(none)))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def end_with_parent(parent: int | None = None) -> None:
    """Let Linux kill this process when its parent ends.

    A killed parent cannot end its workers, which would wait for work forever.

    Args:
        parent: number of the parent process; None takes that of `multiprocessing`.
    """
    if sys.platform != "linux":
        return
    import multiprocessing

    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is None:
        known = multiprocessing.parent_process()
        parent = os.getppid() if known is None else known.pid
    if os.getppid() != parent:  # the parent has ended before the call
        os._exit(1)


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
