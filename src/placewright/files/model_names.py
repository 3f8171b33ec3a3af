"""Execution models by name, as files and the command line have them."""

from __future__ import annotations

from typing import Any

from placewright.core.execution_models import (
    EXECUTION_MODELS,
    ExecutionModel,
    MaxLoad,
    SubgraphIP,
)
from placewright.errors import UnknownNameError

MODEL_NAMES = tuple(model.name for model in EXECUTION_MODELS)


def model_of(
    name: str,
    *,
    samples_in_flight: int = 0,
    per_accelerator: int = 1,
    split_phases: bool = False,
) -> ExecutionModel:
    """The execution model of a name with the parameters that it has; it ignores the others.

    Raises:
        UnknownNameError: there is no such model.
        InputError: a parameter is out of range.
    """
    for model in EXECUTION_MODELS:
        if model.name == name:
            break
    else:
        raise UnknownNameError("execution model", name, MODEL_NAMES)
    if model is MaxLoad:
        return MaxLoad(samples_in_flight, split_phases)
    return SubgraphIP(per_accelerator) if model is SubgraphIP else model()


def model_parameters(model: ExecutionModel) -> dict[str, Any]:
    """Parameters as a problem file keeps them: of all models, whichever of them has them."""
    steady = model if isinstance(model, MaxLoad) else MaxLoad(samples_in_flight=0)
    serial = model if isinstance(model, SubgraphIP) else SubgraphIP()
    return {
        "samples_in_flight": steady.samples_in_flight,
        "subgraphs_per_accelerator": serial.per_accelerator,
        "split_phases": steady.split_phases,
    }
