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
from placewright.simulation.evaluator import Evaluator


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

    Known weakness: while groups are still random, one device for all of them is the best that the
    placer can do, so it tends to settle there before the grouper has learned anything. On two
    ladders of ops with heavy tensors inside it seldom leaves that trap; where ops are independent
    it finds the optimum.

    Attributes:
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        embedding: width of the kind embedding.
        hidden: width of the placer.
        samples_per_update: samples of (grouping, placement) per update.
        learning_rate: of Adam.
        entropy_weight: of the placer's mean entropy per group.
        clip_norm: largest global gradient norm.
        baseline_decay: of the moving average.
        normalised: divide advantages by their moving root mean square.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    name: ClassVar[str] = "grouper-placer"
    paper: ClassVar[str] = "Liu et al., HP3C 2019"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False

    groups: int = 32
    grouper_hidden: int = 64
    embedding: int = 32
    hidden: int = 64
    samples_per_update: int = 20
    learning_rate: float = 0.01
    entropy_weight: float = 0.3
    clip_norm: float = 1.0
    baseline_decay: float = 0.9
    normalised: bool = True
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        for what in ("groups", "grouper_hidden", "embedding", "hidden", "samples_per_update"):
            if getattr(self, what) < 1:
                raise InputError(f"grouper-placer: {what} must be >= 1, got {getattr(self, what)}")
        if not self.learning_rate > 0:
            raise InputError(f"grouper-placer: learning_rate must be > 0, got {self.learning_rate}")

    def supports(self, problem: Problem) -> str:
        """Defined for every problem."""
        del problem
        return ""

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
