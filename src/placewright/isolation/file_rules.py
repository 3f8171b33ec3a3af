"""Rules for the files of a process: Landlock, of Linux 6.2 and later.

Constants and structures are those of include/uapi/linux/landlock.h; the numbers of the calls are
equal on all architectures.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from placewright.isolation.kernel_calls import kernel_call

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_LEAST_VERSION = 3  # earlier versions do not stop the truncation of files
_WRITE_FILE, _READ_FILE, _READ_FOLDER, _TRUNCATE, _DEVICE_CONTROL = (
    1 << at for at in (1, 2, 3, 14, 15)
)
_ALL_OF_FILES = {3: (1 << 15) - 1, 5: (1 << 16) - 1}  # version -> all rights that it knows
_NETWORK_SINCE, _NETWORK = 4, 0b11  # bind and connect of TCP
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
        _NETWORK if version >= _NETWORK_SINCE else 0,
        _SCOPES if version >= _SCOPES_SINCE else 0,
    )
    size = 8 if version < _NETWORK_SINCE else 16 if version < _SCOPES_SINCE else 24
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
