"""Inputs and loss of `hierarchical` against arrays that TensorFlow's own code computed.

``released_grappler.npz`` was made by ``create_op_embeddings``, ``create_group_embeddings`` and the
loss of ``build_controller`` in TensorFlow's ``hierarchical_controller.py``, on random graphs,
groupings and rewards; ``make_released_grappler.py`` beside the file makes them again. What differs
is what the docstring of `Hierarchical` says: kinds are one-hot here, places of neighbours are
others, and kind counts have columns of their own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import toys

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.placers.learned.hierarchical.algorithm import joint_loss
from placewright.placers.learned.shared.group_inputs import JointSpace

FILE = Path(__file__).parents[2] / "data" / "released_grappler.npz"
GRAPHS = ("graph/0", "graph/1")
SHAPES, GROUPS = 25, 4
Arrays = dict[str, NDArray[np.float64]]


@pytest.fixture(scope="module")
def theirs() -> Arrays:
    with np.load(FILE) as arrays:
        return {name: arrays[name] for name in arrays.files}


def joint_of(theirs: Arrays, at: str) -> JointSpace:
    """Our features of their graph, each op a class of its own, with shapes as they are."""
    builder, tensors = GraphBuilder(), []
    for op, (kind, shape) in enumerate(
        zip(theirs[f"{at}/kinds"], theirs[f"{at}/shapes"], strict=True)
    ):
        inputs = [tensors[a] for a, b in theirs[f"{at}/edges"].T.tolist() if b == op]
        builder.add_op(f"op{op}", f"Kind{kind}", inputs=inputs)
        extents = tuple(int(size) for size in shape if size > 0)
        tensors.append(builder.add_tensor(op, 1.0, shape=extents, is_output=True))
    costs = CostTable(frozen_floats(np.ones((len(tensors), 2))))
    problem = Problem.of_ops(builder.build(), toys.cluster_of(2), costs)
    return JointSpace.of(problem, GROUPS, logarithmic=False)


@pytest.mark.parametrize("at", GRAPHS)
def test_kinds_and_shapes_of_ops(theirs: Arrays, at: str) -> None:
    joint, rows = joint_of(theirs, at), theirs[f"{at}/ops"]
    np.testing.assert_array_equal(joint.rows.kinds.argmax(axis=1), rows[:, 0])
    np.testing.assert_array_equal(joint.rows.kinds.sum(axis=1), 1.0)
    np.testing.assert_array_equal(joint.rows.shapes, rows[:, 1 : 1 + SHAPES])


@pytest.mark.parametrize("at", GRAPHS)
def test_rows_of_groups(theirs: Arrays, at: str) -> None:
    """Equal once kind counts are added into the first columns of shapes, as the code does."""
    joint, groups = joint_of(theirs, at), theirs[f"{at}/groups"]
    rows = joint.rows.for_placer(theirs[f"{at}/grouping"], GROUPS)
    largest = rows.max(axis=1, keepdims=True)
    plain = rows / (1.0 - largest)  # a row over its maximum m, plus 1, has the maximum m / (m + 1)
    edges, kinds, shapes = np.split(plain, [2 * GROUPS, -SHAPES], axis=1)
    n_kinds = kinds.shape[1]
    shared = np.concatenate([shapes, np.zeros((GROUPS, n_kinds))], axis=1)
    shared[:, :n_kinds] += kinds
    expected = np.concatenate([edges, shared], axis=1)
    expected /= expected.max(axis=1, keepdims=True) + 1.0
    np.testing.assert_allclose(expected, groups, rtol=1e-5, atol=1e-7)
    assert np.trace(edges[:, :GROUPS]) > 0  # edges within a group count, too


@pytest.mark.parametrize("step", ["early", "late"])
def test_loss_of_an_update(theirs: Arrays, step: str) -> None:
    """Their reward is the root of a time, and ours is negative; they store -log-probabilities."""
    rewards = torch.tensor(-theirs["loss/rewards"])
    teaching = torch.arange(len(rewards))
    if step == "late":  # placements that failed teach no longer
        teaching = torch.nonzero(rewards > rewards.min())[:, 0]
    loss = joint_loss(
        rewards[teaching] + torch.tensor(theirs["loss/baseline"]),
        -torch.tensor(theirs["loss/placements"])[teaching],
        -torch.tensor(theirs["loss/groupings"])[0],
    )
    assert loss.item() == pytest.approx(float(theirs[f"loss/{step}"]), rel=1e-9)
