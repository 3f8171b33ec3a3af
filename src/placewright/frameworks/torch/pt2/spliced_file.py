"""A file made of pieces; large pieces stay where they lie in another file."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, BinaryIO


@dataclass(frozen=True)
class _Elsewhere:
    """Bytes of a file that is open."""

    file: BinaryIO
    offset: int
    length: int

    def read(self, begin: int, end: int) -> bytes:
        data = os.pread(self.file.fileno(), end - begin, self.offset + begin)
        if not data:
            raise OSError("the file has become shorter while it was read")
        return data  # perhaps only a part: the system reads at most 2 GiB at once

    def __len__(self) -> int:
        return self.length


class SplicedFile(io.RawIOBase):
    """A file that grows at its end and is read anywhere; pieces of another file take no memory.

    Before its end, only a whole piece can be replaced by one of equal length, as archivers do with
    a header when they know the size of what followed it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes | _Elsewhere] = []
        self._starts: list[int] = []
        self._size = self._at = 0
        self._next: tuple[BinaryIO, int] | None = None

    def lies_at(self, file: BinaryIO, offset: int) -> None:
        """Note that the next written bytes are in `file` at `offset` and need not be kept."""
        self._next = (file, offset)

    def write(self, data: Any) -> int:
        """Add a piece at the end, or replace one.

        Raises:
            io.UnsupportedOperation: neither is possible.
        """
        piece = bytes(data) if self._next is None else _Elsewhere(*self._next, len(data))
        self._next = None
        if self._at == self._size:
            if len(piece):
                self._starts.append(self._at)
                self._pieces.append(piece)
                self._size += len(piece)
        else:
            index = bisect_right(self._starts, self._at) - 1
            if self._starts[index] != self._at or len(self._pieces[index]) != len(piece):
                raise io.UnsupportedOperation("only whole pieces can be replaced")
            self._pieces[index] = piece
        self._at += len(piece)
        return len(piece)

    def readinto(self, buffer: Any) -> int:
        """Read bytes from the present position into a buffer and return their number.

        Raises:
            OSError: the other file has become shorter.
        """
        target = memoryview(buffer).cast("B")
        filled, index = 0, bisect_right(self._starts, self._at) - 1
        while filled < len(target) and self._at < self._size:
            piece, begin = self._pieces[index], self._at - self._starts[index]
            end = min(len(piece), begin + len(target) - filled)
            part = piece[begin:end] if isinstance(piece, bytes) else piece.read(begin, end)
            target[filled : filled + len(part)] = part
            filled += len(part)
            self._at += len(part)
            index += self._at == self._starts[index] + len(piece)
        return filled

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, as files do."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if origin + offset < 0:
            raise ValueError(f"negative position {origin + offset}")
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        """The present position."""
        return self._at

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True
