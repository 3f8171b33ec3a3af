"""Execution model `event` of one problem: compiled once, asked for placements."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.behaviours import BoundsByMethod
from placewright.simulation.blocks import Bytes, arrays_in, places_of
from placewright.simulation.bounds import balanced_load_bound, critical_path_bound
from placewright.simulation.event.arrays import VIA_HOST, EventArrays
from placewright.simulation.event.recording import Recording
from placewright.simulation.event.run import entries
from placewright.simulation.event.state import N_COPIES, State, state_sizes
from placewright.simulation.event.tables import packed_tables
from placewright.simulation.explanation import Explanation
from placewright.simulation.feasibility import Proofs, proof_of
from placewright.simulation.legality import CUT_OFF, FINE, NO_ORDER, NOT_ALLOWED, check
from placewright.simulation.records import LOWER_QUARTER, QUARTER, SECOND_HOP, Records
from placewright.simulation.timeline import timeline_of

if TYPE_CHECKING:
    from placewright.simulation.event.relaxation import LatencyRelaxation


class EventModel:
    """Values of placements under execution model `event`.

    Each thread that asks gets working memory of its own, so that threads may share an instance.
    """

    bounds: ClassVar[BoundsByMethod] = {
        "critical path": critical_path_bound,
        "balanced load": balanced_load_bound,
    }
    has_timeline: ClassVar[bool] = True

    def __init__(self, problem: Problem, arrays: EventArrays) -> None:
        self._problem = problem
        self._tables, self._tensor_number = packed_tables(problem, arrays)
        self._arrays = arrays
        self._has_classes = arrays.n_classes < problem.n_units
        all_bytes = float(arrays.tensor_bytes.sum() + arrays.kept_bytes.sum())
        may_overflow = bool((arrays.memory < all_bytes).any())
        self._n_devices = problem.n_devices
        self._n_wanted_peaks = problem.n_devices if may_overflow else 0
        self._sizes = state_sizes(
            problem.n_units,
            problem.n_devices,
            arrays.route.shape[0],
            arrays.n_channels,
            len(arrays.consumers),
            len(arrays.producer),
            bool((arrays.route == VIA_HOST).any()),
        )
        self._places, self._n_bytes = places_of(self._sizes)
        self._thread = threading.local()

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_thread"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._thread = threading.local()

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Makespan in seconds, inf where the placement is infeasible."""
        if self._is_checked_before(order) and self._check(device_of, order)[0] != FINE:
            return math.inf
        peaks = np.empty(self._n_wanted_peaks)
        device_of = np.ascontiguousarray(device_of, dtype=np.int64)
        makespan, _, _ = entries().evaluate(
            *self._tables, device_of, order, self._block(), self._places, peaks, False
        )
        return float(makespan)

    def values(self, devices_of: IntArray) -> FloatArray:
        """Makespans of placements without order, devices_of (n_placements, n_units)."""
        if self._has_classes:
            return np.array([self.value(row, NO_ORDER) for row in devices_of])
        peaks = np.empty(self._n_wanted_peaks)
        return entries().evaluate_all(
            *self._tables, devices_of, NO_ORDER, self._block(), self._places, peaks
        )

    def evaluate(self, device_of: IntArray, order: IntArray) -> tuple[float, int, int, FloatArray]:
        """Makespan (inf with a fault), fault, where it is, peak bytes (n_devices,)."""
        peaks = np.zeros(self._n_devices)
        if self._is_checked_before(order):
            fault, at = self._check(device_of, order)
            if fault != FINE:
                return math.inf, fault, at, peaks
        device_of = np.ascontiguousarray(device_of, dtype=np.int64)
        makespan, fault, at = entries().evaluate(
            *self._tables, device_of, order, self._block(), self._places, peaks, True
        )
        if fault == NOT_ALLOWED:
            fault, at = self._check(device_of, order)
        elif fault == CUT_OFF:
            at = int(self._tensor_number[at])
        return float(makespan), fault, at, peaks

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """The timeline of a feasible placement."""
        placement = Placement.of(device_of, order if len(order) else None)
        recording = self.record(device_of, order)
        timeline = timeline_of(self._problem, self._arrays, placement, recording)
        return Explanation(timeline=timeline)

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """Inputs and outputs of a unit that takes time are there at once, and need routes."""
        return proof_of(problem, Proofs(working_sets=True))

    @staticmethod
    def relaxation(problem: Problem) -> LatencyRelaxation:
        """Latency: load, precedence and transfers."""
        # SciPy's solver takes a while to import.
        from placewright.simulation.event.relaxation import LatencyRelaxation

        return LatencyRelaxation(problem)

    def record(self, device_of: IntArray, order: IntArray) -> Recording:
        """All that happens to a feasible placement."""
        peaks = np.zeros(self._n_devices)
        block, device_of = self._block(), np.ascontiguousarray(device_of, dtype=np.int64)
        entries().play(*self._tables, device_of, order, block, self._places, peaks)
        state = State._make(arrays_in(block, self._places, self._sizes))
        hops = state.hops[len(self._tensor_number) : state.counts[N_COPIES]]
        return Recording(
            start=state.spans["start"].copy(),
            end=state.spans["end"].copy(),
            segment=state.cuts["segment"].astype(np.int64),
            memory_peaks=peaks,
            hop_tensor=self._tensor_number[hops["tensor"]],
            hop_source=self._sources(hops, device_of),
            hop_target=(hops["way"] & LOWER_QUARTER).astype(np.int64),
            hop_start=hops["start"].copy(),
            hop_end=hops["end"].copy(),
        )

    def _sources(self, hops: Records, device_of: IntArray) -> IntArray:
        """Endpoint that each hop starts from: where its tensor was made, or the host."""
        producer = self._arrays.producer[self._tensor_number[hops["tensor"]]]
        from_host = (producer < 0) | (hops["way"] >> QUARTER == SECOND_HOP)
        return np.where(from_host, self._arrays.host, device_of[producer])

    def _block(self) -> Bytes:
        """This thread's working memory."""
        block: Bytes | None = getattr(self._thread, "block", None)
        if block is None:
            block = self._thread.block = np.empty(self._n_bytes, dtype=np.uint8)
        return block

    def _is_checked_before(self, order: IntArray) -> bool:
        """Whether something can be wrong that the kernel itself does not find."""
        return self._has_classes or len(order) > 0

    def _check(self, device_of: IntArray, order: IntArray) -> tuple[int, int]:
        return check(self._arrays, device_of, order)
