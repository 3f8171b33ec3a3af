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


@dataclass(frozen=True, eq=False)
class StreamResult:
    """What a measured stream found.

    Attributes:
        samples: of one stream.
        in_flight: of them under way at most.
        worst: number of the sample whose outputs are furthest from the unsplit model's.
        error, tolerance: relative error of that sample, and what is allowed.
        played: the same stream, simulated.
        rounds: name of each contender -> its streams.
        verdict: over seconds per sample.
    """

    samples: int
    in_flight: int
    worst: int
    error: float
    tolerance: float
    played: Stream
    rounds: Mapping[str, Sequence[StreamRound]]
    verdict: Verdict

    @property
    def equal(self) -> bool:
        """True when every sample's outputs equal the unsplit model's within the tolerance."""
        return self.error <= self.tolerance

    def period(self, name: str) -> float:
        """Median seconds per sample of a contender."""
        return statistics.median(one.period for one in self.rounds[name])

    def latencies(self, name: str) -> tuple[float, float]:
        """Median and 95th percentile of a sample's seconds from its entry to its end."""
        rows = np.concatenate([one.latencies for one in self.rounds[name]])
        return float(np.median(rows)), float(np.quantile(rows, 0.95))

    def data(self) -> dict[str, Any]:
        """As a JSON document."""
        contenders = {}
        for name in self.rounds:
            median, high = self.latencies(name)
            contenders[name] = {
                "samples_per_second": 1.0 / self.period(name),
                "iqr": self.verdict.contenders[name].iqr,
                "latency_median": median,
                "latency_95": high,
            }
        return {
            "equal": self.equal,
            "relative_error": self.error,
            "tolerance": self.tolerance,
            "worst_sample": self.worst,
            "samples": self.samples,
            "in_flight": self.in_flight,
            "predicted_samples_per_second": self.played.rate,
            "predicted_memory": self.played.memory_peaks.tolist(),
            "prediction_error": self.played.steady.period / self.period(PLAN) - 1.0,
            "contenders": contenders,
            "recommendation": self.verdict.recommendation,
            "verdict": self.verdict.text,
        }

    def lines(self) -> list[str]:
        """What the table does not say."""
        word = "equal" if self.equal else "NOT EQUAL"
        error = self.played.steady.period / self.period(PLAN) - 1.0
        return [
            f"outputs of all {self.samples} samples {word} to the unsplit model's: relative error "
            f"{self.error:.2g} (tolerance {self.tolerance:.2g}, worst in sample {self.worst})",
            f"{1.0 / self.period(PLAN):.1f} samples/s measured, {self.played.rate:.1f} predicted "
            f"(period {error:+.1%}), {self.in_flight} in flight",
            self.verdict.text,
        ]

    def table(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Columns and rows."""
        columns = ("contender", "samples/s", "spread", "latency", "95th percentile")
        rows = []
        for name in self.rounds:
            median, high = self.latencies(name)
            short = self.verdict.contenders[name]
            rows.append(
                [
                    name,
                    f"{1.0 / short.median:.1f}",
                    f"{short.iqr / short.median:.1%}",
                    format_duration(median),
                    format_duration(high),
                ]
            )
        return columns, rows


def execute_stream(
    plan: Plan,
    *,
    samples: int = 200,
    in_flight: int | None = None,
    rounds: int = ROUNDS,
    report: Report = no_report,
) -> StreamResult:
    """Stream different samples through a plan, check all their outputs, and measure its rate
    beside the best single device and one copy of the model per device.

    Raises:
        InputError: the plan cannot be streamed, or a number is too small.
        StalePlanError: the model or the devices have changed.
        InfeasibleError: so many samples do not fit into a device's memory.
    """
    if samples < _LEAST_SAMPLES:
        raise InputError(f"samples must be >= {_LEAST_SAMPLES} to measure a rate, got {samples}")
    model = _streamable(plan)
    check_devices(plan.problem, plan.runtime)
    played = _played(plan, samples, in_flight)
    devices = plan.problem.cluster.devices
    inputs = different_samples(model, samples)
    with ExitStack() as stack:
        mine = stack.enter_context(
            stream_runner(plan.problem, plan.placement, model, in_flight=played.in_flight)
        )
        report(0.1, "comparing the outputs of every sample")
        worst, error = worst_sample(model, devices[0], inputs, mine.run_many(inputs))
        best = min(range(len(devices)), key=lambda d: _seconds_alone(plan, d))
        alone = stack.enter_context(whole_model_runner(model, devices[best]))
        ways: dict[str, Streaming] = {devices[best].name: alone.run_many}
        if len(devices) > 1:
            ways[COPIES] = stack.enter_context(CopyPerDevice(model, devices)).run_many
        simpler = list(ways)
        ways[PLAN] = mine.run_many
        skipped = min(played.in_flight, (samples - 2) // 3)
        part = inputs[: max(3 * skipped + 2, samples // rounds)]
        for way in ways.values():
            way(part[: skipped + 1])
        found = measure_streams(
            ways,
            part,
            rounds=rounds,
            skipped=skipped,
            progress=lambda done: report(0.3 + 0.7 * done, "measuring streams"),
        )
    periods = {name: [one.period for one in row] for name, row in found.items()}
    verdict = judge(periods, simpler, splits=(COPIES,))
    return StreamResult(
        samples, played.in_flight, worst, error, model.tolerance(devices), played, found, verdict
    )


def _seconds_alone(plan: Plan, device: int) -> float:
    return float(plan.problem.costs.seconds[:, device].sum())


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
