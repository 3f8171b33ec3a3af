"""A small TensorFlow Lite model, put together with the flat-buffer schema alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tflite as tfl


class _Writer:
    """Writes the tables of one model; every method returns an offset."""

    def __init__(self) -> None:
        self.builder: Any = flatbuffers.Builder(1024)

    def ints(self, values: list[int]) -> int:
        return int(self.builder.CreateNumpyVector(np.array(values, dtype=np.int32)))

    def offsets(self, start: Callable[..., Any], values: list[int]) -> int:
        start(self.builder, len(values))
        for value in reversed(values):
            self.builder.PrependUOffsetTRelative(value)
        return int(self.builder.EndVector())

    def buffer(self, content: np.ndarray[Any, Any] | None) -> int:
        data = None if content is None else self.builder.CreateNumpyVector(content)
        tfl.BufferStart(self.builder)
        if data is not None:
            tfl.BufferAddData(self.builder, data)
        return int(tfl.BufferEnd(self.builder))

    def tensor(self, name: str, shape: list[int], buffer: int) -> int:
        text, extents = self.builder.CreateString(name), self.ints(shape)
        tfl.TensorStart(self.builder)
        tfl.TensorAddShape(self.builder, extents)
        tfl.TensorAddType(self.builder, tfl.TensorType.FLOAT32)
        tfl.TensorAddBuffer(self.builder, buffer)
        tfl.TensorAddName(self.builder, text)
        return int(tfl.TensorEnd(self.builder))

    def operator(self, code: int, inputs: list[int], outputs: list[int], options: int = 0) -> int:
        reads, writes = self.ints(inputs), self.ints(outputs)
        tfl.OperatorStart(self.builder)
        tfl.OperatorAddOpcodeIndex(self.builder, code)
        tfl.OperatorAddInputs(self.builder, reads)
        tfl.OperatorAddOutputs(self.builder, writes)
        if options:
            kind = tfl.BuiltinOptions.FullyConnectedOptions
            tfl.OperatorAddBuiltinOptionsType(self.builder, kind)
            tfl.OperatorAddBuiltinOptions(self.builder, options)
        return int(tfl.OperatorEnd(self.builder))

    def code(self, number: int) -> int:
        tfl.OperatorCodeStart(self.builder)
        tfl.OperatorCodeAddDeprecatedBuiltinCode(self.builder, number)
        tfl.OperatorCodeAddBuiltinCode(self.builder, number)
        tfl.OperatorCodeAddVersion(self.builder, 1)
        return int(tfl.OperatorCodeEnd(self.builder))

    def subgraph(self, tensors: int, operators: int) -> int:
        inputs, outputs = self.ints([0]), self.ints([3])
        name = self.builder.CreateString("main")
        tfl.SubGraphStart(self.builder)
        tfl.SubGraphAddTensors(self.builder, tensors)
        tfl.SubGraphAddInputs(self.builder, inputs)
        tfl.SubGraphAddOutputs(self.builder, outputs)
        tfl.SubGraphAddOperators(self.builder, operators)
        tfl.SubGraphAddName(self.builder, name)
        return int(tfl.SubGraphEnd(self.builder))


def write_tflite(path: Path, weight: np.ndarray[Any, Any]) -> None:
    """y = relu(x W), x of shape (1, 4) and W of shape (4, 3): fully connected, then ReLU."""
    writer = _Writer()
    b = writer.builder
    content = np.ascontiguousarray(weight.T).view(np.uint8).ravel()
    buffers = [writer.buffer(None), writer.buffer(content)]
    tables = [("x", [1, 4], 0), ("w", [3, 4], 1), ("p", [1, 3], 0), ("y", [1, 3], 0)]
    buffer_table = writer.offsets(tfl.ModelStartBuffersVector, buffers)
    tensors = writer.offsets(
        tfl.SubGraphStartTensorsVector, [writer.tensor(*table) for table in tables]
    )
    tfl.FullyConnectedOptionsStart(b)
    options = int(tfl.FullyConnectedOptionsEnd(b))
    steps = [writer.operator(0, [0, 1, -1], [2], options), writer.operator(1, [2], [3])]
    operators = writer.offsets(tfl.SubGraphStartOperatorsVector, steps)
    subgraph = writer.subgraph(tensors, operators)
    graphs = writer.offsets(tfl.ModelStartSubgraphsVector, [subgraph])
    kinds = [tfl.BuiltinOperator.FULLY_CONNECTED, tfl.BuiltinOperator.RELU]
    codes = writer.offsets(tfl.ModelStartOperatorCodesVector, [writer.code(kind) for kind in kinds])
    tfl.ModelStart(b)
    tfl.ModelAddVersion(b, 3)
    tfl.ModelAddOperatorCodes(b, codes)
    tfl.ModelAddSubgraphs(b, graphs)
    tfl.ModelAddBuffers(b, buffer_table)
    b.Finish(tfl.ModelEnd(b), file_identifier=b"TFL3")
    path.write_bytes(bytes(b.Output()))
