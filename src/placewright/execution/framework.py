"""Interface of a framework, which a folder of `frameworks/` declares.

A declaration imports no heavy library: the methods that need one import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from placewright.execution.exported_program import ProgramFile, port_names

if TYPE_CHECKING:
    from placewright.core.cluster import Device
    from placewright.core.graph import ComputationGraph
    from placewright.core.problem import Objective
    from placewright.core.source import ModelSource
    from placewright.execution.runtime import OpSegment, Runtime
    from placewright.execution.token_work import Works


@dataclass(frozen=True)
class ReadOptions:
    """Options of the reader of a model.

    Attributes:
        shapes: input name -> dimensions to fix.
        fold_constants: False keeps constants, and ops that depend only on weights, as ops.
        is_training: the whole training step instead of one inference.
        optimizer: of the training step, with its settings: ``"adam:learning_rate=1e-4"``, or an
            object of the library.
        colocate_backward: every backward op of the step shares a device with its forward op.
        dropout: the step draws random numbers, as a module in training mode does.
        state: output name -> input name of values that stay from call to call.
        weights: format of the weights of a model whose file states none, for example ``"q4_k_m"``.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fold_constants: bool = True
    is_training: bool = False
    optimizer: Any = "sgd"
    colocate_backward: bool = False
    dropout: bool = False
    state: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None


@dataclass(frozen=True)
class BuiltModule:
    """A PyTorch module with example inputs.

    Attributes:
        module: in evaluation mode; for a training step it returns its loss.
        example_inputs: positional inputs.
        input_names: a name per example input; empty keeps the module's own names.
    """

    module: Any
    example_inputs: Sequence[Any]
    input_names: tuple[str, ...] = ()

    def named_ports(self, source: ModelSource) -> ModelSource:
        """Give a source the module's names of inputs, if it has any."""
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
    """A model that is in no file.

    Attributes:
        name: with its prefix, as in plans: ``"zoo:bert_base/tiny"``, ``"module:Net"``.
        version: changes if the same name may mean other weights.
        build: makes the module; with True the module of a training step.
    """

    name: str
    version: str
    build: Callable[[bool], BuiltModule]


FoundModel = Path | ProgramFile | ModelInMemory
Find = Callable[[str], FoundModel]  # resolves a model's name; a file need not exist


def found_path(name: str) -> FoundModel:
    """Resolve a name as a path: a `Find` for callers that only have files."""
    return Path(name)


class Framework(Protocol):
    """A library that reads models and runs segments of them."""

    name: ClassVar[str]  # in requests, plans and files; equal to the folder's
    library: ClassVar[str]  # name as its makers write it
    extra: ClassVar[str]  # pip install placewright[extra]
    packages: ClassVar[tuple[str, ...]]  # that its runtime imports
    objectives: ClassVar[tuple[Objective, ...]]
    suffixes: ClassVar[tuple[str, ...]]  # of files that it reads by itself
    instead: ClassVar[Mapping[str, str]]  # suffix that nothing reads -> how to get a file that is
    formats: ClassVar[tuple[str, ...]]  # of sources whose op names it knows
    reads_modules: ClassVar[bool]  # modules in memory that are not of the zoo
    reads_folders: ClassVar[bool]  # models that are a folder of files
    fuses_ops: ClassVar[bool]  # into kernels that only a compiled model shows
    converts_programs: ClassVar[bool]  # PyTorch programs that another framework loads
    compile_options: ClassVar[Mapping[str, str]]  # of a device, to compile segments
    precision_options: ClassVar[tuple[str, ...]]  # of a device, that set the precision

    def read(
        self, name: str, find: Find, options: ReadOptions
    ) -> tuple[ComputationGraph, ModelSource]:
        """Read a model.

        Args:
            name: a path, or the name of a model in memory; it becomes the source's path.
            find: resolves the name.
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
            StalePlanError: the model has changed since the source was made.
            InputError: the model is missing or cannot be read.
        """
        ...

    def runtime(self, find: Find) -> Runtime:
        """Return the runtime, which measures and executes.

        Raises:
            MissingExtraError: the library is not installed.
        """
        ...

    def companions(self, path: Path) -> tuple[Path, ...]:
        """List other files that belong to a model file, as far as they are known."""
        ...

    def small_model(self, folder: Path) -> FoundModel:
        """Make the model of `execution.small_model`; a file is written into `folder`."""
        ...


@dataclass(frozen=True)
class ModelRead:
    """A model that nothing here runs.

    Attributes:
        graph: its modules.
        source: where they came from.
        facts: what users ask of such a model, by name.
        lines: the same as sentences.
        works: makes the work of its modules for a request.
        trained_context: most tokens of a sequence; 0 if unknown.
    """

    graph: ComputationGraph
    source: ModelSource
    facts: Mapping[str, int | float | str]
    lines: tuple[str, ...]
    works: Works
    trained_context: int


class ModelReader(Protocol):
    """A folder of `frameworks/` that reads models and has no runtime."""

    name: ClassVar[str]  # equal to the folder's
    extra: ClassVar[str]  # pip install placewright[extra]
    suffixes: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str]  # of names whose files it reads, whatever their suffix
    formats: ClassVar[tuple[str, ...]]  # of sources

    def read(self, name: str, options: ReadOptions) -> ModelRead:
        """Read a model; `options.shapes` has the sizes that the reader knows.

        Raises:
            InputError: there is no such model, it cannot be read, or a size does not fit it.
            MissingExtraError: a library is not installed.
        """
        ...

    def companions(self, path: Path) -> tuple[Path, ...]:
        """List other files that belong to a model file, as far as they are known."""
        ...


@runtime_checkable
class HandsOverPrograms(Protocol):
    """A framework that loads PyTorch programs for frameworks that convert them."""

    def program_file(self, path: Path) -> ProgramFile:
        """Hand over the program in a file, which is loaded when it is needed.

        Raises:
            InputError: there is no such file.
        """
        ...


@runtime_checkable
class PreparesProcess(Protocol):
    """A framework that changes settings of the process before its first thread starts."""

    def prepare_process(self) -> None:
        """Change the settings; the command line calls it once. Imports nothing heavy."""
        ...


class StandaloneParts(Protocol):
    """A model whose segments become models that its library runs without this package."""

    @property
    def value_of_tensor(self) -> Sequence[str]:
        """Name of the value behind each tensor of the graph."""
        ...

    def standalone(self, segment: OpSegment) -> Any:
        """Make a model of a segment, an ``onnx.ModelProto``."""
        ...


@runtime_checkable
class CutsFiles(Protocol):
    """A framework whose segments can be written as files of the model's own format."""

    library: ClassVar[str]  # name as its makers write it

    def why_refused(self, file: Path, entries: Mapping[str, str]) -> str:
        """Load a file as its users will; return the library's error, or "" without one.

        Args:
            file: written by us.
            entries: of the session's configuration.
        """
        ...

    def card_provider(self, card: Device, number: str) -> tuple[str, dict[str, str]]:
        """The provider of a session on a card, with the options of our own sessions there.

        Args:
            card: a device that is no processor.
            number: of the card.
        """
        ...

    def standalone_parts(self, source: ModelSource, graph: ComputationGraph) -> StandaloneParts:
        """Make the parts of a runnable source.

        Raises:
            InputError: the model cannot be read.
        """
        ...
