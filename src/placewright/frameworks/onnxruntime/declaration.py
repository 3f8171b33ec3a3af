"""Declaration of ONNX Runtime: reads .onnx files node by node, runs on execution providers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from placewright.core.data_sheet import PRECISION
from placewright.errors import InputError, PlacewrightError
from placewright.execution.framework import (
    Find,
    FoundModel,
    ReadOptions,
    StandaloneParts,
)
from placewright.frameworks.conversion import FileFramework, FileReader
from placewright.io.content import one_line
from placewright.io.model_parts import onnx_files

if TYPE_CHECKING:
    from placewright.core.cluster import Device
    from placewright.core.graph import ComputationGraph
    from placewright.core.source import ModelSource
    from placewright.execution.runtime import Runtime


class OnnxFramework(FileFramework):
    """ONNX Runtime, as `execution.framework.Framework` describes it."""

    name: ClassVar[str] = "onnxruntime"
    library: ClassVar[str] = "ONNX Runtime"
    extra: ClassVar[str] = "onnxruntime"
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime", "onnx")
    suffixes: ClassVar[tuple[str, ...]] = (".onnx",)
    formats: ClassVar[tuple[str, ...]] = ("onnx",)
    precision_options: ClassVar[tuple[str, ...]] = ()

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """Read an ``.onnx`` file; a PyTorch model is exported to one first."""
        model = find(name)
        if isinstance(model, Path) and model.suffix.lower() not in self.suffixes:
            raise InputError(
                f"ONNX Runtime runs .onnx and .pt2 models, not '{model}'; leave out argument "
                "`runtime`, or convert the model to .onnx"
            )
        return super().read(name, find, options)

    def reader(self) -> FileReader:
        """Functions for ``.onnx`` files, which are read node by node."""
        from placewright.frameworks.onnxruntime.conversion import OnnxConverter
        from placewright.frameworks.onnxruntime.reader import read_onnx

        return FileReader(read_onnx, onnx_files, OnnxConverter())

    def runtime(self, find: Find) -> Runtime:
        """The runtime, which makes inference sessions of sub-models."""
        from placewright.frameworks.onnxruntime.runtime import OnnxRuntime

        return OnnxRuntime()

    def small_model(self, folder: Path) -> FoundModel:
        """See `execution.framework.Framework`."""
        from placewright.frameworks.onnxruntime.small_model import small_model_file

        return small_model_file(folder)

    def companions(self, path: Path) -> tuple[Path, ...]:
        """The data files to which the model refers."""
        try:
            return onnx_files(path)[1:]
        except (PlacewrightError, OSError):
            return ()

    def why_refused(self, file: Path, entries: Mapping[str, str]) -> str:
        """Load the file into an inference session on the CPU."""
        from placewright.frameworks.onnxruntime.devices import onnxruntime_library

        onnxruntime = onnxruntime_library()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        try:
            onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has a class of its own for each status
            text = str(error)
            return one_line(text.partition(f"Load model from {file} failed:")[2] or text)
        return ""

    def card_provider(self, card: Device, number: str) -> tuple[str, dict[str, str]]:
        """The options of `devices.providers`; a card that names no provider is of CUDA.

        The precision of a data sheet is no option of a provider.
        """
        from placewright.frameworks.onnxruntime.devices import cuda_options, providers

        default = {} if "provider" in card.options else cuda_options(number)
        own = {key: value for key, value in card.options.items() if key != PRECISION}
        options = {**default, **own, "device_id": number}
        (name, taken), _ = providers(replace(card, options=options))
        return name, taken

    def standalone_parts(self, source: ModelSource, graph: ComputationGraph) -> StandaloneParts:
        """The file in parts, from which sub-models are cut."""
        from placewright.frameworks.onnxruntime.segments import OnnxParts

        return OnnxParts(Path(source.path), graph, source)


FRAMEWORK = OnnxFramework()
