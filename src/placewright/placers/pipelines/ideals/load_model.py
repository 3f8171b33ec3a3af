"""Max-load arithmetic on arrays: what a set of items costs on each kind of device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.core.arrays import (
    BoolArray,
    Csr,
    FloatArray,
    IntArray,
    frozen_bools,
    frozen_floats,
)
from placewright.core.graph import FORWARD
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.pipelines.ideals.transfers import AT_HOST, TransferCosts, crossing_tensors


@dataclass(frozen=True, eq=False)
class LoadModel:
    """The `max-load` execution model over groups of units (*items*) and kinds of devices.

    Devices of one kind are interchangeable: same seconds for every item, same transfers, memory.

    Attributes:
        kind_of: kind of each device, shape (n_devices,); kinds are numbered by first appearance.
        seconds: compute seconds, shape (n_kinds, n_items); inf where not allowed.
        forward_seconds: the forward units' part of `seconds`, shape (n_kinds, n_items).
        receive, send: seconds of each tensor, shape (n_kinds, n_tensors); 0 where a kind does not
            pay transfers.
        standing: transfer seconds of each kind before it runs anything, forward and other phases,
            shape (2, n_kinds): graph outputs that the host receives; only kinds of one device.
        producers: item that produces each tensor, FROM_HOST or AT_HOST, shape (n_tensors,).
        host_device: the device whose memory is the host's, -1 where it is none.
        consumers: other items that consume each tensor, rows are tensors.
        is_forward: True where a forward unit produces the tensor, shape (n_tensors,).
        weights: weights that each item keeps resident, rows are items.
        weight_bytes: shape (n_weights,).
        memory: bytes of each kind, shape (n_kinds,).
        overlaps: load is the larger of compute and transfers, shape (n_kinds,).
    """

    kind_of: IntArray
    seconds: FloatArray
    forward_seconds: FloatArray
    receive: FloatArray
    send: FloatArray
    standing: FloatArray
    producers: IntArray
    host_device: int
    consumers: Csr
    is_forward: BoolArray
    weights: Csr
    weight_bytes: FloatArray
    memory: FloatArray
    overlaps: BoolArray

    @property
    def n_items(self) -> int:
        """Number of items."""
        return int(self.seconds.shape[1])

    @property
    def n_kinds(self) -> int:
        """Number of kinds of devices."""
        return int(self.seconds.shape[0])

    @property
    def n_tensors(self) -> int:
        """Number of tensors that may cross between items."""
        return len(self.producers)

    @cached_property
    def counts(self) -> IntArray:
        """Devices of each kind, shape (n_kinds,)."""
        return np.bincount(self.kind_of, minlength=self.n_kinds).astype(np.int64)

    @cached_property
    def outputs(self) -> Csr:
        """Tensors that each item produces."""
        produced = np.flatnonzero(self.producers >= 0)
        return Csr.from_pairs(self.producers[produced], produced, self.n_items)

    @cached_property
    def inputs(self) -> Csr:
        """Tensors that each item consumes from others."""
        return self.consumers.transposed(self.n_items)

    @cached_property
    def speeds(self) -> FloatArray:
        """Speed of each kind relative to the fastest, by items all kinds run, shape (n_kinds,)."""
        common = np.isfinite(self.seconds).all(axis=0)
        totals = self.seconds[:, common].sum(axis=1)
        if totals.min(initial=np.inf) <= 0 or not common.any():
            return np.ones(self.n_kinds)
        return np.asarray(totals.min() / totals)

    @cached_property
    def scaled_work(self) -> FloatArray:
        """Least seconds of each item, each kind's weighted by its speed, shape (n_items,).

        Whatever the speeds y: sum of min_k y_k seconds_k <= max-load * sum over devices of y.
        """
        return np.asarray((self.seconds * self.speeds[:, None]).min(axis=0))

    @cached_property
    def area_bound(self) -> float:
        """No placement has a smaller max-load: all work over all speed, or one item's least."""
        area = float(self.scaled_work.sum() / (self.counts * self.speeds).sum())
        return max(area, float(self.seconds.min(axis=0).max()))

    def loads(self, device_of: IntArray) -> FloatArray:
        """Load of each device, shape (n_devices,), inf where a kind may not run an item."""
        items = np.arange(self.n_items)
        n_devices = len(self.kind_of)
        seconds = self.seconds[self.kind_of[device_of], items]
        compute = np.bincount(device_of, seconds, minlength=n_devices)
        receives, sends = self._transfers(device_of)
        transfers = np.array(self.standing.sum(axis=0)[self.kind_of], dtype=np.float64)
        np.add.at(transfers, receives[1], self.receive[self.kind_of[receives[1]], receives[0]])
        np.add.at(transfers, sends[1], self.send[self.kind_of[sends[1]], sends[0]])
        overlaps = self.overlaps[self.kind_of]
        return np.where(overlaps, np.maximum(compute, transfers), compute + transfers)

    def resident_bytes(self, device_of: IntArray) -> FloatArray:
        """Bytes that each device keeps, a weight that its items share once, shape (n_devices,)."""
        n_weights = max(1, len(self.weight_bytes))
        device = device_of[self.weights.row_of_each()]
        used = np.unique(device * n_weights + self.weights.indices)
        n_devices = len(self.kind_of)
        sizes = self.weight_bytes[used % n_weights]
        return np.asarray(
            np.bincount(used // n_weights, sizes, minlength=n_devices), dtype=np.float64
        )

    def is_feasible(self, device_of: IntArray) -> bool:
        """True when support, pins and memory are kept."""
        kinds = self.kind_of[device_of]
        fits = self.resident_bytes(device_of) <= self.memory[self.kind_of]
        return bool(np.isfinite(self.seconds[kinds, np.arange(self.n_items)]).all() and fits.all())

    def _transfers(self, device_of: IntArray) -> tuple[tuple[IntArray, IntArray], ...]:
        """(tensor, device) of each receive and of each send, every pair once."""
        n_devices = len(self.kind_of)
        tensor = self.consumers.row_of_each()
        target = device_of[self.consumers.indices]
        origin = np.where(self.producers >= 0, device_of[np.maximum(self.producers, 0)], -1)
        origin[self.producers == AT_HOST] = self.host_device
        crossing = target != origin[tensor]
        received = np.unique(tensor[crossing] * n_devices + target[crossing])
        sent = np.zeros(self.n_tensors, dtype=np.bool_)
        sent[tensor[crossing]] = True
        sending = np.flatnonzero(sent & (origin >= 0))
        return (received // n_devices, received % n_devices), (sending, origin[sending])


def load_model_of(
    problem: Problem,
    grouping: Grouping,
    transfers: TransferCosts | None = None,
    traits: FloatArray | None = None,
) -> LoadModel:
    """The load model of a problem whose groups of units move as one.

    Args:
        problem: what is placed.
        grouping: of its units.
        transfers: what they cost; None where that does not depend on the other end.
        traits: what else tells kinds of devices apart, shape (n_traits, n_devices).
    """
    allowed = allowed_devices(problem, grouping)
    forward = problem.unit_graph.op_phases == FORWARD
    seconds = np.where(allowed, _grouped_seconds(problem, grouping, forward | ~forward), np.inf)
    forward_seconds = _grouped_seconds(problem, grouping, forward)
    tensors = crossing_tensors(problem, grouping, transfers)
    receive, send = tensors.receive, tensors.send
    devices = problem.cluster.devices
    host = problem.cluster.host_endpoint
    overlaps = np.array([device.overlaps_transfers for device in devices])
    memory = problem.cluster.memory_bytes
    weights, weight_bytes = grouped_entries(problem, grouping)
    if problem.kept.total <= memory.min():  # no limit can bind: nothing to keep account of
        weights, weight_bytes = Csr.from_rows([()] * grouping.n_groups), frozen_floats([])
    columns = np.vstack(
        [
            seconds,
            forward_seconds,
            receive.T,
            send.T,
            memory[None, :],
            overlaps[None, :],
            tensors.standing,
            *([] if traits is None else [traits]),
        ]
    )
    kinds = Grouping.from_labels(np.unique(columns, axis=1, return_inverse=True)[1])
    first = kinds.members.indices[kinds.members.indptr[:-1]]
    return LoadModel(
        kind_of=kinds.group_of,
        seconds=frozen_floats(seconds.T[first]),
        forward_seconds=frozen_floats(forward_seconds.T[first]),
        receive=frozen_floats(receive[first]),
        send=frozen_floats(send[first]),
        standing=frozen_floats(tensors.standing[:, first]),
        producers=tensors.producers,
        host_device=host if host < problem.n_devices else -1,
        consumers=tensors.consumers,
        is_forward=tensors.is_forward,
        weights=weights,
        weight_bytes=weight_bytes,
        memory=frozen_floats(memory[first]),
        overlaps=frozen_bools(overlaps[first]),
    )


def allowed_devices(problem: Problem, grouping: Grouping) -> BoolArray:
    """Where each group may be: support, pins, and its own bytes fit; (n_groups, n_devices)."""
    allowed = np.ones((grouping.n_groups, problem.n_devices), dtype=np.bool_)
    np.logical_and.at(allowed, grouping.group_of, problem.allowed)
    weights, weight_bytes = grouped_entries(problem, grouping)
    sizes = weight_bytes[weights.indices]
    own = np.bincount(weights.row_of_each(), sizes, minlength=grouping.n_groups)
    return allowed & (own[:, None] <= problem.cluster.memory_bytes[None, :])


def _grouped_seconds(problem: Problem, grouping: Grouping, units: BoolArray) -> FloatArray:
    """Seconds of the given units by group and device, over streams and replicas; inf is 0."""
    seconds = np.where(problem.allowed, problem.costs.seconds, 0.0) / problem.cluster.concurrency
    total = np.zeros((grouping.n_groups, problem.n_devices))
    np.add.at(total, grouping.group_of[units], seconds[units])
    return total


def grouped_entries(problem: Problem, grouping: Grouping) -> tuple[Csr, FloatArray]:
    """What groups keep, and its bytes; entries that the same groups keep are one."""
    kept, sizes = problem.kept.of_units, problem.kept.sizes
    users: list[dict[int, None]] = [{} for _ in range(len(sizes))]
    groups = grouping.group_of[kept.row_of_each()]
    for group, entry in sorted(zip(groups.tolist(), kept.indices.tolist(), strict=True)):
        users[entry][group] = None
    number: dict[tuple[int, ...], int] = {}
    merged_bytes: list[float] = []
    rows: list[list[int]] = [[] for _ in range(grouping.n_groups)]
    for entry, size in enumerate(sizes.tolist()):
        key = tuple(users[entry])
        if not key or size == 0:
            continue
        if key not in number:
            number[key] = len(number)
            merged_bytes.append(0.0)
            for group in key:
                rows[group].append(number[key])
        merged_bytes[number[key]] += size
    return Csr.from_rows(rows), frozen_floats(merged_bytes)
