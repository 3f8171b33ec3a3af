"""Execution model `max-load`: time per sample of a full pipeline.

Tarnawski et al. 2020: the load of a device is its compute plus the tensors that it receives and
sends, each once; the value is the largest load. Here also with links, channels, streams, overlap,
and groups of r equal devices that take turns with the samples: each spends its load on one of r.

Sums of `max-load`: seconds and bytes of each device, seconds of each channel.

Terms are added in ascending order within blocks, and then the blocks, so that rounding errors stay
small however many units there are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.execution_models import splits_phases
from placewright.core.graph import FORWARD
from placewright.core.problem import Problem
from placewright.simulation.behaviours import Behaviour, BoundsByMethod, Explanation
from placewright.simulation.bounds.feasibility import Proofs, proof_of
from placewright.simulation.bounds.lower import balanced_load_bound
from placewright.simulation.compiled import compiled, read_only
from placewright.simulation.layout import (
    BLOCK,
    DIRECT,
    NO_ROUTE,
    ProblemArrays,
    broken_limit,
    hop_seconds,
    named_channels,
    resident_bytes,
)
from placewright.simulation.legality import CUT_OFF, FINE, NO_ORDER, TOO_LARGE, check

if TYPE_CHECKING:
    from placewright.simulation.bounds.relaxation import LoadRelaxation


class Loads(Behaviour):
    """Loads of placements of one problem."""

    bounds: ClassVar[BoundsByMethod] = {"balanced load": balanced_load_bound}

    def __init__(self, problem: Problem, arrays: ProblemArrays) -> None:
        self._arrays = arrays
        self._tables = load_tables(problem, arrays)

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
        from placewright.simulation.bounds.relaxation import LoadRelaxation

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


class LoadTables(NamedTuple):
    """Arrays that the sums read beside `ProblemArrays`."""

    seconds: FloatArray  # (n_units, n_devices), divided by the device's streams and replicas
    exchange: FloatArray  # (n_units, n_devices) seconds of exchanging gradients; empty without
    phase: IntArray  # (n_units,)
    n_phases: int
    share: FloatArray  # (n_devices,) part of a transfer that a device pays: 1 / replicas, or 0
    overlaps: BoolArray  # (n_devices,) transfers run beside compute
    is_named: BoolArray  # (n_channels,) channels whose load counts
    users: BoolArray  # (n_processors, n_devices) of each processor that several devices share


def load_tables(problem: Problem, arrays: ProblemArrays) -> LoadTables:
    """Make the tables of a problem."""
    graph, exchange = problem.unit_graph, problem.exchange_seconds
    is_split = splits_phases(problem.execution_model)
    phase = np.where(graph.op_phases == FORWARD, 0, 1) if is_split else np.zeros(problem.n_units)
    tables = LoadTables(
        seconds=arrays.seconds / problem.cluster.concurrency,
        exchange=exchange if exchange.any() else np.empty((0, 0)),
        phase=phase.astype(np.int64),
        n_phases=2 if is_split else 1,
        share=problem.cluster.transfer_share,
        overlaps=np.array([device.overlaps_transfers for device in problem.cluster.devices]),
        is_named=named_channels(problem),
        users=_users(problem),
    )
    return read_only(tables)


def _users(problem: Problem) -> BoolArray:
    shared = problem.cluster.shared_processors
    users = np.zeros((len(shared), problem.n_devices), dtype=np.bool_)
    for row, devices in zip(users, shared.values(), strict=True):
        row[list(devices)] = True
    return users


@compiled
def loads_and_bytes(
    arrays: ProblemArrays, tables: LoadTables, device_of: IntArray
) -> tuple[FloatArray, FloatArray, int]:
    """Loads and bytes of a legal placement.

    Returns:
        Seconds of devices, then of channels, then of processors that devices share, (n_phases,
        n_devices + n_channels + n_processors); bytes (n_devices,); a tensor without a route, -1
        for none.
    """
    n_devices, n_channels = len(tables.overlaps), arrays.n_channels
    compute = _compute(tables, device_of)
    moved, cut_off = _transfers(arrays, tables, device_of)
    n_shared = len(tables.users)
    loads = np.zeros((tables.n_phases, n_devices + n_channels + n_shared))
    for part in range(tables.n_phases):
        first = part * (n_devices + n_channels)
        for device in range(n_devices):
            own = compute[part * n_devices + device]
            exchanged = compute[(tables.n_phases + part) * n_devices + device]
            transfers = moved[first + device] + exchanged
            loads[part, device] = (
                max(own, transfers) if tables.overlaps[device] else own + transfers
            )
        for channel in range(n_channels):
            if tables.is_named[channel]:
                loads[part, n_devices + channel] = moved[first + n_devices + channel]
        for processor in range(n_shared):
            total = 0.0
            for device in range(n_devices):
                if tables.users[processor, device]:
                    total += loads[part, device]
            loads[part, n_devices + n_channels + processor] = total
    return loads, resident_bytes(arrays, device_of), cut_off


@compiled
def _compute(tables: LoadTables, device_of: IntArray) -> FloatArray:
    """Seconds of compute, then of exchanging gradients, (2 * n_phases * n_devices,)."""
    n_units, n_devices = tables.seconds.shape
    total = np.zeros(2 * tables.n_phases * n_devices)
    for first in range(0, n_units, BLOCK):
        part = np.zeros(len(total))
        for unit in range(first, min(n_units, first + BLOCK)):
            device = device_of[unit]
            slot = tables.phase[unit] * n_devices + device
            part[slot] += tables.seconds[unit, device]
            if len(tables.exchange):
                part[tables.n_phases * n_devices + slot] += tables.exchange[unit, device]
        total += part
    return total


@compiled
def _transfers(
    arrays: ProblemArrays, tables: LoadTables, device_of: IntArray
) -> tuple[FloatArray, int]:
    """Seconds of transfers and a tensor without a route, -1 for none.

    For each phase the transfers of each device, then the load of each channel.
    """
    n_tensors, width = len(arrays.producer), len(tables.overlaps) + arrays.n_channels
    total, cut_off = np.zeros(tables.n_phases * width), -1
    seen = np.full(arrays.route.shape[0], -1, np.int64)
    for first in range(0, n_tensors, BLOCK):
        part = np.zeros(len(total))
        for tensor in range(first, min(n_tensors, first + BLOCK)):
            producer = arrays.producer[tensor]
            phase = tables.phase[producer] if producer >= 0 else 0
            row = part[phase * width : (phase + 1) * width]
            if not _send(arrays, tables, device_of, tensor, row, seen):
                cut_off = tensor
        total += part
    return total, cut_off


@compiled
def _send(
    arrays: ProblemArrays,
    tables: LoadTables,
    device_of: IntArray,
    tensor: int,
    row: FloatArray,
    seen: IntArray,
) -> bool:
    """Add the transfers of one tensor to a row of devices and channels; False without a route.

    A receiver pays the hop that reaches it; a sender pays the longest of its first hops, once.
    """
    n_devices, producer, has_routes = len(tables.overlaps), arrays.producer[tensor], True
    source = device_of[producer] if producer >= 0 else arrays.host
    sent, stop = 0.0, arrays.consumer_ptr[tensor + 1]
    for edge in range(arrays.consumer_ptr[tensor], stop + 1):
        if edge < stop:
            target = device_of[arrays.consumers[edge]]
        elif arrays.is_output[tensor]:
            target = arrays.host
        else:
            break
        if seen[target] == tensor or target == source:
            continue
        seen[target] = tensor
        if arrays.route[source, target] == NO_ROUTE:
            has_routes = False
            continue
        direct = arrays.route[source, target] == DIRECT
        middle = target if direct else arrays.host
        first = last = hop_seconds(arrays, tensor, source, middle)
        row[n_devices + arrays.channel[source, middle]] += first
        if not direct:
            last = hop_seconds(arrays, tensor, middle, target)
            row[n_devices + arrays.channel[middle, target]] += last
        sent = max(sent, first)
        if target < n_devices:
            row[target] += last * tables.share[target]
    if source < n_devices:
        row[source] += sent * tables.share[source]
    return has_routes
