"""The protocol-buffer wire format, as far as checks of model files need it.

Model files are checked before a library parses them: a damaged file gets a reason of one line, and
the files that a model refers to are known before anything opens them. Only requested fields are
decoded, so that gigabytes of weights take no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from placewright.errors import FileFormatError

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
