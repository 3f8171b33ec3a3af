"""The relaxation of subgraph latency with a limit in the place of its objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.placers.exact.integer_program.narrowing import Narrowing
from placewright.placers.exact.subgraphs.bound import bound_program
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.subgraph import LatencyArrays, latency_arrays


def subgraph_limits(
    problem: Problem, evaluator: Evaluator, solver: Callable[[float], Any]
) -> Narrowing:
    """Questions about a problem of execution model `subgraph` or `subgraph-ip`.

    Args:
        problem: its relaxation is `bound.bound_program`, so what is found within a limit may be
            worth more than the limit.
        evaluator: values what is found.
        solver: see `Narrowing`.
    """
    arrays = latency_arrays(problem)
    program = bound_program(problem, arrays)

    def decode(columns: FloatArray) -> IntArray:
        return problem.colocation.expand(program.classes_on(columns))

    return Narrowing(program.program, decode, all_in_turn(arrays), evaluator, solver)


def all_in_turn(arrays: LatencyArrays) -> float:
    """More than any placement takes: everything at its slowest, all tensors sent and received."""
    slowest = np.where(np.isfinite(arrays.seconds), arrays.seconds, 0.0).max(axis=1)
    return float(slowest.sum() + 2.0 * len(arrays.is_atomic) * arrays.transfer.sum())
