"""Calls of the Linux kernel that Python has no function for."""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITIES_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 of linux/capability.h
_library = ctypes.CDLL(None, use_errno=True)


def kernel_call(number: int, *arguments: object) -> int:
    """The kernel call with this number.

    Raises:
        OSError: it failed.
    """
    return _checked(_library.syscall(ctypes.c_long(number), *arguments))


def process_control(option: int, value: int) -> None:
    """`prctl` with one value.

    Raises:
        OSError: it failed.
    """
    zeros = [ctypes.c_ulong(0)] * 3
    _checked(_library.prctl(ctypes.c_int(option), ctypes.c_ulong(value), *zeros))


def unshare(flags: int) -> None:
    """Move this process into new namespaces.

    Raises:
        OSError: the system does not permit it.
    """
    _checked(_library.unshare(ctypes.c_int(flags)))


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def drop_capabilities() -> None:
    """Give up every privilege of the superuser, and of a namespace's owner.

    Raises:
        OSError: the system refuses.
    """
    header = _Header(_CAPABILITIES_VERSION, 0)
    none = (_Capabilities * 2)()
    _checked(_library.capset(ctypes.byref(header), ctypes.byref(none)))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
