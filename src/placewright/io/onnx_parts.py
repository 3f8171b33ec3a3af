"""An ``.onnx`` file before anything parses it: is it one, and where does its data lie?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError
from placewright.io.content import one_line
from placewright.io.model_parts import files_beside, place_in_file, require_size
from placewright.io.onnx_functions import require_bounded_functions
from placewright.io.opened import inside, shown_name
from placewright.io.protobuf import fields

_ENDS = ("offset", "length")
_ADDRESS_MARK = "_ORT_MEM_ADDR_"  # ONNX Runtime takes the offset behind it for a memory address

# Where tensors sit inside an ONNX model: message -> field number -> message (onnx.proto3).
_ONNX: Mapping[str, Mapping[int, str]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Function": {7: "Node"},
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
    """All files that make up the model at `path`.

    Raises:
        FileFormatError: it is no ONNX model, is incomplete, or refers outside its folder.
        InputError: it cannot be read.
    """
    return (path, *files_beside(path, check_onnx))


def check_onnx(path: Path, content: memoryview) -> list[Path]:
    """The data files of an ONNX model.

    Raises:
        FileFormatError: it holds no graph, or one of them is missing, too short or elsewhere.
    """
    numbers = {field.number for field in fields(content)}
    if 7 not in numbers or max(numbers) > 40:
        raise FileFormatError("it holds no ONNX graph")
    needed: dict[str, int] = {}  # data file -> bytes that tensors take from it
    for name, end in _external_data(content, "Model"):
        needed[name] = max(needed.get(name, 0), end)
    _require_agreement(path, needed)
    found = {name: inside(path.parent, name) for name in needed}
    for name, file in found.items():
        require_size(name, file.stat().st_size, needed[name])
    return list(found.values())


def _require_agreement(path: Path, found: Mapping[str, int]) -> None:
    """Check that ONNX's own parser sees the same data files, where it is installed.

    Raises:
        FileFormatError: it sees others, or cannot read the model.
    """
    try:
        import onnx
    except ImportError:
        return  # what was found is all that a reader without it has
    try:
        model = onnx.load(str(path), load_external_data=False)
        parsed = list(_parsed_locations(model))
    except Exception as error:  # the protocol-buffer library has its own types
        raise FileFormatError(f"ONNX's parser cannot read it: {one_line(error)}") from None
    require_bounded_functions(model)
    for name in (*parsed, *found):
        if (name in parsed) != (name in found):
            raise FileFormatError(f"parsers do not agree whether it refers to '{shown_name(name)}'")


def _parsed_locations(message: Any) -> Iterator[str]:
    """Every location of external data in a parsed message, in file order."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.name == "external_data":
            yield from (entry.value for entry in value if entry.key == "location")
            continue
        for inner in value if hasattr(value, "__len__") else (value,):
            yield from _parsed_locations(inner)


def _external_data(message: memoryview, kind: str) -> Iterator[tuple[str, int]]:
    """File and last byte + 1 of each tensor that lies outside the model, in file order.

    Parsers differ in which of two equal keys they take, so every location counts.

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
    """Bytes that an entry says. Of ``-8`` or ``1e3`` parsers make different numbers.

    Raises:
        FileFormatError: it says no number, or one that no file has.
    """
    if not (text.isascii() and text.isdecimal()):
        raise FileFormatError(f"it takes data from byte '{shown_name(text)}', which is no number")
    return place_in_file(text)


def _entry(message: memoryview) -> tuple[str, str]:
    """Key and value of an entry about external data.

    Raises:
        FileFormatError: it has one of them twice, or as a number.
    """
    found: dict[int, str] = {}
    for number, is_bytes, content in fields(message):
        if number not in _ONNX["Entry"]:
            continue
        if not is_bytes or number in found:
            raise FileFormatError("an entry about external data has a key or value twice")
        try:
            found[number] = bytes(content).decode()
        except UnicodeDecodeError:
            raise FileFormatError("an entry about external data is not UTF-8 text") from None
    return found.get(1, ""), found.get(2, "")
