"""HSDAG: grouping and placing learned together on the computation graph (Duan et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError, Requires
from placewright.placers.anytime import anytime
from placewright.placers.learned.extra import require_packages
from placewright.simulation.evaluator import Evaluator

VARIANTS = ("corrected", "released")
RELEASED_DISCOUNT = 0.95


@dataclass(frozen=True)
class Hsdag:
    """GCN embedding, graph parsing into an unspecified number of groups, a device per group.

    "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024, arXiv 2405.14185. Five steps: the graph; co-location coarsening (the released
    ``merge_operations``) with features; joint node embedding and grouping by a graph parsing
    network; a device per group; policy gradient with reward 1 / latency. An episode has 20 steps;
    after each, every node adds its group's embedding to its features; an update follows each
    episode (25 of them in the paper: 500 evaluations). Adam 1e-3, hidden 128, dropout 0.2 that
    stays on while sampling, symmetrised adjacency.

    Variant ``released`` is what the public code does: op kinds and the raw group index as features,
    one scalar return for all steps, no baseline, homogeneous placements count as failures (1e10).
    Its loop parses until nothing merges, which makes any connected graph one group: it is bounded
    by `parse_rounds` here.

    Variant ``corrected`` has the paper's features (kinds, degrees, fractal dimension, positional
    encoding, output shape), each step's own return minus a moving average, and allows homogeneous
    placements. The action of a step changes no later state, so its default discount is 0: later
    rewards would only add noise.

    That an episode adds each embedding to the state drowns the features within a few steps: on a
    toy of seven independent ops the network then never tells them apart; without, it does. So
    ``corrected`` keeps the state; `accumulate` brings the published behaviour back.

    The largest graph of the paper has 1,009 nodes. Where coarsening leaves more than `max_nodes`,
    as it does on a training step of thousands of ops, the cheapest groups join the neighbours that
    they share most bytes with, until no more are left: time follows the nodes, and so many choices
    are not learned from 25 updates.

    Where the paper is silent: rewards are reference time / latency; groups whose members have no
    device in common are placed softly, unit by unit; an isolated group's edge factor is 1; with
    several rounds of parsing a group's edge factor is that of the last round.

    Attributes:
        variant: ``corrected`` or ``released``.
        hidden: width of the network.
        dropout: while sampling and learning.
        max_nodes: that the network sees at most, >= 1; 0 sets no limit.
        parse_rounds: rounds of keep-the-best-edge grouping, >= 1.
        steps: placements per episode, which has one update.
        accumulate: add each cluster's embedding to the state after every step (``released`` always
            does).
        learning_rate: of Adam.
        discount: of later rewards; negative takes the variant's own (0.95 released, 0 corrected).
        baseline_decay: of the moving average (``corrected``).
        entropy_weight: of the mean entropy of a group's device, in the loss (``corrected``).
        without_output_shape: ablation, leaves the output shape out.
        without_node_id: ablation, leaves the positional encoding out.
        without_structure: ablation, leaves degrees and fractal dimension out.
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
    dropout: float = 0.2
    max_nodes: int = 1024
    parse_rounds: int = 1
    steps: int = 20
    accumulate: bool = False
    learning_rate: float = 1e-3
    discount: float = -1.0
    baseline_decay: float = 0.9
    entropy_weight: float = 0.03
    without_output_shape: bool = False
    without_node_id: bool = False
    without_structure: bool = False
    policy: str = ""
    patience: int = 0
    tensorboard: str = ""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise InputError(f"hsdag: variant must be one of {VARIANTS}, got '{self.variant}'")
        for what in ("hidden", "parse_rounds", "steps"):
            if getattr(self, what) < 1:
                raise InputError(f"hsdag: {what} must be >= 1, got {getattr(self, what)}")
        if self.max_nodes < 0:
            raise InputError(f"hsdag: max_nodes must be >= 0, got {self.max_nodes}")
        if not 0 <= self.dropout < 1 or self.discount > 1:
            raise InputError(
                f"hsdag: dropout must be in [0, 1) and discount <= 1, got {self.dropout}, "
                f"{self.discount}"
            )

    @property
    def accumulates(self) -> bool:
        """True when the state evolves within an episode."""
        return self.accumulate or self.variant == "released"

    @property
    def effective_discount(self) -> float:
        """The discount that is used."""
        if self.discount >= 0:
            return self.discount
        return RELEASED_DISCOUNT if self.variant == "released" else 0.0

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem; ``released`` needs two devices."""
        if self.variant == "released" and problem.n_devices < 2:
            return "variant 'released' rejects homogeneous placements and needs two devices"
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Run episodes and learn until the budget ends.

        Raises:
            MissingExtraError: PyTorch or PyTorch Geometric is absent.
            FileFormatError: the policy file is unusable for this placer or number of devices.
        """
        require_packages("torch", "torch_geometric")
        from placewright.placers.learned.hsdag_learner import learn

        learn(self, problem, evaluator, rng)
        return evaluator.solution()
