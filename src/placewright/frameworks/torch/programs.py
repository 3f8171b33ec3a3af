"""PyTorch models that were read, kept for the runtime: inference and training steps by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.core.source import ModelSource
from placewright.errors import InputError, StalePlanError
from placewright.execution.allocator import share_one_arena
from placewright.execution.framework import Find, FoundModel, ModelInMemory, ReadOptions

if TYPE_CHECKING:
    from placewright.frameworks.torch.reading.fx_program import FxProgram, ReadProgram

TRAINING = "torch-training"  # format of the source of a training step
FORMATS = ("torch", TRAINING)
_KEPT = 2  # programs hold their weights


@dataclass(frozen=True)
class TorchOptions:
    """How a PyTorch model is read.

    Attributes:
        training: the whole training step instead of one inference.
        optimizer: of the training step, as `training.optimizers.optimizer_of` takes it.
        colocate_backward: every backward op shares a device with its forward op.
        fold_constants: of inference; False keeps ops that depend on weights alone.
        shapes: of a program with open dimensions, pairs of input name and dimensions.
    """

    training: bool = False
    optimizer: str = "sgd"
    colocate_backward: bool = False
    fold_constants: bool = True
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @classmethod
    def of_request(cls, options: ReadOptions) -> TorchOptions:
        """Those of a request that change what is read."""
        return cls(
            options.is_training,
            options.optimizer,
            options.colocate_backward,
            options.fold_constants,
            tuple((name, tuple(shape)) for name, shape in sorted(options.shapes.items())),
        )

    @classmethod
    def of_source(cls, source: ModelSource) -> TorchOptions:
        """The options that a source was read with."""
        given = source.options
        return cls(
            training=source.format == TRAINING,
            optimizer=given.get("optimizer", "sgd"),
            colocate_backward=given.get("colocate_backward") == "yes",
            fold_constants=given.get("fold_constants") != "no",
            shapes=tuple(sorted(source.shapes.items())) if "open_dimensions" in given else (),
        )


_programs: dict[tuple[object, ...], ReadProgram] = {}


def read_torch_model(name: str, find: Find, options: TorchOptions) -> ReadProgram:
    """Read a model in memory or a ``.pt2`` file.

    Args:
        name: what `find` finds.
        find: tells what the name means.
        options: how it is read.

    Raises:
        InputError: there is no such model, or it cannot be read.
        UnknownNameError: the zoo has no such model or variant.
    """
    share_one_arena()  # reading starts threads that end
    found = find(name)
    stamp = _stamp(found)
    key = (name, options, stamp)
    if key not in _programs:
        for other in [other for other in _programs if other[0] == name and other[2] != stamp]:
            del _programs[other]  # its weights are others now
        while len(_programs) >= _KEPT:
            del _programs[next(iter(_programs))]
        _programs[key] = _read(name, found, options)
    return _programs[key]


def load_torch_program(source: ModelSource, find: Find) -> FxProgram:
    """What `running.runtime` asks for: the program behind a source.

    Raises:
        StalePlanError: the model is no longer the one that the source was made from.
        InputError: it cannot be read.
    """
    if source.format not in FORMATS:
        raise InputError(
            f"model '{source.path}' was read for another runtime (as {source.format}); "
            "leave out argument `runtime` torch, or place it again with it"
        )
    found = read_torch_model(source.path, find, TorchOptions.of_source(source))
    if found.source.sha256 != source.sha256:
        raise StalePlanError(
            f"model '{source.path}' has changed: its sha256 is {found.source.sha256[:12]}, "
            f"expected {source.sha256[:12]}; place it again"
        )
    return found.program


def _stamp(found: FoundModel) -> object:
    """Changes when the content may."""
    if isinstance(found, ModelInMemory):
        return found.version
    try:
        status = (found if isinstance(found, Path) else found.path).stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size)


def _read(name: str, found: FoundModel, options: TorchOptions) -> ReadProgram:
    if not isinstance(found, ModelInMemory):
        path = found if isinstance(found, Path) else found.path
        if path.suffix.lower() != ".pt2":
            raise InputError(
                f"PyTorch runs zoo models and .pt2 files, not '{name}'; leave out argument "
                "`runtime` torch, "
                "or export the module with torch.export.save"
            )
        read = _of_program(path, (), "", options)
        return replace(read, source=replace(read.source, path=str(path)))
    built = found.build(options.training)
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
        from placewright.frameworks.torch.training.step import read_training

        return read_training(
            model,
            examples,
            input_names=input_names,
            optimizer=options.optimizer,
            colocate_backward=options.colocate_backward,
            name=name,
        )
    from placewright.frameworks.torch.reading.reader import read_inference

    return read_inference(
        model,
        examples,
        name=name,
        fold_constants=options.fold_constants,
        shapes=dict(options.shapes),
    )
