"""Checks of a model file and the files that it refers to, which must lie in its folder.

Model files are checked before a library parses them: a damaged file gets a reason of one line, and
the files that a model refers to are known before anything opens them. Of protocol buffers only
requested fields are decoded, so that gigabytes of weights take no time.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from placewright.errors import FileFormatError, InputError
from placewright.io.opened import opened, shown_name

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a message."""

    number: int  # in the definition of the message
    is_bytes: bool  # False for numbers, which a parser never takes for a text or a message
    content: memoryview  # empty for a number of variable length


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message in file order.

    Raises:
        FileFormatError: the bytes are not in wire format, or end inside a field.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        start = at
        if wire == _VARINT:
            _, at = _varint(message, at)
            start = at
        elif wire == _BYTES:
            length, start = _varint(message, at)
            at = start + length
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
        else:
            raise FileFormatError(f"byte {start} is no protocol-buffer field")
        if number == 0 or tag >= 2**32:  # parsers disagree about longer tags
            raise FileFormatError(f"byte {start} is no protocol-buffer field")
        if at > end:
            raise FileFormatError(f"it ends inside a field that starts at byte {start}")
        yield Field(number, wire == _BYTES, message[start:at])


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and the position behind it."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise FileFormatError(f"it ends inside a number at byte {at}")


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
