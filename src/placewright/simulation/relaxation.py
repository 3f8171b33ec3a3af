"""A lower bound by linear programming, where the execution model has a relaxation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from placewright.core.problem import Problem
from placewright.simulation.behaviours import behaviour_of

if TYPE_CHECKING:
    from placewright.simulation.relaxed_program import Relaxation

_MOST_ENTRIES = 400_000  # entries of x and of edges times devices beyond which HiGHS takes minutes


def relaxation_bound(problem: Problem, seconds: float = math.inf) -> float:
    """A lower bound on the value of every placement in every order; 0 where none was found.

    Args:
        problem: whose execution model has a relaxation; others give 0.
        seconds: wall-clock limit of the solver.
    """
    edges = len(problem.unit_graph.tensor_consumers.indices)
    if (problem.n_units + edges) * problem.n_devices > _MOST_ENTRIES:
        return 0.0
    program = relaxed(problem)
    return 0.0 if program is None else program.solved(seconds)


def relaxed(problem: Problem) -> Relaxation | None:
    """The program with all its rows; None where the execution model has no relaxation."""
    program = behaviour_of(problem).relaxation(problem)
    if program is not None:
        program.assignment()
        program.memory()
        program.loads()
        program.value()
    return program
