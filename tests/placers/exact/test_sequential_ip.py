"""Execution model `sequential` and the program that counts alike items.

The independent side is `testing.sequential_truth`, which shares no code with the package.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from support.sequential_problems import drawn
from testing.sequential_truth import plain_sum

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, Sequential
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import InputError
from placewright.placers.exact import sequential_ip
from placewright.placers.exact.counted import symmetry_of
from placewright.placers.exact.integer_program import solve
from placewright.placers.exact.sequential_ip import (
    CountedProgram,
    SequentialIp,
    counted_program,
)
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator


def solved(problem: Problem, name: str = "sequential-ip", **budget: float) -> Solution:
    evaluator = Evaluator(problem, Budget(**(budget or {"evaluations": 40})))
    return make_placer(name).place(problem, evaluator, np.random.default_rng(0))


def plain_best(problem: Problem) -> float:
    every = itertools.product(range(problem.n_devices), repeat=problem.graph.n_ops)
    return min(plain_sum(problem, chosen) for chosen in every)


@pytest.mark.parametrize("seed", range(40))
def test_values_and_the_best_one_are_those_of_plain_sums(seed: int) -> None:
    problem = drawn(seed)
    simulator = Simulator(problem)
    for chosen in itertools.islice(itertools.product(range(problem.n_devices), repeat=5), 32):
        value = simulator.value(Placement.of(chosen))
        assert value == pytest.approx(plain_sum(problem, chosen))
    best, found = plain_best(problem), solved(problem)
    assert found.value == pytest.approx(best)
    assert found.lower_bound <= best * (1 + 1e-9)
    assert found.placement is None or found.status == "optimal"


def layered(
    layers: int, experts: int, shares: list[float], *, latency: float = 0.001, seed: int = 0
) -> Problem:
    """Layers of attention and experts, alike, on devices of different speed and memory.

    Args:
        layers, experts: in all, and of each layer.
        shares: bytes of each device, as parts of what the model keeps.
        latency: of each link, seconds.
        seed: of the speeds.
    """
    speed = np.random.default_rng(seed).uniform(1.0, 10.0, len(shares))
    builder, rows = GraphBuilder(), []
    state = [builder.add_input(16.0)]
    for layer in range(layers):
        attention = builder.add_op(
            f"attention{layer}", "A", inputs=state, weights=[builder.add_weight(50.0)]
        )
        rows.append(20.0 / speed)
        hidden, state = builder.add_tensor(attention, 4096.0), []
        for number in range(experts):
            name, weight = f"expert{layer}.{number}", builder.add_weight(10.0)
            expert = builder.add_op(name, "E", inputs=[hidden], weights=[weight])
            rows.append(1.0 / speed)
            state.append(builder.add_tensor(expert, 64.0))
    head = builder.add_op("head", "H", inputs=state, weights=[builder.add_weight(300.0)])
    rows.append(50.0 / speed)
    builder.add_tensor(head, 100.0, is_output=True)
    graph = builder.build()
    total = float(graph.weight_bytes.sum())
    names = [f"d{at}" for at in range(len(shares))]
    ends = [*names, "host"]
    links = tuple(Link(x, y, latency, 1e6) for x in ends for y in ends if x != y)
    devices = tuple(
        Device(name, memory_bytes=total * share) for name, share in zip(names, shares, strict=True)
    )
    costs = CostTable(frozen_floats(np.array(rows)))
    units = Grouping.identity(graph.n_ops)
    return Problem(graph, Cluster(devices, links), costs, units, execution_model=Sequential())


@pytest.mark.parametrize("seed", range(12))
def test_counted_items_are_as_good_as_listed_ones(seed: int) -> None:
    """Three layers with one expert, or two with two, so that items are alike; dear messages."""
    rng = np.random.default_rng(seed)
    layers, experts = ((3, 1), (2, 2))[seed % 2]
    shares = (rng.dirichlet(np.ones(3)) * 1.5).tolist()
    problem = layered(layers, experts, shares, latency=float(rng.uniform(0, 3)), seed=seed)
    best, found = plain_best(problem), solved(problem, seconds=20.0)
    assert found.lower_bound <= best * (1 + 1e-9)
    if math.isfinite(best):
        assert best <= found.value * (1 + 1e-9)
        assert found.value <= 1.01 * best
    else:
        assert found.placement is None


def test_a_hundred_layers_of_256_experts_on_six_devices() -> None:
    """Each of 25,701 ops is a unit. The proof is counted, so that it is nearly the value."""
    shares = [0.3, 0.25, 0.2, 0.15, 0.1, 0.1]
    found = solved(layered(100, 256, shares), seconds=60.0)
    assert found.placement is not None
    assert found.gap <= 0.01


def test_by_hand() -> None:
    """Two layers; the fast device keeps 60 bytes, that is one attention and one expert.

    Attention takes 20 / s and an expert 1 / s on a device of speed s; all on d0 (speed 1) would
    take 20 + 1 + 20 + 1 + 50 = 92 seconds there and 0 elsewhere. The head keeps 300 bytes.
    """
    problem = layered(2, 1, [1.0, 60.0 / 420.0], latency=0.0)
    seconds = problem.costs.seconds.copy()
    seconds[:, 0] = [20.01, 1, 20, 1, 50]  # to move the first layer gains most
    seconds[:, 1] = [2, 0.1, 2, 0.1, 5]
    problem = replace(problem, costs=CostTable(frozen_floats(seconds)))
    found = solved(problem)
    # attention0 and expert0 on d1: 2 + 0.1 + 20 + 1 + 50, the input of 16 bytes to d1, 64 bytes
    # from d1 to d0, 100 bytes of output to the host, at a million bytes per second
    assert found.value == pytest.approx(73.1 + 16e-6 + 64e-6 + 100e-6)
    assert found.placement is not None
    assert found.placement.device_of.tolist() == [1, 1, 0, 0, 0]
    assert found.status == "optimal"
    sums = Simulator(problem).explain(found.placement).sums
    assert sums is not None  # what arrives at d0, and what leaves it, is d0's
    assert sums.tolist() == pytest.approx([71.0 + 64e-6 + 100e-6, 2.1 + 16e-6])


def test_auto_asks_it_and_it_refuses_other_models() -> None:
    problem = layered(94, 1, [0.3, 0.4, 0.5])
    found = solved(problem, "auto", seconds=10.0)
    assert found.gap <= 1e-4
    assert found.bound_method == "counted integer program"
    reason = SequentialIp().why_not(replace(problem, execution_model=EVENT))
    assert reason is not None
    assert "use execution model sequential" in reason
    with pytest.raises(InputError, match="max_nodes must be >= 1, got 0"):
        SequentialIp(max_nodes=0)


def test_a_chain_of_alike_layers_pays_for_its_way_there_and_back() -> None:
    graph = nx.DiGraph()
    for layer in range(20):
        first = {"inputs": {"token": 1.0}} if layer == 0 else {}
        graph.add_node(f"layer{layer}", weight_bytes=10.0, **first)
        if layer:
            graph.add_edge(f"layer{layer - 1}", f"layer{layer}", bytes=1.0)
    graph.add_node("head", output_bytes=1.0)
    graph.add_edge("layer19", "head", bytes=1.0)
    seconds = np.array([[1.0, 2.0]] * 20 + [[0.0, np.inf]])
    problem = Problem.from_costs(
        graph, seconds, (3.0, 1e30),
        memory=[125.0, np.inf], devices=["near", "far"], host="near",
        execution_model=Sequential(),
    )  # fmt: skip
    found = solved(problem)
    assert found.value == pytest.approx(12 * 1.0 + 8 * 2.0 + 2 * 3.0)
    assert found.status == "optimal"


def test_values_below_the_solvers_tolerances_are_not_proven_by_them() -> None:
    """On a both ops take no time and one fits; on b they take 0.3 and 0.1 microseconds."""
    builder = GraphBuilder()
    for name in "xy":
        builder.add_op(name, "Op", weights=[builder.add_weight(1.0)])
    problem = Problem(
        builder.build(),
        Cluster((Device("a", memory_bytes=1.0), Device("b")), (Link("a", "b"), Link("b", "a"))),
        CostTable(frozen_floats([[0.0, 3e-7], [0.0, 1e-7]])),
        Grouping.identity(2),
        execution_model=Sequential(),
    )
    found = solved(problem)
    assert found.lower_bound <= 1e-7 * (1 + 1e-9)
    assert (found.value, found.status) == (1e-7, "optimal")


def program_of(problem: Problem) -> CountedProgram:
    return counted_program(problem, symmetry_of(problem), 1.0)


def nearly_listed(n_ops: int) -> Problem:
    """A chain of unlike ops on eight devices, with two alike ones at its end."""
    builder = GraphBuilder()
    last = [builder.add_input(8.0)]
    for number in range(n_ops):
        op = builder.add_op(f"op{number}", "Op", inputs=last)
        last = [builder.add_tensor(op, 10.0 + number)]
    for name in ("left", "right"):
        builder.add_op(name, "Op", inputs=last)
    seconds = np.append(np.arange(1.0, n_ops + 1), [0.5, 0.5])
    names = [f"d{at}" for at in range(8)]
    ends = [*names, "host"]
    links = tuple(Link(x, y, 1.0, 10.0) for x in ends for y in ends if x != y)
    return Problem(
        builder.build(),
        Cluster(tuple(Device(name) for name in names), links),
        CostTable(frozen_floats(np.repeat(seconds[:, None], 8, axis=1))),
        Grouping.identity(n_ops + 2),
        execution_model=Sequential(),
    )


def test_rows_of_divisions_do_not_repeat_the_columns_of_every_type() -> None:
    """There are 127 divisions and over a thousand rows of them; a type has 64 pairs of devices."""
    sizes = [len(program_of(nearly_listed(n)).program.rows.columns) for n in (10, 20)]
    assert sizes[1] - sizes[0] < 10 * 2000


def test_summed_columns_leave_the_optimum_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [
        layered(2 + seed % 2, 1 + seed % 3, [0.5, 0.4, 0.3], seed=seed) for seed in range(6)
    ]
    summed = [solve(program_of(problem).program).lower_bound for problem in problems]
    monkeypatch.setattr(sequential_ip._Builder, "_together", lambda self, columns: columns)
    listed = [solve(program_of(problem).program).lower_bound for problem in problems]
    assert summed == pytest.approx(listed, rel=1e-5)
