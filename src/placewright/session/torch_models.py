"""PyTorch models by name: inference and training steps, for reading and for the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.core.source import ModelSource
from placewright.errors import InputError, StalePlanError
from placewright.frameworks.torch.running.allocator import share_one_arena
from placewright.session.zoo_source import ZooSource

if TYPE_CHECKING:
    from placewright.frameworks.torch.reading.fx_program import FxProgram, ReadProgram

ZOO_PREFIX = "zoo:"
MODULE_PREFIX = "module:"
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
    """

    training: bool = False
    optimizer: str = "sgd"
    colocate_backward: bool = False
    fold_constants: bool = True

    @classmethod
    def of_source(cls, source: ModelSource) -> TorchOptions:
        """The options that a source was read with."""
        given = source.options
        return cls(
            training=source.format == TRAINING,
            optimizer=given.get("optimizer", "sgd"),
            colocate_backward=given.get("colocate_backward") == "yes",
            fold_constants=given.get("fold_constants") != "no",
        )


_programs: dict[tuple[object, ...], ReadProgram] = {}
_modules: dict[str, tuple[Any, tuple[Any, ...]]] = {}


def read_torch_model(name: str, options: TorchOptions) -> ReadProgram:
    """Read ``zoo:NAME``, a ``.pt2`` file, or a module that `remember_module` knows.

    Raises:
        InputError: there is no such model, or it cannot be read.
        UnknownNameError: the zoo has no such model or variant.
    """
    share_one_arena()  # reading starts threads that end
    key = (name, options, _stamp(name))
    if key not in _programs:
        while len(_programs) >= _KEPT:
            del _programs[next(iter(_programs))]
        _programs[key] = _read(name, options)
    return _programs[key]


def remember_module(module: Any, example_inputs: Sequence[Any]) -> str:
    """Keep a module for as long as this process lives; the name under which it is found."""
    name = f"{MODULE_PREFIX}{type(module).__name__}"
    number = 1
    while name in _modules and _modules[name][0] is not module:
        number += 1
        name = f"{MODULE_PREFIX}{type(module).__name__}#{number}"
    _modules[name] = (module, tuple(example_inputs))
    for key in [key for key in _programs if key[0] == name]:
        del _programs[key]  # its weights may be others now
    return name


def load_torch_program(source: ModelSource) -> FxProgram:
    """What `frameworks.torch.running.runtime` asks for: the program behind a source.

    Raises:
        StalePlanError: the model is no longer the one that the source was made from.
        InputError: it cannot be read.
    """
    if source.format not in FORMATS:
        raise InputError(
            f"model '{source.path}' was read for another runtime (as {source.format}); "
            "leave out --runtime torch, or place it again with it"
        )
    found = read_torch_model(source.path, TorchOptions.of_source(source))
    if found.source.sha256 != source.sha256:
        raise StalePlanError(
            f"model '{source.path}' has changed: its sha256 is {found.source.sha256[:12]}, "
            f"expected {source.sha256[:12]}; place it again"
        )
    return found.program


def _stamp(name: str) -> object:
    """Changes when a file does."""
    if ":" in name and not Path(name).exists():
        return None
    try:
        status = Path(name).stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size)


def _read(name: str, options: TorchOptions) -> ReadProgram:
    if name.startswith(ZOO_PREFIX):
        return _from_zoo(name, options)
    if name.startswith(MODULE_PREFIX):
        if name not in _modules:
            raise InputError(
                f"'{name}' was a module in the memory of another process; export it to a .pt2 "
                "file (torch.export.save) and place that"
            )
        module, examples = _modules[name]
        return _of_module(module, examples, name, options)
    path = Path(name)
    if path.suffix.lower() != ".pt2":
        raise InputError(
            f"PyTorch runs zoo models and .pt2 files, not '{name}'; leave out --runtime torch, or "
            "export the module with torch.export.save"
        )
    return _of_module(path, (), "", options)


def _from_zoo(name: str, options: TorchOptions) -> ReadProgram:
    zoo = ZooSource.named(name.removeprefix(ZOO_PREFIX))
    built = zoo.built
    if not options.training:
        found = _of_module(built.module, built.example_inputs, name, options)
        return replace(found, source=zoo.named_ports(found.source))
    from placewright.zoo.training import training_of

    step = training_of(built)
    return _of_module(step.module, step.example_inputs, name, options, step.input_names)


def _of_module(
    model: Any,
    examples: Sequence[Any],
    name: str,
    options: TorchOptions,
    input_names: Sequence[str] = (),
) -> ReadProgram:
    if options.training:
        from placewright.frameworks.torch.training.step import read_training

        found = read_training(
            model,
            examples,
            input_names=input_names,
            optimizer=options.optimizer,
            colocate_backward=options.colocate_backward,
            name=name,
        )
    else:
        from placewright.frameworks.torch.reading.inference import read_inference

        found = read_inference(model, examples, name=name, fold_constants=options.fold_constants)
    return replace(found, source=replace(found.source, path=name or str(model)))
