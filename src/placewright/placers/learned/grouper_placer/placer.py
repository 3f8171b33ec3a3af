"""Operations placement with a fully connected grouper (Liu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.learned.shared.group_inputs import JointSpace
from placewright.placers.learned.shared.searching import (
    JointSettings,
    LearningPlacer,
    require_counts,
)
from placewright.placers.shared_weights import with_shared_weights_tied


@dataclass(frozen=True, kw_only=True)
class GrouperPlacer(LearningPlacer, JointSettings):
    """A fully connected network groups ops, a recurrent placer chooses devices, both by REINFORCE.

    "An Effective Method for Operations Placement in TensorFlow", HP3C 2019. Only the abstract could
    be had: a fully connected network groups the operations, each group gets a device, and measured
    running time is the reward of REINFORCE. The rest is an interpretation: op features as in
    Mirhoseini et al. 2017 (kind embedding, output shapes, neighbours), FC(64, ReLU) to a softmax
    over groups, LSTM encoder with attentional decoder over groups, reward -sqrt(time),
    moving-average baseline, advantages divided by their moving root mean square, entropy bonus on
    the placer. What chooses a group is a colocation class, and output shapes enter as log1p. Times
    are divided by the problem's reference time, an infeasible placement counts as ten, and the
    homogeneous placements are evaluated first without learning from them.

    `grouper-placer-mi` is our mended form of this reading.

    Attributes (besides those of `JointSettings`):
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        embedding: width of the kind embedding.
        hidden: width of the placer.
        samples_per_update: samples of (grouping, placement) per update.
        learning_rate: of Adam.
    """

    name: ClassVar[str] = "grouper-placer"
    paper: ClassVar[str] = "Liu et al., HP3C 2019"
    algorithm: ClassVar[str] = "placewright.placers.learned.grouper_placer.algorithm"

    groups: int = 32
    grouper_hidden: int = 64
    embedding: int = 32
    hidden: int = 64
    samples_per_update: int = 20
    learning_rate: float = 0.01
    entropy_weight: float = 0.3
    normalised: bool = True

    def __post_init__(self) -> None:
        counts = ("groups", "grouper_hidden", "embedding", "hidden", "samples_per_update")
        require_counts(self.name, self, *counts)
        if not self.learning_rate > 0:
            raise InputError(f"{self.name}: learning_rate must be > 0, got {self.learning_rate}")

    def actions(self, problem: Problem) -> JointSpace:
        """Groups of all ops and devices of all groups: the choices of the policies."""
        return JointSpace.of(with_shared_weights_tied(problem), self.groups)


@dataclass(frozen=True, kw_only=True)
class GrouperPlacerMi(GrouperPlacer):
    """`grouper-placer` with our corrections: groups that differ, and a decoder that sees its group.

    The reading of the paper has two weaknesses. The content of a group changes from sample to
    sample, and attention by content finds it only by counting steps: the placer learns one device
    for all, and then no grouping is better than another. The grouper begins with all ops alike, and
    either stays there or puts all into one group, which cuts nothing. This form changes these
    settings of `grouper-placer`, and nothing else:
        * `aligned`: the decoder's logits see the encoder's state of the group that is placed;
        * `grouper_scale` 6: ops begin with different groups;
        * `usage_entropy_weight` 1: the groups are used evenly by all ops together, while each op
          may be sure of its own. This is mutual information of op and group without the part that
          makes each op sure (`grouper_entropy_weight` 0);
        * `entropy_weight` 1: the placer does not settle before the grouper.
    """

    name: ClassVar[str] = "grouper-placer-mi"
    paper: ClassVar[str] = "ours, after Liu et al., HP3C 2019"

    entropy_weight: float = 1.0
    usage_entropy_weight: float = 1.0
    grouper_scale: float = 6.0
    aligned: bool = True
