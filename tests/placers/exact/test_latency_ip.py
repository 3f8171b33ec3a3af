"""Latency of atomic subgraphs, its integer program, and the greedy filling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.pipelines import pipeline_problem, random_pipeline

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Subgraph, SubgraphIP
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.exact import latency_ip
from placewright.placers.exact.cp_sat import CpSat
from placewright.placers.exact.latency_ip import LatencyIp
from placewright.placers.exact.subgraphs.annealing import moves_of
from placewright.placers.exact.subgraphs.bound import latency_in_turn
from placewright.placers.pipelines.greedy import Greedy, filled
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.published.subgraph import latency, latency_arrays, pieces
from placewright.testing.problems import packing_problem, under_subgraphs

QUICK = LatencyIp(annealing_steps=500, annealing_rounds=2, max_nodes=5000)


def told_plainly(problem: Problem, device_of: list[int]) -> float:
    """Latency by repeated relaxation over pieces: no queue, no sharing of code."""
    graph, n_ops = problem.graph, problem.n_units
    assert problem.transfer_seconds is not None
    atomic = [device.pays_transfers for device in problem.cluster.devices]
    before = [graph.predecessors.row(op).tolist() for op in range(n_ops)]
    block: list[tuple[int, ...]] = []
    for op in range(n_ops):
        if not atomic[device_of[op]]:
            block.append((op,))
            continue
        depth: dict[int, int] = {}
        for node in graph.topological_order.tolist():  # longest alternation up to each op
            inside = device_of[node] == device_of[op]
            steps = [depth[u] + (inside and device_of[u] != device_of[op]) for u in before[node]]
            depth[node] = max([*steps, int(inside)])
        block.append((-1 - device_of[op], depth[op]))
    work = dict.fromkeys(block, 0.0)
    for op in range(n_ops):
        work[block[op]] += float(problem.costs.seconds[op, device_of[op]])
    for tensor in range(graph.n_tensors):
        producer = int(graph.tensor_producers[tensor])
        readers = {block[op] for op in graph.tensor_consumers.row(tensor).tolist()}
        readers.discard(block[producer])
        for one in sorted(readers) + ([block[producer]] if readers else []):
            if one[0] < 0:
                work[one] += float(problem.transfer_seconds[tensor])
    finish = {one: work[one] for one in work}
    edges = {(block[u], block[v]) for v in range(n_ops) for u in before[v] if block[u] != block[v]}
    if isinstance(problem.execution_model, SubgraphIP):
        edges |= {(a, b) for a in work for b in work if a[0] == b[0] < 0 and a[1] + 1 == b[1]}
    for _ in range(len(work) + 1):
        old = dict(finish)
        for one, other in sorted(edges):
            finish[other] = max(finish[other], finish[one] + work[other])
        if finish == old:
            return max(finish.values())
    return math.inf  # pieces need each other


def test_one_piece_takes_its_transfers_and_its_compute_in_a_row() -> None:
    """CPU op 0 (10 s) -> accelerator 1, 2 (2 s each) -> CPU op 3 (5 s); transfers 1, 4, 3.

    The piece enters with 1, computes 4, leaves with 3: 10 + 8 + 5 = 23."""
    problem = pipeline_problem(
        [[1, 10], [2, 9], [2, 9], [1, 5]],
        [(0, 1), (1, 2), (2, 3)],
        [1, 4, 3, 0],
        n_cpus=1,
        objective="latency",
        execution_model=Subgraph(),
    )
    arrays = latency_arrays(problem)
    assert latency(arrays, np.array([1, 0, 0, 1])) == 23
    piece = np.empty(4, dtype=np.int64)
    assert pieces(arrays, np.array([0, 1, 0, 0]), piece) == 2
    assert piece.tolist() == [0, -1, 1, 1]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("model", [Subgraph(), SubgraphIP(per_accelerator=7)])
def test_latency_equals_a_plain_account(seed: int, model: str) -> None:
    rng = np.random.default_rng(seed)
    problem = random_pipeline(rng, 7, 2, 1, objective="latency", execution_model=model)
    arrays = latency_arrays(problem)
    for _ in range(30):
        device_of = rng.integers(0, 3, 7)
        expected = told_plainly(problem, device_of.tolist())
        assert latency(arrays, device_of) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("q", [1, 2])
def test_it_equals_brute_force(seed: int, q: int) -> None:
    """All placements of five ops on two accelerators and a CPU."""
    problem = random_pipeline(
        np.random.default_rng(seed),
        5,
        2,
        1,
        objective="latency",
        execution_model=SubgraphIP(per_accelerator=q),
    )
    evaluator = Evaluator(problem)
    best = min(
        evaluator.simulator.value(placement_of(device_of))
        for device_of in itertools.product(range(3), repeat=5)
    )
    solution = QUICK.place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == pytest.approx(best)
    assert solution.lower_bound <= best + 1e-9


def placement_of(device_of: tuple[int, ...]):  # type: ignore[no-untyped-def]
    from placewright.core.placement import Placement

    return Placement.of(device_of)


@pytest.mark.parametrize("seed", range(5))
def test_search_alone_is_legal_and_has_a_valid_bound(seed: int) -> None:
    problem = random_pipeline(
        np.random.default_rng(seed), 6, 2, 1, objective="latency", execution_model=Subgraph()
    )
    evaluator = Evaluator(problem, Budget(evaluations=20))
    solution = QUICK.place(problem, evaluator, np.random.default_rng(0))
    best = min(
        evaluator.simulator.value(placement_of(device_of))
        for device_of in itertools.product(range(3), repeat=6)
    )
    assert solution.lower_bound <= best + 1e-9
    assert solution.value >= best - 1e-9


def test_greedy_fills_accelerators_in_order() -> None:
    """Sizes 2, 2, 3, 1 and 4 bytes each: {0, 1} | {2, 3} on two accelerators, 4 on the CPU."""
    problem = pipeline_problem(
        [[1, 1, 5]] * 5,
        [(op, op + 1) for op in range(4)],
        [1] * 5,
        n_cpus=1,
        sizes=[2, 2, 3, 1, 4],
        memory=4,
        objective="latency",
        execution_model=Subgraph(),
    )
    assert filled(problem).tolist() == [0, 0, 1, 1, 2]  # type: ignore[union-attr]
    solution = Greedy().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value == (1 + 1 + 1) + (1 + 1 + 1 + 1) + 5


def test_greedy_sends_what_no_accelerator_holds_to_the_cpu() -> None:
    problem = pipeline_problem([[1, 5], [1, 5]], [(0, 1)], [0, 0], n_cpus=1, sizes=[9, 1], memory=4)
    assert filled(problem).tolist() == [1, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [2.0, 0.0])
def test_a_block_too_large_for_accelerators_ends_the_one_that_is_filled(size: float) -> None:
    """As in the published program: the next block that fits opens another."""
    problem = pipeline_problem(
        [[1, 1, 5]] * 3,
        [(0, 1), (1, 2)],
        [0] * 3,
        n_cpus=1,
        sizes=[size, 100, size],
        memory=10,
    )
    assert filled(problem).tolist() == [0, 2, 1]  # type: ignore[union-attr]


def test_greedy_fills_less_if_live_tensors_exceed_the_memory() -> None:
    """An output of 5 bytes joins weights of 8 on the accelerator of 10."""
    builder = GraphBuilder()
    op = builder.add_op("op", "Op", weights=[builder.add_weight(8.0)])
    builder.add_tensor(op, 5.0, is_output=True)
    devices = (Device("acc", "accelerator", memory_bytes=10.0), Device("cpu"))
    links = (Link("acc", "cpu"), Link("cpu", "acc"))
    cluster = Cluster(devices, links, host="cpu")
    problem = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats([[1.0, 5.0]])))
    assert filled(problem).tolist() == [0]  # type: ignore[union-attr]
    solution = Greedy().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert (solution.value, solution.evaluations) == (5.0, 2)


def test_settings_and_problems_that_it_refuses() -> None:
    with pytest.raises(InputError, match="annealing_steps must be >= 1, got 0"):
        LatencyIp(annealing_steps=0)
    problem = pipeline_problem([[1, 2]], [], [0], n_cpus=1)
    assert "subgraph" in str(LatencyIp().why_not(problem))


def test_a_program_without_a_solution_is_unknown() -> None:
    """Three ops of 3 bytes, two accelerators of 5 bytes: the solver's word is no short proof."""
    problem = under_subgraphs(packing_problem(), SubgraphIP(per_accelerator=2))
    devices = tuple(replace(device, pays_transfers=True) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.status == "unknown"
    assert "no placement that keeps all constraints exists" in solution.message


def test_a_cpu_whose_memory_the_program_leaves_out() -> None:
    """With one of the two devices a CPU the program puts all 9 bytes on its 5: 4 bytes short."""
    problem = under_subgraphs(packing_problem(), SubgraphIP(per_accelerator=2))
    solution = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.status == "unknown"
    assert "'b' needs 9 B and has 5 B: 4 B short" in solution.message


def test_annealing_ends_where_it_finds_what_takes_no_time() -> None:
    """None of the starts does: the next round would have had no scale for its heat."""
    seconds = [[3.0, 0.0, 3.0], [0.0, 3.0, 0.0], [3.0, 0.0, 2.0]]
    problem = pipeline_problem(seconds, [], [0.0] * 3).under(Subgraph())
    found = QUICK.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert (found.value, found.status) == (0.0, "optimal")


@pytest.mark.parametrize("placer", [QUICK, CpSat()], ids=lambda placer: placer.name)
@pytest.mark.parametrize("model", [Subgraph(), SubgraphIP()], ids=lambda model: model.name)
def test_an_accelerator_without_memory_takes_nothing_with_weights(
    placer: LatencyIp | CpSat, model: Subgraph | SubgraphIP
) -> None:
    problem = random_pipeline(
        np.random.default_rng(0), 6, 2, 1, objective="latency", execution_model=model
    )
    first, *others = problem.cluster.devices
    devices = (replace(first, memory_bytes=0.0), *others)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    found = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
    simulator = Simulator(problem)
    every = itertools.product(range(3), repeat=6)
    best = min(simulator.value(placement_of(device_of)) for device_of in every)
    assert best <= found.value < math.inf
    assert found.lower_bound <= best * (1.0 + 1e-9)


def test_every_placement_takes_at_most_all_in_turn() -> None:
    """A tensor enters a piece each time that the chain comes back to the accelerator."""
    n, far = 12, math.inf
    seconds = [[far, 0.01]] + [[0.01, far] if op % 2 else [far, 0.01] for op in range(1, n)]
    edges = [(op, op + 1) for op in range(1, n - 1)] + [(0, op) for op in range(1, n, 2)]
    problem = pipeline_problem(
        seconds, edges, [1.0] + [0.0] * (n - 1), n_cpus=1,
        objective="latency", execution_model=SubgraphIP(6),
    )  # fmt: skip
    device_of = [1 - op % 2 for op in range(n)]
    value = Simulator(problem).value(Placement.of(device_of))
    assert value == pytest.approx(6.12)
    assert value <= latency_in_turn(latency_arrays(problem))


@pytest.mark.parametrize("model", [Subgraph(), SubgraphIP(2)])
def test_bounds_hold_if_another_search_has_found_the_incumbent(
    model: Subgraph | SubgraphIP,
) -> None:
    """A CPU that takes a million seconds must not make milliseconds vanish in tolerances."""
    rng = np.random.default_rng(3)
    n = 7
    fast = rng.integers(1, 9, n) * 1e-3
    edges = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.4]
    problem = pipeline_problem(
        [[value, value * 2, 1e6] for value in fast.tolist()], edges, [1e-3] * n, n_cpus=1,
        sizes=[1.0] * n, memory=4.0, objective="latency", execution_model=model,
    )  # fmt: skip
    simulator = Simulator(problem)
    values = {
        chosen: simulator.value(Placement.of(chosen))
        for chosen in itertools.product(range(2), repeat=n)
    }
    start, best = min(values, key=values.__getitem__), min(values.values())
    assert math.isfinite(best)
    evaluator = Evaluator(problem, Budget(evaluations=400))
    evaluator.evaluate(list(start))
    solution = QUICK.place(problem, evaluator, np.random.default_rng(0))
    assert solution.lower_bound <= best * (1 + 1e-9)
    assert solution.value == pytest.approx(best)


def test_of_equal_cpus_those_with_a_limit_are_all_chosen_from() -> None:
    """Devices 0 to 2 are accelerators and 3 to 5 equal CPUs."""
    problem = pipeline_problem(
        [[1.0] * 3 + [2.0] * 3] * 2, [(0, 1)], [1.0] * 2, n_cpus=3, sizes=[1.0] * 2
    ).under(Subgraph())
    problem = replace(problem, objective="latency")
    assert moves_of(problem, latency_arrays(problem)).choices.tolist() == [0, 1, 2, 3]
    devices = list(problem.cluster.devices)
    devices[4] = replace(devices[4], memory_bytes=1.0)
    limited = replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))
    assert moves_of(limited, latency_arrays(limited)).choices.tolist() == [0, 1, 2, 3, 4]
    devices[4] = replace(devices[4], memory_bytes=math.inf, pool="ram")
    devices[5] = replace(devices[5], pool="ram")
    cluster = replace(problem.cluster, devices=tuple(devices), pools={"ram": 2.0})
    pooled = replace(problem, cluster=cluster)
    assert moves_of(pooled, latency_arrays(pooled)).choices.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_round_of_annealing_of_a_large_graph_has_fewer_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most 10,000 steps per second of a thousand units, so a fifth of it for five thousand."""
    asked: list[int] = []

    def counted(*args: object) -> float:
        asked.append(int(args[6]))  # type: ignore[call-overload]
        return float(args[4])  # type: ignore[arg-type]

    monkeypatch.setattr(latency_ip, "anneal", counted)
    problem = pipeline_problem(
        [[1.0, 1.0, 2.0]] * 5000,
        [(op, op + 1) for op in range(4999)],
        [1.0] * 5000,
        n_cpus=1,
        sizes=[1.0] * 5000,
        memory=2000.0,
        objective="latency",
        execution_model=Subgraph(),
    )
    evaluator = Evaluator(problem, Budget(seconds=100.0))
    placer = LatencyIp(annealing_share=1.0, annealing_steps=10**9, max_columns=1)
    placer.place(problem, evaluator, np.random.default_rng(0))
    assert 0 < max(asked) <= 100 * 2000 + 10


def test_the_first_split_ends_within_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, bool]] = []

    def spent(*args: object, is_spent: Callable[[], bool]) -> None:
        told.append((evaluator.remaining_seconds, is_spent()))

    monkeypatch.setattr(latency_ip, "solved_in_order", spent)
    problem = random_pipeline(
        np.random.default_rng(3), 6, 2, 1, objective="latency", execution_model=Subgraph()
    )
    evaluator = Evaluator(problem, Budget(seconds=1000.0))
    QUICK.place(problem, evaluator, np.random.default_rng(0))
    assert len(told) == 1
    assert told[0][0] <= 200.0
    assert not told[0][1]
