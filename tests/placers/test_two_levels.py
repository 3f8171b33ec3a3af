"""Links of two levels: what the groups are, a case by hand, brute force over splits in groups."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from pipelines import is_contiguous

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.graph import BACKWARD, FORWARD
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.placers.exact.maxload_ip import MaxloadIp
from placewright.placers.pipelines.dpl import Dpl
from placewright.placers.pipelines.ideal_dp import IdealDp
from placewright.placers.pipelines.ideals.link_levels import link_levels
from placewright.simulation.evaluator import Evaluator

Edges = list[tuple[int, int]]


def hosts(
    sizes: list[int], near: float, far: float, *, with_host: bool = False, memory: float = math.inf
) -> Cluster:
    """Machines with so many devices, seconds per byte within one and between two of them."""
    names = [f"acc:{machine}.{i}" for machine, size in enumerate(sizes) for i in range(size)]
    machine_of = [machine for machine, size in enumerate(sizes) for _ in range(size)]
    links = [
        Link(names[a], names[b], bandwidth=1 / (near if machine_of[a] == machine_of[b] else far))
        for a, b in itertools.permutations(range(len(names)), 2)
    ]
    if with_host:
        ends = [pair for name in names for pair in ((name, "host"), ("host", name))]
        links += [Link(*pair, bandwidth=1 / (far / 2)) for pair in ends]
    devices = tuple(Device(name, "accelerator", memory_bytes=memory) for name in names)
    return Cluster(devices, tuple(links))


def problem_on(
    cluster: Cluster,
    seconds: list[float],
    edges: Edges,
    sizes: list[float],
    *,
    phases: list[int] | None = None,
    ends: bool = False,
    weights: list[float] | None = None,
) -> Problem:
    """One tensor per op with readers; with `ends` the graph has an input and an output."""
    builder = GraphBuilder()
    n_ops = len(seconds)
    for op in range(n_ops):
        builder.add_op(
            str(op),
            "Op",
            phase=FORWARD if phases is None else phases[op],
            colocation=-1 if phases is None else op % (n_ops // 2),
            weights=[builder.add_weight(0.0 if weights is None else weights[op])],
        )
    for op in range(n_ops):
        readers = [after for before, after in edges if before == op]
        is_output = ends and op == n_ops - 1
        if readers or is_output:
            tensor = builder.add_tensor(op, sizes[op], is_output=is_output)
            for reader in readers:
                builder.connect(tensor, reader)
    if ends:
        builder.connect(builder.add_tensor(-1, 2.0), 0)
    return Problem(
        builder.build(),
        cluster,
        CostTable(frozen_floats([[value] * cluster.n_devices for value in seconds])),
        Grouping.identity(n_ops),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )


def solved(problem: Problem, placer: IdealDp | Dpl) -> Solution:
    assert placer.why_not(problem) is None
    return placer.place(problem, Evaluator(problem), np.random.default_rng(0))


def in_groups(problem: Problem, group_of: list[int], device_of: list[int]) -> bool:
    """True when devices can be put in a row, group by group, that all forward edges follow."""
    groups = sorted(set(group_of))
    members = [[d for d, g in enumerate(group_of) if g == group] for group in groups]
    rows = (
        [device for part in parts for device in part]
        for order in itertools.permutations(members)
        for parts in itertools.product(*(itertools.permutations(part) for part in order))
    )
    if not is_contiguous(problem, device_of):
        return False
    graph = problem.graph
    pairs = {
        (device_of[int(graph.tensor_producers[tensor])], device_of[reader])
        for tensor in range(graph.n_tensors)
        if graph.tensor_producers[tensor] >= 0
        and graph.op_phases[graph.tensor_producers[tensor]] == FORWARD
        for reader in graph.tensor_consumers.row(tensor).tolist()
        if graph.op_phases[reader] == FORWARD
    }
    return any(all(row.index(a) <= row.index(b) for a, b in pairs) for row in rows)


def load_over_links(problem: Problem, device_of: list[int]) -> float:
    """Max-load told plainly where every two devices have a link; inf where memory is short."""
    graph, cluster = problem.graph, problem.cluster
    price = cluster.link_seconds_per_byte
    host = cluster.host_endpoint
    load = np.zeros(cluster.n_devices)
    held = np.zeros(cluster.n_devices)
    np.add.at(load, device_of, [problem.costs.seconds[op, d] for op, d in enumerate(device_of)])
    np.add.at(held, device_of, graph.op_weight_bytes)
    model = problem.execution_model
    assert isinstance(model, MaxLoad)
    for tensor, size in enumerate(graph.tensor_bytes.tolist()):
        users = [int(graph.tensor_producers[tensor]), *graph.tensor_consumers.row(tensor).tolist()]
        for device in sorted({device_of[user] for user in users if user >= 0}):
            held[device] += model.samples_in_flight * size
    if (held > cluster.memory_bytes).any():
        return math.inf
    for tensor in range(graph.n_tensors):
        producer, size = int(graph.tensor_producers[tensor]), float(graph.tensor_bytes[tensor])
        source = device_of[producer] if producer >= 0 else host
        targets = {device_of[reader] for reader in graph.tensor_consumers.row(tensor).tolist()}
        targets |= {host} if graph.tensor_is_output[tensor] else set()
        targets -= {source}
        for target in sorted(targets - {host}):
            load[target] += size * price[source, target]
        if targets and source != host:
            load[source] += size * max(price[source, target] for target in sorted(targets))
    return float(load.max())


def best_in_groups(problem: Problem) -> float:
    """Least max-load of all placements whose devices and groups are contiguous."""
    levels = link_levels(problem)
    assert levels is not None
    group_of = levels.group_of.tolist()
    same_class = problem.colocation.group_of
    best = math.inf
    for device_of in itertools.product(range(problem.n_devices), repeat=problem.n_units):
        if any(
            same_class[a] == same_class[b] and device_of[a] != device_of[b]
            for a, b in itertools.combinations(range(problem.n_units), 2)
        ):
            continue
        value = load_over_links(problem, list(device_of))
        if value < best and in_groups(problem, group_of, list(device_of)):
            best = value
    return best


def test_the_cheap_edge_is_cut_between_the_machines() -> None:
    """Chain of four ops of 6 s on two machines of two devices; tensors of 3, 1 and 3 B cost 1 s/B
    within a machine and 2 s/B between them. Each op on its own device, 0 and 1 on one machine,
    carries 6 + 3, 6 + 3 + 2, 6 + 2 + 3 and 6 + 3, so 11. At far prices all over, inner ops would
    carry 6 + 6 + 2 = 14; two ops on a device are 12 s before any transfer."""
    problem = problem_on(hosts([2, 2], 1, 2), [6] * 4, [(0, 1), (1, 2), (2, 3)], [3, 1, 3, 0])
    solution = solved(problem, IdealDp())
    assert solution.value == 11
    assert solution.message == "optimal among placements whose devices and groups are contiguous"
    assert solution.placement is not None
    device_of = solution.placement.device_of.tolist()
    assert [device // 2 for device in device_of] in ([0, 0, 1, 1], [1, 1, 0, 0])


@pytest.mark.parametrize("seed", range(16))
def test_it_equals_brute_force_over_splits_in_groups(seed: int) -> None:
    """Two machines of two devices, or of two and one; inputs, outputs and memory now and then."""
    rng = np.random.default_rng(seed)
    n_ops = 5
    edges = [pair for pair in itertools.combinations(range(n_ops), 2) if rng.random() < 0.5]
    weights = rng.integers(0, 5, n_ops).astype(float)
    ends = seed % 4 >= 2
    cluster = hosts(
        [2, 2] if seed % 2 else [2, 1],
        near=float(rng.uniform(0.1, 1)),
        far=float(rng.uniform(1, 3)),
        with_host=ends,
        memory=float(math.ceil(weights.sum() * rng.uniform(0.4, 1.2))),
    )
    problem = problem_on(
        cluster,
        rng.integers(1, 10, n_ops).astype(float).tolist(),
        edges,
        rng.integers(0, 6, n_ops).astype(float).tolist(),
        ends=ends,
        weights=weights.tolist(),
    )
    best = best_in_groups(problem)
    solution = solved(problem, IdealDp())
    if math.isinf(best):
        assert solution.placement is None
        return
    assert solution.placement is not None
    assert solution.value == pytest.approx(
        load_over_links(problem, solution.placement.device_of.tolist())
    )
    assert solution.value <= best * (1 + 1e-9)
    assert solution.lower_bound <= solution.value
    device_of = solution.placement.device_of.tolist()
    levels = link_levels(problem)
    assert levels is not None
    if in_groups(problem, levels.group_of.tolist(), device_of):
        assert solution.value == pytest.approx(best)
    assert solved(problem, Dpl()).value >= solution.value - 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_backward_ops_follow_their_forward_ops(seed: int) -> None:
    """A training graph of four layers on two machines of two devices."""
    rng = np.random.default_rng(seed)
    n = 4
    ahead = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.6]
    edges = ahead + [(n + after, n + before) for before, after in ahead]
    edges += [(op, n + op) for op in range(n)]
    problem = problem_on(
        hosts([2, 2], 0.5, 2),
        rng.integers(1, 10, 2 * n).astype(float).tolist(),
        edges,
        rng.integers(0, 6, 2 * n).astype(float).tolist(),
        phases=[FORWARD] * n + [BACKWARD] * n,
    )
    solution = solved(problem, IdealDp())
    assert solution.placement is not None
    device_of = solution.placement.device_of.tolist()
    assert solution.value == pytest.approx(load_over_links(problem, device_of))
    assert solution.value <= best_in_groups(problem) * (1 + 1e-9)


def test_groups_are_read_off_the_links() -> None:
    problem = problem_on(hosts([2, 3, 1], 1, 2), [1, 1], [(0, 1)], [1, 1])
    levels = link_levels(problem)
    assert levels is not None
    assert levels.group_of.tolist() == [0, 0, 2, 2, 2, 5]
    assert levels.near.receive[:, 0].tolist() == [1, 1, 1, 1, 1, 2]
    assert levels.far.send[:, 0].tolist() == [2] * 6


def test_groups_within_one_level_stand_alone() -> None:
    problem = problem_on(hosts([3], 1, 2), [1, 1], [(0, 1)], [1, 1])
    levels = link_levels(problem)
    assert levels is not None
    assert levels.group_of.tolist() == [0, 1, 2]


def test_three_levels_and_shared_channels_are_refused() -> None:
    """Links of 1, 2 and 3 s/B; two machines whose network is one channel."""
    cluster = hosts([2, 2], 1, 2)
    links = [
        Link(link.source, link.destination, bandwidth=1 / 3) if at == 2 else link
        for at, link in enumerate(cluster.links)
    ]
    problem = problem_on(Cluster(cluster.devices, tuple(links)), [1, 1], [(0, 1)], [1, 1])
    assert "depends on the device at its other end" in str(IdealDp().why_not(problem))
    links = [
        Link(link.source, link.destination, bandwidth=0.5, channel="network")
        if link.bandwidth < 1
        else link
        for link in cluster.links
    ]
    problem = problem_on(Cluster(cluster.devices, tuple(links)), [1, 1], [(0, 1)], [1, 1])
    assert "share a channel" in str(Dpl().why_not(problem))


def test_the_integer_program_needs_one_level() -> None:
    problem = problem_on(hosts([2, 2], 1, 2), [1, 1], [(0, 1)], [1, 1])
    assert "depends on the device at its other end" in str(MaxloadIp().why_not(problem))


def test_too_many_ideals_and_a_spent_budget() -> None:
    problem = problem_on(hosts([2, 2], 1, 2), [4] * 6, [(0, 1), (2, 3)], [3, 1, 3, 0, 0, 0])
    assert "too many ideals" in solved(problem, IdealDp(max_ideals=5)).message
    evaluator = Evaluator(problem, Budget(evaluations=1))
    solution = IdealDp().place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    assert solution.evaluations == 1
