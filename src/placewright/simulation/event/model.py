"""Execution model `event`: values of placements, and the compiled functions behind them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
from numba import types

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.behaviours import Behaviour, BoundsByMethod, Explanation
from placewright.simulation.bounds.feasibility import Proofs, proof_of
from placewright.simulation.bounds.lower import balanced_load_bound, critical_path_bound
from placewright.simulation.compiled import compiled, machine_code, uncounted
from placewright.simulation.event.kernel import advance
from placewright.simulation.event.memory import full_pool, holds_everything, memory_peaks
from placewright.simulation.event.prepare import prepare
from placewright.simulation.event.records import (
    LOWER_QUARTER,
    QUARTER,
    SECOND_HOP,
    Bytes,
    Records,
    U,
    arrays_in,
    places_of,
)
from placewright.simulation.event.tables import (
    AS_LISTED,
    BY_RANK,
    DISPATCH,
    FAULT,
    FAULT_AT,
    HAS_OVERHEADS,
    IS_PLAIN,
    N_COPIES,
    EventTables,
    State,
    packed_tables,
    state_in,
    state_sizes,
    tables_in,
)
from placewright.simulation.layout import VIA_HOST, ProblemArrays
from placewright.simulation.legality import (
    CUT_OFF,
    FINE,
    NO_ORDER,
    NOT_ALLOWED,
    TOO_LARGE,
    TOO_MANY_SEGMENTS,
    check,
)
from placewright.simulation.timeline import Recording, timeline_of

if TYPE_CHECKING:
    from placewright.simulation.bounds.relaxation import LatencyRelaxation

_SIGNED = cast(Callable[[Any], int], np.int64)


class EventModel(Behaviour):
    """Values of placements under execution model `event`.

    Each thread gets working memory of its own, so that threads may share an instance.
    """

    bounds: ClassVar[BoundsByMethod] = {
        "critical path": critical_path_bound,
        "balanced load": balanced_load_bound,
    }
    has_timeline: ClassVar[bool] = True

    def __init__(self, problem: Problem, arrays: ProblemArrays) -> None:
        self._problem = problem
        self._tables, self._tensor_number = packed_tables(problem, arrays)
        self._arrays = arrays
        self._has_classes = arrays.n_classes < problem.n_units
        all_bytes = float(arrays.tensor_bytes.sum() + arrays.kept_bytes.sum())
        of_pools = problem.cluster.pooled(np.full(problem.n_devices, all_bytes))
        may_overflow = bool((arrays.memory < all_bytes).any())
        may_overflow |= bool((arrays.pool_bytes < of_pools).any())
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
            len(arrays.excludes) > 0,
        )
        self._places, self._n_bytes = places_of(self._sizes)
        self._thread = threading.local()

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_thread"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._thread = threading.local()

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Makespan in seconds, inf if the placement is infeasible."""
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
        """Makespan (inf with a fault), fault, its place, peak bytes (n_devices,)."""
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
        """Prove that nothing fits; inputs and outputs of units that take time count, and routes."""
        return proof_of(problem, Proofs(working_sets=True))

    @staticmethod
    def relaxation(problem: Problem) -> LatencyRelaxation:
        """The relaxation of load, precedence and transfers."""
        # SciPy's solver takes a while to import.
        from placewright.simulation.bounds.relaxation import LatencyRelaxation

        return LatencyRelaxation(problem)

    def record(self, device_of: IntArray, order: IntArray) -> Recording:
        """The recording of a feasible placement."""
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
        """True if the placement may have faults that the kernel does not check."""
        return self._has_classes or len(order) > 0

    def _check(self, device_of: IntArray, order: IntArray) -> tuple[int, int]:
        return check(self._arrays, device_of, order)


@uncounted
def play(
    seconds: FloatArray,
    allowed: BoolArray,
    factors: FloatArray,
    tables_block: Bytes,
    tables_places: IntArray,
    device_of: IntArray,
    order: IntArray,
    block: Bytes,
    places: IntArray,
    peaks: FloatArray,
) -> tuple[float, int, int]:
    """Simulate one placement that keeps colocation and order, and record what happens.

    Nothing but numbers comes back: to make a named tuple Numba calls Python, and it does not look
    whether that raised, as a signal's handler may.

    Args:
        seconds, allowed, factors, tables_block, tables_places: the problem, as `PackedTables`.
        device_of: (n_units,).
        order: topological order of all units, or empty for the problem's rule of dispatch.
        block, places: working memory, as `state_in` takes it; holds all that happened afterwards.
        peaks: (n_devices,) bytes, to write into.

    Returns:
        Makespan in seconds (inf with a fault), the fault, and where it is.
    """
    tables = tables_in(seconds, allowed, factors, tables_block, tables_places)
    state = state_in(block, places)
    makespan, fault, at = _play(tables, state, device_of, order, True)
    if fault == FINE:  # else times are infinite, and no slice holds them
        memory_peaks(tables, state, makespan, peaks)
    return makespan, fault, at


@uncounted
def _play(
    tables: EventTables, state: State, device_of: IntArray, order: IntArray, keeps_segments: bool
) -> tuple[float, int, int]:
    rule = AS_LISTED if len(order) > 0 else tables.scalars[DISPATCH]
    keeps_segments = keeps_segments or tables.scalars[HAS_OVERHEADS] > 0
    if not prepare(tables, state, device_of, order, keeps_segments):
        return np.inf, NOT_ALLOWED, 0
    # Constants, so that the loop is compiled a second time, without features that are rare.
    if tables.scalars[IS_PLAIN] and rule == BY_RANK and not keeps_segments:
        makespan = advance(tables, state, BY_RANK, False, True)
    else:
        makespan = advance(tables, state, rule, keeps_segments, False)
    if state.counts[FAULT] != FINE:
        return np.inf, CUT_OFF, state.counts[FAULT_AT]
    n_limited = U(len(tables.segment_limits))
    for device in range(U(0), n_limited):
        count = U(state.segments[device].segments)
        if count > tables.segment_limits[device].segments:
            return np.inf, TOO_MANY_SEGMENTS, _SIGNED(device + count * n_limited)
    return makespan, FINE, -1


@uncounted
def evaluate(
    seconds: FloatArray,
    allowed: BoolArray,
    factors: FloatArray,
    tables_block: Bytes,
    tables_places: IntArray,
    device_of: IntArray,
    order: IntArray,
    block: Bytes,
    places: IntArray,
    peaks: FloatArray,
    wants_peaks: bool,
) -> tuple[float, int, int]:
    """Simulate like `play`, but compute only the value, the fault and the peak bytes.

    If `peaks` is empty, memory is not checked. Without `wants_peaks` the peaks are computed only
    if they may be too large, and `peaks` is working memory.
    """
    tables = tables_in(seconds, allowed, factors, tables_block, tables_places)
    state = state_in(block, places)
    makespan, fault, at = _play(tables, state, device_of, order, False)
    if fault != FINE or len(peaks) == 0:
        return makespan, fault, at
    if not wants_peaks and holds_everything(tables, state, peaks):
        return makespan, FINE, -1
    memory_peaks(tables, state, makespan, peaks)
    for device in range(len(peaks)):
        if peaks[device] > tables.devices[device].memory:
            return np.inf, TOO_LARGE, device
    pool = full_pool(tables, peaks, 1.0)
    if pool >= 0:
        return np.inf, TOO_LARGE, len(peaks) + pool
    return makespan, FINE, -1


@compiled
def evaluate_all(
    seconds: FloatArray,
    allowed: BoolArray,
    factors: FloatArray,
    tables_block: Bytes,
    tables_places: IntArray,
    devices_of: IntArray,
    order: IntArray,
    block: Bytes,
    places: IntArray,
    peaks: FloatArray,
) -> FloatArray:
    """Makespans of placements without order; inf for infeasible placements.

    Args:
        seconds, allowed, factors, tables_block, tables_places: the problem, as `PackedTables`.
        devices_of: (n_placements, n_units).
        order: empty.
        block, places: working memory.
        peaks: (n_devices,) to write into, or empty where no placement can exceed the memory.
    """
    values = np.empty(len(devices_of))
    for index in range(len(devices_of)):
        values[index], _, _ = evaluate(
            seconds,
            allowed,
            factors,
            tables_block,
            tables_places,
            devices_of[index],
            order,
            block,
            places,
            peaks,
            False,
        )
    return values


class Entries(NamedTuple):
    """Machine code of the functions above for the argument types of `EventModel`."""

    play: Callable[..., tuple[float, int, int]]
    evaluate: Callable[..., tuple[float, int, int]]
    evaluate_all: Callable[..., FloatArray]


@cache
def entries() -> Entries:
    """Compile the functions, or load them from the cache, once per process."""
    tables = (
        types.Array(types.float64, 2, "C", readonly=True),
        types.Array(types.boolean, 2, "C", readonly=True),
        types.Array(types.float64, 2, "C"),
        types.Array(types.uint8, 1, "C"),
        types.Array(types.int64, 2, "C"),
    )
    row, rows = (types.Array(types.int64, n, "C", readonly=True) for n in (1, 2))
    block, places, peaks = tables[3], tables[4], types.Array(types.float64, 1, "C")
    return Entries(
        machine_code(play, (*tables, row, row, block, places, peaks)),
        machine_code(evaluate, (*tables, row, row, block, places, peaks, types.boolean)),
        machine_code(evaluate_all, (*tables, rows, row, block, places, peaks)),
    )
