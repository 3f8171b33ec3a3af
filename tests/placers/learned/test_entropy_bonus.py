"""What draws the grouper of a jointly trained pair: bonus and first weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from placewright.placers.learned.shared.encoders import perceptron
from placewright.placers.learned.shared.learning_scope import joint_bonus, usage_entropy
from placewright.placers.learned.shared.searching import JointSettings

LOGITS = st.tuples(st.integers(1, 6), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-20.0, 20.0))
)


def probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def nats(p: np.ndarray) -> float:
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


@given(LOGITS)
def test_usage_entropy_is_that_of_the_mean_of_nodes(logits: np.ndarray) -> None:
    expected = nats(probabilities(logits).mean(axis=0))
    got = usage_entropy(torch.log_softmax(torch.tensor(logits), dim=-1))
    assert float(got) == pytest.approx(expected, abs=1e-9)


@given(LOGITS)
def test_bonus_is_mutual_information_of_node_and_group_where_weights_are_opposite(
    logits: np.ndarray,
) -> None:
    """Against the double sum of p(node, group) log p(node, group) / p(node) p(group)."""
    rows = probabilities(logits)
    joint, shares = rows / len(rows), rows.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = joint * np.log(joint / (shares / len(rows)))
    settings = JointSettings(usage_entropy_weight=0.7, grouper_entropy_weight=-0.7)
    log_groups = torch.log_softmax(torch.tensor(logits), dim=-1)
    got = joint_bonus(settings, torch.tensor(3.0), log_groups)
    assert float(got) == pytest.approx(0.7 * float(np.nan_to_num(terms).sum()), abs=1e-9)
    with_placer = JointSettings(entropy_weight=2.0)
    assert float(joint_bonus(with_placer, torch.tensor(3.0), log_groups)) == 6.0


def test_usage_entropy_by_hand() -> None:
    """Two nodes that are sure of two groups use both; two of the same group use one."""
    sure = torch.log(torch.tensor([[1.0, 1e-30], [1e-30, 1.0]]))
    assert float(usage_entropy(sure)) == pytest.approx(np.log(2.0), abs=1e-6)
    assert float(usage_entropy(sure[[0, 0]])) == pytest.approx(0.0, abs=1e-6)


def test_a_scaled_last_layer_draws_the_same_weights() -> None:
    def made(scale: float) -> torch.nn.Sequential:
        torch.manual_seed(3)
        return perceptron(4, 5, 3, last_scale=scale)

    with torch.random.fork_rng():
        plain, scaled = made(1.0), made(6.0)
    inputs = torch.rand(7, 4)
    assert torch.allclose(scaled(inputs), 6.0 * plain(inputs))
