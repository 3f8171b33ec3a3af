"""The main job in a few lines of Python: read, discover, profile, place, run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, overload

from placewright.core.cluster import Cluster
from placewright.core.plan import Plan
from placewright.core.problem import Objective, Problem, Samples
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.execution.placements import placement_runner
from placewright.files.quantities import parse_seconds
from placewright.report.plan_text import limit_warning
from placewright.session import devices, search
from placewright.session.found_models import remember_module
from placewright.session.measuring import measured
from placewright.session.models import Model, load_model
from placewright.session.problems import resident as with_resident
from placewright.session.running import limited, loaded_model
from placewright.session.runtimes import module_runtime_name, runtime_named, runtime_of


def read(
    model: Any,
    example_inputs: Sequence[Any] = (),
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    runtime: str | None = None,
    objective: Objective = "latency",
    optimizer: str = "sgd",
) -> Model:
    """Read a model as `runtime` sees it; None is OpenVINO, PyTorch for modules and for training.

    Args:
        model: a path, ``"zoo:NAME"``, or a PyTorch module (one that returns its loss, where the
            objective is training).
        example_inputs: positional inputs of a module.
        shapes: input name -> dimensions to fix.
        runtime: by name.
        objective: ``"training"`` reads the whole training step.
        optimizer: of the training step, for example ``"adamw:learning_rate=1e-4"``.

    Raises:
        InputError: it is missing or cannot be read.
    """
    name = model if isinstance(model, str | os.PathLike) else ""
    if not isinstance(model, str | os.PathLike):
        name = remember_module(model, example_inputs)
        runtime = runtime or module_runtime_name()
    return load_model(
        str(name), shapes=shapes, runtime=runtime, objective=objective, optimizer=optimizer
    )


def discover(names: str | None = None, *, runtime: str | None = None) -> Cluster:
    """This machine's devices with measured links; `names` as in ``--devices``."""
    return devices.discover(names, runtime=runtime)


def profile(
    model: Model,
    cluster: Cluster,
    *,
    objective: Objective = "latency",
    runtime: str | None = None,
    samples_in_flight: Samples | None = None,
    resident: Sequence[str] = (),
) -> Problem:
    """Measure every unit of a model on every device, and calibrate (once: results are kept).

    The same as `placewright profile`: what cuts, dispatch and contention cost is part of it.

    Args:
        model: from `read`.
        cluster: of the devices.
        objective: what will be minimised.
        runtime: by name; None as in `read`.
        samples_in_flight: for throughput: samples whose tensors a device keeps at a time; 0 counts
            weights only, ``"pipeline"`` one for each device. None is 1 for a model that is measured
            and what a stored problem says.
        resident: names of inputs that lie where they are used before a run begins.

    Raises:
        UnknownNameError: the model has no such input.
        InputError: the model has no source to run, or samples are given and nothing counts them.
    """
    if model.problem is not None:
        return with_resident(_in_flight(model.problem, samples_in_flight), resident)
    if model.source is None:
        raise InputError("this graph has no model behind it; read the model itself")
    chosen = runtime_named(runtime or runtime_of(model.source, objective))
    problem = measured(model, cluster, chosen, objective=objective).problem
    return with_resident(_in_flight(problem, samples_in_flight), resident)


def _in_flight(problem: Problem, samples: Samples | None) -> Problem:
    return problem if samples is None else problem.with_samples_in_flight(samples)


def place(
    problem: Problem,
    *,
    budget: str | Budget = "30s",
    placer: str = "auto",
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    runtime: str | None = None,
    replicate: bool = False,
) -> Plan:
    """Find a placement; `budget` is a text such as ``"30s"`` or a `Budget`.

    With `replicate`, for throughput, groups of alike devices may take turns with the samples. Where
    memory limits hold for weights only, a Python warning says what they leave out.
    """
    if text := limit_warning(problem):
        warnings.warn(text, stacklevel=2)
    limit = budget if isinstance(budget, Budget) else Budget(seconds=parse_seconds(budget))
    return search.place(
        problem,
        placer=placer,
        settings=settings,
        budget=limit,
        seed=seed,
        runtime=runtime,
        replicate=replicate,
    )


@overload
def run(plan: Plan, inputs: Sequence[Any] | None = None) -> list[Any]: ...


@overload
def run(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any]: ...


def run(
    plan: Plan, inputs: Sequence[Any] | Mapping[str, Any] | None = None
) -> list[Any] | dict[str, Any]:
    """Execute a plan once; the model's outputs as NumPy arrays.

    Inputs and outputs have the model's own order and names: those of ``compile_model(path)``, of
    ``InferenceSession(path)``, or of the PyTorch module's arguments and result, nested ones
    flattened (``plan.problem.source.signature`` lists them).

    Args:
        plan: from `place` or `read_plan`.
        inputs: one array per input in the model's order, or name -> array; None takes random ones.

    Returns:
        All outputs in the model's order; name -> output where the inputs came by name.

    Raises:
        InputError: an input is missing or unknown, or has another shape or type; the message names
            it and says what is expected.
    """
    import numpy as np

    from placewright.execution.inputs import checked_inputs, named_outputs

    model = loaded_model(plan.problem, plan.runtime)
    given = model.random_inputs(np.random.default_rng(0)) if inputs is None else inputs
    values = checked_inputs(model, given)
    with limited(plan), placement_runner(plan.problem, plan.placement, model) as runner:
        outputs = runner.run(values).outputs
    return named_outputs(model.signature, outputs) if isinstance(inputs, Mapping) else list(outputs)
