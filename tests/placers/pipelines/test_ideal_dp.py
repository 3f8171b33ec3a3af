"""The dynamic program over ideals: hand-worked cases, brute force, its parts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines import (
    best_by_brute_force,
    best_contiguous,
    max_load,
    pipeline_problem,
    random_pipeline,
    random_training,
)

from placewright.core.arrays import Csr, frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad, Subgraph
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.pipelines.dpl import Dpl
from placewright.placers.pipelines.ideal_dp import IdealDp
from placewright.placers.pipelines.ideals.items import (
    chain,
    enumerate_ideals,
    enumerate_in_time,
    items_of,
)
from placewright.placers.pipelines.ideals.load_model import load_model_of, why_not_separable
from placewright.placers.pipelines.ideals.program import (
    INEXACT,
    NO_ROOM,
    ContiguousProgram,
    replicated,
)
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator


def solve_exactly(problem: Problem) -> tuple[float, list[int] | None]:
    """Value and placement of the best contiguous split, by the kernel alone."""
    items = items_of(problem)
    lattice = enumerate_ideals(items.successors, 10_000)
    assert lattice is not None
    program = ContiguousProgram(load_model_of(problem, items.grouping), lattice)
    assert program.run()
    if not program.found:
        return math.inf, None
    return program.value, items.grouping.expand(program.devices()).tolist()


def test_a_chain_is_cut_where_loads_level() -> None:
    """Chain 4-3-2-1 on two devices, transfers 1: {4} | {3, 2, 1} carries 4 + 1 and 6 + 1; cutting
    after 3 carries 7 + 1 and 3 + 1; so the best is 7."""
    problem = pipeline_problem(
        [[4] * 2, [3] * 2, [2] * 2, [1] * 2], [(0, 1), (1, 2), (2, 3)], [1] * 4
    )
    value, device_of = solve_exactly(problem)
    assert value == 7
    assert device_of is not None
    assert len(set(device_of[1:])) == 1
    assert device_of[0] != device_of[1]


def test_a_tensor_that_two_devices_read_is_sent_once() -> None:
    """Op 0 (1 s, sends 3) feeds 1 and 2 (10 s each) on three devices: 1 + 3, 10 + 3, 10 + 3."""
    problem = pipeline_problem([[1] * 3, [10] * 3, [10] * 3], [(0, 1), (0, 2)], [3, 0, 0])
    assert solve_exactly(problem)[0] == 13


@pytest.mark.parametrize("seed", range(25))
def test_it_equals_brute_force_over_contiguous_splits(seed: int) -> None:
    """Two kinds of devices, unsupported ops, memory limits."""
    problem = random_pipeline(np.random.default_rng(seed), 6, 2, seed % 2)
    value, device_of = solve_exactly(problem)
    assert value == pytest.approx(best_by_brute_force(problem, contiguous=True))
    if device_of is not None:
        assert max_load(problem, device_of) == pytest.approx(value)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n_ops=st.integers(2, 8), n_cpus=st.integers(0, 1))
def test_it_equals_brute_force_up_to_eight_ops_and_three_devices(
    seed: int, n_ops: int, n_cpus: int
) -> None:
    """Every placement that is contiguous; the placer's answer is one of them."""
    problem = random_pipeline(np.random.default_rng(seed), n_ops, 2 + seed % 2 - n_cpus, n_cpus)
    best = best_contiguous(problem)
    assert solve_exactly(problem)[0] == pytest.approx(best)
    solution = IdealDp().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value == pytest.approx(best)


@pytest.mark.parametrize("seed", range(10))
def test_it_equals_brute_force_on_training_graphs(seed: int) -> None:
    """Backward ops follow their forward ops; one backward op has none."""
    problem = random_training(np.random.default_rng(seed), 3, 3)
    value, device_of = solve_exactly(problem)
    assert device_of is not None
    assert value == pytest.approx(best_by_brute_force(problem, contiguous=True))
    assert max_load(problem, device_of) == pytest.approx(value)


@pytest.mark.parametrize("seed", range(10))
def test_three_kinds_of_devices(seed: int) -> None:
    """All devices differ, so that the order of their stretches matters."""
    rng = np.random.default_rng(seed)
    seconds = rng.integers(1, 20, (6, 3)).astype(float).tolist()
    edges = [(op, op + 1) for op in range(5)] + [(0, 3), (1, 5)]
    problem = pipeline_problem(seconds, edges, rng.integers(0, 5, 6).astype(float).tolist())
    assert solve_exactly(problem)[0] == pytest.approx(best_by_brute_force(problem, contiguous=True))


def test_a_shared_weight_counts_once_per_device() -> None:
    """Two ops share 6 bytes: both fit one device of 8 bytes although 6 + 6 do not."""
    builder = GraphBuilder()
    shared = builder.add_weight(6)
    first = builder.add_op("a", "Op", weights=[shared])
    builder.add_op("b", "Op", inputs=[builder.add_tensor(first, 1)], weights=[shared])
    problem = Problem(
        builder.build(),
        Cluster((Device("acc:0", "accelerator", memory_bytes=8),)),
        CostTable(np.array([[1.0], [2.0]])),
        Grouping.identity(2),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
        transfer_seconds=np.zeros(1),
    )
    assert solve_exactly(problem)[0] == 3


def test_ideals_of_a_chain_and_of_an_antichain() -> None:
    assert chain(np.array([1, 0, 2])).n_ideals == 4
    lattice = enumerate_ideals(Csr.from_rows([[]] * 7), 1000)
    assert lattice is not None
    assert lattice.n_ideals == 2**7
    assert enumerate_ideals(Csr.from_rows([[]] * 7), 127) is None
    wide = enumerate_ideals(Csr.from_rows([[i + 1] for i in range(99)] + [[]]), 1000)
    assert wide is not None
    assert wide.n_ideals == 101


def test_an_op_without_run_time_joins_its_only_neighbour() -> None:
    problem = pipeline_problem([[0] * 2, [3] * 2, [4] * 2], [(0, 1), (1, 2)], [9, 1, 0])
    assert items_of(problem).grouping.group_of.tolist() == [0, 0, 1]


def test_an_op_without_run_time_may_stay_with_the_host_whose_input_it_reads() -> None:
    """It reads 100 bytes at the CPU and passes 1 to an op of 9 s there, 1 s on the GPU.

    With the first on the CPU, the GPU computes for 1 s and receives for 1 s. With both on one
    device they take 9 s on the CPU, or 101 s on the GPU.
    """
    builder = GraphBuilder()
    look = builder.add_op("look", "Op", inputs=[builder.add_input(100.0)])
    builder.add_op("work", "Op", inputs=[builder.add_tensor(look, 1.0)])
    links = (Link("cpu", "gpu", bandwidth=1.0), Link("gpu", "cpu", bandwidth=1.0))
    cluster = Cluster((Device("cpu", pays_transfers=False), Device("gpu", "gpu")), links, "cpu")
    costs = CostTable(frozen_floats([[0.0, 0.0], [9.0, 1.0]]))
    problem = Problem.of_ops(builder.build(), cluster, costs).under(MaxLoad(0))
    solution = IdealDp().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value == best_contiguous(problem) == 2.0


def test_the_placer_reports_the_evaluators_value() -> None:
    problem = random_pipeline(np.random.default_rng(3), 6, 2, 1)
    evaluator = Evaluator(problem, Budget(evaluations=10))
    solution = IdealDp().place(problem, evaluator, np.random.default_rng(0))
    assert solution.placement is not None
    assert solution.value == pytest.approx(best_by_brute_force(problem, contiguous=True))
    assert solution.message.startswith("optimal among pipelines of contiguous stages")
    assert solution.lower_bound <= best_by_brute_force(problem, contiguous=False) + 1e-9


def test_too_many_ideals_fall_back_to_the_linear_split() -> None:
    problem = pipeline_problem([[2] * 2] * 6, [], [0] * 6)
    evaluator = Evaluator(problem)
    solution = IdealDp(max_ideals=10).place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == 6
    assert "more than 10 ideals" in solution.message


def test_settings_and_problems_that_it_refuses() -> None:
    with pytest.raises(InputError, match="max_ideals must be >= 2, got 1"):
        IdealDp(max_ideals=1)
    problem = pipeline_problem([[1.0] * 2] * 2, [(0, 1)], [1, 0]).under(Subgraph())
    assert "max-load" in str(IdealDp().why_not(problem))
    assert "max-load" in str(why_not_separable(problem))


def test_ideals_are_looked_for_as_far_as_time_lets() -> None:
    """Twenty ops without edges have 2^20 ideals; each look here takes a second of four that are
    left, so ten times as many would take too long."""
    successors, left = Csr.from_rows([[]] * 20), iter([4.0, 4.0, 3.0])
    assert enumerate_in_time(successors, 1_000_000, lambda: next(left)) == (None, 10_000)
    lattice, looked_for = enumerate_in_time(Csr.from_rows([[]] * 7), 1_000_000, lambda: 1.0)
    assert lattice is not None
    assert (lattice.n_ideals, looked_for) == (128, 10_000)
    lattice, looked_for = enumerate_in_time(Csr.from_rows([[]] * 7), 100, lambda: np.inf)
    assert (lattice, looked_for) == (None, 100)


def test_an_idle_host_carries_the_outputs_that_others_send_it() -> None:
    """A (h or g) -> C (g) -> D (k); A and D send 3 s of outputs to the host h, which pays as well.

    A on g carries 0.25 s there, but then h is idle and still receives 3 + 3. A on h: 1 + 3.
    """
    builder = GraphBuilder()
    before: list[int] = []
    for name in "ACD":
        op = builder.add_op(name, "Op", inputs=before)
        before = [builder.add_tensor(op, 0.0)] if name != "D" else []
        if name != "C":
            builder.add_tensor(op, 3.0, is_output=True)
    names = ("h", "g", "k")
    links = tuple(Link(a, b, bandwidth=1.0) for a in names for b in names if a != b)
    problem = Problem(
        builder.build(),
        Cluster(tuple(Device(name) for name in names), links, host="h"),
        CostTable(
            frozen_floats([[1, 0.25, math.inf], [math.inf, 0.5, math.inf], [math.inf, math.inf, 1]])
        ),
        Grouping.identity(3),
        objective="throughput",
        execution_model=MaxLoad(0),
    )
    value, device_of = solve_exactly(problem)
    assert value == best_by_simulator(problem) == 4.0
    assert device_of == [0, 1, 2]


def test_one_slow_op_leaves_the_loads_of_others_exact() -> None:
    """Four ops without edges; on the second device one of them takes 32,000 years.

    Op 2 alone on the second device takes 8 us there, and the others 7 us on the first.
    """
    problem = pipeline_problem(
        [[3e-6, 8e-6], [2e-6, 1e12], [5e-6, 8e-6], [2e-6, 7e-6]], [], [0.0] * 4
    )
    solution = IdealDp().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value == pytest.approx(8e-6, rel=1e-9, abs=0)
    assert solution.message == "optimal among pipelines of contiguous stages"


def test_transfers_that_outlast_the_load_prove_nothing() -> None:
    """Their sum rounds: the tensor of op 0 takes ages, and the best cut is before op 2."""
    problem = pipeline_problem([[1e-6] * 2] * 3, [(0, 1), (1, 2)], [1e12, 5e-7, 0.0])
    solution = IdealDp().place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.value == pytest.approx(2.5e-6, rel=1e-9, abs=0)
    assert solution.message == INEXACT


@pytest.mark.parametrize("placer", [Dpl(), IdealDp(), IdealDp(max_ideals=2)])
def test_a_split_that_exceeds_the_memory_by_a_rounding_is_no_answer(placer: Dpl | IdealDp) -> None:
    """Both ops on a device keep a byte more than its gigabyte; apart they take 1 s + 10 s."""
    problem = pipeline_problem(
        [[1.0] * 2] * 2, [(0, 1)], [10.0, 0.0], sizes=[6e8, 4e8 + 1.0], memory=1e9
    )
    solution = placer.place(problem, Evaluator(problem), np.random.default_rng(0))
    assert (solution.value, solution.message) == (11.0, NO_ROOM)


def test_groups_whose_split_exceeds_the_memory_by_a_rounding_are_no_answer() -> None:
    problem = pipeline_problem(
        [[1.0] * 2] * 2, [(0, 1)], [10.0, 0.0], sizes=[6e8, 4e8 + 1.0], memory=1e9
    )
    found = replicated(problem)
    assert (found.value, found.message) == (11.0, NO_ROOM)


def test_an_incumbent_that_differs_in_the_order_of_a_sum_is_no_better_one() -> None:
    """A chain of 0.1, 0.2, 0.3, 0.6 and 0.7 s: the first three and the fourth take 1.2 s."""
    seconds = [[each] * 2 for each in (0.1, 0.2, 0.3, 0.6, 0.7)]
    problem = pipeline_problem(seconds, [(at, at + 1) for at in range(4)], [0.0] * 5)
    evaluator = Evaluator(problem)
    evaluator.evaluate([0, 1, 1, 0, 1])
    solution = IdealDp().place(problem, evaluator, np.random.default_rng(0))
    assert solution.message == "optimal among pipelines of contiguous stages"


def test_a_better_placement_that_is_no_pipeline_is_not_called_the_best_one() -> None:
    """A chain of 1, 2 and 1 s: pipelines take 3 s, and the ends on one device 2 s."""
    problem = pipeline_problem([[1.0] * 2, [2.0] * 2, [1.0] * 2], [(0, 1), (1, 2)], [0.0] * 3)
    evaluator = Evaluator(problem)
    assert evaluator.evaluate([0, 1, 0]) == 2.0
    solution = IdealDp().place(problem, evaluator, np.random.default_rng(0))
    assert (solution.value, solution.message) == (2.0, "")


def best_by_simulator(problem: Problem) -> float:
    simulator = Simulator(problem)
    every = itertools.product(range(problem.n_devices), repeat=problem.n_units)
    return min(simulator.value(Placement.of(chosen)) for chosen in every)
