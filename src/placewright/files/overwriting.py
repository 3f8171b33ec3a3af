"""Refuses to overwrite files that a command reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from placewright.errors import InputError
from placewright.io.written import is_written_through


def refuse_overwriting(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Check that no output is also an input, under any name.

    Links, hard links and other spellings of a path are the same file.

    Args:
        written: outputs; those that do not exist yet replace nothing.
        read: inputs; checked only if an output exists.

    Raises:
        InputError: two of them are one file.
    """
    _refuse_one_name(written := list(written))
    replaced = [(path, identity) for path in written if (identity := _identity(path)) is not None]
    for at, (path, identity) in enumerate(replaced):
        for other, other_identity in replaced[:at]:
            if other_identity == identity:
                raise InputError(f"'{other}' and '{path}' would be written into one file")
    if not replaced:
        return
    for source in read:
        source_identity = _identity(source)
        for path, identity in replaced:
            if source_identity == identity:
                name = f"'{path}'" if str(path) == str(source) else f"'{path}' (read as '{source}')"
                raise InputError(f"{name} is read and would be overwritten; name another output")


def _refuse_one_name(written: list[Path]) -> None:
    """Refuse two outputs with one name, even if neither exists yet."""
    names: dict[Path, Path] = {}
    for path in written:
        real = Path(os.path.realpath(path))
        if real in names and not is_written_through(path):
            raise InputError(f"'{names[real]}' and '{path}' would be written into one file")
        names[real] = path


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a regular file; None if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if path.is_file() else None
