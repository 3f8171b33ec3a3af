"""Saves ONNX models of any size, and takes in the data that their files keep elsewhere.

A protocol buffer ends at 2 GiB, so large weights go to a file of data beside the model. ONNX's own
functions refuse data files that are links, as caches of downloads have them, and a name that
happens to exist in the current folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from placewright.errors import InputError
from placewright.io.model_parts import every_message, require_size
from placewright.io.opened import beside, opened, shown_name

LARGEST_MESSAGE = 1 << 30  # bytes of a model in one file; a protocol buffer ends at 2 GiB
_LEAST_OUTSIDE = 1 << 10  # bytes; smaller weights stay inside, where shape inference reads them
_PER_BYTE = {"INT4": 2, "UINT4": 2, "FLOAT4E2M1": 2, "INT2": 4, "UINT2": 4}  # numbers
_ALIGNED = 64  # bytes, at which a weight in a file of data begins


def data_file_of(path: Path) -> Path:
    """The file of data that `save_onnx` may write beside a model."""
    return path.with_name(f"{path.name}.data")


def take_in_data(model: Any, file: Path) -> None:
    """Read all tensors that a model keeps in other files, in place.

    Args:
        model: an ``onnx.ModelProto``, as read from `file`.

    Raises:
        FileFormatError: a data file is missing, too short, or elsewhere.
        InputError: it cannot be read.
    """
    for tensor in _inside(model, "TensorProto"):
        if tensor.data_location == tensor.EXTERNAL:
            tensor.raw_data = _content(tensor, file)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")


def _content(tensor: Any, file: Path) -> bytes:
    """The bytes of a tensor in a data file; without a length, as many as its numbers have."""
    import onnx

    place = {entry.key: entry.value for entry in tensor.external_data}
    name, start = place.get("location", ""), int(place.get("offset", 0))
    kind = onnx.TensorProto.DataType.Name(tensor.data_type)
    per_byte = _PER_BYTE.get(kind, 1)
    width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    size = int(place.get("length", math.ceil(math.prod(tensor.dims) * width / per_byte)))
    stream, total = opened(beside(file, name))
    with stream:
        require_size(name, total, start + size)
        try:
            stream.seek(start)
            return stream.read(size)
        except OSError as error:
            raise InputError(
                f"data file '{shown_name(name)}' cannot be read: {error.strerror or error}"
            ) from None


def save_onnx(model: Any, path: Path, *, largest: int = LARGEST_MESSAGE) -> None:
    """Write a model; weights of one with more than `largest` bytes go to `data_file_of` its path.

    Such a model cannot be used afterwards, since its weights are gone.

    Args:
        model: an ``onnx.ModelProto`` whose tensors hold their numbers.

    Raises:
        InputError: what is no weight has more bytes than a protocol buffer.
        OSError: a file cannot be written.
    """
    from google.protobuf.message import EncodeError

    if sum(map(_bytes, _inside(model, "TensorProto"))) > largest:
        data = data_file_of(path)
        with data.open("wb") as stream:
            for graph in _inside(model.graph, "GraphProto"):
                for tensor in graph.initializer:
                    if len(tensor.raw_data) >= _LEAST_OUTSIDE:
                        _move_out(tensor, stream, data.name)
    try:
        content = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise InputError(
            f"file '{path.name}' cannot be written: without its large weights the model is still "
            f"no protocol buffer ({error}); move its constants to initializers"
        ) from None
    path.write_bytes(content)


def _move_out(tensor: Any, stream: BinaryIO, name: str) -> None:
    from onnx.external_data_helper import set_external_data

    stream.write(bytes(-stream.tell() % _ALIGNED))
    set_external_data(tensor, name, stream.tell(), len(tensor.raw_data))
    stream.write(tensor.raw_data)
    tensor.ClearField("raw_data")


def _bytes(tensor: Any) -> int:
    """Bytes of a tensor's numbers, wherever in the message they are."""
    texts = sum(map(len, tensor.string_data))
    wide = len(tensor.int64_data) + len(tensor.uint64_data) + len(tensor.double_data)
    return len(tensor.raw_data) + texts + 8 * wide + 4 * (
        len(tensor.float_data) + len(tensor.int32_data)
    )  # fmt: skip


def _inside(message: Any, kind: str) -> Iterator[Any]:
    """Yield a message and all inside it that are of one kind."""
    return (one for one in every_message(message) if one.DESCRIPTOR.name == kind)
