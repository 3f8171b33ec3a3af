"""An ``.onnx`` file before anything parses it: is it one, and where does its data lie?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from placewright.errors import FileFormatError
from placewright.io.model_parts import files_beside, inside, require_size
from placewright.io.protobuf import fields

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
    numbers = {number for number, _ in fields(content)}
    if 7 not in numbers or max(numbers) > 40:
        raise FileFormatError("it holds no ONNX graph")
    needed: dict[str, int] = {}  # data file -> bytes that tensors take from it
    for name, end in _external_data(content, "Model"):
        needed[name] = max(needed.get(name, 0), end)
    found = {name: inside(path.parent, name) for name in needed}
    for name, file in found.items():
        require_size(name, file.stat().st_size, needed[name])
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
