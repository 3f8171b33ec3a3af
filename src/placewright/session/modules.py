"""PyTorch modules in the memory of this process: found by a name, with their example inputs."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

from placewright.errors import FieldError, InputError
from placewright.execution.framework import BuiltModule, ModelInMemory
from placewright.frameworks.runtimes import MODULE_PREFIX


class ModuleName(str):
    """Name of a module, which keeps the module alive.

    So a plan that has the name finds its module, and the module goes with its last plan. A copy in
    another process is a plain text.
    """

    module: Any

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def __deepcopy__(self, memo: Any) -> ModuleName:
        return self


@dataclass(frozen=True)
class _Remembered:
    module: Callable[[], Any]  # None once nobody holds it
    examples: Any
    form: str  # of the examples, see `_form_of`
    version: int


_modules: dict[str, _Remembered] = {}
_versions = itertools.count()


def remember_module(module: Any, example_inputs: Any) -> ModuleName:
    """Return a name that finds a module with its example inputs, as long as the module lives.

    Example inputs of other shapes or types make another program, and thus have another name.

    Args:
        example_inputs: its positional inputs; a single one may stand alone. Or a mapping by the
            names of its arguments.

    Raises:
        FieldError: it has no argument of a name.
    """
    if isinstance(example_inputs, Mapping):
        examples: Any = _in_own_order(module, example_inputs)
    else:
        # One tensor is the only input. As a sequence it would be its own rows.
        alone = hasattr(example_inputs, "shape")
        examples = (example_inputs,) if alone else tuple(example_inputs)
    form, first = _form_of(examples), f"{MODULE_PREFIX}{type(module).__name__}"
    names = itertools.chain([first], (f"{first}#{number}" for number in itertools.count(2)))
    name = ModuleName(next(name for name in names if _is_free(name, module, form)))
    name.module = module
    held = _weakly(module, str(name))
    # A new version, since the module may be in another mode now.
    _modules[str(name)] = _Remembered(held, examples, form, next(_versions))
    return name


def _is_free(name: str, module: Any, form: str) -> bool:
    """True if a name is unused, or that of the same module with such example inputs."""
    known = _modules.get(name)
    return known is None or (known.module() is module and known.form == form)


def _weakly(module: Any, name: str) -> Callable[[], Any]:
    try:
        return ref(module, lambda _: _modules.pop(name, None))
    except TypeError:  # what is no module is refused later, by its name
        return lambda: module


def _form_of(examples: Any) -> str:
    """A text, equal for example inputs of equal structure, shapes, types and numbers."""
    if isinstance(examples, Mapping):
        return "{" + ", ".join(f"{key!r}: {_form_of(examples[key])}" for key in examples) + "}"
    if isinstance(examples, list | tuple):
        return f"{type(examples).__name__}({', '.join(map(_form_of, examples))})"
    if hasattr(examples, "shape"):
        return f"{getattr(examples, 'dtype', None)} {tuple(examples.shape)}"
    is_plain = examples is None or isinstance(examples, int | float | str)
    return repr(examples) if is_plain else type(examples).__name__


def _in_own_order(module: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    known = inspect.signature(module.forward).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in known.values())
    for name in given:
        if name not in known and not takes_all:
            raise FieldError(
                "example_inputs",
                f"{type(module).__name__} has no argument '{name}'; it has {', '.join(known)}",
            )
    first = [name for name in known if name in given]
    return {name: given[name] for name in (*first, *(n for n in given if n not in known))}


def module_in_memory(name: str) -> ModelInMemory:
    """Find a module by its name.

    Raises:
        InputError: this process does not have it, or no longer.
    """
    known = _modules.get(name)
    module = None if known is None else known.module()
    if known is None or module is None:
        raise InputError(
            f"'{name}' was a module in the memory of another process, or nothing holds it any "
            "more; pass it as `model` with its `example_inputs`, or export it to a .pt2 file "
            "(torch.export.save) and place that"
        )
    version, examples = f"{known.version} {content_of(name)}", known.examples
    return ModelInMemory(name, version, lambda is_training: BuiltModule(module, examples))


def content_of(name: str) -> int | None:
    """A number that changes if a parameter or buffer is written to, replaced, frozen or freed.

    None if the name finds no module. Writes through ``tensor.data`` change nothing here, because
    PyTorch does not count them.
    """
    known = _modules.get(name)
    parts = getattr(None if known is None else known.module(), "modules", None)
    if parts is None:
        return None
    tensors = (
        tensor
        for part in parts()
        for tensor in (*part._parameters.values(), *part._buffers.values())
        if tensor is not None
    )
    return hash(tuple(map(_state_of, tensors)))


def _state_of(tensor: Any) -> tuple[int, int, bool]:
    try:
        return tensor.data_ptr(), tensor._version, tensor.requires_grad
    except RuntimeError:  # a tensor of inference mode has no version, one of a class no address
        return id(tensor), 0, tensor.requires_grad
