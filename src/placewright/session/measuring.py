"""From a model to a problem with measured costs: every unit on every device, then calibration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from placewright.core.cluster import Cluster
from placewright.core.execution_models import EVENT, ExecutionModel, default_model
from placewright.core.grouping import Grouping
from placewright.core.problem import Objective, Problem
from placewright.core.quantities import counted
from placewright.errors import InputError
from placewright.execution.runtime import LoadedModel, Runtime
from placewright.placers.portfolio.kernels import make_ready, seconds_to_compile
from placewright.profiling.calibration import (
    TrialPlan,
    calibration,
    calibration_seconds,
    has_overheads,
    with_default_costs,
)
from placewright.profiling.evidence import (
    LEAST_TRIALS,
    NOTHING,
    PLACEMENTS,
    Evidence,
    fitted,
)
from placewright.profiling.hardware import NEVER, Deadline, warm_requests
from placewright.profiling.machine_costs import (
    drop_calibration,
    is_calibration_known,
    keep_calibration,
    known_calibration,
)
from placewright.profiling.measure import QUICK, Ahead, Effort, Ends, Progress, Rounds
from placewright.profiling.profile import Measuring, profile
from placewright.profiling.store import CostStore
from placewright.profiling.stream_calibration import (
    LEAST_PLACEMENTS as STREAMS_ENOUGH,
)
from placewright.profiling.stream_calibration import (
    PLACEMENTS as STREAMS,
)
from placewright.profiling.stream_calibration import (
    has_stream_overheads,
    stream_calibration,
    stream_calibration_seconds,
)
from placewright.report.time_left import (
    CALIBRATING,
    CHECKING,
    KERNELS,
    MACHINE,
    MEASURING,
    PROBING,
    SEARCHING,
    Steps,
)
from placewright.session.devices import MachineCosts
from placewright.session.models import Model

_SHARE = 0.5  # of what is left of the total, for measuring and then for calibrating
_MEASURING = 0.6  # of the limit on both
_CHECKED_ROUNDS, _CHECKED_WAYS = 15, 5
# Samples of a check: those whose outputs are compared, rounds of candidates and of contenders.
_STREAMED = 100 + 7 * 3 * 20 + 9 * 5 * 30
_MOST_CHECK_SECONDS = 60.0
_PROBED_WAYS = 3  # a split and two single devices
PROBE_SECONDS = 4.0  # of all rounds of a probe, at most
_QUICK_PLACEMENTS, _QUICK_ROUNDS = 2, Rounds(5, 5)


@dataclass(frozen=True)
class Extent:
    """Extent of a measurement: its time limit, and the parts that it skips or repeats."""

    deadline: Deadline = NEVER  # of everything; no piece of work starts after it
    is_quick: bool = False  # a few rounds, and a stored calibration or one of few placements
    calibrate: bool = True  # False fits no overheads, and takes no stored fit
    remeasure: bool = False  # measure again, whatever is stored
    # of measuring and calibrating, on the clock of `deadline`; after it nothing starts that a plan
    # can do without
    limit: Deadline = NEVER


@dataclass(frozen=True)
class Measured:
    """A measured problem, and the measurements that limits left out."""

    problem: Problem  # with costs
    left_out: tuple[str, ...] = ()  # one clause for each thing that `Extent` left out
    # estimated duration of a check on the hardware; 0 if costs were not measured
    check_seconds: float = 0.0
    parts: tuple[Problem, ...] = ()  # problems of the single calls behind a mean one


def measure_model(
    model: Model,
    loaded: LoadedModel,
    cluster: Cluster,
    runtime: Runtime,
    *,
    objective: Objective = "latency",
    extent: Extent | None = None,
    steps: Steps | None = None,
    units: Grouping | None = None,
) -> Measured:
    """Measure every unit on every device and calibrate; both are stored for later calls.

    Args:
        loaded: the same by `runtime`.
        objective: of the problem; overheads are fitted if the event model simulates it.
        extent: how much is measured; None is all.
        units: to measure; None forms them.

    Raises:
        InputError: the model has no source to run.
        RuntimeFailure: a device cannot run the model.
        OutOfTime: the deadline passed before each device had run the model once.
    """
    if model.source is None:
        raise InputError("this graph has no model behind it; read the model itself")
    run = _Measurement(model, cluster, runtime, objective, extent or Extent(), steps or Steps())
    try:
        problem = run.profiled(loaded, units)
        if run.extent.calibrate and has_overheads(problem):
            problem = run.calibrated(problem, loaded)
        elif run.extent.calibrate and has_stream_overheads(problem):
            problem = run.stream_calibrated(problem, loaded)
    finally:
        run.close()
    assert run.ahead is not None
    return Measured(problem, tuple(run.left_out), _check_seconds(run.ahead, objective))


class _Measurement:
    """One measurement: its steps, and the clauses about omissions so far."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        runtime: Runtime,
        objective: Objective,
        extent: Extent,
        steps: Steps,
    ) -> None:
        self.model, self.cluster, self.runtime = model, cluster, runtime
        self.objective, self.extent, self.steps = objective, extent, steps
        self.store = CostStore(is_fresh=extent.remeasure)
        self.ahead: Ahead | None = None
        self.left_out: list[str] = []
        self.estimated: dict[str, str] = {}

    def profiled(self, loaded: LoadedModel, units: Grouping | None) -> Problem:
        """Measure the problem, without overheads."""
        assert self.model.source is not None
        ends = Ends(
            self.extent.deadline.part(_SHARE), self.extent.limit.part(_MEASURING), self.estimated
        )
        problem = profile(
            self.model.graph,
            self.model.source,
            self.cluster,
            self.runtime,
            objective=self.objective,
            model=loaded,
            units=units,
            measuring=Measuring(
                self.store,
                QUICK if self.extent.is_quick else Effort(),
                self._tell,
                ends,
            ),
        )
        was_measured = self.ahead is not None
        if not was_measured:
            whole = problem.costs.seconds
            slowest = float(np.where(np.isfinite(whole), whole, 0.0).sum(axis=0).max())
            self._forecast(Ahead((), problem.n_units, 0.0, slowest, 0.0))
        is_few = 0 < max(ends.few.values(), default=0) <= QUICK.max_rounds
        if self.extent.is_quick and (was_measured or is_few):
            self.left_out.append(
                f"rounds: each device ran the model {QUICK.rounds} or {QUICK.max_rounds} times, "
                f"not {Effort().rounds} to {Effort().max_rounds} times"
            )
        elif ends.few or (was_measured and (ends.deadline.is_over or ends.limit.is_over)):
            self.left_out.append("rounds: devices ran the model fewer times than usual")
        self.left_out += [
            f"measuring '{device}': the limit on profiling was over; each of its units takes what "
            f"it takes on '{like}'"
            for device, like in self.estimated.items()
        ]
        return problem

    def _compile_kernels(self, objective: Objective, model: ExecutionModel) -> None:
        """Compile the kernels of calibration and search: once per version, and within no limit."""
        with self.extent.deadline.clock.stopped():
            self.steps.tell(KERNELS, "compiling kernels")
            make_ready(objective, model)

    def _calibration_end(self) -> Deadline:
        return self.extent.deadline.part(_SHARE).within(self.extent.limit.seconds_left)

    def calibrated(self, problem: Problem, loaded: LoadedModel) -> Problem:
        """Add the costs of cuts, dispatch and contention to a problem; they are stored."""
        known = self._known(problem)
        if known is not None:
            return known
        self._compile_kernels(problem.objective, problem.execution_model)
        end, is_quick = self._calibration_end(), self.extent.is_quick
        assert self.ahead is not None
        machine = self._machine(end, is_needed=self._wants_machine(end, self.ahead))
        fit = calibration(
            problem,
            loaded,
            np.random.default_rng(0),
            TrialPlan(_QUICK_PLACEMENTS, _QUICK_ROUNDS) if is_quick else TrialPlan(),
            progress=lambda at: self.steps.tell(
                CALIBRATING, f"calibrating {at.what}", at.seconds_left
            ),
            deadline=end,
            machine=machine,
        )
        self._drop_replaced(problem)
        is_enough = fit.placements >= LEAST_TRIALS
        if fit.is_complete and is_enough and not is_quick:
            self._keep(fit.problem)
            return fit.problem
        others = "of this model alone" if is_enough else _DEFAULT
        if machine is not None:
            others = _MACHINE
        elif fit.is_complete and not is_enough and not end.is_over:  # limits of memory, not time
            machine = self._machine(end, is_needed=True)
            if machine is not None:
                others = _MACHINE_ALONE
                fit = replace(fit, problem=fitted(problem, NOTHING, (), machine)[0])
        what = counted(fit.placements, "placement")
        why = "" if is_quick or not fit.is_complete else ", for others break a limit on memory"
        left_out = f"calibration: {what} measured, not {PLACEMENTS}{why}; {others}"
        self.left_out.append(left_out)
        if is_quick and fit.is_complete and machine is not None:
            self._keep(fit.problem, left_out)
        return fit.problem

    def _known(self, problem: Problem) -> Problem | None:
        """The problem with the stored calibration, the same to the last bit; None without one."""
        known = known_calibration(
            problem,
            self.store,
            self.runtime.version,
            self._costs.probe,
            is_quick=self.extent.is_quick,
        )
        if known is None:
            return None
        self.left_out += [known.left_out] * bool(known.left_out)
        return known.problem

    def _drop_replaced(self, problem: Problem) -> None:
        """Remove stored calibrations that a quick request measured again: they would hide it."""
        if self.extent.is_quick and self.extent.remeasure:
            drop_calibration(problem, self.store, self.runtime.version)

    def _keep(self, problem: Problem, left_out: str = "") -> None:
        probed = self._costs.probe()
        keep_calibration(problem, self.store, self.runtime.version, probed, left_out=left_out)

    def _machine(self, end: Deadline, *, is_needed: bool) -> Evidence | None:
        """The costs of splitting on this machine; they are measured only if they are needed."""
        costs = self._costs
        if not is_needed or costs.known is not None or end.is_over:
            return costs.known
        return costs.measured(self._tell_machine, end.part(_SHARE))

    def _tell_machine(self, at: Progress) -> None:
        what = f"what a cut costs on this machine, {at.what}"
        self.steps.tell(MACHINE, what, at.seconds_left)

    def close(self) -> None:
        """Remove the files of the small model, if it was not run."""
        if "_costs" in vars(self):
            self._costs.close()

    def stream_calibrated(self, problem: Problem, loaded: LoadedModel) -> Problem:
        """Add the costs that streams have beside their units to a problem; they are stored."""
        known = self._known(problem)
        if known is not None:
            return known
        if self.extent.is_quick:
            found = self._streams_of_machine(problem, 0)
            self._drop_replaced(problem)
            return found
        self._compile_kernels(problem.objective, problem.execution_model)
        fit = stream_calibration(
            problem,
            loaded,
            np.random.default_rng(0),
            progress=lambda part: self.steps.tell(CALIBRATING, "calibrating streams", part=part),
            deadline=self._calibration_end(),
        )
        if not fit.is_complete:
            return self._streams_of_machine(fit.problem, fit.streams)
        if fit.problem is not problem:
            self._keep(fit.problem)
        return fit.problem

    def _streams_of_machine(self, problem: Problem, streams: int) -> Problem:
        """The problem with costs of this machine, if its own streams were not all measured."""
        what = f"calibration: {counted(streams, 'stream')} of this model measured"
        if streams >= STREAMS_ENOUGH:
            self.left_out.append(f"{what}, not {STREAMS}")
            return problem
        if self._costs.known is None:  # the small model is calibrated by latency
            self._compile_kernels("latency", EVENT)
        machine = self._machine(self._calibration_end(), is_needed=True)
        self.left_out.append(f"{what}, not {STREAMS}; {_DEFAULT if machine is None else _MACHINE}")
        if machine is None:
            return with_default_costs(problem)
        return fitted(problem, NOTHING, (), machine)[0]

    def _tell(self, at: Progress) -> None:
        if at.ahead is not None:
            self._forecast(at.ahead)
        self.steps.tell(MEASURING, f"measuring {at.what}", at.seconds_left)

    def _forecast(self, ahead: Ahead) -> None:
        self.ahead = ahead
        seconds = {MEASURING: ahead.seconds}
        will_calibrate = self._will_calibrate(ahead.n_units)
        if will_calibrate or self.steps.search_seconds:
            seconds[KERNELS] = self._compiling_seconds(will_calibrate)
        if will_calibrate:
            costs, end = self._costs, self._calibration_end()
            if costs.known is None and not end.is_over and self._wants_machine(end, ahead):
                seconds[MACHINE] = costs.start(self._tell_machine, end.part(_SHARE))
            seconds[CALIBRATING] = self._calibration_seconds(ahead)
        seconds[SEARCHING] = self.steps.search_seconds
        if self.steps.check == CHECKING:
            seconds[CHECKING] = _check_seconds(ahead, self.objective)
        elif self.steps.check == PROBING and self.cluster.n_devices > 1:
            seconds[PROBING] = _PROBED_WAYS * ahead.compile_seconds + PROBE_SECONDS
        self.steps.expect(seconds, _what(ahead))

    def _compiling_seconds(self, will_calibrate: bool) -> float:
        seconds = seconds_to_compile(self.objective, default_model(self.objective))
        if will_calibrate and self.extent.is_quick and self.objective == "throughput":
            seconds += seconds_to_compile("latency", EVENT)
        return seconds

    def _will_calibrate(self, n_units: int) -> bool:
        if not self.extent.calibrate or self.cluster.n_devices < 2:
            return False
        assert self.model.source is not None
        read = (self.model.graph, self.model.source)
        version = self.runtime.version
        is_stream = self.objective == "throughput"
        return not is_calibration_known(
            read,
            n_units,
            self.cluster,
            self.store,
            version,
            of_streams=is_stream,
            probe=self._costs.probe,
            is_quick=self.extent.is_quick,
        )

    def _calibration_seconds(self, ahead: Ahead) -> float:
        if self.objective == "throughput":
            return 0.0 if self.extent.is_quick else stream_calibration_seconds(ahead)
        is_quick = self.extent.is_quick
        return calibration_seconds(
            ahead.request_seconds,
            ahead.compile_seconds,
            _QUICK_PLACEMENTS if is_quick else PLACEMENTS,
            _QUICK_ROUNDS if is_quick else None,
            ahead.scatter,
        )

    @cached_property
    def _costs(self) -> MachineCosts:
        return MachineCosts(self.cluster, self.runtime, self.store)

    def _wants_machine(self, end: Deadline, ahead: Ahead) -> bool:
        """True if there is too little time for a calibration of the model itself."""
        return self.extent.is_quick or self._calibration_seconds(ahead) > end.seconds_left


_MACHINE = "the others are of this machine's small model"
_MACHINE_ALONE = "cuts and dispatch cost what they do in this machine's small model"
_DEFAULT = "cuts and dispatch cost a pessimistic default"


def _what(ahead: Ahead) -> str:
    if not ahead.devices:
        return f"{ahead.n_units} units, measured before"
    return f"{ahead.n_units} units, measured on {', '.join(ahead.devices)}"


def _check_seconds(ahead: Ahead, objective: Objective) -> float:
    """Estimate the seconds of comparing outputs and measuring a few contenders in turns."""
    compilations = (_CHECKED_WAYS + 2) * ahead.compile_seconds
    if objective == "throughput":
        rounds = _STREAMED * ahead.request_seconds
    else:
        requests = warm_requests(ahead.request_seconds)
        rounds = _CHECKED_ROUNDS * _CHECKED_WAYS * requests * ahead.request_seconds
    return compilations + min(rounds, _MOST_CHECK_SECONDS)
