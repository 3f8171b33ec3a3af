"""Device placement with a sequence-to-sequence policy (Mirhoseini et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime
from placewright.placers.learned.extra import require_packages
from placewright.placers.learned.grouping import ActionSpace, merged_space
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator

VARIANTS = ("paper", "hsdag-rnn")


@dataclass(frozen=True)
class Seq2Seq:
    """LSTM encoder and attentional LSTM decoder over co-located groups, learned by REINFORCE.

    "Device Placement Optimization with Reinforcement Learning", ICML 2017, arXiv 1706.04972.
    Ops are grouped to the published fixpoint. A group is the sum of its ops' kind embeddings, its
    output shapes and its rows of the group adjacency. Reward -sqrt(time), moving-average baseline,
    Adam, gradient norm clipped at 1.

    Where the paper is silent, or would not work:
        * hidden 64 (the width is not stated), embedding 32, 10 samples per update, decay 0.9;
        * forward graphs with one output would collapse to one group: branches are kept then
          (`grouping.colocation_grouping`);
        * Adam at the paper's 0.1 saturates the policy within a few updates, and without an entropy
          bonus REINFORCE ends on one device even on a separable toy: the defaults are 0.003 and
          an entropy weight of 0.03 (0.1 and 0 can be set);
        * at most 128 groups (the paper's models have 83 to 280), neighbours merged: attention needs
          memory with their square;
        * one process instead of 20 asynchronous controllers.

    Variant ``hsdag-rnn`` is the RNN baseline of HSDAG's notebooks: GRU with hidden 5 x input,
    kind embedding 64, learning rate 0.01, one sample an episode, logits divided by 5 in the first
    20 episodes, reward from sqrt(latency) without a baseline. The notebooks minimise
    ``-(log p * sqrt(latency))``, which makes slow placements likelier; here the sign is right. It
    has no entropy bonus, and of the settings below only `groups`, `clip_norm`,
    `feasible_only_after`, `patience` and `tensorboard` count.

    Attributes:
        variant: ``paper`` or ``hsdag-rnn``.
        groups: largest number of groups.
        hidden: width of encoder and decoder.
        embedding: width of the kind embedding.
        learning_rate: of Adam.
        samples_per_update: placements per gradient step.
        tanh_constant: C of C * tanh(u / T).
        temperature: T of C * tanh(u / T).
        clip_norm: largest global gradient norm.
        baseline_decay: of the moving average.
        entropy_weight: of the mean entropy of a group's device, in the loss.
        feasible_only_after: updates after which infeasible placements no longer teach.
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False only samples, from the untrained policy: the control of learning.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    name: ClassVar[str] = "seq2seq"
    paper: ClassVar[str] = "Mirhoseini et al., ICML 2017"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False

    variant: str = "paper"
    groups: int = 128
    hidden: int = 64
    embedding: int = 32
    learning_rate: float = 0.003
    samples_per_update: int = 10
    tanh_constant: float = 5.0
    temperature: float = 10.0
    clip_norm: float = 1.0
    baseline_decay: float = 0.9
    entropy_weight: float = 0.03
    feasible_only_after: int = 5_000
    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise InputError(f"seq2seq: variant must be one of {VARIANTS}, got '{self.variant}'")
        for what in ("groups", "hidden", "embedding", "samples_per_update"):
            if getattr(self, what) < 1:
                raise InputError(f"seq2seq: {what} must be >= 1, got {getattr(self, what)}")
        if not self.learning_rate > 0 or not self.temperature > 0:
            raise InputError("seq2seq: learning_rate and temperature must be > 0")

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups and their devices: what the policy chooses from."""
        return merged_space(with_shared_weights_tied(problem), self.groups)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Sample, evaluate and learn until the budget ends.

        Raises:
            MissingExtraError: PyTorch is absent.
        """
        require_packages("torch")
        from placewright.placers.learned.seq2seq_learner import learn

        learn(self, problem, evaluator, rng)
        return evaluator.solution()
