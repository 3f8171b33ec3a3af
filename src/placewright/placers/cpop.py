"""CPOP: critical path on a processor.

H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13(3), 2002, section 4.2: priority = upward + downward
rank; the units of the critical path share the device that runs all of them fastest; the others go
where they finish first.

Departures from the paper: as in `heft`; where no device can run the whole critical path, the one
that runs most of it takes what it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.anytime import anytime
from placewright.placers.legal import Proposal, evaluate_within_memory
from placewright.placers.list_scheduling.schedule import ListSchedule, ReadyUnits
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_costs, mean_transfer_seconds, mean_upward_ranks


@dataclass(frozen=True)
class Cpop:
    """The critical path stays together; everything else fills the gaps."""

    name: ClassVar[str] = "cpop"
    paper: ClassVar[str] = "Topcuoglu et al., TPDS 2002"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training")
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """None unless the objective is throughput."""
        return "cpop minimises latency" if problem.objective == "throughput" else None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more where memory binds)."""
        del rng
        priority = mean_upward_ranks(problem) + mean_downward_ranks(problem)
        path = critical_path(problem, priority)
        device = critical_device(problem, path)
        evaluate_within_memory(
            evaluator, lambda limits: _scheduled(problem, priority, (path, device), limits)
        )
        return evaluator.solution()


def mean_downward_ranks(problem: Problem) -> FloatArray:
    """Longest path from a source to each unit, itself excluded (equation 9), shape (n_units,)."""
    graph = problem.unit_graph
    costs, transfers = mean_costs(problem), mean_transfer_seconds(problem)
    rank = np.zeros(problem.n_units)
    for unit in graph.topological_order.tolist():
        for tensor in graph.op_outputs.row(unit).tolist():
            for consumer in graph.tensor_consumers.row(tensor).tolist():
                path = rank[unit] + costs[unit] + transfers[tensor]
                rank[consumer] = max(rank[consumer], path)
    return rank


def critical_path(problem: Problem, priority: FloatArray) -> IntArray:
    """Units of one longest path: from the source of highest priority, each time the next highest.

    Returns:
        Ascending along the path, shape (length,).
    """
    graph = problem.unit_graph
    sources = np.flatnonzero(np.diff(graph.predecessors.indptr) == 0)
    path = [int(sources[np.argmax(priority[sources])])]
    while len(graph.successors.row(path[-1])):
        after = graph.successors.row(path[-1])
        path.append(int(after[np.argmax(priority[after])]))
    return np.array(path, dtype=np.int64)


def critical_device(problem: Problem, path: IntArray) -> int:
    """The device that can run most of the path, in the fewest seconds."""
    allowed = problem.allowed[path]
    missing = (~allowed).sum(axis=0)
    seconds = np.where(allowed, problem.costs.seconds[path], 0.0).sum(axis=0)
    return int(np.lexsort((np.arange(problem.n_devices), seconds, missing))[0])


def _scheduled(
    problem: Problem, priority: FloatArray, critical: tuple[IntArray, int], limits: FloatArray
) -> Proposal:
    path, device_of_path = critical
    is_critical = np.zeros(problem.n_units, dtype=np.bool_)
    is_critical[path] = True
    schedule, ready = ListSchedule(problem, limits), ReadyUnits(problem)
    while ready.units:
        unit = min(ready.units, key=lambda u: (-priority[u], u))
        devices = schedule.candidates(unit)
        if is_critical[unit] and device_of_path in devices:
            devices = [device_of_path]
        finish = {
            device: schedule.earliest_start(unit, device, insertion=True)
            + schedule.seconds(unit, device)
            for device in devices
        }
        schedule.place(unit, min(finish, key=lambda d: (finish[d], d)), insertion=True)
        ready.done(unit)
    return schedule.device_of, schedule.order()
