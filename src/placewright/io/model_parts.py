"""Checks of a model file and the files that it refers to, which must lie in its folder.

Of an ``.onnx`` file:

- Is it an ONNX model, and does all of its external data lie in its folder?
- Functions: a few hundred bytes can stand for 2^40 operators. Libraries first replace each call by
  the nodes of its function, and a function that calls another twice doubles at every level.
- Symbols of open dimensions, which OpenVINO does not keep.

Model files are checked before a library parses them: a damaged file gets a reason of one line, and
the files that a model refers to are known before anything opens them. Of protocol buffers only
requested fields are decoded, so that gigabytes of weights take no time.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from placewright.errors import FileFormatError, InputError
from placewright.io.content import one_line
from placewright.io.opened import beside, opened, shown_name

T = TypeVar("T")
FunctionKey = tuple[str, str, str]  # domain, name, overload
_MAX_NODES = 1_000_000  # of all calls of functions, written out
_MAX_DEPTH = 200  # of functions that call functions
_ENDS = ("offset", "length")
_ADDRESS_MARK = "_ORT_MEM_ADDR_"  # ONNX Runtime takes the offset behind it for a memory address

# Numbers of the fields that lead to the symbol of a dimension (onnx.proto3).
_GRAPH, _INPUT, _NAME, _TYPE, _TENSOR, _SHAPE, _DIMENSION, _SYMBOL = 7, 11, 1, 2, 1, 2, 1, 2
# Fields that lead to tensors in an ONNX model: message -> field number -> message (onnx.proto3).
_ONNX: Mapping[str, Mapping[int, str]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Function": {7: "Node", 11: "Attribute"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor",
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
    "Entry": {1: "Text", 2: "Text"},
}  # fmt: skip


def onnx_files(path: Path) -> tuple[Path, ...]:
    """All files of the model at `path`.

    Raises:
        FileFormatError: it is not an ONNX model, is incomplete, or refers outside its folder.
        InputError: it cannot be read.
    """
    return (path, *checked(path, check_onnx))


def onnx_model(path: Path) -> tuple[Any, tuple[Path, ...]]:
    """Load an ``onnx.ModelProto`` with all checks, and list all files of the model.

    Its data in other files is not loaded.

    Raises:
        FileFormatError, InputError: as `onnx_files`.
    """
    model, files = checked(path, _checked_onnx)
    return model, (path, *files)


def check_onnx(path: Path, content: memoryview) -> list[Path]:
    """The data files of an ONNX model.

    Raises:
        FileFormatError: the model has no graph, or a data file is missing, too short or elsewhere.
    """
    return _checked_onnx(path, content)[1]


def _checked_onnx(path: Path, content: memoryview) -> tuple[Any | None, list[Path]]:
    """The model if ONNX is installed, and its data files; see `check_onnx`."""
    numbers = {field.number for field in fields(content)}
    if 7 not in numbers or max(numbers) > 40:
        raise FileFormatError("it holds no ONNX graph")
    needed: dict[str, int] = {}  # data file -> bytes that tensors take from it
    for name, end in _external_data(content, "Model"):
        needed[name] = max(needed.get(name, 0), end)
    model = _in_agreement(path, needed)
    files = {name: beside(path, name) for name in needed}
    for name, file in files.items():
        require_size(name, file.stat().st_size, needed[name])
    return model, list(files.values())


def _in_agreement(path: Path, needed: Mapping[str, int]) -> Any | None:
    """Load the model with ONNX's own parser, if installed, which must find the same data files.

    Raises:
        FileFormatError: it finds others, or cannot read the model.
    """
    try:
        import onnx
    except ImportError:
        return None  # no library here would parse the model with it
    try:
        model = onnx.load(str(path), load_external_data=False)
        tensors = [one for one in every_message(model) if one.DESCRIPTOR.name == "TensorProto"]
        entries = [entry for tensor in tensors for entry in tensor.external_data]
        parsed = [entry.value for entry in entries if entry.key == "location"]
    except Exception as error:  # the protocol-buffer library has its own types
        raise FileFormatError(f"ONNX's parser cannot read it: {one_line(error)}") from None
    require_bounded_functions(model)
    for name in (*parsed, *needed):
        if (name in parsed) != (name in needed):
            raise FileFormatError(f"parsers do not agree whether it refers to '{shown_name(name)}'")
    return model


def every_message(message: Any) -> Iterator[Any]:
    """Yield a message and all inside it, except those in tensors."""
    yield message
    if message.DESCRIPTOR.name == "TensorProto":
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "__len__") else (value,):
                yield from every_message(inner)


def _external_data(message: memoryview, kind: str) -> Iterator[tuple[str, int]]:
    """File name and end position of each tensor with external data, in file order.

    Every location counts, because parsers differ in which of two equal keys they take.

    Raises:
        FileFormatError: a field that should be a text or a message is a number, which parsers skip.
    """
    inner = _ONNX[kind]
    entries: list[tuple[str, str]] = []
    for number, is_bytes, content in fields(message):
        child = inner.get(number)
        if child is not None and not is_bytes:
            raise FileFormatError(f"field {number} of a {kind} is a number, it should be a message")
        if child == "Entry":
            entries.append(_entry(content))
        elif child is not None:
            yield from _external_data(content, child)
    ends = [_end(text) for key, text in entries if key in _ENDS]
    for key, location in entries:
        if key == "location":
            if _ADDRESS_MARK in location:
                raise FileFormatError(
                    f"it refers to '{shown_name(location)}', which is no file name"
                )
            yield location, sum(ends)


def _end(text: str) -> int:
    """The offset or length in an entry; parsers disagree about ``-8`` or ``1e3``.

    Raises:
        FileFormatError: it is not a decimal number, or larger than any file.
    """
    if not (text.isascii() and text.isdecimal()):
        raise FileFormatError(f"it takes data from byte '{shown_name(text)}', which is no number")
    return place_in_file(text)


def _entry(message: memoryview) -> tuple[str, str]:
    """Key and value of an entry about external data.

    Raises:
        FileFormatError: it has one of them twice, or as a number.
    """
    texts: dict[int, str] = {}
    for number, is_bytes, content in fields(message):
        if number not in _ONNX["Entry"]:
            continue
        if not is_bytes or number in texts:
            raise FileFormatError("an entry about external data has a key or value twice")
        try:
            texts[number] = bytes(content).decode()
        except UnicodeDecodeError:
            raise FileFormatError("an entry about external data is not UTF-8 text") from None
    return texts.get(1, ""), texts.get(2, "")


def require_bounded_functions(model: Any) -> None:
    """Refuse functions that stand for more than a million nodes, or for themselves.

    Args:
        model: an ``onnx.ModelProto``.

    Raises:
        FileFormatError: a function is too large or calls itself.
    """
    functions = {function_key(held.domain, held.name, held): held for held in model.functions}
    if not functions:
        return
    sizes: dict[FunctionKey, int] = {}

    def size(nodes: Any, above: tuple[FunctionKey, ...]) -> int:
        total = 0
        for node in with_bodies(nodes):
            key = function_key(node.domain, node.op_type, node)
            if key in functions and key not in sizes:
                if key in above or len(above) > _MAX_DEPTH:
                    name = shown_name(node.op_type)
                    raise FileFormatError(f"its function '{name}' calls itself, or too many others")
                sizes[key] = size(functions[key].node, (*above, key))
            total += sizes.get(key, 1)
            if total > _MAX_NODES:
                raise FileFormatError(f"its functions stand for more than {_MAX_NODES} operators")
        return total

    size(model.graph.node, ())


def function_key(domain: str, name: str, holder: Any) -> FunctionKey:
    """Identity of a function; earlier versions of ONNX have no overloads."""
    return domain, name, getattr(holder, "overload", "")


def with_bodies(nodes: Any) -> Iterator[Any]:
    """Yield nodes and the nodes of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from with_bodies(attribute.g.node)
            for graph in attribute.graphs:
                yield from with_bodies(graph.node)


def onnx_symbols(path: Path) -> dict[str, tuple[str, ...]]:
    """Input name -> symbol of each dimension, "" for dimensions without.

    Raises:
        FileFormatError: the file is not an ONNX model.
    """
    return checked(path, _symbols)


def _symbols(_: Path, content: memoryview) -> dict[str, tuple[str, ...]]:
    symbols = {}
    for graph in _inner(content, _GRAPH):
        for value in _inner(graph, _INPUT):
            name = b"".join(bytes(text) for text in _inner(value, _NAME)).decode()
            shapes = [shape for kind in _inner(value, _TYPE)
                      for tensor in _inner(kind, _TENSOR)
                      for shape in _inner(tensor, _SHAPE)]  # fmt: skip
            symbols[name] = tuple(
                b"".join(bytes(text) for text in _inner(dimension, _SYMBOL)).decode()
                for shape in shapes
                for dimension in _inner(shape, _DIMENSION)
            )
    return symbols


def _inner(message: memoryview, number: int) -> list[memoryview]:
    return [field.content for field in fields(message) if field.number == number and field.is_bytes]


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


def checked(
    path: Path, check: Callable[[Path, memoryview], T], *, limit: int = MAX_MESSAGE_BYTES
) -> T:
    """Return what `check` does for a path and the mapped content of its file.

    Args:
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
