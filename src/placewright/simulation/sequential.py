"""Execution model `sequential`: units run one after the other, nothing overlaps.

    value = sum of seconds of the units
          + sum over tensors, over devices that read it and did not make it: one arrival
          + sum over graph outputs made outside the host: one transfer to it
    arrival = messages x (latency + dispatch and cut seconds of the receiver)
            + bytes x (seconds of the link, and of the receiver's cut, per byte)

A tensor arrives once at a device, however many units read it there. A transfer takes the seconds of
its link, or of both links through the host. Every arrival begins a segment of the receiver, so that
it pays the receiver's dispatch. Memory is what devices keep (`core.residency`). The value is a sum
over units and arrivals: no order changes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.execution_models import Sequential
from placewright.core.problem import Problem
from placewright.simulation.behaviours import Behaviour, BoundsByMethod, Explanation
from placewright.simulation.bounds.feasibility import Proofs, proof_of
from placewright.simulation.bounds.lower import cheapest_units_bound
from placewright.simulation.layout import (
    DIRECT,
    LOCAL,
    VIA_HOST,
    ProblemArrays,
    broken_limit,
    resident_bytes,
)
from placewright.simulation.legality import CUT_OFF, FINE, NO_ORDER, TOO_LARGE, check


@dataclass(frozen=True, eq=False)
class Ways:
    """Seconds of arrivals between endpoints, as constant, share of own transfer, and per byte."""

    # seconds of an arrival at a device, (M, n_devices); 0 to itself, inf without a route
    fixed: FloatArray
    hops: FloatArray  # times that the problem's own transfer seconds are paid, (M, n_devices)
    per_byte: FloatArray  # seconds per byte, (M, n_devices)
    # to_host, host_hops, host_per_byte: the same of graph outputs, (n_devices,)
    to_host: FloatArray
    host_hops: FloatArray
    host_per_byte: FloatArray

    def arrivals(
        self, arrays: ProblemArrays, tensors: IntArray, source: IntArray, target: IntArray
    ) -> FloatArray:
        """Seconds of one arrival of each tensor, from an endpoint at a device."""
        at = source, target
        return self._seconds(arrays, tensors, self.fixed[at], self.hops[at], self.per_byte[at])

    def exits(self, arrays: ProblemArrays, tensors: IntArray, source: IntArray) -> FloatArray:
        """Seconds in which graph outputs get from a device to the host."""
        rates = self.to_host[source], self.host_hops[source], self.host_per_byte[source]
        return self._seconds(arrays, tensors, *rates)

    def _seconds(
        self,
        arrays: ProblemArrays,
        tensors: IntArray,
        fixed: FloatArray,
        hops: FloatArray,
        per_byte: FloatArray,
    ) -> FloatArray:
        own = arrays.own_transfer[tensors] * hops if len(arrays.own_transfer) else 0.0
        return np.asarray(fixed + own + arrays.tensor_bytes[tensors] * per_byte)


def ways_of(arrays: ProblemArrays, messages: int = 1) -> Ways:
    """The ways of a problem whose tensors cross in so many messages."""
    n_devices, host, has_own = len(arrays.memory), arrays.host, len(arrays.own_transfer) > 0
    direct, through = arrays.route == DIRECT, arrays.route == VIA_HOST
    latency, per_byte = (
        np.where(direct, own, np.where(through, own[:, host][:, None] + own[host, :][None, :], 0.0))
        for own in (arrays.latency, arrays.seconds_per_byte)
    )
    hops = np.where(direct, 1.0, np.where(through, 2.0, 0.0))
    if has_own:
        latency, per_byte = np.zeros_like(latency), np.zeros_like(per_byte)
    latency[~(direct | through | (arrays.route == LOCAL))] = np.inf
    away = (arrays.route != LOCAL)[:, :n_devices]
    latency *= messages
    return Ways(
        latency[:, :n_devices] + away * messages * (arrays.dispatch + arrays.cut),
        hops[:, :n_devices] if has_own else np.zeros_like(hops[:, :n_devices]),
        per_byte[:, :n_devices] + away * arrays.cut_per_byte,
        latency[:n_devices, host],
        hops[:n_devices, host] if has_own else np.zeros(n_devices),
        per_byte[:n_devices, host],
    )


def messages_of(problem: Problem) -> int:
    """Messages of each tensor, as the execution model has them; 1 under others."""
    model = problem.execution_model
    return model.messages if isinstance(model, Sequential) else 1


class Sums(Behaviour):
    """Sums of placements of one problem; `sequential-ip` proves a bound without a relaxation."""

    bounds: ClassVar[BoundsByMethod] = {"cheapest units": cheapest_units_bound}

    def __init__(self, problem: Problem, arrays: ProblemArrays) -> None:
        self._arrays, self._ways = arrays, ways_of(arrays, messages_of(problem))
        graph = problem.unit_graph
        self._edge_tensors = graph.tensor_consumers.row_of_each()
        self._outputs = np.flatnonzero(graph.tensor_is_output & (graph.tensor_producers >= 0))

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """Seconds of each device with its arrivals and exits, whose sum is the value."""
        del order
        device_of = np.asarray(device_of, dtype=np.int64)
        sums = self._of_units(device_of)
        tensors, source, target = self._messages(device_of)
        arrivals = self._ways.arrivals(self._arrays, tensors, source, target)
        np.add.at(sums, target, arrivals)
        from_devices = device_of[self._arrays.producer[self._outputs]]
        np.add.at(sums, from_devices, self._exits(device_of))
        return Explanation(sums=sums)

    @staticmethod
    def why_nothing_fits(problem: Problem) -> str | None:
        """Proofs count resident bytes and routes."""
        return proof_of(problem, Proofs())

    def evaluate(self, device_of: IntArray, order: IntArray) -> tuple[float, int, int, FloatArray]:
        """Value (inf with a fault), fault, its place, and bytes of each device (n_devices,)."""
        del order
        arrays = self._arrays
        device_of = np.asarray(device_of, dtype=np.int64)
        fault, at = check(arrays, device_of, NO_ORDER)
        if fault != FINE:
            return math.inf, fault, at, np.zeros(len(arrays.memory))
        memory = resident_bytes(arrays, device_of)
        tensors, source, target = self._messages(device_of)
        arrivals = self._ways.arrivals(arrays, tensors, source, target)
        exits = self._exits(device_of)
        for seconds, of in ((arrivals, tensors), (exits, self._outputs)):
            if not np.isfinite(seconds).all():
                return math.inf, CUT_OFF, int(of[np.argmax(~np.isfinite(seconds))]), memory
        over = broken_limit(arrays, memory)
        if over >= 0:
            return math.inf, TOO_LARGE, over, memory
        units = self._of_units(device_of)
        return float(units.sum() + arrivals.sum() + exits.sum()), FINE, -1, memory

    def _of_units(self, device_of: IntArray) -> FloatArray:
        """Seconds of the units of each device, (n_devices,)."""
        own = self._arrays.seconds[np.arange(len(device_of)), device_of]
        total = np.bincount(device_of, own, minlength=len(self._arrays.memory))
        return np.asarray(total, dtype=np.float64)

    def _messages(self, device_of: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Arrivals: tensor, endpoint that it comes from, device; ascending, each once."""
        arrays, n_devices = self._arrays, len(self._arrays.memory)
        producer = arrays.producer
        home = np.where(producer >= 0, device_of[producer], arrays.host)
        keys = self._edge_tensors * n_devices + device_of[arrays.consumers]
        keys = np.unique(keys[home[self._edge_tensors] != device_of[arrays.consumers]])
        tensors = keys // n_devices
        return tensors, home[tensors], keys % n_devices

    def _exits(self, device_of: IntArray) -> FloatArray:
        """Seconds of each graph output's way to the host."""
        source = device_of[self._arrays.producer[self._outputs]]
        return self._ways.exits(self._arrays, self._outputs, source)
