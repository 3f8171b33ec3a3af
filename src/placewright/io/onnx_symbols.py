"""Symbols of open dimensions in an ``.onnx`` file, which OpenVINO does not keep."""

from __future__ import annotations

from pathlib import Path

from placewright.io.model_parts import MAX_MESSAGE_BYTES, files_beside
from placewright.io.protobuf import fields

_GRAPH, _INPUT, _NAME, _TYPE, _TENSOR, _SHAPE, _DIMENSION, _SYMBOL = 7, 11, 1, 2, 1, 2, 1, 2


def onnx_symbols(path: Path) -> dict[str, tuple[str, ...]]:
    """Input name -> the symbol of each of its dimensions, "" where it has none.

    Raises:
        FileFormatError: the file is no ONNX model.
    """
    found: dict[str, tuple[str, ...]] = {}

    def collect(_: Path, content: memoryview) -> list[Path]:
        for graph in _inner(content, _GRAPH):
            for value in _inner(graph, _INPUT):
                name = b"".join(bytes(text) for text in _inner(value, _NAME)).decode()
                shapes = [shape for kind in _inner(value, _TYPE)
                          for tensor in _inner(kind, _TENSOR)
                          for shape in _inner(tensor, _SHAPE)]  # fmt: skip
                dimensions = [each for shape in shapes for each in _inner(shape, _DIMENSION)]
                found[name] = tuple(
                    b"".join(bytes(text) for text in _inner(each, _SYMBOL)).decode()
                    for each in dimensions
                )
        return []

    files_beside(path, collect, limit=MAX_MESSAGE_BYTES)
    return found


def _inner(message: memoryview, number: int) -> list[memoryview]:
    return [field.content for field in fields(message) if field.number == number and field.is_bytes]
