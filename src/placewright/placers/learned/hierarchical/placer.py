"""The hierarchical model for device placement: grouper and placer trained together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.placers.learned.hierarchical.settings import PRESETS, HierarchicalSettings
from placewright.placers.learned.presets import with_presets
from placewright.placers.learned.searching import GroupsAndPlaces


@with_presets(PRESETS)
@dataclass(frozen=True)
class Hierarchical(HierarchicalSettings, GroupsAndPlaces):
    """A feed-forward grouper and a bidirectional sequence-to-sequence placer, one reward for both.

    "A Hierarchical Model for Device Placement", ICLR 2018, with the defaults of TensorFlow's
    ``hierarchical_controller.py``. Each op chooses a group by itself; each group's inputs are its
    rows of the group adjacency in both directions, its kind counts and output shapes, each row
    divided by its maximum + 1; the placer chooses a device per group. One grouping and k = 4
    placements are sampled per update; reward -sqrt(time); moving-average baseline, decay 0.9;
    Adam, gradient norm clipped at 1; C = 5, T = 10.

    Departures from paper and code:
        * grappler writes kind counts and shapes into overlapping columns and its grouper has no
          non-linearity; both are mended here (the paper has a hidden layer with one);
        * kinds are one-hot, not their integer; adjacency slots hold relative positions;
        * grappler's layers have no biases, and its kind counts are those of raw type numbers;
        * 40 groups, grappler's 20 x devices for two devices, on any number of them (the paper has
          256, which can be set and takes the time of a comparison several times over);
        * learning rate 0.1 with 512 wide LSTMs saturates in the few updates that a run of 500
          evaluations has: the default is 0.001, and 0.1 can be set; grappler's decay by 0.95 every
          50 steps after step 400 is left out, and so is its forget bias of 1;
        * C = 5 and T = 10 are the paper's; grappler's defaults are 1 and 1;
        * times are divided by the problem's reference time; an infeasible placement counts as ten;
        * the homogeneous placements are evaluated first, and nothing is learned from them;
        * the baseline starts at the first rewards, not at sqrt(100 s), which would need dozens of
          updates to forget; grappler's replay of the last actions after step 500 is left out;
        * a small entropy bonus on the placer (0 can be set).

    Known weakness: what is in group number e changes from grouping to grouping, and attention by
    content can find it only by counting steps. The placer learns one device for all before the
    grouper has learned: on seven independent ops it stays there (on four it finds the optimum), and
    on two ladders of ops with heavy tensors inside. Variant ``corrected`` finds the optimum of the
    latter. It sets `aligned`, so that the decoder's logits see the encoder's state of the group
    that is placed, `entropy_weight` 3 and `grouper_entropy_weight` 1, so that neither sub-policy
    settles before the other has learned, `normalised`, `hidden` 64 and `learning_rate` 0.003. It is
    shown on toys only: on real problems it is worse more often than better.
    """

    name: ClassVar[str] = "hierarchical"
    paper: ClassVar[str] = "Mirhoseini et al., ICLR 2018"
    learner: ClassVar[str] = "placewright.placers.learned.hierarchical.learner"
