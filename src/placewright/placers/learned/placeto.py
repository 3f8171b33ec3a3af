"""Placeto: one node a step, message passing, incremental rewards (Addanki et al. 2019)."""

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

INITIAL = ("random", "zero")


@dataclass(frozen=True)
class Placeto:
    """Visit each node once an episode, give it a device, be paid the fall in running time.

    "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
    NeurIPS 2019, and its code. State: the graph with the whole current placement and a pointer to
    one node. Reward r_t = time(s_t) - time(s_{t+1}), discount 1; every intermediate time is a query
    and is counted. Network: node transform, 8 rounds of message passing in each direction,
    aggregation over ancestors, descendants and the rest, classifier [16 d, 8 d]. REINFORCE with
    entropy bonus that falls from 1 to 0, Adam from 1e-3 to 1e-4, gradient norm clipped at 1.25,
    baseline: mean return at the same step over the last 10 episodes.

    Where the paper is silent, or would not fit:
        * at most 64 groups: co-location groups, then neighbours merged (as ``neighbor_merge``);
        * run time is one column per device, since costs are a matrix here: d = 4 + 2 n_devices;
        * episodes over which learning rate and entropy weight fall follow from the budget;
        * the code sums gradients over 4 to 8 workers; the default is one, for a budget of 500
          evaluations is only some eight episodes of 64 nodes;
        * the loss is divided by the steps of an episode. The largest gradient norm is 1.25 then
          for long and short episodes alike; Adam's steps do not depend on the factor;
        * infeasible placements take the failing time, in place of 2 s per GB above the limit;
        * outside the execution model ``event`` start times are longest paths.

    Attributes:
        groups: largest number of groups.
        rounds: of message passing.
        workers: episodes that run side by side and share one update.
        initial: first placement of an episode, ``random`` or ``zero`` (device 0).
        learning_rate: first of Adam.
        last_learning_rate: it falls linearly to this.
        entropy_weight: first weight of the entropy bonus; falls linearly to 0.
        clip_norm: largest global gradient norm.
        baseline_window: episodes that the per-step baseline remembers.
        horizon: episodes over which rates fall where the budget has no evaluation limit.
        policy: file of a trained policy to start from; "" starts from scratch.
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False only samples, from the untrained policy: the control of learning.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    name: ClassVar[str] = "placeto"
    paper: ClassVar[str] = "Addanki et al., NeurIPS 2019"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False

    groups: int = 64
    rounds: int = 8
    workers: int = 1
    initial: str = "random"
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-4
    entropy_weight: float = 1.0
    clip_norm: float = 1.25
    baseline_window: int = 10
    horizon: int = 100
    policy: str = ""
    homogeneous_starts: bool = True
    updates: bool = True
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        if self.initial not in INITIAL:
            raise InputError(f"placeto: initial must be one of {INITIAL}, got '{self.initial}'")
        for what in ("groups", "rounds", "workers", "baseline_window", "horizon"):
            if getattr(self, what) < 1:
                raise InputError(f"placeto: {what} must be >= 1, got {getattr(self, what)}")

    def learning_rate_at(self, progress: float) -> float:
        """Learning rate where `progress` of the episodes, in [0, 1], are done."""
        fall = self.learning_rate - self.last_learning_rate
        return self.last_learning_rate + (1.0 - progress) * fall

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        del problem
        return None

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups and their devices: what the policy chooses from."""
        return merged_space(with_shared_weights_tied(problem), self.groups)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Run episodes and learn until the budget ends.

        Raises:
            MissingExtraError: PyTorch is absent.
            FileFormatError: the policy file is unusable for this placer or number of devices.
        """
        require_packages("torch")
        from placewright.placers.learned.placeto_learner import learn

        learn(self, problem, evaluator, rng)
        return evaluator.solution()
