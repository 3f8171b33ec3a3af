"""Device placement with a sequence-to-sequence policy (Mirhoseini et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError, Requires
from placewright.placers.anytime import anytime
from placewright.placers.learned.shared.grouping import ActionSpace
from placewright.placers.learned.shared.searching import (
    ReinforceSettings,
    group_actions,
    require_counts,
    require_one_of,
    searched,
    with_presets,
)
from placewright.simulation.evaluator import Evaluator

VARIANTS = ("paper", "hsdag-rnn")
PRESETS: dict[str, dict[str, object]] = {
    "hsdag-rnn": {
        "embedding": 64,
        "samples_per_update": 1,
        "learning_rate": 0.01,
        "entropy_weight": 0.0,
    }
}

ALGORITHM = "placewright.placers.learned.seq2seq.algorithm"


@with_presets(PRESETS)
@dataclass(frozen=True)
class Seq2Seq(ReinforceSettings):
    """LSTM encoder and attentional LSTM decoder over co-located groups, learned by REINFORCE.

    "Device Placement Optimization with Reinforcement Learning", ICML 2017, arXiv 1706.04972.
    Ops are grouped to the published fixpoint. A group is the sum of its ops' kind embeddings, its
    output shapes and its rows of the group adjacency. Reward -sqrt(time), moving-average baseline,
    Adam, gradient norm clipped at 1.

    The paper has no public code. Departures from it, and what it leaves open:
        * hidden 64 (the width is not stated), embedding 32, 10 samples per update, decay 0.9;
        * times are divided by the problem's reference time; an infeasible placement counts as ten;
        * output shapes are one row of a group, kinds are counted and embedded as their sum; shapes
          enter as log1p;
        * the rules by hand for LSTM steps and ConvNet branches are left out;
        * forward graphs with one output would collapse to one group: branches are kept then
          (`grouping.colocation_grouping`);
        * Adam at the paper's 0.1 saturates the policy within a few updates, and without an entropy
          bonus REINFORCE ends on one device even on a separable toy: the defaults are 0.003 and
          an entropy weight of 0.03 (0.1 and 0 can be set);
        * at most 128 groups (the paper's models have 83 to 280), neighbours merged: attention needs
          memory with their square;
        * one process instead of 20 asynchronous controllers with 4 to 8 workers each;
        * a measured placement is one query, not ten steps of which the first is dropped;
        * the homogeneous placements are evaluated first, and nothing is learned from them.

    Variant ``hsdag-rnn`` is the RNN baseline of HSDAG's notebooks: GRU with hidden 5 x input,
    kind embedding 64, learning rate 0.01, one sample an episode, logits divided by 5 in the first
    20 episodes, reward from sqrt(latency) without a baseline. The notebooks minimise
    ``-(log p * sqrt(latency))``, which makes slow placements likelier; here the sign is right.
    `hidden`, `tanh_constant`, `temperature` and `baseline_decay` do not count there; `embedding`,
    `samples_per_update`, `learning_rate` and `entropy_weight` 0 are presets.

    Attributes (besides those of `ReinforceSettings`):
        variant: ``paper`` or ``hsdag-rnn``.
        groups: largest number of groups.
        hidden: width of encoder and decoder.
        embedding: width of the kind embedding.
        learning_rate: of Adam.
        samples_per_update: placements per gradient step.
        tanh_constant: C of C * tanh(u / T).
        temperature: T of C * tanh(u / T).
        entropy_weight: of the mean entropy of a group's device, in the loss.
        feasible_only_after: updates after which infeasible placements no longer teach.
    """

    name: ClassVar[str] = "seq2seq"
    paper: ClassVar[str] = "Mirhoseini et al., ICML 2017"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False
    requires: ClassVar[Requires] = (("torch", "learned"),)

    variant: str = "paper"
    groups: int = 128
    hidden: int = 64
    embedding: int = 32
    learning_rate: float = 0.003
    samples_per_update: int = 10
    tanh_constant: float = 5.0
    temperature: float = 10.0
    entropy_weight: float = 0.03
    feasible_only_after: int = 5_000

    def __post_init__(self) -> None:
        require_one_of("seq2seq", self, VARIANTS, "variant")
        require_counts("seq2seq", self, "groups", "hidden", "embedding", "samples_per_update")
        if not self.learning_rate > 0 or not self.temperature > 0:
            raise InputError("seq2seq: learning_rate and temperature must be > 0")

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups and their devices: the choices of the policy."""
        return group_actions(problem, self.groups)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Sample, evaluate and learn until the budget ends.

        Raises:
            MissingExtraError: PyTorch is absent.
        """
        return searched(self, ALGORITHM, self.actions(problem), evaluator, rng)
