"""The max-load of groups of units on each kind of device, as arrays.

Transfers are additive here: the seconds of a transfer do not depend on the device at the other end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from placewright.core.arrays import (
    BoolArray,
    Csr,
    FloatArray,
    IntArray,
    frozen_bools,
    frozen_floats,
    frozen_ints,
)
from placewright.core.charges import Charges
from placewright.core.execution_models import MaxLoad
from placewright.core.graph import FORWARD
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.simulation.bounds.feasibility import MEMORY_ROUNDING
from placewright.simulation.layout import NO_ROUTE, VIA_HOST, routes

FROM_HOST = -1  # producer of a tensor that every reader receives and no device sends
AT_HOST = -2  # producer of a tensor on the host, a device that sends it to every other reader

Hop = tuple[float, float]  # latency, seconds per byte
NO_HOP: Hop = (0.0, 0.0)

# (producer, is graph output, is forward, reading groups) -> [receive, send] seconds by device
_Costs = dict[tuple[int, bool, bool, tuple[int, ...]], list[FloatArray]]


@dataclass(frozen=True, eq=False)
class LoadModel:
    """A problem of the `max-load` execution model, by groups of units (*items*) and device kinds.

    Devices of one kind are interchangeable: same seconds for every item, same transfers, memory,
    shared processors, power and price.
    """

    # kind of each device, shape (n_devices,); kinds are numbered by first appearance
    kind_of: IntArray
    seconds: FloatArray  # compute seconds, shape (n_kinds, n_items); inf if not allowed
    forward_seconds: FloatArray  # the forward units' part of `seconds`, shape (n_kinds, n_items)
    # receive, send: seconds of each tensor, shape (n_kinds, n_tensors); 0 if a kind does not pay
    # transfers
    receive: FloatArray
    send: FloatArray
    # transfer seconds of each kind before it runs anything, forward and other phases, shape (2,
    # n_kinds): graph outputs that the host receives; only kinds of one device
    standing: FloatArray
    producers: IntArray  # item that produces each tensor, FROM_HOST or AT_HOST, shape (n_tensors,)
    host_device: int  # the device whose memory is the host, -1 if there is none
    consumers: Csr  # other items that consume each tensor, rows are tensors
    is_forward: BoolArray  # True if a forward unit produces the tensor, shape (n_tensors,)
    weights: Csr  # resident weights of each item, rows are items
    weight_bytes: FloatArray  # shape (n_weights,)
    memory: FloatArray  # bytes of each kind, shape (n_kinds,)
    overlaps: BoolArray  # load is the larger of compute and transfers, shape (n_kinds,)
    pool_shares: FloatArray  # of `Cluster`, shape (n_pools, n_kinds)
    unshared: FloatArray  # of `Cluster`, shape (n_kinds,)
    pool_bytes: FloatArray  # shape (n_pools,)
    users: Csr  # devices that compute on each shared processor, rows are processors
    limits: tuple[tuple[Charges, float], ...]  # charges of items on devices, and the most of them

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
    def most_bytes(self) -> float:
        """Bytes that all devices together have space for, within their limits and their pools'."""
        alone, total = self.unshared > 0, 0.0
        for shares, size in zip(self.pool_shares, self.pool_bytes.tolist(), strict=True):
            members = shares > 0
            limits = self.memory[members] * shares[members] * self.counts[members]
            total += min(size, float(limits.sum()))
        return total + float((self.memory[alone] * (self.unshared * self.counts)[alone]).sum())

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
        """Speed of each kind on items that all can run, over that of the fastest, (n_kinds,)."""
        common = np.isfinite(self.seconds).all(axis=0)
        totals = self.seconds[:, common].sum(axis=1)
        if totals.min(initial=np.inf) <= 0 or not common.any():
            return np.ones(self.n_kinds)
        return np.asarray(totals.min() / totals)

    @cached_property
    def scaled_work(self) -> FloatArray:
        """Least of an item's seconds times speed over all kinds, shape (n_items,).

        For any y: sum over items of min_k y_k seconds_k <= max-load * sum over devices of y.
        """
        return np.asarray((self.seconds * self.speeds[:, None]).min(axis=0))

    @cached_property
    def area_bound(self) -> float:
        """Lower bound of the max-load: work over speed, or the least seconds of an item."""
        area = float(self.scaled_work.sum() / (self.counts * self.speeds).sum())
        return max(area, float(self.seconds.min(axis=0).max()))


def load_model_of(
    problem: Problem,
    grouping: Grouping,
    transfers: TransferCosts | None = None,
    traits: FloatArray | None = None,
) -> LoadModel:
    """Make the load model of a problem whose groups of units move as a whole.

    Args:
        transfers: default `peer_independent_transfers`.
        traits: values that are equal for devices of one kind, shape (n_traits, n_devices).
    """
    allowed = allowed_devices(problem, grouping)
    forward = problem.unit_graph.op_phases == FORWARD
    # units that a device may not run count as 0
    of_units = np.where(problem.allowed, problem.costs.seconds, 0.0) / problem.cluster.concurrency
    seconds = np.where(allowed, grouping.sums(of_units), np.inf)
    forward_seconds = grouping.sums(np.where(forward[:, None], of_units, 0.0))
    tensors = crossing_tensors(problem, grouping, transfers)
    cluster = problem.cluster
    host, memory = cluster.host_endpoint, cluster.memory_bytes
    overlaps = np.array([device.overlaps_transfers for device in cluster.devices])
    weights, weight_bytes = grouped_entries(problem, grouping)
    if problem.keeps_everything:  # no limit can bind
        weights, weight_bytes = Csr.from_rows([()] * grouping.n_groups), frozen_floats([])
    users = Csr.from_rows(list(cluster.shared_processors.values()))
    limits = _limits(problem, grouping)
    columns = [
        seconds,
        forward_seconds,
        tensors.receive.T,
        tensors.send.T,
        memory[None, :],
        overlaps[None, :],
        cluster.pool_shares,
        tensors.standing,
        *_further_traits(users, limits, problem.n_devices),
        *([] if traits is None else [traits]),
    ]
    kinds = Grouping.from_labels(np.unique(np.vstack(columns), axis=1, return_inverse=True)[1])
    first = kinds.members.indices[kinds.members.indptr[:-1]]
    return LoadModel(
        kind_of=kinds.group_of,
        seconds=frozen_floats(seconds.T[first]),
        forward_seconds=frozen_floats(forward_seconds.T[first]),
        receive=frozen_floats(tensors.receive[first]),
        send=frozen_floats(tensors.send[first]),
        standing=frozen_floats(tensors.standing[:, first]),
        producers=tensors.producers,
        host_device=host if host < problem.n_devices else -1,
        consumers=tensors.consumers,
        is_forward=tensors.is_forward,
        weights=weights,
        weight_bytes=weight_bytes,
        memory=frozen_floats(memory[first]),
        overlaps=frozen_bools(overlaps[first]),
        pool_shares=frozen_floats(cluster.pool_shares[:, first]),
        unshared=frozen_floats(cluster.unshared[first]),
        pool_bytes=cluster.pool_bytes,
        users=users,
        limits=limits,
    )


def _limits(problem: Problem, grouping: Grouping) -> tuple[tuple[Charges, float], ...]:
    """Charges of groups, and the most of them, for each limited amount."""
    found = []
    for quantity, most in problem.limits.items():
        charges = problem.charges[quantity]
        own = grouping.sums(np.where(problem.allowed, charges.own, 0.0))
        found.append((replace(charges, own=own), most))
    return tuple(found)


def _further_traits(
    users: Csr, limits: tuple[tuple[Charges, float], ...], n_devices: int
) -> list[FloatArray]:
    """Shared processors, power and price, which devices of one kind have in common."""
    computes = np.zeros((users.n_rows, n_devices))
    computes[users.row_of_each(), users.indices] = 1.0
    charged = [row for charges, _ in limits for row in (charges.own, charges.of_devices[None, :])]
    return [computes, *charged]


def allowed_devices(problem: Problem, grouping: Grouping) -> BoolArray:
    """True if support, pins and memory let a device run a group; (n_groups, n_devices)."""
    allowed = np.ones((grouping.n_groups, problem.n_devices), dtype=np.bool_)
    np.logical_and.at(allowed, grouping.group_of, problem.allowed)
    kept = problem.kept.bytes_by_label(grouping.group_of)
    room = problem.cluster.memory_bytes * (1.0 + MEMORY_ROUNDING)
    return allowed & (kept[:, None] <= room[None, :])


def grouped_entries(problem: Problem, grouping: Grouping) -> tuple[Csr, FloatArray]:
    """Resident weights of each group, and bytes of each weight.

    Weights that the same groups use are merged.
    """
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


@dataclass(frozen=True, eq=False)
class CrossingTensors:
    """Tensors between groups; those with equal producer and readers are merged, costs added."""

    producers: IntArray  # producing group, FROM_HOST or AT_HOST, shape (n,)
    consumers: Csr  # other groups that read it, rows are tensors
    is_forward: BoolArray  # True if a forward unit produces it, shape (n,)
    # receive, send: seconds by device, shape (n_devices, n)
    receive: FloatArray
    send: FloatArray
    # transfers of each device before it runs anything, forward and other phases, shape (2,
    # n_devices): graph outputs that the host receives from elsewhere
    standing: FloatArray


@dataclass(frozen=True, eq=False)
class TransferCosts:
    """Seconds that a device spends on moving each tensor, (n_devices, n_tensors).

    Attributes:
        receive, send: from and to another device.
        host_receive, host_send: from and to the host.
    """

    receive: FloatArray
    send: FloatArray
    host_receive: FloatArray
    host_send: FloatArray


def crossing_tensors(
    problem: Problem, grouping: Grouping, transfers: TransferCosts | None = None
) -> CrossingTensors:
    """Tensors between the groups of a problem.

    A graph output always goes to the host. It is a tensor from the host that its producer alone
    "receives", at the price of sending; a sender pays its longest hop, so further readers cost the
    difference. If the host is a device, it receives all outputs, except (at a negative price) its
    own. Gradients that members of a group exchange are a tensor that their producer alone
    receives.

    Args:
        transfers: default `peer_independent_transfers`.
    """
    graph, group_of = problem.unit_graph, grouping.group_of
    if transfers is None:
        both = peer_independent_transfers(problem)
        transfers = TransferCosts(*both, *both)
    receive, send = transfers.receive, transfers.send
    from_host, to_host = transfers.host_receive, transfers.host_send
    away = np.arange(problem.n_devices) != problem.cluster.host_endpoint
    nothing = np.zeros(problem.n_devices)
    standing = np.zeros((2, problem.n_devices))
    costs_of: _Costs = {}
    for tensor, producer in enumerate(graph.tensor_producers.tolist()):
        source = int(group_of[producer]) if producer >= 0 else FROM_HOST
        groups = np.unique(group_of[graph.tensor_consumers.row(tensor)])
        readers = tuple(groups[groups != source].tolist())
        forward = producer < 0 or int(graph.op_phases[producer]) == FORWARD
        is_output = bool(graph.tensor_is_output[tensor]) and producer >= 0
        costs = [receive[:, tensor], send[:, tensor]]
        if producer < 0:
            if readers and not away.all():
                _add(
                    costs_of,
                    (AT_HOST, False, forward, readers),
                    [nothing, np.where(away, 0.0, costs[1])],
                )
            costs = [np.where(away, from_host[:, tensor], 0.0), nothing]
        if is_output:
            home = to_host[:, tensor]
            _add(
                costs_of,
                (FROM_HOST, False, forward, (source,)),
                [np.where(away, home, -costs[0]), nothing],
            )
            standing[0 if forward else 1] += np.where(away, 0.0, costs[0])
            more = np.maximum(costs[1] - home, 0.0)
            costs = [np.where(away, costs[0], 0.0), np.where(away, more, costs[1])]
        if readers:
            _add(costs_of, (source, is_output, forward, readers), costs)
    _add_exchanges(costs_of, problem, group_of)
    keys = list(costs_of)
    shape = (len(keys), problem.n_devices)
    return CrossingTensors(
        producers=frozen_ints([key[0] for key in keys]),
        consumers=Csr.from_rows([key[3] for key in keys]),
        is_forward=frozen_bools([key[2] for key in keys]),
        receive=np.array([costs_of[key][0] for key in keys]).reshape(shape).T,
        send=np.array([costs_of[key][1] for key in keys]).reshape(shape).T,
        standing=standing,
    )


def _add_exchanges(
    costs_of: _Costs,
    problem: Problem,
    group_of: IntArray,
) -> None:
    """Add the seconds in which replicas exchange the gradients that each unit produces."""
    exchange, phases = problem.exchange_seconds, problem.unit_graph.op_phases
    nothing = np.zeros(problem.n_devices)
    for unit in np.flatnonzero(exchange.any(axis=1)).tolist():
        key = (FROM_HOST, False, bool(phases[unit] == FORWARD), (int(group_of[unit]),))
        _add(costs_of, key, [exchange[unit], nothing])


def _add(
    costs_of: _Costs, key: tuple[int, bool, bool, tuple[int, ...]], costs: list[FloatArray]
) -> None:
    """Add the costs of one tensor to those with the same key."""
    known = costs_of.get(key)
    costs_of[key] = (
        costs if known is None else [old + new for old, new in zip(known, costs, strict=True)]
    )


def why_not_separable(problem: Problem) -> str | None:
    """None if the load of a device depends only on its own units, else the reason.

    The load of a shared processor is the sum of the loads of its devices.
    """
    if not isinstance(problem.execution_model, MaxLoad):
        return (
            f"it minimises max-load, not '{problem.execution_model.name}'; use objective throughput"
        )
    if any(link.channel is not None for link in problem.cluster.links):
        return "links share a channel, whose load no single device accounts for"
    pairs = _pairs(problem)
    if pairs is None:
        return "some devices have no route between them"
    if problem.unit_transfer_seconds is None and _hop_costs(problem, pairs) is None:
        return "the time of a transfer depends on the device at its other end"
    return None


def peer_independent_transfers(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Seconds to receive and to send each tensor of the unit graph, by device.

    Returns:
        Two arrays of shape (n_devices, n_tensors), 0 if a device does not pay transfers.

    Raises:
        InputError: they depend on the other end, see `why_not_separable`.
    """
    carried = problem.unit_transfer_seconds
    if carried is not None:
        both = problem.cluster.transfer_share[:, None] * carried[None, :]
        return both, both
    pairs = _pairs(problem)
    hops = None if pairs is None else _hop_costs(problem, pairs)
    if hops is None:
        raise InputError(why_not_separable(problem))
    return hop_seconds(problem, hops[0]), hop_seconds(problem, hops[1])


def hop_seconds(problem: Problem, hops: list[Hop]) -> FloatArray:
    """Seconds of each tensor over a hop of each device, shape (n_devices, n_tensors).

    They are 0 for a device that does not pay transfers.
    """
    cost = np.array(hops)
    seconds = cost[:, :1] + cost[:, 1:] * problem.unit_graph.tensor_bytes[None, :]
    return np.asarray(problem.cluster.transfer_share[:, None] * seconds)


def hop_cost(problem: Problem, hop: tuple[int, int]) -> Hop:
    """The cost of a hop between two endpoints."""
    cluster = problem.cluster
    return float(cluster.link_latency[hop]), float(cluster.link_seconds_per_byte[hop])


def _pairs(problem: Problem) -> list[tuple[int, int, int]] | None:
    """(source, next hop, target) of all transfers that may happen; None if one has no route."""
    graph, host = problem.unit_graph, problem.cluster.host_endpoint
    n = problem.n_devices
    ends = [(a, b) for a in range(n) for b in range(n) if a != b]
    if bool((graph.tensor_producers < 0).any()):
        ends += [(host, b) for b in range(n) if b != host]
    if bool(graph.tensor_is_output.any()):
        ends += [(a, host) for a in range(n) if a != host]
    route = routes(problem)
    if any(route[a, b] == NO_ROUTE for a, b in ends):
        return None
    return [(a, host if route[a, b] == VIA_HOST else b, b) for a, b in dict.fromkeys(ends)]


def _hop_costs(
    problem: Problem, pairs: list[tuple[int, int, int]]
) -> tuple[list[Hop], list[Hop]] | None:
    """Each device's receiving and sending hop.

    A receiver pays the hop that reaches it, a sender the first hop. None if they depend on the
    other end.
    """
    receive: dict[int, Hop] = {}
    send: dict[int, Hop] = {}
    for source, middle, target in pairs:
        last = source if middle == target else middle
        for costs, device, hop in (
            (receive, target, (last, target)),
            (send, source, (source, middle)),
        ):
            if device >= problem.n_devices:
                continue
            cost = hop_cost(problem, hop)
            if costs.setdefault(device, cost) != cost:
                return None
    devices = range(problem.n_devices)
    return (
        [receive.get(device, NO_HOP) for device in devices],
        [send.get(device, NO_HOP) for device in devices],
    )
