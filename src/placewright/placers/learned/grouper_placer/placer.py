"""Operations placement with a fully connected grouper (Liu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.core.problem import Problem
from placewright.placers.learned.shared.group_inputs import JointSpace
from placewright.placers.learned.shared.searching import (
    JointSettings,
    LearningPlacer,
    require_counts,
    require_numbers,
)
from placewright.placers.shared_weights import with_shared_weights_tied


@dataclass(frozen=True, kw_only=True)
class GrouperPlacer(LearningPlacer, JointSettings):
    """A fully connected network groups ops, a recurrent placer chooses devices, both by REINFORCE.

    "An Effective Method for Operations Placement in TensorFlow", HP3C 2019. Only the abstract could
    be had: a fully connected network groups the operations, each group gets a device, and measured
    running time is the reward of REINFORCE. The rest is an interpretation:
        * what chooses a group is a colocation class; where memory is short, units that share a
          weight are in one. Its features are the kind embedding of Mirhoseini et al. 2017 (kind
          counts times a learned matrix, 32 columns), its output shapes (25 columns: the first five
          tensors of five extents, as log(1 + extent), -1 pads), and ten places each for readers and
          for what is read, as relative positions (difference of numbers / classes, 0 pads);
        * FC(64, ReLU) to a softmax over groups, from which each class draws by itself;
        * LSTM encoder over groups, and a decoder that reads the embedding of the device of the
          group before ("go" at first), with attention v . tanh(W1 memory + W2 state). A linear
          layer on [state; context] gives the logits. A group's inputs are its members' sums of kind
          counts and shapes, and its edges to and from each group (kinds + 25 + 2 `groups` columns),
          each row divided by its maximum + 1, as in `hierarchical`;
        * any group may choose any device; a unit that may not run there goes to its own fastest;
        * each sample has a grouping and a placement of its own, and is one query. Both networks
          take the same advantage: reward -sqrt(time) less a moving average, divided by the moving
          root mean square of advantages. Both averages start at the first update's mean and have
          decay 0.9;
        * Adam with a constant rate, gradient norm clipped at 1, entropy bonus on the placer;
        * times are divided by the problem's reference time: the sum of all units' times, each on
          its fastest device. An infeasible placement counts as ten, and so does any slower one;
        * the homogeneous placements are evaluated first, and nothing is learned from them. The
          result is the best placement evaluated.

    `grouper-placer-mi` is our mended form of this reading.

    Attributes (besides those of `JointSettings`):
        groups: number of groups to choose from, at most that of colocation classes.
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
        require_numbers(self.name, self, "> 0", "learning_rate")
        self.check_reinforce(self.name)

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
