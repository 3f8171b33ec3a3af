"""Hand-worked and published cases of the classical placers and the relaxation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from support.published_graphs import topcuoglu

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.list_scheduling.in_order import planned_in_order
from placewright.placers.list_scheduling.m_sct import favourite_children
from placewright.placers.list_scheduling.ranks import by_rank, mean_upward_ranks
from placewright.placers.registry import make_placer
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.bounds.lower import relaxation_bound
from placewright.simulation.evaluator import Evaluator
from placewright.suites.suite.runs import random_layered_problem
from placewright.testing.brute_force import brute_force
from placewright.testing.problems import impossible_problem, random_problem


def test_heft_published_example() -> None:
    """Topcuoglu et al. 2002: order n1 n3 n4 n2 n5 n6 n9 n7 n8 n10, rank(n1) = 108, makespan 80."""
    problem = topcuoglu()
    rank = mean_upward_ranks(problem)
    assert rank[0] == pytest.approx(108.0)
    assert by_rank(problem, rank).tolist() == [0, 2, 3, 1, 4, 5, 8, 6, 7, 9]
    assert planned_in_order(problem, by_rank(problem, rank)).end.max() == 80.0
    evaluator = Evaluator(problem, Budget(evaluations=10))
    solution = make_placer("heft").place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == 80.0


def fork_join(transfer: float) -> Problem:
    """A (2 s) forks to B (6 s) and C (6 s), which join in D (2 s); two equal devices."""
    builder = GraphBuilder()
    a = builder.add_op("A", "Op")
    ta = builder.add_tensor(a, 1.0)
    b = builder.add_op("B", "Op", inputs=[ta])
    c = builder.add_op("C", "Op", inputs=[ta])
    tb, tc = builder.add_tensor(b, 1.0), builder.add_tensor(c, 1.0)
    builder.add_op("D", "Op", inputs=[tb, tc])
    seconds = np.repeat([[2.0], [6.0], [6.0], [2.0]], 2, axis=1)
    links = tuple(Link(x, y, latency_seconds=transfer) for x, y in (("p", "q"), ("q", "p")))
    cluster = Cluster((Device("p"), Device("q")), links)
    return Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(seconds)))


@pytest.mark.parametrize("name", ["heft", "peft", "m-etf", "m-sct", "local-search", "auto"])
def test_fork_join_is_split(name: str) -> None:
    """One device: 2 + 6 + 6 + 2 = 16. Split: C and D elsewhere, 2 + 1 (A's tensor) + 6 + 2 = 11.

    B ends at 8 where A is, its tensor arrives at 9, when C ends too; D runs from 9 to 11.
    """
    problem = fork_join(1.0)
    evaluator = Evaluator(problem, Budget(evaluations=200))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == 11.0


@pytest.mark.parametrize("name", ["heft", "peft", "cpop", "m-etf", "m-sct"])
def test_an_op_waits_for_the_processor_of_another_mode(name: str) -> None:
    """Two ops of 4 s in f32, 5 s in f16 on the same card and 7 s on the CPU.

    The second begins at 4 on the card, in either mode, and ends at 8 or 9; on the CPU it ends at 7.
    """
    builder = GraphBuilder()
    for op in ("a", "b"):
        builder.add_op(op, "Op")
    card = [Device(mode, processors=("card",)) for mode in ("f32", "f16")]
    seconds = frozen_floats([[4.0, 5.0, 7.0]] * 2)
    problem = Problem.of_ops(
        builder.build(), Cluster((*card, Device("cpu")), (), "cpu"), CostTable(seconds)
    )
    evaluator = Evaluator(problem, Budget(evaluations=1))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == 7.0


def chain(seconds: list[float], held: float, memory: list[float]) -> Problem:
    """Four ops in a row that keep `held` bytes each, `seconds` on the devices cpu and gpu."""
    builder = GraphBuilder()
    tensor = builder.add_input(0.0)
    for op in range(4):
        builder.add_op(f"op{op}", "Op", inputs=[tensor], weights=[builder.add_weight(held)])
        tensor = builder.add_tensor(op, 0.0, is_output=op == 3)
    links = tuple(Link(x, y, latency_seconds=0.5) for x, y in (("cpu", "gpu"), ("gpu", "cpu")))
    devices = tuple(
        Device(name, name, memory_bytes=size)
        for name, size in zip(("cpu", "gpu"), memory, strict=True)
    )
    cluster = Cluster(devices, links, host="cpu")
    costs = CostTable(frozen_floats(np.tile(np.array(seconds), (4, 1))))
    return Problem.of_ops(builder.build(), cluster, costs)


LIST_SCHEDULERS = ["heft", "peft", "cpop", "m-topo", "m-etf", "m-sct"]


@pytest.mark.parametrize("name", LIST_SCHEDULERS)
def test_a_slow_device_is_not_used_because_it_is_free(name: str) -> None:
    """The input lies with the CPU (9 s per op), the GPU (1 s) gets it after 0.5 s: 4 + 2 x 0.5 s.

    The CPU could start every op before the GPU, yet finishes none of them first.
    """
    problem = chain([9.0, 1.0], 1.0, [100.0, 100.0])
    evaluator = Evaluator(problem, Budget(evaluations=20))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    assert solution.placement.device_of.tolist() == [1, 1, 1, 1]
    assert solution.value == 5.0


@pytest.mark.parametrize("name", LIST_SCHEDULERS)
def test_what_does_not_fit_one_device_is_spread(name: str) -> None:
    """Four ops of 4 B: the GPU holds two (10 B), so exactly two stay on the CPU, in whatever order.

    Two ops of 9 s and two of 1 s, and no cut costs less than 2 x 0.5 s: 21 s at best.
    """
    problem = chain([9.0, 1.0], 4.0, [10.0, 10.0])
    evaluator = Evaluator(problem, Budget(evaluations=20))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    assert np.bincount(solution.placement.device_of).tolist() == [2, 2]
    assert solution.value >= 20.5


@pytest.mark.parametrize("name", LIST_SCHEDULERS)
def test_live_tensors_count_too(name: str) -> None:
    """Resident bytes fit the GPU exactly; what is live beside them does not, so an op moves."""
    builder = GraphBuilder()
    tensor = builder.add_input(1.0)
    for op in range(3):
        builder.add_op(f"op{op}", "Op", inputs=[tensor], weights=[builder.add_weight(4.0)])
        tensor = builder.add_tensor(op, 1.0, is_output=op == 2)
    links = (Link("cpu", "gpu"), Link("gpu", "cpu"))
    cluster = Cluster((Device("cpu", "cpu"), Device("gpu", "gpu", memory_bytes=12.0)), links, "cpu")
    costs = CostTable(frozen_floats(np.tile([9.0, 1.0], (3, 1))))
    problem = Problem.of_ops(builder.build(), cluster, costs)
    evaluator = Evaluator(problem, Budget(evaluations=20))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    assert np.bincount(solution.placement.device_of).tolist() == [1, 2]
    assert solution.value == 11.0


def test_m_sct_waits_for_the_favourite_child_but_not_longer_than_it_is_worth() -> None:
    """A (2 s) has a tensor of 3 s for its child B; X (1 s, free from 1.5 s on) is no favourite.

    A ends at 2 on device p; p is awake until 5. B needs nothing else and starts at 2 right after A;
    X goes to q. Then both devices are used and the makespan is A + B = 6.
    """
    builder = GraphBuilder()
    a = builder.add_op("A", "Op")
    tensor = builder.add_tensor(a, 3.0)
    builder.add_op("B", "Op", inputs=[tensor])
    builder.add_op("X", "Op")
    links = tuple(Link(x, y, bandwidth=1.0) for x, y in (("p", "q"), ("q", "p")))
    cluster = Cluster((Device("p"), Device("q")), links)
    costs = CostTable(frozen_floats([[2.0, 2.0], [4.0, 4.0], [1.0, 1.0]]))
    problem = Problem.of_ops(builder.build(), cluster, costs)
    assert favourite_children(problem) == {0: 1}
    evaluator = Evaluator(problem, Budget(evaluations=20))
    solution = make_placer("m-sct").place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    assert solution.placement.device_of.tolist() == [0, 0, 1]
    assert solution.value == 6.0


def test_m_sct_has_the_same_favourites_in_any_unit_of_time() -> None:
    """A solver with a tolerance of 1e-7 s mistakes paths of ops that take less than that."""
    problem = random_layered_problem(np.random.default_rng(0), 60, 3)
    found = []
    for unit in (1e-4, 1.0, 1e4):
        links = tuple(
            replace(
                link, latency_seconds=unit * link.latency_seconds, bandwidth=link.bandwidth / unit
            )
            for link in problem.cluster.links
        )
        costs = CostTable(frozen_floats(unit * problem.costs.seconds))
        cluster = replace(problem.cluster, links=links)
        found.append(favourite_children(replace(problem, costs=costs, cluster=cluster)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("occupies", ["receiver", "sender", "both"])
@pytest.mark.parametrize("name", ["heft", "peft", "cpop", "m-etf", "m-sct"])
def test_copies_that_occupy_a_device_are_not_free(name: str, occupies: str) -> None:
    """With copies of 20 s the split takes 2 + 20 + 6 + 2 or more, and one device 16."""
    problem = fork_join(20.0)
    links = tuple(replace(link, occupies=occupies) for link in problem.cluster.links)
    problem = replace(problem, cluster=replace(problem.cluster, links=links))
    evaluator = Evaluator(problem, Budget(evaluations=1))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == 16.0


@pytest.mark.parametrize("name", LIST_SCHEDULERS)
def test_a_pool_of_one_device_with_a_tenth_of_its_bytes(name: str) -> None:
    """Each byte that a device is over its limit is a tenth of a byte in its pool, of 4 bytes.

    Eight ops keep 10 bytes each and pass 10: beside two tensors the fast device holds two ops.
    """
    builder = GraphBuilder()
    inputs: list[int] = []
    for op in range(8):
        builder.add_op(f"op{op}", "Op", inputs=inputs, weights=[builder.add_weight(10.0)])
        inputs = [builder.add_tensor(op, 10.0)]
    fast = Device("fast", "gpu", pool={"vram": 0.9, "ram": 0.1})
    links = (Link("fast", "slow"), Link("slow", "fast"))
    pools = {"vram": math.inf, "ram": 4.0}
    cluster = Cluster((fast, Device("slow", "gpu")), links, pools=pools)
    costs = CostTable(frozen_floats([[1.0, 3.0]] * 8))
    problem = Problem.of_ops(builder.build(), cluster, costs)
    evaluator = Evaluator(problem, Budget(evaluations=20))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None


@pytest.mark.parametrize("name", ["local-search", "auto"])
def test_dear_links_are_not_used(name: str) -> None:
    """With transfers of 7 s the split takes 2 + 7 + 6 + 2 = 17 > 16: do not split."""
    problem = fork_join(7.0)
    evaluator = Evaluator(problem, Budget(evaluations=200))
    solution = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == 16.0


def test_infeasible_names_device_and_bytes() -> None:
    """The large op keeps 100 B and reads 1 B; device a has 60 B: 41 B short."""
    proof = prove_infeasible(impossible_problem())
    assert proof is not None
    assert "'large'" in proof
    assert "'a'" in proof
    assert "41 B short" in proof


def test_relaxation_is_below_brute_force() -> None:
    """On 30 random problems of both execution models the bound is never above the best value."""
    rng = np.random.default_rng(5)
    positive = 0
    for index in range(30):
        objective = "latency" if index % 2 else "throughput"
        problem = random_problem(rng, n_ops=4, n_devices=2 + index % 2, objective=objective)
        bound = relaxation_bound(problem)
        assert bound <= brute_force(problem) * (1 + 1e-9)
        positive += bound > 0
    assert positive > 25


@pytest.mark.parametrize("name", ["auto", "local-search"])
def test_a_measured_value_below_the_bound_proves_nothing(name: str) -> None:
    """Bounds are on the cost table; a measurement may undercut them."""
    problem = random_problem(np.random.default_rng(3))
    evaluator = Evaluator(problem, Budget(evaluations=20), measure=lambda placement: 1e-9)
    found = make_placer(name).place(problem, evaluator, np.random.default_rng(0))
    assert found.status == "feasible"
