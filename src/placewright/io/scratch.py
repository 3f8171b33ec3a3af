"""Folders for work that is not finished, removed at its end, or by the next work after a kill."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_MARK = ".scratch"
_YOUNG_SECONDS = 60.0  # of a folder that may not be locked yet


@contextlib.contextmanager
def scratch_folder(within: Path, prefix: str) -> Iterator[Path]:
    """An empty folder that is gone at the end, and locked until then.

    Folders that a killed process left in the same place are removed: those that nobody locks.

    Args:
        within: the folder that it is made in.
        prefix: of its name.

    Raises:
        OSError: it cannot be made.
    """
    _remove_left_over(within, prefix)
    folder = Path(tempfile.mkdtemp(_MARK, prefix, within))
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _remove_left_over(within: Path, prefix: str) -> None:
    try:
        entries = [one for one in os.scandir(within) if one.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(prefix) and entry.name.endswith(_MARK):
            with contextlib.suppress(OSError):
                _remove_unless_used(Path(entry.path))


def _remove_unless_used(folder: Path) -> None:
    """Raises OSError where it is another user's, locked, or gone."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_SECONDS:
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
