"""Memory pools: what they add up, what they refuse, how they are written and found."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from placewright.core.arrays import frozen_ints
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import ClusterError, FieldError, InfeasibleError, UnknownNameError
from placewright.files.cluster_file import read_cluster, write_cluster
from placewright.placers.advice import LimitChange, advice, smallest_changes
from placewright.placers.registry import make_placer
from placewright.placers.repair import repaired
from placewright.profiling.discover import _in_pools
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator


def _chain(pool: float = 100.0, memory: float | None = None, **others: object) -> Problem:
    """Ops a, b, c with 30 bytes of weights each pass 10 bytes on; two cores and a card.

    The cores share a pool. Everything takes 1 s; transfers take none.
    """
    graph = nx.DiGraph()
    for name in "abc":
        graph.add_node(name, weight_bytes=30.0)
    graph.add_edge("a", "b", bytes=10.0)
    graph.add_edge("b", "c", bytes=10.0)
    return Problem.from_costs(
        graph,
        np.ones((3, 3)),
        (0.0, math.inf),
        memory=memory,
        devices=["core0", "core1", "card"],
        pools={"ram": (pool, ["core0", "core1"])},
        **others,
    )


@pytest.mark.parametrize(
    ("device_of", "needed"),
    [
        # a beside its output and that of b, 30 + 30 + 30 + 10 + 10; nothing on the other core.
        ((0, 0, 0), 110.0),
        # core0: 30 + 30 + 10 + 10 while b runs; core1: 30 + 10. Both come at different times.
        ((0, 0, 1), 120.0),
        ((0, 1, 0), 120.0),
        ((0, 2, 0), 70.0),  # core0: 30 + 30 + 10; b is on the card, which is in no pool
        ((2, 2, 2), 0.0),
    ],
)
def test_the_peaks_of_a_pool_add_up(device_of: tuple[int, ...], needed: float) -> None:
    placement = Placement.of(device_of)
    for size in (needed, needed - 1) if needed else (needed,):
        problem = _chain(size)
        simulator = Simulator(problem)
        peaks = simulator.memory_peaks(placement)
        assert float(problem.cluster.pooled(peaks).sum()) == (needed if (peaks > 0).any() else 0)
        violation = simulator.violation(placement)
        if size == needed:
            assert violation is None
            continue
        assert violation is not None
        assert (violation.constraint, violation.where, violation.excess) == ("memory", "ram", 1.0)
        assert "pool 'ram' needs" in violation.message
        assert "1 B short" in violation.message
        assert math.isinf(simulator.values(np.array([device_of]))[0])


def test_the_limit_of_a_device_holds_inside_its_pool() -> None:
    limited = replace(_chain(1000.0), cluster=_chain(1000.0).cluster.with_limit("core0", 50.0))
    violation = Simulator(limited).violation(Placement.of((0, 0, 0)))
    assert violation is not None
    assert violation.where == "core0"
    assert Simulator(limited).violation(Placement.of((1, 1, 1))) is None


def _by_shares(vram: float, ram: float, **others: object) -> Problem:
    """The chain on a core and a card that keeps a quarter of its bytes in RAM."""
    problem = _chain(**others)
    core, _, card = problem.cluster.devices
    devices = (
        replace(core, pool="ram"),
        replace(core, name="core1", pool=None),
        replace(card, pool={"vram": 0.75, "ram": 0.25}),
    )
    cluster = replace(problem.cluster, devices=devices, pools={"vram": vram, "ram": ram})
    return replace(problem, cluster=cluster)


@pytest.mark.parametrize(
    ("device_of", "vram", "ram"),
    [
        ((2, 2, 2), 82.5, 27.5),  # of 110 bytes
        ((0, 2, 2), 60.0, 60.0),  # 80 on the card: 30 + 30, two tensors; 40 on the core
        ((0, 0, 1), 0.0, 80.0),
    ],
)
def test_pools_take_the_shares_of_a_device(
    device_of: tuple[int, ...], vram: float, ram: float
) -> None:
    placement = Placement.of(device_of)
    assert Simulator(_by_shares(vram, ram)).violation(placement) is None
    rows = np.array([device_of])
    for low in ((vram - 1.0, ram), (vram, ram - 1.0)):
        if min(low) < 0:
            continue
        problem = _by_shares(*low)
        violation = Simulator(problem).violation(placement)
        assert violation is not None
        assert violation.where == ("vram" if low[0] < vram else "ram")
        assert violation.excess == 1.0
        assert math.isinf(Simulator(problem).values(rows)[0])
    if vram:
        lacking = Simulator(_by_shares(vram - 1.0, ram)).violation(placement)
        assert lacking is not None
        assert "pool 'vram' needs" in lacking.message


def test_shares_are_named_where_they_are_given() -> None:
    graph = nx.path_graph(2, nx.DiGraph)
    given = {"vram": (8.0, {"b": 0.75}), "ram": (9.0, {"a": 1, "b": 0.25})}

    def made(**pools: object) -> Problem:
        return Problem.from_costs(
            graph, np.ones((2, 2)), (0, 1), devices=["a", "b"], pools={**given, **pools}
        )

    cluster = made().cluster
    assert [device.pool for device in cluster.devices] == ["ram", {"vram": 0.75, "ram": 0.25}]
    assert (cluster.shared_pools, cluster.pool_shares.tolist()) == (("ram",), [[1.0, 0.25]])
    assert (cluster.memory_bytes.tolist(), cluster.unshared.tolist()) == (
        [9.0, 8 / 0.75],
        [0, 0.75],
    )
    assert "b (pool 75% of 'vram' and 25% of 'ram')" in repr(made())
    with pytest.raises(ClusterError, match=r"'b': shares .* add up to 1, got vram 0.75, ram 0.5"):
        made(ram=(9.0, {"b": 0.5}))
    with pytest.raises(FieldError, match="'b' is in pools 'vram' and 'ram'; give its share"):
        made(vram=(9.0, ["b"]), ram=(9.0, ["a", "b"]))
    with pytest.raises(ClusterError, match=r"'b': shares of its pools must be > 0 .* got vram -1"):
        made(vram=(9.0, {"b": -1}), ram=(9.0, {"b": 2}))


def test_a_cluster_file_keeps_shares(tmp_path: Path) -> None:
    cluster, path = _by_shares(8.0, 9.0).cluster, tmp_path / "c.yaml"
    write_cluster(path, cluster)
    assert read_cluster(path).devices == cluster.devices


def test_searches_and_the_smallest_fix_count_shares() -> None:
    """The core can keep one op, the card two: 27 bytes of 90 are too many for 60 + 25 of both."""
    tight = {"objective": "throughput", "execution_model": MaxLoad(samples_in_flight=0)}
    problem = _by_shares(50.0, 45.0, **tight)
    problem = replace(problem, cluster=problem.cluster.with_limit("core1", 0.0))
    for name in ("heft", "m-topo", "local-search", "maxload-ip"):
        evaluator = Evaluator(problem, Budget(evaluations=300))
        solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
        assert sorted(solution.placement.device_of.tolist()) == [0, 2, 2], name
    short = replace(problem, cluster=problem.cluster.with_limit("ram", 39.0))
    assert "'ram'" in (prove_infeasible(short) or "")
    changes = {change.device: change.limit for change in smallest_changes(short)
               if isinstance(change, LimitChange)}  # fmt: skip
    assert changes["ram"] == 45.0


def test_a_pattern_limits_each_device_that_it_matches() -> None:
    cluster = _chain().cluster.with_limit("core*", 50.0).with_limit("core1", 70.0)
    assert cluster.memory_bytes.tolist() == [50.0, 70.0, math.inf]
    assert cluster.pools == _chain().cluster.pools
    with pytest.raises(UnknownNameError, match=r"unknown device 'gpu\*'; .*available: core0"):
        cluster.with_limit("gpu*", 1.0)


def test_a_pool_of_one_device_is_a_limit_of_it() -> None:
    problem = _chain()
    (core, *others) = problem.cluster.devices
    lone = tuple(replace(device, pool=None) for device in others)
    alone = replace(problem, cluster=replace(problem.cluster, devices=(core, *lone)))
    assert alone.cluster.shared_pools == ()
    assert alone.cluster.memory_bytes.tolist() == [100.0, math.inf, math.inf]
    violation = Simulator(alone).violation(Placement.of((0, 0, 0)))
    assert violation is not None
    assert violation.where == "ram"


def test_each_member_of_a_group_takes_its_share_of_the_pool() -> None:
    """Three replicas of core0 keep 30 bytes each, core1 keeps 60: 150 bytes."""
    for size, is_enough in ((150.0, True), (149.0, False)):
        problem = _chain(size, objective="throughput", execution_model=MaxLoad(samples_in_flight=0))
        (core, *others) = problem.cluster.devices
        devices = (replace(core, replicas=3), *others)
        cluster = replace(problem.cluster, devices=devices, host="card")
        grouped = replace(problem, cluster=cluster)
        value = Simulator(grouped).value(Placement.of((0, 1, 1)))
        assert math.isfinite(value) == is_enough


def test_a_stream_that_a_pool_cannot_hold_is_refused() -> None:
    problem = _chain(1e6, objective="throughput", execution_model=MaxLoad(samples_in_flight=0))
    placement = Placement.of((0, 0, 1))
    stream = Simulator(problem).stream(placement, in_flight=6)
    taken = float(problem.cluster.pooled(stream.memory_peaks)[0])
    assert taken >= 90.0
    for size, fits in ((taken, True), (taken - 1.0, False)):
        simulator = Simulator(replace(problem, cluster=problem.cluster.with_limit("ram", size)))
        if fits:
            simulator.stream(placement, in_flight=6)
            continue
        with pytest.raises(InfeasibleError, match="the devices of pool 'ram'"):
            simulator.stream(placement, in_flight=6)


def test_repair_brings_copies_of_a_weight_together() -> None:
    """Four ops read one weight of 60 bytes; a pool of 100 bytes has no room for it twice."""
    builder = GraphBuilder()
    shared = builder.add_weight(60.0)
    for name in "abcd":
        builder.add_op(name, "Op", weights=[shared])
    pools = {"ram": (100.0, ["device:0", "device:1"])}
    problem = Problem.from_costs(builder.build(), np.ones((4, 2)), (0.0, math.inf), pools=pools)
    assert len(set(repaired(problem, frozen_ints([0, 1, 0, 1])).tolist())) == 1


@pytest.mark.parametrize("name", ["single", "round-robin", "even-split", "heft", "m-etf", "m-topo"])
def test_constructive_placers_keep_a_pool(name: str) -> None:
    """Nine ops keep 30 bytes each; the cores' pool has room for four, the card for six."""
    graph = nx.DiGraph()
    nx.add_path(graph, range(9), bytes=1.0)
    nx.set_node_attributes(graph, 30.0, "weight_bytes")
    problem = Problem.from_costs(
        graph,
        np.ones((9, 3)),
        (0.0, math.inf),
        memory=[500.0, 500.0, 185.0],
        pools={"ram": (125.0, ["device:0", "device:1"])},
    )
    evaluator = Evaluator(problem, Budget(evaluations=20))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert math.isfinite(solution.value)


def test_what_no_pool_can_hold_is_proven_and_the_smallest_fix_names_the_pool() -> None:
    """The cores hold 80 bytes together and the card none: 90 bytes of weights do not fit."""
    cluster = _chain(80.0).cluster.with_limit("card", 0.0)
    problem = replace(_chain(80.0), cluster=cluster)
    proof = prove_infeasible(problem)
    assert proof is not None
    assert "pool 'ram' with 80 B" in proof
    limits = {one.device: one for one in smallest_changes(problem) if isinstance(one, LimitChange)}
    assert limits["ram"].limit == 110.0  # all on one core
    assert limits["ram"].is_exact
    assert "ram=110B, 30 B more" in advice(problem)
    fits = replace(problem, cluster=problem.cluster.with_limit("ram", 110.0))
    assert Simulator(fits).violation(Placement.of((0, 0, 0))) is None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Cluster((Device("a", pool="ram"),)), "names pool 'ram', which the cluster does"),
        (lambda: Cluster((Device("a"),), pools={"a": 1.0}), "needs a name that no device"),
        (lambda: Cluster((Device("a"),), pools={"ram": -1.0}), "must be >= 0, got -1.0"),
    ],
)
def test_a_wrong_pool_is_refused(make: object, text: str) -> None:
    with pytest.raises(ClusterError, match=text):
        make()  # type: ignore[operator]


def test_wrong_names_of_pools_list_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="ram"):
        _chain().cluster.with_limit("rom", 1.0)
    with pytest.raises(FieldError, match="names 'gpu', which is no device"):
        Problem.from_costs(
            nx.path_graph(2, nx.DiGraph), np.ones((2, 2)), (0, 1), pools={"ram": (1.0, ["gpu"])}
        )


def test_a_cluster_file_keeps_pools(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    cluster = Cluster(
        (Device("a", pool="ram", memory_bytes=5.0), Device("b", pool="ram")),
        (Link("a", "b"),),
        pools={"ram": 8.0},
    )
    write_cluster(path, cluster)
    found = read_cluster(path)
    assert found.devices == cluster.devices
    assert found.pools == {"ram": 8.0}
    path.write_text(path.read_text().replace("ram: 8.0", "ram: 2KiB"))
    assert read_cluster(path).pools == {"ram": 2048.0}
    plain = replace(cluster, devices=(Device("a"), Device("b")), pools={})
    write_cluster(path, plain)
    assert "pool" not in path.read_text()  # files of earlier versions keep their hashes


def test_cores_share_the_machines_memory_and_a_lone_device_keeps_it() -> None:
    cores = [Device(f"cpu:{n}", memory_bytes=100.0, pool="ram") for n in range(2)]
    small = replace(cores[1], memory_bytes=40.0)
    devices, pools = _in_pools([cores[0], small], {"ram": 100.0}, {})
    assert pools == {"ram": 100.0}
    assert [device.memory_bytes for device in devices] == [math.inf, 40.0]
    (alone,), none = _in_pools(cores[:1], {"ram": 100.0}, {})
    assert (alone.pool, alone.memory_bytes, none) == (None, 100.0, {})
    given, known = _in_pools([replace(one, pool="mine") for one in cores], {}, {"mine": 7.0})
    assert [device.pool for device in given] == ["mine", "mine"]
    assert known == {"mine": 7.0}
