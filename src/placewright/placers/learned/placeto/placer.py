"""Placeto: one node a step, message passing, incremental rewards (Addanki et al. 2019)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from placewright.core.arrays import IntArray
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.bases import require_counts, require_numbers, require_one_of
from placewright.placers.learned.shared.grouping import Merger, edge_list, merged_space
from placewright.placers.learned.shared.searching import LearningPlacer, SearchSettings
from placewright.placers.legal import ActionSpace
from placewright.placers.shared_weights import with_shared_weights_tied


@dataclass(frozen=True, kw_only=True)
class PlacetoPlacer(LearningPlacer, SearchSettings):
    """Visit each group once an episode and choose its device; the reward is the time saved.

    "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
    NeurIPS 2019, and its code (aravic/generalizable-device-placement). State: the graph of groups
    with the whole current placement and a pointer to one node. Reward r_t = time(s_t) -
    time(s_{t+1}), discount 1. REINFORCE with an entropy bonus. An episode takes a query for its
    first placement, in each episode again, and one for each group. The result is the best placement
    evaluated, the intermediate ones included.

    A node is a group; in a training step it is a group's forward ops or the others (below). Its row
    has d = 4 + 2 n_devices columns: its seconds on each device, divided by the largest of all nodes
    and devices (0 where it cannot run); the bytes of all tensors that its units make, divided by
    the largest; whether it is done; whether it is the current one; its start time, less the current
    one's, then divided by the largest (earlier nodes may be below -1); and the one-hot device that
    it has now. Start times come from the simulator and are no queries. Outside the execution models
    ``event`` and ``placeto``, and for infeasible placements, they are longest paths.

    As in the code, file by file. These are options of the code and values of its
    ``hyperparameters.txt``, where its defaults are others; no number below is from the paper's
    text:
        * ``nn_primitives.py``, ``mp_progressive_nn.py``: node transform; 8 rounds of messages in
          each direction, with the same weights in each round (its ``radial_mp``; its default, once
          in topological order, calls a method that is not public); aggregators with a hidden layer
          and a ReLU behind every layer, over ancestors, descendants and the rest (its ``tri_agg``);
          classifier [16 d, 8 d]; Glorot weights, zero biases;
        * ``progressive_placer.py``: all episodes start from one random placement, which may break a
          memory limit; the baseline is the mean return at the same step over the last 10 episodes
          (``hyperparameters.txt``; the code's default is 1,000), the current one included. So the
          first episode has advantage 0, and only the entropy bonus acts (with one worker);
        * ``rl_agent.py``, ``hyperparameters.txt``: Adam from 1e-3 linearly to 1e-4 (the code's
          default is constant), gradient norm at most 1.25.

    Departures:
        * advantages are divided by the root mean square of the remembered returns' deviations from
          the baseline, over all steps, and the first entropy weight is 0.3. The code uses 1.0 with
          returns in seconds. With returns in relative time, 1.0 keeps the policy uniform.
          `normalised=false`, `entropy_weight=1` and `last_entropy_weight=1` give plain advantages
          and the code's constant weight; times stay relative;
        * groups merge until there are 64 (ours): co-location groups, then neighbours merged (the
          code merges too, to a number that its users give, in a file that is not public). Here they
          are the fixpoint of Mirhoseini et al. 2017 (a group joins the one group that reads it,
          until none has a single reader), or, where it leaves fewer than 16, chains (a unit joins
          its only reader if that reads no other unit). Then the group with the smallest mean time
          over devices joins the neighbour that it shares most bytes with, or the next one if that
          is refused (without a neighbour, one of the eight cheapest groups). A merged group needs a
          device that all its units may use, and a quarter of which holds the sum of what its
          co-location groups keep: weights, and for throughput the tensors of samples in flight. If
          memory is short, units that share a weight stay together, where a device can hold them.
          By default the code sorts its groups and fails on a cycle, so a merge that would close
          one is refused here, and groups are visited in topological order;
        * devices that a group may not use have probability 0. The code has no such constraints;
        * in a training step, the backward ops of a group and its update are a node of their own. It
          has the group's device and is not visited, unless the group has no forward op: backward
          ops keep the device of their forward ops, which closes cycles of groups before any merge.
          If edges still close a cycle, those against the order (forward nodes, then the others in
          reverse) are left out;
        * times are divided by the problem's reference time: the sum of all units' times, each on
          its fastest device. Run time has a column per device, since costs are a matrix here;
        * the entropy weight falls linearly to `last_entropy_weight`, which is 0. The code can do
          so, and by default keeps the weight. The number of episodes over which it and the learning
          rate fall follows from the budget;
        * each whole episode has an update; in a training over graphs with workers, eight have one
          together. The code sums gradients over 4 to 8 workers, each with a first placement of its
          own, and averages their baselines; a budget of 500 evaluations is only seven episodes of
          64 groups;
        * the loss is divided by the steps of an episode, so that the limit of 1.25 does not depend
          on its length. The code limits the sum, so that its limit acts more often;
        * the entropy is exact (the code adds 1e-3 to probabilities inside the logarithm);
        * infeasible placements take ten reference times, and so does any slower one; the code adds
          2 s per GB above the limit, to at most 10 s in all (``hyperparameters.txt``; nothing by
          default). Memory is no feature; in the code it is an option;
        * no episode is drawn by argmax for evaluation, but a policy from a file places once by
          argmax before its first episode: one query. The code's such episode times all its
          placements. Adam starts anew here; the code restores its moments;
        * rewards are the paper's. The code's branch for them stops with a type error, and its
          switch ``use_min_runtime`` makes a step's return the fall to the best later time;
        * the start time of a group is that of its first unit; the code's is that of the one op that
          the group is named after;
        * ablations: `embedding=partition` is the code's ``no_msg_passing``, whose aggregations read
          the features themselves; here they read the transformed ones, twice side by side.
          `embedding=sum` is the paper's aggregator of all nodes: all but the current one in one
          sum, without messages. The code's ``agg_msgs`` adds up all nodes after the messages, the
          current one too, and gives the classifier nothing else. `reward=terminal` is
          ``one_shot_episodic_rew``, which times the last placement only and starts with all nodes
          on the first device; here every placement is timed and the start is the random one;
        * `aggregation=mean` averages messages and nodes: `placeto-mean` has it. The code's
          ``normalize_aggs`` averages the nodes of each relation and adds up messages. The default
          is the published sum;
        * the homogeneous placements are evaluated first. They count as queries, and nothing is
          learned from them.

    Attributes (besides those of `SearchSettings`):
        groups: number of groups at which merging stops. There are fewer if the graph has fewer,
            and more if the rest may not merge.
        rounds: of message passing.
        reward: ``intermediate`` pays each step the fall in time; ``terminal`` pays every step the
            fall over the episode (ablation; no fewer placements are timed).
        embedding: ``messages`` passes messages; ``partition`` adds up ancestors, descendants and
            the rest without them, ``sum`` all other nodes in one sum (ablations).
        aggregation: ``sum`` adds up messages and the nodes of each relation, as published; ``mean``
            divides by how many they are, so that what a policy sees does not grow with the graph.
        learning_rate: first of Adam.
        last_learning_rate: it falls linearly to this.
        entropy_weight: first weight of the entropy bonus.
        last_entropy_weight: it changes linearly to this.
        normalised: divide advantages by the deviation of the remembered returns.
        clip_norm: largest global gradient norm; 0 sets no limit.
        baseline_window: episodes that the per-step baseline remembers, >= 2. With one, an episode
            would be its own baseline.
        horizon: episodes over which rates fall if the budget has no evaluation limit (100: ours).
        policy: file of a trained policy to start from; "" starts from scratch.
    """

    name: ClassVar[str] = "placeto"
    paper: ClassVar[str] = "Addanki et al., NeurIPS 2019"
    algorithm: ClassVar[str] = "placewright.placers.learned.placeto.algorithm"

    groups: int = 64
    rounds: int = 8
    reward: str = "intermediate"
    embedding: str = "messages"
    aggregation: str = "sum"
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-4
    entropy_weight: float = 0.3
    last_entropy_weight: float = 0.0
    normalised: bool = True
    clip_norm: float = 1.25
    baseline_window: int = 10
    horizon: int = 100
    policy: str = ""

    def __post_init__(self) -> None:
        require_one_of(self.name, self, REWARDS, "reward")
        require_one_of(self.name, self, EMBEDDINGS, "embedding")
        require_one_of(self.name, self, AGGREGATIONS, "aggregation")
        require_counts(self.name, self, "groups", "rounds", "horizon")
        require_counts(self.name, self, "baseline_window", least=2)
        require_numbers(self.name, self, "> 0", "learning_rate")
        not_below = ("last_learning_rate", "entropy_weight", "last_entropy_weight", "clip_norm")
        require_numbers(self.name, self, ">= 0", *not_below, "patience")

    @property
    def network(self) -> dict[str, Any]:
        """The settings that a policy file fixes."""
        return {name: getattr(self, name) for name in ("rounds", "embedding", "aggregation")}

    def learning_rate_at(self, progress: float) -> float:
        """Learning rate where `progress` of the episodes, in [0, 1], are done."""
        fall = self.learning_rate - self.last_learning_rate
        return self.last_learning_rate + (1.0 - progress) * fall

    def entropy_weight_at(self, progress: float) -> float:
        """Weight of the entropy bonus where `progress` of the episodes, in [0, 1], are done."""
        fall = self.entropy_weight - self.last_entropy_weight
        return self.last_entropy_weight + (1.0 - progress) * fall

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups in topological order, no edges of which close a cycle, and their devices."""
        return merged_space(with_shared_weights_tied(problem), self.groups, OrderedMerger)


@dataclass(frozen=True, kw_only=True)
class PlacetoMean(PlacetoPlacer):
    """`placeto` with means in place of sums, which we tried and do not recommend.

    Messages and the nodes of each relation are averaged, not added up. Sums over a cycle of groups
    grow with each round, and an earlier grouping of ours had cycles. Without them the published
    sums do better. It changes one setting of `placeto`, `aggregation` mean, and nothing else."""

    name: ClassVar[str] = "placeto-mean"
    paper: ClassVar[str] = "ours, after Addanki et al., NeurIPS 2019"

    aggregation: str = "mean"


class OrderedMerger(Merger):
    """Sets of colocation classes that refuse merges which would close a cycle.

    Placeto visits groups in topological order; its code sorts them and fails on a cycle. Where
    colocation closes cycles before any merge, no grouping of whole classes is without them: a
    training step keeps the backward ops of a layer with its forward ops. The graph then has only
    the edges that lead from a class to one whose first unit comes later. That is the graph of the
    forward pass, with each backward op on the device of its forward op. (The published graphs are
    not in the authors' repository, and their code visits every node.)
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._rank = first_positions(problem)
        edges = ordered_edges(problem, self._rank)
        self._after: list[set[int]] = [set() for _ in self._classes]
        self._before: list[set[int]] = [set() for _ in self._classes]
        for producer, consumer in edges.T.tolist():
            self._after[producer].add(consumer)
            self._before[consumer].add(producer)

    def merge(self, first: int, second: int) -> bool:
        """Merge two groups given by any of their classes; False if it is refused."""
        first, second = self.root(first), self.root(second)
        if first == second or self._is_around(first, second) or self._is_around(second, first):
            return False
        if not super().merge(first, second):
            return False
        low, high = min(first, second), max(first, second)
        for links, mirrors in ((self._after, self._before), (self._before, self._after)):
            for other in links[high]:
                mirrors[other].discard(high)
                mirrors[other].add(low)
            links[low] |= links[high]
            links[high] = set()
        for links in (self._after, self._before):
            links[low].discard(low)
            links[low].discard(high)
        self._rank[low] = min(self._rank[low], self._rank[high])
        return True

    def _is_around(self, first: int, last: int) -> bool:
        """True if a path leads from one group to another through a third."""
        ahead = [node for node in self._after[first] if node != last]
        seen = set(ahead)
        while ahead:
            for node in self._after[ahead.pop()]:
                if node == last:
                    return True
                if node not in seen:
                    seen.add(node)
                    ahead.append(node)
        return False

    def grouping(self, problem: Problem) -> Grouping:
        """The groups, numbered in topological order; of several the earliest first unit is next."""
        del problem
        labels = self.roots()
        roots = np.unique(labels).tolist()
        waits = {root: len(self._before[root]) for root in roots}
        ready = [(int(self._rank[root]), root) for root in roots if waits[root] == 0]
        heapq.heapify(ready)
        number = np.empty(len(self._classes), dtype=np.int64)
        for index in range(len(roots)):
            _, root = heapq.heappop(ready)
            number[root] = index
            for other in sorted(self._after[root]):
                waits[other] -= 1
                if waits[other] == 0:
                    heapq.heappush(ready, (int(self._rank[other]), other))
        return Grouping(number[labels])


def first_positions(problem: Problem) -> IntArray:
    """Topological position of the first unit of each colocation class, shape (n_classes,)."""
    order = problem.unit_graph.topological_order
    first = np.full(problem.colocation.n_groups, len(order), dtype=np.int64)
    np.minimum.at(first, problem.colocation.group_of[order], np.arange(len(order)))
    return first


def ordered_edges(problem: Problem, rank: IntArray) -> IntArray:
    """Edges between colocation classes without a cycle, shape (2, n_edges).

    All of them if they close none, else those that lead to a later first unit.
    """
    producers, consumers, _ = edge_list(problem)
    class_of, n_classes = problem.colocation.group_of, problem.colocation.n_groups
    ends = np.stack([class_of[producers], class_of[consumers]])
    ends = np.unique(ends[:, ends[0] != ends[1]], axis=1).reshape(2, -1)
    links = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(n_classes, n_classes))
    n_components = int(connected_components(links, connection="strong")[0])
    if n_components == n_classes:
        return ends
    forward: IntArray = ends[:, rank[ends[0]] < rank[ends[1]]]
    return forward


REWARDS = ("intermediate", "terminal")
AGGREGATIONS = ("sum", "mean")
EMBEDDINGS = ("messages", "partition", "sum")
