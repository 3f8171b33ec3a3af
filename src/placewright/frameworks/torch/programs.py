"""Cache of read PyTorch models, inferences and training steps, which the runtime uses again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.core.source import ModelSource
from placewright.errors import FieldError, InputError, StalePlanError
from placewright.execution.allocator import share_one_arena
from placewright.execution.exported_program import EXPORTING, Interface, ProgramFile
from placewright.execution.framework import Find, FoundModel, ModelInMemory, ReadOptions
from placewright.execution.state_pairs import asked_of
from placewright.frameworks.torch.reading.fx_program import (
    TRAINING,
    FxInterface,
    FxProgram,
    ReadProgram,
    state_behind_outputs,
)
from placewright.io.content import existing_path

if TYPE_CHECKING:
    from torch.export import ExportedProgram

FORMATS = ("torch", TRAINING)
_MOST_MODELS = 2  # that stay read; programs for several shapes of a model share its weights
_MOST_PROGRAMS = 16  # of a model


@dataclass(frozen=True)
class TorchOptions:
    """Options of the reader of a PyTorch model."""

    training: bool = False  # the whole training step instead of one inference
    optimizer: str = "sgd"  # of the training step, as `training.optimizers.rule_of` takes it
    colocate_backward: bool = False  # every backward op shares a device with its forward op
    fold_constants: bool = True  # of inference; False keeps ops that depend only on weights
    # of a program with open dimensions, pairs of input name and dimensions
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dropout: bool = False  # the training step draws random numbers
    state: tuple[tuple[str, str], ...] = ()  # of inference; pairs of output name and input name

    @classmethod
    def of_request(cls, options: ReadOptions) -> TorchOptions:
        """The options of a request."""
        return cls(
            options.is_training,
            options.optimizer,
            options.colocate_backward,
            options.fold_constants,
            tuple((name, tuple(shape)) for name, shape in sorted(options.shapes.items())),
            options.dropout,
            tuple(options.state.items()),
        )

    @classmethod
    def of_source(cls, source: ModelSource) -> TorchOptions:
        """The options that a source was read with."""
        options = source.options
        return cls(
            training=source.format == TRAINING,
            optimizer=options.get("optimizer", "sgd"),
            colocate_backward=options.get("colocate_backward") == "yes",
            fold_constants=options.get("fold_constants") != "no",
            shapes=tuple(sorted(source.shapes.items())) if "open_dimensions" in options else (),
            dropout=options.get("dropout") == "yes",
            state=tuple(asked_of(options).items()),
        )


_programs: dict[tuple[object, ...], ReadProgram] = {}


def read_torch_model(name: str, find: Find, options: TorchOptions) -> ReadProgram:
    """Read a model in memory or a ``.pt2`` file.

    Args:
        options: how it is read.

    Raises:
        InputError: there is no such model, or it cannot be read.
        UnknownNameError: the zoo has no such model or variant.
    """
    share_one_arena()  # reading starts threads that end
    own = str(name)
    read = _programs.get((own, options, _stamp(find(name))))
    if read is None:
        with EXPORTING:
            read = _kept_or_read(name, find, options)
    if read.source.path != own:
        return read
    # The name of a module keeps the module alive, and this cache does not.
    return replace(read, source=replace(read.source, path=name))


def _kept_or_read(name: str, find: Find, options: TorchOptions) -> ReadProgram:
    """Look again, since another thread may have read the model meanwhile, and otherwise read it."""
    model, own = find(name), str(name)
    stamp = _stamp(model)
    key = (own, options, stamp)
    if key in _programs:
        return _programs[key]
    for other in [other for other in _programs if other[0] == own and other[2] != stamp]:
        del _programs[other]  # the model has changed
    _make_room(own)
    read = _read(own, model, options)
    if isinstance(model, ModelInMemory):
        # To read a step runs the module, and then puts back the buffers that it changed.
        key = (own, options, _stamp(find(name)))
    _programs[key] = read
    return read


def _make_room(own: object) -> None:
    """Forget the models and the programs that were read first, before one more of a model."""
    models = list(dict.fromkeys(key[0] for key in _programs if key[0] != own))
    mine = [key for key in _programs if key[0] == own]
    gone = [key for key in _programs if key[0] in models[: 1 - _MOST_MODELS]]
    for key in gone + mine[: max(0, len(mine) + 1 - _MOST_PROGRAMS)]:
        del _programs[key]


def load_torch_program(source: ModelSource, find: Find) -> FxProgram:
    """Load the program behind a source, for the runtime.

    Raises:
        StalePlanError: the model has changed since the source was made.
        InputError: it cannot be read.
    """
    if source.format not in FORMATS:
        raise InputError(
            f"model '{source.path}' was read for another runtime (as {source.format}); "
            "leave out argument `runtime` torch, or place it again with it"
        )
    read = read_torch_model(source.path, find, TorchOptions.of_source(source))
    if read.source.sha256 != source.sha256:
        raise StalePlanError(
            f"model '{source.path}' has changed: its sha256 is {read.source.sha256[:12]}, "
            f"expected {source.sha256[:12]}; place it again"
        )
    return read.program


def program_file(path: Path | str) -> ProgramFile:
    """Hand over the program in a ``.pt2`` file, which is loaded when it is needed.

    Raises:
        InputError: there is no such file.
    """
    return ProgramFile(existing_path(path), _loaded)


def _loaded(path: Path) -> tuple[ExportedProgram, Interface]:
    from placewright.frameworks.torch.pt2.file import load_program, refused_in_one_line
    from placewright.frameworks.torch.reading.reader import functional

    program = load_program(path)
    with refused_in_one_line(path):
        interface = FxInterface.of(program)
        lost = state_behind_outputs(functional(program))
    if lost:
        raise InputError(
            f"'{path}' changes '{lost[0]}' in each call, which a converted file does not keep; "
            "place it with argument `runtime` torch"
        )
    return program, Interface(interface.input_names, interface.output_names, interface.state)


def _stamp(model: FoundModel) -> object:
    """A value that changes if the content may have changed."""
    if isinstance(model, ModelInMemory):
        return model.version
    try:
        status = _path_of(model).stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size)


def _path_of(model: Path | ProgramFile) -> Path:
    return model if isinstance(model, Path) else model.path


def _read(name: str, model: FoundModel, options: TorchOptions) -> ReadProgram:
    if not isinstance(model, ModelInMemory):
        path = _path_of(model)
        if path.suffix.lower() != ".pt2":
            raise InputError(
                f"PyTorch runs zoo models and .pt2 files, not '{name}'; leave out argument "
                "`runtime` torch, or export the module with torch.export.save"
            )
        read = _of_program(path, (), "", options)
        return replace(read, source=replace(read.source, path=str(path)))
    built = model.build(options.training)
    import torch

    if not isinstance(built.module, torch.nn.Module):
        raise InputError(
            f"{type(built.module).__name__} is no module; pass a torch.nn.Module, or the path of a "
            "file: save a model of another library, or a program with torch.export.save"
        )
    names = built.input_names if options.training else ()
    read = _of_program(built.module, built.example_inputs, name, options, names)
    source = read.source if options.training else built.named_ports(read.source)
    return replace(read, source=replace(source, path=name))


def _of_program(
    model: Any,
    examples: Sequence[Any],
    name: str,
    options: TorchOptions,
    input_names: Sequence[str] = (),
) -> ReadProgram:
    if options.training:
        if options.state:
            raise FieldError("state", "is of inference; a training step keeps its own state")
        from placewright.frameworks.torch.training.step import read_training

        return read_training(
            model,
            examples,
            input_names=input_names,
            optimizer=options.optimizer,
            colocate_backward=options.colocate_backward,
            dropout=options.dropout,
            name=name,
        )
    from placewright.frameworks.torch.reading.reader import read_inference

    return read_inference(
        model,
        examples,
        name=name,
        fold_constants=options.fold_constants,
        shapes=dict(options.shapes),
        state=dict(options.state),
    )
