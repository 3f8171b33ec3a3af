"""The relaxation behind the bound of `latency-ip`: by hand, and never above brute force."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from support.pipelines import pipeline_problem, random_pipeline

from placewright.core.execution_models import ExecutionModel, Subgraph, SubgraphIP
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.exact.cp_sat import CpSat
from placewright.placers.exact.integer_program import solve
from placewright.placers.exact.latency_ip import LatencyIp
from placewright.placers.exact.subgraphs import bound
from placewright.placers.exact.subgraphs.bound import Window, Windows, bound_program, program_size
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.published.subgraph import latency_arrays

SUBGRAPH = Subgraph()


def relaxed(problem: Problem) -> float:
    """The proven value of the relaxation."""
    program = bound_program(problem, latency_arrays(problem))
    return solve(program.program, max_nodes=100_000).lower_bound


def best_of_all(problem: Problem) -> float:
    """Least latency of all placements."""
    simulator = Simulator(problem)
    return min(
        simulator.value(Placement.of(device_of))
        for device_of in itertools.product(range(problem.n_devices), repeat=problem.n_units)
    )


def chain_of_three(transfers: list[float], execution_model: ExecutionModel = SUBGRAPH) -> Problem:
    """Ops of 2 s (30 s on the CPU) and 3 bytes each; two accelerators hold 6 bytes."""
    return pipeline_problem(
        [[2.0, 2.0, 30.0]] * 3,
        [(0, 1), (1, 2)],
        transfers,
        n_cpus=1,
        sizes=[3.0] * 3,
        memory=6.0,
        objective="latency",
        execution_model=execution_model,
    )


def test_a_path_must_leave_an_accelerator() -> None:
    """One op of three goes elsewhere. Cutting the 4 s tensor costs 4 to send and 4 to receive:
    2 + 2 + 4 + 4 + 2 = 14 (the 5 s tensor 16; the last op on the CPU 2 + 2 + 4 + 30). The longest
    path of least times is 6."""
    assert relaxed(chain_of_three([5, 4, 0])) == pytest.approx(14, rel=1e-5)
    assert best_of_all(chain_of_three([5, 4, 0])) == 14


def test_a_cpu_pays_for_what_accelerators_send_only() -> None:
    """Tensors of 20 s: on two accelerators 2 + 20 + 20 + 2 + 2 = 46; with the first op on the CPU
    30 + 20 + 2 + 2 = 54, since the CPU pays nothing for what it sends."""
    assert relaxed(chain_of_three([20, 20, 0])) == pytest.approx(46, rel=1e-5)
    assert best_of_all(chain_of_three([20, 20, 0])) == 46


@pytest.mark.parametrize("execution_model", [SUBGRAPH, SubgraphIP(per_accelerator=6)])
@pytest.mark.parametrize("seed", range(20))
def test_no_placement_is_faster(seed: int, execution_model: ExecutionModel) -> None:
    """Two accelerators and a CPU or none, memory limits, dear transfers, tensors read twice."""
    rng = np.random.default_rng(seed)
    problem = random_pipeline(
        rng,
        6,
        2,
        int(seed % 3 > 0),
        objective="latency",
        execution_model=execution_model,
    )
    assert problem.transfer_seconds is not None
    dear = problem.transfer_seconds * float(rng.uniform(0.5, 4))
    problem = replace(problem, transfer_seconds=dear)
    best = best_of_all(problem)
    found = CpSat().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert found.value >= best * (1 - 1e-9)
    if math.isfinite(best):
        assert relaxed(problem) <= best * (1 + 1e-6)
        assert found.lower_bound <= best * (1 + 1e-9)
    else:
        assert found.status in ("infeasible", "unknown")


@pytest.mark.parametrize("seed", range(8))
def test_classes_move_as_one(seed: int) -> None:
    """Three colocation classes of two ops on three accelerators, two of them twins."""
    rng = np.random.default_rng(seed)
    seconds = rng.integers(1, 9, (6, 1)) * np.array([[1, 1, 2]])
    edges = [pair for pair in itertools.combinations(range(6), 2) if rng.random() < 0.4]
    problem = pipeline_problem(
        seconds.astype(float).tolist(),
        edges,
        rng.integers(0, 6, 6).astype(float).tolist(),
        sizes=rng.integers(1, 5, 6).astype(float).tolist(),
        memory=12.0,
        classes=[0, 1, 2, 0, 1, 2],
        objective="latency",
        execution_model=Subgraph(),
    )
    best = best_of_all(problem)
    if math.isfinite(best):
        assert relaxed(problem) <= best * (1 + 1e-6)


def test_fractions_cannot_spread_a_chain_over_all_accelerators() -> None:
    """Six ops of 2 s and 3 bytes; an accelerator holds two. Of each two edges in a row one is cut.

    So two cuts of 4 + 4 s: 12 + 16 = 28 s, by the linear relaxation alone. Its rows without windows
    let a third of each op be on each accelerator, where nothing leaves: 12 s.
    """
    problem = pipeline_problem(
        [[2.0, 2.0, 2.0, 100.0]] * 6,
        [(op, op + 1) for op in range(5)],
        [4.0] * 6,
        n_cpus=1,
        sizes=[3.0] * 6,
        memory=6.0,
        objective="latency",
        execution_model=SUBGRAPH,
    )
    program = bound_program(problem, latency_arrays(problem)).program
    fractions = replace(program, is_integer=np.zeros(program.n_columns, dtype=np.bool_))
    columns = solve(fractions, max_nodes=1).columns
    assert columns is not None
    assert float(program.cost @ columns) == pytest.approx(28.0)
    assert best_of_all(problem) == 28.0


def test_a_window_grows_along_heavy_paths_and_by_dear_tensors() -> None:
    """0 feeds 1 (5 s), which feeds 3 (4 s), and 2 feeds 3 (1 s). They keep 1, 2, 3.5
    and 2 bytes."""
    problem = pipeline_problem(
        [[1.0, 9.0]] * 4,
        [(0, 1), (1, 3), (2, 3)],
        [5.0, 4.0, 1.0, 0.0],
        n_cpus=1,
        sizes=[1.0, 2.0, 3.5, 2.0],
        memory=4.0,
        objective="latency",
        execution_model=SUBGRAPH,
    )
    transfer = latency_arrays(problem).transfer
    found = list(Windows(problem, transfer, 4.0))
    assert Window(0, ((0, 1, True), (1, 3, True))) in found  # 5 bytes, the dearest first
    assert Window(2, ((2, 3, True),)) in found  # 5.5 bytes
    assert Window(3, ((2, 3, False),)) in found  # towards the root
    assert not list(Windows(problem, transfer, 8.5))
    for window in found:
        units = {window.root, *(unit for edge in window.edges for unit in edge[:2])}
        assert sum([1.0, 2.0, 3.5, 2.0][unit] for unit in units) > 4.0
        assert len(window.edges) == len(units) - 1


def test_a_window_that_fits_in_another_order_of_addition_is_none() -> None:
    """0.3 + 0.2 + 0.1 fits into 0.6, and 0.1 + 0.2 + 0.3 is a little more."""
    problem = pipeline_problem(
        [[1.0, 1.0]] * 4,
        [(0, 1), (1, 2), (2, 3)],
        [10.0, 10.0, 1.0, 0.0],
        n_cpus=0,
        sizes=[0.3, 0.2, 0.1, 0.5],
        memory=0.6,
        objective="latency",
        execution_model=SUBGRAPH,
    )
    assert Simulator(problem).value(Placement.of([0, 0, 0, 1])) == 6.0
    assert relaxed(problem) <= 6.0
    found = CpSat().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert found.lower_bound <= 6.0
    assert (found.value, found.status) == (6.0, "optimal")


def test_a_limit_of_price_where_ops_run_at_once() -> None:
    """Two ops of 1 s take 1 s together on a CPU, which costs 1 a second."""
    problem = pipeline_problem(
        [[1.0]] * 2, [], [0.0, 0.0], n_cpus=1, objective="latency", execution_model=SUBGRAPH
    )
    cluster = problem.cluster
    devices = tuple(replace(device, price_per_hour=3600.0) for device in cluster.devices)
    problem = replace(problem, cluster=replace(cluster, devices=devices), limits={"price": 1.5})
    assert Simulator(problem).violation(Placement.of([0, 0])) is None
    assert prove_infeasible(problem) is None


def test_units_are_not_lost_beside_transfers_that_outlast_them_by_far() -> None:
    """Six ops in a row are a little faster on the accelerator, and a transfer takes a second."""
    problem = pipeline_problem(
        [[7.575606808529757e-12, 7.575667413384226e-12]] * 6,
        [(op, op + 1) for op in range(5)],
        [1.0] * 6,
        n_cpus=1,
        objective="latency",
        execution_model=SUBGRAPH,
    )
    evaluator, best = Evaluator(problem), best_of_all(problem)
    evaluator.evaluate(np.ones(6, dtype=np.int64))
    found = CpSat().place(problem, evaluator, np.random.default_rng(0))
    assert found.lower_bound <= best * (1.0 + 1e-9)
    assert (found.value, found.status) == (pytest.approx(best, rel=1e-9), "optimal")


def test_a_transfer_of_ages_leaves_the_solver_its_integers() -> None:
    """Two ops take 4e-12 s on either device; the first solution may send for 1e12 s."""
    problem = pipeline_problem(
        [[3e-12, 1e-12], [1e-12, 3e-12]],
        [(0, 1)],
        [1e12] * 2,
        n_cpus=1,
        objective="latency",
        execution_model=SUBGRAPH,
    )
    found = CpSat().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert (found.value, found.status) == (pytest.approx(4e-12), "optimal")
    assert found.lower_bound <= 4e-12 * (1.0 + 1e-9)


def test_a_transfer_that_no_good_placement_pays_leaves_latency_ip_its_bound() -> None:
    """HiGHS refused the whole program for it, and the longest path, 6 s, was the bound."""
    problem = chain_of_three([1e18, 4.0, 0.0])
    assert best_of_all(problem) == 14
    placer = LatencyIp(annealing_steps=500, annealing_rounds=2)
    found = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert found.value == 14
    assert 14 * (1.0 - 1e-4) <= found.lower_bound <= 14 * (1.0 + 1e-9)


def test_latency_ip_closes_the_gap_where_the_relaxation_is_met() -> None:
    problem = chain_of_three([5, 4, 0])
    evaluator = Evaluator(problem)
    placer = LatencyIp(annealing_steps=500, annealing_rounds=2)
    solution = placer.place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == 14
    assert solution.status == "optimal"
    assert solution.bound_method == "paths between accelerators"


def test_limits_close_the_gap_where_the_relaxation_is_met() -> None:
    """Each question has an answer here; the bound is as good as the integer program's."""
    for transfers, best in (([5.0, 4.0, 0.0], 14.0), ([20.0, 20.0, 0.0], 46.0)):
        problem = chain_of_three(transfers)
        found = CpSat().place(problem, Evaluator(problem), np.random.default_rng(0))
        assert (found.value, found.status) == (best, "optimal")
        assert found.bound_method == "constraint program"


def test_without_its_share_the_bound_is_the_longest_path() -> None:
    problem = chain_of_three([5, 4, 0])
    placer = LatencyIp(annealing_steps=500, annealing_rounds=2, bound_share=0)
    solution = placer.place(
        problem, Evaluator(problem, Budget(evaluations=30)), np.random.default_rng(0)
    )
    assert solution.lower_bound == 6
    assert program_size(problem, latency_arrays(problem)) == (3 + 2) * 3 + 3
    with pytest.raises(InputError, match="bound_share must be in"):
        LatencyIp(bound_share=2)


def test_windows_of_a_long_chain_end_at_a_number_of_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An accelerator holds 59 of 60 ops, or nearly all bytes are in the last one."""
    monkeypatch.setattr(bound, "_MOST_GROWN", 200)
    for sizes in ([1.0] * 60, [0.0] * 59 + [60.0]):
        problem = pipeline_problem(
            [[1.0, 9.0]] * 60,
            [(op, op + 1) for op in range(59)],
            [1.0] * 60,
            n_cpus=1,
            sizes=sizes,
            memory=59.0,
            objective="latency",
            execution_model=SUBGRAPH,
        )
        found = list(Windows(problem, latency_arrays(problem).transfer, 59.0))
        assert sum(len(window.edges) for window in found) <= 200 + 60
        assert relaxed(problem) <= best_of_one_cut(problem)


def best_of_one_cut(problem: Problem) -> float:
    """Least latency with the first ops on the accelerator and the others on the CPU."""
    simulator, n = Simulator(problem), problem.n_units
    cuts = (np.repeat([0, 1], [at, n - at]) for at in range(n + 1))
    return min(simulator.value(Placement.of(device_of)) for device_of in cuts)
