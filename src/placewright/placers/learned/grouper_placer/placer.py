"""Operations placement with a fully connected grouper (Liu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.core.problem import Problem
from placewright.placers.bases import require_counts, require_numbers
from placewright.placers.learned.shared.group_inputs import JointSpace
from placewright.placers.learned.shared.searching import JointSettings, LearningPlacer
from placewright.placers.shared_weights import with_shared_weights_tied


@dataclass(frozen=True, kw_only=True)
class GrouperPlacer(LearningPlacer, JointSettings):
    """A fully connected network groups ops, a recurrent placer chooses devices, both by REINFORCE.

    "An Effective Method for Operations Placement in TensorFlow", HP3C 2019. Only the abstract could
    be had: a fully connected network groups the operations, each group gets a device, and measured
    running time is the reward of REINFORCE. The rest is an interpretation, and all numbers are
    ours; rows of groups, five tensors of five extents and the places of neighbours follow
    `hierarchical`:
        * what chooses a group is a colocation class. If memory is short, units that share a weight
          are in one, where a device can hold them;
        * inputs of a class: the kind embedding of Mirhoseini et al. 2017 (kind counts times a
          learned matrix, 32 columns). Its output shapes (25 columns: the first five tensors of five
          extents, that leave it or are outputs of the model, as log(1 + extent), -1 pads). Ten
          places each for readers and for what is read, lowest class number first (difference of
          class numbers / classes, 0 pads);
        * a hidden layer of 64 ReLUs, then a softmax over groups. Each class draws its own;
        * LSTM encoder over groups in the order of their numbers, which is arbitrary. A decoder
          starts from its last state and reads the embedding of the device of the group before ("go"
          at first), with attention v . tanh(W1 memory + W2 state). A linear layer on [state;
          context] gives the logits, without tanh or noise;
        * inputs of a group: its members' sums of kind counts and of log(1 + extent) (pads count 0),
          and its edges to and from each group, itself included (kinds + 25 + 2 `groups` columns),
          each row divided by its maximum + 1. An empty group is a row of zeros, and gets a device,
          too;
        * any group may choose any device; a class that may not run there goes to the device where
          it is fastest;
        * each of 20 samples has a grouping and a placement of its own, and is one query. Both
          networks take the same advantage: reward -sqrt(time) less a moving average, divided by the
          moving root mean square of advantages. The average is of earlier updates (the first is
          compared with its own mean), the mean square includes this one; both have decay 0.9;
        * Adam with a constant rate, gradient norm clipped at 1, entropy bonus on the placer (0.3 x
          nats per group);
        * times are divided by the problem's reference time: the sum of all units' times, each on
          its fastest device. An infeasible placement is given ten of these, as is any slower one,
          and always teaches;
        * the homogeneous placements are evaluated first. They count as queries, and nothing is
          learned from them. The result is the best placement evaluated.

    `grouper-placer-mi` is our corrected form.

    Attributes (besides those of `JointSettings`):
        groups: number of groups to choose from, at most that of colocation classes.
        grouper_hidden: width of the grouper's hidden layer.
        embedding: width of the kind embedding.
        hidden: width of encoder, decoder and device embedding.
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
        """Groups of all classes and devices of all groups: the choices of the policies."""
        return JointSpace.of(with_shared_weights_tied(problem), self.groups)


@dataclass(frozen=True, kw_only=True)
class GrouperPlacerMi(GrouperPlacer):
    """`grouper-placer` with our corrections: groups that differ, and a decoder that sees its group.

    The reading of the paper has two weaknesses. The content of a group changes from sample to
    sample, and attention by content finds it only by counting steps: the placer learns one device
    for all, and then no grouping is better than another. The grouper begins with all ops alike:
    then either all stay undecided, or all go to one group, so that nothing is cut. This form
    changes these settings of `grouper-placer`, and nothing else:
        * `aligned`: the decoder's logits see the encoder's state of the group that is placed;
        * `grouper_scale` 6 times the first weights and biases of the grouper's last layer: ops
          begin with different groups;
        * `usage_entropy_weight` 1: the groups are used evenly by all ops together, while each op
          may be sure of its own. Mutual information of op and group is H(use) less the mean entropy
          of an op's group; only H(use) is rewarded here (`grouper_entropy_weight` 0);
        * `entropy_weight` 1: the placer does not settle before the grouper.
    """

    name: ClassVar[str] = "grouper-placer-mi"
    paper: ClassVar[str] = "ours, after Liu et al., HP3C 2019"

    entropy_weight: float = 1.0
    usage_entropy_weight: float = 1.0
    grouper_scale: float = 6.0
    aligned: bool = True
