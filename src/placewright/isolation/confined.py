"""Confines this process permanently: files, system calls, network, memory and CPU time."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placewright.errors import InputError
from placewright.isolation.call_filter import filter_calls, lacks_call_filter
from placewright.isolation.file_rules import lacks_file_rules, restrict_files
from placewright.isolation.kernel_calls import (
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    drop_capabilities,
    process_control,
    unshare,
)

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # flags of `unshare`
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/opt", "/run/opengl-driver")
_DEVICES = ("null", "zero", "full", "random", "urandom")
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
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(0.75 * memory, 3600.0 * (os.cpu_count() or 1), float(8 << 30))

    def apply(self) -> None:
        """Limit this process permanently.

        Raises:
            OSError, ValueError: the system refuses.
        """
        _lower(resource.RLIMIT_DATA, int(self.memory))
        seconds = max(1, int(self.cpu))  # SIGXCPU follows, then SIGKILL
        _lower(resource.RLIMIT_CPU, seconds, seconds + _CPU_GRACE_SECONDS)
        _lower(resource.RLIMIT_FSIZE, int(self.files))
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


def confine(readable: Sequence[Path], writable: Sequence[Path], limits: Limits) -> None:
    """Restrict this process permanently to the named files and limits.

    Call it before a second thread starts, which would not be confined.

    Args:
        readable: files and folders beside Python, its packages and the system's libraries.
        writable: folders.
        limits: of memory, CPU time and files.

    Raises:
        OSError, ValueError: the system refuses a part; then nothing foreign may be read.
    """
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):  # not permitted to all users; the filter of calls suffices
        _leave_network()
    drop_capabilities()
    process_control(PR_SET_NO_NEW_PRIVS, 1)
    limits.apply()
    restrict_files([*_python_folders(), *map(Path, _SYSTEM), *readable], writable, _devices())
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
