"""Placeto: one node a step, message passing, incremental rewards (Addanki et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from placewright.placers.learned.placeto.settings import PlacetoSettings
from placewright.placers.learned.searching import PlacesGroups


@dataclass(frozen=True)
class PlacetoPlacer(PlacetoSettings, PlacesGroups):
    """Visit each node once an episode, give it a device, be paid the fall in running time.

    "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
    NeurIPS 2019, and its code (aravic/generalizable-device-placement). State: the graph with the
    whole current placement and a pointer to one node. Reward r_t = time(s_t) - time(s_{t+1}),
    discount 1; every intermediate time is a query and is counted. REINFORCE with an entropy bonus.

    As in the code, file by file:
        * ``nn_primitives.py``, ``mp_progressive_nn.py``: node transform; 8 rounds of messages
          in each direction; aggregators with a hidden layer and a ReLU behind every layer, over
          ancestors, descendants and the rest; classifier [16 d, 8 d]; Glorot weights, zero biases;
        * ``progressive_placer.py``: all episodes start from one random placement; the baseline
          is the mean return at the same step over the last 10 episodes, the current one included;
        * ``rl_agent.py``, ``hyperparameters.txt``: Adam from 1e-3 linearly to 1e-4, gradient norm
          at most 1.25, an entropy weight that falls linearly to 0.

    Departures:
        * advantages are divided by their root mean square over the remembered episodes, and the
          first entropy weight is 0.3. The code has 1.0 beside returns in seconds. Beside returns in
          relative time that weight keeps the policy uniform: 1.0972 nats of 1.0986 after 5,000
          evaluations (`normalised=false` and `entropy_weight=1` bring it back);
        * at most 64 groups: co-location groups, then neighbours merged (the code merges too, to a
          number that its users give);
        * times are divided by the problem's reference time; run time has a column per device, since
          costs are a matrix here: d = 4 + 2 n_devices;
        * episodes over which learning rate and entropy weight fall follow from the budget;
        * the code sums gradients over 4 to 8 workers; the default is one, for a budget of 500
          evaluations is only some eight episodes of 64 nodes;
        * the loss is divided by the steps of an episode. The largest gradient norm is 1.25 then
          for long and short episodes alike; Adam's steps do not depend on the factor;
        * the entropy is exact (the code adds 1e-3 to probabilities inside the logarithm);
        * infeasible placements take the failing time, in place of 2 s per GB above the limit, and
          memory is no feature;
        * no episode is drawn by argmax for evaluation;
        * ablations: `embedding=partition` is the code's ``no_msg_passing``, `embedding=sum` its
          paper's aggregator of all nodes; `reward=terminal` is ``one_shot_episodic_rew``, but here
          the placements on the way are timed all the same;
        * `aggregation=mean` is ours: what is added up is divided by how many it is. Eight rounds of
          sums grow with the graph, and a first policy that is decided explores nothing (with the
          published sums its median entropy on GNMT is 0); the default stays as published;
        * outside the execution model ``event`` start times are longest paths;
        * the homogeneous placements are evaluated first, and nothing is learned from them.
    """

    name: ClassVar[str] = "placeto"
    paper: ClassVar[str] = "Addanki et al., NeurIPS 2019"
    learner: ClassVar[str] = "placewright.placers.learned.placeto.learner"
