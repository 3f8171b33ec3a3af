"""A trained list scheduler that places graphs it has never seen, with hardly any evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import Requires
from placewright.placers.bases import anytime, require_counts, require_numbers
from placewright.placers.learned.shared.searching import require_packages
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class ZeroShot:
    """One pass of a graph network, then units in rank order go to the device that scores best.

    Our own, in the line of Placeto's transfer and of learned list scheduling (Paliwal et al. 2020,
    Zhou et al. 2019). All features are ratios and describe a (unit, device) pair, so one policy
    serves any graph and any number of devices: earliest start and finish of the pair in the
    schedule so far, relative cost, where inputs lie, load; and a graph embedding of the unit. The
    score of a fresh policy is minus the earliest finish time; training by REINFORCE adds the rest.

    A negative result, kept for research: on unseen graphs it does not beat local search with as
    many evaluations (docs/results). Use `auto` to place a model.

    Evaluated are homogeneous placements, the placement by earliest finish alone (a trained policy
    is not better on every graph), the greedy one, and samples, `candidates` in all. There is one
    homogeneous placement for each device (one of those with equal costs) that may run all units,
    fastest first, and at most `candidates` - 2 in all. Nothing is learned while placing.

    Attributes:
        policy: file of a trained policy; "" takes the one that is shipped.
        candidates: placements that are evaluated, >= 1.
        temperature: of the samples.
        hidden: width of the network (for training).
        samples: placements per graph and update, >= 2 (for training).
        learning_rate: of Adam (for training).
    """

    name: ClassVar[str] = "zero-shot"
    paper: ClassVar[str] = "Placewright; after Addanki et al. 2019 and Zhou et al. 2019"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training")
    needs_training: ClassVar[bool] = True
    requires: ClassVar[Requires] = (("torch", "learned"), ("torch_geometric", "learned"))

    policy: str = ""
    candidates: int = 10
    temperature: float = 0.5
    hidden: int = 32
    samples: int = 8
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        require_counts(self.name, self, "candidates", "hidden")
        require_counts(self.name, self, "samples", least=2)  # one is its own mean
        require_numbers(self.name, self, "> 0", "temperature", "learning_rate")

    def why_not(self, problem: Problem) -> str | None:
        """Defined for latency and training."""
        if problem.objective not in self.objectives:
            return f"it was made for latency and training, not {problem.objective}"
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Evaluate the policy's placements.

        Raises:
            MissingExtraError: PyTorch or PyTorch Geometric is absent.
            FileFormatError: the policy file is unusable.
        """
        require_packages("torch", "torch_geometric")
        from placewright.placers.learned.zero_shot.policy import candidate_placements

        for device_of in candidate_placements(
            problem,
            self.policy,
            self.candidates,
            self.temperature,
            rng,
            is_over=lambda: evaluator.is_spent,
        ):
            evaluator.evaluate(device_of)
        return evaluator.solution()
