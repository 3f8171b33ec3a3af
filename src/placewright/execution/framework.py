"""What a folder of `frameworks/` declares: what it reads, how units form, how it runs, its options.

A declaration imports no heavy library: what needs one is imported by the method that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from placewright.execution.exported_program import ProgramFile, port_names

if TYPE_CHECKING:
    from placewright.core.graph import ComputationGraph
    from placewright.core.grouping import Grouping
    from placewright.core.problem import Objective
    from placewright.core.source import ModelSource
    from placewright.execution.runtime import OpSegment, Runtime


@dataclass(frozen=True)
class ReadOptions:
    """How a model is read.

    Attributes:
        shapes: input name -> dimensions to fix.
        fold_constants: False keeps constants, or what depends on weights alone, as ops.
        is_training: the whole training step instead of one inference.
        optimizer: of the training step, with its settings: ``"adam:learning_rate=1e-4"``.
        colocate_backward: every backward op of the step shares a device with its forward op.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fold_constants: bool = True
    is_training: bool = False
    optimizer: str = "sgd"
    colocate_backward: bool = False


@dataclass(frozen=True)
class BuiltModule:
    """A PyTorch module with example inputs.

    Attributes:
        module: in evaluation mode; for a training step one that returns its loss.
        example_inputs: positional inputs.
        input_names: one per example input; empty keeps the module's own.
    """

    module: Any
    example_inputs: Sequence[Any]
    input_names: tuple[str, ...] = ()

    def named_ports(self, source: ModelSource) -> ModelSource:
        """A source by the module's names, whichever file it was read from; as it is where the
        module was given none."""
        if not self.input_names:
            return source
        n_outputs = 0 if source.signature is None else len(source.signature.outputs)
        state = [
            *self.module.state_dict(),
            *(name for name, _ in self.module.named_buffers()),
        ]
        named = port_names(self.input_names, n_outputs, tuple(dict.fromkeys(state)))
        return named.applied_to(source)


@dataclass(frozen=True)
class ModelInMemory:
    """A model that no file holds.

    Attributes:
        name: with its prefix, as plans keep it: ``"zoo:bert_base/tiny"``, ``"module:Net"``.
        version: another one wherever the same name may mean other weights.
        build: makes the module; True makes that of a training step.
    """

    name: str
    version: str
    build: Callable[[bool], BuiltModule]


FoundModel = Path | ProgramFile | ModelInMemory
Find = Callable[[str], FoundModel]  # what a model's name means; a file need not exist


def found_path(name: str) -> FoundModel:
    """What a name means to those who have nothing but files."""
    return Path(name)


class Framework(Protocol):
    """A library that reads models and runs segments of them."""

    name: ClassVar[str]  # in requests, plans and files; equal to the folder's
    library: ClassVar[str]  # as its makers write it
    extra: ClassVar[str]  # pip install placewright[extra]
    objectives: ClassVar[tuple[Objective, ...]]
    suffixes: ClassVar[tuple[str, ...]]  # of the files that it reads by itself
    formats: ClassVar[tuple[str, ...]]  # of the sources whose ops it knows by their names
    reads_modules: ClassVar[bool]  # modules in memory that are not of the zoo
    converts_programs: ClassVar[bool]  # PyTorch programs that another framework loads
    compile_options: ClassVar[Mapping[str, str]]  # a device's, where segments are to be compiled
    precision_options: ClassVar[tuple[str, ...]]  # a device's, that say how exact it computes

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """Read a model.

        Args:
            name: a path, or the name of a model in memory; it becomes the source's path.
            find: tells what the name means.
            options: how it is read.

        Raises:
            InputError: there is no such model, it cannot be read, or an option does not fit it.
            MissingExtraError: a library is not installed.
        """
        ...

    def again(self, source: ModelSource, find: Find) -> tuple[ComputationGraph, ModelSource]:
        """Read the model of a source as it was read before."""
        ...

    def runnable(self, source: ModelSource, find: Find) -> ModelSource:
        """The source with a path that `runtime` can open.

        Raises:
            StalePlanError: the model is no longer the one that the source was made from.
            InputError: it is missing or cannot be read.
        """
        ...

    def runtime(self, find: Find) -> Runtime:
        """What measures and executes.

        Raises:
            MissingExtraError: the library is not installed.
        """
        ...

    def joined(self, graph: ComputationGraph) -> Grouping | None:
        """Ops that are one unit on every device, before any is measured; None where only the
        compiled model tells. See `execution.runtime.FormsUnits`."""
        ...

    def companions(self, path: Path) -> tuple[Path, ...]:
        """Other files that belong to a model file, as far as can be told; nothing is refused."""
        ...


@runtime_checkable
class HandsOverPrograms(Protocol):
    """A framework that loads PyTorch programs for others that convert them."""

    def program_file(self, path: Path) -> ProgramFile:
        """The program in a file, which is loaded when it is needed.

        Raises:
            InputError: there is no such file.
        """
        ...


@runtime_checkable
class PreparesProcess(Protocol):
    """A framework that has something to say to the process before its first thread starts."""

    def prepare_process(self) -> None:
        """Called once, by the command line; imports nothing heavy."""
        ...


@runtime_checkable
class MakesSmallModel(Protocol):
    """A framework that makes a model on which it is measured what splitting costs."""

    def small_model(self, folder: Path) -> FoundModel:
        """The model of `execution.small_model`; a file is written into `folder`."""
        ...


class StandaloneParts(Protocol):
    """A model in parts that its library runs without this package."""

    @property
    def value_of_tensor(self) -> Sequence[str]:
        """For each tensor of the graph the name of the value that holds it."""
        ...

    def standalone(self, segment: OpSegment) -> Any:
        """A model of its own for a segment, an ``onnx.ModelProto``."""
        ...


@runtime_checkable
class CutsFiles(Protocol):
    """A framework whose segments can be written as files of the model's own format."""

    def why_refused(self, file: Path, entries: Mapping[str, str]) -> str:
        """Load a file as its users will; what the library says against it, "" where it takes it.

        Args:
            file: that was written.
            entries: of the session's configuration.
        """
        ...

    def standalone_parts(self, source: ModelSource, graph: ComputationGraph) -> StandaloneParts:
        """The parts of a runnable source.

        Raises:
            InputError: the model cannot be read.
        """
        ...
