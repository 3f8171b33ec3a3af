"""The main job in a few lines of Python: read, discover, profile, place, run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placewright.core.cluster import Cluster
from placewright.core.plan import Plan
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.files.quantities import parse_seconds
from placewright.profiling.hardware import placement_runner
from placewright.profiling.profile import profile as profile_graph
from placewright.runtimes.registry import make_runtime
from placewright.workflow import devices, search
from placewright.workflow.models import Model, load_model, runnable_source
from placewright.workflow.running import loaded_model
from placewright.workflow.runtimes import RUNTIME_OF_FORMAT


def read(
    model: str,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    runtime: str | None = None,
) -> Model:
    """Read a model file, or ``"zoo:NAME"``, as `runtime` sees it; None is OpenVINO.

    Raises:
        InputError: it is missing or cannot be read.
    """
    return load_model(str(model), shapes=shapes, runtime=runtime)


def discover(names: str | None = None, *, runtime: str | None = None) -> Cluster:
    """This machine's devices with measured links; `names` as in ``--devices``."""
    return devices.discover(names, runtime=runtime)


def profile(
    model: Model,
    cluster: Cluster,
    *,
    objective: Objective = "latency",
    runtime: str | None = None,
) -> Problem:
    """Measure every unit of a model on every device (once: results are kept).

    Raises:
        InputError: the model has no source to run.
    """
    if model.problem is not None:
        return model.problem
    if model.source is None:
        raise InputError("this graph has no model behind it; read the model itself")
    own = RUNTIME_OF_FORMAT.get(model.source.format, devices.DEFAULT_RUNTIME)
    chosen = make_runtime(runtime or own)
    loaded = chosen.load(runnable_source(model.source), model.graph)
    return profile_graph(
        model.graph, model.source, cluster, chosen, objective=objective, model=loaded
    )


def place(
    problem: Problem,
    *,
    budget: str | Budget = "30s",
    placer: str = "auto",
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    runtime: str | None = None,
) -> Plan:
    """Find a placement; `budget` is a text such as ``"30s"`` or a `Budget`."""
    limit = budget if isinstance(budget, Budget) else Budget(seconds=parse_seconds(budget))
    return search.place(
        problem, placer=placer, settings=settings, budget=limit, seed=seed, runtime=runtime
    )


def run(plan: Plan, inputs: Sequence[Any] | None = None) -> list[Any]:
    """Execute a plan once; the graph outputs as NumPy arrays.

    Args:
        plan: from `place` or `read_plan`.
        inputs: one array per graph input, in the graph's order; None takes random ones.
    """
    import numpy as np

    model = loaded_model(plan.problem, plan.runtime)
    values = model.random_inputs(np.random.default_rng(0)) if inputs is None else list(inputs)
    with placement_runner(plan.problem, plan.placement, model) as runner:
        return list(runner.run(values).outputs)
