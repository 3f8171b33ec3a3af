"""How far predicted values may be off, and whether a predicted gain is larger than that."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewright.core.cluster import UNIT_SHARE
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.model import Simulator

_PLAYED = 24  # samples
_WORTH = 0.01  # a smaller gain of predicted costs is none, however sure
_SAME = 1e-9  # a relative difference of exact costs that is rounding


@dataclass(frozen=True)
class PredictedGain:
    """A split beside the best single device, by prediction.

    Attributes:
        device: that runs everything soonest.
        alone: value there.
        value: of the split.
        error: that the value of the split may be off by; None where no calibration told it.
        least: gain that is worth a split, see `least_gain`.
    """

    device: int
    alone: float
    value: float
    error: float | None
    least: float

    @property
    def factor(self) -> float:
        """How many times as fast the split is predicted to be."""
        return self.alone / self.value if self.value > 0 else 1.0

    @property
    def least_factor(self) -> float:
        """The same where the prediction is off by its error."""
        return self.alone / (self.value + (self.error or 0.0)) if self.value > 0 else 1.0

    @property
    def is_sure(self) -> bool:
        """True where the gain is larger than the error, and worth a split."""
        return self.least_factor >= 1.0 + self.least


def least_gain(problem: Problem) -> float:
    """The predicted gain from which a split is worth it, as a part of the split's value.

    Costs of a model that runs on hardware are predictions; those of a workload are exact.
    """
    source = problem.costs.source
    is_prediction = source.startswith("measured") or source == "roofline"
    return _WORTH if problem.source is not None and is_prediction else _SAME


def predicted_gain(problem: Problem, placement: Placement, value: float) -> PredictedGain | None:
    """A placement and its value beside the best device; None where it is one, or none takes all.

    The error is the cluster's `prediction_error` times what the prediction adds for dispatch, cuts
    and contention, and for a twentieth of the rest: nine calibration placements in ten were closer.
    A calibrated device alone was timed as a whole: the dispatch of its segment is in its units.
    """
    if len(np.unique(placement.device_of)) < 2:
        return None
    simulator = Simulator(problem)
    bare = Simulator(replace(problem, cluster=problem.cluster.without_overheads))
    timed = simulator if problem.cluster.prediction_error is None else bare
    each = [Placement.on_one_device(problem.n_units, at) for at in range(problem.n_devices)]
    alone = np.array(
        [timed.value(one) if simulator.violation(one) is None else np.inf for one in each]
    )
    device = int(np.argmin(alone))
    if not np.isfinite(alone[device]):
        return None
    least, share = bare.value(placement), problem.cluster.prediction_error
    value = _played(simulator, placement, value)
    error = None
    if share is not None:
        error = share * (max(0.0, value - least) + UNIT_SHARE * least)
    return PredictedGain(device, float(alone[device]), value, error, least_gain(problem))


def _played(simulator: Simulator, placement: Placement, value: float) -> float:
    """The value; for throughput the period of the played stream, which pays for cuts and dispatch.

    Max-load is the rate of a pipeline without them.
    """
    if simulator.problem.objective != "throughput":
        return value
    try:
        return max(value, simulator.stream(placement, samples=_PLAYED).steady.period)
    except (InfeasibleError, InputError):  # groups that take turns, or too little memory
        return value
