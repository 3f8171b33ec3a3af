"""Loading of a ``.pt2`` file without running any code from it.

``torch.export.load`` falls back to full unpickling and to an older format, loads compiled code,
passes the texts of symbolic sizes to an evaluator, and executes source text that it makes of the
names in the file. Each of these can run code from the file. So only the members that an exported
program needs are admitted, each is checked, and PyTorch gets a new archive of the checked members.
Raw weights, which are only numbers, stay in the file until PyTorch reads them: a model then takes
its own size in memory, not four times as much.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import struct
import zipfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from placewright.errors import FileFormatError, MissingExtraError, PlacewrightError
from placewright.frameworks.torch.pt2 import HOW_TO_EXPORT
from placewright.frameworks.torch.pt2.grammar import identifier, shown
from placewright.frameworks.torch.pt2.program import checked_program, checked_tensors
from placewright.io.content import one_line
from placewright.io.opened import opened, require_bounded

if TYPE_CHECKING:
    from torch.export import ExportedProgram


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


_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/version|\.data/serialization_id"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+)",
    re.ASCII,
)
_RAW = re.compile(r"data/weights/weight_\d+|data/constants/tensor_\d+", re.ASCII)
_BLOCK = 2**20  # bytes
_DEEPEST = 20
_MOST_INPUTS = 100_000
_NUMBERS = (bool, int, float, complex, str, type(None))


def load_program(path: Path) -> ExportedProgram:
    """Load a file that ``torch.export.save`` wrote.

    Raises:
        InputError: the file cannot be read, or is no regular file.
        FileFormatError: the file is no exported program, is damaged, or holds pickled objects,
            names that are no identifiers, operators that do more than compute, or computed sizes.
        MissingExtraError: torch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "torch", "reading a .pt2 file")
    file, _ = opened(path)
    with file:
        return _loaded(file, path)


def _loaded(file: BinaryIO, path: Path) -> ExportedProgram:
    import torch

    try:
        admitted = _admitted(file)
    except FileFormatError as error:
        raise FileFormatError(f"'{path}' is not a valid .pt2 model: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # zipfile raises many types for damage
        if not _is_archive(file):
            raise FileFormatError(f"'{path}' is not a valid .pt2 model: it is no archive") from None
        reason = one_line(error)
        raise FileFormatError(f"'{path}' is a damaged .pt2 archive: {reason}") from None
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the error below is one line instead of a traceback
    try:
        return torch.export.load(cast(BinaryIO, admitted))
    except MemoryError:
        raise
    except Exception as error:  # the loader has no error type of its own
        raise FileFormatError(f"PyTorch cannot read '{path}': {one_line(error)}") from None
    finally:
        log.setLevel(level)


@contextmanager
def refused_in_one_line(model: object) -> Iterator[None]:
    """Turn errors of PyTorch about the program of a file into one line.

    Each part of a program may be well formed and the whole wrong, such as a reshape to another
    number of elements. PyTorch notices that only when it works through the program.

    Args:
        model: the path of a file; errors about a module pass unchanged.

    Raises:
        FileFormatError: the program is wrong.
    """
    try:
        yield
    except (PlacewrightError, MemoryError, OSError):
        raise
    except Exception as error:  # operators raise any type
        if not isinstance(model, Path | str):
            raise
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        reason = one_line(reason.partition("\n\nWhile executing")[0])
        raise FileFormatError(f"PyTorch cannot read '{model}': {reason}") from error


def _is_archive(file: BinaryIO) -> bool:
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:  # an archive that continues on another disk
        return True


def _admitted(file: BinaryIO) -> SplicedFile:
    """Make a new archive of the checked members that an exported program needs."""
    with zipfile.ZipFile(file) as archive:
        require_bounded(archive, os.fstat(file.fileno()).st_size)
        names = archive.namelist()
        roots = list(dict.fromkeys(name.partition("/")[0] for name in names))
        if not any(re.search(r"(^|/)models/[^/]+\.json$", name) for name in names):
            raise FileFormatError(f"it holds no exported program; {HOW_TO_EXPORT}")
        if len(roots) != 1 or len(dict.fromkeys(names)) < len(names):
            raise FileFormatError("it has more than one folder, or a member twice")
        full_name = {name.partition("/")[2]: name for name in names}
        for inner, name in full_name.items():
            if not _MEMBERS.fullmatch(inner):
                raise FileFormatError(f"it holds {shown(name)}, which no exported program needs")
        raw = {inner: name for inner, name in full_name.items() if _RAW.fullmatch(inner)}
        stored = {inner: archive.getinfo(name).file_size for inner, name in raw.items()}
        members = {
            inner: _checked(inner, archive.read(name), stored)
            for inner, name in full_name.items()
            if inner not in raw
        }
        return _archive_of(members, archive, raw, file)


def _archive_of(
    members: Mapping[str, bytes], original: zipfile.ZipFile, raw: Mapping[str, str], file: BinaryIO
) -> SplicedFile:
    """Make a new archive of these members and of raw members of the original."""
    spliced = SplicedFile()
    with zipfile.ZipFile(spliced, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(f"model/{name}", data)
        for inner, name in raw.items():
            info = original.getinfo(name)
            is_stored = info.compress_type == zipfile.ZIP_STORED
            at = _data_offset(file, info)
            is_large = info.file_size >= zipfile.ZIP64_LIMIT // 2
            with (
                original.open(name) as source,  # raises at its end if the checksum is wrong
                archive.open(f"model/{inner}", "w", force_zip64=is_large) as target,
            ):
                while block := source.read(_BLOCK):
                    if is_stored:
                        spliced.lies_at(file, at)
                    target.write(block)
                    at += len(block)
    spliced.seek(0)
    return spliced


def _data_offset(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Offset of a member's bytes, behind its header, its name and an extra field."""
    header = os.pread(file.fileno(), 30, info.header_offset)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    return info.header_offset + 30 + int(name_length) + int(extra_length)


def _checked(inner: str, data: bytes, stored: Mapping[str, int]) -> bytes:
    """Check a member and return it, written anew.

    Args:
        stored: raw member -> its bytes.
    """
    folder, _, name = inner.rpartition("/")
    try:
        match name:
            case "model.json":
                return _written(checked_program(_json(data)))
            case "model_weights_config.json" | "model_constants_config.json":
                document = checked_tensors(_json(data))
                of_folder = {
                    path.removeprefix(f"{folder}/"): size
                    for path, size in stored.items()
                    if path.startswith(f"{folder}/")
                }
                require_bounded_tensors(document["config"], of_folder)
                return _written(document)
            case "model.pt":
                return plain_inputs(data)
        return data
    except FileFormatError as error:
        raise FileFormatError(f"in '{inner}': {error}") from None


_MOST_TIMES = 20  # bytes of the tensors of a record that repeat elements, over those of the record
_ALWAYS_BYTES = 64 << 20  # that all tensors of a file together may have beyond these
_MOST_BYTES = 2**63
# Number of a type in the file (``torch._export.serde.schema.ScalarType``) -> bytes of an element.
_ELEMENT_BYTES: Mapping[int, int] = {
    **dict.fromkeys((1, 2, 12, 29, 30, 31, 32, 33), 1),
    **dict.fromkeys((3, 6, 13, 28), 2),
    **dict.fromkeys((4, 7, 9, 34), 4),
    **dict.fromkeys((5, 8, 10, 35), 8),
}
_LARGEST_ELEMENT = 16


def require_bounded_tensors(config: Mapping[str, Any], stored: Mapping[str, int]) -> None:
    """Check that the tensors of a file take hardly more memory than their records.

    A tensor names its sizes and strides beside a record of raw bytes. With a stride of 0 it repeats
    its elements, so that a record of 4 bytes may stand for any number of bytes. Whoever copies or
    hashes such a tensor needs all of them.

    Args:
        config: name of each tensor -> its entry, as `pt2.program.checked_tensors` returns it.
        stored: record -> its bytes.

    Raises:
        FileFormatError: a tensor repeats its elements too often.
    """
    left, left_of = _ALWAYS_BYTES, {record: _MOST_TIMES * size for record, size in stored.items()}
    first: dict[str, Any] = {}  # PyTorch takes type and device of a record from its first tensor
    for name, entry in config.items():
        record = entry["path_name"]
        meta = first.setdefault(record, entry["tensor_meta"])
        size = _bytes_of(entry["tensor_meta"]["sizes"], meta["dtype"])
        if size <= stored.get(record, 0) or meta["device"]["type"] == "meta":
            continue
        own = min(size, left_of.get(record, 0))
        left_of[record] = left_of.get(record, 0) - own
        left -= size - own
        if left < 0:
            raise FileFormatError(
                f"tensor {shown(name)} repeats {stored.get(record, 0)} bytes as {size}; export the "
                "model with a tensor that is expanded when it is used"
            )


def _bytes_of(sizes: Iterable[Mapping[str, int]], dtype: int) -> int:
    """Bytes of a tensor; any number above the largest that PyTorch takes is as good as another."""
    size = _ELEMENT_BYTES.get(dtype, _LARGEST_ELEMENT)
    extents = [extent["as_int"] for extent in sizes]
    for extent in extents if 0 not in extents else (0,):
        size *= extent
        if size > _MOST_BYTES:
            break
    return size


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise FileFormatError("it is not valid JSON") from None


def _written(document: dict[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False).encode()


def plain_inputs(data: bytes) -> bytes:
    """Write a new pickle of the example inputs, which a pickle in the file holds.

    If PyTorch's restricted unpickler fails, its loader of exported programs takes the full one,
    which runs code that the pickle names. So the restricted one must succeed here, and PyTorch then
    gets a pickle written from its result, never the pickle of the file.

    Args:
        data: the pickle; empty data stays empty.

    Raises:
        FileFormatError: it holds more than plain tensors, numbers, texts and containers, or tensors
            that repeat their elements too often.
    """
    import torch

    if not data:
        return b""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            require_bounded(archive, len(data))
    try:
        inputs = torch.load(io.BytesIO(data), weights_only=True)
    except MemoryError:
        raise
    except Exception:  # the unpickler raises many types; all mean that this is not plain data
        raise FileFormatError("it is not made of tensors alone") from None
    if not (isinstance(inputs, tuple) and [type(part) for part in inputs] == [tuple, dict]):
        raise FileFormatError("it has example inputs that are not those of a call")
    for name in inputs[1]:
        identifier(name)
    for tensor in _plain_tensors(inputs):
        if tensor.is_meta or tensor.layout != torch.strided:
            continue
        stored = tensor.untyped_storage().nbytes()
        if tensor.nbytes > max(_ALWAYS_BYTES, _MOST_TIMES * stored):
            raise FileFormatError(
                f"an example input repeats {stored} bytes as {tensor.nbytes}; export the model "
                "with inputs that are not expanded"
            )
    buffer = io.BytesIO()
    torch.save(inputs, buffer)
    return buffer.getvalue()


def _plain_tensors(inputs: Any) -> list[Any]:
    """The tensors of example inputs, which must hold nothing but plain data.

    A container may occur several times, and its parts are then seen each time.
    """
    import torch

    tensors: list[Any] = []
    waiting: list[tuple[Any, int]] = [(inputs, 0)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if seen + len(waiting) > _MOST_INPUTS:
            raise FileFormatError(f"it has more than {_MOST_INPUTS} example inputs")
        if depth > _DEEPEST:
            raise FileFormatError(f"its inputs are nested more than {_DEEPEST} deep")
        if type(value) in (tuple, list, dict):
            parts = [*value, *value.values()] if type(value) is dict else value
            if len(parts) > _MOST_INPUTS:
                raise FileFormatError(f"it has more than {_MOST_INPUTS} example inputs")
            waiting += [(part, depth + 1) for part in parts]
        elif type(value) in (torch.Tensor, torch.nn.Parameter):
            tensors.append(value)
        elif type(value) not in _NUMBERS:
            raise FileFormatError(f"an input is a {type(value).__name__}, which is no plain tensor")
    return tensors
