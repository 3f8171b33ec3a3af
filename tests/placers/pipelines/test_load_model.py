"""Placers for throughput count what samples in flight keep: held against brute force."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from support.host_groups import best_in_groups, hosts, problem_on
from support.pipelines import (
    best_by_brute_force,
    bytes_of,
    is_contiguous,
    max_load,
    pipeline_problem,
)

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.graph import BACKWARD, FORWARD
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.placers.exact.maxload_ip import MaxloadIp
from placewright.placers.pipelines.dpl import Dpl
from placewright.placers.pipelines.ideal_dp import IdealDp
from placewright.placers.pipelines.ideals.load_model import load_model_of
from placewright.placers.pipelines.ideals.program import replicated
from placewright.placers.pipelines.pipedream import Pipedream
from placewright.placers.registry import Placer
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

N_OPS = 6


def solved(problem: Problem, placer: Placer) -> Solution:
    evaluator = Evaluator(problem, Budget(evaluations=100))
    return placer.place(problem, evaluator, np.random.default_rng(0))


def flying(seed: int, *, is_training: bool = False) -> Problem:
    """Ops whose tensors are much of what devices may keep, one or two samples in flight."""
    rng = np.random.default_rng(seed)
    n_forward = N_OPS // 2 if is_training else N_OPS
    edges = [pair for pair in itertools.combinations(range(n_forward), 2) if rng.random() < 0.5]
    phases, classes = [FORWARD] * N_OPS, [-1] * N_OPS
    if is_training:
        edges += [(n_forward + b, n_forward + a) for a, b in edges]
        edges += [(op, n_forward + op) for op in range(n_forward)]
        phases = [FORWARD] * n_forward + [BACKWARD] * n_forward
        classes = [*range(n_forward), *range(n_forward)]
    fast = rng.integers(1, 20, N_OPS).astype(float)
    sizes = rng.integers(0, 5, N_OPS).astype(float)
    tensors = rng.integers(1, 9, N_OPS).astype(float)
    samples = 1 + seed % 2
    made = {before for before, _ in edges}
    whole = sizes.sum() + samples * sum(tensors[op] for op in sorted(made))
    return pipeline_problem(
        [[value] * 2 + [3 * value] * (seed % 2) for value in fast.tolist()],
        edges,
        rng.integers(0, 6, N_OPS).astype(float).tolist(),
        n_cpus=seed % 2,
        sizes=sizes.tolist(),
        memory=float(math.ceil(whole * rng.uniform(0.4, 0.7))),
        tensor_bytes=tensors.tolist(),
        phases=phases,
        classes=classes,
        execution_model=MaxLoad(samples),
    )


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_splits_equal_brute_force(seed: int, is_training: bool) -> None:
    problem = flying(seed, is_training=is_training)
    best = best_by_brute_force(problem, contiguous=True)
    assert solved(problem, IdealDp()).value == pytest.approx(best)
    for placer in (Dpl(), Pipedream()):
        found = solved(problem, placer)
        assert found.value >= best - 1e-9
        if found.placement is not None:
            device_of = found.placement.device_of.tolist()
            assert found.value == pytest.approx(max_load(problem, device_of))
            assert is_contiguous(problem, device_of)


@pytest.mark.parametrize("seed", range(8))
def test_the_integer_program_equals_brute_force(seed: int) -> None:
    problem = flying(seed, is_training=seed % 4 == 3)
    best = best_by_brute_force(problem, contiguous=False)
    found = solved(problem, MaxloadIp(annealing_steps=2000, annealing_rounds=2))
    assert found.value == pytest.approx(best)
    assert found.lower_bound <= best * (1 + 1e-6)


def test_the_limit_binds_in_these_problems() -> None:
    """The control: with weights alone most of them have a better answer."""
    lower = 0
    for seed in range(12):
        problem = flying(seed)
        weights_only = problem.with_samples_in_flight(0)
        counted = best_by_brute_force(problem, contiguous=True)
        lower += best_by_brute_force(weights_only, contiguous=True) < counted
    assert lower >= 6


@pytest.mark.parametrize("seed", range(8))
def test_splits_in_groups_equal_brute_force(seed: int) -> None:
    """Links of two levels."""
    rng = np.random.default_rng(seed)
    edges = [pair for pair in itertools.combinations(range(5), 2) if rng.random() < 0.5]
    weights = rng.integers(0, 5, 5).astype(float)
    tensors = rng.integers(1, 6, 5).astype(float)
    samples = 1 + seed % 2
    whole = weights.sum() + samples * tensors.sum()
    problem = problem_on(
        hosts([2, 1 + seed % 2], 0.5, 2.0, memory=float(math.ceil(whole * rng.uniform(0.3, 0.7)))),
        rng.integers(1, 10, 5).astype(float).tolist(),
        edges,
        tensors.tolist(),
        weights=weights.tolist(),
    )
    problem = problem.with_samples_in_flight(samples)
    best, found = best_in_groups(problem), solved(problem, IdealDp())
    assert found.value == pytest.approx(best)


@pytest.mark.parametrize("seed", range(6))
def test_bytes_of_the_load_model_equal_a_plain_account(seed: int) -> None:
    """And those of the simulator: every tensor once per device, for each sample."""
    problem = flying(seed)
    graph, model = problem.graph, load_model_of(problem, problem.colocation)
    samples = 1 + seed % 2
    rng = np.random.default_rng(seed)
    for _ in range(20):
        device_of = rng.integers(0, problem.n_devices, N_OPS)
        expected = np.zeros(problem.n_devices)
        np.add.at(expected, device_of, graph.op_weight_bytes)
        for tensor, size in enumerate(graph.tensor_bytes.tolist()):
            users = [int(graph.tensor_producers[tensor]), *graph.tensor_consumers.row(tensor)]
            for device in sorted({int(device_of[user]) for user in users}):
                expected[device] += samples * size
        assert bytes_of(model, device_of) == pytest.approx(expected)
        value, peaks = Simulator(problem).value_and_peaks(Placement.of(device_of))
        assert peaks == pytest.approx(expected)
        assert math.isinf(value) == bool((expected > problem.cluster.memory_bytes).any())


def test_groups_of_replicas_count_them_too() -> None:
    """Each member of a group keeps what the group's stage keeps."""
    problem = pipeline_problem(
        [[8.0] * 3, [2.0] * 3], [(0, 1)], [0.0, 0.0], sizes=[1.0, 1.0], memory=12.0,
        tensor_bytes=[5.0, 0.0], execution_model=MaxLoad(2),
    )  # fmt: skip
    found = replicated(problem)
    assert found.device_of is not None
    value = Simulator(found.problem).values(found.device_of[None])[0]
    assert value == pytest.approx(10 / 3)  # one stage of three members: 1 + 1 + 2 x 5 bytes on each
    tight = tuple(replace(device, memory_bytes=11.0) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=tight))
    found = replicated(problem)
    assert found.device_of is not None
    assert Simulator(found.problem).values(found.device_of[None])[0] == 4  # 8 / 2 and 2 / 1


def test_an_exact_fit_is_no_proof_of_optimality() -> None:
    """0.2 + 0.3 + 0.1 bytes fit into 0.6; in another order the sum is one ulp above it.

    The class must not count as allowed nowhere, whose bound would be infinite.
    """
    builder = GraphBuilder()
    shared = builder.add_weight(0.3)
    first, last = builder.add_weight(0.2), builder.add_weight(0.1)
    builder.add_op("x", "Op", weights=[first, shared, last])
    builder.add_op("y", "Op", weights=[shared])
    devices = tuple(Device(name, memory_bytes=0.6) for name in "ab")
    problem = Problem(
        builder.build(),
        Cluster(devices, (Link("a", "b"), Link("b", "a")), host="a"),
        CostTable(frozen_floats([[1.0, 1.0], [1.0, 1.0]])),
        Grouping.identity(2),
        objective="throughput",
        execution_model=MaxLoad(0),
    )
    assert load_model_of(problem, problem.colocation).area_bound == pytest.approx(1.0)
    evaluator = Evaluator(problem)
    assert evaluator.evaluate([0, 0]) == 2.0
    solution = Dpl().place(problem, evaluator, np.random.default_rng(0))
    assert (solution.value, solution.status) == (1.0, "optimal")


def test_a_bound_that_is_not_finite_proves_nothing() -> None:
    evaluator = Evaluator(pipeline_problem([[1.0, 2.0]], [], [0.0]))
    evaluator.evaluate([1])
    for value in (math.inf, math.nan):
        evaluator.offer_bound(value, "rounding")
    assert not evaluator.is_closed
    assert evaluator.lower_bound == 0.0
