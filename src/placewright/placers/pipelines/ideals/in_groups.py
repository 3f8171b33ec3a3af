"""Splits of a problem whose links have two levels: what `ideal-dp` and `dpl` do there."""

from __future__ import annotations

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError
from placewright.placers.pipelines.ideals.contiguous import device_of_units, linear_program
from placewright.placers.pipelines.ideals.enumeration import IdealLattice, chain, enumerate_in_time
from placewright.placers.pipelines.ideals.items import Items, items_of
from placewright.placers.pipelines.ideals.link_levels import link_levels, why_not_levelled
from placewright.placers.pipelines.ideals.load_model import load_model_of
from placewright.placers.pipelines.ideals.orders import depth_first_order
from placewright.placers.pipelines.ideals.two_levels import (
    LevelledModel,
    TwoLevelProgram,
    levelled_model,
)
from placewright.simulation.evaluator import Evaluator

_MOST_MEMBERS = 100_000_000  # items of all ideals: a byte each


class GroupSplitter:
    """Looks for splits of one problem and evaluates what it finds.

    Args:
        problem: its links have two levels.
        evaluator: of the problem.
    """

    def __init__(self, problem: Problem, evaluator: Evaluator) -> None:
        levels = link_levels(problem)
        if levels is None:
            raise InputError(why_not_levelled(problem))
        self._evaluator = evaluator
        self._items: Items = items_of(problem)
        self._model: LevelledModel = levelled_model(problem, self._items.grouping, levels)
        classes = load_model_of(problem, problem.colocation, levels.far)
        evaluator.offer_bound(classes.area_bound, "balanced load")

    def linear(self) -> Solution:
        """The best split of the depth-first order, after the best one at the far prices."""
        flat = linear_program(self._model.far, self._items)
        if flat.found:
            self._evaluator.evaluate(device_of_units(flat.devices(), self._items))
        is_complete = self._run(chain(depth_first_order(self._items.successors)))
        if self._evaluator.best is None and is_complete:
            return self._evaluator.solution(
                message="no stretches of the depth-first order fit the devices' memory and support"
            )
        message = "best split of one linear order" if is_complete else "the budget ended"
        return self._evaluator.solution(message=message)

    def exact(self, max_ideals: int) -> Solution:
        """The best split in which devices and groups are contiguous.

        Args:
            max_ideals: beyond so many the linear split is the answer.
        """
        linear = self.linear()
        if self._evaluator.is_spent:
            return linear
        lattice, _ = enumerate_in_time(
            self._items.successors, max_ideals, lambda: self._evaluator.remaining_seconds
        )
        if lattice is None or lattice.n_ideals * self._items.n_items > _MOST_MEMBERS:
            return self._evaluator.solution(
                message="not proven optimal: too many ideals; best linear split"
            )
        if not self._run(lattice):
            return self._evaluator.solution(message="the budget ended before the proof")
        if self._evaluator.best is None:
            return self._evaluator.solution(
                message="no split with contiguous groups fits the devices' memory and support"
            )
        kept = " and keep ops without run time at their neighbour"
        return self._evaluator.solution(
            message="optimal among placements whose devices and groups are contiguous"
            + (kept if self._items.absorbed_memory else "")
        )

    def _run(self, lattice: IdealLattice) -> bool:
        """Evaluate the best split over a lattice where it beats the incumbent; see `run`."""
        program = TwoLevelProgram(self._model, lattice, self._evaluator.best_value)
        is_complete = program.run(lambda: self._evaluator.is_spent)
        if program.found and not self._evaluator.is_spent:
            self._evaluator.evaluate(device_of_units(program.devices(), self._items))
        return is_complete
