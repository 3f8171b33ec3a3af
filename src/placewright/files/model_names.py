"""Execution models by name, for files and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from placewright.core.execution_models import EXECUTION_MODELS, ExecutionModel
from placewright.errors import InputError, UnknownNameError
from placewright.io.opened import shown_name

_KINDS = {int: "a whole number", bool: "true or false", str: "a text"}  # of parameters
MODEL_NAMES = tuple(model.name for model in EXECUTION_MODELS)
# Parameters with an own key in every problem file, and their values for models without them.
_WEIGHTS_ONLY, _ONE_PIECE, _ONE_MAXIMUM = 0, 1, False
_COLUMNS: Mapping[str, tuple[str, Any]] = {
    "samples_in_flight": ("samples_in_flight", _WEIGHTS_ONLY),
    "per_accelerator": ("subgraphs_per_accelerator", _ONE_PIECE),
    "split_phases": ("split_phases", _ONE_MAXIMUM),
}


def model_of(name: str, /, **parameters: Any) -> ExecutionModel:
    """The execution model with a name; by default with 0 samples in flight.

    Args:
        parameters: values of its fields. Parameters of `_COLUMNS` are ignored if the model lacks
            them.

    Raises:
        UnknownNameError: there is no such model.
        InputError: it has no such parameter, or one is out of range.
    """
    for model in EXECUTION_MODELS:
        if model.name == name:
            break
    else:
        raise UnknownNameError("execution model", name, MODEL_NAMES)
    own = {field.name: type(field.default) for field in fields(model)}
    values = {key: value for key, (_, value) in _COLUMNS.items() if key in own}
    for key, value in parameters.items():
        if key in own and type(value) is not own[key]:
            kind = _KINDS[own[key]]
            raise InputError(
                f"{key} of execution model '{name}' must be {kind}, got {shown_name(repr(value))}"
            )
        if key in own:
            values[key] = value
        elif key not in _COLUMNS:
            raise InputError(f"execution model '{name}' has no parameter '{key}'")
    return model(**values)


def model_entries(model: ExecutionModel) -> dict[str, Any]:
    """Parameters for a problem file: those of `_COLUMNS` always, others unless they are default.

    Without default values, files of earlier versions keep their content.
    """
    own = asdict(model)
    entries = {column: own.pop(key, value) for key, (column, value) in _COLUMNS.items()}
    own = {
        field.name: own[field.name]
        for field in fields(model)
        if field.name in own and own[field.name] != field.default
    }
    return {**entries, "execution_parameters": own} if own else entries
