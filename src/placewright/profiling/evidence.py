"""Measured placements of one model: what a fit of overheads is made from, and how far it is off.

A fit to placements of the model itself is the best there is. With fewer of them than a calibration
measures, those of another model of the same machine stand in for the missing ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.cluster import UNIT_SHARE
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.profiling.segment_fit import (
    SegmentRow,
    Wait,
    fitted_cluster,
)
from placewright.simulation.model import Simulator

PLACEMENTS = 8  # of a complete calibration
_QUANTILE = 0.9  # of the placements were closer to their prediction
_LEAST_ERROR = 0.1  # as a share of what a prediction adds: medians are known no better
LEAST_TRIALS = 4  # of which a fit is made alone, and which tell its error


@dataclass(frozen=True)
class Trial:
    """A measured placement.

    Attributes:
        device_of: of each unit.
        seconds: measured, of the whole request.
    """

    device_of: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """A trial beside its prediction.

    Attributes:
        seconds: measured.
        predicted: by the fit.
        bare: by the same units without overheads.
    """

    seconds: float
    predicted: float
    bare: float

    @property
    def error(self) -> float:
        """Distance from the prediction, as a share of what it adds and of `UNIT_SHARE` of units."""
        added = max(0.0, self.predicted - self.bare) + UNIT_SHARE * self.bare
        return abs(self.seconds - self.predicted) / max(added, 1e-12)


@dataclass(frozen=True)
class Evidence:
    """What was measured of one model.

    Attributes:
        rows, waits: of segments, see `profiling.segment_fit`.
        outcomes: of trials beside a fit to these rows alone.
        model_seconds: the whole model on one device; what rows of several models are weighed by.
    """

    rows: tuple[SegmentRow, ...] = ()
    waits: tuple[Wait, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    model_seconds: float = 1.0

    def text(self) -> str:
        """As JSON, without the rounds of rows."""
        data = {
            "rows": [
                [r.device, r.devices_in_use, r.unit_seconds, r.counts.tolist(), r.seconds]
                for r in self.rows
            ],
            "waits": [[w.source, w.destination, w.seconds] for w in self.waits],
            "outcomes": [[o.seconds, o.predicted, o.bare] for o in self.outcomes],
            "model_seconds": self.model_seconds,
        }
        return json.dumps(data)

    @classmethod
    def of_text(cls, text: str) -> Evidence:
        """What `text` wrote."""
        data: dict[str, Any] = json.loads(text)
        return cls(
            tuple(
                SegmentRow(device, in_use, own, np.array(counts), seconds)
                for device, in_use, own, counts, seconds in data["rows"]
            ),
            tuple(Wait(*wait) for wait in data["waits"]),
            tuple(Outcome(*outcome) for outcome in data["outcomes"]),
            data["model_seconds"],
        )


NOTHING = Evidence()


def fitted(
    problem: Problem, own: Evidence, trials: Sequence[Trial], machine: Evidence | None
) -> tuple[Problem, tuple[Outcome, ...]]:
    """The problem with overheads that explain its own trials and, where these are few, others.

    Args:
        problem: with costs; what its cluster says of overheads is replaced.
        own: of its model; its outcomes are not looked at.
        trials: of its model.
        machine: of another model on the same devices; None without.

    Returns:
        The problem, whose cluster tells how far predictions are off, and the outcome of each trial.
    """
    bare = problem.cluster.without_overheads
    share = max(0.0, 1.0 - len(trials) / PLACEMENTS)
    others = NOTHING if machine is None else machine
    rows, waits = list(own.rows), list(own.waits)
    if share > 0:
        weight = share * own.model_seconds / others.model_seconds if trials else 1.0
        rows += [_weighed(row, weight) for row in others.rows]
        waits += others.waits
    found = replace(problem, cluster=fitted_cluster(bare, rows, waits))
    outcomes = _outcomes(replace(problem, cluster=bare), found, trials)
    errors = [one.error for one in outcomes]
    if len(errors) < LEAST_TRIALS:
        errors += [one.error for one in others.outcomes]
    error = max(_LEAST_ERROR, float(np.quantile(errors, _QUANTILE))) if errors else 1.0
    return replace(found, cluster=replace(found.cluster, prediction_error=error)), outcomes


def _weighed(row: SegmentRow, weight: float) -> SegmentRow:
    """A row whose deviation from the fit counts so many times."""
    return replace(
        row,
        unit_seconds=weight * row.unit_seconds,
        counts=weight * row.counts,
        seconds=weight * row.seconds,
        rounds=None if row.rounds is None else weight * row.rounds,
    )


def _outcomes(bare: Problem, found: Problem, trials: Sequence[Trial]) -> tuple[Outcome, ...]:
    without, simulator = Simulator(bare), Simulator(found)
    outcomes = []
    for trial in trials:
        placement = Placement.of(np.array(trial.device_of))
        predicted, least = simulator.value(placement), without.value(placement)
        if np.isfinite(predicted):
            outcomes.append(Outcome(trial.seconds, predicted, least))
    return tuple(outcomes)
