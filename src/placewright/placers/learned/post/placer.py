"""Device placement by cross-entropy minimisation and proximal policy optimisation (Post)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.core.problem import Problem
from placewright.errors import Requires
from placewright.placers.bases import require_counts, require_numbers, require_one_of
from placewright.placers.learned.shared.grouping import merged_space
from placewright.placers.learned.shared.searching import LearningPlacer, SearchSettings
from placewright.placers.legal import ActionSpace
from placewright.placers.shared_weights import with_shared_weights_tied

ABLATIONS = ("", "ce_only", "ppo_only")


@dataclass(frozen=True)
class Post(LearningPlacer, SearchSettings):
    """One softmax per group; a PPO step every K samples, a cross-entropy step every N.

    "Post: Device Placement with Cross-Entropy Minimization and Proximal Policy Optimization",
    NeurIPS 2018, Algorithm 1. There is no neural network: f(d|u) is the product over groups m of
    softmax(u_m)[d_m]. At sample n: if n mod K = 0 and n mod N != 0, `sga_steps` steps of gradient
    ascent on the PPO objective (Eq. 11) over the last K; if n mod N = 0, the closed form of the
    cross-entropy minimum over the best `elite` of the last N (Eq. 10), then every group is mixed
    with the uniform distribution, f <- (1 - epsilon) f + epsilon / D over its D allowed
    devices. The advantage of a sample is
    b - T, where b is the mean of the times of all samples so far, those of this update included. A
    placement that is drawn again is a query again. The result is the best placement evaluated.

    The paper's code and text could not be had. From reviews: the structure of Algorithm 1, an elite
    of a tenth, ten gradient steps, 2,400 samples. From memory: N, K, the learning rate, epsilon and
    its fall, beta, the KL target, Eq. 10 and 11. Ours: 128 groups. Departures, and what is open:
        * every PPO update keeps KL(old || new) of the joint distribution at or below 2 x
          `kl_target`. If an update would go further, its gradient steps are repeated with half the
          rate, and the rate may double again after an update that held at once. Without this limit,
          ten steps at the rate of 1 on a ratio over all groups lead 1,680 nats away (median of 45
          runs), so that every group would be deterministic after the first update. An update that
          no rate holds is left out;
        * beta doubles above 1.5 x the target and halves below it / 1.5 (adaptive-KL PPO);
        * groups: the co-location fixpoint of Mirhoseini et al. 2017 (a group joins the one group
          that reads it, until none has a single reader). Where that leaves fewer than 16 groups,
          chains of units instead (a unit joins its only reader if that reads no other unit). Then
          the group with the smallest mean time over devices joins the neighbour that it shares most
          bytes with, or the next one if that is refused (without a neighbour, one of the eight
          cheapest groups). A merged group needs a device that all its units may use, and a quarter
          of which holds the sum of what its co-location groups keep: weights, and for throughput
          the tensors of samples in flight. If memory is short, units that share a weight stay
          together, where a device can hold them;
        * times are divided by the problem's reference time, so that learning rates have a scale:
          the sum of all units' times, each on its fastest device. An infeasible placement counts as
          ten of these, and so does any slower one;
        * one process. The paper times a few training steps of a placement and drops the first; here
          a query gives one time;
        * epsilon falls linearly with the samples, to 0 if they were the whole evaluation budget
          (or `horizon` without one). The homogeneous placements are in the budget and are no
          samples, so that it ends a little above 0;
        * a group may use the devices that all its units may use; memory forbids none, and a
          placement that breaks it is infeasible. u = 0 gives these devices equal probability, the
          others have none, and none of them falls below a probability of 1e-12;
        * the homogeneous placements are evaluated first. They count as queries, and nothing is
          learned from them.

    Attributes (besides those of `SearchSettings`):
        groups: number of groups M at which merging stops. There are fewer if the graph has fewer,
            and more if the rest may not merge.
        ppo_every: K.
        ce_every: N.
        elite: share of the last N samples that the cross-entropy step keeps, with all that tie.
        sga_steps: gradient steps per PPO update.
        learning_rate: largest rate of gradient ascent.
        epsilon: first weight of the uniform distribution after a cross-entropy step.
        beta: first weight of the KL penalty.
        kl_target: KL(old || new) of the joint distribution, in nats, that beta is adapted to.
            No PPO update goes beyond twice this; cross-entropy steps have no limit.
        horizon: samples over which epsilon falls if the budget has no evaluation limit.
        ablation: "" for none. ``ce_only`` has no PPO steps; ``ppo_only`` has one every K samples,
            and no cross-entropy step and no mixing.
    """

    name: ClassVar[str] = "post"
    paper: ClassVar[str] = "Gao et al., NeurIPS 2018"
    algorithm: ClassVar[str] = "placewright.placers.learned.post.algorithm"
    requires: ClassVar[Requires] = ()

    groups: int = 128
    ppo_every: int = 10
    ce_every: int = 50
    elite: float = 0.1
    sga_steps: int = 10
    learning_rate: float = 1.0
    epsilon: float = 0.1
    beta: float = 1.0
    kl_target: float = 0.03
    horizon: int = 2_400
    ablation: str = ""

    def __post_init__(self) -> None:
        require_one_of("post", self, ABLATIONS, "ablation")
        require_counts("post", self, "groups", "ppo_every", "ce_every", "sga_steps", "horizon")
        require_numbers("post", self, "> 0", "learning_rate", "beta", "kl_target")
        require_numbers("post", self, "in [0, 1]", "elite", "epsilon")
        require_numbers("post", self, ">= 0", "patience")

    def step_after(self, n: int) -> str:
        """The step of Algorithm 1 after sample n >= 1: ``ppo``, ``ce`` or nothing ("")."""
        if not self.updates:
            return ""
        if self.ablation != "ppo_only" and n % self.ce_every == 0:
            return "ce"
        if self.ablation == "ce_only" or n % self.ppo_every:
            return ""
        return "ppo" if self.ablation == "ppo_only" or n % self.ce_every else ""

    def actions(self, problem: Problem) -> ActionSpace:
        """Colocation groups, merged down to `groups` if constraints allow, and their devices."""
        return merged_space(with_shared_weights_tied(problem), self.groups)
