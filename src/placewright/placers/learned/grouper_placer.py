"""Operations placement with a fully connected grouper (Liu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime
from placewright.placers.learned.extra import require_packages
from placewright.placers.learned.group_inputs import JointSpace
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator

VARIANTS = ("paper", "corrected")


@dataclass(frozen=True)
class GrouperPlacer:
    """A fully connected network groups ops, a recurrent placer chooses devices, both by REINFORCE.

    "An Effective Method for Operations Placement in TensorFlow", HP3C 2019. Only the abstract could
    be had: a fully connected network groups the operations, each group gets a device, and measured
    running time is the reward of REINFORCE. The rest is an interpretation: op features as in
    Mirhoseini et al. 2017 (kind embedding, output shapes, neighbours), FC(64, ReLU) to a softmax
    over groups, LSTM encoder with attentional decoder over groups, reward -sqrt(time),
    moving-average baseline, advantages divided by their moving root mean square, entropy bonus on
    the placer, without which it ends on one device even on a separable toy.

    Known weakness of that: what is in group number e changes from sample to sample, and attention
    by content can find it only by counting steps. The placer learns one device for all, and then no
    grouping is better than another; on two ladders of ops with heavy tensors inside every run ends
    there. Variant ``corrected`` mends it and finds the optimum. It sets
        * `aligned`: the decoder's logits see the encoder's state of the group that is placed;
        * `entropy_weight` 3: the placer does not settle before the grouper has learned;
        * `grouper_entropy_weight` 1: nor does the grouper stay with one group for all, which it
          finds first, since that cuts nothing. The price: on independent ops, where nothing draws
          ops into groups, the grouper stays random (seven ops: 0.8 of them are placed right).

    Attributes:
        variant: ``paper`` or ``corrected``.
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        embedding: width of the kind embedding.
        hidden: width of the placer.
        samples_per_update: samples of (grouping, placement) per update.
        learning_rate: of Adam.
        entropy_weight: of the placer's mean entropy per group, in the loss.
        grouper_entropy_weight: of the grouper's mean entropy per node, in the loss.
        aligned: the decoder's logits see the encoder's state of the group that is placed.
        clip_norm: largest global gradient norm.
        baseline_decay: of the moving average.
        normalised: divide advantages by their moving root mean square.
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False only samples, from the untrained policy: the control of learning.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    name: ClassVar[str] = "grouper-placer"
    paper: ClassVar[str] = "Liu et al., HP3C 2019"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False

    variant: str = "paper"
    groups: int = 32
    grouper_hidden: int = 64
    embedding: int = 32
    hidden: int = 64
    samples_per_update: int = 20
    learning_rate: float = 0.01
    entropy_weight: float = 0.3
    grouper_entropy_weight: float = 0.0
    aligned: bool = False
    clip_norm: float = 1.0
    baseline_decay: float = 0.9
    normalised: bool = True
    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise InputError(
                f"grouper-placer: variant must be one of {VARIANTS}, got '{self.variant}'"
            )
        for what in ("groups", "grouper_hidden", "embedding", "hidden", "samples_per_update"):
            if getattr(self, what) < 1:
                raise InputError(f"grouper-placer: {what} must be >= 1, got {getattr(self, what)}")
        if not self.learning_rate > 0:
            raise InputError(f"grouper-placer: learning_rate must be > 0, got {self.learning_rate}")

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    def actions(self, problem: Problem) -> JointSpace:
        """Groups of every op and devices of every group: what the policies choose from."""
        return JointSpace.of(with_shared_weights_tied(problem), self.groups)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Sample groups and devices, evaluate and learn until the budget ends.

        Raises:
            MissingExtraError: PyTorch is absent.
        """
        require_packages("torch")
        from placewright.placers.learned.grouper_placer_learner import learn

        learn(self, problem, evaluator, rng)
        return evaluator.solution()
