"""The main job in a few lines of Python: read, discover, profile, place, run, compare.

All are thin views of a `Session`, as the commands are.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from placewright.core.cluster import Cluster
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.errors import FieldError, RuntimeFailure
from placewright.execution.inputs import GivenInputs
from placewright.report.comparison_table import ComparisonTable
from placewright.report.plan_text import limit_warning
from placewright.session import devices
from placewright.session.checked_plan import read_plan
from placewright.session.kept_plans import KEPT
from placewright.session.loaded_plan import LoadedPlan
from placewright.session.models import Model
from placewright.session.request import COMPARED, PROFILED, READ
from placewright.session.running import loaded_model
from placewright.session.session import Session
from placewright.session.signatures import takes_fields
from placewright.session.streaming import require_streamable
from placewright.session.whatif import Simulated


@takes_fields(*READ)
def read(model: Any, example_inputs: Sequence[Any] = (), **said: Any) -> Model:
    """Read a model as `runtime` sees it; None is OpenVINO, PyTorch for modules and for training.

    Args:
        model: a path, ``"zoo:NAME"``, or a PyTorch module (one that returns its loss, where the
            objective is training).
        example_inputs: positional inputs of a module.
        said: `shapes`, `runtime`, `objective`, `optimizer` or `colocate_backward` of a `Request`.

    Raises:
        InputError: it is missing or cannot be read.
    """
    return Session(model, example_inputs=tuple(example_inputs), **said).model


def discover(names: str | None = None, *, runtime: str | None = None) -> Cluster:
    """This machine's devices with measured links; `names` as in ``--devices``."""
    return devices.discover(names, runtime=runtime)


@takes_fields("example_inputs", "ray", *PROFILED)
def profile(model: Any, cluster: Any = None, **said: Any) -> Problem:
    """Measure every unit of a model on every device, and calibrate (once: results are kept).

    The same as `placewright profile`: what cuts, dispatch and contention cost is part of it.

    Args:
        model: from `read`, or whatever `read` takes.
        cluster: of the devices, or its file; None is what `devices` names. With `ray` these are
            devices of a cluster's hosts, each measured on its own.
        said: fields of a `Request`.

    Raises:
        UnknownNameError: the model has no such input.
        InputError: the model has no source to run, or samples are given and nothing counts them.
    """
    if isinstance(model, Model) and model.problem is not None:
        cluster = None  # the model's own
    session = Session(model, cluster=cluster, **said)
    if session.request.ray is not None:
        from placewright.session.hosts import profile_on_hosts

        return profile_on_hosts(session.request).problem
    return session.profile()


@takes_fields()
def place(model: Any, **said: Any) -> Plan:
    """Find a placement of a model or of a problem: the same as `placewright place`.

    A model is read, measured, searched, and its plan checked on the hardware. A problem in memory
    is only searched, unless ``check=True``. Where memory limits hold for weights only, a Python
    warning says what they leave out.

    Args:
        model: a path, ``"zoo:NAME"``, a PyTorch module, what `read` gave, or a problem.
        said: fields of a `Request`, such as ``devices="cpu:0,cpu:1"``, ``pins={"op": "cpu:0"}``,
            ``memory={"cpu:1": "2GiB"}``, ``objective="throughput"``, ``budget="10s"``.

    Raises:
        InputError: the request is wrong; the message names the field.
        InfeasibleError: no placement satisfies the constraints, or none was found.
        MismatchError: outputs differ from the unsplit model's.
        OutOfTime: the total ended before there was a plan.
    """
    plan = Session(model, **said).place()
    if text := limit_warning(plan.problem):
        warnings.warn(text, stacklevel=3)
    return plan


@takes_fields("example_inputs", *COMPARED)
def compare(
    model: Any,
    placers: str | Sequence[str] = ("heft", "local-search", "random"),
    *,
    seeds: int = 1,
    results: str | os.PathLike[str] | None = None,
    **said: Any,
) -> ComparisonTable:
    """Several placers under one evaluator and one budget: the same as `placewright compare`.

    Args:
        model: as in `place`.
        placers: names; ``name:key=value:...`` sets hyperparameters of that one.
        seeds: runs per placer, seeds 0 .. seeds - 1.
        results: a file that keeps each run, so that runs found in it are not repeated.
        said: fields of a `Request`; the budget is that of every single run.

    Raises:
        InputError: the request is wrong, or a placer does not take the problem.
    """
    from placewright.session.parsing import parse_names

    names = parse_names(placers) if isinstance(placers, str) else list(placers)
    path = None if results is None else os.fspath(results)
    return Session(model, **said).compare(names, seeds=seeds, results=path)


def simulate(plan: Plan, changes: Mapping[str, str] | None = None) -> Simulated:
    """What a plan is predicted to do, with some ops moved: op name -> device name.

    Raises:
        GraphError, UnknownNameError: there is no such op or device.
        InfeasibleError: the changed placement breaks a constraint; the message says which one.
    """
    return Session(plan).simulate(plan, changes)


def load(
    plan: Plan | str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    in_flight: int | None = None,
) -> LoadedPlan:
    """Load a plan once, to call it many times from any thread.

    >>> with pw.load("plan.json") as model:  # doctest: +SKIP
    ...     scores = model(image)["scores"]

    The plan runs in the way that was recommended when it was measured. An unsplit model runs in the
    thread that calls it, on whichever core that is.

    Args:
        plan: from `place` or `read_plan`, or the path of its file.
        model: where the model of a plan's file is now; None is the place that the file names.
        in_flight: calls under way at most, further ones wait; None is as many as pay.

    Returns:
        What runs it; closing it, or the end of its ``with``, frees all that it holds.

    Raises:
        InputError: the plan cannot be executed here, or is of a training step.
        StalePlanError: the model is no longer the one that the plan was made for.
        RuntimeFailure: the runtime refuses a segment.
    """
    if isinstance(plan, Plan):
        if model is not None:
            raise FieldError("model", "goes with the path of a plan; read_plan takes it, too")
        found = plan
    else:
        found = read_plan(os.fspath(plan), model=None if model is None else os.fspath(model))
    require_streamable(found)
    return LoadedPlan(found, loaded_model(found.problem, found.runtime), in_flight=in_flight)


def unload() -> None:
    """Free the plans that `run` and `stream` keep loaded between calls."""
    KEPT.clear()


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

    The plan stays loaded for the next call, within 1 GiB for all plans or as many bytes as the
    environment variable ``PLACEWRIGHT_KEPT_PLANS`` says; `unload` frees them. A training step is
    loaded for each call.

    Args:
        plan: from `place` or `read_plan`.
        inputs: one array per input in the model's order, or name -> array; None takes random ones.

    Returns:
        All outputs in the model's order; name -> output where the inputs came by name.

    Raises:
        InputError: an input is missing or unknown, or has another shape or type; the message names
            it and says what is expected.
    """
    return Session(plan).run(plan, inputs)


def stream(
    plan: Plan,
    samples: Iterable[GivenInputs],
    *,
    in_flight: int | None = None,
    errors: Literal["raise", "yield"] = "raise",
) -> Iterator[list[Any] | dict[str, Any] | RuntimeFailure]:
    """Run samples that follow each other through a plan, several of them in flight.

    Where a measurement recommended a way that no placement can express (a copy of the model per
    device, the runtime's own throughput mode), the samples run that way.

    Outputs come in the order of the samples. With F in flight, sample k + F is taken from `samples`
    only after the caller took the outputs of sample k and asks for the next ones. Where outputs are
    fed back, as a recurrent state is, F is 1.

    Args:
        plan: from `place` or `read_plan`.
        samples: inputs of each sample as `run` takes them: a sequence in the model's order, or a
            mapping by name.
        in_flight: samples taken whose outputs were not, at most, >= 1; None takes as many as keep
            all devices busy and fit into their memory, as the simulator plays it.
        errors: ``"raise"`` ends with the first sample that fails; ``"yield"`` gives its error in
            place of its outputs and goes on.

    Yields:
        Outputs of each sample: a list where its inputs were a sequence, a mapping by name where
        they were a mapping.

    Raises:
        InputError: the plan cannot be streamed, or a sample's inputs are wrong; the message names
            the sample and the input.
        RuntimeFailure: a sample failed; the message names it and its segment.
    """
    return Session(plan).stream(plan, samples, in_flight=in_flight, errors=errors)
