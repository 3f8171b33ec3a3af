"""How units become groups, by hand on small graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import networkx as nx
import numpy as np
import strategies
from hypothesis import given, settings
from support import toys

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.learned.hsdag.graph import coarsened, node_features, vocabulary_of
from placewright.placers.learned.placeto.placer import (
    OrderedMerger,
    first_positions,
    ordered_edges,
)
from placewright.placers.learned.shared.group_inputs import (
    fractal_dimension,
    group_adjacency,
    output_shapes,
)
from placewright.placers.learned.shared.grouping import (
    Merger,
    merge_chains,
    merge_to_fixpoint,
    merged_space,
    neighbour_merge,
)
from placewright.placers.legal import ActionSpace
from placewright.placers.registry import make_placer


def problem_of(
    edges: list[tuple[int, int]], n: int, classes: tuple[int, ...] | None = None
) -> Problem:
    builder = GraphBuilder()
    tensors = []
    for op in range(n):
        reads = [tensors[a] for a, b in edges if b == op]
        own = -1 if classes is None else classes[op]
        builder.add_op(f"op{op}", "Op", inputs=reads, colocation=own)
        tensors.append(builder.add_tensor(op, 8.0, shape=(2,), is_output=op == n - 1))
    costs = CostTable(frozen_floats(np.ones((n, 2))))
    return Problem.of_ops(builder.build(), toys.cluster_of(2), costs)


def group_graph(problem: Problem, grouping: Grouping) -> nx.DiGraph:
    return nx.DiGraph(np.argwhere(group_adjacency(problem, grouping) > 0).tolist())


def merged(problem: Problem, merge: Callable[[Problem, Merger], None]) -> Grouping:
    merger = Merger(problem)
    merge(problem, merger)
    return merger.grouping(problem)


def ordered_space(problem: Problem, n_groups: int) -> ActionSpace:
    return merged_space(problem, n_groups, OrderedMerger)


DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_the_published_fixpoint_swallows_a_graph_with_one_output() -> None:
    """1 and 2 join 3, then 0's only reader is that group."""
    assert merged(problem_of(DIAMOND, 4), merge_to_fixpoint).n_groups == 1


def test_at_the_fixpoint_no_group_has_a_single_reader() -> None:
    """0 -> 1 -> {2, 3}: 0 joins 1; two sinks keep what feeds both apart."""
    problem = problem_of([(0, 1), (1, 2), (1, 3), (3, 4)], 5)
    grouping = merged(problem, merge_to_fixpoint)
    assert grouping.group_of.tolist() == [0, 0, 1, 2, 2]
    readers = (group_adjacency(problem, grouping) > 0).sum(axis=1)
    assert not np.any(readers == 1)


def test_chains_keep_branches_apart() -> None:
    assert merged(problem_of(DIAMOND, 4), merge_chains).group_of.tolist() == [0, 1, 2, 3]


def test_neighbours_merge_to_the_number_asked_for() -> None:
    problem = problem_of([(i, i + 1) for i in range(9)], 10)
    assert neighbour_merge(problem, Grouping.identity(10), 4).n_groups == 4


def test_groups_without_neighbours_join_groups_that_have_merged() -> None:
    """Eight pairs have merged when the lone op's turn comes: their old costs are no candidates."""
    problem = problem_of([(2 * pair, 2 * pair + 1) for pair in range(8)], 17)
    seconds = np.tile(np.array([*[0.1, 10.0] * 8, 5.0])[:, None], (1, 2))
    problem = dataclasses.replace(problem, costs=CostTable(frozen_floats(seconds)))
    assert neighbour_merge(problem, Grouping.identity(17), 1).n_groups == 1


def test_an_unknown_extent_is_no_infinite_feature() -> None:
    builder = GraphBuilder()
    first = builder.add_op("first", "Op", inputs=[])
    tensor = builder.add_tensor(first, 8.0, shape=(-1, -1, 3))
    last = builder.add_op("last", "Op", inputs=[tensor])
    builder.add_tensor(last, 8.0, shape=(2,), is_output=True)
    costs = CostTable(frozen_floats(np.ones((2, 2))))
    problem = Problem.of_ops(builder.build(), toys.cluster_of(2), costs)
    rows = output_shapes(problem, Grouping.identity(2))
    np.testing.assert_allclose(rows[0, :4], [-1.0, -1.0, np.log(4.0), -1.0])
    graph = coarsened(problem, 0, weights_as_nodes=True)
    features = node_features(graph, vocabulary_of(problem), ["output_shape"], normalised=True)
    assert np.isfinite(features).all()


def layered(seed: int, n: int = 40) -> Problem:
    rng = np.random.default_rng(seed)
    edges = {(int(rng.integers(max(0, b - 6), b)), b) for b in range(1, n) for _ in range(2)}
    return problem_of(sorted(edges), n)


@settings(max_examples=60, deadline=None)
@given(strategies.seeds)
def test_ordered_groups_close_no_cycle(seed: int) -> None:
    """Every edge leads to a larger number, and there are no more groups than asked for."""
    problem, n_groups = layered(seed), 2 + seed % 9
    space = ordered_space(problem, n_groups)
    assert space.n_groups <= n_groups
    graph = group_graph(problem, space.grouping)
    assert nx.is_directed_acyclic_graph(graph)
    assert all(first < second for first, second in graph.edges)


def test_merging_neighbours_without_the_rule_closes_cycles() -> None:
    """What the rule is for: of twenty graphs most have groups in cycles without it."""
    cyclic = 0
    for seed in range(20):
        problem = layered(seed)
        grouping = merged_space(problem, 8).grouping
        cyclic += not nx.is_directed_acyclic_graph(group_graph(problem, grouping))
    assert cyclic > 10


@settings(max_examples=60, deadline=None)
@given(strategies.seeds)
def test_ordered_groups_of_any_problem_keep_a_graph_without_cycles(seed: int) -> None:
    """Colocation and shared weights may close cycles: the edges that are left close none."""
    problem = strategies.random_problem(np.random.default_rng(seed))
    edges = ordered_edges(problem, first_positions(problem))
    grouping = OrderedMerger(problem).grouping(problem)
    assert grouping.n_groups == problem.colocation.n_groups
    assert nx.is_directed_acyclic_graph(nx.DiGraph(edges.T.tolist()))
    grouping = ordered_space(problem, 3).grouping
    assert np.array_equal(np.unique(grouping.group_of), np.arange(grouping.n_groups))
    of_class = np.empty(problem.colocation.n_groups, dtype=np.int64)
    of_class[problem.colocation.group_of] = grouping.group_of
    assert np.array_equal(of_class[problem.colocation.group_of], grouping.group_of)
    assert (of_class[edges[0]] <= of_class[edges[1]]).all()


def test_a_training_step_has_the_graph_of_its_forward_pass() -> None:
    """Three layers, each with its backward op: all edges between layers go both ways."""
    from placewright.placers.learned.placeto.algorithm import PlacetoGraph
    from placewright.simulation.evaluator import Evaluator

    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (1, 4)]
    problem = problem_of(edges, 6, classes=(0, 1, 2, 2, 1, 0))
    space = ordered_space(problem, 64)
    assert space.grouping.group_of.tolist() == [0, 1, 2, 2, 1, 0]
    published = PlacetoGraph.of(space, Evaluator(problem))
    assert published.adjacency.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert published.descendants.tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_placeto_visits_ordered_groups() -> None:
    problem = layered(3)
    learner = make_placer("placeto", {"groups": "8"})
    control = make_placer("random-grouped", {"learner": "placeto", "groups": "8"})
    group_of = ordered_space(problem, 8).grouping.group_of
    assert np.array_equal(learner.actions(problem).grouping.group_of, group_of)  # type: ignore[attr-defined]
    for placer in (learner, control):
        recorder = toys.Recorder(problem)
        evaluations = toys.run(placer, problem, 40, measure=recorder).evaluations
        assert evaluations == 40
        first = [int(np.flatnonzero(group_of == group)[0]) for group in range(8)]
        drawn = np.stack(recorder.placements)
        assert np.array_equal(drawn, drawn[:, first][:, group_of])


def test_a_group_never_fills_more_than_a_quarter_of_a_device() -> None:
    builder = GraphBuilder()
    tensor = None
    for op in range(8):
        weight = builder.add_weight(100.0)
        inputs = [] if tensor is None else [tensor]
        builder.add_op(f"op{op}", "Op", inputs=inputs, weights=[weight])
        tensor = builder.add_tensor(op, 1.0, is_output=op == 7)
    costs = CostTable(frozen_floats(np.ones((8, 2))))
    problem = Problem.of_ops(builder.build(), toys.cluster_of(2, memory_bytes=800.0), costs)
    assert np.bincount(merged(problem, merge_to_fixpoint).group_of).max() == 2


def test_units_that_cannot_follow_their_group_go_home() -> None:
    problem = problem_of([(0, 1), (1, 2)], 3)
    costs = CostTable(frozen_floats([[1.0, 1.0], [1.0, np.inf], [1.0, 1.0]]))
    space = ActionSpace(dataclasses.replace(problem, costs=costs), Grouping.from_labels([0, 0, 0]))
    assert space.allowed.tolist() == [[True, False]]
    assert space.expand(np.array([1])).tolist() == [1, 0, 1]


def test_fractal_dimension_of_a_chain_is_one() -> None:
    """From the first of 5 nodes in a row N(r) = r for r = 1..4."""
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
    assert np.isclose(fractal_dimension(edges, 5)[0], 1.0)
    assert fractal_dimension(edges, 5)[4] == 0.0
