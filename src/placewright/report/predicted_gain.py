"""Error of predicted values, and whether a predicted gain is larger than that error."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewright.core.charges import CHARGED
from placewright.core.cluster import UNIT_SHARE
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.model import Simulator

_STREAM_SAMPLES = 24  # samples of a simulated stream
_WORTHWHILE = 0.01  # smallest gain that justifies a split of a model on hardware
_SAME = 1e-9  # relative difference of equal exact costs, from rounding


@dataclass(frozen=True)
class PredictedGain:
    """Predicted values of a split and of the best single device."""

    device: int  # the device with the smallest value alone
    alone: float  # value on that device
    value: float  # of the split
    error: float | None  # possible error of the split's value; None without calibration
    least_gain: float  # smallest gain that is worth a split, see `least_gain`

    @property
    def factor(self) -> float:
        """Predicted speed of the split relative to the device alone."""
        return self.alone / self.value if self.value > 0 else 1.0

    @property
    def least_factor(self) -> float:
        """`factor` if the split takes longer than predicted by the whole `error`."""
        return self.alone / (self.value + (self.error or 0.0)) if self.value > 0 else 1.0

    @property
    def is_sure(self) -> bool:
        """True if the gain is larger than the error and worth a split."""
        return self.least_factor >= 1.0 + self.least_gain


def least_gain(problem: Problem) -> float:
    """The smallest predicted gain that is worth a split, relative to the split's value.

    Costs of a model that runs on hardware are predictions; costs of a workload are exact.
    """
    source = problem.costs.source
    is_prediction = source.startswith("measured") or source == "roofline"
    return _WORTHWHILE if problem.source is not None and is_prediction else _SAME


def predicted_gain(problem: Problem, placement: Placement, value: float) -> PredictedGain | None:
    """Compare a placement with the best single device.

    error = prediction_error × (overheads + `UNIT_SHARE` × rest)

    Overheads are the predicted dispatch, cuts and contention; nine of ten calibration placements
    had a smaller error. A calibrated device alone was timed as a whole, so its units contain the
    dispatch of its segment.

    Returns:
        None if the placement uses one device, or no device alone is feasible, or the value is
        an energy or a price.
    """
    if problem.objective in CHARGED or len(np.unique(placement.device_of)) < 2:
        return None
    simulator = Simulator(problem)
    bare = Simulator(replace(problem, cluster=problem.cluster.without_overheads))
    alone_simulator = simulator if problem.cluster.prediction_error is None else bare
    placements = [Placement.on_one_device(problem.n_units, at) for at in range(problem.n_devices)]
    alone = np.array(
        [
            alone_simulator.value(single) if simulator.violation(single) is None else np.inf
            for single in placements
        ]
    )
    device = int(np.argmin(alone))
    if not np.isfinite(alone[device]):
        return None
    least, share = bare.value(placement), problem.cluster.prediction_error
    value = _streamed(simulator, placement, value)
    error = None
    if share is not None:
        error = share * (max(0.0, value - least) + UNIT_SHARE * least)
    return PredictedGain(device, float(alone[device]), value, error, least_gain(problem))


def _streamed(simulator: Simulator, placement: Placement, value: float) -> float:
    """Replace the value by the period of a simulated stream, if that is larger; only throughput.

    A stream pays for cuts and dispatch; max-load is the period of a pipeline without them.
    """
    if simulator.problem.objective != "throughput":
        return value
    try:
        return max(value, simulator.stream(placement, samples=_STREAM_SAMPLES).steady.period)
    except (InfeasibleError, InputError):  # replicas, or too little memory
        return value
