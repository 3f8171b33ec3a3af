"""HSDAG: grouping and placing learned together on the computation graph (Duan et al. 2024)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import BudgetSpent, InputError, Requires
from placewright.placers.bases import anytime, require_counts, require_numbers, require_one_of
from placewright.placers.learned.hsdag.graph import coarsened
from placewright.placers.learned.shared.searching import LearningPlacer, SearchSettings
from placewright.placers.legal import ActionSpace
from placewright.simulation.evaluator import Evaluator

FEATURES = ("released", "paper")
RETURNS = ("shared", "own", "following")


@dataclass(frozen=True, kw_only=True)
class Hsdag(LearningPlacer, SearchSettings):
    """Embed the graph, parse it into clusters, place each cluster: all learned together.

    "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024, arXiv 2405.14185. Five steps: the graph with constants as nodes; co-location coarsening
    and features (`graph`); node embedding and grouping by a graph parsing network (`network`); a
    device per cluster; policy gradient (`algorithm`). 25 episodes of 20 steps in the paper: 500
    evaluations and 25 updates.

    `hsdag` follows the paper's text, which we know from summaries. `hsdag-released` is the public
    code (github.com/hping666/HSDAG, commit 9d5caf77), and `hsdag-corrected` our mended form. The
    text differs from the code in five things:
        * features: it has five kinds, the code two;
        * homogeneous placements count; in the code they are failures;
        * the weight of a step is its own reward times discount^step, in the code one sum for all;
        * the discount is 0.99 (``gamma`` of ``config.py``, unused there); ``main.py`` has 0.95;
        * a pass parses once, the code until nothing merges. The code's way gives one cluster per
          connected graph if there is no dropout: scores are alike then in both directions of an
          edge. With its dropout, untrained policies give one to eight.
    Widths, dropout and learning rate are those of ``config.py``, whose ``dropout_parsing`` of 0
    drops no edge. Numbers that only `hsdag-corrected` changes are ours.

    A group is what coarsening makes of nodes; a cluster is groups that a pass merges. One action is
    a device for every cluster. Clusters are not drawn: they follow from the scores of edges under
    the pass's dropout. Scores learn since they scale the cluster's embedding. A node's row has its
    members' shares of each kind, one-hot degrees in 18 columns, fractal dimension, index in 16 and
    shape in 4; or kinds and index for the code. The result is the best placement evaluated.

    Departures from the code, file by file, in all three:
        * ``main.py``, ``xml2graph``: nodes are units, weights, graph inputs and outputs, not the
          layers of a file. They are the same where a unit is one op, but for conversions of
          half-precision weights and for constants that the file computes, which are one weight
          here: the ops of moe have the code's groups, and two groups of constants are missing.
          Constants inside the body of a loop are a node here, and operators that the reader folds
          have no node. Nodes are visited in another order (weights first), which the index of a
          group shows.
        * ``main.py``, ``merge_operations``: same groups; colocation classes stay together, and a
          group needs a device that all its units may use, and a quarter of which holds the sum
          of what its classes keep: weights, and for throughput the tensors of samples in flight.
          Clusters have no such limit. If memory is short, units that share a weight stay together,
          where a device can hold them.
        * ``main.py``, ``pre_process``: the mean of kinds is over all members of a group. The code
          leaves out those that it meets after the group's last node.
        * ``main.py``, ``sim_runtime``: the evaluator times placements; homogeneous means that all
          units share a device, wherever constants are, on any number of devices (the code has two).
          The device of a cluster of constants has no effect, but its log-probability counts. A
          failure has latency 1e10, as in the code. If all placements fail, there is no answer; the
          code returns one of them.
        * ``main.py``, ``train``: rewards are reference time / latency instead of 1 / seconds (the
          reference time is the sum of all units' times, each on its fastest device). Adam's steps
          do not depend on this scale, except until a first placement counts: gradients are so small
          then that Adam's epsilon outweighs them, here more than in the code. Probabilities are not
          clamped to 1.2e-7 from 0 and 1. Devices that a cluster may not use have probability 0. If
          its groups have no common device, it may choose those of any; units that cannot run there
          go, with their colocation class, to the class's fastest device. Episodes go on until the
          budget ends, where the code has 25; the last one may be shorter, and still has an update.
        * ``model.py``, ``GPN.forward``: graphs without edges, on which the code fails, are taken.
        * ``layer.py``, ``pool.py``, ``layers/gcn_conv.py``: none; communities are found without
          the loop over them.
        * ``config.py``: the number of kinds is that of the graph, not 16.

    Departures from the text, and what it leaves open:
        * ``nfd.py`` of the code gives the fractal dimension, which the released ``main.py`` leaves
          unused. It counts nodes along the directed edges of the coarse graph, without the node
          itself. In the code, nodes that cannot be reached are 1.8e308 steps away; here they are
          left out;
        * a group's output shape is that of its largest output, padded to four extents, as raw
          numbers (a line of ``main.py`` that is commented out has that of one member);
        * weights have no shape in our graphs, so their output shape is their number of bytes, and
          they count as outputs of so many elements;
        * the paper does not say how degrees beyond 8 are encoded: here they count as 8;
        * the homogeneous placements are evaluated first (not in `hsdag-released`). They count as
          queries, and nothing is learned from them.

    Attributes (besides those of `SearchSettings`):
        hidden: width of the network.
        dropout: while sampling and learning, in [0, 1).
        max_nodes: limit on nodes of the network; 0 sets none.
        weights_as_nodes: weights, inputs and outputs stay nodes after coarsening.
        features: ``released`` (kinds, raw group index) or ``paper`` (kinds, degrees, fractal
            dimension, sinusoidal index, output shape).
        normalised_features: every feature with mean 0 and deviation 1; shapes as logarithms.
        without_output_shape: ablation of `features` paper.
        without_node_id: ablation, leaves the index out.
        without_degrees: ablation of `features` paper.
        without_fractal_dimension: ablation of `features` paper.
        without_grouping: ablation, each node of the coarse graph is placed on its own.
        parse_rounds: rounds of parsing into clusters; 0 repeats until nothing merges.
        steps: placements per episode, which has one update; a multiple of `draws`.
        draws: placements that are drawn from each pass through the network.
        accumulate: nodes add their cluster's embedding to their state after each pass; an episode
            starts from the features again.
        homogeneous: whether homogeneous placements count; else they are failures (latency 1e10)
            and never returned; no homogeneous starts are evaluated then.
        returns: the weight of a step: ``shared`` (one discounted sum for all), ``own`` (its reward
            times discount^step) or ``following`` (its reward and the discounted later ones). In the
            sum for all, the last reward counts whole, and each earlier one `discount` times less.
        discount: of rewards, in [0, 1].
        baseline: subtract the moving average of past episodes' mean returns (in the first one, of
            its own mean).
        normalised_advantages: divide the advantages by their root mean square in the episode; only
            with `baseline`.
        baseline_decay: of the moving average.
        entropy_weight: of the mean entropy of a cluster's device, summed over steps, in the loss.
        learning_rate: of Adam.
        clip_norm: largest global norm of a gradient; 0 sets no limit.
        policy: file of a trained policy to start from; "" starts from scratch.
    """

    name: ClassVar[str] = "hsdag"
    paper: ClassVar[str] = "Duan et al., NeurIPS 2024"
    algorithm: ClassVar[str] = "placewright.placers.learned.hsdag.algorithm"
    requires: ClassVar[Requires] = (("torch", "learned"), ("torch_geometric", "learned"))

    hidden: int = 128
    dropout: float = 0.2
    max_nodes: int = 0
    weights_as_nodes: bool = True
    features: str = "paper"
    normalised_features: bool = False
    without_output_shape: bool = False
    without_node_id: bool = False
    without_degrees: bool = False
    without_fractal_dimension: bool = False
    without_grouping: bool = False
    parse_rounds: int = 1
    steps: int = 20
    draws: int = 1
    accumulate: bool = True
    homogeneous: bool = True
    returns: str = "own"
    discount: float = 0.99
    baseline: bool = False
    normalised_advantages: bool = False
    baseline_decay: float = 0.9
    entropy_weight: float = 0.0
    learning_rate: float = 1e-3
    clip_norm: float = 0.0
    policy: str = ""

    def __post_init__(self) -> None:
        require_one_of(self.name, self, FEATURES, "features")
        require_one_of(self.name, self, RETURNS, "returns")
        require_counts(self.name, self, "hidden", "steps", "draws")
        require_counts(self.name, self, "max_nodes", "parse_rounds", "patience", least=0)
        require_numbers(self.name, self, ">= 0", "entropy_weight", "clip_norm")
        require_numbers(self.name, self, "in [0, 1)", "dropout", "baseline_decay")
        require_numbers(self.name, self, "in [0, 1]", "discount")
        require_numbers(self.name, self, "> 0", "learning_rate")
        if self.steps % self.draws:
            raise InputError(
                f"{self.name}: steps must be a multiple of draws, got {self.steps} and {self.draws}"
            )

    @property
    def passes(self) -> int:
        """Passes through the network per episode."""
        return self.steps // self.draws

    @property
    def feature_parts(self) -> tuple[str, ...]:
        """The features besides kinds, by their names in `graph.node_features`."""
        if self.features == "released":
            return () if self.without_node_id else ("raw_index",)
        without = {
            "degrees": self.without_degrees,
            "fractal_dimension": self.without_fractal_dimension,
            "index": self.without_node_id,
            "output_shape": self.without_output_shape,
        }
        return tuple(name for name, is_left_out in without.items() if not is_left_out)

    def why_not(self, problem: Problem) -> str | None:
        """None, unless homogeneous placements are forbidden and there is one device only."""
        if not self.homogeneous and problem.n_devices < 2:
            return "it may not return a homogeneous placement and needs two devices"
        return None

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups of units and their devices, before the network merges groups further."""
        return coarsened(problem, self.max_nodes, weights_as_nodes=self.weights_as_nodes).space

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Run episodes and learn until the budget ends.

        If homogeneous placements are forbidden and nothing else is sampled, the status is
        `unknown`, with a message.

        Raises:
            MissingExtraError: PyTorch or PyTorch Geometric is absent.
            FileFormatError: the policy file is unusable for this placer or number of devices.
        """
        with contextlib.suppress(BudgetSpent):
            self.learn(problem, evaluator, rng)
        drawn = evaluator.samples
        if evaluator.best is None and not self.homogeneous and np.isfinite(drawn).any():
            return evaluator.solution(
                message=f"none of {len(drawn)} placements counts: those that fit are homogeneous, "
                f"which {self.name} takes for failures; homogeneous=true allows them"
            )
        return evaluator.solution()


@dataclass(frozen=True, kw_only=True)
class HsdagReleased(Hsdag):
    """The public code of HSDAG: github.com/hping666/HSDAG, commit 9d5caf77.

    Its network gives the code's outputs from the code's weights, and its training gives the code's
    updates (tests hold both to 1e-5, without dropout). Homogeneous placements are failures, and it
    never returns one. One discounted sum weighs all steps of an episode. Departures: those from the
    code that the docstring of `hsdag` lists, file by file. It changes these settings of `hsdag`:
        * `features` released: kinds and the raw group index;
        * `parse_rounds` 0: a pass parses until nothing merges;
        * `homogeneous` and `homogeneous_starts` false;
        * `returns` shared with `discount` 0.95.
    """

    name: ClassVar[str] = "hsdag-released"

    features: str = "released"
    parse_rounds: int = 0
    homogeneous: bool = False
    homogeneous_starts: bool = False
    returns: str = "shared"
    discount: float = 0.95


@dataclass(frozen=True, kw_only=True)
class HsdagCorrected(Hsdag):
    """`hsdag` with our corrections, so that it learns.

    An ablation of one change at a time on thirteen problems shows which are needed: a moving
    `baseline`, and no shared or later rewards in a step's weight (`returns` following with
    `discount` 0; `hsdag` has none either). Of the other changes, `draws` with `steps` makes the
    samples better on one of these problems, and none makes another difference. `max_nodes` was not
    part of it. The form changes these settings of `hsdag`:
        * `baseline`, `normalised_advantages`, `returns` following with `discount` 0;
        * `normalised_features`; `accumulate` false: all passes start from the features;
        * `steps` 10 with 5 `draws` from each pass; `entropy_weight` 0.03; `clip_norm` 1;
        * `max_nodes` 1,024. If coarsening leaves more, nodes without units are left out, and then
          the cheapest groups join the neighbours that they share most bytes with.
    """

    name: ClassVar[str] = "hsdag-corrected"
    paper: ClassVar[str] = "ours, after Duan et al., NeurIPS 2024"

    max_nodes: int = 1024
    normalised_features: bool = True
    steps: int = 10
    draws: int = 5
    accumulate: bool = False
    returns: str = "following"
    discount: float = 0.0
    baseline: bool = True
    normalised_advantages: bool = True
    entropy_weight: float = 0.03
    clip_norm: float = 1.0
