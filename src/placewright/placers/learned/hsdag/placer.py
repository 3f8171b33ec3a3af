"""HSDAG: grouping and placing learned together on the computation graph (Duan et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import BudgetSpent, InputError
from placewright.placers.anytime import anytime
from placewright.placers.learned.extra import require_packages
from placewright.placers.learned.grouping import ActionSpace
from placewright.placers.learned.hsdag.coarsening import coarsened
from placewright.placers.learned.hsdag.presets import PRESETS, Choices
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Hsdag:
    """DOC"""

    name: ClassVar[str] = "hsdag"
    paper: ClassVar[str] = "Duan et al., NeurIPS 2024"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training", "throughput")
    needs_training: ClassVar[bool] = False

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
        """Every setting, those that are None as the variant has them."""
        chosen: dict[str, Any] = dict(PRESETS[self.variant])
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "variant" and value is not None:
                chosen[item.name] = value
        return Choices(**chosen)

    def supports(self, problem: Problem) -> str:
        """Defined for every problem; without homogeneous placements it needs two devices."""
        if not self.choices.homogeneous and problem.n_devices < 2:
            return "it may not return a homogeneous placement and needs two devices"
        return ""

    def actions(self, problem: Problem) -> ActionSpace:
        """Groups of units and their devices, before the network merges groups further."""
        choices = self.choices
        found = coarsened(problem, choices.max_nodes, weights_as_nodes=choices.weights_as_nodes)
        return found.space

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Run episodes and learn until the budget ends.

        Where the variant forbids homogeneous placements and samples nothing else, the status is
        `unknown` and the message says so.

        Raises:
            MissingExtraError: PyTorch or PyTorch Geometric is absent.
            FileFormatError: the policy file is unusable for this placer or number of devices.
        """
        require_packages("torch", "torch_geometric")
        from placewright.placers.learned.hsdag.learner import learn

        choices = self.choices
        try:
            learn(choices, problem, evaluator, rng)
        except BudgetSpent:
            pass
        drawn = evaluator.samples
        if evaluator.best is None and not choices.homogeneous and np.isfinite(drawn).any():
            return evaluator.solution(
                message=f"none of {len(drawn)} placements counts: those that fit are homogeneous, "
                f"which variant '{self.variant}' takes for failures; homogeneous=true allows them"
            )
        return evaluator.solution()
