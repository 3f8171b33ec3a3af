"""PEFT: predict earliest finish time.

H. Arabnejad and J. G. Barbosa, "List Scheduling Algorithm for Heterogeneous Systems by an
Optimistic Cost Table", IEEE TPDS 25(3), 2014: OCT (equation 5), rank = mean of a unit's row
(equation 7), the ready unit of highest rank goes where EFT + OCT is least (equation 8).

Departures from the paper: as in `heft`; devices that cannot run a unit are left out of its mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placewright.core.arrays import FloatArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.anytime import anytime
from placewright.placers.legal import Proposal, evaluate_within_memory
from placewright.placers.list_scheduling.schedule import ListSchedule, ReadyUnits
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.ranks import mean_transfer_seconds


@dataclass(frozen=True)
class Peft:
    """Looks ahead: what the unit's successors will cost at best enters the choice of device."""

    name: ClassVar[str] = "peft"
    paper: ClassVar[str] = "Arabnejad and Barbosa, TPDS 2014"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "training")
    needs_training: ClassVar[bool] = False

    def why_not(self, problem: Problem) -> str | None:
        """None unless the objective is throughput."""
        return "peft minimises latency" if problem.objective == "throughput" else None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more where memory binds)."""
        del rng
        table = optimistic_costs(problem)
        evaluate_within_memory(evaluator, lambda limits: _scheduled(problem, table, limits))
        return evaluator.solution()


def optimistic_costs(problem: Problem) -> FloatArray:
    """OCT: seconds from a unit's end to the end of the program, each successor at its best device.

    Returns:
        Shape (n_units, n_devices).
    """
    graph, n_devices = problem.unit_graph, problem.n_devices
    transfers = mean_transfer_seconds(problem)
    seconds = np.where(problem.allowed, problem.costs.seconds, np.inf)
    elsewhere = 1.0 - np.eye(n_devices)  # (here, there)
    table = np.zeros((problem.n_units, n_devices))
    for unit in graph.topological_order[::-1].tolist():
        for tensor in graph.op_outputs.row(unit).tolist():
            for successor in graph.tensor_consumers.row(tensor).tolist():
                onward = (table[successor] + seconds[successor])[None, :]
                best = (onward + transfers[tensor] * elsewhere).min(axis=1)
                np.maximum(table[unit], best, out=table[unit])
    return table


def _scheduled(problem: Problem, table: FloatArray, limits: FloatArray) -> Proposal:
    allowed = problem.allowed
    rank = np.where(allowed, table, 0.0).sum(axis=1) / np.maximum(1, allowed.sum(axis=1))
    schedule, ready = ListSchedule(problem, limits), ReadyUnits(problem)
    while ready.units:
        unit = min(ready.units, key=lambda u: (-rank[u], u))
        score = {
            device: schedule.earliest_start(unit, device, insertion=True)
            + schedule.seconds(unit, device)
            + float(table[unit, device])
            for device in schedule.candidates(unit)
        }
        schedule.place(unit, min(score, key=lambda d: (score[d], d)), insertion=True)
        ready.done(unit)
    return schedule.device_of, schedule.order()
