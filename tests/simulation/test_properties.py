"""What holds for every timeline, every segmentation and every bound."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from strategies import (
    random_order,
    random_placement,
    random_problem,
    seeds,
    without_memory_limits,
    without_modes,
)

from placewright.core.arrays import frozen_floats, frozen_ints
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.files.model_names import model_of
from placewright.simulation.bounds.lower import lower_bounds
from placewright.simulation.model import Simulator
from placewright.simulation.segments import segments_of


def _feasible(seed: int) -> tuple[Problem, Placement, Simulator] | None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    placement = random_placement(rng, problem)
    simulator = Simulator(problem)
    return None if math.isinf(simulator.value(placement)) else (problem, placement, simulator)


@settings(max_examples=120)
@given(seeds)
def test_a_timeline_keeps_its_value_its_streams_and_its_work(seed: int) -> None:
    found = _feasible(seed)
    if found is None:
        return
    problem, placement, simulator = found
    timeline = simulator.timeline(placement)
    assert timeline.value == simulator.value(placement)
    assert timeline.memory_peaks.tolist() == simulator.memory_peaks(placement).tolist()
    own = problem.costs.seconds[np.arange(problem.n_units), placement.device_of]
    assert np.all(timeline.end - timeline.start >= own)
    for device, spec in enumerate(problem.cluster.devices):
        mine = np.flatnonzero(placement.device_of == device)
        for unit in mine:
            at = timeline.start[unit]
            others = (timeline.start[mine] <= at) & (at < timeline.end[mine])
            assert others.sum() <= spec.streams


@settings(max_examples=120)
@given(seeds)
def test_a_placement_fits_exactly_where_no_peak_exceeds_its_memory(seed: int) -> None:
    """Also where peaks need not be found, because a device could keep all that was ever on it."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    placement = random_placement(rng, problem)
    unlimited = without_memory_limits(problem)
    value, peaks = Simulator(unlimited).value_and_peaks(placement)
    if math.isinf(value):
        return
    for scale in (0.5, 1.0 - 1e-6, 1.0, 1.5, 4.0):
        limited = tuple(
            replace(one, memory_bytes=float(scale * peak))
            for one, peak in zip(problem.cluster.devices, peaks, strict=True)
        )
        simulator = Simulator(replace(unlimited, cluster=replace(problem.cluster, devices=limited)))
        fits = scale >= 1.0 or not peaks.any()
        event(f"fits: {fits}")
        assert simulator.value(placement) == (value if fits else math.inf)
        if placement.order is None:
            rows = placement.device_of[None, :]
            assert simulator.values(rows)[0] == simulator.value(placement)


@settings(max_examples=120)
@given(seeds)
def test_the_critical_path_adds_up_to_the_makespan(seed: int) -> None:
    found = _feasible(seed)
    if found is None:
        return
    problem, placement, simulator = found
    timeline = simulator.timeline(placement)
    steps = timeline.critical_path
    names = problem.unit_graph.op_names
    if timeline.value > 0:
        assert steps[0].start == 0.0
        assert steps[-1].end == timeline.value
    for before, after in itertools.pairwise(steps):
        assert after.start == before.end
    assert sum(step.end - step.start for step in steps) == timeline.value
    for unit, wait in enumerate(timeline.waits):
        kind, _, other = wait.partition(" ")
        event(kind)
        assert (kind == "none") == (timeline.start[unit] == 0)
        if kind in ("stream", "order", "processor"):
            here, there = placement.device_of[[unit, names.index(other)]]
            is_shared = problem.cluster.excludes[here, there]
            assert is_shared or (here == there and kind != "processor")
        assert kind != "order" or placement.order is not None
    event(f"steps: {min(len(steps), 5)}")


@settings(max_examples=120)
@given(seeds)
def test_the_order_of_a_timeline_repeats_it(seed: int) -> None:
    found = _feasible(seed)
    if found is None or any(d.streams > 1 for d in found[0].cluster.devices):
        return
    _, placement, simulator = found
    timeline = simulator.timeline(placement)
    again = Placement.of(placement.device_of, timeline.order)
    assert simulator.value(again) == timeline.value
    assert simulator.timeline(again).start.tolist() == timeline.start.tolist()


@settings(max_examples=120)
@given(seeds)
def test_segments_partition_the_units_and_execute_one_after_another(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    placement = random_placement(rng, problem)
    order = np.array(random_order(rng, problem), dtype=np.int64)
    parts = segments_of(problem, placement, order)
    units = [unit for part in parts for unit in part.units]
    assert sorted(units) == list(range(problem.n_units))
    graph, there = problem.unit_graph, set(np.flatnonzero(problem.unit_graph.tensor_producers < 0))
    for part in parts:
        assert all(placement.device_of[unit] == part.device for unit in part.units)
        assert set(part.inputs) <= there
        there |= set(part.outputs)
    for device in range(problem.n_devices):
        mine = [u for part in parts if part.device == device for u in part.units]
        assert mine == [u for u in order.tolist() if placement.device_of[u] == device]
    assert set(np.flatnonzero(graph.tensor_is_output)) <= there


@settings(max_examples=80)
@given(seeds)
def test_names_of_devices_do_not_change_the_value(seed: int) -> None:
    found = _feasible(seed)
    if found is None:
        return
    problem, placement, simulator = found
    names = {device.name: f"renamed {device.name}" for device in problem.cluster.devices}
    names["host"] = "host"
    cluster = replace(
        problem.cluster,
        devices=tuple(replace(d, name=names[d.name]) for d in problem.cluster.devices),
        links=tuple(
            replace(link, source=names[link.source], destination=names[link.destination])
            for link in problem.cluster.links
        ),
        host=names[problem.cluster.host],
    )
    renamed = Simulator(replace(problem, cluster=cluster))
    assert renamed.value(placement) == simulator.value(placement)


@pytest.mark.parametrize("model", ["event", "max-load", "subgraph", "subgraph-ip", "placeto"])
@settings(max_examples=50)
@given(seeds)
def test_bounds_hold_for_all_placements_and_many_orders(model: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = _under(model, random_problem(rng, int(rng.integers(1, 5))), rng)
    simulator = Simulator(problem)
    bounds = lower_bounds(problem)
    best = math.inf
    choices = itertools.product(range(problem.n_devices), repeat=problem.n_units)
    for devices in choices:
        best = min(best, simulator.value(Placement.of(devices)))
        if model == "event":
            order = random_order(rng, problem)
            best = min(best, simulator.value(Placement.of(devices, order)))
    for bound in bounds:
        assert bound.value <= best, bound.method
    top = max(bounds, key=lambda bound: bound.value)
    event(f"{top.method}, {'met' if top.value >= best * (1 - 1e-9) else 'below'}")


def _under(model: str, problem: Problem, rng: np.random.Generator) -> Problem:
    """The problem under another execution model, with what that one asks for."""
    if model == "event":
        return problem
    if model == "max-load":
        phases = frozen_ints(rng.integers(0, 3, problem.graph.n_ops))
        return replace(
            problem,
            graph=replace(problem.graph, op_phases=phases),
            objective="throughput",
            execution_model=MaxLoad(
                split_phases=bool(rng.random() < 0.4),
                samples_in_flight=int(rng.choice([0, 0, 1, 2])),
            ),
        )
    seconds = frozen_floats(rng.integers(0, 9, problem.graph.n_tensors) / 2.0)
    return replace(
        without_modes(problem),
        transfer_seconds=None if model == "placeto" else seconds,
        execution_model=model_of(model, per_accelerator=int(rng.integers(1, 4))),
    )


@pytest.mark.parametrize("model", ["event", "max-load", "subgraph", "subgraph-ip", "placeto"])
@settings(max_examples=60)
@given(seeds)
def test_many_placements_at_once_have_the_values_of_each(model: str, seed: int) -> None:
    """Enough of them that threads share the work."""
    rng = np.random.default_rng(seed)
    problem = _under(model, random_problem(rng), rng)
    rows = rng.integers(0, problem.n_devices, (70, problem.n_units))
    simulator = Simulator(problem)
    alone = [simulator.value(Placement.of(row)) for row in rows]
    assert simulator.values(rows).tolist() == alone
