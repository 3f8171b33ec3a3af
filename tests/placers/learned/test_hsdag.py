"""HSDAG: gradients, parsing, settings and presets, the rule on homogeneous placements, learning."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import mannwhitneyu
from support import toys

from placewright.errors import InputError
from placewright.placers.learned.hsdag.algorithm import (
    HsdagGraph,
    make_policy,
    mean_time,
    rewards_of,
    run_episode,
    run_steps,
)
from placewright.placers.learned.hsdag.graph import vocabulary_of
from placewright.placers.learned.hsdag.network import Dropout, dominant_communities
from placewright.placers.learned.hsdag.placer import Hsdag, HsdagCorrected, HsdagReleased
from placewright.placers.learned.shared.returns import FAILING_TIMES, reference_value
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator

FORMS = (Hsdag, HsdagReleased, HsdagCorrected)


@pytest.mark.parametrize("form", FORMS)
def test_gradient_of_the_loss_is_that_of_finite_differences(form: type[Hsdag]) -> None:
    problem = toys.two_cluster_problem(2)
    choices = form(hidden=8, steps=1, draws=1, dropout=0.0)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    try:
        graph = HsdagGraph.of(problem, choices, vocabulary_of(problem))
        policy = make_policy(choices, graph.features.shape[1], 2)

        def loss() -> torch.Tensor:
            generator = torch.Generator().manual_seed(3)
            steps = run_episode(policy, graph, choices, generator)
            return -0.7 * steps.log_probabilities.sum()

        loss().backward()  # type: ignore[no-untyped-call]
        gnn = policy.gnn1.layers[0], policy.gnn2.layers[0]
        weights = [layer.lin.weight for layer in gnn]
        weights += [policy.edge_score[0].weight, policy.classifier[0].weight]
        for weight in weights:
            assert weight.grad is not None
            for entry in [(0, 0), (3, 4), (7, 2)]:
                with torch.no_grad():
                    weight[entry] += 1e-6
                    up = loss().item()
                    weight[entry] -= 2e-6
                    down = loss().item()
                    weight[entry] += 1e-6
                assert weight.grad[entry].item() == pytest.approx((up - down) / 2e-6, abs=1e-5)
            assert weight.grad.abs().max() > 0
    finally:
        torch.set_default_dtype(torch.float32)


def test_dominant_edges_join_pairs() -> None:
    """Each node's best edge joins it to its pair; pairs are numbered by falling score."""
    one_way = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    score = np.array([0.9, 0.1, 0.8, 0.2, 0.7])
    both = np.concatenate([one_way, one_way[::-1]], axis=1)
    order = np.lexsort((both[1], both[0]))
    found = dominant_communities(both[:, order], np.tile(score, 2)[order], 7)
    assert found.community_of.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert found.n_communities == 4
    assert np.count_nonzero(found.inner) == 6


@pytest.mark.parametrize("form", FORMS)
def test_a_connected_graph_is_grouped_into_more_than_one(form: type[Hsdag]) -> None:
    """The whole model, sampled as in a run with one round: every pass has 1 < clusters < nodes."""
    problem = toys.two_cluster_problem(12)
    choices = form(hidden=16, parse_rounds=1)
    graph = HsdagGraph.of(problem, choices, vocabulary_of(problem))
    edges, n_nodes = graph.coarse.edges, graph.coarse.n_nodes
    torch.manual_seed(0)
    policy = make_policy(choices, graph.features.shape[1], 2)
    parsed = policy(graph.features, graph.links)
    for start in range(0, len(parsed.cluster_of), n_nodes):
        clusters = len(np.unique(parsed.cluster_of[start : start + n_nodes]))
        assert 1 < clusters < n_nodes
    matrix = coo_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n_nodes, n_nodes))
    assert connected_components(matrix, directed=False)[0] == 1
    generator = torch.Generator().manual_seed(0)
    steps, _ = run_steps(policy, graph, graph.features, choices.draws, generator)
    assert steps.n_clusters > 1
    whole = make_policy(dataclasses.replace(choices, parse_rounds=0), graph.features.shape[1], 2)
    clusters = whole(graph.features, graph.links).cluster_of
    assert len(np.unique(clusters)) == len(clusters) // n_nodes  # one for each copy
    alone = make_policy(
        dataclasses.replace(choices, without_grouping=True), graph.features.shape[1], 2
    )
    assert len(np.unique(alone(graph.features, graph.links).cluster_of)) == len(clusters)


def test_dropout_is_on_while_sampling() -> None:
    torch.manual_seed(0)
    policy = make_policy(HsdagReleased(), 5, 2).eval()  # eval changes nothing
    layers = [module for module in policy.modules() if isinstance(module, Dropout)]
    assert len(layers) == 2 + 1 + 1 + 2 + 1  # input, gnn1, gnn2, output, edge scores
    for layer in layers:
        share = float((layer(torch.ones(200, 200)) == 0).float().mean())
        assert share == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("form", FORMS)
def test_settings_as_text_give_the_form(form: type[Hsdag]) -> None:
    mine = make_placer(form.name, {"steps": "15", "baseline": "true"})
    assert mine == form(steps=15, baseline=True)


def test_the_forms_change_what_their_docstrings_list() -> None:
    for form, count in ((HsdagReleased, 6), (HsdagCorrected, 11)):
        mine, paper = dataclasses.asdict(form()), dataclasses.asdict(Hsdag())
        changed = [name for name in paper if mine[name] != paper[name]]
        assert len(changed) == count
        assert all(f"`{name}`" in (form.__doc__ or "") or name == "discount" for name in changed
                   if name not in ("steps", "draws")), changed  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [{"steps": 0}, {"discount": 1.5}, {"dropout": 1.0}, {"returns": "mean"}, {"draws": 3}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="hsdag"):
        Hsdag(**settings)


@pytest.mark.parametrize("seed", range(3))
def test_released_never_returns_a_homogeneous_placement(seed: int) -> None:
    """Transfers take so long that one device for all is best, and is sampled."""
    problem = toys.two_cluster_problem(2)
    slow = toys.cluster_of(2, bandwidth=1e3)
    settings = HsdagReleased(parse_rounds=1)  # a graph that small would be one cluster
    evaluator = toys.run(settings, dataclasses.replace(problem, cluster=slow), 200, seed)
    assert evaluator.best is not None
    assert len(np.unique(evaluator.best.device_of)) == 2
    assert min(evaluator.samples) < evaluator.best_value  # a homogeneous one, which is not kept
    assert evaluator.evaluations == 200


def test_no_homogeneous_start_becomes_the_answer_where_these_are_failures() -> None:
    settings = HsdagReleased(homogeneous_starts=True)
    evaluator = toys.run(settings, toys.two_cluster_problem(), 20)
    best = evaluator.best
    assert best is None or len(np.unique(best.device_of)) == 2


def test_released_says_why_it_found_nothing_where_all_it_samples_is_homogeneous() -> None:
    """The authors' loop merges a small graph into one cluster, so no placement ever counts."""
    settings = HsdagReleased()
    problem = toys.two_cluster_problem()
    evaluator = toys.Evaluator(problem, toys.Budget(evaluations=40))
    solution = settings.place(problem, evaluator, np.random.default_rng(0))
    assert (solution.status, solution.placement, solution.evaluations) == ("unknown", None, 40)
    assert "none of 40 placements counts" in solution.message
    assert "homogeneous=true" in solution.message
    allowed = dataclasses.replace(settings, homogeneous=True)
    assert toys.run(allowed, problem, 40).solution().status == "feasible"


@pytest.mark.parametrize("form", [Hsdag, HsdagReleased])
def test_failures_count_as_ten_reference_times_in_the_mean_time(form: type[Hsdag]) -> None:
    """The second placement is homogeneous, which is a failure to `hsdag-released` only."""
    problem = toys.separable_problem(4)
    evaluator, placements = Evaluator(problem), np.array([[0, 1, 0, 1], [0, 0, 0, 0]])
    rewards = rewards_of(form(), evaluator, placements)
    split, homogeneous = evaluator.samples
    if form is HsdagReleased:
        homogeneous = FAILING_TIMES * reference_value(problem)
    assert mean_time(evaluator, rewards) == pytest.approx((split + homogeneous) / 2)


@pytest.mark.slow  # test_learning.py tests the same with one seed
def test_the_policys_own_samples_become_better_with_default_settings() -> None:
    """Medians of the last tenth, against the same learner without updates and uniform draws."""
    problem = toys.two_cluster_problem()
    last: dict[str, list[float]] = {"learns": [], "only samples": [], "uniform": []}
    for seed in range(8):
        for name, placer in (
            ("learns", make_placer("hsdag-corrected")),
            ("only samples", make_placer("hsdag-corrected", {"updates": "false"})),
            ("uniform", make_placer("random-grouped", {"learner": "hsdag-corrected"})),
        ):
            samples = toys.run(placer, problem, 500, seed).samples
            assert len(samples) == 500 - problem.n_devices  # starts are no samples
            last[name].append(float(np.median(samples[-50:])))
    for control in ("only samples", "uniform"):
        assert mannwhitneyu(last["learns"], last[control], alternative="less").pvalue < 0.05
