"""Temporary folders, also in place of a cache that cannot be written to.

They are removed after use; after a kill, the next user removes them.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from placewright.io.opened import shown_name

_MARK = ".scratch"


@contextlib.contextmanager
def scratch_folder(within: Path, prefix: str) -> Iterator[Path]:
    """A new empty folder for the block, locked until it is removed.

    Also removes folders of killed processes, which nobody locks.

    Raises:
        OSError: the folder cannot be created.
    """
    _remove_left_over(within, prefix)
    folder, handle = _locked_folder(within, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _locked_folder(within: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder and the handle that locks it.

    Before it is locked, another process may remove it as left over; then try again.
    """
    while True:
        folder = Path(tempfile.mkdtemp(_MARK, prefix, within))
        handle = -1
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if takes_lock(handle) and os.path.samestat(os.fstat(handle), folder.stat()):
                return folder, handle
        except FileNotFoundError:
            pass
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            if handle >= 0:
                os.close(handle)
            raise
        if handle >= 0:
            os.close(handle)


def takes_lock(handle: int) -> bool:
    """Lock an open file or folder; False if another process has locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where nothing is removed either
        return True
    return True


def _remove_left_over(within: Path, prefix: str) -> None:
    try:
        entries = [e for e in os.scandir(within) if e.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(prefix) and entry.name.endswith(_MARK):
            with contextlib.suppress(OSError):
                _remove_unless_used(Path(entry.path))


def _remove_unless_used(folder: Path) -> None:
    """Remove a temporary folder of ours; OSError if it is locked, gone or cannot be opened."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


_LOG = logging.getLogger(__name__)
_warned: list[str] = []


def tell_lost_cache(folder: Path | str, reason: object) -> None:
    """Warn once per process that a folder of the cache cannot be written to."""
    if not _warned:
        _warned.append(str(folder))
        _LOG.warning(
            "warning: the cache folder '%s' cannot be written to (%s): measurements, converted "
            "models and compiled kernels are lost when this process ends",
            shown_name(folder),
            reason,
        )


@cache
def folder_instead() -> Path:
    """A temporary folder instead of the cache, removed when the process ends.

    Raises:
        OSError: it cannot be created either.
    """
    folder = scratch_folder(Path(tempfile.gettempdir()), "placewright-cache-")
    return _held.enter_context(folder)


_held = contextlib.ExitStack()
atexit.register(_held.close)
