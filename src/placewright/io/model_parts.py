"""Checks of a model file and the files that it refers to, which must lie in its folder."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

from placewright.errors import FileFormatError, InputError
from placewright.io.opened import opened, shown_name

MAX_MESSAGE_BYTES = 2**31 - 1  # largest size that parsers of protocol and flat buffers read
_MAX_DIGITS = 18  # of a position in a file


def files_beside(
    path: Path,
    check: Callable[[Path, memoryview], list[Path]],
    *,
    limit: int = MAX_MESSAGE_BYTES,
) -> list[Path]:
    """The other files that a model file needs.

    Args:
        check: returns these files from the path and the mapped content.
        limit: largest size of the model file in bytes.

    Raises:
        FileFormatError: from `check`, with the name of the file.
        InputError: the file cannot be read.
    """
    stream, size = opened(path, limit=limit)
    try:
        with stream:
            if size == 0:
                raise FileFormatError("it is empty")
            # The map closes with its last slice, which an exception may still reference.
            content = memoryview(mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ))
        return check(path, content)
    except RecursionError:
        raise FileFormatError(f"'{shown_name(path)}': its messages are nested too deeply") from None
    except FileFormatError as error:
        raise FileFormatError(
            f"'{shown_name(path)}' is no valid {path.suffix} model: {error}"
        ) from None
    except OSError as error:
        raise InputError(f"file '{shown_name(path)}' cannot be read: {error.strerror}") from None


def require_size(name: str, size: int, needed: int) -> None:
    """Refuse a data file that is too short."""
    if size < needed:
        raise FileFormatError(
            f"its data file '{name}' ends after {size} bytes of {needed}; copy it again"
        )


def place_in_file(digits: str) -> int:
    """An offset or a length in a file.

    Raises:
        FileFormatError: no file is that long.
    """
    if len(digits) > _MAX_DIGITS:
        raise FileFormatError(
            f"it takes data from byte {shown_name(digits)}, where no file has any"
        )
    return int(digits)
