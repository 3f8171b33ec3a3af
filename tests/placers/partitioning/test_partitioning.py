"""Partitioning placers on a graph whose best cut is seen by eye."""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import InputError, MissingExtraError
from placewright.placers.partitioning import mt_kahypar
from placewright.placers.partitioning.scotch import scotch_partition
from placewright.placers.partitioning.weighted_graph import hyperedges, shares, weighted_graph
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator

NAMES = {"metis": "pymetis", "scotch": "pyscotch", "mincut": "pyscotch", "mt-kahypar": "mtkahypar"}


def chain(
    n_ops: int,
    thin: int,
    speeds: tuple[float, ...],
    kinds: tuple[str, ...],
    memory: float = math.inf,
) -> Problem:
    """Ops of 12 s / speed in a row that pass 8 bytes; op `thin` passes 1 byte."""
    builder = GraphBuilder()
    tensor = None
    for op in range(n_ops):
        inputs = [] if tensor is None else [tensor]
        builder.add_op(f"op{op}", "Op", inputs=inputs, weights=[builder.add_weight(10.0)])
        tensor = builder.add_tensor(op, 1.0 if op == thin else 8.0, is_output=op == n_ops - 1)
    devices = tuple(
        Device(f"d{index}", kind=kind, memory_bytes=memory) for index, kind in enumerate(kinds)
    )
    names = [device.name for device in devices]
    links = tuple(Link(a, b, bandwidth=1.0) for a in names for b in names if a != b)
    seconds = np.tile(12.0 / np.asarray(speeds), (n_ops, 1))
    return Problem(
        builder.build(),
        Cluster(devices, links, host="d0"),
        CostTable(frozen_floats(seconds)),
        Grouping.identity(n_ops),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )


def solve(name: str, problem: Problem, evaluations: int = 30) -> Solution:
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    return make_placer(name).place(problem, evaluator, np.random.default_rng(0))


def test_weights_of_a_chain() -> None:
    """Three ops of 12 s, tensors of 8 s and 1 s: weights in these proportions, both directions."""
    graph = weighted_graph(chain(3, 1, (1.0, 1.0), ("gpu", "gpu")))
    assert graph.indptr.tolist() == [0, 1, 3, 4]
    assert graph.neighbours.tolist() == [1, 0, 2, 1]
    assert len(set(graph.vertex_weights.tolist())) == 1
    assert graph.edge_weights[0] == graph.edge_weights[1]
    assert graph.edge_weights[0] == pytest.approx(8 * graph.edge_weights[2])


@pytest.mark.parametrize("factor", [0.0, 5e-324, 1e-300, 1.0, 1e290])
def test_weights_are_whole_and_positive_however_large_or_small(factor: float) -> None:
    """Tensors without bytes, or seconds near the ends of what numbers can say, keep the sums of
    weights within 32 bits; zero is no weight: an edge stays one."""
    problem = chain(9, 2, (1.0, 2.0), ("gpu", "gpu"))
    links = tuple(
        replace(link, latency_seconds=factor, bandwidth=math.inf) for link in problem.cluster.links
    )
    problem = replace(
        problem,
        cluster=replace(problem.cluster, links=links),
        costs=CostTable(frozen_floats(problem.costs.seconds * factor)),
    )
    graph = weighted_graph(problem)
    for weights in (graph.vertex_weights, graph.edge_weights, np.array(hyperedges(problem)[1])):
        assert weights.min() >= 1
        assert weights.sum() < 2**31


@pytest.mark.parametrize("name", NAMES)
def test_tensors_without_bytes(name: str) -> None:
    """Weights of the edges are all one then, and not what overflows from 0 / 0."""
    problem = chain(9, 2, (1.0, 1.0), ("gpu", "gpu"))
    links = tuple(replace(link, bandwidth=math.inf) for link in problem.cluster.links)
    solution = solve(name, replace(problem, cluster=replace(problem.cluster, links=links)))
    assert solution.placement is not None
    assert sorted(np.bincount(solution.placement.device_of).tolist()) == [4, 5]


def test_copies_that_occupy_a_device_weigh_what_they_take() -> None:
    free = chain(4, 1, (1.0, 1.0), ("gpu", "gpu")).under(EVENT)
    cluster = replace(free.cluster, host="host")
    links = tuple(replace(link, occupies="receiver") for link in cluster.links)
    occupied = replace(free, cluster=replace(cluster, links=links))
    weights = weighted_graph(occupied).edge_weights
    assert weights.tolist() == weighted_graph(free).edge_weights.tolist()


def test_shares_follow_speed() -> None:
    """A device that takes half as long gets twice the work."""
    problem = chain(6, 3, (1.0, 2.0), ("gpu", "gpu"))
    assert shares(problem, np.array([True, True])) == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("name", NAMES)
def test_cuts_the_thin_tensor(name: str) -> None:
    """Eight ops, the thin tensor in the middle: four ops a side, load 4 * 12 + 1 s."""
    solution = solve(name, chain(8, 3, (1.0, 1.0), ("gpu", "gpu")))
    assert solution.placement is not None
    device_of = solution.placement.device_of.tolist()
    assert device_of[:4] == [device_of[0]] * 4
    assert device_of[4:] == [1 - device_of[0]] * 4
    # Both assignments of two parts; Mt-KaHyPar knows the devices that it maps onto.
    assert solution.evaluations == (1 if name == "mt-kahypar" else 2)


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_as_large_as_devices_are_fast(name: str) -> None:
    """Nine ops, thin after the third: three on the slow device, six on the one twice as fast."""
    solution = solve(name, chain(9, 2, (1.0, 2.0), ("gpu", "gpu")))
    assert solution.placement is not None
    assert np.bincount(solution.placement.device_of).tolist() == [3, 6]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="flushes the C library's buffer")
@pytest.mark.parametrize("n_ops", [4, 5, 7, 12])
def test_metis_prints_nothing_of_few_ops(n_ops: int, capfd: pytest.CaptureFixture[str]) -> None:
    """One op is all the work, so that its half has no other; the answer of a command is there."""
    problem = chain(n_ops, 2, (1.0, 1.0, 1.0, 5.0), ("gpu",) * 4)
    seconds = problem.costs.seconds.copy()
    seconds[0] *= 1e6
    solution = solve("metis", replace(problem, costs=CostTable(frozen_floats(seconds))))
    ctypes.CDLL(None).fflush(None)
    assert solution.placement is not None
    assert capfd.readouterr() == ("", "")


def test_an_induced_graph_has_the_edges_between_its_vertices() -> None:
    graph = weighted_graph(chain(5, 2, (1.0, 1.0), ("gpu", "gpu")))
    part = graph.induced(np.array([0, 1, 3, 4]))
    assert part.indptr.tolist() == [0, 1, 2, 3, 4]
    assert part.neighbours.tolist() == [1, 0, 3, 2]
    assert part.edge_weights[0] == graph.edge_weights[0]
    assert part.edge_weights[2] == graph.edge_weights[-1]


def test_mincut_leaves_the_processor_out() -> None:
    """Of a CPU and two accelerators only the accelerators get work; Scotch uses all three."""
    problem = chain(9, 2, (1.0, 1.0, 1.0), ("cpu", "gpu", "gpu"))
    without, with_it = solve("mincut", problem), solve("scotch", problem)
    assert without.placement is not None
    assert with_it.placement is not None
    assert 0 not in without.placement.device_of
    assert 0 in with_it.placement.device_of


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_moved_where_memory_is_short(name: str) -> None:
    """Speeds ask for 3 and 6 ops of 10 bytes, but a device holds 50: five at most on each."""
    solution = solve(name, chain(9, 2, (1.0, 2.0), ("gpu", "gpu"), memory=50.0))
    assert solution.placement is not None
    assert sorted(np.bincount(solution.placement.device_of).tolist()) == [4, 5]


# Name -> ops, devices, edges, seconds of an op: what is awkward for a partitioner.
AWKWARD: dict[str, tuple[int, int, list[tuple[int, int]], Callable[[int], float]]] = {
    "no edges": (40, 4, [], lambda op: 1.0),
    "pairs": (40, 4, [(op, op + 1) for op in range(0, 40, 2)], lambda op: 1.0),
    "a star": (200, 8, [(0, op) for op in range(1, 200)], lambda op: 1.0),
    "all to all": (40, 4, [(a, b) for b in range(40) for a in range(b)], lambda op: op + 1.0),
    "one giant": (100, 8, [(op, op + 1) for op in range(99)], lambda op: 1e9 if op == 5 else 1e-9),
    "one op more than devices": (9, 8, [(op, op + 1) for op in range(8)], lambda op: 1.0),
    "fewer ops than devices": (3, 8, [(0, 1), (1, 2)], lambda op: 1.0),
    "no seconds": (30, 4, [(op, op + 1) for op in range(29)], lambda op: 0.0),
    "65 devices": (150, 65, [(op, op + 1) for op in range(149)], lambda op: 1.0),
}


@pytest.mark.parametrize("case", AWKWARD)
@pytest.mark.parametrize("name", NAMES)
def test_awkward_graphs_have_an_answer(name: str, case: str) -> None:
    n_ops, n_devices, edges, seconds = AWKWARD[case]
    builder = GraphBuilder()
    for op in range(n_ops):
        builder.add_op(f"op{op}", "Op")
    for op in range(n_ops):
        readers = [after for before, after in edges if before == op]
        if readers:
            tensor = builder.add_tensor(op, 1.0)
            for reader in readers:
                builder.connect(tensor, reader)
    names = [f"d{index}" for index in range(n_devices)]
    links = tuple(Link(a, b, bandwidth=1.0) for a in names for b in names if a != b)
    costs = np.tile(np.array([[seconds(op)] for op in range(n_ops)]), (1, n_devices))
    problem = Problem(
        builder.build(),
        Cluster(tuple(Device(name, kind="gpu") for name in names), links, host="d0"),
        CostTable(frozen_floats(costs)),
        Grouping.identity(n_ops),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )
    solution = solve(name, problem, evaluations=3)
    assert solution.placement is not None
    assert math.isfinite(solution.value)


def test_target_distances_count_ways_through_the_host() -> None:
    """A byte takes 1 s within a pair, 20 + 20 s between pairs; no way to the fifth device."""
    names = [f"d{at}" for at in range(5)]
    links = [Link(a, b, 0.0, 1.0) for pair in (names[:2], names[2:4])
             for a, b in (pair, pair[::-1])]  # fmt: skip
    links += [Link(*ends, 0.0, 1 / 20) for name in names[:4]
              for ends in ((name, "ram"), ("ram", name))]  # fmt: skip
    devices = tuple(Device(name, kind="gpu") for name in names)
    problem = chain(3, 1, (1.0, 1.0), ("gpu", "gpu"))
    problem = Problem(
        problem.graph,
        Cluster(devices, tuple(links), host="ram"),
        CostTable(frozen_floats(np.ones((3, 5)))),
        problem.units,
    )
    found = mt_kahypar.distances(problem, (0, 1, 2, 3, 4))
    pair = round(100 / 40)
    assert found.tolist() == [
        [1, pair, 100, 100, 200],
        [pair, 1, 100, 100, 200],
        [100, 100, 1, pair, 200],
        [100, 100, pair, 1, 200],
        [200, 200, 200, 200, 1],
    ]


@pytest.mark.parametrize("name", NAMES)
def test_missing_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the message names the extra."""
    mt_kahypar._library.cache_clear()
    monkeypatch.setitem(sys.modules, NAMES[name], None)
    problem = chain(8, 3, (1.0, 1.0), ("gpu", "gpu"))
    with pytest.raises(MissingExtraError, match="partitioning"):
        make_placer(name).place(problem, Evaluator(problem), np.random.default_rng(0))


def test_one_thread_at_a_time_uses_scotch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error and its random numbers belong to the process: two lanes would mix them up."""
    both, met = threading.Barrier(2), list[int]()

    def seeded(seed: int) -> None:
        try:
            both.wait(0.2)
        except threading.BrokenBarrierError:  # no other thread came in
            return
        met.append(seed)

    source = mock.MagicMock()
    source.__enter__.return_value.map.return_value = [0, 1, 1]
    library = SimpleNamespace(
        random_seed=seeded,
        random_reset=lambda: None,
        Graph=lambda: source,
        Architecture=mock.MagicMock,
    )
    monkeypatch.setitem(sys.modules, "pyscotch", library)
    graph, shown = weighted_graph(chain(3, 1, (1.0, 1.0), ("gpu", "gpu"))), sys.stderr
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda seed: scotch_partition(graph, np.full(2, 0.5), seed), (1, 2))
        assert [part.tolist() for part in parts] == [[0, 1, 1]] * 2
    assert met == []
    assert sys.stderr is shown


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_checked(name: str) -> None:
    setting = "imbalance" if name == "mt-kahypar" else "assignments"
    with pytest.raises(InputError, match=setting):
        make_placer(name, {setting: "0"})


@pytest.mark.parametrize("name", [*NAMES, "even-split", "m-topo"])
@pytest.mark.parametrize("second", ["mode", "pair"])
def test_modes_of_a_card_share_the_share_of_the_card(name: str, second: str) -> None:
    """Eight equal ops, two cards: as many for each, however many devices compute on them.

    The third device is another mode of the first card, or a pair of both.
    """
    if name in NAMES:
        pytest.importorskip(NAMES[name], reason=f"{name} is not installed")
    problem = chain(8, 3, (1.0, 1.0, 1.0), ("gpu", "gpu", "gpu"))
    used = ("card", "other") if second == "pair" else ("card",)
    own = (("card",), ("other",), used)
    devices = tuple(
        replace(device, processors=names)
        for device, names in zip(problem.cluster.devices, own, strict=True)
    )
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    solution = solve(name, problem)
    assert solution.placement is not None
    counts = np.bincount(solution.placement.device_of, minlength=3)
    # m-topo fills a device up to its share and one op more
    assert sorted(counts.tolist()) == ([0, 3, 5] if name == "m-topo" else [0, 4, 4])
    assert counts[1] > 0
