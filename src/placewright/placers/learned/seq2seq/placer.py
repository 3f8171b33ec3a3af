"""Device placement with a sequence-to-sequence policy (Mirhoseini et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.placers.learned.presets import with_presets
from placewright.placers.learned.searching import PlacesGroups
from placewright.placers.learned.seq2seq.settings import PRESETS, Seq2SeqSettings


@with_presets(PRESETS)
@dataclass(frozen=True)
class Seq2Seq(Seq2SeqSettings, PlacesGroups):
    """LSTM encoder and attentional LSTM decoder over co-located groups, learned by REINFORCE.

    "Device Placement Optimization with Reinforcement Learning", ICML 2017, arXiv 1706.04972.
    Ops are grouped to the published fixpoint. A group is the sum of its ops' kind embeddings, its
    output shapes and its rows of the group adjacency. Reward -sqrt(time), moving-average baseline,
    Adam, gradient norm clipped at 1.

    The paper has no public code. Departures from it, and what it leaves open:
        * hidden 64 (the width is not stated), embedding 32, 10 samples per update, decay 0.9;
        * times are divided by the problem's reference time; an infeasible placement counts as ten;
        * output shapes are one row of a group, kinds are counted and embedded as their sum;
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
    """

    name: ClassVar[str] = "seq2seq"
    paper: ClassVar[str] = "Mirhoseini et al., ICML 2017"
    learner: ClassVar[str] = "placewright.placers.learned.seq2seq.learner"
