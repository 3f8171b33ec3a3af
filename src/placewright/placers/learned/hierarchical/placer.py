"""The hierarchical model for device placement: grouper and placer trained together."""

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
        "hidden": 512,
        "learning_rate": 0.001,
        "entropy_weight": 0.03,
        "grouper_entropy_weight": 0.0,
        "usage_entropy_weight": 0.0,
        "grouper_scale": 1.0,
    }
}

ALGORITHM = "placewright.placers.learned.hierarchical.algorithm"


@with_presets(PRESETS)
@dataclass(frozen=True, kw_only=True)
class Hierarchical(JointSettings):
    """A feed-forward grouper and a bidirectional sequence-to-sequence placer, one reward for both.

    "A Hierarchical Model for Device Placement", ICLR 2018. Each op chooses a group by itself; each
    group's inputs are its rows of the group adjacency in both directions, its kind counts and
    output shapes, each row divided by its maximum + 1; the placer chooses a device per group. One
    grouping and k = 4 placements are sampled per update; reward -sqrt(time); moving-average
    baseline, decay 0.9; Adam, gradient norm clipped at 1; C = 5, T = 10.

    Variant ``paper`` has the defaults of TensorFlow's ``hierarchical_controller.py`` but for these
    departures, all of that file except the last, function by function (paper and code differ in C
    and T, 5 and 10 or 1 and 1, in k, 4 or 1, and in the grouper's non-linearity; ours are the
    paper's):
        * ``hierarchical_controller_hparams``: learning rate 0.1 with 512 wide LSTMs saturates in
          the few updates that a run of 500 evaluations has: ours is 0.001, and 0.1 can be set;
        * ``__init__``: 40 groups are the code's 20 x devices for two devices, on any number of them
          (the paper has 256, which can be set and takes several times as long). Weights are
          PyTorch's first ones; layers and LSTMs have biases, and no forget bias of 1;
        * ``create_op_embeddings``: what chooses a group is a colocation class, not an op; kinds are
          one-hot, not their number; output shapes enter as log1p, in the code as they are, so that
          its inputs are far larger; adjacency has ten places for readers and ten for
          what is read, as relative positions. The code has ten for both, as indices, and forgets
          earlier ones where an op is met again;
        * ``make_grouping_predictions``: no noise on the grouper's logits;
        * ``create_group_embeddings``: the code adds kind counts and shapes into the same columns,
          and its raw shapes leave a smaller share of a row to adjacency;
        * ``encode``, ``decode``: attention sums the encoder's states, the code's its projections;
        * ``get_placements``: the code repeats its last placement after step 500; left out;
        * ``compute_reward``, ``build_controller``: times are divided by the problem's reference
          time, and an infeasible placement counts as ten (the code: 100 s). The baseline starts at
          the first rewards; the code's at sqrt(100 s) would need dozens of updates to forget;
        * ``_get_train_ops``: no decay by 0.95 every 50 steps after step 400; a small entropy bonus
          on the placer (0 can be set);
        * ``graph_placer.py``: the graph is not rewritten first, the model's own placement is not
          timed; the homogeneous placements are evaluated, and nothing is learned from them.

    The default ``corrected`` has the same networks, smaller, and a further bonus. The published
    grouper begins with all ops alike, and either stays there or puts all into one group, which cuts
    nothing; what is in group number e then changes from grouping to grouping or never, and the
    placer learns one device for all. On seven independent ops and on two ladders of ops with heavy
    tensors inside ``paper`` mostly ends there. ``corrected`` finds the optimum of the ladders from
    twenty of twenty seeds and of the ops from fourteen; its best placements are nowhere worse on
    fifteen real problems, and it takes a tenth of the time (docs/results/learned.md). It sets
        * `usage_entropy_weight` 2 and `grouper_entropy_weight` -1.2: ops use all groups and each
          is sure of one (mutual information of op and group, `reinforce.joint_bonus`);
        * `grouper_scale` 6: ops begin with different groups;
        * `entropy_weight` 0.1 (``paper``: 0.03): the placer does not settle before the grouper;
        * `hidden` 64 and `learning_rate` 0.005 (``paper``: 512 and 0.001).

    Attributes (besides those of `JointSettings`):
        variant: ``corrected`` or ``paper``, which presets other settings.
        groups: number of groups.
        grouper_hidden: width of the grouper's hidden layer.
        hidden: width of the placer.
        placements_per_update: k.
        learning_rate: of Adam.
        tanh_constant: C of C * tanh(u / T).
        temperature: T of C * tanh(u / T).
        noise: standard deviation of the noise on the placer's logits, in units of their root mean
            square.
        noise_updates: updates with that noise.
        feasible_only_after: updates after which infeasible placements no longer teach.
    """

    name: ClassVar[str] = "hierarchical"
    paper: ClassVar[str] = "Mirhoseini et al., ICLR 2018"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False
    requires: ClassVar[Requires] = (("torch", "learned"),)

    variant: str = "corrected"
    groups: int = 40
    grouper_hidden: int = 64
    hidden: int = 64
    placements_per_update: int = 4
    learning_rate: float = 0.005
    tanh_constant: float = 5.0
    temperature: float = 10.0
    entropy_weight: float = 0.1
    grouper_entropy_weight: float = -1.2
    usage_entropy_weight: float = 2.0
    grouper_scale: float = 6.0
    noise: float = 0.5
    noise_updates: int = 750
    feasible_only_after: int = 1_000

    def __post_init__(self) -> None:
        require_one_of("hierarchical", self, VARIANTS, "variant")
        require_counts("hierarchical", self, "groups", "grouper_hidden", "placements_per_update")
        if self.hidden < 2 or self.hidden % 2:
            raise InputError(f"hierarchical: hidden must be even and >= 2, got {self.hidden}")
        if not self.learning_rate > 0 or not self.temperature > 0:
            raise InputError("hierarchical: learning_rate and temperature must be > 0")

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
