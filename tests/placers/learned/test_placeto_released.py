"""Placeto's state and network against arrays that the authors' own code computed.

``released_placeto.npz`` was made by running github.com/aravic/generalizable-device-placement at
commit d9a81a9f6cb05bfc94773722a4e7ead793ca7fd1 (``pgraph.py``, ``mp_progressive_nn.py`` and
``nn_primitives.py``) on graphs, states and weights drawn at random, with PyTorch in place of
TensorFlow 1. ``make_released_placeto.py`` beside the file makes the outputs again from its inputs.
"""

from __future__ import annotations

from dataclasses import replace
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
from placewright.core.problem import Problem
from placewright.placers.learned.placeto.algorithm import PlacetoGraph, PlacetoPolicy
from placewright.placers.legal import ActionSpace
from placewright.simulation.evaluator import Evaluator

FILE = Path(__file__).parents[2] / "data" / "released_placeto.npz"
GRAPHS = ("graph/0", "graph/1")
# Layers in the order in which the authors' code creates them.
LAYERS = (
    *("messages.0.0", "messages.0.2", "updates.0.0", "updates.0.2"),
    *("messages.1.0", "messages.1.2", "updates.1.0", "updates.1.2"),
    *("transform.0", "transform.2", "transform.4"),
    *(f"{part}.{side}.{layer}" for side in range(3) for part in ("gathers", "summaries")
      for layer in (0, 2)),
    *("classifier.0", "classifier.2", "classifier.4"),
)  # fmt: skip
Arrays = dict[str, NDArray[np.float64]]


@pytest.fixture(scope="module")
def theirs() -> Arrays:
    with np.load(FILE) as arrays:
        return {name: arrays[name] for name in arrays.files}


def graph_of(theirs: Arrays, at: str) -> PlacetoGraph:
    """Our state of their graph, each op a group, in their order of nodes."""
    order = theirs[f"{at}/order"].tolist()
    rank = {node: index for index, node in enumerate(order)}
    edges = [(rank[a], rank[b]) for a, b in theirs[f"{at}/edges"].T.tolist()]
    builder, tensors = GraphBuilder(), []
    for index, node in enumerate(order):
        inputs = [tensors[a] for a, b in edges if b == index]
        builder.add_op(f"op{index}", "Op", inputs=inputs)
        size = float(theirs[f"{at}/out_size"][node])
        tensors.append(builder.add_tensor(index, size, is_output=True))
    seconds = np.repeat(theirs[f"{at}/cost"][order][:, None], 2, axis=1)
    costs = CostTable(frozen_floats(seconds))
    problem = Problem.of_ops(builder.build(), toys.cluster_of(2), costs)
    space = ActionSpace(problem, Grouping.identity(len(order)))
    start = theirs[f"{at}/start"][order]
    return replace(PlacetoGraph.of(space, Evaluator(problem)), starts=lambda _: start)


@pytest.mark.parametrize("at", GRAPHS)
def test_features_of_a_state(theirs: Arrays, at: str) -> None:
    """Equal to theirs, whose one cost is a column for each device here."""
    graph, done = graph_of(theirs, at), int(theirs[f"{at}/n_done"])
    devices = theirs[f"{at}/placement"][theirs[f"{at}/order"]]
    rows = graph.features(devices, done)
    assert np.array_equal(rows[:, 0], rows[:, 1])
    np.testing.assert_allclose(rows[:, 1:], theirs[f"{at}/features"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("at", GRAPHS)
@pytest.mark.parametrize("relation", ["ancestors", "descendants", "parallel"])
def test_relations_of_nodes(theirs: Arrays, at: str, relation: str) -> None:
    mask = getattr(graph_of(theirs, at), relation)
    np.testing.assert_array_equal(mask.numpy(), theirs[f"{at}/{relation}"])
    assert mask.sum() > 0


@pytest.mark.parametrize("at", GRAPHS)
def test_messages_and_logits(theirs: Arrays, at: str) -> None:
    """For every node as the current one, with their weights.

    Their classifier reads ancestors, descendants, the rest and the node; ours reads the node first.
    """
    policy = PlacetoPolicy(2, 8).double()
    weights = {}
    for number, name in enumerate(LAYERS):
        matrix, bias = (torch.tensor(theirs[f"weight/{number:02}/{part}"]) for part in "ab")
        if name == "classifier.0":
            matrix = torch.cat([matrix[-len(matrix) // 4 :], matrix[: -len(matrix) // 4]])
        weights[f"{name}.weight"], weights[f"{name}.bias"] = matrix.T, bias[0]
    policy.load_state_dict(weights)  # strict: every parameter has its counterpart
    graph = graph_of(theirs, at)
    graph = replace(
        graph,
        adjacency=graph.adjacency.double(),
        ancestors=graph.ancestors.double(),
        descendants=graph.descendants.double(),
        parallel=graph.parallel.double(),
    )
    state = torch.tensor(theirs[f"{at}/state"]).double()
    n = len(state)
    every = state.expand(n, -1, -1)
    with torch.no_grad():
        messages = policy.embed(graph, state[None])[0]
        found = policy(graph, every, torch.arange(n))
    np.testing.assert_allclose(messages, theirs[f"{at}/messages"], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found, theirs[f"{at}/logits"], rtol=1e-5, atol=1e-9)
    assert np.ptp(theirs[f"{at}/logits"][:, 0]) > 1e-3  # nodes differ
