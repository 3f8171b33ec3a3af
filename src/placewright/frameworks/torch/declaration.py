"""PyTorch: reads exported programs and modules, trains; light ops stay with a heavy neighbour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from placewright.errors import InputError
from placewright.execution.allocator import share_one_arena
from placewright.execution.exported_program import ProgramFile
from placewright.execution.framework import Find, FoundModel, ReadOptions
from placewright.frameworks.torch.programs import (
    FORMATS,
    TorchOptions,
    load_torch_program,
    read_torch_model,
)

if TYPE_CHECKING:
    from placewright.core.graph import ComputationGraph
    from placewright.core.grouping import Grouping
    from placewright.core.problem import Objective
    from placewright.core.source import ModelSource
    from placewright.execution.runtime import Runtime


class TorchFramework:
    """See `execution.framework.Framework`."""

    name: ClassVar[str] = "torch"
    library: ClassVar[str] = "PyTorch"
    extra: ClassVar[str] = "torch"
    objectives: ClassVar[tuple[Objective, ...]] = ("latency", "throughput", "training")
    suffixes: ClassVar[tuple[str, ...]] = (".pt2",)
    formats: ClassVar[tuple[str, ...]] = FORMATS
    reads_modules: ClassVar[bool] = True
    converts_programs: ClassVar[bool] = False  # it loads them itself
    compile_options: ClassVar[Mapping[str, str]] = MappingProxyType({"compile": "inductor"})
    precision_options: ClassVar[tuple[str, ...]] = ()

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """A module or an exported program, as one inference or one training step."""
        found = read_torch_model(name, find, TorchOptions.of_request(options))
        for asked, shape in options.shapes.items():
            if found.source.shapes.get(asked) != tuple(shape):
                known = ", ".join(f"{key}={value}" for key, value in found.source.shapes.items())
                raise InputError(
                    f"argument `shapes` {asked}: an exported PyTorch model keeps the shapes of its "
                    f"example "
                    f"inputs ({known}); export it with others"
                )
        return found.graph, found.source

    def again(self, source: ModelSource, find: Find) -> tuple[ComputationGraph, ModelSource]:
        """With the options of the source."""
        found = read_torch_model(source.path, find, TorchOptions.of_source(source))
        return found.graph, found.source

    def runnable(self, source: ModelSource, find: Find) -> ModelSource:
        """The source itself, which the runtime reads as it is; a file's content is checked here."""
        if Path(source.path).suffix.lower() == ".pt2":
            load_torch_program(source, find)  # the runtime finds it read
        return source

    def runtime(self, find: Find) -> Runtime:
        """Segments through TorchScript, or ``torch.compile``."""
        from placewright.frameworks.torch.running.runtime import TorchRuntime

        return TorchRuntime(lambda source: load_torch_program(source, find))

    def small_model(self, folder: Path) -> FoundModel:
        """See `execution.framework.MakesSmallModel`."""
        from placewright.frameworks.torch.small_model import small_model_in_memory

        return small_model_in_memory()

    def joined(self, graph: ComputationGraph) -> Grouping | None:
        """PyTorch fuses nothing by itself: light ops stay with a heavy neighbour."""
        from placewright.frameworks.torch.running.light_ops import light_ops_joined

        return light_ops_joined(graph)

    def companions(self, path: Path) -> tuple[Path, ...]:
        """None: a ``.pt2`` file holds everything."""
        return ()

    def program_file(self, path: Path) -> ProgramFile:
        """The program in a ``.pt2`` file, checked before PyTorch sees it."""
        from placewright.frameworks.torch.pt2.program_file import program_file

        return program_file(path)

    def prepare_process(self) -> None:
        """One arena of the C library for all threads."""
        share_one_arena()


FRAMEWORK = TorchFramework()
