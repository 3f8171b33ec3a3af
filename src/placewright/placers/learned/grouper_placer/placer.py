"""Operations placement with a fully connected grouper (Liu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.placers.learned.grouper_placer.settings import PRESETS, GrouperPlacerSettings
from placewright.placers.learned.presets import with_presets
from placewright.placers.learned.searching import GroupsAndPlaces


@with_presets(PRESETS)
@dataclass(frozen=True)
class GrouperPlacer(GrouperPlacerSettings, GroupsAndPlaces):
    """A fully connected network groups ops, a recurrent placer chooses devices, both by REINFORCE.

    "An Effective Method for Operations Placement in TensorFlow", HP3C 2019. Only the abstract could
    be had: a fully connected network groups the operations, each group gets a device, and measured
    running time is the reward of REINFORCE. The rest is an interpretation: op features as in
    Mirhoseini et al. 2017 (kind embedding, output shapes, neighbours), FC(64, ReLU) to a softmax
    over groups, LSTM encoder with attentional decoder over groups, reward -sqrt(time),
    moving-average baseline, advantages divided by their moving root mean square, entropy bonus on
    the placer. Times are divided by the problem's reference time, an infeasible placement counts as
    ten, and the homogeneous placements are evaluated first without learning from them.

    Variant ``paper`` is that and no more. It has two weaknesses. What is in group number e changes
    from sample to sample, and attention by content can find it only by counting steps: the placer
    learns one device for all, and then no grouping is better than another. And the grouper begins
    with all ops alike, and either stays there or puts all into one group, which cuts nothing. On
    seven independent ops half of its runs end so, and on two ladders of ops with heavy tensors
    inside nine of ten. The default ``corrected`` finds the optimum of both, and on fifteen real
    problems its best placements are nowhere worse (docs/results/learned.md). It sets
        * `aligned`: the decoder's logits see the encoder's state of the group that is placed;
        * `grouper_scale` 6: ops begin with different groups;
        * `usage_entropy_weight` 1: the groups are used evenly by all ops together, while each op
          may be sure of its own;
        * `entropy_weight` 1 (``paper``: 0.3): the placer does not settle before the grouper.
    """

    name: ClassVar[str] = "grouper-placer"
    paper: ClassVar[str] = "Liu et al., HP3C 2019"
    learner: ClassVar[str] = "placewright.placers.learned.grouper_placer.learner"
