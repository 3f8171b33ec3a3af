"""The least makespan over all placements and orders, compiled; it imports nothing of the simulator.

Written from docs/reference/simulation.md alone, apart from the kernels and from `oracle.py`,
against which
it is checked. Times only grow, so that a schedule is given up at the best makespan so far.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numba
import numpy as np

from placewright.core.cluster import Device
from placewright.core.problem import Problem

_UNIT_ENDS = -1  # in the place of a tensor: a unit's end comes before what it sends
_COMPUTE_BOUND = 20.0


class Told(NamedTuple):
    """What the page speaks of, as arrays."""

    seconds: np.ndarray  # (U, D)
    streams: np.ndarray
    dispatch: np.ndarray
    cut: np.ndarray
    cut_per_byte: np.ndarray
    layout: np.ndarray
    layout_per_byte: np.ndarray
    memory: np.ndarray
    pool: np.ndarray  # (D,), -1 without
    pool_bytes: np.ndarray  # (n_pools,)
    most_segments: np.ndarray  # (D,)
    most_ops: np.ndarray  # (D,): of a segment
    ops: np.ndarray  # (U,)
    domain: np.ndarray  # (D,), -1 without
    factors: np.ndarray  # (n_domains, D): for so many devices in use, less one
    hop: np.ndarray  # (T, E, E): seconds; inf without a link, 0 if a unit makes the copy
    given: np.ndarray  # (T, E, E): seconds of copies that the sender makes
    taken: np.ndarray  # (T, E, E): and the receiver
    channel: np.ndarray  # (E, E), -1 without a link
    queues: np.ndarray
    size: np.ndarray
    producer: np.ndarray
    is_output: np.ndarray
    is_computed: np.ndarray
    reads: np.ndarray  # (U, T), bool
    edge: np.ndarray  # (U, U), bool
    keeps: np.ndarray  # (U, W), bool
    weight: np.ndarray
    host: int
    excludes: np.ndarray  # (D, D), bool: a common processor; of a device with itself, too


def told(problem: Problem) -> Told:
    """A problem of execution model `event`."""
    graph, cluster = problem.unit_graph, problem.cluster
    devices, n_units, n_tensors = cluster.devices, problem.n_units, graph.n_tensors
    domains = sorted({d.memory_domain for d in devices if d.memory_domain is not None})
    factors = np.ones((max(1, len(domains)), len(devices)))
    for row, name in enumerate(domains):
        given = cluster.contention.get(name, (1.0,))
        for used in range(len(devices)):
            factors[row, used] = given[min(used, len(given) - 1)]
    hop = np.full((n_tensors, cluster.n_endpoints, cluster.n_endpoints), np.inf)
    given, taken = np.zeros(hop.shape), np.zeros(hop.shape)
    own, ends = problem.unit_transfer_seconds, cluster.endpoint_index
    for link, tensor in itertools.product(cluster.links, range(n_tensors)):
        seconds = link.latency_seconds + float(graph.tensor_bytes[tensor]) / link.bandwidth
        a, b = ends[link.source], ends[link.destination]
        hop[tensor, a, b] = seconds if own is None else own[tensor]
        if link.occupies not in (None, "nobody"):
            hop[tensor, a, b] = 0.0
            given[tensor, a, b] = seconds * (link.occupies in ("sender", "both"))
            taken[tensor, a, b] = seconds * (link.occupies in ("receiver", "both"))
    reads = np.zeros((n_units, n_tensors), dtype=np.bool_)
    edge = np.zeros((n_units, n_units), dtype=np.bool_)
    keeps = np.zeros((n_units, max(1, len(graph.weight_bytes))), dtype=np.bool_)
    producer = np.array(graph.tensor_producers, dtype=np.int64)
    for tensor in range(n_tensors):
        for reader in graph.tensor_consumers.row(tensor).tolist():
            reads[reader, tensor] = True
            if producer[tensor] >= 0:
                edge[producer[tensor], reader] = True
    for unit in range(n_units):
        keeps[unit, graph.op_weights.row(unit)] = True
    if cluster.shares_weights:
        _count_once(problem, keeps)
    flops = np.array([graph.op_flops[p] if p >= 0 else 0.0 for p in producer.tolist()])
    size = np.array(graph.tensor_bytes)

    def of(name: str) -> np.ndarray:
        return np.array([float(getattr(device, name)) for device in devices])

    return Told(
        np.array(problem.costs.seconds),
        np.array([d.streams for d in devices]),
        of("dispatch_seconds"),
        of("cut_seconds"),
        of("cut_seconds_per_byte"),
        of("layout_seconds"),
        of("layout_seconds_per_byte"),
        of("memory_bytes"),
        np.array([[share_in(d, name) for d in devices] for name in cluster.pools]).reshape(
            -1, len(devices)
        ),
        np.array(list(cluster.pools.values()), dtype=np.float64),
        np.array([d.max_segments or 10**6 for d in devices]),
        np.array([d.max_segment_ops or 10**6 for d in devices]),
        np.array([problem.units.group_of.tolist().count(unit) for unit in range(n_units)]),
        np.array(
            [-1 if d.memory_domain is None else domains.index(d.memory_domain) for d in devices]
        ),
        factors,
        hop,
        given,
        taken,
        np.array(cluster.link_channel),
        np.array(cluster.link_queues),
        size,
        producer,
        np.array(graph.tensor_is_output),
        (flops >= _COMPUTE_BOUND * size) & (flops > 0),
        reads,
        edge,
        keeps,
        np.concatenate([graph.weight_bytes, np.zeros(1 if len(graph.weight_bytes) == 0 else 0)]),
        cluster.host_endpoint,
        np.array([[bool(_processors(a) & _processors(b)) for b in devices] for a in devices]),
    )


def share_in(device: Device, pool: str) -> float:
    """Of the bytes of a device, the share that is in a pool."""
    if device.pool is None or isinstance(device.pool, str):
        return float(device.pool == pool)
    return float(device.pool.get(pool, 0.0))


def _processors(device: Device) -> set[str]:
    return set(device.processors) or {device.name}


def _count_once(problem: Problem, keeps: np.ndarray) -> None:
    """Leave each weight to the unit with the first op that keeps it."""
    unit_of, weights = problem.units.group_of, problem.graph.op_weights
    payer: dict[int, int] = {}
    for op in range(problem.graph.n_ops):
        held = weights.row(op).tolist()
        for number, tensor in enumerate(sorted(problem.resident_inputs)):
            if op in problem.graph.tensor_consumers.row(tensor):
                held.append(len(problem.graph.weight_bytes) + number)
        for weight in held:
            payer.setdefault(weight, int(unit_of[op]))
    for weight, unit in payer.items():
        keeps[:, weight] = False
        keeps[unit, weight] = True


def least_makespan(problem: Problem) -> float:
    """Of all placements that keep support, pins and colocation, in all orders; inf without any."""
    edge = told(problem).edge
    placements = legal_placements(problem)
    if len(placements) == 0:
        return np.inf
    return float(_least(told(problem), placements, topological_orders(edge)))


def least_of_each(problem: Problem, placements: np.ndarray) -> list[float]:
    """Of each placement in all orders; inf without any."""
    model = told(problem)
    orders = topological_orders(model.edge)
    return [float(_least(model, row[None, :], orders)) for row in placements]


def makespan(problem: Problem, device_of: np.ndarray, order: np.ndarray) -> float:
    """Of one placement in one order; inf where memory or a route is missing."""
    model = told(problem)
    return float(_played(model, np.array(device_of), np.array(order), np.inf))


def legal_placements(problem: Problem) -> np.ndarray:
    """Support, pins and colocation, from the fields of the problem, shape (n, n_units)."""
    unit_of, n = problem.units.group_of.tolist(), problem.n_devices
    allowed = np.isfinite(problem.costs.seconds)
    for op, device in problem.pins.items():
        allowed[unit_of[op], [d for d in range(n) if d != device]] = False
    label = list(range(problem.n_units))
    for one, other in itertools.combinations(range(problem.graph.n_ops), 2):
        kinds = problem.graph.op_colocation
        if kinds[one] >= 0 and kinds[one] == kinds[other]:
            old, new = label[unit_of[other]], label[unit_of[one]]
            label = [new if x == old else x for x in label]
    labels = sorted(set(label))
    member = [[u for u, x in enumerate(label) if x == one] for one in labels]
    choices = [np.flatnonzero(allowed[units].all(axis=0)).tolist() for units in member]
    chosen = np.array(list(itertools.product(*choices)), dtype=np.int64)
    index = [labels.index(x) for x in label]
    return np.ascontiguousarray(chosen.reshape(-1, len(labels))[:, index])


def topological_orders(edge: np.ndarray) -> np.ndarray:
    """All of them, shape (n, n_units)."""
    found: list[list[int]] = []

    def extend(prefix: list[int]) -> None:
        if len(prefix) == len(edge):
            found.append(prefix)
        for unit in range(len(edge)):
            if unit not in prefix and all(b in prefix for b in np.flatnonzero(edge[:, unit])):
                extend([*prefix, unit])

    extend([])
    return np.array(found, dtype=np.int64)


@numba.njit(cache=True, nogil=True)
def _least(model: Told, placements: np.ndarray, orders: np.ndarray) -> float:
    best = np.inf
    for row in range(len(placements)):  # a row by number is contiguous, as those of `makespan` are
        device_of = placements[row]
        for number in range(len(orders)):
            order = orders[number]
            if _is_first_of_its_kind(model, device_of, order):
                best = min(best, _played(model, device_of, order, best))
    return best


@numba.njit(cache=True, nogil=True)
def _is_first_of_its_kind(model: Told, device_of: np.ndarray, order: np.ndarray) -> bool:
    """Of the orders with the same sequence on each processor, the first in the alphabet.

    Such orders differ by exchanges of neighbours that share no processor and no edge; none of these
    may bring a smaller unit forward.
    """
    for at in range(1, len(order)):
        unit, before = order[at], at - 1
        while before >= 0:
            other = order[before]
            if model.excludes[device_of[other], device_of[unit]] or model.edge[other, unit]:
                break
            if other > unit:
                return False
            before -= 1
    return True


@numba.njit(cache=True, nogil=True)
def _played(model: Told, device_of: np.ndarray, order: np.ndarray, best: float) -> float:
    """The makespan; inf where it is no less than `best`, or a constraint is broken."""
    n_units, n_devices = model.seconds.shape
    resident, factor = _resident(model, device_of), _factors(model, device_of)
    if (resident > model.memory).any():
        return np.inf
    n_ends = len(model.channel)
    state = _begun(n_units, n_devices, len(model.size), n_ends, len(model.size) * n_ends + 1)
    _wait(model, state, device_of, order)
    now = 0.0
    while not state.counts[_IS_CUT_OFF]:
        event = _first_event(state)
        while event >= 0 and state.time[event] == now:
            _settle(model, state, device_of, event)
            event = _first_event(state)
        for d in range(n_devices):
            _begin_units(model, state, device_of, factor, d, now)
        event = _first_event(state)
        if event < 0:
            break
        now = state.time[event]
        if now >= best:
            return np.inf
    if (state.n_segments > model.most_segments).any():
        return np.inf
    if state.counts[_IS_CUT_OFF] or not _fits(model, state, resident):
        return np.inf
    return now


@numba.njit(cache=True, nogil=True)
def _resident(model: Told, device_of: np.ndarray) -> np.ndarray:
    """Bytes of weights on each device, each once."""
    total = np.zeros(len(model.memory))
    for d in range(len(total)):
        for w in range(len(model.weight)):
            for u in range(len(device_of)):
                if device_of[u] == d and model.keeps[u, w]:
                    total[d] += model.weight[w]
                    break
    return total


@numba.njit(cache=True, nogil=True)
def _factors(model: Told, device_of: np.ndarray) -> np.ndarray:
    """Contention of each device by the devices of its domain that are used."""
    factor = np.ones(len(model.domain))
    for d in range(len(factor)):
        if model.domain[d] >= 0:
            used = 0
            for other in range(len(factor)):
                if model.domain[other] == model.domain[d] and (device_of == other).any():
                    used += 1
            factor[d] = model.factors[model.domain[d], max(0, used - 1)]
    return factor


@numba.njit(cache=True, nogil=True)
def _wait(model: Told, state: _State, device_of: np.ndarray, order: np.ndarray) -> None:
    """Units wait in order on their devices; graph inputs are handed out."""
    for place, u in enumerate(order):
        d = device_of[u]
        state.turn[u] = place
        state.queue[d, state.queue_length[d]] = u
        state.queue_length[d] += 1
        state.missing[u] = model.reads[u].sum()
    for t in range(len(model.size)):
        if model.producer[t] < 0:
            if model.host < len(model.memory):
                state.start[t, model.host] = 0.0
            _hand_out(model, state, device_of, t, model.host, 0.0)


@numba.njit(cache=True, nogil=True)
def _fits(model: Told, state: _State, resident: np.ndarray) -> bool:
    """On no device there is more at one instant than it holds; peaks of a pool fit together."""
    peak = resident.copy()
    for d in range(len(resident)):
        for t in range(len(model.size)):
            peak[d] = max(peak[d], resident[d] + _alive(model, state, d, state.start[t, d]))
        if peak[d] > model.memory[d]:
            return False
    for pool in range(len(model.pool_bytes)):
        if (peak * model.pool[pool]).sum() > model.pool_bytes[pool]:
            return False
    return True


class _State(NamedTuple):
    """Where a schedule is; a tensor's copy on an end lives from `start` to `stop`."""

    missing: np.ndarray  # (U,): inputs
    queue: np.ndarray  # (D, U)
    queue_length: np.ndarray
    turn: np.ndarray  # (U,): place in the order
    taken: np.ndarray  # (D,)
    running: np.ndarray  # (D,)
    segment: np.ndarray  # (U,)
    open_segment: np.ndarray  # (D,), -1 without
    n_segments: np.ndarray  # (D,)
    open_ops: np.ndarray  # (D,): in the open segment
    paid: np.ndarray  # (T, U): tensor, segment
    is_read: np.ndarray  # (T, E): by a unit that has begun there
    busy_until: np.ndarray  # by channel
    start: np.ndarray  # (T, E)
    stop: np.ndarray
    users: np.ndarray
    time: np.ndarray  # events
    unit: np.ndarray
    tensor: np.ndarray
    target: np.ndarray
    hops_left: np.ndarray
    counts: np.ndarray  # events, segments, is a tensor without a way


_EVENTS, _SEGMENTS, _IS_CUT_OFF = 0, 1, 2


@numba.njit(cache=True, nogil=True)
def _begun(n_units: int, n_devices: int, n_tensors: int, n_ends: int, most: int) -> _State:
    ints = np.int64
    return _State(
        np.zeros(n_units, ints),
        np.zeros((n_devices, n_units), ints),
        np.zeros(n_devices, ints),
        np.zeros(n_units, ints),
        np.zeros(n_devices, ints),
        np.zeros(n_devices, ints),
        np.zeros(n_units, ints),
        np.full(n_devices, -1, ints),
        np.zeros(n_devices, ints),
        np.zeros(n_devices, ints),
        np.zeros((n_tensors, n_units), np.bool_),
        np.zeros((n_tensors, n_ends), np.bool_),
        np.zeros(n_ends * n_ends),
        np.full((n_tensors, n_ends), np.inf),
        np.full((n_tensors, n_ends), np.inf),
        np.zeros((n_tensors, n_ends), ints),
        np.zeros(most + n_units),
        np.zeros(most + n_units, ints),
        np.zeros(most + n_units, ints),
        np.zeros(most + n_units, ints),
        np.zeros(most + n_units, ints),
        np.zeros(3, ints),
    )


@numba.njit(cache=True, nogil=True)
def _first_event(state: _State) -> int:
    """By time, unit, tensor, destination; -1 without any."""
    first = -1
    for at in range(state.counts[_EVENTS]):
        if first < 0 or state.time[at] < state.time[first]:
            first = at
        elif state.time[at] == state.time[first]:
            if state.unit[at] != state.unit[first]:
                if state.unit[at] < state.unit[first]:
                    first = at
            elif state.tensor[at] != state.tensor[first]:
                if state.tensor[at] < state.tensor[first]:
                    first = at
            elif state.target[at] < state.target[first]:
                first = at
    return first


@numba.njit(cache=True, nogil=True)
def _add_event(state: _State, time: float, unit: int, tensor: int, target: int, left: int) -> None:
    at = state.counts[_EVENTS]
    state.time[at], state.unit[at], state.tensor[at] = time, unit, tensor
    state.target[at], state.hops_left[at] = target, left
    state.counts[_EVENTS] += 1


@numba.njit(cache=True, nogil=True)
def _settle(model: Told, state: _State, device_of: np.ndarray, event: int) -> None:
    """Take an event out and do what it means."""
    now, unit, tensor = state.time[event], state.unit[event], state.tensor[event]
    target, left = state.target[event], state.hops_left[event]
    last = state.counts[_EVENTS] - 1
    for column in (state.unit, state.tensor, state.target, state.hops_left):
        column[event] = column[last]
    state.time[event] = state.time[last]
    state.counts[_EVENTS] = last
    if tensor == _UNIT_ENDS:
        _end_unit(model, state, device_of, unit, now)
        return
    home = model.host if unit < 0 else device_of[unit]
    is_first_hop = left == 1 or model.channel[home, target] >= 0
    if is_first_hop:
        _release(state, tensor, home, now)
    if left == 1:
        _queue_hop(model, state, tensor, model.host, target, target, 0, now)
        return
    for reader in range(len(device_of)):
        if model.reads[reader, tensor] and device_of[reader] == target:
            state.missing[reader] -= 1


@numba.njit(cache=True, nogil=True)
def _end_unit(model: Told, state: _State, device_of: np.ndarray, unit: int, now: float) -> None:
    device = device_of[unit]
    state.running[device] -= 1
    for tensor in range(len(model.size)):
        if model.producer[tensor] == unit:
            _hand_out(model, state, device_of, tensor, device, now)
    for tensor in range(len(model.size)):
        if model.reads[unit, tensor]:
            _release(state, tensor, device, now)


@numba.njit(cache=True, nogil=True)
def _release(state: _State, tensor: int, end: int, now: float) -> None:
    state.users[tensor, end] -= 1
    if state.users[tensor, end] == 0:
        state.stop[tensor, end] = now


@numba.njit(cache=True, nogil=True)
def _hand_out(
    model: Told, state: _State, device_of: np.ndarray, tensor: int, home: int, now: float
) -> None:
    """Readers at home have it; every other device of a reader is sent it, the host last."""
    for reader in range(len(device_of)):
        if model.reads[reader, tensor] and device_of[reader] == home:
            state.missing[reader] -= 1
    users = _readers_on(model, device_of, tensor, home) + model.is_output[tensor]
    state.users[tensor, home] = users
    is_sent = np.zeros(len(model.channel), np.bool_)
    for reader in range(len(device_of) + 1):
        target = model.host
        if reader < len(device_of):
            target = device_of[reader] if model.reads[reader, tensor] else home
        elif not model.is_output[tensor]:
            target = home
        if target == home or is_sent[target]:
            continue
        is_sent[target] = True
        there = model.is_output[tensor] and target == model.host
        state.users[tensor, target] = _readers_on(model, device_of, tensor, target) + there
        state.users[tensor, home] += 1
        if model.channel[home, target] >= 0:
            _queue_hop(model, state, tensor, home, target, target, 0, now)
        elif model.channel[home, model.host] >= 0 and model.channel[model.host, target] >= 0:
            _queue_hop(model, state, tensor, home, model.host, target, 1, now)
        else:
            state.counts[_IS_CUT_OFF] = 1
    if state.users[tensor, home] == 0:
        state.stop[tensor, home] = now


@numba.njit(cache=True, nogil=True)
def _readers_on(model: Told, device_of: np.ndarray, tensor: int, end: int) -> int:
    count = 0
    for reader in range(len(device_of)):
        if model.reads[reader, tensor] and device_of[reader] == end:
            count += 1
    return count


@numba.njit(cache=True, nogil=True)
def _queue_hop(
    model: Told,
    state: _State,
    tensor: int,
    source: int,
    end: int,
    target: int,
    left: int,
    now: float,
) -> None:
    begin, seconds = now, model.hop[tensor, source, end]
    if model.queues[source, end]:
        channel = model.channel[source, end]
        begin = max(now, state.busy_until[channel])
        state.busy_until[channel] = begin + seconds
    if left == 0:
        state.start[tensor, target] = begin
    _add_event(state, begin + seconds, model.producer[tensor], tensor, target, left)


@numba.njit(cache=True, nogil=True)
def _begin_units(
    model: Told,
    state: _State,
    device_of: np.ndarray,
    factor: np.ndarray,
    device: int,
    now: float,
) -> None:
    """Those that are next on the device, while it has a free stream."""
    while state.taken[device] < state.queue_length[device]:
        unit = state.queue[device, state.taken[device]]
        if state.missing[unit] > 0 or state.running[device] == model.streams[device]:
            return
        if _is_held(model, state, device, state.turn[unit]):
            return
        state.taken[device] += 1
        state.running[device] += 1
        seconds = model.seconds[unit, device] * factor[device]
        seconds += _overheads(model, state, device_of, unit, device)
        seconds += _copies(model, state, device_of, unit, device)
        for tensor in range(len(model.size)):
            if model.producer[tensor] == unit:
                state.start[tensor, device] = now
        _add_event(state, now + seconds, unit, _UNIT_ENDS, 0, 0)


@numba.njit(cache=True, nogil=True)
def _is_held(model: Told, state: _State, device: int, turn: int) -> bool:
    """A processor of the device runs a unit of another one, or has to before, by the order."""
    for other in range(len(model.memory)):
        if other == device or not model.excludes[device, other]:
            continue
        if state.running[other] > 0:
            return True
        for at in range(state.taken[other], state.queue_length[other]):
            if state.turn[state.queue[other, at]] < turn:
                return True
    return False


@numba.njit(cache=True, nogil=True)
def _copies(model: Told, state: _State, device_of: np.ndarray, unit: int, device: int) -> float:
    """Seconds in which the device copies what the unit is first to read there, and its outputs."""
    seconds = 0.0
    for tensor in range(len(model.size)):
        producer = model.producer[tensor]
        if model.reads[unit, tensor] and not state.is_read[tensor, device]:
            state.is_read[tensor, device] = True
            if producer >= 0 and device_of[producer] != device:
                seconds += model.taken[tensor, device_of[producer], device]
        for target in range(len(model.memory)):
            is_read = _readers_on(model, device_of, tensor, target) > 0
            if producer == unit and target != device and is_read:
                seconds += model.given[tensor, device, target]
    return seconds


@numba.njit(cache=True, nogil=True)
def _overheads(model: Told, state: _State, device_of: np.ndarray, unit: int, device: int) -> float:
    """Dispatch where a segment begins with the unit, and each tensor that it brings into one."""
    seconds, comes_from_elsewhere, goes_elsewhere = 0.0, False, False
    for other in range(len(device_of)):
        if device_of[other] != device:
            comes_from_elsewhere |= model.edge[other, unit]
            goes_elsewhere |= model.edge[unit, other]
    is_long = state.open_ops[device] + model.ops[unit] > model.most_ops[device]
    if state.open_segment[device] < 0 or comes_from_elsewhere or is_long:
        state.open_segment[device] = state.counts[_SEGMENTS]
        state.counts[_SEGMENTS] += 1
        state.n_segments[device] += 1
        state.open_ops[device] = 0
        seconds += model.dispatch[device]
    state.open_ops[device] += model.ops[unit]
    segment = state.segment[unit] = state.open_segment[device]
    for tensor in range(len(model.size)):
        producer = model.producer[tensor]
        if not model.reads[unit, tensor] or producer < 0 or state.paid[tensor, segment]:
            continue
        if device_of[producer] == device and state.segment[producer] == segment:
            continue
        state.paid[tensor, segment] = True
        seconds += model.cut[device] + model.size[tensor] * model.cut_per_byte[device]
        if model.is_computed[tensor]:
            seconds += model.layout[device] + model.size[tensor] * model.layout_per_byte[device]
    if goes_elsewhere:
        state.open_segment[device] = -1
    return seconds


@numba.njit(cache=True, nogil=True)
def _alive(model: Told, state: _State, device: int, at: float) -> float:
    """Bytes on a device at one instant."""
    total = 0.0
    for tensor in range(len(model.size)):
        if state.start[tensor, device] <= at < state.stop[tensor, device]:
            total += model.size[tensor]
    return total
