"""Declaration of OpenVINO: reads through its front-ends, infers on CPU, GPU and NPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from placewright.errors import PlacewrightError
from placewright.execution.framework import (
    Find,
    FoundModel,
    ReadOptions,
)
from placewright.frameworks.file_reader import FileReader
from placewright.frameworks.openvino.model_files import SUFFIXES, checked_files

if TYPE_CHECKING:
    from placewright.core.graph import ComputationGraph
    from placewright.core.problem import Objective
    from placewright.core.source import ModelSource
    from placewright.execution.runtime import Runtime


class OpenVinoFramework:
    """OpenVINO, as `execution.framework.Framework` describes it."""

    name: ClassVar[str] = "openvino"
    library: ClassVar[str] = "OpenVINO"
    extra: ClassVar[str] = "openvino"
    objectives: ClassVar[tuple[Objective, ...]] = ("latency", "throughput")
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
    formats: ClassVar[tuple[str, ...]] = ("openvino",)
    reads_modules: ClassVar[bool] = False
    fuses_ops: ClassVar[bool] = True
    converts_programs: ClassVar[bool] = True
    compile_options: ClassVar[Mapping[str, str]] = MappingProxyType({})  # it always compiles
    precision_options: ClassVar[tuple[str, ...]] = ("INFERENCE_PRECISION_HINT",)

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """Read a file that OpenVINO's front-ends know; a PyTorch model is converted to IR first."""
        return _reader().read(name, find, options)

    def again(self, source: ModelSource, find: Find) -> tuple[ComputationGraph, ModelSource]:
        """Read with the shapes and constants of the source."""
        return _reader().again(source, find)

    def runnable(self, source: ModelSource, find: Find) -> ModelSource:
        """The source with the path of a file; a model in memory is converted to IR."""
        return _reader().runnable(source, find)

    def runtime(self, find: Find) -> Runtime:
        """The runtime, which compiles sub-models."""
        from placewright.frameworks.openvino.runtime import OpenVinoRuntime

        return OpenVinoRuntime()

    def small_model(self, folder: Path) -> FoundModel:
        """See `execution.framework.MakesSmallModel`."""
        from placewright.frameworks.openvino.small_model import small_model_file

        return small_model_file(folder)

    def companions(self, path: Path) -> tuple[Path, ...]:
        """The weights of an IR file, also of a damaged one, and data files of an ONNX file."""
        beside = (path.with_suffix(".bin"),) if path.suffix.lower() == ".xml" else ()
        try:
            return (*beside, *checked_files(path)[1:])
        except (PlacewrightError, OSError):
            return beside


def _reader() -> FileReader:
    from placewright.frameworks.openvino.conversion import (
        openvino_file_of,
        openvino_file_of_program,
    )
    from placewright.frameworks.openvino.reader import read_openvino

    return FileReader(read_openvino, checked_files, openvino_file_of, openvino_file_of_program)


FRAMEWORK = OpenVinoFramework()
