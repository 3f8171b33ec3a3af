"""Execution models by name, as files and the command line have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from placewright.core.execution_models import EXECUTION_MODELS, ExecutionModel
from placewright.errors import InputError, UnknownNameError

MODEL_NAMES = tuple(model.name for model in EXECUTION_MODELS)
# Parameters with a key of their own in every problem file, and what models without them write.
_WEIGHTS_ONLY, _ONE_PIECE, _ONE_MAXIMUM = 0, 1, False
_COLUMNS: Mapping[str, tuple[str, Any]] = {
    "samples_in_flight": ("samples_in_flight", _WEIGHTS_ONLY),
    "per_accelerator": ("subgraphs_per_accelerator", _ONE_PIECE),
    "split_phases": ("split_phases", _ONE_MAXIMUM),
}


def model_of(name: str, **parameters: Any) -> ExecutionModel:
    """The execution model of a name; no samples in flight where none are said.

    Args:
        name: of the model.
        parameters: by the names of its fields. Those that every problem file has are left out where
            the model does not have them.

    Raises:
        UnknownNameError: there is no such model.
        InputError: it has no such parameter, or one is out of range.
    """
    for model in EXECUTION_MODELS:
        if model.name == name:
            break
    else:
        raise UnknownNameError("execution model", name, MODEL_NAMES)
    own = {field.name for field in fields(model)}
    given = {key: value for key, (_, value) in _COLUMNS.items() if key in own}
    for key, value in parameters.items():
        if key in own:
            given[key] = value
        elif key not in _COLUMNS:
            raise InputError(f"execution model '{name}' has no parameter '{key}'")
    return model(**given)


def model_entries(model: ExecutionModel) -> dict[str, Any]:
    """Parameters as a problem file keeps them: those of earlier versions always, others by name.

    Others with their default are left out, so that earlier files keep their content.
    """
    own = asdict(model)
    entries = {column: own.pop(key, value) for key, (column, value) in _COLUMNS.items()}
    own = {
        field.name: own[field.name]
        for field in fields(model)
        if field.name in own and own[field.name] != field.default
    }
    return {**entries, "execution_parameters": own} if own else entries
