"""A model file and the files that it refers to: complete, and all in its own folder."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

from placewright.errors import FileFormatError, InputError


def files_beside(path: Path, check: Callable[[Path, memoryview], list[Path]]) -> list[Path]:
    """What `check` finds in the mapped content of a model file: the other files that it needs.

    Raises:
        FileFormatError: from `check`, with the file's name before the reason.
        InputError: the file cannot be read.
    """
    try:
        if path.stat().st_size == 0:
            raise FileFormatError("it is empty")
        # The map closes with its last slice, which a raised error may hold for a while.
        with path.open("rb") as stream:
            content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        return check(path, content)
    except RecursionError:
        raise FileFormatError(f"'{path}': its messages are nested too deeply") from None
    except FileFormatError as error:
        raise FileFormatError(f"'{path}' is not a valid {path.suffix} model: {error}") from None
    except OSError as error:
        raise InputError(f"file '{path}' cannot be read: {error.strerror}") from None


def require_size(name: str, size: int, needed: int) -> None:
    """Refuse a data file that ends too early."""
    if size < needed:
        raise FileFormatError(
            f"its data file '{name}' ends after {size} bytes of {needed}; copy it again"
        )


def inside(folder: Path, name: str) -> Path:
    """The file `name` of `folder`.

    Raises:
        FileFormatError: it is missing, or lies outside.
    """
    root = folder.resolve()
    file = (root / name).resolve()
    if not file.is_relative_to(root) or file == root:
        raise FileFormatError(f"it refers to '{name}', which is outside its own folder")
    if not file.is_file():
        raise FileFormatError(f"its data file '{name}' is missing")
    return folder / name
