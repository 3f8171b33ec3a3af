"""MinCut as Mirhoseini et al. used it: Scotch on the accelerators alone.

A. Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017,
section 4: the Scotch mapping without the CPU among the devices. Units that no accelerator can run,
or that are pinned elsewhere, stay there. A cluster of CPUs alone is used as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import Requires
from placewright.placers.bases import ForEveryProblem, anytime, require_counts
from placewright.placers.partitioning.scotch import Scotch, scotch_partition
from placewright.placers.partitioning.weighted_graph import place_by_partition
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Mincut(ForEveryProblem):
    """Minimum cut between accelerators, balanced to their speed.

    Attributes:
        assignments: parts-to-devices assignments tried at most, >= 1.
    """

    name: ClassVar[str] = "mincut"
    paper: ClassVar[str] = "Mirhoseini et al., ICML 2017"
    requires: ClassVar[Requires] = Scotch.requires

    assignments: int = 24

    def __post_init__(self) -> None:
        require_counts("mincut", self, "assignments")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Map once, and evaluate assignments of the parts to accelerators."""
        kinds = [device.kind for device in problem.cluster.devices]
        accelerators = np.array([kind != "cpu" for kind in kinds])
        usable = accelerators if accelerators.any() else ~accelerators
        return place_by_partition(
            problem,
            evaluator,
            rng,
            scotch_partition,
            usable=usable,
            assignments=self.assignments,
        )
