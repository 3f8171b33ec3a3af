"""The seconds of a model's units as they were measured last, kept for a look at the model."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import FloatArray, frozen_floats, frozen_ints
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.profiling.store import CostStore

_KEY = "last measured 1"


@dataclass(frozen=True, eq=False)
class UnitTimes:
    """Seconds of units.

    Attributes:
        devices: their names.
        units: groups of ops.
        seconds: shape (n_units, n_devices); inf where a device cannot run a unit.
    """

    devices: tuple[str, ...]
    units: Grouping
    seconds: FloatArray

    @classmethod
    def of(cls, problem: Problem) -> UnitTimes:
        """Those of a problem."""
        return cls(problem.cluster.device_names, problem.units, problem.costs.seconds)


def keep_last(store: CostStore, identity: str, times: UnitTimes) -> None:
    """Keep seconds under the identity of a model."""
    columns = [[None if np.isinf(s) else s for s in row] for row in times.seconds.tolist()]
    kept = [list(times.devices), times.units.group_of.tolist(), columns]
    store.put_fact(f"{_KEY}|{identity}", json.dumps(kept))


def last_measured(store: CostStore, identity: str, n_ops: int) -> UnitTimes | None:
    """What was kept; None without."""
    text = store.fact(f"{_KEY}|{identity}")
    if text is None:
        return None
    devices, group_of, rows = json.loads(text)
    if len(group_of) != n_ops:
        return None
    seconds = [[np.inf if s is None else s for s in row] for row in rows]
    return UnitTimes(tuple(devices), Grouping(frozen_ints(group_of)), frozen_floats(seconds))
