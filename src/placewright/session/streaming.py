"""Plans with a stream of samples: run them, compare every sample's outputs, measure the rate."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from placewright.core.plan import Plan
from placewright.errors import InputError, PlacewrightError, RuntimeFailure
from placewright.execution.inputs import GivenInputs, checked_inputs, named_outputs
from placewright.execution.requests import Execution
from placewright.execution.runtime import LoadedModel
from placewright.files.quantities import format_duration
from placewright.profiling.hardware import whole_model_runner
from placewright.profiling.streams import (
    CopyPerDevice,
    Streaming,
    StreamRound,
    different_samples,
    measure_streams,
    stream_runner,
    worst_sample,
)
from placewright.profiling.verdict import PLAN, Verdict, judge
from placewright.session.running import check_devices, loaded_model
from placewright.session.steps import Report, no_report
from placewright.simulation.model import Simulator
from placewright.simulation.stream.play import Stream

COPIES = "one copy per device"
ROUNDS = 9
_LEAST_SAMPLES = 20

Outputs = list[Any] | dict[str, Any]


def stream(
    plan: Plan,
    samples: Iterable[GivenInputs],
    *,
    in_flight: int | None = None,
    errors: Literal["raise", "yield"] = "raise",
) -> Iterator[Outputs | RuntimeFailure]:
    """Run samples that follow each other through a plan, several of them in flight.

    Samples are taken from `samples` as earlier ones are done, and their outputs come in the same
    order. Whoever takes outputs slowly holds the stream back: at most as many samples as may be in
    flight wait to be fetched.

    Args:
        plan: from `place` or `read_plan`.
        samples: inputs of each sample as `run` takes them: a sequence in the model's order, or a
            mapping by name.
        in_flight: samples under way at most, >= 1; None takes as many as keep all devices busy and
            fit into their memory, as the simulator plays it.
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
    if errors not in ("raise", "yield"):
        raise InputError(f"errors is 'raise' or 'yield', got '{errors}'")
    model = _streamable(plan)
    allowed = in_flight or _played(plan, _LEAST_SAMPLES, in_flight).in_flight
    return _outputs(plan, model, samples, allowed, keeps_going=errors == "yield")


def _outputs(
    plan: Plan,
    model: LoadedModel,
    samples: Iterable[GivenInputs],
    in_flight: int,
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

    with stream_runner(plan.problem, plan.placement, model, in_flight=in_flight) as runner:
        for number, answer in enumerate(runner.outcomes(checked())):
            if isinstance(answer, Execution):
                outputs = answer.outputs
                named = by_name[number]
                yield named_outputs(model.signature, outputs) if named else list(outputs)
                continue
            failure = RuntimeFailure(f"sample {number}: {answer}")
            if not keeps_going:
                raise failure from answer
            yield failure


def _played(plan: Plan, samples: int, in_flight: int | None) -> Stream:
    simulator = Simulator(plan.problem)
    return simulator.stream(plan.placement, samples=samples, in_flight=in_flight)


def _streamable(plan: Plan) -> LoadedModel:
    """The model of a plan, where samples can follow each other through it.

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
    return loaded_model(problem, plan.runtime)
