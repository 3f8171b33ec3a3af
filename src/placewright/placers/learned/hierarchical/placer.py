"""The hierarchical model for device placement: grouper and placer trained together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.placers.bases import require_counts, require_numbers, require_one_of
from placewright.placers.learned.shared.group_inputs import JointSpace
from placewright.placers.learned.shared.searching import JointSettings, LearningPlacer
from placewright.placers.shared_weights import with_shared_weights_tied

SHAPES = ("raw", "log")


@dataclass(frozen=True, kw_only=True)
class Hierarchical(LearningPlacer, JointSettings):
    """A feed-forward grouper and a bidirectional sequence-to-sequence placer, one reward for both.

    "A Hierarchical Model for Device Placement", ICLR 2018. Each colocation class chooses a group by
    itself, by a softmax over groups on one hidden layer of ReLUs. Its inputs are kind counts; its
    output shapes (25: the first five tensors of five extents, that leave it or are outputs of the
    model; -1 pads); and its neighbours' places (20). A group's inputs are its members' sums of kind
    counts and shapes (pads count 0), and its edges to and from each group, itself included (kinds +
    25 + 2 `groups` columns), each row divided by its maximum + 1. An empty group is a row of zeros,
    and gets a device, too. The placer reads groups in the order of their numbers and chooses a
    device for each: an LSTM encoder of `hidden` / 2 in each direction; an LSTM decoder of `hidden`
    that starts from both last states and reads the embedding (`hidden` wide) of the device of the
    group before ("go" at first); attention v . tanh(W1 memory + W2 state); a linear layer on
    [state; context]; and C * tanh(u / T), with noise at first. One grouping and k = 4 placements
    are sampled per update, each one query, and the grouper learns from their mean advantage; reward
    -sqrt(time); moving-average baseline, decay 0.9; Adam with rate 0.1, gradient norm clipped at 1;
    C = 5, T = 10. No entropy bonus and no division of advantages. The rate and the raw shapes
    decide the policies after a few updates; `hierarchical-mi` is our corrected form. The result is
    the best placement evaluated.

    C, T, k, the ReLUs and the constant rate are the paper's (code: 1, 1, 1, none, and a decay by
    0.95 every 50 steps after step 400). All else, the widths and the noise included, follows
    TensorFlow's ``hierarchical_controller.py``. The noise is added to a logit after the tanh, and
    the same again where the sample is scored. These are the departures, function by function; the
    last two are from other files:
        * ``__init__``: 40 groups for any number of devices, or as many as there are classes (code:
          20 x devices, at most 256; paper: 256, several times as slow). Initial weights are
          PyTorch's. LSTMs, grouper and output layer have biases, attention has none, and there is
          no forget bias of 1;
        * ``create_op_embeddings``: what chooses a group is a colocation class, not an op, and if
          memory is short, units that share a weight are in one class, where a device can hold
          them; kinds are counted, a column each, where the code has the number of an op's kind;
          adjacency has ten places for readers and ten for what is read, lowest class number
          first, as difference of class numbers / classes, 0 pads. The code has ten for both, as
          indices, and forgets earlier ones where an op is met again. Class numbers follow the
          graph's order of units, the code's its topological order;
        * ``make_grouping_predictions``: no noise on the grouper's logits;
        * ``create_group_embeddings``: the code adds kind counts and shapes into the same columns,
          and counts each input of an op; here edges between two classes count once;
        * ``encode``, ``decode``: the context is a sum of encoder states; in the code, of their
          projections W1 memory. Memory of group i joins both directions' states of i; the code's
          joins the forward one of i and the backward one of the i-th group from the end. No
          gradient flows through the scale of the noise;
        * ``process_reward``: the loss is of the placement that was timed. The code draws groups and
          devices again when it computes the loss, from group inputs that are all zero by then;
        * ``get_placements``: the code keeps the last devices of its groups after step 500, and goes
          on to draw groupings; left out;
        * ``compute_reward``, ``build_controller``: times are divided by the problem's reference
          time, the sum of all units' times, each on its fastest device. An infeasible placement
          is given ten of these, as is any slower one (the code: 100 s, and slower ones their own
          time). After `feasible_only_after` updates these leave loss and baseline, and an update
          without a placement that teaches is skipped (the code: a step with gradient 0). The
          baseline starts at the mean of the first rewards; the code's, at the reward of 100 s,
          would need dozens of updates to forget;
        * ``controller.py``: all units are placed, and a class that may not run on its group's
          device goes to the device where it is fastest. The code places "important" ops only,
          without those that a single device supports;
        * ``graph_placer.py``: the graph is not rewritten first, the model's own placement is not
          timed; the homogeneous placements are evaluated first. They count as queries, and nothing
          is learned from them. The search ends with its budget; the code's after an hour.

    Attributes (besides those of `JointSettings`):
        groups: number of groups to choose from, at most that of colocation classes.
        grouper_hidden: width of the grouper's hidden layer.
        hidden: width of the placer's decoder; each direction of its encoder has half.
        shapes: output shapes enter ``raw``, as in the code, or as ``log`` (1 + extent).
        placements_per_update: k.
        learning_rate: of Adam.
        tanh_constant: C of C * tanh(u / T); 0 leaves out the tanh, so that logits are u / T.
        temperature: T of C * tanh(u / T).
        noise: standard deviation of the noise on the placer's logits, in units of the root mean
            square of that group's logits.
        noise_updates: updates with that noise.
        feasible_only_after: updates after which placements that are given ten no longer teach.
    """

    name: ClassVar[str] = "hierarchical"
    paper: ClassVar[str] = "Mirhoseini et al., ICLR 2018"
    algorithm: ClassVar[str] = "placewright.placers.learned.hierarchical.algorithm"

    groups: int = 40
    grouper_hidden: int = 64
    hidden: int = 512
    shapes: str = "raw"
    placements_per_update: int = 4
    learning_rate: float = 0.1
    tanh_constant: float = 5.0
    temperature: float = 10.0
    noise: float = 0.5
    noise_updates: int = 750
    feasible_only_after: int = 1_000

    def __post_init__(self) -> None:
        require_one_of(self.name, self, SHAPES, "shapes")
        require_counts(self.name, self, "groups", "grouper_hidden", "placements_per_update")
        require_counts(self.name, self, "noise_updates", "feasible_only_after", least=0)
        require_numbers(self.name, self, ">= 0", "noise", "tanh_constant")
        if self.hidden < 2 or self.hidden % 2:
            raise InputError(f"{self.name}: hidden must be even and >= 2, got {self.hidden}")
        require_numbers(self.name, self, "> 0", "learning_rate", "temperature")
        self.check_reinforce(self.name)

    def actions(self, problem: Problem) -> JointSpace:
        """Groups of all classes and devices of all groups: the choices of the policies."""
        tied = with_shared_weights_tied(problem)
        return JointSpace.of(tied, self.groups, logarithmic=self.shapes == "log")


@dataclass(frozen=True, kw_only=True)
class HierarchicalMi(Hierarchical):
    """`hierarchical` with our corrections: a bonus on mutual information, and smaller networks.

    The published grouper begins with all ops alike. It either stays there or puts all ops into one
    group, which cuts nothing. The content of a group then changes from sample to sample or never,
    and the placer learns one device for all. This form lowers the loss by g I + (u - g) H, with the
    mutual information I of op and group and the entropy H of the use of groups
    (`learning_scope.joint_bonus`); with that of the placer's entropy it is 1.2 I + 0.8 H + 0.1
    H(placer). It changes these settings of `hierarchical`, and nothing else:
        * `usage_entropy_weight` u = 2 and `grouper_entropy_weight` -g = -1.2: ops use all groups,
          and each is sure of one;
        * `grouper_scale` 6 times the first weights and biases of the grouper's last layer: ops
          begin with different groups;
        * `entropy_weight` 0.1: the placer does not settle before the grouper;
        * `hidden` 64 and `learning_rate` 0.005;
        * `shapes` log: batch 1 and 2,048 channels have one scale.
    """

    name: ClassVar[str] = "hierarchical-mi"
    paper: ClassVar[str] = "ours, after Mirhoseini et al., ICLR 2018"

    hidden: int = 64
    shapes: str = "log"
    learning_rate: float = 0.005
    entropy_weight: float = 0.1
    grouper_entropy_weight: float = -1.2
    usage_entropy_weight: float = 2.0
    grouper_scale: float = 6.0
