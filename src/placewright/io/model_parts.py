"""A model file and the files that it refers to: complete, and all in its own folder."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

from placewright.errors import FileFormatError, InputError
from placewright.io.opened import opened, shown_name

MAX_MESSAGE_BYTES = 2**31 - 1  # no parser of protocol buffers or flat buffers reads more
_MAX_DIGITS = 18  # of a place in a file


def files_beside(
    path: Path,
    check: Callable[[Path, memoryview], list[Path]],
    *,
    limit: int = MAX_MESSAGE_BYTES,
) -> list[Path]:
    """What `check` finds in the mapped content of a model file: the other files that it needs.

    Args:
        path: of the model file.
        check: takes it and its content.
        limit: bytes that the file may have.

    Raises:
        FileFormatError: from `check`, with the file's name before the reason.
        InputError: the file cannot be read.
    """
    stream, size = opened(path, limit=limit)
    try:
        with stream:
            if size == 0:
                raise FileFormatError("it is empty")
            # The map closes with its last slice, which a raised error may hold for a while.
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
    """Refuse a data file that ends too early."""
    if size < needed:
        raise FileFormatError(
            f"its data file '{name}' ends after {size} bytes of {needed}; copy it again"
        )


def place_in_file(digits: str) -> int:
    """An offset or a length in a file.

    Raises:
        FileFormatError: no file is so long.
    """
    if len(digits) > _MAX_DIGITS:
        raise FileFormatError(
            f"it takes data from byte {shown_name(digits)}, where no file has any"
        )
    return int(digits)
