"""A model on devices of this machine -> a problem with measured costs, calibrated.

The one way to it: the command line and `placewright.profile` measure the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.cluster import Cluster
from placewright.core.deadline import NEVER, Deadline
from placewright.core.problem import Objective, Problem
from placewright.errors import InputError
from placewright.execution.runtime import LoadedModel, Runtime
from placewright.profiling.calibration import calibration, calibration_seconds, has_overheads
from placewright.profiling.hardware import LONG_SECONDS
from placewright.profiling.kept_calibration import (
    is_calibration_known,
    keep_calibration,
    known_calibration,
)
from placewright.profiling.measure import QUICK, Ahead, Effort, Ends, Progress
from placewright.profiling.profile import Measuring, profile
from placewright.profiling.store import CostStore
from placewright.profiling.stream_calibration import has_stream_overheads, stream_calibration
from placewright.session.models import Model
from placewright.session.steps import CALIBRATING, CHECKING, MEASURING, SEARCHING, Steps

_SHARE = 0.5  # of what is left of the total, for measuring and then for calibrating
_MEASURING = 0.6  # of the limit on both
_CHECKED_ROUNDS, _CHECKED_WAYS = 15, 4
_MOST_CHECK_SECONDS = 60.0


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        deadline: of everything; no piece of work starts after it.
        is_quick: a few rounds, and a stored calibration or none.
        calibrate: False fits no overheads, and takes no stored fit.
        remeasure: what is stored is measured again.
        limit: of measuring and calibrating; after it starts only what a plan cannot do without.
    """

    deadline: Deadline = NEVER
    is_quick: bool = False
    calibrate: bool = True
    remeasure: bool = False
    limit: Deadline = NEVER


@dataclass(frozen=True)
class Measured:
    """A problem, and what was not measured for it.

    Attributes:
        problem: with costs.
        left_out: what `Extent` left out, one clause each.
        check_seconds: what a check on the hardware may take; 0 where costs were not measured.
    """

    problem: Problem
    left_out: tuple[str, ...] = ()
    check_seconds: float = 0.0


def measured(
    model: Model,
    loaded: LoadedModel,
    cluster: Cluster,
    runtime: Runtime,
    *,
    objective: Objective = "latency",
    extent: Extent | None = None,
    steps: Steps | None = None,
) -> Measured:
    """Measure every unit on every device and calibrate, each once: results are kept.

    Args:
        model: as it was read, with its source.
        loaded: the same by `runtime`.
        cluster: of this machine.
        runtime: that measures.
        objective: of the problem; overheads are fitted where the event model simulates it.
        extent: how much is measured; None is all.
        steps: told what is being done.

    Raises:
        InputError: the model has no source to run.
        RuntimeFailure: a device cannot run the model.
        OutOfTime: the deadline passed before each device had run the model once.
    """
    if model.source is None:
        raise InputError("this graph has no model behind it; read the model itself")
    run = _Measurement(model, cluster, runtime, objective, extent or Extent(), steps or Steps())
    problem = run.profiled(loaded)
    if run.extent.calibrate and has_overheads(problem):
        problem = run.calibrated(problem, loaded)
    elif run.extent.calibrate and has_stream_overheads(problem):
        problem = run.stream_calibrated(problem, loaded)
    assert run.ahead is not None
    return Measured(problem, tuple(run.left_out), _check_seconds(run.ahead))


class _Measurement:
    """One call of `measured`: its steps, and what was left out so far."""

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

    def profiled(self, loaded: LoadedModel) -> Problem:
        """The problem without overheads."""
        assert self.model.source is not None
        deadline, limit = self.extent.deadline.part(_SHARE), self.extent.limit.part(_MEASURING)
        problem = profile(
            self.model.graph,
            self.model.source,
            self.cluster,
            self.runtime,
            objective=self.objective,
            model=loaded,
            measuring=Measuring(
                self.store,
                QUICK if self.extent.is_quick else Effort(),
                self._tell,
                Ends(deadline, limit, self.estimated),
            ),
        )
        if self.ahead is None:  # everything was stored
            whole = problem.costs.seconds
            slowest = float(np.where(np.isfinite(whole), whole, 0.0).sum(axis=0).max())
            self._forecast(Ahead((), problem.n_units, 0.0, slowest, 0.0))
        elif self.extent.is_quick:
            self.left_out.append(
                f"rounds: each device ran the model {QUICK.rounds} or {QUICK.max_rounds} times, "
                f"not {Effort().rounds} to {Effort().max_rounds} times"
            )
        elif deadline.is_over or limit.is_over:
            self.left_out.append("rounds: devices ran the model fewer times than usual")
        self.left_out += [
            f"measuring '{device}': the limit on profiling was over; each of its units takes what "
            f"it takes on '{like}'"
            for device, like in self.estimated.items()
        ]
        return problem

    def _calibration_end(self) -> Deadline:
        return self.extent.deadline.part(_SHARE).within(self.extent.limit.seconds_left)

    def calibrated(self, problem: Problem, loaded: LoadedModel) -> Problem:
        """The problem with what cuts, dispatch and contention cost; later calls find it stored."""
        version = self.runtime.version
        known = known_calibration(problem, self.store, version)
        if known is not None:
            return known
        if self.extent.is_quick:
            self.left_out.append(f"calibration: none is stored, {_WITHOUT}")
            return problem
        found = calibration(
            problem,
            loaded,
            np.random.default_rng(0),
            progress=lambda at: self.steps.tell(
                CALIBRATING, f"calibrating {at.what}", at.seconds_left
            ),
            deadline=self._calibration_end(),
        )
        if not found.is_complete:
            what = f"{found.placements} placements were measured" if found.placements else _WITHOUT
            self.left_out.append(f"calibration: {what}")
        elif found.problem is not problem:  # something was fitted
            keep_calibration(found.problem, self.store, version)
        return found.problem

    def stream_calibrated(self, problem: Problem, loaded: LoadedModel) -> Problem:
        """The problem with what streams cost beside their units; later calls find it stored."""
        version = self.runtime.version
        known = known_calibration(problem, self.store, version)
        if known is not None:
            return known
        if self.extent.is_quick:
            self.left_out.append("calibration: none of streams is stored")
            return problem
        found = stream_calibration(
            problem,
            loaded,
            np.random.default_rng(0),
            progress=lambda part: self.steps.tell(CALIBRATING, "calibrating streams", None),
            deadline=self._calibration_end(),
        )
        if not found.is_complete:
            self.left_out.append(f"calibration: {found.streams} streams were measured")
        elif found.problem is not problem:
            keep_calibration(found.problem, self.store, version)
        return found.problem

    def _tell(self, at: Progress) -> None:
        if at.ahead is not None:
            self._forecast(at.ahead)
        self.steps.tell(MEASURING, f"measuring {at.what}", at.seconds_left)

    def _forecast(self, ahead: Ahead) -> None:
        self.ahead = ahead
        seconds = {MEASURING: ahead.seconds}
        if self._will_calibrate(ahead.n_units):
            seconds[CALIBRATING] = calibration_seconds(ahead.request_seconds, ahead.compile_seconds)
        seconds[SEARCHING] = self.steps.search_seconds
        if self.steps.is_checked:
            seconds[CHECKING] = _check_seconds(ahead)
        self.steps.expect(seconds, _what(ahead))

    def _will_calibrate(self, n_units: int) -> bool:
        is_wanted = self.extent.calibrate and not self.extent.is_quick
        if not is_wanted or self.cluster.n_devices < 2 or self.objective == "throughput":
            return False
        assert self.model.source is not None
        read = (self.model.graph, self.model.source)
        version = self.runtime.version
        return not is_calibration_known(read, n_units, self.cluster, self.store, version)


_WITHOUT = "so that cuts, dispatch and contention cost nothing in the prediction"


def _what(ahead: Ahead) -> str:
    if not ahead.devices:
        return f"{ahead.n_units} units, measured before"
    return f"{ahead.n_units} units on {', '.join(ahead.devices)}"


def _check_seconds(ahead: Ahead) -> float:
    """Roughly, of comparing outputs and measuring a few ways to run the model in turns."""
    requests = 2 if ahead.request_seconds < LONG_SECONDS else 1
    rounds = _CHECKED_ROUNDS * _CHECKED_WAYS * requests * ahead.request_seconds
    compilations = (_CHECKED_WAYS + 2) * ahead.compile_seconds
    return compilations + min(rounds, _MOST_CHECK_SECONDS)
