"""Transfers under max-load where they do not depend on the device at the other end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray, IntArray, frozen_bools, frozen_ints
from placewright.core.execution_models import MaxLoad
from placewright.core.graph import FORWARD
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.simulation.event.arrays import NO_ROUTE, VIA_HOST, routes

FROM_HOST = -1  # no device produces it: whoever reads it receives it
AT_HOST = -2  # the host, which is a device, has it: it sends it where another device reads it


@dataclass(frozen=True, eq=False)
class CrossingTensors:
    """Tensors between groups; those that never differ in who reads them are one, costs summed.

    Attributes:
        producers: producing group, FROM_HOST or AT_HOST, shape (n,).
        consumers: other groups that read it, rows are tensors.
        is_forward: True where a forward unit produces it, shape (n,).
        receive, send: seconds by device, shape (n_devices, n).
        standing: transfers of each device before it runs anything, forward and other phases,
            shape (2, n_devices): graph outputs that the host receives from elsewhere.
    """

    producers: IntArray
    consumers: Csr
    is_forward: BoolArray
    receive: FloatArray
    send: FloatArray
    standing: FloatArray


@dataclass(frozen=True, eq=False)
class TransferCosts:
    """Seconds of a device's part in moving each tensor of the unit graph, (n_devices, n_tensors).

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

    A graph output always goes to the host. That is written as a tensor from the host which its
    producer alone "receives" at the price of sending; a sender pays its longest hop, so further
    readers cost what theirs is longer. Where the host is a device it receives all outputs, except
    (at a negative price) those that it makes. Gradients that members of a group exchange are a
    tensor that their maker alone receives.

    Args:
        problem: what is placed.
        grouping: of its units.
        transfers: what they cost; None where that does not depend on the other end.
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
    found: dict[tuple[int, bool, bool, tuple[int, ...]], list[FloatArray]] = {}
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
                    found,
                    (AT_HOST, False, forward, readers),
                    [nothing, np.where(away, 0.0, costs[1])],
                )
            costs = [np.where(away, from_host[:, tensor], 0.0), nothing]
        if is_output:
            home = to_host[:, tensor]
            _add(
                found,
                (FROM_HOST, False, forward, (source,)),
                [np.where(away, home, -costs[0]), nothing],
            )
            standing[0 if forward else 1] += np.where(away, 0.0, costs[0])
            more = np.maximum(costs[1] - home, 0.0)
            costs = [np.where(away, costs[0], 0.0), np.where(away, more, costs[1])]
        if readers:
            _add(found, (source, is_output, forward, readers), costs)
    _add_exchanges(found, problem, group_of)
    keys = list(found)
    shape = (len(keys), problem.n_devices)
    return CrossingTensors(
        producers=frozen_ints([key[0] for key in keys]),
        consumers=Csr.from_rows([key[3] for key in keys]),
        is_forward=frozen_bools([key[2] for key in keys]),
        receive=np.array([found[key][0] for key in keys]).reshape(shape).T,
        send=np.array([found[key][1] for key in keys]).reshape(shape).T,
        standing=standing,
    )


def _add_exchanges(
    found: dict[tuple[int, bool, bool, tuple[int, ...]], list[FloatArray]],
    problem: Problem,
    group_of: IntArray,
) -> None:
    """Add the exchange of the gradients that each unit makes."""
    exchange, phases = problem.exchange_seconds, problem.unit_graph.op_phases
    nothing = np.zeros(problem.n_devices)
    for unit in np.flatnonzero(exchange.any(axis=1)).tolist():
        key = (FROM_HOST, False, bool(phases[unit] == FORWARD), (int(group_of[unit]),))
        _add(found, key, [exchange[unit], nothing])


def _add(
    found: dict[tuple[int, bool, bool, tuple[int, ...]], list[FloatArray]],
    key: tuple[int, bool, bool, tuple[int, ...]],
    costs: list[FloatArray],
) -> None:
    """Add the costs of one tensor to those with the same key."""
    known = found.get(key)
    found[key] = (
        costs if known is None else [one + other for one, other in zip(known, costs, strict=True)]
    )


def why_not_separable(problem: Problem) -> str | None:
    """None when a device's load depends only on what it runs, else the reason."""
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
        Two arrays of shape (n_devices, n_tensors), 0 where a device does not pay transfers.

    Raises:
        InputError: they depend on the other end, see `why_not_separable`.
    """
    share = problem.cluster.transfer_share[:, None]
    carried = problem.unit_transfer_seconds
    if carried is not None:
        both = share * carried[None, :]
        return both, both
    pairs = _pairs(problem)
    hops = None if pairs is None else _hop_costs(problem, pairs)
    if hops is None:
        raise InputError(why_not_separable(problem))
    sizes = problem.unit_graph.tensor_bytes
    receive, send = (share * (cost[:, :1] + cost[:, 1:] * sizes[None, :]) for cost in hops)
    return receive, send


def _pairs(problem: Problem) -> list[tuple[int, int, int]] | None:
    """(source, middle or target, target) of all transfers that may happen; None without a route."""
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
) -> tuple[FloatArray, FloatArray] | None:
    """(latency, seconds per byte) of a device's receiving and sending hop, each (n_devices, 2).

    A receiver pays the hop that reaches it, a sender the first one. None where it depends on the
    other end.
    """
    cluster = problem.cluster
    receive: dict[int, tuple[float, float]] = {}
    send: dict[int, tuple[float, float]] = {}
    for source, middle, target in pairs:
        last = source if middle == target else middle
        for costs, device, hop in (
            (receive, target, (last, target)),
            (send, source, (source, middle)),
        ):
            if device >= problem.n_devices:
                continue
            cost = (float(cluster.link_latency[hop]), float(cluster.link_seconds_per_byte[hop]))
            if costs.setdefault(device, cost) != cost:
                return None
    devices = range(problem.n_devices)
    none = (0.0, 0.0)
    return (
        np.array([receive.get(device, none) for device in devices]),
        np.array([send.get(device, none) for device in devices]),
    )
