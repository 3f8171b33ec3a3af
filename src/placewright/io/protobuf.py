"""The protocol-buffer wire format, as far as checking a model file needs it.

Model files are looked at before a front-end parses them: a damaged file gets a reason of one line,
and the files that a model refers to are known before anything opens them. Nothing is decoded that
is not asked for, so that weights of gigabytes cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from placewright.errors import FileFormatError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(field number, content) of each field; the content of a number is empty.

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
        if number == 0:
            raise FileFormatError(f"byte {start} is no protocol-buffer field")
        if at > end:
            raise FileFormatError(f"it ends inside a field that starts at byte {start}")
        yield number, message[start:at]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length and the position behind it."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise FileFormatError(f"it ends inside a number at byte {at}")
