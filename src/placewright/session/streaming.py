"""Plans with a stream of samples: outputs in order, as samples come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Literal

from placewright.core.contender_names import PLAN, UNSPLIT_STREAMS
from placewright.core.plan import Plan
from placewright.errors import InputError, PlacewrightError, RuntimeFailure
from placewright.execution.inputs import GivenInputs, checked_inputs, named_outputs
from placewright.execution.requests import Execution
from placewright.execution.runtime import LoadedModel
from placewright.execution.sample_server import SampleServer
from placewright.profiling.streams import stream_runner
from placewright.session.running import loaded_model, require_model
from placewright.session.stream_ways import stream_server, stream_ways
from placewright.simulation.model import Simulator

LEAST_SAMPLES = 20

Outputs = list[Any] | dict[str, Any]


def stream(
    plan: Plan,
    model: LoadedModel,
    samples: Iterable[GivenInputs],
    *,
    in_flight: int | None = None,
    errors: Literal["raise", "yield"] = "raise",
) -> Iterator[Outputs | RuntimeFailure]:
    """Run samples through a plan by its model; see `session.facade.stream`."""
    if errors not in ("raise", "yield"):
        raise InputError(f"errors is 'raise' or 'yield', got '{errors}'")
    if in_flight is not None and in_flight < 1:
        raise InputError(f"in-flight must be >= 1, got {in_flight}")
    return _outputs(plan, model, samples, in_flight, keeps_going=errors == "yield")


def _outputs(
    plan: Plan,
    model: LoadedModel,
    samples: Iterable[GivenInputs],
    in_flight: int | None,
    *,
    keeps_going: bool,
) -> Iterator[Outputs | RuntimeFailure]:
    by_name: list[bool] = []

    def checked() -> Iterator[list[Any]]:
        for number, given in enumerate(samples):
            try:
                values = checked_inputs(model, given)
            except PlacewrightError as error:
                raise type(error)(f"sample {number}: {error}") from None
            by_name.append(isinstance(given, Mapping))
            yield values

    with ExitStack() as stack:
        server = recommended_server(plan, model, stack, in_flight=in_flight)
        for number, answer in enumerate(server.outcomes(checked())):
            if isinstance(answer, Execution):
                outputs = answer.outputs
                named = by_name[number]
                yield named_outputs(model.signature, outputs) if named else list(outputs)
                continue
            failure = RuntimeFailure(f"sample {number}: {answer}")
            if not keeps_going:
                raise failure from answer
            yield failure


def require_streamable(plan: Plan) -> None:
    """Refuse a plan through which samples cannot follow each other, before its model is loaded.

    Raises:
        InputError: they cannot; the message says why.
    """
    problem = plan.problem
    if problem.objective == "training":
        raise InputError(
            "a training step changes its weights, so that the next one must wait for it: a plan "
            "for training has no stream; place for throughput or latency"
        )
    if problem.costs.source != "measured" or problem.time_unit != "s":
        raise InputError(
            f"its costs are '{problem.costs.source}' in {problem.time_unit}; place a model on "
            "devices of this machine to stream samples through it"
        )
    require_model(problem)


def streamable(plan: Plan, model: LoadedModel | None = None) -> LoadedModel:
    """The model of a plan, where samples can follow each other through it; `model` if it is loaded.

    Raises:
        InputError: they cannot; the message says why.
    """
    require_streamable(plan)
    return model or loaded_model(plan.problem, plan.runtime)


def kept_way(plan: Plan) -> str:
    """The way that a plan is to be run for a stream: its placement, or what was recommended."""
    measured = plan.measured
    if measured is not None and measured.recommendation in UNSPLIT_STREAMS:
        return measured.recommendation
    return PLAN


def recommended_server(
    plan: Plan, model: LoadedModel, stack: ExitStack, *, in_flight: int | None = None
) -> SampleServer:
    """What runs a plan's samples the recommended way; `stack` closes it.

    Raises:
        InfeasibleError: so many samples do not fit into a device's memory.
    """
    allowed = in_flight or plan.in_flight
    name = kept_way(plan)
    if name != PLAN:
        ways = stream_ways(plan, model, in_flight=allowed)
        if name in ways.names:
            return stream_server(plan, model, ways, name, stack, in_flight=in_flight)
    if allowed is None:
        played = Simulator(plan.problem).stream(plan.placement, samples=LEAST_SAMPLES)
        allowed = played.in_flight
    runner = stream_runner(plan.problem, plan.placement, model, in_flight=allowed)
    return stack.enter_context(runner)
