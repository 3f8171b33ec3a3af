"""Operations placement with a fully connected grouper (Liu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError, Requires
from placewright.placers.anytime import anytime
from placewright.placers.learned.shared.group_inputs import JointSpace
from placewright.placers.learned.shared.searching import (
    JointSettings,
    joint_actions,
    require_counts,
    require_one_of,
    searched,
    with_presets,
)
from placewright.simulation.evaluator import Evaluator

VARIANTS = ("corrected", "paper")
PRESETS: dict[str, dict[str, object]] = {
    "paper": {
        "aligned": False,
        "entropy_weight": 0.3,
        "usage_entropy_weight": 0.0,
        "grouper_scale": 1.0,
    }
}

ALGORITHM = "placewright.placers.learned.grouper_placer.algorithm"


@with_presets(PRESETS)
@dataclass(frozen=True, kw_only=True)
class GrouperPlacer(JointSettings):
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

    Attributes (besides those of `JointSettings`):
        variant: ``corrected`` or ``paper``, which presets other settings.
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        embedding: width of the kind embedding.
        hidden: width of the placer.
        samples_per_update: samples of (grouping, placement) per update.
        learning_rate: of Adam.
    """

    name: ClassVar[str] = "grouper-placer"
    paper: ClassVar[str] = "Liu et al., HP3C 2019"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False
    requires: ClassVar[Requires] = (("torch", "learned"),)

    variant: str = "corrected"
    groups: int = 32
    grouper_hidden: int = 64
    embedding: int = 32
    hidden: int = 64
    samples_per_update: int = 20
    learning_rate: float = 0.01
    entropy_weight: float = 1.0
    usage_entropy_weight: float = 1.0
    grouper_scale: float = 6.0
    aligned: bool = True
    normalised: bool = True

    def __post_init__(self) -> None:
        counts = ("groups", "grouper_hidden", "embedding", "hidden", "samples_per_update")
        require_one_of("grouper-placer", self, VARIANTS, "variant")
        require_counts("grouper-placer", self, *counts)
        if not self.learning_rate > 0:
            raise InputError(f"grouper-placer: learning_rate must be > 0, got {self.learning_rate}")

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    def actions(self, problem: Problem) -> JointSpace:
        """Groups of all ops and devices of all groups: the choices of the policies."""
        return joint_actions(problem, self.groups)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Sample, evaluate and learn until the budget ends.

        Raises:
            MissingExtraError: PyTorch is absent.
        """
        return searched(self, ALGORITHM, self.actions(problem), evaluator, rng)
