"""Integer program for execution model `sequential`, which counts alike items instead of listing.

Layers of a language model are alike: where each of a hundred lies matters less than how many lie on
each device. The program (`counted.program`) has a column for each kind of item and device, so that
it has few columns however many layers and experts there are. Its optimum is a lower bound. Items
then take devices by the counts (`counted.program.constructed`), and alike items swap places while
that saves messages. If no two items are alike, the program is exact.

The literature lists each item (Tarnawski et al., NeurIPS 2020, section 5.1); counting is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.execution_models import Sequential
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.anytime import anytime, found_none
from placewright.placers.conditions import why_not_time_alone
from placewright.placers.exact.counted.kinds import Symmetry, symmetry_of
from placewright.placers.exact.counted.program import (
    CountedProgram,
    Messages,
    constructed,
    counted_program,
    found_counts,
    found_pairs,
)
from placewright.placers.exact.integer_program.program import MipResult, solve
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.sequential.model import cheapest_units_bound

_METHOD = "counted integer program"
_SCALE = 1000.0  # of the bound without messages: tolerances of the solver are absolute
_TOLERANCE = 1e-6  # of the solver, relative
_SLACK = 1e-5  # of memory, if a solution of the program is over a limit by its tolerance
_SHARE = 0.5  # of the seconds that are left, for the solver


@dataclass(frozen=True)
class SequentialIp:
    """Counts items on devices, then lays them out.

    Attributes:
        max_nodes: branch-and-bound nodes if the budget has no seconds, >= 1.
    """

    name: ClassVar[str] = "sequential-ip"
    paper: ClassVar[str] = "ours, after Tarnawski et al., NeurIPS 2020"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False

    max_nodes: int = 5000

    def __post_init__(self) -> None:
        if self.max_nodes < 1:
            raise InputError(f"sequential-ip: max_nodes must be >= 1, got {self.max_nodes}")

    def why_not(self, problem: Problem) -> str | None:
        """None for execution model `sequential`."""
        if reason := why_not_time_alone(problem):
            return reason
        if isinstance(problem.execution_model, Sequential):
            return None
        return (
            f"it minimises sequential, not '{problem.execution_model.name}'; use execution model "
            "sequential"
        )

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Solve the program, lay out its counts, and evaluate the layouts."""
        del rng
        symmetry = symmetry_of(problem)
        least = cheapest_units_bound(problem)
        evaluator.offer_bound(least, "cheapest units")
        scale = _SCALE / least if least > 0 else 1.0
        counted = counted_program(problem, symmetry, scale)
        result = self._solved(counted, evaluator)
        bound = result.lower_bound / scale * (1.0 - _TOLERANCE)
        if math.isfinite(bound):
            evaluator.offer_bound(bound, _METHOD)
        if result.is_infeasible:
            return evaluator.solution(message=found_none("placement within all limits"))
        if result.columns is not None and not self._laid_out(
            problem, symmetry, counted, result.columns, evaluator
        ):
            self._again(problem, symmetry, scale, evaluator)
        if result.is_out_of_time and not evaluator.is_closed:
            return evaluator.cut_short()
        return evaluator.solution()

    def _solved(self, counted: CountedProgram, evaluator: Evaluator) -> MipResult:
        return solve(
            counted.program,
            seconds=_SHARE * evaluator.remaining_seconds,
            max_nodes=self.max_nodes,
            is_over=lambda: evaluator.is_spent,
        )

    def _laid_out(
        self,
        problem: Problem,
        symmetry: Symmetry,
        counted: CountedProgram,
        columns: FloatArray,
        evaluator: Evaluator,
    ) -> bool:
        """Evaluate layouts of a solution; False if none was feasible."""
        found = False
        messages = Messages(problem, symmetry)
        counts, pairs = found_counts(counted, columns), found_pairs(counted, columns)
        for layout in constructed(symmetry, messages, counts, pairs, lambda: evaluator.is_spent):
            found |= math.isfinite(evaluator.evaluate(problem.colocation.expand(layout)))
        return found

    def _again(
        self, problem: Problem, symmetry: Symmetry, scale: float, evaluator: Evaluator
    ) -> None:
        """Solve with a little less memory: what the solver took for a fit was over a limit."""
        cluster = problem.cluster
        devices = tuple(
            replace(device, memory_bytes=device.memory_bytes * (1.0 - _SLACK))
            for device in cluster.devices
        )
        pools = {name: size * (1.0 - _SLACK) for name, size in cluster.pools.items()}
        tighter = replace(problem, cluster=replace(cluster, devices=devices, pools=pools))
        counted = counted_program(tighter, symmetry, scale)
        result = self._solved(counted, evaluator)
        if result.columns is not None:
            self._laid_out(problem, symmetry, counted, result.columns, evaluator)
