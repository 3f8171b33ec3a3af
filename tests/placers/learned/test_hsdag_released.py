"""HSDAG's network, parsing and learning against arrays that the authors' own code computed.

``released_hsdag.npz`` was made by running github.com/hping666/HSDAG at commit
9d5caf7770cd50f975e014d19920873c112df095 (``model.py``, ``layer.py``, ``layers/gcn_conv.py``,
``PPO`` and ``train`` of ``main.py``) on graphs and weights drawn at random, dropout 0. The sparse
types of torch_sparse and torch_scatter were stood in for by index arithmetic of the same meaning.
``make_released_hsdag.py`` beside the file makes the outputs again from its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import toys

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.learned.hsdag import algorithm
from placewright.placers.learned.hsdag.algorithm import HsdagGraph
from placewright.placers.learned.hsdag.graph import CoarseGraph, GraphView
from placewright.placers.learned.hsdag.network import HsdagPolicy, Links, dominant_communities
from placewright.placers.learned.hsdag.placer import HsdagReleased
from placewright.placers.learned.shared.learning_scope import torch_scope
from placewright.placers.legal import ActionSpace
from placewright.simulation.evaluator import Evaluator

FILE = Path(__file__).parents[2] / "data" / "released_hsdag.npz"
# Name in the authors' state dict -> ours; indices of layers are those of the released ModuleLists.
NAMES = {
    "gpnn.input_trans.mlp.": "input_trans.",
    "gpnn.output_trans.mlp.0.": "output_trans.0.",
    "gpnn.output_trans.mlp.3.": "output_trans.3.",
    "gpnn.parsing_net.edge_net.mlp.": "edge_score.",
    "gpnn.gnn1.gnn.0.": "gnn1.layers.0.",
    "gpnn.gnn1.gnn.3.": "gnn1.layers.1.",
    "gpnn.gnn1.norm.": "gnn1.norm.",
    "gpnn.gnn2.gnn.0.": "gnn2.layers.0.",
    "gpnn.gnn2.norm.": "gnn2.norm.",
    "gpnn.deepsets_pre.mlp.0.": "before_sum.linear.",
    "gpnn.deepsets_pre.norm.": "before_sum.norm.",
    "gpnn.deepsets_post.mlp.0.": "after_sum.linear.",
    "gpnn.deepsets_post.norm.": "after_sum.norm.",
    "classifier.": "classifier.",
}


@pytest.fixture(scope="module")
def theirs() -> dict[str, NDArray[np.float64]]:
    with np.load(FILE) as arrays:
        return {name: arrays[name] for name in arrays.files}


def weights_under(arrays: dict[str, NDArray[np.float64]], prefix: str) -> dict[str, torch.Tensor]:
    """The authors' parameters under our names."""
    found = {}
    for name, value in arrays.items():
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            start = next(start for start in NAMES if rest.startswith(start))
            found[NAMES[start] + rest.removeprefix(start)] = torch.tensor(value)
    return found


def policy_with(
    arrays: dict[str, NDArray[np.float64]], prefix: str, parse_rounds: int
) -> HsdagPolicy:
    weights = weights_under(arrays, prefix)
    hidden, n_features = weights["input_trans.0.weight"].shape
    n_devices = len(weights["classifier.2.bias"])
    policy = HsdagPolicy(n_features, n_devices, hidden, 0.0, parse_rounds)
    policy.load_state_dict(weights)  # strict: every parameter has its counterpart
    return policy


def close(ours: torch.Tensor, theirs: NDArray[np.float64]) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=0, atol=1e-5)


def test_every_module_gives_what_the_released_one_gives(
    theirs: dict[str, NDArray[np.float64]],
) -> None:
    """A connected graph of 40 nodes, two pairs of which are joined both ways, to the last round."""
    policy = policy_with(theirs, "layers/weight/", 0)
    x = torch.tensor(theirs["layers/x"])
    links = Links.symmetric(theirs["layers/edges"], len(x))
    hidden = policy.input_trans(x)
    close(hidden, theirs["layers/input_trans"])
    n_rounds = int(theirs["layers/rounds"])
    assert n_rounds == 4
    for number in range(n_rounds):
        at = f"layers/{number}/"
        close(policy.gnn1(hidden, links.adjacency), theirs[f"{at}gnn1"])
        nodes = policy.gnn2(hidden, links.adjacency)
        close(nodes, theirs[f"{at}gnn2"])
        out, community_of, further = policy.round(hidden, links)
        assert np.array_equal(community_of, theirs[f"{at}community_of"])
        if f"{at}before_sum" in theirs:
            before = policy.before_sum(nodes)
            close(before, theirs[f"{at}before_sum"])
            pooled = torch.zeros(len(out), before.shape[1])
            pooled = pooled.index_add(0, torch.tensor(community_of), before)
            close(policy.after_sum(pooled), theirs[f"{at}after_sum"])
            factor = torch.tensor(theirs[f"{at}factor"])
            close(out, theirs[f"{at}after_sum"] * factor[:, None].numpy())
        else:
            close(out, hidden.detach().numpy())  # one node is left and stays as it is
        assert np.array_equal(further.edges, theirs[f"{at}edges_after"])
        hidden, links = out, further
    parsed = policy(x, Links.symmetric(theirs["layers/edges"], len(x)))
    close(parsed.embedding, theirs["layers/output"])
    close(torch.softmax(parsed.logits, dim=1), theirs["layers/probabilities"])
    assert np.array_equal(parsed.cluster_of, theirs["layers/cluster_of"])


def test_parsing_without_dropout_makes_a_connected_graph_one_group(
    theirs: dict[str, NDArray[np.float64]],
) -> None:
    """The authors' loop, in their own arrays, which were made without dropout."""
    assert np.all(theirs["layers/cluster_of"] == 0)
    assert theirs["layers/0/community_of"].max() + 1 == 10


def test_parsing_with_dropout_leaves_several_groups_of_a_connected_graph() -> None:
    """An edge scores differently in its two directions, and inner edges are not carried on."""
    n = 40
    links = Links.symmetric(np.array([range(n - 1), range(1, n)]), n, 1)
    counts: dict[float, set[int]] = {0.0: set(), 0.2: set()}
    with torch_scope(np.random.default_rng(0)):
        for dropout, found in counts.items():
            policy = HsdagPolicy(6, 2, 32, dropout, 0)
            for _ in range(20):
                found.add(int(policy(torch.randn(n, 6), links).cluster_of.max()) + 1)
    assert counts[0.0] == {1}
    assert max(counts[0.2]) > 1


@pytest.mark.parametrize("case", range(3))
def test_communities_are_the_released_ones_where_directions_score_differently(
    theirs: dict[str, NDArray[np.float64]], case: int
) -> None:
    """As with dropout on; the third graph is in three parts and has two nodes without edges."""
    at = f"parse/{case}/"
    edges, score, n = theirs[f"{at}edges"], theirs[f"{at}score"], int(theirs[f"{at}n"])
    assert np.any(score[np.lexsort((edges[0], edges[1]))] != score)
    found = dominant_communities(edges, score, n)
    assert np.array_equal(found.community_of, theirs[f"{at}community_of"])
    total = np.bincount(
        found.community_of[edges[0, found.inner]], score[found.inner], found.n_communities
    )
    factor = np.where(np.isin(np.arange(n), edges[0]).any(), total, 1.0)
    alone = np.bincount(found.community_of[edges[0, found.inner]], minlength=len(total)) == 0
    np.testing.assert_allclose(np.where(alone, 1.0, factor), theirs[f"{at}factor"], atol=1e-5)
    outer = found.community_of[edges[:, ~found.inner]]
    assert np.array_equal(np.unique(outer, axis=1), theirs[f"{at}edges_after"])


@pytest.fixture
def double() -> Iterator[None]:
    """Adam makes steps of what is only rounding in single precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
def test_three_episodes_learn_what_the_released_training_learns(
    theirs: dict[str, NDArray[np.float64]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """State, log-probabilities, the rule on homogeneous placements, returns, loss and updates.

    The authors' ``train`` ran three episodes of four steps on a graph in four parts, two placements
    of which were homogeneous; its actions are played again here.
    """
    n = len(theirs["train/x"])
    problem = problem_of_nodes(theirs["train/edges"], n)
    graph = HsdagGraph(
        CoarseGraph(
            GraphView.of(problem.graph),
            ActionSpace(problem, Grouping.identity(n)),
            np.arange(n),
            theirs["train/edges"],
            np.arange(n),
        ),
        torch.tensor(theirs["train/x"]),
        Links.symmetric(theirs["train/edges"], n),
        np.ones((n, 2), dtype=np.bool_),
    )
    policy = policy_with(theirs, "train/start/", 0)
    actions = iter(theirs["train/actions_of_steps"])
    states: list[torch.Tensor] = []
    sums: list[float] = []

    def replayed(log_probabilities: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        chosen = next(actions, None)
        if chosen is None:  # a fourth episode begins, and finds the budget spent
            return torch.zeros(log_probabilities.shape[:2], dtype=torch.int64)
        found = torch.tensor(chosen[chosen >= 0], dtype=torch.int64)
        sums.append(float(log_probabilities[0].gather(1, found[:, None]).sum()))
        return found[None]

    policy.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0].detach().clone()))
    monkeypatch.setattr(algorithm, "sample", replayed)
    monkeypatch.setattr(algorithm, "make_policy", lambda *_: policy)
    monkeypatch.setattr(HsdagGraph, "of", lambda *_: graph)
    table = theirs["train/table"]

    def measured(placement: Placement) -> float:
        return float(table[np.arange(n), placement.device_of].sum())

    evaluator = Evaluator(problem, Budget(evaluations=12), measure=measured)
    settings = HsdagReleased(steps=4, dropout=0.0)
    solution = settings.place(problem, evaluator, np.random.default_rng(0))
    np.testing.assert_allclose(np.stack(states[:12]), theirs["train/x_of_steps"], atol=1e-5)
    np.testing.assert_allclose(sums, theirs["train/logp_of_steps"], atol=1e-5)
    for name, value in weights_under(theirs, "train/end/").items():
        close(policy.state_dict()[name], value.numpy())
        assert not torch.equal(value, weights_under(theirs, "train/start/")[name])
    runtimes = theirs["train/runtime_of_steps"]
    assert np.count_nonzero(runtimes == 1e10) == 2
    assert solution.value == pytest.approx(runtimes.min())


def problem_of_nodes(edges: NDArray[np.float64], n: int) -> Problem:
    """One op per node, each 1 / n seconds everywhere, so that the reference time is one second."""
    builder = GraphBuilder()
    tensors: list[int] = []
    for node in range(n):
        inputs = [tensors[int(a)] for a, b in edges.T if b == node]
        builder.add_op(f"op{node}", "Op", inputs=inputs)
        tensors.append(builder.add_tensor(node, 1.0, is_output=True))
    costs = CostTable(frozen_floats(np.full((n, 2), 1.0 / n)))
    return Problem.of_ops(builder.build(), toys.cluster_of(2), costs)
