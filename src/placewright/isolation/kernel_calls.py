"""System calls of Linux that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from functools import cache

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
