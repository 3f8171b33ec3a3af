"""Laws of time: faster parts never give a later end, work is kept, numbers mean nothing."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from hypothesis import event, given, settings
from strategies import random_order, random_placement, random_problem, seeds

from placewright.core.arrays import Csr, frozen_floats
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator
from placewright.simulation.timeline import Timeline


def _unshared(problem: Problem, rng: np.random.Generator) -> Problem:
    """One stream per device, every link its own channel, no memory limit, no overheads."""
    devices = tuple(
        replace(
            device,
            streams=1,
            memory_bytes=math.inf,
            dispatch_seconds=0.0,
            cut_seconds=0.0,
            cut_seconds_per_byte=0.0,
            layout_seconds=0.0,
            layout_seconds_per_byte=0.0,
        )
        for device in problem.cluster.devices
    )
    links = tuple(replace(link, channel=None) for link in problem.cluster.links)
    cluster = replace(problem.cluster, devices=devices, links=links, contention={})
    return replace(problem, cluster=cluster)


def _faster(problem: Problem, rng: np.random.Generator) -> tuple[str, Problem]:
    kind = str(rng.choice(["device", "link", "edge"]))
    if kind == "device":
        share = np.ones(problem.n_devices)
        share[rng.integers(problem.n_devices)] = rng.choice([0.0, 0.5])
        costs = replace(problem.costs, seconds=frozen_floats(_scaled(problem, share)))
        return kind, replace(problem, costs=costs)
    if kind == "link" and problem.cluster.links:
        links = list(problem.cluster.links)
        at = int(rng.integers(len(links)))
        bandwidth, latency = links[at].bandwidth * 2, links[at].latency_seconds / 2
        links[at] = replace(links[at], bandwidth=bandwidth, latency_seconds=latency)
        return kind, replace(problem, cluster=replace(problem.cluster, links=tuple(links)))
    graph = problem.graph
    rows = [row.tolist() for row in map(graph.tensor_consumers.row, range(graph.n_tensors))]
    full = [tensor for tensor, row in enumerate(rows) if row]
    if full:
        row = rows[full[int(rng.integers(len(full)))]]
        row.pop(int(rng.integers(len(row))))
    return "edge", replace(problem, graph=replace(graph, tensor_consumers=Csr.from_rows(rows)))


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


def _targets(timeline: Timeline) -> dict[tuple[int, int], list[int]]:
    """Where each tensor goes from each endpoint, in the order of sending, over all channels."""
    rows: dict[tuple[int, int], list[int]] = {}
    for hop in timeline.transfers:
        rows.setdefault((hop.tensor, hop.source), []).append(hop.destination)
    return rows


def _is_same_sending(slow: Timeline, fast: Timeline) -> bool:
    """Every link sends what is left in the same order."""
    before, after = _sent(slow), _sent(fast)
    return all(
        [hop for hop in before.get(channel, []) if hop in row] == row
        for channel, row in after.items()
    )


@settings(max_examples=600)
@given(seeds)
def test_a_faster_device_or_link_or_one_edge_less_is_never_later(seed: int) -> None:
    """With the order of every device and of every link kept."""
    rng = np.random.default_rng(seed)
    problem = _unshared(random_problem(rng), rng)
    problem = problem if problem.n_units == problem.graph.n_ops else _as_ops(problem)
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


def _as_ops(problem: Problem) -> Problem:
    """Single ops again, all of which run everywhere."""
    seconds = np.ones((problem.graph.n_ops, problem.n_devices))
    costs = replace(problem.costs, seconds=frozen_floats(seconds))
    return replace(problem, units=Grouping.identity(problem.graph.n_ops), costs=costs)


@settings(max_examples=300)
@given(seeds)
def test_busy_time_is_the_sum_of_costs_and_nothing_overlaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    plain = _unshared(problem, rng)
    problem = replace(plain, cluster=replace(plain.cluster, links=problem.cluster.links))
    placement = random_placement(rng, problem)
    simulator = Simulator(problem)
    if math.isinf(simulator.value(placement)):
        return
    timeline = simulator.timeline(placement)
    own = problem.costs.seconds[np.arange(problem.n_units), placement.device_of]
    for device in range(problem.n_devices):
        mine = placement.device_of == device
        assert (timeline.end - timeline.start)[mine].sum() == own[mine].sum()
        _assert_apart(list(zip(timeline.start[mine], timeline.end[mine], strict=True)))
    queues = problem.cluster.link_queues
    hops = [hop for hop in timeline.transfers if queues[hop.source, hop.destination]]
    channels = {hop.channel for hop in hops}
    event(f"channels in use: {min(len(channels), 3)}")
    for channel in channels:
        _assert_apart([(h.start, h.end) for h in hops if h.channel == channel])


def _assert_apart(spans: list[tuple[float, float]]) -> None:
    spans.sort()
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start >= end


@settings(max_examples=300)
@given(seeds)
def test_numbers_and_names_of_ops_mean_nothing(seed: int) -> None:
    """Costs are all different, so that ties, which go by number, seldom decide."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    problem = problem if problem.n_units == problem.graph.n_ops else _as_ops(problem)
    graph, n = problem.graph, problem.graph.n_ops
    noise = 1 + rng.random(problem.costs.seconds.shape)
    seconds = np.where(np.isfinite(problem.costs.seconds), noise, np.inf)
    problem = replace(
        problem,
        graph=replace(graph, tensor_bytes=frozen_floats(1 + rng.random(graph.n_tensors))),
        cluster=replace(
            problem.cluster,
            devices=tuple(replace(device, streams=1) for device in problem.cluster.devices),
        ),
        costs=replace(problem.costs, seconds=frozen_floats(seconds)),
        pins={},
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
    )
    order = None if placement.order is None else new[placement.order].tolist()
    moved = Placement.of(placement.device_of[old], order)
    again = Simulator(renumbered).value(moved)
    if math.isfinite(expected) and math.isfinite(again):
        before = Simulator(problem).timeline(placement)
        after = Simulator(renumbered).timeline(moved)
        if _sent(before) != _sent(after) or _targets(before) != _targets(after):
            event("a tensor for two devices at once: its first reader's number decides")
            return
    event(f"{'an order' if order else 'ranks'}, {'finite' if expected < math.inf else 'inf'}")
    assert math.isclose(again, expected, rel_tol=1e-9)
