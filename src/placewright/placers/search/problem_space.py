"""Search over perturbed inputs of list schedulers: transfers, ranks, and preferences of groups.

R. H. Storer, S. D. Wu, R. Vaccari, "New Search Spaces for Sequencing Problems with Application to
Job Shop Scheduling", Management Science 38(10), 1992: a fast heuristic runs on perturbed data,
its answer is valued with the true data, and the search moves in the space of perturbations (their
"problem space") instead of the space of schedules.

This placer perturbs three parts of a problem, and plans by highest rank first with idle gaps (HEFT)
or by earliest start (ETF):

- all transfers are multiplied by one factor: list schedulers ignore that transfers wait for each
  other on a link, and a larger factor models the wait;
- the rank of each unit is multiplied by a factor near 1, so that units are planned in other orders;
- each of a few runs of units along the graph has a preference for each device, in seconds that are
  added to the unit's end there when the device is chosen.

The search is a (1 + 1) evolution strategy on these numbers (I. Rechenberg, "Evolutionsstrategie",
1973), whose step grows after a success and shrinks after a failure; a few proposals are made from
one parent at a time, as many whatever the number of threads. The evaluator values each plan with
its order and by rank dispatch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.bases import ForLatency, anytime, require_counts, require_numbers
from placewright.placers.legal import Proposal, tighten
from placewright.placers.list_scheduling.earliest_first import planned_earliest_first
from placewright.placers.list_scheduling.in_order import (
    Preferences,
    planned_in_order,
    proposal_of,
)
from placewright.placers.list_scheduling.ranks import (
    ScheduleTables,
    mean_upward_ranks,
    ready_by_rank,
    scaled_transfers,
    schedule_tables,
)
from placewright.placers.search.neighbourhood import branch_by_branch_order
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_costs

_LONGEST_STEP = 1.0  # of logarithms
_MOST_THREADS = 64
_PREFERENCES_UP_TO = 2e7  # units times devices: groups of larger problems have no preferences


@dataclass(frozen=True)
class ProblemSpace(ForLatency):
    """Starts from unperturbed data and searches for the best perturbation.

    Attributes:
        groups: runs of units with preferences of their own, >= 1.
        children: proposals from one parent at a time, >= 1.
        step: the first standard deviation of a change, in logarithms, in (0, 1].
        rounds: of proposals if the budget has no limit, >= 1.
    """

    name: ClassVar[str] = "problem-space"
    paper: ClassVar[str] = "Storer et al., Management Science 1992"

    groups: int = 24
    children: int = 4
    step: float = 0.3
    rounds: int = 50

    def __post_init__(self) -> None:
        require_counts("problem-space", self, "groups", "children", "rounds")
        require_numbers("problem-space", self, "in (0, 1]", "step")

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Evaluate each plan twice, until the budget ends, or `rounds` without a budget.

        A further call with the same evaluator continues where the last call ended.
        """
        search = evaluator.memory.get(self.name)
        if search is None or search.settings != self:
            search = evaluator.memory[self.name] = _Search(self, problem)
        search.prepare(problem)
        has_limit = evaluator.budget.is_limited
        done = 0
        threads = ThreadPoolExecutor(min(self.children, _MOST_THREADS))
        with threads as pool, closing(_Workers(pool, evaluator)) as work:
            while (has_limit or done < self.rounds) and not evaluator.is_closed:
                search.advance(work, rng)
                done += 1
        return evaluator.solution()


@dataclass(frozen=True, eq=False)
class _Perturbation:
    """Perturbation; zeros leave the problem unchanged."""

    by_start: bool  # plan by earliest start instead of by rank
    transfers: float  # logarithm of the factor of all transfers
    ranks: FloatArray  # logarithm of the factor of each unit's rank, shape (n_units,), or empty
    # mean unit seconds that each group adds on each device, (n_groups, n_devices)
    preferences: FloatArray


class _Workers:
    """Threads that plan; they end with the budget, or when they are closed."""

    def __init__(self, pool: ThreadPoolExecutor, evaluator: Evaluator) -> None:
        self.pool, self.evaluator = pool, evaluator
        self._is_closed = threading.Event()

    def close(self) -> None:
        """End running plans without a result."""
        self._is_closed.set()

    def is_over(self) -> bool:
        """True if a plan would come too late."""
        return self._is_closed.is_set() or self.evaluator.is_spent


class _Search:
    """State between turns: the parent, its value and the step.

    Another process gets these alone, and computes the tables of the problem again.
    """

    def __init__(self, settings: ProblemSpace, problem: Problem) -> None:
        self.settings = settings
        self._tables: ScheduleTables | None = None
        has_preferences = problem.n_units * problem.n_devices <= _PREFERENCES_UP_TO
        self._n_groups = min(settings.groups, problem.n_units) if has_preferences else 0
        self._step = settings.step
        self._limits = np.array(problem.cluster.memory_limits)
        self._value = math.inf
        no_preferences = np.zeros((self._n_groups, problem.n_devices))
        self._parent = _Perturbation(False, 0.0, np.zeros(0), no_preferences)
        self._first = [
            replace(self._parent, by_start=by_start, transfers=math.log(factor))
            for factor in (1.0, 2.0, 4.0)
            for by_start in (False, True)
        ]

    def prepare(self, problem: Problem) -> None:
        """Compute the tables of the problem, once in each process."""
        if self._tables is None:
            self._problem = problem
            self._rank = mean_upward_ranks(problem)
            self._tables = schedule_tables(problem)
            self._mean = float(mean_costs(problem).mean())
            self._group_of = _runs(problem, max(1, self._n_groups))

    def __getstate__(self) -> dict[str, Any]:
        of_problem = ("_problem", "_rank", "_mean", "_group_of")
        state = {name: value for name, value in vars(self).items() if name not in of_problem}
        return {**state, "_tables": None}

    def catch_up(self, later: _Search) -> None:
        """Take over the state of a later turn of the same search, which another process took."""
        state = later.__getstate__()
        del state["_tables"]
        vars(self).update(state)

    def advance(self, work: _Workers, rng: np.random.Generator) -> None:
        """Plan children of the parent; the best becomes the next parent unless it is worse.

        The first parent is the best of the unperturbed data and slower transfers, by rank and
        start.
        """
        known, count = self._value, self.settings.children
        if self._first:
            self._try(work, self._first[:count])
            del self._first[:count]
            return
        self._try(work, [self._changed(rng) for _ in range(count)])
        grows = self._value < known
        self._step = float(np.clip(self._step * (1.5 if grows else 0.93), 0.01, _LONGEST_STEP))

    def _try(self, work: _Workers, perturbations: list[_Perturbation]) -> None:
        def planned(perturbation: _Perturbation) -> Proposal:
            return self._planned(perturbation, limits, work.is_over)

        evaluator, limits = work.evaluator, self._limits.copy()
        for perturbation, (device_of, order) in zip(
            perturbations, work.pool.map(planned, perturbations), strict=True
        ):
            value = evaluator.evaluate(device_of, order)
            value = min(value, evaluator.evaluate(device_of))
            if math.isinf(value):
                lowered = limits.copy()  # all children planned with these: each excess counts once
                tighten(evaluator, (device_of, order), lowered)
                np.minimum(self._limits, lowered, out=self._limits)
            if value <= self._value:
                self._parent, self._value = perturbation, value

    def _changed(self, rng: np.random.Generator) -> _Perturbation:
        parent, step = self._parent, self._step
        kind = rng.random()
        if kind < 0.1:
            return replace(parent, by_start=not parent.by_start)
        changed = replace(parent, transfers=parent.transfers + step * rng.standard_normal())
        if kind < 0.4 or not len(parent.preferences):
            noise = 0.2 * step * rng.standard_normal(self._problem.n_units)
            ranks = noise if len(parent.ranks) == 0 else parent.ranks + noise
            return replace(changed, ranks=ranks)
        size = parent.preferences.shape
        scale = 10.0 ** rng.uniform(0.0, 3.0) * step
        preferences = np.where(
            rng.random(size) < rng.uniform(0.02, 0.3), rng.standard_normal(size), 0.0
        )
        return replace(changed, preferences=parent.preferences + scale * preferences)

    def _planned(
        self, perturbation: _Perturbation, limits: FloatArray, is_over: Callable[[], bool]
    ) -> Proposal:
        tables, factor = self._tables, math.exp(perturbation.transfers)
        assert tables is not None
        if perturbation.transfers:
            tables = scaled_transfers(tables, factor)
        rank = self._rank * np.exp(perturbation.ranks) if len(perturbation.ranks) else self._rank
        problem = self._problem
        if perturbation.by_start:
            plan = planned_earliest_first(
                problem, limits, is_over=is_over, tables=tables, rank=rank
            )
        else:
            added = Preferences()
            if perturbation.preferences.any():
                added = Preferences(after=perturbation.preferences[self._group_of] * self._mean)
            order = ready_by_rank(problem, rank)
            plan = planned_in_order(problem, order, limits, added, is_over=is_over, tables=tables)
        return proposal_of(problem, plan)


def _runs(problem: Problem, n_groups: int) -> IntArray:
    """Runs of about as many mean seconds along a depth-first order, shape (n_units,)."""
    order, costs = branch_by_branch_order(problem), mean_costs(problem)
    along = np.cumsum(costs[order])
    total = float(along[-1])
    group = np.arange(len(order)) * n_groups // len(order)
    if total > 0:
        group = np.minimum((along - costs[order] / 2) / total * n_groups, n_groups - 1)
    result = np.empty(len(order), dtype=np.int64)
    result[order] = group.astype(np.int64)
    return result
