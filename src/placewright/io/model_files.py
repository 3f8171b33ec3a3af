"""Model files before a front-end opens them: are they what their name says, and what do they need?

Checked are the container (protocol buffer, flat buffer, XML), whether it is complete, and that
every file it refers to lies in its own folder. A model file is data: nothing in it is executed.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from xml.parsers import expat

from placewright.errors import FileFormatError, InputError
from placewright.io.protobuf import fields

SUFFIXES = (".xml", ".onnx", ".pb", ".tflite")
_FILES_PER_MODEL = 10_000

# Where tensors sit inside an ONNX model: message -> field number -> message (onnx.proto3).
_ONNX: Mapping[str, Mapping[int, str]] = {
    "Model": {7: "Graph", 25: "Function"},
    "Function": {7: "Node"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor",
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
}  # fmt: skip


def checked_files(path: Path) -> tuple[Path, ...]:
    """All files that make up the model at `path`: a file or a SavedModel folder.

    Raises:
        FileFormatError: it is not what its name says, is incomplete, or refers outside its folder.
    """
    if path.is_dir():
        return _saved_model(path)
    check = _CHECKS.get(path.suffix.lower())
    if check is None:
        raise FileFormatError(
            f"'{path}' has no known model format; known are {', '.join(SUFFIXES)}, "
            "a SavedModel folder, .pt2 and .json"
        )
    return (path, *_with_content(path, check))


def _with_content(path: Path, check: Callable[[Path, memoryview], list[Path]]) -> list[Path]:
    """Run `check` on the mapped content and put the file's name before what it finds."""
    try:
        if path.stat().st_size == 0:
            raise FileFormatError("it is empty")
        # The map closes with its last slice, which a raised error may hold for a while.
        with path.open("rb") as stream:
            content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        return check(path, content)
    except RecursionError:
        raise FileFormatError(f"'{path}': its messages are nested too deeply") from None
    except FileFormatError as error:
        raise FileFormatError(f"'{path}' is not a valid {path.suffix} model: {error}") from None
    except OSError as error:
        raise InputError(f"file '{path}' cannot be read: {error.strerror}") from None


def _check_xml(path: Path, content: memoryview) -> list[Path]:
    """Well-formed, root <net>, no document type (so no entities); weights lie beside it."""
    roots: list[str] = []
    ends = [0]  # of constants in the file of weights
    parser = expat.ParserCreate()

    def refuse_document_type(*_: object) -> None:
        raise FileFormatError("it declares a document type, which no IR needs")

    def note(name: str, attributes: Mapping[str, str]) -> None:
        if not roots:
            roots.append(name)
        place = [attributes.get(key, "") for key in ("offset", "size")]
        if name == "data" and "element_type" in attributes and all(map(str.isdecimal, place)):
            ends.append(sum(map(int, place)))

    parser.StartDoctypeDeclHandler = refuse_document_type
    parser.StartElementHandler = note
    try:
        parser.Parse(bytes(content), True)
    except expat.ExpatError as error:
        raise FileFormatError(f"not well-formed XML ({error})") from None
    if roots != ["net"]:
        raise FileFormatError(f"its root is <{roots[0]}>, an OpenVINO IR starts with <net>")
    weights = path.with_suffix(".bin")
    if weights.exists():
        _require_size(weights.name, weights.stat().st_size, max(ends))
        return [weights]
    if max(ends) > 0:
        raise FileFormatError(f"its weights '{weights.name}' are missing; put them beside it")
    return []


def _check_onnx(path: Path, content: memoryview) -> list[Path]:
    numbers = {number for number, _ in fields(content)}
    if 7 not in numbers or max(numbers) > 40:
        raise FileFormatError("it holds no ONNX graph")
    needed: dict[str, int] = {}  # data file -> bytes that tensors take from it
    for name, end in _external_data(content, "Model"):
        needed[name] = max(needed.get(name, 0), end)
    found = {name: _inside(path.parent, name) for name in needed}
    for name, file in found.items():
        _require_size(name, file.stat().st_size, needed[name])
    return list(found.values())


def _external_data(message: memoryview, kind: str) -> Iterator[tuple[str, int]]:
    """File and last byte + 1 of each tensor that lies outside the model, in file order."""
    inner = _ONNX[kind]
    entries: dict[str, str] = {}
    for number, content in fields(message):
        child = inner.get(number)
        if child == "Entry":
            entry = dict(fields(content))
            key, value = (bytes(entry.get(at, b"")).decode("utf-8", "replace") for at in (1, 2))
            entries[key] = value
        elif child is not None:
            yield from _external_data(content, child)
    if "location" in entries:
        numbers = [entries.get(key, "") for key in ("offset", "length")]
        yield entries["location"], sum(int(text) for text in numbers if text.isdecimal())


def _require_size(name: str, size: int, needed: int) -> None:
    """Refuse a data file that ends too early."""
    if size < needed:
        raise FileFormatError(
            f"its data file '{name}' ends after {size} bytes of {needed}; copy it again"
        )


def _inside(folder: Path, name: str) -> Path:
    """The file `name` of `folder`.

    Raises:
        FileFormatError: it is missing, or lies outside.
    """
    root = folder.resolve()
    file = (root / name).resolve()
    if not file.is_relative_to(root) or file == root:
        raise FileFormatError(f"it refers to '{name}', which is outside its own folder")
    if not file.is_file():
        raise FileFormatError(f"its data file '{name}' is missing")
    return folder / name


def _check_graph_def(path: Path, content: memoryview) -> list[Path]:
    numbers = {number for number, _ in fields(content)}
    if 1 not in numbers or not numbers <= {1, 2, 3, 4, 5}:
        if path.name == "saved_model.pb":
            raise FileFormatError("give its folder, which holds the variables too")
        raise FileFormatError("it holds no TensorFlow GraphDef")
    return []


def _check_saved_model(path: Path, content: memoryview) -> list[Path]:
    numbers = {number for number, _ in fields(content)}
    if not {2} <= numbers <= {1, 2}:
        raise FileFormatError("it holds no SavedModel")
    return []


def _check_tflite(path: Path, content: memoryview) -> list[Path]:
    if len(content) < 16 or bytes(content[4:8]) != b"TFL3":
        raise FileFormatError("the mark TFL3 is missing at byte 4")
    (root,) = struct.unpack_from("<I", content, 0)
    if root + 4 > len(content):
        raise FileFormatError("it ends before its own root table")
    return []


def _saved_model(folder: Path) -> tuple[Path, ...]:
    definition = folder / "saved_model.pb"
    if not definition.is_file():
        raise FileFormatError(f"folder '{folder}' is no SavedModel: it has no saved_model.pb")
    _with_content(definition, _check_saved_model)
    files = sorted(file for file in folder.rglob("*") if file.is_file())[:_FILES_PER_MODEL]
    root = folder.resolve()
    for file in files:
        if not file.resolve().is_relative_to(root):
            raise FileFormatError(f"'{file}' leads outside the SavedModel folder '{folder}'")
    return tuple(files)


_CHECKS: Mapping[str, Callable[[Path, memoryview], list[Path]]] = {
    ".xml": _check_xml,
    ".onnx": _check_onnx,
    ".pb": _check_graph_def,
    ".tflite": _check_tflite,
}
