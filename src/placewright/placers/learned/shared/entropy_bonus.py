"""The entropy bonus of a grouper and a placer that are trained together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from placewright.placers.learned.shared.sampling import entropy
from placewright.placers.learned.shared.searching import JointSettings


def joint_bonus(settings: JointSettings, placer_entropy: Tensor, log_groups: Tensor) -> Tensor:
    """Entropy bonus, to be subtracted from the loss of a grouper and a placer; a scalar.

    With weights u of `usage_entropy` and -g of the mean entropy of a node, u >= g, it is
    g I + (u - g) H, the mutual information I of node and group and the entropy H of usage: nodes
    are drawn to groups of their own and each to one.

    Args:
        placer_entropy: of the placer, mean over groups and samples; a scalar.
        log_groups: log-probabilities of each node's group, shape (nodes, groups).
    """
    return (
        settings.entropy_weight * placer_entropy
        + settings.grouper_entropy_weight * entropy(log_groups).mean()
        + settings.usage_entropy_weight * usage_entropy(log_groups)
    )


def usage_entropy(log_groups: Tensor) -> Tensor:
    """Entropy in nats of the group of a node drawn at random; a scalar.

    ln(groups) if all groups are equally likely, 0 if all nodes are in one. Unlike `entropy` of each
    node, it requires no node to be undecided.

    Args:
        log_groups: log-probabilities of each node's group, shape (nodes, groups).
    """
    return entropy(torch.logsumexp(log_groups, dim=0) - math.log(len(log_groups)))
