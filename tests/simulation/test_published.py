"""The published evaluators against slow references, on random problems."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from simulation.published_oracles import MaxLoadReference, PlacetoReference, SubgraphReference
from strategies import random_placement, random_problem, seeds, without_modes

from placewright.core.arrays import frozen_floats, frozen_ints
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.execution_models import (
    ExecutionModel,
    MaxLoad,
    Placeto,
    Subgraph,
    SubgraphIP,
)
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.files.model_names import model_of
from placewright.simulation.model import Simulator


def _placement(rng: np.random.Generator, problem: Problem) -> Placement:
    return Placement.of(random_placement(rng, problem).device_of)


def _some_devices(problem: Problem, rng: np.random.Generator, **chances: float) -> Problem:
    """Some devices differ in some flags."""
    devices = tuple(
        replace(device, **{flag: bool(rng.random() < p) for flag, p in chances.items()})
        for device in problem.cluster.devices
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def _with_replicas(problem: Problem, rng: np.random.Generator) -> Problem:
    """Some devices, never the host, stand for several; as it was where they could not train."""
    devices = tuple(
        device
        if device.name == problem.cluster.host or rng.random() < 0.5
        else replace(
            device,
            replicas=int(rng.integers(2, 5)),
            replica_bandwidth=float(rng.choice([0.5, 2.0, math.inf])),
        )
        for device in problem.cluster.devices
    )
    try:
        return replace(problem, cluster=replace(problem.cluster, devices=devices))
    except InputError:
        return problem


@settings(max_examples=160)
@given(seeds)
def test_max_load_equals_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = _some_devices(
        without_modes(random_problem(rng)), rng, pays_transfers=0.8, overlaps_transfers=0.3
    )
    phases = frozen_ints(rng.integers(0, 3, problem.graph.n_ops))
    problem = replace(
        problem,
        graph=replace(problem.graph, op_phases=phases),
        objective="throughput",
        execution_model=MaxLoad(
            split_phases=bool(rng.random() < 0.4),
            samples_in_flight=int(rng.choice([0, 0, 1, 2])),
        ),
    )
    if rng.random() < 0.5:
        problem = _with_replicas(problem, rng)
    event("replicas" if problem.cluster.replicas.max() > 1 else "single devices")
    event("exchange" if problem.exchange_seconds.any() else "no exchange")
    placement = _placement(rng, problem)
    expected = MaxLoadReference(problem, placement).value()
    event("feasible" if math.isfinite(expected) else "infeasible")
    assert Simulator(problem).value(placement) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=160)
@given(seeds)
def test_subgraph_models_equal_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = _some_devices(
        without_modes(random_problem(rng, int(rng.integers(1, 10)))), rng, pays_transfers=0.7
    )
    problem = replace(
        problem,
        transfer_seconds=frozen_floats(rng.integers(0, 9, problem.graph.n_tensors) / 2.0),
        execution_model=model_of(
            str(rng.choice(["subgraph", "subgraph-ip"])),
            per_accelerator=int(rng.integers(1, 4)),
        ),
    )
    placement = _placement(rng, problem)
    expected = SubgraphReference(problem, placement).value()
    event(
        f"{problem.execution_model.name}, {'feasible' if math.isfinite(expected) else 'infeasible'}"
    )
    assert Simulator(problem).value(placement) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=160)
@given(seeds)
def test_placeto_equals_the_reference(seed: int) -> None:
    """In half of the problems times and bytes have few values, so that events coincide."""
    rng = np.random.default_rng(seed)
    problem = without_modes(random_problem(rng))
    limit = float(rng.choice([math.inf, math.inf, 2e6]))
    devices = tuple(replace(device, memory_bytes=limit) for device in problem.cluster.devices)
    seconds = problem.costs.seconds
    own = np.where(rng.random(seconds.shape) < 0.05, 0.0, rng.random(seconds.shape) * 1e-4)
    n_bytes = rng.integers(1, 10**6, problem.graph.n_tensors)
    if rng.random() < 0.5:
        own = rng.choice([0.0, 1e-6, 2e-6, 1e-5], seconds.shape)
        n_bytes = rng.choice([0, 7600, 76000], problem.graph.n_tensors)
    own = np.where(np.isfinite(seconds), own, np.inf)
    problem = replace(
        problem,
        cluster=replace(problem.cluster, devices=devices),
        costs=replace(problem.costs, seconds=frozen_floats(own)),
        graph=replace(
            problem.graph,
            tensor_bytes=frozen_floats(n_bytes),
        ),
        execution_model=Placeto(),
    )
    placement = _placement(rng, problem)
    reference = PlacetoReference(problem, placement)
    expected = reference.value()
    simulator = Simulator(problem)
    if math.isfinite(expected):
        peaks = [reference.peak(device) for device in range(problem.n_devices)]
        assert simulator.memory_peaks(placement).tolist() == pytest.approx(peaks)
        expected = expected if max(peaks) <= limit else math.inf
    event("feasible" if math.isfinite(expected) else "infeasible")
    assert simulator.value(placement) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Subgraph(), "pieces of an accelerator need each other; move ops"),
        (SubgraphIP(), "need each other, or there are more than 1 on one; move ops"),
    ],
)
def test_pieces_that_need_each_other_are_named(model: ExecutionModel, message: str) -> None:
    """Chains a-b and c-d, each on both accelerators: the pieces need each other."""
    builder = GraphBuilder()
    for first, second in ("ab", "cd"):
        made = builder.add_tensor(builder.add_op(first, "Op"), 1.0)
        builder.add_tensor(builder.add_op(second, "Op", inputs=[made]), 1.0, is_output=True)
    devices = (Device("cpu", pays_transfers=False), Device("p"), Device("q"))
    problem = Problem.of_ops(
        builder.build(), Cluster(devices, host="cpu"), CostTable(frozen_floats(np.ones((4, 3))))
    )
    problem = replace(problem, transfer_seconds=frozen_floats(np.ones(4))).under(model)
    violation = Simulator(problem).violation(Placement.of([1, 2, 2, 1]))
    assert violation is not None
    assert message in violation.message
