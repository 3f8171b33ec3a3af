"""Laws of time: faster parts never give a later end, work is kept, numbers mean nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import event, example, given, settings
from strategies import (
    random_order,
    random_placement,
    random_problem,
    seeds,
    without_memory_limits,
)

from placewright.core.arrays import Csr, frozen_floats
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator
from placewright.simulation.segments import Segment, segments_of
from placewright.simulation.timeline import Timeline


def _unshared(problem: Problem) -> Problem:
    """Every link its own channel, and room for everything."""
    problem = without_memory_limits(problem)
    links = tuple(replace(link, channel=None) for link in problem.cluster.links)
    return replace(problem, cluster=replace(problem.cluster, links=links))


def _faster(problem: Problem, rng: np.random.Generator) -> tuple[str, Problem]:
    """One to four of: a device faster or with less overhead, a link wider, an edge less."""
    kinds = rng.choice(["device", "link", "edge"], int(rng.integers(1, 5))).tolist()
    for kind in kinds:
        problem = _with_one_part_faster(problem, kind, rng)
    return "+".join(sorted(dict.fromkeys(kinds))), problem


def _with_one_part_faster(problem: Problem, kind: str, rng: np.random.Generator) -> Problem:
    if kind == "device":
        share = np.ones(problem.n_devices)
        share[rng.integers(problem.n_devices)] = rng.choice([0.0, 0.5])
        costs = replace(problem.costs, seconds=frozen_floats(_scaled(problem, share)))
        devices = [
            replace(device, dispatch_seconds=device.dispatch_seconds * factor)
            for device, factor in zip(problem.cluster.devices, share.tolist(), strict=True)
        ]
        cluster = replace(problem.cluster, devices=tuple(devices))
        return replace(problem, costs=costs, cluster=cluster)
    if kind == "link" and problem.cluster.links:
        links = list(problem.cluster.links)
        at = int(rng.integers(len(links)))
        bandwidth, latency = links[at].bandwidth * 2, links[at].latency_seconds / 2
        links[at] = replace(links[at], bandwidth=bandwidth, latency_seconds=latency)
        return replace(problem, cluster=replace(problem.cluster, links=tuple(links)))
    graph = problem.graph
    rows = [row.tolist() for row in map(graph.tensor_consumers.row, range(graph.n_tensors))]
    full = [tensor for tensor, row in enumerate(rows) if row]
    if full:
        row = rows[full[int(rng.integers(len(full)))]]
        row.pop(int(rng.integers(len(row))))
    return replace(problem, graph=replace(graph, tensor_consumers=Csr.from_rows(rows)))


def _scaled(problem: Problem, share: np.ndarray) -> np.ndarray:
    seconds = problem.costs.seconds
    return np.where(
        np.isfinite(seconds), np.where(np.isfinite(seconds), seconds, 0) * share, np.inf
    )


def _sent(timeline: Timeline) -> dict[int, list[tuple[int, int, int]]]:
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for hop in timeline.transfers:
        rows.setdefault(hop.channel, []).append((hop.tensor, hop.source, hop.destination))
    return rows


def _targets(problem: Problem, placement: Placement) -> list[list[int]]:
    """To which other devices each tensor goes, by its first readers, shape (n_tensors, any)."""
    device_of, graph = placement.device_of, problem.graph
    rows = []
    for tensor, maker in enumerate(graph.tensor_producers.tolist()):
        here = device_of[maker] if maker >= 0 else -1
        readers = device_of[graph.tensor_consumers.row(tensor)].tolist()
        rows.append([device for device in dict.fromkeys(readers) if device != here])
    return rows


def _is_same_sending(slow: Timeline, fast: Timeline) -> bool:
    """Every link sends what is left in the same order."""
    before, after = _sent(slow), _sent(fast)
    return all(
        [hop for hop in before.get(channel, []) if hop in row] == row
        for channel, row in after.items()
    )


@settings(max_examples=120)
@given(seeds)
def test_a_faster_device_or_link_or_one_edge_less_is_never_later(seed: int) -> None:
    """With the order of every device and of every link kept; streams, overheads, cuts, contention
    and routes through the host as they come.
    """
    rng = np.random.default_rng(seed)
    problem = _unshared(random_problem(rng))
    problem = problem if problem.n_units == problem.graph.n_ops else _as_ops(problem, rng)
    placement = random_placement(rng, problem)
    placement = Placement.of(placement.device_of, random_order(rng, problem))
    kind, better = _faster(problem, rng)
    slow, fast = Simulator(problem), Simulator(better)
    if math.isinf(slow.value(placement)):
        event("infeasible")
        return
    before, after = slow.timeline(placement), fast.timeline(placement)
    if not _is_same_sending(before, after):
        event("a link sends in another order")
        return
    event(f"{kind}, {'faster' if after.value < before.value else 'as fast'}")
    assert after.value <= before.value
    assert np.all(after.end <= before.end)


def _as_ops(problem: Problem, rng: np.random.Generator) -> Problem:
    """Single ops again, all of which run everywhere."""
    seconds = rng.integers(0, 9, (problem.graph.n_ops, problem.n_devices)) / 2.0
    costs = replace(problem.costs, seconds=frozen_floats(seconds))
    return replace(problem, units=Grouping.identity(problem.graph.n_ops), costs=costs)


@settings(max_examples=120)
@given(seeds)
def test_busy_time_is_the_sum_of_costs_and_nothing_overlaps(seed: int) -> None:
    """Costs under contention, one dispatch per segment, one cut per tensor that enters it."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    placement = random_placement(rng, problem)
    simulator = Simulator(problem)
    if math.isinf(simulator.value(placement)):
        return
    timeline = simulator.timeline(placement)
    busy = _costs_of_units(problem, placement)
    order = placement.order
    if order is None and all(device.streams == 1 for device in problem.cluster.devices):
        order = timeline.order
    is_known = order is not None  # which units share a segment
    if order is not None:
        for part in segments_of(problem, placement, order):
            busy[part.device] += _segment_overhead(problem, part)
    event("segments counted" if is_known else "ranks on several streams")
    for device, spec in enumerate(problem.cluster.devices):
        mine = placement.device_of == device
        spent = float((timeline.end - timeline.start)[mine].sum())
        assert spent == busy[device] if is_known else spent >= busy[device]
        _assert_apart(
            list(zip(timeline.start[mine], timeline.end[mine], strict=True)), spec.streams
        )
    queues = problem.cluster.link_queues
    hops = [hop for hop in timeline.transfers if queues[hop.source, hop.destination]]
    channels = {hop.channel for hop in hops}
    event(f"channels in use: {min(len(channels), 3)}")
    for channel in channels:
        _assert_apart([(h.start, h.end) for h in hops if h.channel == channel], 1)


def _costs_of_units(problem: Problem, placement: Placement) -> list[float]:
    """Seconds of each device's units, times the factor of its memory domain."""
    cluster, used = problem.cluster, dict.fromkeys(placement.device_of.tolist())
    busy = [0.0] * problem.n_devices
    for unit, device in enumerate(placement.device_of.tolist()):
        domain = cluster.devices[device].memory_domain
        factors = cluster.contention.get(domain or "", (1.0,))
        together = sum(cluster.devices[other].memory_domain == domain for other in used)
        factor = factors[min(together, len(factors)) - 1]
        busy[device] += float(problem.costs.seconds[unit, device]) * factor
    return busy


def _segment_overhead(problem: Problem, part: Segment) -> float:
    graph, device = problem.unit_graph, problem.cluster.devices[part.device]
    seconds = device.dispatch_seconds
    for tensor in part.inputs:
        producer, size = int(graph.tensor_producers[tensor]), float(graph.tensor_bytes[tensor])
        if producer < 0:
            continue
        seconds += device.cut_seconds + size * device.cut_seconds_per_byte
        if graph.op_flops[producer] > 0 and graph.op_flops[producer] >= 20 * size:
            seconds += device.layout_seconds + size * device.layout_seconds_per_byte
    return seconds


def _assert_apart(spans: list[tuple[float, float]], at_once: int) -> None:
    """No more than `at_once` spans at any instant; what ends makes room for what begins."""
    spans.sort()
    for number, (start, _) in enumerate(spans):
        assert sum(end > start for _, end in spans[:number]) < at_once


@settings(max_examples=120)
@given(seeds)
@example(2003)  # a tensor goes to the host twice: for a reader there, and on its way to another
def test_numbers_and_names_of_ops_mean_nothing(seed: int) -> None:
    """Costs are all different, so that ties, which go by number, seldom decide."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    problem = problem if problem.n_units == problem.graph.n_ops else _as_ops(problem, rng)
    graph, n = problem.graph, problem.graph.n_ops
    noise = 1 + rng.random(problem.costs.seconds.shape)
    seconds = np.where(np.isfinite(problem.costs.seconds), noise, np.inf)
    problem = replace(
        problem,
        graph=replace(graph, tensor_bytes=frozen_floats(1 + rng.random(graph.n_tensors))),
        costs=replace(problem.costs, seconds=frozen_floats(seconds)),
    )
    placement = random_placement(rng, problem)
    new = rng.permutation(n)  # op -> its new number
    old = np.argsort(new)
    expected = Simulator(problem).value(placement)
    makers = np.where(graph.tensor_producers >= 0, new[graph.tensor_producers], -1)
    rows = [sorted(new[graph.tensor_consumers.row(t)].tolist()) for t in range(graph.n_tensors)]
    renumbered = replace(
        problem,
        graph=replace(
            problem.graph,
            op_names=tuple(f"renamed {op}" for op in old.tolist()),
            op_kinds=tuple(graph.op_kinds[op] for op in old.tolist()),
            op_flops=frozen_floats(graph.op_flops[old]),
            op_phases=graph.op_phases[old],
            op_modules=tuple(graph.op_modules[op] for op in old.tolist()),
            op_colocation=graph.op_colocation[old],
            op_weights=Csr.from_rows([graph.op_weights.row(op).tolist() for op in old.tolist()]),
            tensor_producers=makers,
            tensor_consumers=Csr.from_rows(rows),
        ),
        costs=replace(problem.costs, seconds=frozen_floats(seconds[old])),
        pins={int(new[op]): device for op, device in problem.pins.items()},
    )
    order = None if placement.order is None else new[placement.order].tolist()
    moved = Placement.of(placement.device_of[old], order)
    again = Simulator(renumbered).value(moved)
    if _targets(problem, placement) != _targets(renumbered, moved):
        event("a tensor for two devices at once: its first reader's number decides")
        return
    if math.isfinite(expected) and math.isfinite(again):
        before = Simulator(problem).timeline(placement)
        after = Simulator(renumbered).timeline(moved)
        if _sent(before) != _sent(after):
            event("two tensors at one instant: their makers' numbers decide")
            return
    event(f"{'an order' if order else 'ranks'}, {'finite' if expected < math.inf else 'inf'}")
    assert math.isclose(again, expected, rel_tol=1e-9)


@settings(max_examples=80)
@given(seeds)
def test_other_names_alone_change_nothing(seed: int) -> None:
    """Bit for bit: value, memory, and the timeline under the other names."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    placement = random_placement(rng, problem)
    names = [f"op {number}" for number in rng.permutation(problem.graph.n_ops).tolist()]
    renamed = replace(problem, graph=replace(problem.graph, op_names=tuple(names)))
    before, after = Simulator(problem), Simulator(renamed)
    value, peaks = before.value_and_peaks(placement)
    again, same_peaks = after.value_and_peaks(placement)
    assert again == value
    assert same_peaks.tolist() == peaks.tolist()
    if math.isfinite(value):
        first, second = before.timeline(placement), after.timeline(placement)
        assert second.start.tolist() == first.start.tolist()
        assert second.end.tolist() == first.end.tolist()
        assert _hops(second) == _hops(first)


def _hops(timeline: Timeline) -> list[tuple[int, int, int, int, float, float]]:
    """Everything of a transfer but its reason to wait, which has a name in it."""
    return [
        (hop.tensor, hop.source, hop.destination, hop.channel, hop.start, hop.end)
        for hop in timeline.transfers
    ]
