"""Local search starts from list schedules: it never ends behind one that it could have called."""

from __future__ import annotations

from dataclasses import replace

import networkx
import numpy as np
import pytest
from support import toys

from placewright.core.arrays import Csr
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import BudgetSpent
from placewright.placers.registry import make_placer
from placewright.placers.search import local_search
from placewright.placers.search.neighbourhood import branches, moves_of
from placewright.simulation.evaluator import Evaluator
from placewright.suites.suite.runs import graph_of_edges, random_layered_problem
from placewright.testing.problems import random_problem

LISTS = ("m-etf", "heft", "peft")


def value(name: str, problem: Problem, evaluations: int, seed: int = 0) -> float:
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    found = make_placer(name).place(problem, evaluator, np.random.default_rng(seed))
    assert evaluator.evaluations <= evaluations
    return found.value


def test_an_incumbent_is_taken_with_its_own_value() -> None:
    """Another lane may find a better one at any time."""
    problem = random_problem(np.random.default_rng(0), n_ops=8, constrained=False)
    evaluator = toys.Busy(problem)
    evaluator.evaluate(np.arange(8) % 2)
    found, reached = local_search._incumbent(problem, evaluator, np.random.default_rng(0))
    assert reached == evaluator.simulator.value(Placement.of(found))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("evaluations", [3, 30])
def test_it_is_at_least_as_good_as_every_list_schedule(seed: int, evaluations: int) -> None:
    problem = random_problem(np.random.default_rng(seed), n_ops=300, n_devices=4, constrained=False)
    best = min(value(name, problem, 1) for name in LISTS)
    assert value("local-search", problem, evaluations, seed) <= best


def test_one_evaluation_is_one_list_schedule() -> None:
    problem = random_problem(np.random.default_rng(7), n_ops=40, n_devices=3, constrained=False)
    assert value("local-search", problem, 1) == value("m-etf", problem, 1)


def test_seconds_that_a_list_schedule_would_exceed_still_give_a_placement() -> None:
    """The clock jumps past the budget at the end of the first list schedule."""
    problem = random_problem(np.random.default_rng(1), n_ops=40, n_devices=3, constrained=False)
    times = [0.0]
    evaluator = Evaluator(problem, Budget(seconds=1.0), clock=lambda: times[0])
    evaluate = evaluator.evaluate

    def late(*arguments: object) -> float:
        times[0] = 2.0
        return evaluate(*arguments)  # type: ignore[arg-type]

    evaluator.evaluate = late  # type: ignore[assignment,method-assign]
    found = make_placer("local-search").place(problem, evaluator, np.random.default_rng(0))
    assert found.placement is not None
    assert evaluator.evaluations > 0


@pytest.mark.parametrize("seed", range(6))
def test_branches_are_units_behind_one_unit_or_before_one(seed: int) -> None:
    """A unit's branch is what no path from a source reaches without it, and the mirror image."""
    problem = random_layered_problem(np.random.default_rng(seed), 30, 2, 1 + seed % 2)
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(problem.n_units))
    successors = problem.unit_graph.successors
    rows = successors.row_of_each().tolist()
    graph.add_edges_from(zip(rows, successors.indices.tolist(), strict=True))
    expected = set()
    for way in (graph, graph.reverse()):
        sources = [unit for unit in way if way.in_degree(unit) == 0]
        for unit in way:
            rest = way.copy()
            rest.remove_node(unit)
            reached = set(sources) - {unit}
            for source in sorted(reached):
                reached |= networkx.descendants(rest, source)
            expected.add(frozenset(set(way) - reached))
    found = [frozenset(units.tolist()) for units in branches(problem)]
    assert set(found) == {units for units in expected if 2 <= len(units) < problem.n_units}
    assert len(found) == len(set(found))
    assert [len(units) for units in found] == sorted(len(units) for units in found)


def test_starts_are_evaluated_before_moves_are_laid_out() -> None:
    """Which takes as long as the simulation of hundreds of placements."""
    problem = random_layered_problem(np.random.default_rng(0), 3000, 2)
    lists: list[int] = []

    class Ears(Evaluator):
        def evaluate_many(self, devices_of, *, keep=None):  # type: ignore[no-untyped-def]
            lists.append(moves_of.cache_info().misses)
            raise BudgetSpent

    before = moves_of.cache_info().misses
    evaluator = Ears(problem, Budget(seconds=60.0))
    make_placer("local-search").place(problem, evaluator, np.random.default_rng(0))
    assert lists == [before]


def test_branches_of_a_long_chain_take_little_memory() -> None:
    """A chain of 4,000 units has branches of sixteen million members in all."""
    problem = random_layered_problem(np.random.default_rng(0), 4000, 2, 1)
    edges = [[op + 1] for op in range(3999)]
    chain = graph_of_edges(Csr.from_rows([*edges, []]), problem.graph.tensor_bytes)
    found = branches(replace(problem, graph=chain))
    assert 1_000_000 < sum(map(len, found)) <= 4_000_000
