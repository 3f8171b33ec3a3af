"""A request and what follows from it: the one way from a model to a plan, a run, a comparison."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from placewright.core.deadline import NEVER, Deadline
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.errors import RuntimeFailure
from placewright.execution.freed_memory import give_back_freed_memory
from placewright.execution.inputs import GivenInputs
from placewright.execution.runtime import LoadedModel
from placewright.report.comparison_table import ComparisonTable
from placewright.session import comparison, placing, running, stream_measuring, streaming
from placewright.session.contenders import Table
from placewright.session.kept_plans import KEPT
from placewright.session.loaded_plan import require_stream
from placewright.session.measuring import Measured
from placewright.session.models import Model
from placewright.session.problems import build
from placewright.session.reading import ModelOfRequest
from placewright.session.request import Request, request_of
from placewright.session.run_trace import run_trace
from placewright.session.steps import Report, Steps, no_report
from placewright.session.stream_result import StreamResult
from placewright.session.whatif import Simulated, simulated


class Session:
    """What follows from a request: each step is done when it is first needed, and once.

    The model is read once and loaded by its framework once, whatever is asked of the session.

    Args:
        request: a `Request`, or a model; a plan gives the session of its problem.
        report: is told the fraction that is done, and what is being done.
        said: further fields of a request, where `request` is a model.

    Attributes:
        table: what `place` measured on the hardware; None where it did not.

    Raises:
        InputError: a field of the request is wrong.
    """

    def __init__(self, request: Any, report: Report = no_report, **said: Any) -> None:
        if isinstance(request, Request):
            wanted = replace(request, **said) if said else request
        else:
            wanted = request_of(request, said)
        self._model = ModelOfRequest(wanted)
        self._report = report
        self._measured: Measured | None = None
        self.table: Table | None = None

    @property
    def request(self) -> Request:
        """All that was asked for."""
        return self._model.request

    @property
    def model(self) -> Model:
        """What was read."""
        return self._model.read

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model as its framework executes it."""
        return self._model.loaded_for(self.problem)

    @property
    def problem(self) -> Problem:
        """The calibrated and constrained problem."""
        return self.profile()

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the limits left out of the problem's measurement, one clause each."""
        return () if self._measured is None else self._measured.left_out

    def profile(self) -> Problem:
        """Measure every unit on every device, calibrate, constrain; results are kept on disk.

        Raises:
            InputError: the model, the devices or a constraint is wrong.
            RuntimeFailure: a device cannot run the model.
        """
        return self._built(Steps(self._report), NEVER).problem

    def place(self) -> Plan:
        """Read, measure, search and check, within the total.

        Raises:
            InputError: the request is wrong.
            InfeasibleError: no placement satisfies the constraints, or none was found.
            MismatchError: outputs differ from the unsplit model's.
            OutOfTime: the total ended before there was a plan.
        """
        placer = placing.placer_of(self.request)  # before any long work
        deadline = Deadline.after(self.request.total)
        steps = placing.steps_of(self.request, self._report)
        try:
            found = self._built(steps, deadline)
            placed = placing.placed(self._model, placer, found, steps, deadline)
        finally:
            give_back_freed_memory()
        self.table = placed.table
        return placed.plan

    def compare(
        self, placers: Sequence[str], *, seeds: int = 1, results: str | Path | None = None
    ) -> ComparisonTable:
        """Every placer with seeds 0 .. seeds - 1 under the request's evaluator and budget.

        Args:
            placers: names; ``name:key=value:...`` sets hyperparameters of that one.
            seeds: runs per placer, >= 1.
            results: a file that keeps each run, so that runs found in it are not repeated.

        Raises:
            InputError: no placer or seed is asked for, a placer does not take the problem, or the
                file belongs to another problem or budget.
        """
        comparison.made_placers(placers, seeds)  # before any long work
        with placing.workers_of(self.request) as workers:
            problem = self.problem
            return comparison.compare(
                problem,
                placers,
                seeds,
                self.request.limit,
                measure=placing.measure_of(self._model, problem),
                progress=self._report,
                results_path=results,
                workers=workers,
            )

    def simulate(self, plan: Plan, changes: Mapping[str, str] | None = None) -> Simulated:
        """What a plan is predicted to do, with some ops on other devices.

        Raises:
            GraphError, UnknownNameError: there is no such op or device.
            InfeasibleError: the changed placement breaks a constraint.
        """
        return simulated(plan, changes or {})

    def run(
        self, plan: Plan, inputs: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> list[Any] | dict[str, Any]:
        """Execute a plan once; see `session.facade.run`."""
        running.require_here(plan.problem)
        with KEPT.using(plan, lambda: self._model.loaded(plan.runtime)) as loaded:
            given = loaded.random_inputs() if inputs is None else inputs
            outputs = loaded.run(given)
        return outputs.by_name if isinstance(inputs, Mapping) else list(outputs)

    def stream(
        self,
        plan: Plan,
        samples: Iterable[GivenInputs],
        *,
        in_flight: int | None = None,
        errors: Literal["raise", "yield"] = "raise",
    ) -> Iterator[list[Any] | dict[str, Any] | RuntimeFailure]:
        """Run samples that follow each other; see `session.facade.stream`."""
        require_stream(plan, in_flight, errors)
        return self._streamed(plan, samples, in_flight, errors)

    def _streamed(
        self,
        plan: Plan,
        samples: Iterable[GivenInputs],
        in_flight: int | None,
        errors: Literal["raise", "yield"],
    ) -> Iterator[list[Any] | dict[str, Any] | RuntimeFailure]:
        by_name: deque[bool] = deque()

        def noted() -> Iterator[GivenInputs]:
            for given in samples:
                by_name.append(isinstance(given, Mapping))
                yield given

        with KEPT.using(plan, lambda: self._model.loaded(plan.runtime)) as loaded:
            answers = loaded.stream(noted(), in_flight=in_flight, errors=errors)
            with closing(answers):
                for answer in answers:
                    is_named = by_name.popleft()
                    if isinstance(answer, RuntimeFailure):
                        yield answer
                    else:
                        yield answer.by_name if is_named else list(answer)

    def measure(
        self,
        plan: Plan,
        *,
        runs: int = running.ROUNDS,
        boundaries: bool = False,
        inputs: GivenInputs | None = None,
        timeout: float | None = None,
    ) -> running.RunResult:
        """Execute a plan, compare its outputs, and measure it beside the best single device.

        Args:
            plan: what is executed.
            runs: measured runs of each, >= 1.
            boundaries: compare every tensor that crosses devices, too.
            inputs: as `run` takes them; None draws random ones.
            timeout: see `session.running.limited`.

        Raises:
            InputError: the plan cannot be executed, or an input is not the model's.
            StalePlanError: the model or the devices have changed.
        """
        with running.limited(plan, timeout):
            running.require_executable(plan, runs)
            model = self._model.loaded(plan.runtime)
            report = self._report
            return running.execute(
                plan, model, runs=runs, boundaries=boundaries, inputs=inputs, report=report
            )

    def measure_stream(
        self,
        plan: Plan,
        *,
        samples: int | None = None,
        seconds: float | None = None,
        in_flight: int | None = None,
        timeout: float | None = None,
    ) -> StreamResult:
        """Stream samples through a plan, compare the outputs of each, and measure the rate.

        The request's `latency_limit` holds for 95 % of the samples.

        Args:
            plan: what is executed.
            samples, seconds: see `session.stream_measuring.StreamLength`.
            in_flight: samples under way at most; None takes as many as pay.
            timeout: see `session.running.limited`.

        Raises:
            InputError: the plan cannot be streamed, or a number is too small.
            StalePlanError: the model or the devices have changed.
            InfeasibleError: so many samples do not fit into a device's memory.
            RuntimeFailure: a sample failed.
        """
        limit = self.request.latency_limit
        samples = stream_measuring.SAMPLES if samples is None else samples
        length = stream_measuring.StreamLength(samples, seconds)
        with running.limited(plan, timeout):
            streaming.require_streamable(plan)
            return stream_measuring.execute_stream(
                plan,
                self._model.loaded(plan.runtime),
                length=length,
                in_flight=in_flight,
                latency_limit=math.inf if limit is None else limit,
                report=self._report,
            )

    def trace(self, plan: Plan, timeout: float | None = None) -> str:
        """A Chrome trace of a measured run beside the predicted timeline.

        Raises:
            InputError: the plan cannot be executed.
            StalePlanError: the model or the devices have changed.
        """
        with running.limited(plan, timeout):
            running.require_executable(plan)
            return run_trace(plan, self._model.loaded(plan.runtime))

    def _built(self, steps: Steps, deadline: Deadline) -> Measured:
        if self._measured is None:
            self._measured = build(self._model, steps, deadline)
        return self._measured
