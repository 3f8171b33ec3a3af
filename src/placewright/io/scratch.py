"""Folders for work that is not finished, removed at its end, or by the next work after a kill."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MARK = ".scratch"


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
    folder, handle = _made_and_locked(within, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _made_and_locked(within: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the handle that locks it.

    Between the two another process may take it for one that was left, and remove it; then the
    next one is made.
    """
    while True:
        folder = Path(tempfile.mkdtemp(_MARK, prefix, within))
        handle = -1
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _is_locked(handle) and os.path.samestat(os.fstat(handle), folder.stat()):
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


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # not every file system has locks; without them nothing is removed either
        return True
    return True


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
        if os.fstat(handle).st_uid != os.getuid():
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
