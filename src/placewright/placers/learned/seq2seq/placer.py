"""Device placement with a sequence-to-sequence policy (Mirhoseini et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.core.problem import Problem
from placewright.placers.bases import require_counts, require_numbers, require_one_of
from placewright.placers.learned.shared.grouping import merged_space
from placewright.placers.learned.shared.searching import LearningPlacer, ReinforceSettings
from placewright.placers.legal import ActionSpace
from placewright.placers.shared_weights import with_shared_weights_tied

CELLS = ("lstm", "gru")


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(LearningPlacer, ReinforceSettings):
    """LSTM encoder and attentional LSTM decoder over co-located groups, learned by REINFORCE.

    "Device Placement Optimization with Reinforcement Learning", ICML 2017, arXiv 1706.04972.
    Groups begin as colocation classes. A group joins the one group that reads it, until no such
    merge is left that is allowed (below). A group's inputs are the sum of its units' kind
    embeddings (`embedding` columns), its output shapes (25: five tensors of five extents), and
    which other groups read it and which it reads (0 or 1, two columns per group). The decoder takes
    one group a step, in the order of their first units in topological order. It starts from the
    encoder's last state, and reads the embedding (`hidden` wide) of the device of the group before
    ("go" at first). It attends to all encoder states by v . tanh(W1 memory + W2 state). A linear
    layer on [state; context] gives a score u per device, and C * tanh(u / T) its logit. Reward
    -sqrt(time), moving-average baseline, Adam with the constant rate 0.1, gradient norm clipped at
    1. At this rate the policy is decided after a few updates; `seq2seq-entropy` is the form with a
    smaller rate and an entropy bonus. The result is the best placement evaluated.

    The paper has no public code. Departures from it, and what it leaves open:
        * C = 5, T = 10, the rate, the norm and 5,000 updates are recalled from the paper; five
          tensors of five extents are those of the code of 2018;
        * hidden 64 (the width is not stated), embedding 32, 10 samples per update. The baseline
          starts as the mean of the first rewards, and is then 0.9 of itself and 0.1 of the mean of
          each update. An update is compared with the average before it, the first with its own;
        * times are divided by the problem's reference time: the sum of all units' times, each on
          its fastest device. An infeasible placement is given ten of these, and so is any slower
          one;
        * output shapes are those of the first five tensors, by number, that leave a group or are
          outputs of the model, as log(1 + extent), padded with -1;
        * the rules by hand for LSTM steps and ConvNet branches are left out;
        * on a forward graph with one output the fixpoint would be one group. So where it leaves
          fewer than 16, only chains merge: a unit joins its only reader if that reads no other
          unit. Branches stay apart in this step;
        * merged towards 128 groups (the paper's models have 83 to 280), since the memory of
          attention grows with the square of their number: the group with the smallest mean time
          over devices joins the neighbour that it shares most bytes with, or the next one if that
          is refused. A group without neighbours joins one of the cheapest. A merged group needs a
          device that all its units may use, and a quarter of which holds the sum of what its
          colocation classes keep: weights, and for throughput the tensors of samples in flight. If
          memory is short, units that share a weight stay together, where a device can hold them;
        * devices that some unit of a group may not use have probability 0; memory masks none;
        * one process instead of 20 asynchronous controllers with 4 to 8 workers each;
        * a measured placement is one query, not ten steps of which the first is dropped;
        * the homogeneous placements are evaluated first. They count as queries, and nothing is
          learned from them.

    Attributes (besides those of `ReinforceSettings`):
        groups: number of groups at which merging stops. There are fewer if the graph has fewer,
            and more if the rest may not merge.
        hidden: width of encoder and decoder; 0 is five times that of the encoder's inputs.
        cell: ``lstm`` or ``gru``.
        embedding: width of the kind embedding.
        learning_rate: of Adam.
        samples_per_update: placements per gradient step.
        tanh_constant: C of C * tanh(u / T); 0 makes u / T the logit.
        temperature: T of C * tanh(u / T).
        warm_up: first updates in which T is five times as large.
        baseline: subtract the moving average of past rewards.
        entropy_weight: of the mean entropy of a group's device, which is subtracted from the loss.
        feasible_only_after: updates after which placements that are given ten no longer teach; an
            update with none else is skipped.
    """

    name: ClassVar[str] = "seq2seq"
    paper: ClassVar[str] = "Mirhoseini et al., ICML 2017"
    algorithm: ClassVar[str] = "placewright.placers.learned.seq2seq.algorithm"

    groups: int = 128
    hidden: int = 64
    cell: str = "lstm"
    embedding: int = 32
    learning_rate: float = 0.1
    samples_per_update: int = 10
    tanh_constant: float = 5.0
    temperature: float = 10.0
    warm_up: int = 0
    baseline: bool = True
    entropy_weight: float = 0.0
    feasible_only_after: int = 5_000

    def __post_init__(self) -> None:
        require_one_of(self.name, self, CELLS, "cell")
        require_counts(self.name, self, "groups", "embedding", "samples_per_update")
        require_counts(self.name, self, "hidden", "warm_up", least=0)
        require_numbers(self.name, self, "> 0", "learning_rate", "temperature")
        self.check_reinforce(self.name)

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups as described above, and their devices."""
        return merged_space(with_shared_weights_tied(problem), self.groups)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqEntropy(Seq2Seq):
    """`seq2seq` with our corrections: a smaller learning rate and an entropy bonus.

    The paper's rate of 0.1 decides the policy within a few updates, and without an entropy bonus
    REINFORCE ends on one device even on a separable toy. This form changes two settings of
    `seq2seq`, and nothing else:
        * `learning_rate` 0.003;
        * `entropy_weight` 0.03.
    """

    name: ClassVar[str] = "seq2seq-entropy"
    paper: ClassVar[str] = "ours, after Mirhoseini et al., ICML 2017"

    learning_rate: float = 0.003
    entropy_weight: float = 0.03


@dataclass(frozen=True, kw_only=True)
class Seq2SeqHsdagRnn(Seq2Seq):
    """The RNN baseline of HSDAG's notebooks, in the groups of `seq2seq`.

    A GRU of five times the width of its inputs, kind embedding 64, Adam with rate 0.01, one sample
    an update, no tanh, logits divided by 5 in the first 20 updates, and the reward -sqrt(latency)
    without a baseline. From github.com/hping666/HSDAG, commit 9d5caf77.

    Departures from the notebooks:
        * they minimise ``-(log p * sqrt(latency))``, which makes slow placements likelier; the
          sign is right here;
        * while they divide the logits by 5 to sample, their log p is that of the whole logits; here
          both are of the divided ones;
        * they have no limit on a gradient's norm, which is at most 1 here;
        * the network is that of `seq2seq`. Theirs has a linear layer before the encoder, dropout of
          0.1 on what encoder and decoder read, and a decoder that reads the context with the last
          device, so that its state alone makes the logits;
        * groups, features and scales of times are those of `seq2seq`. Theirs are the groups of
          ``merge_operations``, each with the shape of one op and only the groups that read it; a
          failure takes 10,000 s, and teaches at any time, where here it does not after 5,000
          samples. They run 100 episodes;
        * the homogeneous placements are evaluated first, and nothing is learned from them.
    """

    name: ClassVar[str] = "seq2seq-hsdag-rnn"
    paper: ClassVar[str] = "baseline of Duan et al., NeurIPS 2024"

    hidden: int = 0
    cell: str = "gru"
    embedding: int = 64
    learning_rate: float = 0.01
    samples_per_update: int = 1
    tanh_constant: float = 0.0
    temperature: float = 1.0
    warm_up: int = 20
    baseline: bool = False
