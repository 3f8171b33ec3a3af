"""Declaration of OpenVINO: reads through its front-ends, infers on CPU, GPU and NPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from placewright.errors import PlacewrightError
from placewright.execution.framework import Find, FoundModel
from placewright.execution.small_model import ImageTower, MatrixTower, SmallModel
from placewright.frameworks.file_reader import FileFramework, FileReader
from placewright.frameworks.openvino.model_files import SUFFIXES, checked_files

if TYPE_CHECKING:
    from placewright.execution.runtime import Runtime


def small_model_file(folder: Path) -> Path:
    """Write the model into a folder."""
    import openvino
    import openvino.opset13 as ops

    model = SmallModel()
    inputs, results = [], []
    for tower, branches in zip(model.towers, model.weights(), strict=True):
        inputs.append(ops.parameter(list(tower.shape), np.float32))
        ends = [_branch(ops, tower, inputs[-1], weights) for weights in branches]
        results.append(ops.add(*ends))
    path = folder / f"{model.NAME}.xml"
    openvino.save_model(openvino.Model(results, inputs, model.NAME), path, compress_to_fp16=False)
    return path


def _branch(ops: Any, tower: ImageTower | MatrixTower, value: Any, weights: list[Any]) -> Any:
    for weight in weights:
        if isinstance(tower, MatrixTower):
            value = ops.softmax(ops.matmul(value, ops.constant(weight), False, False), 1)
            continue
        value = ops.convolution(value, ops.constant(weight), [1, 1], [1, 1], [1, 1], [1, 1])
        pooled = ops.max_pool(value, [1, 1], [1, 1], [1, 1], [1, 1], [3, 3])
        value = pooled.output(0)
    return value


class OpenVinoFramework(FileFramework):
    """OpenVINO, as `execution.framework.Framework` describes it."""

    name: ClassVar[str] = "openvino"
    library: ClassVar[str] = "OpenVINO"
    extra: ClassVar[str] = "openvino"
    packages: ClassVar[tuple[str, ...]] = ("openvino",)
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
    reads_folders: ClassVar[bool] = True
    formats: ClassVar[tuple[str, ...]] = ("openvino",)
    precision_options: ClassVar[tuple[str, ...]] = ("INFERENCE_PRECISION_HINT",)

    def reader(self) -> FileReader:
        """Functions for files that OpenVINO's front-ends know; PyTorch models become IR files."""
        from placewright.frameworks.openvino.conversion import OpenVinoConverter
        from placewright.frameworks.openvino.reader import read_openvino

        return FileReader(read_openvino, checked_files, OpenVinoConverter())

    def runtime(self, find: Find) -> Runtime:
        """The runtime, which compiles sub-models."""
        from placewright.frameworks.openvino.runtime import OpenVinoRuntime

        return OpenVinoRuntime()

    def small_model(self, folder: Path) -> FoundModel:
        """See `execution.framework.MakesSmallModel`."""

        return small_model_file(folder)

    def companions(self, path: Path) -> tuple[Path, ...]:
        """The weights of an IR file, also of a damaged one, and data files of an ONNX file."""
        beside = (path.with_suffix(".bin"),) if path.suffix.lower() == ".xml" else ()
        try:
            return (*beside, *checked_files(path)[1:])
        except (PlacewrightError, OSError):
            return beside


FRAMEWORK = OpenVinoFramework()
