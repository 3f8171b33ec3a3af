"""Execution model `max-load`: time per sample of a full pipeline.

Tarnawski et al. 2020: the load of a device is its compute plus the tensors that it receives and
sends, each once; the value is the largest load. Here also with links, channels, streams, overlap,
and groups of r equal devices that take turns with the samples: each spends its load on one of r.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import splits_phases
from placewright.core.problem import Problem
from placewright.simulation.behaviours import BoundsByMethod, Explanation
from placewright.simulation.bounds.feasibility import Proofs, proof_of
from placewright.simulation.bounds.lower import balanced_load_bound
from placewright.simulation.layout import ProblemArrays, broken_limit
from placewright.simulation.legality import CUT_OFF, FINE, NO_ORDER, TOO_LARGE, check
from placewright.simulation.max_load.sums import load_tables, loads_and_bytes

if TYPE_CHECKING:
    from placewright.simulation.max_load.relaxation import LoadRelaxation


class Loads:
    """Loads of placements of one problem."""

    bounds: ClassVar[BoundsByMethod] = {"balanced load": balanced_load_bound}
    has_timeline: ClassVar[bool] = False

    def __init__(self, problem: Problem, arrays: ProblemArrays) -> None:
        self._arrays = arrays
        self._tables = load_tables(problem, arrays)

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Value of a placement, in any order; inf if it is infeasible."""
        return self.evaluate(device_of, order)[0]

    def values(self, devices_of: IntArray) -> FloatArray:
        """Values of placements, devices_of (n_placements, n_units)."""
        return np.array([self.evaluate(row, NO_ORDER)[0] for row in devices_of])

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """The loads of a placement."""
        del order
        return Explanation(loads=self.loads(device_of))

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """Proofs count resident bytes and routes."""
        return proof_of(problem, Proofs())

    @staticmethod
    def relaxation(problem: Problem) -> LoadRelaxation | None:
        """The relaxation of loads; None if the value adds phases."""
        # SciPy's solver takes a while to import.
        from placewright.simulation.max_load.relaxation import LoadRelaxation

        return None if splits_phases(problem.execution_model) else LoadRelaxation(problem)

    def evaluate(self, device_of: IntArray, order: IntArray) -> tuple[float, int, int, FloatArray]:
        """Value (inf with a fault), fault, its place, and bytes of each device (n_devices,)."""
        del order
        fault, at = check(self._arrays, device_of, NO_ORDER)
        if fault != FINE:
            return math.inf, fault, at, np.zeros(len(self._arrays.memory))
        loads, memory, cut_off = loads_and_bytes(self._arrays, self._tables, device_of)
        if cut_off >= 0:
            return math.inf, CUT_OFF, int(cut_off), memory
        over = broken_limit(self._arrays, memory)
        if over >= 0:
            return math.inf, TOO_LARGE, over, memory
        return float(loads.max(axis=1).sum()), FINE, -1, memory

    def loads(self, device_of: IntArray) -> FloatArray:
        """Load of each device, named channel, shared processor: shape (n_phases, n), seconds."""
        return np.asarray(loads_and_bytes(self._arrays, self._tables, device_of)[0])
