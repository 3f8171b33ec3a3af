"""HSDAG: grouping and placing learned together on the computation graph (Duan et al. 2024)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import BudgetSpent, InputError, Requires
from placewright.placers.anytime import anytime
from placewright.placers.learned.hsdag.graph import coarsened
from placewright.placers.learned.hsdag.presets import PRESETS, Choices
from placewright.placers.learned.shared.extra import require_packages
from placewright.placers.learned.shared.grouping import ActionSpace
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Hsdag:
    """Embed the graph, parse it into groups, place each group: all learned together.

    "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024, arXiv 2405.14185; code: github.com/hping666/HSDAG, commit 9d5caf77. Five steps: the graph
    with constants as nodes; co-location coarsening and features (`graph`); node embedding and
    grouping by a graph parsing network (`network`); a device per group; policy gradient
    (`algorithm`). 25 episodes of 20 steps in the paper:
    500 evaluations and 25 updates.

    Three variants are presets (`presets`) of the settings below. A setting of your own replaces
    that of the preset:
        * ``released``: the public code. Its network gives the code's outputs from the
          code's weights, its training the code's updates (tests hold both to 1e-5).
        * ``paper``: the text, if it differs from the code: five kinds of features,
          homogeneous placements count, and each step is weighed by its own reward times
          discount^step.
        * ``corrected``: learns on fifteen of fifteen problems. An ablation of one change at a time
          on thirteen problems shows that `baseline`, weighing a step by its own reward, and
          grouping are needed; no other change makes a difference, and none harms.

    Departures from the code, file by file. In every variant:
        * ``main.py``, ``xml2graph``: nodes are units, weights, graph inputs and outputs, not the
          layers of a file. They are the same where a unit is one op, but for conversions of
          half-precision weights, which are part of the weight here.
        * ``main.py``, ``merge_operations``: same groups; colocation classes stay together, and no
          group may fill more than a quarter of every device that it may use.
        * ``main.py``, ``pre_process``: the mean of kinds is over all members of a group. The code
          leaves out those that it meets after the group's last node.
        * ``main.py``, ``sim_runtime``: the evaluator times placements; homogeneous means that all
          units share a device, wherever constants are.
        * ``main.py``, ``train``: rewards are reference time / latency instead of 1 / seconds, which
          Adam does not notice. Devices that a group may not use have probability 0.
        * ``model.py``, ``GPN.forward``: its loop parses until nothing merges, which makes any
          connected graph one group, and so every placement homogeneous. `parse_rounds` bounds it,
          1 by default as in the paper's text; 0 is the code's loop.
        * ``layer.py``, ``pool.py``, ``layers/gcn_conv.py``: none; communities are found without
          the loop over them.
        * ``nfd.py``: unused by the released ``main.py``; ``paper`` and ``corrected`` have it.
        * ``config.py``: the number of kinds is that of the graph, not 16.
    In ``paper`` besides: weights have no shape in our graphs, so their output shape is their number
    of bytes; the paper does not say how degrees beyond 8 are encoded: as 8. Equations were read in
    summaries only (their discount of 0.99 is ``config.py``'s ``gamma``).
    In ``corrected`` besides: all that its preset changes. Where coarsening leaves more than
    `max_nodes`, nodes without units are left out, and then the cheapest groups join the neighbours
    that they share most bytes with.

    Attributes:
        variant: ``corrected``, ``paper`` or ``released``.
        hidden: width of the network.
        dropout: while sampling and learning, in [0, 1).
        max_nodes: limit on nodes of the network; 0 sets none.
        weights_as_nodes: weights, inputs and outputs stay nodes after coarsening.
        features: ``released`` (kinds, raw group index) or ``paper`` (kinds, degrees, fractal
            dimension, sinusoidal index, output shape).
        normalised_features: every feature with mean 0 and deviation 1; shapes as logarithms.
        without_output_shape: ablation.
        without_node_id: ablation, leaves the index out.
        without_degrees: ablation.
        without_fractal_dimension: ablation.
        without_grouping: ablation, each node of the coarse graph is placed on its own.
        parse_rounds: rounds of grouping; 0 repeats until nothing merges.
        steps: placements per episode, which has one update.
        draws: placements that are drawn from each pass through the network.
        accumulate: nodes add their group's embedding to their state after each pass.
        homogeneous: whether homogeneous placements count; else they are failures (latency 1e10)
            and never returned.
        reward: ``inverse`` (reference / latency) or ``root`` (-sqrt of latency / reference).
        returns: the weight of a step: ``shared`` (one discounted sum for all), ``own`` (its reward
            times discount^step) or ``following`` (its reward and the discounted later ones).
        discount: of rewards, in [0, 1].
        baseline: subtract the moving average of past returns.
        normalised_advantages: divide the advantages by their root mean square in the episode.
        baseline_decay: of the moving average.
        entropy_weight: of the mean entropy of a group's device, in the loss.
        learning_rate: of Adam.
        clip_norm: largest global norm of a gradient; 0 sets no limit.
        homogeneous_starts: evaluate the homogeneous placements first; they teach nothing.
        updates: False samples from the untrained policy only: the control of learning.
        policy: file of a trained policy to start from; "" starts from scratch.
        patience: stop after so many evaluations without improvement; 0 never.
        tensorboard: folder for TensorBoard scalars; "" writes none.
    """

    name: ClassVar[str] = "hsdag"
    paper: ClassVar[str] = "Duan et al., NeurIPS 2024"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False
    requires: ClassVar[Requires] = (("torch", "learned"), ("torch_geometric", "learned"))

    variant: str = "corrected"
    hidden: int = 128
    dropout: float | None = None
    max_nodes: int | None = None
    weights_as_nodes: bool | None = None
    features: str | None = None
    normalised_features: bool | None = None
    without_output_shape: bool = False
    without_node_id: bool = False
    without_degrees: bool = False
    without_fractal_dimension: bool = False
    without_grouping: bool = False
    parse_rounds: int | None = None
    steps: int | None = None
    draws: int | None = None
    accumulate: bool | None = None
    homogeneous: bool | None = None
    reward: str | None = None
    returns: str | None = None
    discount: float | None = None
    baseline: bool | None = None
    normalised_advantages: bool | None = None
    baseline_decay: float = 0.9
    entropy_weight: float | None = None
    learning_rate: float | None = None
    clip_norm: float | None = None
    homogeneous_starts: bool | None = None
    updates: bool = True
    policy: str = ""
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        if self.variant not in PRESETS:
            known = tuple(PRESETS)
            raise InputError(f"hsdag: variant must be one of {known}, got '{self.variant}'")
        _ = self.choices  # raises where a value is out of range

    @property
    def choices(self) -> Choices:
        """All settings; the variant decides those that are None."""
        chosen: dict[str, Any] = dict(PRESETS[self.variant])
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "variant" and value is not None:
                chosen[item.name] = value
        return Choices(**chosen)

    def why_not(self, problem: Problem) -> str | None:
        """None, unless homogeneous placements are forbidden and there is one device only."""
        if not self.choices.homogeneous and problem.n_devices < 2:
            return "it may not return a homogeneous placement and needs two devices"
        return None

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups of units and their devices, before the network merges groups further."""
        choices = self.choices
        graph = coarsened(problem, choices.max_nodes, weights_as_nodes=choices.weights_as_nodes)
        return graph.space

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Run episodes and learn until the budget ends.

        If the variant forbids homogeneous placements and samples nothing else, the status is
        `unknown`, with a message.

        Raises:
            MissingExtraError: PyTorch or PyTorch Geometric is absent.
            FileFormatError: the policy file is unusable for this placer or number of devices.
        """
        require_packages("torch", "torch_geometric")
        from placewright.placers.learned.hsdag.algorithm import learn

        choices = self.choices
        with contextlib.suppress(BudgetSpent):
            learn(choices, problem, evaluator, rng)
        drawn = evaluator.samples
        if evaluator.best is None and not choices.homogeneous and np.isfinite(drawn).any():
            return evaluator.solution(
                message=f"none of {len(drawn)} placements counts: those that fit are homogeneous, "
                f"which variant '{self.variant}' takes for failures; homogeneous=true allows them"
            )
        return evaluator.solution()
