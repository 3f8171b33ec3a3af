"""Execution model `max-load`: time per sample of a full pipeline.

Tarnawski et al. 2020: the load of a device is its compute plus the tensors that it receives and
sends, each once; the value is the largest load. Here also with links, channels, streams, overlap,
and groups of r alike devices that take turns with the samples: each spends its load on one of r.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.execution_models import splits_phases
from placewright.core.graph import FORWARD
from placewright.core.problem import Problem
from placewright.simulation.behaviours import BoundsByMethod
from placewright.simulation.bounds import balanced_load_bound
from placewright.simulation.compiled import compiled, read_only
from placewright.simulation.event.arrays import EventArrays
from placewright.simulation.explanation import Explanation
from placewright.simulation.feasibility import Proofs, proof_of
from placewright.simulation.legality import CUT_OFF, FINE, NO_ORDER, TOO_LARGE, check
from placewright.simulation.max_load_sums import LoadTables, Sums, new_sums, sum_all

if TYPE_CHECKING:
    from placewright.simulation.max_load_relaxation import LoadRelaxation


class Loads:
    """Loads of placements of one problem.

    Attributes:
        tables: the problem as the sums read it.
        overlaps: (n_devices,) devices whose transfers run beside their compute.
        is_shared: (n_channels,) channels that have a name, whose load counts.
    """

    bounds: ClassVar[BoundsByMethod] = {"balanced load": balanced_load_bound}
    has_timeline: ClassVar[bool] = False

    def __init__(self, problem: Problem, arrays: EventArrays) -> None:
        cluster = problem.cluster
        self._arrays = arrays
        self.tables = _tables(problem, arrays)
        self.overlaps = np.array([device.overlaps_transfers for device in cluster.devices])
        self.is_shared = np.zeros(arrays.n_channels, dtype=np.bool_)
        for link in cluster.links:
            ends = cluster.endpoint_index[link.source], cluster.endpoint_index[link.destination]
            self.is_shared[cluster.link_channel[ends]] |= link.channel is not None

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Value of a placement, whose order says nothing; inf where it is infeasible."""
        return self.evaluate(device_of, order)[0]

    def values(self, devices_of: IntArray) -> FloatArray:
        """Values of placements, devices_of (n_placements, n_units)."""
        return np.array([self.evaluate(row, NO_ORDER)[0] for row in devices_of])

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """The loads."""
        del order
        return Explanation(loads=self.loads(device_of))

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """Resident bytes count, and tensors need routes."""
        return proof_of(problem, Proofs())

    @staticmethod
    def relaxation(problem: Problem) -> LoadRelaxation | None:
        """Loads, where forward and backward sit together."""
        # SciPy's solver takes a while to import.
        from placewright.simulation.max_load_relaxation import LoadRelaxation

        return None if splits_phases(problem.execution_model) else LoadRelaxation(problem)

    def evaluate(self, device_of: IntArray, order: IntArray) -> tuple[float, int, int, FloatArray]:
        """Value (inf with a fault), fault, where, and bytes of each device (n_devices,)."""
        del order
        fault, at = check(self._arrays, device_of, NO_ORDER)
        if fault != FINE:
            return math.inf, fault, at, np.zeros(len(self.overlaps))
        sums = new_sums(self.tables)
        sum_all(self.tables, device_of, sums)
        return self.value_of(sums)

    def value_of(self, sums: Sums) -> tuple[float, int, int, FloatArray]:
        """Value (inf with a fault), fault, where, and bytes of each device (n_devices,)."""
        loads, memory, cut_off = totals(self.tables, sums, self.overlaps, self.is_shared)
        if cut_off >= 0:
            return math.inf, CUT_OFF, int(cut_off), memory
        over = memory > self._arrays.memory
        if over.any():
            return math.inf, TOO_LARGE, int(over.argmax()), memory
        return float(loads.max(axis=1).sum()), FINE, -1, memory

    def loads(self, device_of: IntArray) -> FloatArray:
        """Load of each device, then of each shared channel: shape (n_phases, n), seconds."""
        sums = new_sums(self.tables)
        sum_all(self.tables, np.asarray(device_of, dtype=np.int64), sums)
        return np.asarray(totals(self.tables, sums, self.overlaps, self.is_shared)[0])


def _tables(problem: Problem, arrays: EventArrays) -> LoadTables:
    graph, exchange = problem.unit_graph, problem.exchange_seconds
    is_split = splits_phases(problem.execution_model)
    phase = np.where(graph.op_phases == FORWARD, 0, 1) if is_split else np.zeros(problem.n_units)
    tables = LoadTables(
        seconds=arrays.seconds / problem.cluster.concurrency,
        exchange=exchange if exchange.any() else np.empty((0, 0)),
        phase=phase.astype(np.int64),
        n_phases=2 if is_split else 1,
        input_ptr=arrays.input_ptr,
        inputs=arrays.inputs,
        output_ptr=arrays.output_ptr,
        outputs=arrays.outputs,
        consumer_ptr=arrays.consumer_ptr,
        consumers=arrays.consumers,
        producer=arrays.producer,
        is_output=arrays.is_output,
        tensor_bytes=arrays.tensor_bytes,
        own_transfer=arrays.own_transfer,
        route=arrays.route,
        latency=arrays.latency,
        seconds_per_byte=arrays.seconds_per_byte,
        channel=arrays.channel,
        n_channels=arrays.n_channels,
        host=arrays.host,
        share=problem.cluster.transfer_share,
        kept_ptr=arrays.kept_ptr,
        kept_units=arrays.kept_units,
        kept_bytes=arrays.kept_bytes,
        of_units_ptr=problem.kept.of_units.indptr,
        of_units=problem.kept.of_units.indices,
    )
    return read_only(tables)


@compiled
def totals(
    tables: LoadTables, sums: Sums, overlaps: BoolArray, is_shared: BoolArray
) -> tuple[FloatArray, FloatArray, int]:
    """Loads (n_phases, n_devices + n_channels), bytes (n_devices,), a tensor without a route."""
    n_devices, n_channels = len(overlaps), tables.n_channels
    compute, moved = _over_blocks(sums.units), _over_blocks(sums.tensors)
    loads = np.zeros((tables.n_phases, n_devices + n_channels))
    for part in range(tables.n_phases):
        first = part * (n_devices + n_channels)
        for device in range(n_devices):
            own = compute[part * n_devices + device]
            exchanged = compute[(tables.n_phases + part) * n_devices + device]
            transfers = moved[first + device] + exchanged
            loads[part, device] = max(own, transfers) if overlaps[device] else own + transfers
        for channel in range(n_channels):
            if is_shared[channel]:
                loads[part, n_devices + channel] = moved[first + n_devices + channel]
    memory = _over_blocks(sums.kept)
    cut_off = -1
    for block in range(len(sums.cut_off)):
        cut_off = max(cut_off, sums.cut_off[block])
    return loads, memory, cut_off


@compiled
def _over_blocks(rows: FloatArray) -> FloatArray:
    total = np.zeros(rows.shape[1])
    for block in range(len(rows)):
        for slot in range(rows.shape[1]):
            total[slot] += rows[block, slot]
    return total


@compiled
def memory_of(arrays: EventArrays, device_of: IntArray) -> FloatArray:
    """Bytes that each device keeps, shape (n_devices,)."""
    memory = np.zeros(arrays.seconds.shape[1])
    stamp = np.full(len(memory), -1, np.int64)
    for weight in range(len(arrays.kept_bytes)):
        for at in range(arrays.kept_ptr[weight], arrays.kept_ptr[weight + 1]):
            device = device_of[arrays.kept_units[at]]
            if stamp[device] != weight:
                stamp[device] = weight
                memory[device] += arrays.kept_bytes[weight]
    return memory
