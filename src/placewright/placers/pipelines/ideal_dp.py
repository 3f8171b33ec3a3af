"""Dynamic program over ideals: the best contiguous split, exactly.

Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020, sections 5.1 and 5.2. A split is contiguous
when the devices' sets follow one another: each is the difference of two nested ideals of the
forward graph; backward ops follow the forward ops of their class.

If links have two levels (accelerators in hosts, an appendix of the paper), the program runs once
over groups of devices and once within each (see `ideals.two_levels`).

Departures from the paper: any number of kinds of devices; the program visits only pairs of
ideals that can still beat the incumbent (it starts from DPL's split), so that no table of pairs
exists; weights that several items share are counted once per device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import anytime, require_counts
from placewright.placers.pipelines.ideals.items import Items, enumerate_in_time, items_of
from placewright.placers.pipelines.ideals.load_model import (
    LoadModel,
    load_model_of,
    why_not_separable,
)
from placewright.placers.pipelines.ideals.program import (
    INEXACT,
    NO_ROOM,
    SAME,
    SPLIT_SHARE,
    TOO_MANY_KINDS,
    ContiguousProgram,
    evaluate_split,
    evaluate_with_room,
    fits_table,
    in_order_with_room,
    is_exact,
    solved_in_order,
    unproven,
    with_room,
)
from placewright.placers.pipelines.ideals.two_levels import (
    GroupSplitter,
    why_not_contiguous_in_groups,
)
from placewright.simulation.evaluator import Evaluator

_LINEAR_SHARE = 0.5  # of the seconds, for the split of one linear order


@dataclass(frozen=True)
class IdealDp:
    """Finds the contiguous split of least max-load.

    Attributes:
        max_ideals: limit on ideals, >= 2; beyond it the result is DPL's split.
    """

    name: ClassVar[str] = "ideal-dp"
    paper: ClassVar[str] = "Tarnawski et al., NeurIPS 2020"
    objectives: ClassVar[tuple[str, ...]] = ("throughput",)
    needs_training: ClassVar[bool] = False

    max_ideals: int = 1_000_000

    def __post_init__(self) -> None:
        require_counts("ideal-dp", self, "max_ideals", least=2)

    def why_not(self, problem: Problem) -> str | None:
        """None for a max-load problem whose links have one level or two."""
        return why_not_contiguous_in_groups(problem)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Evaluate DPL's split, then that of the exact program if it is better."""
        if why_not_separable(problem) is not None:
            return GroupSplitter(problem, evaluator).exact(self.max_ideals)
        evaluator.offer_bound(
            load_model_of(problem, problem.colocation).area_bound, "balanced load"
        )
        items = items_of(problem)
        model = load_model_of(problem, items.grouping)
        if not fits_table(model.counts, items.n_items + 1):
            return evaluator.solution(message=TOO_MANY_KINDS)
        with evaluator.share(_LINEAR_SHARE):
            linear = solved_in_order(model, items, is_spent=lambda: evaluator.is_spent)
            is_whole = not evaluator.is_spent
        value = math.inf if linear is None else evaluate_split(linear, items, evaluator)
        if not is_whole:  # there are more ideals than those of one order
            return replace(evaluator.cut_short(), message="the budget ended before the best split")
        lattice, most = enumerate_in_time(
            items.successors, self.max_ideals, lambda: evaluator.remaining_seconds
        )
        if lattice is None or not fits_table(model.counts, lattice.n_ideals):
            if linear is not None and math.isinf(value):
                return in_order_with_room(model, items, evaluator)
            limit = f"more than {most} ideals" if lattice is None else "too many states"
            return evaluator.solution(message=f"best linear split: {limit} for the exact one")
        program = ContiguousProgram(model, lattice, math.inf if linear is None else linear.value)
        with evaluator.share(SPLIT_SHARE):
            is_complete = program.run(lambda: evaluator.is_spent)
        if program.found:
            value = evaluate_split(program, items, evaluator)
        if not is_complete:
            return replace(evaluator.cut_short(), message="the budget ended before the proof")
        if math.isinf(value) and math.isfinite(program.value):
            evaluate_with_room(ContiguousProgram(with_room(model), lattice), items, evaluator)
            return unproven(evaluator, NO_ROOM)
        return _answer(items, model, program.value, value, evaluator)


def _answer(
    items: Items, model: LoadModel, least: float, value: float, evaluator: Evaluator
) -> Solution:
    """The solution after a complete walk; `least` and `value` as of `is_exact`, inf without one.

    An evaluator may hold a better placement that is no such split: of that nothing is proven.
    """
    if math.isinf(least):
        which = f"no contiguous split{items.restriction}"
        return evaluator.solution(message=f"{which} fits the devices' memory and support")
    if not is_exact(model, least, value):
        return unproven(evaluator, INEXACT)
    if value > evaluator.best_value * (1.0 + SAME):
        return evaluator.solution()
    message = f"optimal among pipelines of contiguous stages{items.restrictions}"
    return evaluator.solution(message=message)
