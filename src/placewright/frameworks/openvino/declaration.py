"""Declaration of OpenVINO: reads through its front-ends, infers on CPU, GPU and NPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from placewright.errors import PlacewrightError
from placewright.execution.framework import Find, FoundModel
from placewright.frameworks.conversion import FileFramework, FileReader
from placewright.frameworks.openvino.model_files import SUFFIXES, checked_files

if TYPE_CHECKING:
    from placewright.execution.runtime import Runtime


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
        """See `execution.framework.Framework`."""
        from placewright.frameworks.openvino.small_model import small_model_file

        return small_model_file(folder)

    def companions(self, path: Path) -> tuple[Path, ...]:
        """The weights of an IR file, also of a damaged one, and data files of an ONNX file."""
        beside = (path.with_suffix(".bin"),) if path.suffix.lower() == ".xml" else ()
        try:
            return (*beside, *checked_files(path)[1:])
        except (PlacewrightError, OSError):
            return beside


FRAMEWORK = OpenVinoFramework()
