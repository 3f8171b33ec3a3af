"""Declaration of PyTorch: reads exported programs and modules, runs inference and training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from placewright.errors import InputError
from placewright.execution.allocator import share_one_arena
from placewright.execution.exported_program import ProgramFile
from placewright.execution.framework import (
    Find,
    FoundModel,
    ModelInMemory,
    ReadOptions,
)
from placewright.frameworks.torch.programs import (
    FORMATS,
    TorchOptions,
    load_torch_program,
    program_file,
    read_torch_model,
)
from placewright.frameworks.torch.pt2 import HOW_TO_EXPORT

if TYPE_CHECKING:
    from placewright.core.graph import ComputationGraph
    from placewright.core.problem import Objective
    from placewright.core.source import ModelSource
    from placewright.execution.runtime import Runtime


class TorchFramework:
    """PyTorch, as `execution.framework.Framework` describes it."""

    name: ClassVar[str] = "torch"
    library: ClassVar[str] = "PyTorch"
    extra: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    objectives: ClassVar[tuple[Objective, ...]] = ("latency", "throughput", "training")
    suffixes: ClassVar[tuple[str, ...]] = (".pt2",)
    instead: ClassVar[Mapping[str, str]] = MappingProxyType(
        dict.fromkeys((".pt", ".pth", ".jit", ".ts"), HOW_TO_EXPORT)
    )
    formats: ClassVar[tuple[str, ...]] = FORMATS
    reads_modules: ClassVar[bool] = True
    reads_folders: ClassVar[bool] = False
    fuses_ops: ClassVar[bool] = False
    converts_programs: ClassVar[bool] = False  # it loads them itself
    compile_options: ClassVar[Mapping[str, str]] = MappingProxyType({"compile": "inductor"})
    precision_options: ClassVar[tuple[str, ...]] = ()

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """Read a module or an exported program, as one inference or one training step."""
        if not isinstance(options.optimizer, str):
            options = replace(options, optimizer=_text_of(options.optimizer, find(name)))
        read = read_torch_model(name, find, TorchOptions.of_request(options))
        for asked, shape in options.shapes.items():
            if read.source.shapes.get(asked) != tuple(shape):
                known = ", ".join(f"{key}={value}" for key, value in read.source.shapes.items())
                raise InputError(
                    f"argument `shapes` {asked}: an exported PyTorch model keeps the shapes of its "
                    f"example inputs ({known}); export it with others"
                )
        return read.graph, read.source

    def again(self, source: ModelSource, find: Find) -> tuple[ComputationGraph, ModelSource]:
        """Read with the options of the source."""
        read = read_torch_model(source.path, find, TorchOptions.of_source(source))
        return read.graph, read.source

    def runnable(self, source: ModelSource, find: Find) -> ModelSource:
        """Return the source itself, after a check of its content."""
        load_torch_program(source, find)  # the runtime takes it from the cache
        return source

    def runtime(self, find: Find) -> Runtime:
        """The runtime, which runs segments through TorchScript or ``torch.compile``."""
        from placewright.frameworks.torch.running.runtime import TorchRuntime

        return TorchRuntime(lambda source: load_torch_program(source, find))

    def small_model(self, folder: Path) -> FoundModel:
        """See `execution.framework.Framework`."""
        from placewright.frameworks.torch.small_model import small_model_in_memory

        return small_model_in_memory()

    def companions(self, path: Path) -> tuple[Path, ...]:
        """None: a ``.pt2`` file holds everything."""
        return ()

    def program_file(self, path: Path) -> ProgramFile:
        """The program in a ``.pt2`` file, checked before PyTorch opens it."""
        return program_file(path)

    def prepare_process(self) -> None:
        """Let all threads share one arena of the C library."""
        share_one_arena()


def _text_of(optimizer: Any, model: FoundModel) -> str:
    from placewright.frameworks.torch.training.optimizers import text_of

    # A model of the zoo is made for each reading, so that no optimizer is of its parameters.
    if isinstance(model, ModelInMemory) and model.name.startswith("module:"):
        return text_of(optimizer, model.build(True).module)
    return text_of(optimizer, None)


FRAMEWORK = TorchFramework()
