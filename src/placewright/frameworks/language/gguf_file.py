"""Reads the header and the tensor table of a GGUF file, never the weights.

The reader of package `gguf` maps the whole file and makes objects for every token of the
vocabulary before it checks a size. This one reads a file of strangers: every count, length and
offset is compared with the size of the file before it is used.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from placewright.errors import FileFormatError, optional_library
from placewright.io.opened import opened, shown_name

_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_MOST_ENTRIES = 100_000  # of metadata; files of llama.cpp have about fifty
_MOST_TENSORS = 200_000  # the largest published models have about two thousand
_MOST_KEPT = 4096  # entries of an array; longer ones hold the vocabulary, which nobody needs
_MOST_TEXTS = 2_000_000  # of an array; the largest vocabularies have 600,000 merges
_LONGEST_HEADER = 256 << 20  # bytes
_LONGEST_TEXT = 64 << 20  # bytes; chat templates are the longest
_LONGEST_NAME = 256  # bytes; llama.cpp allows 64
_MOST_DIMENSIONS = 4
_TABLE_ROW = 24  # bytes of a row of the tensor table with an empty name and no dimension
_MOST_ELEMENTS = 1 << 60
_ALIGNMENT = 32
_FIRST_PART = re.compile(r"(.*)-00001-of-(\d{5})(\.gguf)", re.DOTALL | re.ASCII)


@dataclass(frozen=True)
class GgufTensor:
    """A row of the tensor table."""

    name: str  # unique in the file
    shape: tuple[int, ...]  # dimensions, the contiguous one first
    dtype: str  # name of the format in lower case, for example ``"q4_k"``
    n_bytes: int  # in the file

    @property
    def n_elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """The part of a file that stands before its weights: metadata and table of tensors."""

    # key -> number, text, or tuple of those; arrays of more than 4096 entries give their length
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]  # the table, in the order of the file
    sha256: str  # of header and table


def read_gguf_file(path: Path) -> GgufFile:
    """Read header and tensor table.

    Raises:
        InputError: there is no such file.
        FileFormatError: it is no GGUF file, truncated, or contradicts itself.
        MissingExtraError: package `gguf`, which knows the formats of weights, is not installed.
    """
    stream, size = opened(path, may_be_sparse=True)  # headers end at _LONGEST_HEADER
    with stream:
        try:
            return _read(_Bytes(stream, size), _formats())
        except _Fault as fault:
            raise FileFormatError(f"file '{shown_name(path)}' is no usable GGUF: {fault}") from None


def later_parts(path: Path) -> tuple[Path, ...]:
    """List the parts that follow the first one, whose name ends with ``-00001-of-00003.gguf``.

    Returns:
        Nothing for any other name; the parts need not exist.
    """
    found = _FIRST_PART.fullmatch(path.name)
    if found is None:
        return ()
    stem, count, suffix = found.groups()
    numbers = [f"{n:05d}" for n in range(2, int(count) + 1)]
    return tuple(path.with_name("-".join((stem, n, "of", count)) + suffix) for n in numbers)


class _Fault(Exception):
    """A file is refused; `read_gguf_file` puts the file's name before the text."""


class _Bytes:
    """A file that is read forward, never beyond its size."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self.size, self.at = stream, size, 0
        self._digest = hashlib.sha256()

    @property
    def left(self) -> int:
        return self.size - self.at

    def take(self, count: int, what: str) -> bytes:
        """The next bytes."""
        if count > self.left:
            raise _Fault(
                f"it ends inside {what}: {count} bytes are stated, {self.left} are left; "
                "download it again"
            )
        if self.at + count > _LONGEST_HEADER:
            raise _Fault(f"its header has more than {_LONGEST_HEADER} bytes")
        data = self._stream.read(count)
        if len(data) < count:
            raise _Fault(f"it became shorter while {what} was read")
        self.at += count
        self._digest.update(data)
        return data

    def numbers(self, code: str, count: int, what: str) -> tuple[Any, ...]:
        """The next numbers of one type."""
        wide = struct.calcsize(f"<{code}")
        if count * wide > self.left:
            raise _Fault(f"{what} states {count} entries, more than the file holds")
        return struct.unpack(f"<{count}{code}", self.take(count * wide, what))

    def skip(self, count: int, what: str) -> None:
        """Skip bytes."""
        for at in range(0, count, 1 << 20):
            self.take(min(count - at, 1 << 20), what)

    def number(self, code: str, what: str) -> Any:
        """The next number."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]

    def text(self, longest: int, what: str) -> str:
        """The next text, after its length."""
        length = self.number("Q", what)
        if length > longest:
            raise _Fault(f"{what} states a text of {length} bytes; at most {longest} are read")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            raise _Fault(f"{what} is not UTF-8") from None

    def hash(self) -> str:
        """SHA-256 of what was read, and of the size of the file."""
        self._digest.update(str(self.size).encode())
        return self._digest.hexdigest()


_Formats = Mapping[int, tuple[str, int, int]]  # number -> name, elements and bytes of a block


def _formats() -> _Formats:
    optional_library("gguf.constants", "language", "reading a .gguf file")
    from gguf.constants import GGML_QUANT_SIZES

    return {int(key): (key.name.lower(), *sizes) for key, sizes in GGML_QUANT_SIZES.items()}


def _read(data: _Bytes, formats: _Formats) -> GgufFile:
    if data.take(4, "its first word") != b"GGUF":
        raise _Fault("its first word is not 'GGUF'")
    version = data.number("I", "the version")
    if version not in _VERSIONS:
        raise _Fault(f"its version is {version}; {_VERSIONS[0]} and {_VERSIONS[1]} are read")
    n_tensors = data.number("Q", "the number of tensors")
    n_entries = data.number("Q", "the number of metadata entries")
    for count, most, what in (
        (n_tensors, _MOST_TENSORS, "tensors"),
        (n_entries, _MOST_ENTRIES, "metadata entries"),
    ):
        if count > most:
            raise _Fault(f"it states {count} {what}; at most {most} are read")
    metadata = _metadata(data, n_entries)
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & alignment - 1:
        raise _Fault(f"general.alignment must be a power of two, got {alignment!r:.40}")
    if n_tensors * _TABLE_ROW > data.left:
        raise _Fault(f"it states {n_tensors} tensors, and {data.left} bytes are left for them")
    rows = [_row(data, formats, alignment) for _ in range(n_tensors)]
    begin = -(-data.at // alignment) * alignment
    _check_places(rows, data.size - begin)
    return GgufFile(metadata, tuple(tensor for tensor, _ in rows), data.hash())


def _metadata(data: _Bytes, n_entries: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number in range(n_entries):
        key = data.text(1 << 16, f"the key of metadata entry {number}")
        what = f"metadata '{shown_name(key)}'"
        if key in found:
            raise _Fault(f"{what} is there twice")
        found[key] = _value(data, data.number("I", what), what)
    return found


def _value(data: _Bytes, kind: int, what: str) -> Any:
    if kind == _TEXT:
        return data.text(_LONGEST_TEXT, what)
    if kind in _SCALARS:
        return data.number(_SCALARS[kind], what)
    if kind != _ARRAY:
        raise _Fault(f"{what} has type {kind}, which GGUF does not define")
    inner, count = data.number("I", what), data.number("Q", what)
    if inner in _SCALARS:
        code = _SCALARS[inner]
        if count > _MOST_KEPT and count * struct.calcsize(f"<{code}") <= data.left:
            data.skip(count * struct.calcsize(f"<{code}"), what)
            return count
        return data.numbers(code, count, what)
    if inner == _TEXT:
        if 8 * count > data.left or count > _MOST_TEXTS:
            raise _Fault(f"{what} states {count} texts, more than the file can hold")
        kept = []
        for _ in range(count):
            text = data.text(_LONGEST_TEXT, what)
            if count <= _MOST_KEPT:
                kept.append(text)
        return tuple(kept) if count <= _MOST_KEPT else count
    raise _Fault(f"{what} is an array of type {inner}; arrays hold numbers or texts")


def _row(data: _Bytes, formats: _Formats, alignment: int) -> tuple[GgufTensor, int]:
    """A tensor and its offset."""
    name = data.text(_LONGEST_NAME, "the name of a tensor")
    what = f"tensor '{shown_name(name)}'"
    n_dimensions = data.number("I", what)
    if not name or not name.isprintable():
        raise _Fault(f"{what} has a name that cannot be printed")
    if not 0 < n_dimensions <= _MOST_DIMENSIONS:
        raise _Fault(f"{what} has {n_dimensions} dimensions; 1 to {_MOST_DIMENSIONS} are possible")
    shape = data.numbers("Q", n_dimensions, what)
    kind, offset = data.number("I", what), data.number("Q", what)
    if kind not in formats:
        raise _Fault(f"{what} has the unknown format {kind}; a newer package `gguf` may know it")
    dtype, block, block_bytes = formats[kind]
    elements = math.prod(shape)
    if not 0 < elements <= _MOST_ELEMENTS or shape[0] % block:
        dimensions = " x ".join(map(str, shape))
        raise _Fault(f"{what} of {dimensions} elements cannot have format {dtype}")
    if offset % alignment:
        raise _Fault(f"{what} begins at offset {offset}, no multiple of {alignment}")
    return GgufTensor(name, shape, dtype, elements // block * block_bytes), offset


def _check_places(rows: list[tuple[GgufTensor, int]], room: int) -> None:
    """Check that names are unique and that tensors lie in the file, apart from each other."""
    names: set[str] = set()
    free, before = 0, ""
    for tensor, offset in sorted(rows, key=lambda row: (row[1], row[0].name)):
        if tensor.name in names:
            raise _Fault(f"tensor '{tensor.name}' is there twice")
        names.add(tensor.name)
        if offset < free:
            raise _Fault(f"tensor '{tensor.name}' lies inside tensor '{before}'")
        free, before = offset + tensor.n_bytes, tensor.name
        if free > room:
            raise _Fault(
                f"tensor '{tensor.name}' ends {free - max(room, 0)} bytes behind the file; "
                "download it again"
            )
