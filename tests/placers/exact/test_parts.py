"""Articulation units, and the bound that adds up the parts between them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strategies import random_problem

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.exact.parts import programs
from placewright.placers.exact.parts.bound import articulation_units, parts_bound
from placewright.placers.exact.parts.programs import (
    Part,
    PartsFound,
    part_programs,
    search_parts,
    solve_parts,
)
from placewright.simulation.bounds.lower import critical_path_bound
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.suites.suite.runs import random_layered_problem
from placewright.testing.brute_force import brute_force
from placewright.testing.problems import random_problem as small_problem


def beads(rng: np.random.Generator, widths: list[int]) -> Problem:
    """Fork-joins in a row: a single op, some beside each other, a single op, and so on."""
    builder = GraphBuilder()
    last = [builder.add_input(float(rng.integers(0, 5)))]
    for width in widths:
        made = []
        for _ in range(width):
            op = builder.add_op(f"op{len(builder._names)}", "Op", inputs=last)
            made.append(builder.add_tensor(op, float(rng.integers(1, 5))))
        last = made
    for tensor in last:
        if rng.random() < 0.7:
            builder.mark_output(tensor)
    n_devices = int(rng.integers(1, 4))
    names = [f"d{index}" for index in range(n_devices)]
    devices = tuple(Device(name, streams=int(rng.integers(1, 3))) for name in names)
    host = str(rng.choice([*names, "host"]))
    ends = [*names, "host"]
    links = tuple(
        Link(a, b, float(rng.integers(0, 3)) / 2, float(rng.choice([0.5, 1.0, 4.0])))
        for a in ends
        for b in ends
        if a != b
    )
    seconds = rng.integers(0, 12, (sum(widths), n_devices)) / 2.0
    cluster = Cluster(
        devices,
        links
        if host == "host"
        else tuple(link for link in links if "host" not in (link.source, link.destination)),
        host,
    )
    return Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(seconds)))


def plain_articulation_units(problem: Problem) -> list[int]:
    """By the sets of ancestors and descendants themselves."""
    graph, n = problem.unit_graph, problem.n_units
    below = np.zeros((n, n), dtype=np.bool_)
    for unit in graph.topological_order[::-1].tolist():
        for after in graph.successors.row(unit).tolist():
            below[unit] |= below[after]
            below[unit, after] = True
    comparable = below | below.T | np.eye(n, dtype=np.bool_)
    return [unit for unit in graph.topological_order.tolist() if comparable[unit].all()]


def test_articulation_units_are_those_with_which_every_unit_compares() -> None:
    found = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng) if seed % 2 else beads(rng, [1, 2, 1, 3, 1])
        expected = plain_articulation_units(problem)
        assert articulation_units(problem).tolist() == expected
        found += len(expected)
    assert found > 300
    wide = random_layered_problem(np.random.default_rng(0), 300, 2)
    assert articulation_units(wide).tolist() == plain_articulation_units(wide)


def test_no_placement_in_any_order_is_faster_than_the_sum_of_the_parts() -> None:
    """Against brute force over placements and orders; the bound is met now and then."""
    met = tried = 0
    shapes = ([1, 2, 1], [1, 1, 1, 1], [2, 1, 2], [1, 3, 1], [1, 2, 1, 1], [3], [1, 2, 2])
    for seed, widths in zip(range(42), itertools.cycle(shapes), strict=False):
        problem = beads(np.random.default_rng(seed), list(widths))
        best, bound = brute_force(problem), parts_bound(problem)
        assert bound <= best
        met += bound >= best * (1.0 - 1e-6)
        tried += 1
    assert met > tried / 4


def test_the_bound_holds_where_a_problem_has_everything() -> None:
    """Classes, pins, memory, missing links, overheads, contention, streams, shared channels."""
    tried = 0
    for seed in range(400):
        problem = random_problem(np.random.default_rng(seed), n_ops=1 + seed % 5)
        if problem.n_units * problem.n_devices > 14:
            continue
        best = brute_force(problem)
        if math.isfinite(best):
            assert parts_bound(problem) <= best
            tried += 1
    assert tried > 100


def test_it_is_no_less_than_the_critical_path() -> None:
    for seed in range(50):
        problem = beads(np.random.default_rng(seed), [2, 1, 3, 1, 2, 2, 1])
        assert parts_bound(problem) >= critical_path_bound(problem) * (1.0 - 1e-6)


def test_a_fork_stays_together_or_pays() -> None:
    """A (1 s), then B and C (4 s each), then D (1 s); a way between the devices takes 5 s.

    Together 1 + 8 + 1 = 10. Apart C runs elsewhere from 6 to 10, where D has both inputs then: 11.
    The critical path says 6, the balanced load 5; this bound says 10.
    """
    builder = GraphBuilder()
    a = builder.add_op("A", "Op")
    first = builder.add_tensor(a, 1.0)
    made = []
    for name in ("B", "C"):
        op = builder.add_op(name, "Op", inputs=[first])
        made.append(builder.add_tensor(op, 1.0))
    builder.add_op("D", "Op", inputs=made)
    links = (Link("p", "q", 5.0), Link("q", "p", 5.0))
    seconds = frozen_floats(np.repeat([[1.0], [4.0], [4.0], [1.0]], 2, axis=1))
    cluster = Cluster((Device("p"), Device("q")), links, host="p")
    problem = Problem.of_ops(builder.build(), cluster, CostTable(seconds))
    assert brute_force(problem) == 10.0
    assert abs(parts_bound(problem) - 10.0) < 1e-6


def solved(problem: Problem, **settings: Any) -> PartsFound | None:
    """All that matters solved, the same each time."""
    parts = part_programs(problem)
    return parts and solve_parts(parts, lambda: 60.0, deterministic=True, **settings)


def test_solved_parts_bound_every_placement_in_every_order() -> None:
    """Against brute force; their placement takes what the bound says, so that both are the best."""
    met = tried = 0
    for seed, widths in zip(
        range(40), itertools.cycle(([1, 2, 1], [1, 3, 1, 1], [2, 1, 2])), strict=False
    ):
        problem = beads(np.random.default_rng(1000 + seed), list(widths))
        found, best = solved(problem), brute_force(problem)
        assert found is not None
        assert found.is_solved
        assert parts_bound(problem) <= found.bound * (1.0 + 1e-9)
        assert found.bound <= best
        assert found.device_of is not None
        value = Simulator(problem).value(Placement.of(found.device_of, found.order))
        assert value >= best
        met += value <= found.bound * (1.0 + 1e-5)
        tried += 1
    assert met == tried


def test_solved_parts_hold_where_a_problem_has_everything() -> None:
    tried = 0
    for seed in range(400):
        problem = random_problem(np.random.default_rng(seed), n_ops=1 + seed % 5)
        if problem.n_units * problem.n_devices > 12:
            continue
        found, best = solved(problem), brute_force(problem)
        if found is not None and math.isfinite(best):
            assert found.bound <= best
            tried += 1
    assert tried > 40


def test_bounds_rise_until_all_that_matters_is_solved() -> None:
    seen: list[float] = []
    problem = beads(np.random.default_rng(5), [1, 3, 1, 3, 1])
    found = solved(problem, on_bound=seen.append)
    assert found is not None
    assert seen == sorted(seen)
    assert seen[-1] == found.bound


def layers(count: int, third: float = 2.0) -> Problem:
    """The same fork-join `count` times, on two alike devices; neither is the host."""
    builder = GraphBuilder()
    last = builder.add_input(0.0)
    costs: list[float] = []
    for _ in range(count):
        first = builder.add_tensor(builder.add_op(f"op{len(costs)}", "Op", inputs=[last]), 1.0)
        made = []
        for branch in range(3):
            op = builder.add_op(f"op{len(costs) + 1 + branch}", "Op", inputs=[first])
            made.append(builder.add_tensor(op, 1.0))
        costs += [1.0, 3.0, 3.0, third]
        last = builder.add_tensor(builder.add_op(f"op{len(costs)}", "Op", inputs=made), 1.0)
        costs.append(1.0)
    builder.mark_output(last)
    ends = ("p", "q", "host")
    links = tuple(Link(a, b, 0.25, 4.0) for a in ends for b in ends if a != b)
    cluster = Cluster((Device("p"), Device("q")), links, "host")
    seconds = frozen_floats(np.repeat(np.array(costs)[:, None], 2, axis=1))
    return Problem.of_ops(builder.build(), cluster, CostTable(seconds))


def test_a_part_that_comes_again_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers and exchanged devices have one program; what they make together is as good."""
    asked: list[int] = []
    real = programs._solve

    def counted(part: Part, *rest: Any) -> None:
        asked.append(part.problem.n_units)
        real(part, *rest)

    monkeypatch.setattr(programs, "_solve", counted)
    counts = []
    for n_layers in (3, 12):
        asked.clear()
        problem = layers(n_layers)
        found = solved(problem)
        assert found is not None
        assert found.is_solved
        assert found.device_of is not None
        value = Simulator(problem).value(Placement.of(found.device_of, found.order))
        assert abs(value - found.bound) < 1e-5 * value
        counts.append(sum(n > 2 for n in asked))
    assert counts[0] == counts[1]
    together = solved(layers(3))
    monkeypatch.setattr(programs, "_MOST_COMPARED", 0)
    apart = solved(layers(3))
    assert apart is not None
    assert together is not None
    assert apart.bound == together.bound


def test_parts_that_differ_in_one_duration_are_solved_apart() -> None:
    found = solved(layers(2, third=2.0))
    slower = solved(layers(2, third=4.0))
    assert found is not None
    assert slower is not None
    assert slower.bound > found.bound


def test_devices_may_have_any_number_of_streams() -> None:
    """All branches run at once: 0.25 s of input, two layers of 1 + 3 + 1 s, 0.5 s of output."""
    plain = layers(2)
    devices = tuple(replace(device, streams=10**12) for device in plain.cluster.devices)
    found = solved(replace(plain, cluster=replace(plain.cluster, devices=devices)))
    assert found is not None
    assert found.is_solved
    assert found.bound == pytest.approx(10.75, rel=1e-5)


def test_a_problem_that_is_too_large_is_left_alone() -> None:
    """Its first op is an articulation unit, and a table for all of its devices would take long."""
    problem = random_layered_problem(np.random.default_rng(0), 6000, 16)
    assert len(articulation_units(problem)) >= 1
    assert parts_bound(problem) == 0.0
    assert part_programs(problem) is None


def test_a_part_that_is_never_solved_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """To compare a part of tens of thousands of units takes minutes, whatever the budget is."""
    problem, built = layers(2), []
    real = programs.part_problem

    def counted(*args: Any) -> Part:
        built.append(args)
        return real(*args)

    monkeypatch.setattr(programs, "part_problem", counted)
    assert part_programs(problem) is not None
    assert len(built) > 0
    built.clear()
    monkeypatch.setattr(programs, "_MOST_UNITS", 2)
    assert part_programs(problem) is not None
    assert built == []


def test_seconds_bound_no_joules() -> None:
    """Of five ops that draw next to nothing, the energy is far below the seconds."""
    problem = small_problem(np.random.default_rng(3), constrained=False)
    assert parts_bound(problem) > 1.0
    devices = tuple(replace(one, busy_watts=1e-3) for one in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices)
    charged = replace(problem, cluster=cluster, objective="energy")
    evaluator = Evaluator(charged)
    search_parts(charged, evaluator, part_programs(charged))
    assert evaluator.lower_bound <= brute_force(charged) < 1.0


def test_parts_of_which_none_has_a_placement_are_not_solved() -> None:
    """The last output has no way home from where the first op must be."""
    builder = GraphBuilder()
    tensors: list[int] = []
    for width in (1, 2, 1, 2, 1):
        made = []
        for _ in range(width):
            op = builder.add_op(f"op{len(builder._names)}", "Op", inputs=tensors)
            made.append(builder.add_tensor(op, 1.0))
        tensors = made
    builder.mark_output(tensors[0])
    seconds = np.ones((7, 2))
    seconds[0, 0] = math.inf
    cluster = Cluster((Device("d0"), Device("d1")), (Link("d0", "d1", 0.0, 1.0),), "d0")
    problem = Problem(
        builder.build(), cluster, CostTable(frozen_floats(seconds)), Grouping.identity(7)
    )
    found = solve_parts(part_programs(problem), lambda: 1.0, deterministic=True)
    assert found.bound == math.inf
    assert found.device_of is None


def in_classes(widths: list[int], classes: list[int], seconds: list[list[float]]) -> Problem:
    """Ops in steps, each op of a step reading all of the step before; two devices, free links."""
    builder, last, numbers = GraphBuilder(), list[int](), iter(classes)
    for width in widths:
        made = []
        for _ in range(width):
            name, number = f"op{len(builder._names)}", next(numbers)
            op = builder.add_op(name, "Op", inputs=last, colocation=number)
            made.append(builder.add_tensor(op, 1.0))
        last = made
    links = (Link("p", "q", 0.0), Link("q", "p", 0.0))
    cluster = Cluster((Device("p"), Device("q")), links, host="p")
    return Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(seconds)))


def test_a_part_with_a_class_of_two_ops_is_solved_again_from_its_schedule() -> None:
    problem = in_classes([1, 2, 1], [0, 1, 1, 2], [[1.0, 1.0], [4.0, 3.0], [4.0, 3.0], [1.0, 1.0]])
    parts = part_programs(problem)
    assert parts is not None
    part, pair = 1, parts.cheapest()[1][1]
    for _ in range(2):
        parts.solve(part, pair, 5.0, 1, True, lambda: False)
        assert parts.known(part, pair).is_solved
    assert parts.known(part, pair).value == pytest.approx(7.0)


def test_neighbouring_articulation_units_of_one_class_have_one_device_in_the_table() -> None:
    """Apart the middle ops take 1 s each; as one class they take 6 s on either device."""
    seconds = [[1.0, 1.0], [1.0, 5.0], [5.0, 1.0], [1.0, 1.0]]
    apart, together = (
        in_classes([1, 1, 1, 1], classes, seconds) for classes in ([0, 1, 2, 3], [0, 1, 1, 2])
    )
    assert parts_bound(apart) == pytest.approx(4.0)
    assert parts_bound(together) == pytest.approx(8.0)
    found = solved(together)
    assert found is not None
    assert found.is_solved
    assert found.bound == pytest.approx(8.0)


def test_the_table_is_not_computed_again_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, tables = layers(2), []
    real = programs.parts_bound

    def counted(problem: Problem) -> float:
        tables.append(problem)
        return real(problem)

    monkeypatch.setattr(programs, "parts_bound", counted)
    evaluator, parts = Evaluator(problem, Budget(evaluations=50)), part_programs(problem)
    search_parts(problem, evaluator, parts)
    search_parts(problem, evaluator, parts)
    assert tables == []
    assert evaluator.lower_bound >= real(problem)
    search_parts(problem, evaluator, None)
    assert len(tables) == 1
