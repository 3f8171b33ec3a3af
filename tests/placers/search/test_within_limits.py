"""A first placement within tight limits: found where the oracle says that there is one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from strategies import seeds, tight_problem

from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.advice import (
    Change,
    LimitChange,
    advice,
    smallest_changes,
    with_limit,
)
from placewright.placers.portfolio.auto import Auto
from placewright.placers.registry import make_placer
from placewright.placers.search.within_limits import (
    order_that_frees,
    placement_within_limits,
    search_within_limits,
)
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import packing_problem
from tests.simulation.oracle import Reference

FIRST = Auto(gap=1e12)  # ends with the first placement that keeps all limits


def keeps_all(problem: Problem, placement: Placement) -> bool:
    """True by the oracle."""
    return math.isfinite(Reference(problem, placement).value())


def tight(n_ops: int, first: int, count: int) -> list[Problem]:
    """So many problems, whose limits one placement keeps exactly."""
    made = (tight_problem(np.random.default_rng(seed), n_ops) for seed in range(first, 10**6))
    found = (problem for problem in made if problem is not None)
    return [next(found) for _ in range(count)]


@pytest.mark.parametrize(("n_ops", "count"), [(7, 60), (40, 20)])
def test_nearly_all_of_what_fits_is_found(n_ops: int, count: int) -> None:
    """Of problems with no byte to spare, in which orders, pools, pins and classes bind."""
    found = 0
    for problem in tight(n_ops, 0, count):
        placement = placement_within_limits(problem, Budget(evaluations=1200), rounds=3)
        if placement is not None:
            assert keeps_all(problem, placement)
            found += 1
    assert found >= 0.95 * count


@pytest.mark.parametrize("name", ["cp-sat", "local-search", "auto"])
def test_placers_begin_with_a_placement_within_the_limits(name: str) -> None:
    """List schedules and splits break a limit of each, and the program counts no live tensors."""
    for problem in tight(9, 2000, 4):
        if make_placer(name).why_not(problem) is not None:
            continue
        evaluator = Evaluator(problem, Budget(evaluations=600))
        settings_of = {"cp-sat": {"deterministic_seconds": "0.05", "alternatives": "0"}}
        placer = FIRST if name == "auto" else make_placer(name, settings_of.get(name, {}))
        found = placer.place(problem, evaluator, np.random.default_rng(0))
        assert found.placement is not None
        assert keeps_all(problem, found.placement)


def with_less(seed: int, n_ops: int) -> Problem | None:
    """A tight problem in which a device gets less than any placement needs, or than was found."""
    problem, rng = tight_problem(np.random.default_rng(seed), n_ops), np.random.default_rng(seed)
    if problem is None:
        return None
    sizes = {one.name: one.memory_bytes for one in problem.cluster.devices}
    names = [name for name, size in sizes.items() if math.isfinite(size)]
    if not names:
        return None
    name = str(rng.choice(names))
    return with_limit(problem, name, math.floor(sizes[name] * rng.uniform(0.3, 0.95)))


def require_limits_kept(problem: Problem, changes: Sequence[Change]) -> None:
    """`auto` finds a placement with each higher limit; the oracle agrees that it keeps all."""
    for change in changes:
        if isinstance(change, LimitChange):
            raised = with_limit(problem, change.device, float(math.ceil(change.limit)))
            evaluator = Evaluator(raised, Budget(evaluations=4000))
            found = FIRST.place(raised, evaluator, np.random.default_rng(1))
            assert found.placement is not None, change
            assert keeps_all(raised, found.placement)


@settings(max_examples=4, deadline=None)
@given(seeds)
def test_auto_keeps_every_limit_that_advice_names(seed: int) -> None:
    problem = with_less(seed, 6)
    assume(problem is not None)
    assert problem is not None
    for most in (0, 4096):
        require_limits_kept(problem, smallest_changes(problem, most))


@settings(max_examples=3, deadline=None)
@given(seeds)
def test_auto_keeps_limits_of_larger_problems_that_advice_names(seed: int) -> None:
    """Of 20 to 40 ops, whose placements nobody enumerates."""
    problem = with_less(seed, 20 + seed % 21)
    assume(problem is not None)
    assert problem is not None
    require_limits_kept(problem, smallest_changes(problem, seconds=0.4))


def test_a_shorter_search_finds_what_a_longer_one_begins_with() -> None:
    for problem in tight(12, 4000, 6):
        short = placement_within_limits(problem, Budget(evaluations=700), rounds=2)
        longer = placement_within_limits(problem, Budget(evaluations=5000))
        if short is not None:
            assert longer is not None
            assert short.device_of.tolist() == longer.device_of.tolist()


def freeing_order(graph: nx.DiGraph, sizes: Mapping[str, float]) -> list[str]:
    """The order of a graph on one device that just holds it; `sizes` are bytes of outputs."""
    for source, target in graph.edges:
        graph.edges[source, target].update(bytes=sizes[source], tensor=source)
    n_ops = len(graph)
    problem = Problem.from_costs(graph, np.ones((n_ops, 1)), (0.0, math.inf), memory=[13.0])
    order = order_that_frees(problem, np.zeros(n_ops, dtype=np.int64))
    assert keeps_all(problem, Placement.of([0] * n_ops, order))
    return [problem.graph.op_names[op] for op in order.tolist()]


def test_an_order_that_frees_bytes_reads_them_before_it_makes_more() -> None:
    """Two branches of 10 bytes that shrink to 1: one ends before the other begins."""
    graph = nx.DiGraph()
    nx.add_path(graph, ["a", "big a", "small a", "sum"])
    nx.add_path(graph, ["a", "big b", "small b", "sum"])
    names = freeing_order(graph, {name: 10.0 if name.startswith("big") else 1.0 for name in graph})
    assert abs(names.index("big a") - names.index("small a")) == 1
    assert abs(names.index("big b") - names.index("small b")) == 1


def test_an_order_that_frees_takes_the_last_reader_at_once() -> None:
    """The second reader of 10 bytes makes 2, and frees 10 once the first has read them."""
    graph = nx.DiGraph()
    nx.add_path(graph, ["big", "second", "end"])
    nx.add_path(graph, ["big", "first", "third", "end"])
    sizes = {"big": 10.0, "first": 0.0, "second": 2.0, "third": 1.0}
    assert freeing_order(graph, sizes) == ["big", "first", "second", "third", "end"]


def test_what_is_closest_is_named_if_nothing_is_found() -> None:
    """Three times 3 bytes on two devices of 5: one of them is a byte short."""
    evaluator = Evaluator(packing_problem())
    found = search_within_limits(evaluator, rounds=1)
    assert found.placement is None
    assert "of those tried, the closest to it: device 'a' needs 6 B and has 5 B" in found.message


def test_advice_says_that_a_longer_search_finds_a_placement() -> None:
    roomy = with_limit(packing_problem(n_ops=15), "a", 1e3)
    assert "raise the budget of the search" in advice(roomy)


def test_kept_bytes_of_samples_in_flight_are_packed() -> None:
    """Execution model `max-load` has no orders: ten weights of 1 to 10 bytes on 28 + 27 bytes."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(10))
    nx.set_node_attributes(graph, {op: float(op + 1) for op in range(10)}, "weight_bytes")
    problem = replace(
        Problem.from_costs(graph, np.ones((10, 2)), (0.0, math.inf), memory=[28.0, 27.0]),
        objective="throughput",
        execution_model=MaxLoad(samples_in_flight=0),
    )
    assert placement_within_limits(problem, Budget()) is not None
