"""What a command reads is never what it writes over."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from placewright.errors import InputError
from placewright.io.written import is_written_through


def refuse_overwriting(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Check that no file to be written is one that is read, under whatever name.

    Links, hard links and other spellings of a path are the same file.

    Args:
        written: files to be written; those that do not exist yet replace nothing.
        read: files that are read; looked at only where a file to be written exists.

    Raises:
        InputError: two of them are one file.
    """
    _refuse_one_name(written := list(written))
    replaced = [(path, identity) for path in written if (identity := _identity(path)) is not None]
    for one, (path, identity) in enumerate(replaced):
        for other, same in replaced[:one]:
            if same == identity:
                raise InputError(f"'{other}' and '{path}' would be written into one file")
    if not replaced:
        return
    for source in read:
        found = _identity(source)
        for path, identity in replaced:
            if found == identity:
                told = f"'{path}'" if str(path) == str(source) else f"'{path}' (read as '{source}')"
                raise InputError(f"{told} is read and would be overwritten; name another output")


def _refuse_one_name(written: list[Path]) -> None:
    """Two outputs of one name are one file, too, where neither is there yet."""
    found: dict[Path, Path] = {}
    for path in written:
        real = Path(os.path.realpath(path))
        if real in found and not is_written_through(path):
            raise InputError(f"'{found[real]}' and '{path}' would be written into one file")
        found[real] = path


def _identity(path: Path) -> tuple[int, int] | None:
    """What two names of one regular file share; None where there is none to lose."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if path.is_file() else None
