"""Confine this process for good: files, calls to the kernel, network, memory and CPU time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
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
from placewright.isolation.limits import Limits

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # flags of `unshare`
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/opt", "/run/opengl-driver")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_ACCELERATORS = ("nvidia*", "dri/*", "accel/*", "kfd")


def require_isolation() -> None:
    """Check that this system can confine a process of an ordinary user.

    Raises:
        InputError: it cannot; the message says what is missing.
    """
    if sys.platform != "linux":
        raise InputError(f"argument `isolate` needs Linux, this is {sys.platform}; leave it out")
    missing = [reason for reason in (lacks_file_rules(), lacks_call_filter()) if reason]
    if missing:
        raise InputError(f"argument `isolate` is not possible here: {'; '.join(missing)}")


def confine(readable: Sequence[Path], writable: Sequence[Path], limits: Limits) -> None:
    """From now on this process reads and writes what is named, and reaches nothing else.

    To be called before there is a second thread, which would stay free.

    Args:
        readable: beside Python, its packages and the system's libraries.
        writable: folders.
        limits: of memory, CPU time and files.

    Raises:
        OSError, ValueError: the system refuses a part; nothing foreign may be read then.
    """
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):  # where users may not, the filter of calls does it alone
        _leave_network()
    drop_capabilities()
    process_control(PR_SET_NO_NEW_PRIVS, 1)
    limits.apply()
    restrict_files([*_python_folders(), *map(Path, _SYSTEM), *readable], writable, _devices())
    filter_calls()


def _leave_network() -> None:
    """Into a network without any address, as the user that one is."""
    user, group = os.getuid(), os.getgid()
    unshare(_NEW_USER | _NEW_NETWORK)
    for name, text in (
        ("uid_map", f"{user} {user} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _python_folders() -> list[Path]:
    """Of the interpreter, its packages and the libraries that the user added."""
    added = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    named = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *added]
    return [Path(name).resolve() for name in dict.fromkeys(named) if name and name != "/"]


def _devices() -> list[Path]:
    root = Path("/dev")
    found = [root / name for name in _DEVICES]
    return found + [path for pattern in _ACCELERATORS for path in sorted(root.glob(pattern))]
