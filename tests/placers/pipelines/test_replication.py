"""Groups of alike devices: cases by hand, brute force over groups and placements, bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines import (
    best_contiguous,
    is_contiguous,
    max_load,
    pipeline_problem,
    random_pipeline,
)

from placewright.core.arrays import Csr, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad, Subgraph
from placewright.core.graph import BACKWARD, FORWARD, UPDATE
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices, grouped
from placewright.core.solution import Budget
from placewright.errors import ClusterError, InputError
from placewright.placers.baselines.simple import Single
from placewright.placers.exact.maxload_ip import MaxloadIp
from placewright.placers.pipelines.ideal_dp import IdealDp
from placewright.placers.pipelines.ideals import items
from placewright.placers.pipelines.ideals.program import fits_table, replicated
from placewright.session.search import find_plan
from placewright.simulation.bounds.lower import lower_bounds
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import brute_force, legal_placements
from placewright.testing.problems import random_problem, with_replicas


def value_of(problem: Problem, device_of: list[int]) -> float:
    return Simulator(problem).value(Placement.of(device_of))


def all_groups(problem: Problem) -> Iterator[list[list[int]]]:
    """Every way of grouping alike devices, up to exchanging them."""
    pools = alike_devices(problem)
    ways = []
    for pool in range(pools.n_groups):
        members = pools.members.row(pool).tolist()
        ways.append([_cut(members, sizes) for sizes in _partitions(len(members), len(members))])
    for chosen in itertools.product(*ways):
        yield [group for groups in chosen for group in groups]


def _partitions(total: int, largest: int) -> Iterator[list[int]]:
    if total == 0:
        yield []
    for first in range(min(total, largest), 0, -1):
        for rest in _partitions(total - first, first):
            yield [first, *rest]


def _cut(members: list[int], sizes: list[int]) -> list[list[int]]:
    ends = list(itertools.accumulate(sizes))
    return [members[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def test_partitions_of_six() -> None:
    assert len(list(_partitions(6, 6))) == 11


def training(
    seconds: list[tuple[float, float, float]],
    gradient_bytes: list[float],
    *,
    n_devices: int,
    bandwidth: float,
    tensor_bytes: float = 0.0,
    memory: float = math.inf,
    weights: float = 0.0,
) -> Problem:
    """A chain of layers, each with forward, backward and update (seconds) in one class."""
    builder = GraphBuilder()
    n = len(seconds)
    ahead: list[int] = []
    for layer in range(n):
        kept = [builder.add_weight(weights)]
        builder.add_op(f"f{layer}", "Op", inputs=ahead, colocation=layer, weights=kept)
        ahead = [builder.add_tensor(layer, tensor_bytes)]
    behind = ahead
    for layer in reversed(range(n)):
        op = builder.add_op(f"b{layer}", "Op", inputs=behind, phase=BACKWARD, colocation=layer)
        behind = [builder.add_tensor(op, tensor_bytes)] if layer else []
        gradient = builder.add_tensor(op, gradient_bytes[layer])
        builder.add_op(f"u{layer}", "Op", inputs=[gradient], phase=UPDATE, colocation=layer)
    graph = builder.build()
    names = [f"gpu:{i}" for i in range(n_devices)]
    links = [Link(a, b, bandwidth=bandwidth) for a, b in itertools.permutations(names, 2)]
    part = {"f": 0, "b": 1, "u": 2}
    rows = [[seconds[int(name[1:])][part[name[0]]]] * n_devices for name in graph.op_names]
    return Problem(
        graph,
        Cluster(tuple(Device(name, "gpu", memory_bytes=memory) for name in names), tuple(links)),
        CostTable(frozen_floats(rows)),
        Grouping.identity(graph.n_ops),
        objective="training",
        execution_model=MaxLoad(samples_in_flight=0),
    )


def test_the_slow_stage_is_replicated() -> None:
    """Chain 6-2-2 on three devices of 6 B, transfers 1, sizes 4, 3, 3: the ops after the first fit
    together, not with it. A device each carries 6 + 1. Two devices for the first op carry
    (6 + 1) / 2, the third 2 + 2 + 1 = 5; two for the last two leave 7 for the first."""
    problem = pipeline_problem(
        [[6] * 3, [2] * 3, [2] * 3], [(0, 1), (1, 2)], [1, 1, 0], sizes=[4, 3, 3], memory=6
    )
    assert best_contiguous(problem) == 7
    found = replicated(problem)
    assert found.device_of is not None
    assert value_of(found.problem, found.device_of.tolist()) == 5
    assert found.problem.cluster.device_names == ("acc:0+acc:1", "acc:2")
    assert found.device_of.tolist() == [0, 1, 1]
    assert found.problem.cluster.replicas.tolist() == [2, 1]
    assert found.message == "best over groups of alike devices and contiguous splits"


def test_copies_of_the_whole_model_where_it_fits() -> None:
    """12 s on four devices, with all in one group: 12 / 4, no transfer."""
    problem = pipeline_problem([[5] * 4, [7] * 4], [(0, 1)], [1, 0])
    found = replicated(problem)
    assert found.device_of is not None
    assert found.problem.cluster.device_names == ("acc:0+acc:1+acc:2+acc:3",)
    assert value_of(found.problem, found.device_of.tolist()) == 3


@pytest.mark.parametrize(("bandwidth", "value", "n_groups"), [(4.0, 5.0, 1), (1.0, 6.0, 2)])
def test_gradients_are_exchanged(bandwidth: float, value: float, n_groups: int) -> None:
    """One layer of 2 + 4 s with 8 B of gradients on two devices. A ring of two sends and receives
    2 (2 - 1) / 2 x 8 = 8 B each every second sample: at 4 B/s (6 + 4) / 2 = 5 s per sample, at
    1 B/s (6 + 16) / 2 = 11 s, so that one device alone, 6 s, is better."""
    problem = training([(2, 4, 0)], [8], n_devices=2, bandwidth=bandwidth)
    pair = grouped(problem, [[0, 1]])
    assert value_of(pair, [0, 0, 0]) == (6 + 16 / bandwidth) / 2
    found = replicated(problem)
    assert found.device_of is not None
    assert value_of(found.problem, found.device_of.tolist()) == value
    assert found.problem.n_devices == n_groups


def test_an_exchange_overlaps_where_transfers_do() -> None:
    """As above at 4 B/s: the larger of 6 / 2 and 4 / 2."""
    pair = grouped(training([(2, 4, 0)], [8], n_devices=2, bandwidth=4.0), [[0, 1]])
    device = replace(pair.cluster.devices[0], overlaps_transfers=True)
    overlapping = replace(pair, cluster=replace(pair.cluster, devices=(device,)))
    assert value_of(overlapping, [0, 0, 0]) == 3


def test_gradients_within_a_unit_are_exchanged() -> None:
    problem = training([(2, 4, 0)], [8], n_devices=2, bandwidth=4.0)
    whole = grouped(problem.coarsened(Grouping.from_labels([0, 0, 0])), [[0, 1]])
    assert value_of(whole, [0]) == 5


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n_fast=st.integers(2, 4), n_cpus=st.integers(0, 1))
def test_it_equals_brute_force_over_groups_and_contiguous_splits(
    seed: int, n_fast: int, n_cpus: int
) -> None:
    """The value told plainly: loads of a group are divided by its size."""
    problem = random_pipeline(np.random.default_rng(seed), 5, n_fast, n_cpus)
    best = math.inf
    for groups in all_groups(problem):
        candidate = grouped(problem, groups)
        for device_of in itertools.product(range(candidate.n_devices), repeat=5):
            value = max_load(candidate, list(device_of))
            if value < best and is_contiguous(candidate, list(device_of)):
                best = value
    found = replicated(problem)
    if found.device_of is None:
        assert math.isinf(best)
        return
    assert value_of(found.problem, found.device_of.tolist()) == pytest.approx(best)
    assert max_load(found.problem, found.device_of.tolist()) == pytest.approx(best)


def random_training_step(rng: np.random.Generator, n_devices: int, n_layers: int) -> Problem:
    weights = float(rng.integers(1, 4))
    return training(
        [tuple(rng.integers(1, 9, 3).astype(float)) for _ in range(n_layers)],  # type: ignore[misc]
        rng.integers(0, 12, n_layers).astype(float).tolist(),
        n_devices=n_devices,
        bandwidth=float(rng.choice([0.5, 2.0, 8.0])),
        tensor_bytes=float(rng.integers(0, 4)),
        memory=math.ceil(weights * n_layers * rng.uniform(0.4, 1.1)),
        weights=weights,
    )


@pytest.mark.parametrize("seed", range(20))
def test_it_equals_brute_force_when_training(seed: int) -> None:
    """Over groups and contiguous splits, gradients exchanged; bounds hold for every grouping."""
    rng = np.random.default_rng(seed)
    problem = random_training_step(rng, 2 + seed % 2, 3)
    candidates = [grouped(problem, groups) for groups in all_groups(problem)]
    best = min(best_contiguous(candidate) for candidate in candidates)
    found = replicated(problem)
    if found.device_of is None:
        assert math.isinf(best)
        return
    assert value_of(found.problem, found.device_of.tolist()) == pytest.approx(best)
    for candidate in candidates:
        check_bounds_and_exact_placers(candidate)


def check_bounds_and_exact_placers(problem: Problem) -> None:
    rows = np.array(list(legal_placements(problem)))
    least = float(Simulator(problem).values(rows).min())
    for bound in lower_bounds(problem):
        assert bound.value <= least * (1 + 1e-9), bound.method
    solution = MaxloadIp().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.lower_bound <= least * (1 + 1e-9)
    if solution.status == "optimal":
        assert solution.value == pytest.approx(least)
    contiguous = IdealDp().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert contiguous.lower_bound <= least * (1 + 1e-9)
    assert contiguous.value == pytest.approx(best_contiguous(problem))


@pytest.mark.parametrize("seed", range(30))
def test_bounds_of_groups_with_hosts_and_outputs(seed: int) -> None:
    """Inputs, outputs, memory, pins and streams; the group may also be the only fast way home."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n_devices=2 + seed % 2, objective="throughput")
    problem = with_replicas(problem, 2 + seed % 3)
    least = brute_force(problem)
    for bound in lower_bounds(problem):
        assert bound.value <= least * (1 + 1e-9), bound.method


def test_who_is_alike() -> None:
    """A pin, another cost, another memory, the host or a slower link set a device apart."""
    problem = pipeline_problem([[1] * 5, [2] * 5], [(0, 1)], [1, 0], n_cpus=1)
    assert alike_devices(problem).group_of.tolist() == [0, 0, 0, 0, 1]
    pinned = replace(problem, pins={0: 1})
    assert alike_devices(pinned).group_of.tolist() == [0, 1, 0, 0, 2]
    other = [replace(device, memory_bytes=9.0) for device in problem.cluster.devices[:1]]
    cluster = replace(problem.cluster, devices=(*other, *problem.cluster.devices[1:]))
    assert alike_devices(replace(problem, cluster=cluster)).group_of.tolist() == [0, 1, 1, 1, 2]
    slow = [
        replace(link, bandwidth=1.0) if link.source == "acc:3" else link
        for link in problem.cluster.links
    ]
    cluster = replace(problem.cluster, links=tuple(slow))
    assert alike_devices(replace(problem, cluster=cluster)).group_of.tolist() == [0, 0, 0, 1, 2]


def test_energy_of_ops_stays_with_their_devices() -> None:
    """Devices that take other energy are not alike, and a group takes that of one member."""
    problem = pipeline_problem([[1] * 3, [2] * 3], [(0, 1)], [1, 0])
    joules = frozen_floats([[5.0, 5.0, 7.0], [6.0, 6.0, 6.0]])
    problem = replace(problem, op_joules=joules)
    assert alike_devices(problem).group_of.tolist() == [0, 0, 1]
    known = grouped(problem, [[0, 1], [2]]).op_joules
    assert known is not None
    assert known.tolist() == [[5.0, 7.0], [6.0, 6.0]]


def test_cores_of_one_kind_are_alike_whichever_they_are() -> None:
    """Options say which core it is; the fingerprint says what its costs were measured on."""
    problem = pipeline_problem([[1] * 3], [], [0])
    cores = [
        replace(device, options={"core": str(at)}, fingerprint="a core", speed_scatter=0.01 * at)
        for at, device in enumerate(problem.cluster.devices)
    ]

    def pools(devices: list[Device]) -> list[int]:
        cluster = replace(problem.cluster, devices=tuple(devices))
        return alike_devices(replace(problem, cluster=cluster)).group_of.tolist()

    assert pools(cores) == [0, 0, 0]
    assert pools([*cores[:2], replace(cores[2], fingerprint="another")]) == [0, 0, 1]
    assert pools([replace(one, fingerprint="") for one in cores]) == [0, 1, 2]


def test_devices_that_share_a_channel_stand_alone() -> None:
    problem = pipeline_problem([[1] * 3], [], [0])
    links = tuple(
        replace(link, channel="bus") if "acc:0" in (link.source, link.destination) else link
        for link in problem.cluster.links
    )
    shared = replace(problem, cluster=replace(problem.cluster, links=links))
    assert alike_devices(shared).group_of.tolist() == [0, 1, 1]


def test_bytes_between_members_go_over_their_link_or_through_the_host() -> None:
    direct = training([(1, 1, 1)], [1], n_devices=3, bandwidth=8.0)
    assert grouped(direct, [[0, 2], [1]]).cluster.devices[0].replica_bandwidth == 8.0
    names = direct.cluster.device_names
    hops = tuple(Link(*ends, bandwidth=8.0) for n in names for ends in ((n, "host"), ("host", n)))
    through = replace(direct, cluster=replace(direct.cluster, links=hops))
    assert grouped(through, [[0, 1, 2]]).cluster.devices[0].replica_bandwidth == 4.0


def test_what_cannot_be_grouped_is_refused() -> None:
    problem = pipeline_problem([[1, 1, 2], [2, 2, 3]], [(0, 1)], [1, 0])
    with pytest.raises(InputError, match="'acc:0', 'acc:2' differ"):
        grouped(problem, [[0, 2], [1]])
    with pytest.raises(InputError, match="a group of devices is empty"):
        grouped(problem, [[0, 1], [2], []])
    with pytest.raises(InputError, match="every device must be in one group"):
        grouped(problem, [[0, 1]])
    with pytest.raises(InputError, match="no two devices are alike"):
        replicated(pipeline_problem([[1, 2]], [], [0]))
    with pytest.raises(InputError, match="minimises max-load, not 'subgraph'"):
        replicated(problem.under(Subgraph()))
    with pytest.raises(ClusterError, match=r"'acc:0\+acc:1' stands for 2 devices"):
        replicated(grouped(problem, [[0, 1], [2]]))
    unknown = pipeline_problem([[1] * 2] * 2, [(0, 1)], [1, 0], phases=[FORWARD, BACKWARD])
    with pytest.raises(InputError, match="does not say which tensors are gradients"):
        replicated(unknown)


def test_groups_are_formed_within_the_core_seconds() -> None:
    """What it takes to form them is no longer there for the placer."""
    budgets: list[Budget] = []

    class Ears(Single):
        def place(self, problem, evaluator, rng):  # type: ignore[no-untyped-def]
            budgets.append(evaluator.budget)
            return super().place(problem, evaluator, rng)

    problem = pipeline_problem([[8.0] * 3, [2.0] * 3], [(0, 1)], [0.0, 0.0])
    find_plan(problem, placer=Ears(), budget=Budget(core_seconds=60.0), replicate=True)
    assert 30.0 <= (budgets[0].core_seconds or 0.0) < 60.0


def test_too_little_memory_finds_none() -> None:
    problem = pipeline_problem([[1] * 2] * 3, [], [0] * 3, sizes=[3] * 3, memory=5)
    found = replicated(problem)
    assert found.device_of is None
    assert found.message == "no contiguous split fits, with replicas or without"


def held_once(limit: float) -> Problem:
    """A reads 100 and 50 bytes and feeds C, which reads the same 100 and 100; two equal cores."""
    builder = GraphBuilder()
    both = builder.add_weight(100.0)
    builder.add_op("A", "Op", weights=[both, builder.add_weight(50.0)])
    read = [builder.add_tensor(0, 1.0)]
    builder.add_op("C", "Op", inputs=read, weights=[both, builder.add_weight(100.0)])
    names = ("core:0", "core:1")
    cluster = Cluster(
        tuple(Device(name, memory_bytes=limit) for name in names),
        tuple(Link(*pair) for pair in itertools.permutations((*names, "host"), 2)),
        shares_weights=True,
    )
    problem = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(np.ones((2, 2)))))
    return replace(problem, objective="throughput", execution_model=MaxLoad(samples_in_flight=0))


def test_no_split_is_excluded_where_a_shared_weight_counts_once() -> None:
    """Cores of 160 bytes: A | C fits in 150 and 100. With replicas each core would hold 250, and
    the program counts the copies of groups without replicas, too: 150 and 200."""
    problem = held_once(160.0)
    assert value_of(problem, [0, 1]) == 1
    found = replicated(problem)
    assert found.device_of is None
    assert found.message == (
        "no contiguous split fits with replicas; without them one may: a shared weight counts once"
    )


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (200.0, "not proven best: without replicas a shared weight counts once"),
        (250.0, "best over groups of alike devices and contiguous splits"),
    ],
)
def test_a_split_is_proven_best_only_if_copies_of_shared_weights_bind_nowhere(
    limit: float, message: str
) -> None:
    found = replicated(held_once(limit))
    assert found.device_of is not None
    assert value_of(found.problem, found.device_of.tolist()) == 1
    assert found.message == message


def test_a_failure_of_one_linear_order_is_none_of_all_splits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more ideals than are listed only one order is split."""
    monkeypatch.setattr(items, "enumerate_ideals", lambda successors, limit: None)
    problem = pipeline_problem([[1] * 2] * 3, [], [0] * 3, sizes=[3] * 3, memory=5)
    found = replicated(problem)
    assert found.message == "no split of one linear order fits, with replicas or without"


def test_ideals_are_counted_within_the_seconds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen ops without an edge have 65,536 ideals; without time for them, no more than 10,000.

    They are listed if there is no limit.
    """
    limits, real = [], items.enumerate_ideals

    def listed(successors: Csr, limit: int) -> items.IdealLattice | None:
        limits.append(limit)
        return real(successors, limit)

    monkeypatch.setattr(items, "enumerate_ideals", listed)
    problem = pipeline_problem([[1.0] * 2] * 16, [], [0.0] * 16)
    clock = itertools.count()
    found = replicated(problem, lambda: -float(next(clock)))
    assert found.message == "the budget ended before a split was found"
    assert limits == [10_000]
    assert replicated(problem).device_of is not None
    assert limits == [10_000, 1_000_000]


def test_the_rows_of_a_state_count_in_the_size_of_a_table() -> None:
    """Twenty pools of one device have 2 ** 20 states, each of three rows of twenty."""
    counts = np.ones(20, dtype=np.int64)
    assert fits_table(counts, 30)
    assert not fits_table(counts, 90)
