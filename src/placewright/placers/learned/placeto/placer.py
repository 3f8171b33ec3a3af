"""Placeto: one node a step, message passing, incremental rewards (Addanki et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.anytime import anytime
from placewright.placers.learned.extra import require_packages
from placewright.placers.learned.grouping import ActionSpace, merged_space
from placewright.placers.learned.placeto.settings import PlacetoSettings
from placewright.placers.shared_weights import with_shared_weights_tied
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Placeto(PlacetoSettings):
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
    """

    name: ClassVar[str] = "placeto"
    paper: ClassVar[str] = "Addanki et al., NeurIPS 2019"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False

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
        from placewright.placers.learned.placeto.learner import learn

        learn(self, self.actions(problem), evaluator, rng)
        return evaluator.solution()
