"""`Session`: a request and what follows from it; the functions of `placewright` are views of it."""

from __future__ import annotations

import math
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from placewright.core.cluster import Cluster
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.source import calls_of
from placewright.errors import FieldError, Interrupted
from placewright.execution.allocator import give_back_freed_memory
from placewright.execution.inputs import GivenInputs, Outputs
from placewright.execution.runtime import LoadedModel
from placewright.profiling.hardware import NEVER, Deadline
from placewright.report.comparison_table import ComparisonTable, ContenderTable
from placewright.report.plan_text import plan_warning
from placewright.report.time_left import Report, Steps, no_report
from placewright.session import comparison, devices, hosts, running, search
from placewright.session.call_mix import LoadedCalls
from placewright.session.checking import execute_stream
from placewright.session.export import formats_that_take, require_target
from placewright.session.language.run_search import changes_in_mode
from placewright.session.loaded.kept import KEPT
from placewright.session.loaded.plans import LoadedPlan, require_stream
from placewright.session.loaded.steps import LearningRate, LoadedStep
from placewright.session.measuring import Measured
from placewright.session.models import Model, ModelOfRequest, loaded_model
from placewright.session.parsing import parse_names
from placewright.session.plans import Simulated, read_plan, simulated
from placewright.session.problems import build
from placewright.session.request import COMPARED, PROFILED, READ, Request, request_of, takes_fields
from placewright.session.streams import (
    SAMPLES,
    StreamLength,
    StreamResult,
    require_measured,
    require_streamable,
)


class Session:
    """A request and everything that follows from it; each step runs once, when it is first needed.

    The model is read once, and loaded once by each runtime.

    >>> session = pw.Session("problem.json", placer="heft", evaluations=9)
    >>> plan = session.place()
    >>> session.simulate(plan, {"left": "cpu", "right": "cpu"}).plan.value
    6.0

    Args:
        request: a `Request`, or a model; a plan gives the session of its problem.
        report: receives the progress: the fraction that is done, and the step.
        said: fields of a request, by name; of a `Request`, those that change.

    Attributes:
        table: the contenders that `place` measured on the hardware; None if it measured none.

    Raises:
        InputError: a field of the request is wrong.
    """

    def __init__(self, request: Any, report: Report = no_report, **said: Any) -> None:
        self._model = ModelOfRequest(request_of(request, said))
        self._report = report
        self._measured: Measured | None = None
        self.table: ContenderTable | None = None

    @property
    def request(self) -> Request:
        """The request, with a name for a module in memory."""
        return self._model.request

    @property
    def model(self) -> Model:
        """The model as it was read."""
        return self._model.read

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model, loaded by the runtime of the problem."""
        return self._model.loaded_for(self.problem)

    @property
    def problem(self) -> Problem:
        """The calibrated and constrained problem."""
        return self.profile()

    @property
    def left_out(self) -> tuple[str, ...]:
        """One clause for each measurement that the limits left out."""
        return () if self._measured is None else self._measured.left_out

    def profile(self) -> Problem:
        """Measure every unit on every device, calibrate, constrain; results are stored.

        Raises:
            InputError: the model, the devices or a constraint is wrong.
            RuntimeFailure: a device cannot run the model.
        """
        return self._built(Steps(self._report), NEVER).problem

    def place(self) -> Plan:
        """Read, measure, search and check within the total.

        Raises:
            InputError: the request is wrong.
            InfeasibleError: no placement satisfies the constraints, or none was found.
            MismatchError: outputs differ from the unsplit model's.
            OutOfTime: the total ended before there was a plan.
        """
        placer = search.placer_of(self.request)  # before any long work
        deadline = Deadline.after(self.request.total)
        steps = search.steps_of(self.request, self._report)
        try:
            found = self._built(steps, deadline)
            placed = search.search_and_check(self._model, placer, found, steps, deadline)
            require_target(placed.plan, self.request.target)
        except Interrupted as error:
            if error.plan and self.request.target not in (None, *formats_that_take(error.plan)):
                error.plan = None  # a search to its end refuses it, too
            raise
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
        made = comparison.made_placers(placers, seeds)  # before any long work
        search.tell_of_core_seconds(made.values(), self.request.limit)
        with hosts.workers_of(self.request) as workers:
            problem = self.problem
            with search.measure_of(self._model, problem) as measure:
                return comparison.compare(
                    problem,
                    placers,
                    seeds,
                    self.request.limit,
                    measure=measure,
                    progress=self._report,
                    results_path=results,
                    workers=workers,
                )

    def simulate(self, plan: Plan, changes: Mapping[str, str] | None = None) -> Simulated:
        """Move some ops of a plan to other devices, and predict the result.

        Raises:
            GraphError, UnknownNameError: there is no such op or device.
            InfeasibleError: the changed placement breaks a constraint.
        """
        return simulated(plan, changes_in_mode(plan, changes or {}))

    def run(self, plan: Plan, inputs: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        """Execute a plan once; see `placewright.run`."""
        running.require_here(plan.problem)
        if calls_of(plan.problem.source):
            with KEPT.counting(plan), LoadedCalls(plan) as calls:
                given = calls.random_inputs() if inputs is None else inputs
                return _as_given(calls.run(given), is_named=isinstance(inputs, Mapping))
        with KEPT.using(plan, lambda: self._model.loaded_of(plan)) as loaded:
            given = loaded.random_inputs() if inputs is None else inputs
            return _as_given(loaded.run(given), is_named=isinstance(inputs, Mapping))

    def stream(
        self,
        plan: Plan,
        samples: Iterable[GivenInputs],
        *,
        in_flight: int | None = None,
        errors: Literal["raise", "yield"] = "raise",
    ) -> Iterator[Any]:
        """Run a stream of samples; see `placewright.stream`."""
        require_stream(plan, in_flight, errors)
        return self._streamed(plan, samples, in_flight, errors)

    def _streamed(
        self,
        plan: Plan,
        samples: Iterable[GivenInputs],
        in_flight: int | None,
        errors: Literal["raise", "yield"],
    ) -> Iterator[Any]:
        by_name: deque[bool] = deque()

        def noted() -> Iterator[GivenInputs]:
            for given in samples:
                by_name.append(isinstance(given, Mapping))
                yield given

        with KEPT.using(plan, lambda: self._model.loaded_of(plan)) as loaded:
            answers = loaded.stream(noted(), in_flight=in_flight, errors=errors)
            with closing(answers):
                for answer in answers:
                    yield _as_given(answer, is_named=by_name.popleft())

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
            plan: to execute.
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
            model = self._model.loaded_of(plan)
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
            plan: to execute.
            samples, seconds: see `session.streams.StreamLength`.
            in_flight: samples under way at most; None takes the plan's number, or as many as pay.
            timeout: see `session.running.limited`.

        Raises:
            InputError: the plan cannot be streamed, or a number is too small.
            StalePlanError: the model or the devices have changed.
            InfeasibleError: so many samples do not fit into a device's memory.
            RuntimeFailure: a sample failed.
        """
        limit = self.request.latency_limit
        samples = SAMPLES if samples is None else samples
        length = StreamLength(samples, seconds)
        with running.limited(plan, timeout):
            require_stream(plan, in_flight, "raise")
            return execute_stream(
                plan,
                self._model.loaded_of(plan),
                length=length,
                in_flight=in_flight,
                latency_limit=math.inf if limit is None else limit,
                report=self._report,
            )

    def trace(
        self, plan: Plan, timeout: float | None = None, inputs: GivenInputs | None = None
    ) -> str:
        """A Chrome trace of a measured run beside the predicted timeline; see `measure`."""
        with running.limited(plan, timeout):
            running.require_executable(plan)
            return running.run_trace(plan, self._model.loaded_of(plan), inputs)

    def _built(self, steps: Steps, deadline: Deadline) -> Measured:
        if self._measured is None:
            self._measured = build(self._model, steps, deadline)
        return self._measured


def _as_given(outputs: Any, *, is_named: bool) -> Any:
    """Outputs as a list, or a dict if inputs came by name; the model's own result unchanged."""
    if not isinstance(outputs, Outputs):
        return outputs
    return outputs.by_name if is_named else list(outputs)


@takes_fields(*READ)
def read(model: Any, example_inputs: Sequence[Any] = (), **said: Any) -> Model:
    """Read a model as `runtime` sees it, or the first runtime that is installed and can read it.

    >>> model = pw.read("model.onnx")
    >>> model.graph.op_names[0]
    'dense/product'

    Args:
        model: a path, ``"zoo:NAME"``, or a PyTorch module (one that returns its loss if the
            objective is training).
        example_inputs: positional inputs of a module; a single one may stand alone.
        said: `shapes`, `runtime`, `objective`, `optimizer`, `colocate_backward`, `dropout`
            or `weights` of a `Request`.

    Raises:
        InputError: it is missing or cannot be read.
    """
    return Session(model, example_inputs=example_inputs, **said).model


def discover(names: str | None = None, *, runtime: str | None = None) -> Cluster:
    """This machine's devices with measured links; `names` as in ``--devices``.

    >>> pw.discover("cpu").device_names
    ('cpu',)
    """
    return devices.discover(names, runtime=runtime)


@takes_fields("example_inputs", "ray", *PROFILED)
def profile(model: Any, cluster: Any = None, **said: Any) -> Problem:
    """Measure every unit of a model on every device, and calibrate; results are stored.

    The same as `placewright profile`. Costs of cuts, dispatch and contention are included.

    >>> problem = pw.profile("model.onnx", devices="cpu", calibrate=False)
    >>> problem.costs.seconds.shape  # (n_units, n_devices)
    (1, 1)

    Args:
        model: from `read`, or anything that `read` takes.
        cluster: of the devices, or its file; None takes the devices that `devices` names. With
            `ray` these are devices of a cluster's hosts, each measured on its own.
        said: fields of a `Request`.

    Raises:
        UnknownNameError: the model has no such input.
        InputError: the model has no source to run, or samples are given and nothing counts them.
    """
    if isinstance(model, Model) and model.problem is not None:
        cluster = None  # the model's own
    given = said if cluster is None else {**said, "cluster": cluster}
    session = Session(model, **given)
    if session.request.ray is not None:
        return hosts.profile_on_hosts(session.request).problem
    return session.profile()


@takes_fields()
def place(model: Any, **said: Any) -> Plan:
    """Find a placement of a model or of a problem: the same as `placewright place`.

    A model is read, measured, searched, and its plan checked on the hardware. A problem in memory
    is only searched, unless ``check=True``. If memory limits hold for weights only, a Python
    warning names the tensors that they leave out.

    >>> plan = pw.place("problem.json", placer="heft", evaluations=9)
    >>> plan.value, plan.placer.name
    (4.0, 'heft')

    Args:
        model: a path, ``"zoo:NAME"``, a PyTorch module, a model from `read`, or a problem.
        said: fields of a `Request`, such as ``devices="cpu:0,cpu:1"``, ``pins={"op": "cpu:0"}``,
            ``memory={"cpu:1": "2GiB"}``, ``objective="throughput"``, ``budget="10s"``.

    Raises:
        InputError: the request is wrong; the message names the field.
        InfeasibleError: no placement satisfies the constraints, or none was found.
        MismatchError: outputs differ from the unsplit model's.
        OutOfTime: the total ended before there was a plan.
    """
    plan = Session(model, **said).place()
    if text := plan_warning(plan):
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

    >>> table = pw.compare("problem.json", ["single", "heft"], evaluations=100)
    >>> sorted((row.median, row.placer) for row in table.rows)  # seconds
    [(4.0, 'heft'), (6.0, 'single')]

    Args:
        model: as in `place`.
        placers: names; ``name:key=value:...`` sets hyperparameters of that one.
        seeds: runs per placer, seeds 0 .. seeds - 1.
        results: a file that keeps each run, so that runs found in it are not repeated.
        said: fields of a `Request`; the budget is that of every single run.

    Raises:
        InputError: the request is wrong, or a placer does not take the problem.
    """
    names = parse_names(placers) if isinstance(placers, str) else list(placers)
    path = None if results is None else os.fspath(results)
    return Session(model, **said).compare(names, seeds=seeds, results=path)


def simulate(plan: Plan, changes: Mapping[str, str] | None = None) -> Simulated:
    """Predict a plan with some ops moved; `changes` has op name -> device name.

    >>> plan = pw.place("problem.json", placer="heft", evaluations=9)
    >>> moved = pw.simulate(plan, {"left": "cpu", "right": "cpu"})
    >>> moved.before, moved.plan.value
    (4.0, 6.0)

    Raises:
        GraphError, UnknownNameError: there is no such op or device.
        InfeasibleError: the changed placement breaks a constraint; the message says which one.
    """
    return Session(plan).simulate(plan, changes)


def load(
    plan: Plan | str | os.PathLike[str],
    *,
    model: Any = None,
    example_inputs: Any = (),
    in_flight: int | None = None,
    learning_rate: LearningRate | None = None,
    seed: int = 0,
) -> Any:
    """Load a plan once, to call it many times.

    >>> import numpy as np
    >>> with pw.load("plan.json") as model:
    ...     outputs = model({"x": np.ones((1, 4), np.float32)})
    >>> outputs["y"].shape
    (1, 3)

    The plan runs by the contender that was recommended when it was measured. An unsplit model runs
    in the thread that calls it, on whichever core that is. Any thread may call it.

    A training step continues from call to call::

        with pw.load(plan) as step:
            for images, labels in loader:
                loss = step(images, labels)

    Args:
        plan: from `place` or `read_plan`, or the path of its file.
        model: where the model of a plan's file is now, or the module of a plan that another process
            made; None is the place that the file names.
        example_inputs: of a module, as `place` takes them.
        in_flight: calls under way at most, further ones wait; None is as many as pay.
        learning_rate: of a training step: a number, or a function from the number of updates done
            to the rate of the next; None is the optimizer's own.
        seed: of a training step's random operators.

    Returns:
        A `LoadedPlan`, a `LoadedStep` for a training step, or `LoadedCalls` for calls of several
        shapes; closing it, or the end of its ``with``, frees all its memory.

    Raises:
        InputError: the plan cannot be executed here, or an argument does not fit it.
        StalePlanError: the model is no longer the one that the plan was made for.
        RuntimeFailure: the runtime refuses a segment.
    """
    if isinstance(plan, Plan):
        if model is not None:
            raise FieldError("model", "goes with the path of a plan; read_plan takes it, too")
        found = plan
    else:
        found = read_plan(os.fspath(plan), model=model, example_inputs=example_inputs)
    if found.problem.objective == "training":
        if in_flight is not None:
            raise FieldError("in_flight", "is not for a training step: the next one waits for it")
        require_measured(found)
        loaded = loaded_model(found.problem, found.runtime)
        return LoadedStep(found, loaded, learning_rate=learning_rate, seed=seed)
    if learning_rate is not None:
        raise FieldError("learning_rate", "applies to plans of a training step only")
    if calls_of(found.problem.source):
        if in_flight is not None:
            raise FieldError("in_flight", "is not for calls of several shapes, which take turns")
        require_measured(found)
        return LoadedCalls(found)
    require_streamable(found)
    return LoadedPlan(found, loaded_model(found.problem, found.runtime), in_flight=in_flight)


def unload() -> None:
    """Free the plans that `run` and `stream` keep loaded between calls.

    >>> outputs = pw.run(pw.read_plan("plan.json"))
    >>> pw.unload()
    """
    KEPT.clear()


def run(plan: Plan, inputs: Any = None) -> Any:
    """Execute a plan once; return the model's outputs as NumPy arrays.

    Inputs and outputs have the model's own order and names: those of ``compile_model(path)``, of
    ``InferenceSession(path)``, or of the PyTorch module's arguments and result, nested ones
    flattened (``plan.problem.source.signature`` lists them).

    The plan stays loaded for the next call, within 1 GiB for all plans or as many bytes as the
    environment variable ``PLACEWRIGHT_KEPT_PLANS`` says; `unload` frees them. A training step is
    loaded for each call.

    >>> import numpy as np
    >>> plan = pw.read_plan("plan.json")
    >>> outputs = pw.run(plan, {"x": np.ones((1, 4), np.float32)})
    >>> {name: array.shape for name, array in outputs.items()}
    {'y': (1, 3)}

    Args:
        plan: from `place` or `read_plan`.
        inputs: one array per input in the model's order, or name -> array; a single one may stand
            alone, and None takes random ones.

    Returns:
        All outputs in the model's order; name -> output if the inputs came by name. A PyTorch model
        that gets tensors returns tensors, in the structure of its own result.

    Raises:
        InputError: an input is missing or unknown, or has another shape or type; the message names
            it and the expected value.
    """
    alone = hasattr(inputs, "shape")
    return Session(plan).run(plan, [inputs] if alone else inputs)


def stream(
    plan: Plan,
    samples: Iterable[GivenInputs],
    *,
    in_flight: int | None = None,
    errors: Literal["raise", "yield"] = "raise",
) -> Iterator[Any]:
    """Run a stream of samples through a plan, several of them in flight.

    If a measurement recommended a contender that no placement expresses (a copy of the model per
    device, the runtime's own throughput mode), that contender runs the samples.

    Outputs come in the order of the samples. With F in flight, sample k + F is taken from `samples`
    only after the caller took the outputs of sample k and asks for the next ones. If outputs are
    fed back, as a recurrent state is, F is 1.

    >>> import numpy as np
    >>> samples = ({"x": np.full((1, 4), k, np.float32)} for k in range(3))
    >>> for outputs in pw.stream(pw.read_plan("plan.json"), samples):
    ...     print(outputs["y"].shape)
    (1, 3)
    (1, 3)
    (1, 3)

    Args:
        plan: from `place` or `read_plan`.
        samples: inputs of each sample as `run` takes them: a sequence in the model's order, or a
            mapping by name.
        in_flight: samples taken whose outputs were not, at most, >= 1; None takes as many as keep
            all devices busy and fit into their memory, as the simulator plays it.
        errors: ``"raise"`` ends with the first sample that fails; ``"yield"`` gives its error in
            place of its outputs and goes on.

    Yields:
        Outputs of each sample, as `run` returns them.

    Raises:
        InputError: the plan cannot be streamed, or a sample's inputs are wrong; the message names
            the sample and the input.
        RuntimeFailure: a sample failed; the message names it and its segment.
    """
    return Session(plan).stream(plan, samples, in_flight=in_flight, errors=errors)
