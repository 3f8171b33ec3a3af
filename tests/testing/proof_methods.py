"""Every method that claims a bound, `optimal` or `infeasible`, asked about one problem.

Solvers end by their own deterministic measure of work or by evaluations, never by the clock, so
that a seed means the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.exact.cp_sat import CpSat
from placewright.placers.exact.latency_ip import LatencyIp
from placewright.placers.exact.maxload_ip import MaxloadIp
from placewright.placers.exact.parts.programs import part_programs, search_parts
from placewright.placers.exact.schedule_program.model import ScheduleProgram, new_solver
from placewright.placers.exact.schedule_program.transfers import Ticks
from placewright.placers.exact.sequential_ip import SequentialIp
from placewright.placers.pipelines.dpl import Dpl
from placewright.placers.pipelines.ideal_dp import IdealDp
from placewright.placers.pipelines.pipedream import Pipedream
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.enumeration import all_placements
from placewright.placers.registry import Placer
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.bounds.lower import lower_bounds
from placewright.simulation.evaluator import CLOSED, Evaluator
from placewright.simulation.layout import all_in_turn

_FEW = 30  # of `auto`, most often too few to enumerate
_EVALUATIONS = 20_000  # of `auto`: enough to enumerate placements, and orders in half of it
_WORK = 0.5  # deterministic seconds of a solver
_TICKS = 10**8  # that the horizon of the program alone is divided into


@dataclass(frozen=True)
class Claim:
    """What a method says.

    Attributes:
        bound: no placement in any order is said to be faster.
        status: as of a solution.
        value: of what it found; inf without.
        device_of, order: of what it found.
    """

    bound: float
    status: str
    value: float = math.inf
    device_of: np.ndarray | None = None
    order: np.ndarray | None = None


Method = Callable[[Problem], Claim | None]  # None where the method does not apply


def _of_placer(make: Callable[[], Placer], evaluations: int | None = None) -> Method:
    def claim(problem: Problem) -> Claim | None:
        placer = make()
        if placer.why_not(problem) is not None:
            return None
        budget = Budget() if evaluations is None else Budget(evaluations=evaluations)
        evaluator = Evaluator(problem, budget)
        found = placer.place(problem, evaluator, np.random.default_rng(0))
        best = found.placement
        return Claim(
            evaluator.lower_bound,  # as offered: a solution's is cut off at its value
            found.status,
            found.value,
            None if best is None else best.device_of,
            None if best is None else best.order,
        )

    return claim


def _after_another(make: Callable[[], Placer]) -> Method:
    """A placer whose evaluator holds what another search has found, as in `auto`."""

    def claim(problem: Problem) -> Claim | None:
        placer, rows = make(), all_placements(problem)
        if placer.why_not(problem) is not None or rows is None:
            return None
        evaluator = Evaluator(problem)
        values = evaluator.evaluate_many(rows[:: max(1, len(rows) // 4)])
        if not np.isfinite(values).any():
            return None
        found = placer.place(problem, evaluator, np.random.default_rng(0))
        best = found.placement
        device_of = None if best is None else best.device_of
        return Claim(evaluator.lower_bound, found.status, found.value, device_of)

    return claim


def _portfolio(problem: Problem) -> Claim | None:
    """`auto` with too few evaluations to enumerate; under `event` its members are asked alone."""
    is_timeline = problem.execution_model.name == "event"
    return None if is_timeline else _of_placer(Auto, _FEW)(problem)


def _general_bounds(problem: Problem) -> Claim:
    return Claim(max(bound.value for bound in lower_bounds(problem)), "unknown")


def _no_placement(problem: Problem) -> Claim:
    return Claim(0.0, "unknown" if prove_infeasible(problem) is None else "infeasible")


def _parts(problem: Problem) -> Claim | None:
    if problem.execution_model.name != "event":
        return None
    if prove_infeasible(problem) is not None:  # as every placer asks first
        return Claim(0.0, "infeasible")
    evaluator = Evaluator(problem)
    search_parts(problem, evaluator, part_programs(problem))
    best, is_closed = evaluator.best, evaluator.is_closed
    return Claim(
        evaluator.lower_bound,
        "optimal" if is_closed else "unknown" if best is None else "feasible",
        evaluator.best_value,
        None if best is None else best.device_of,
        None if best is None else best.order,
    )


def _program(problem: Problem) -> Claim | None:
    """The program of `cp-sat` without an incumbent, which hides rows that cut too much off."""
    from ortools.sat.python import cp_model

    if problem.execution_model.name != "event" or prove_infeasible(problem) is not None:
        return None
    horizon = 4.0 * all_in_turn(problem)
    ticks = Ticks(horizon / _TICKS if horizon > 0 else 1.0)
    program = ScheduleProgram(problem, ticks, ticks.up(horizon) + 1)
    solver = new_solver()
    solver.parameters.max_deterministic_time, solver.parameters.num_workers = _WORK, 1
    solver.parameters.max_time_in_seconds = 30.0  # there is work that the solver does not count
    if solver.solve(program.model) == cp_model.INFEASIBLE:
        return Claim(0.0, "infeasible")
    return Claim(max(0.0, solver.best_objective_bound) * program.unit * (1.0 - 1e-9), "unknown")


METHODS: dict[str, Method] = {
    "general bounds": _general_bounds,
    "proofs that nothing fits": _no_placement,
    "parts": _parts,
    "program": _program,
    "cp-sat": _of_placer(lambda: CpSat(deterministic_seconds=_WORK)),
    "latency-ip": _of_placer(lambda: LatencyIp(annealing_rounds=2, max_nodes=10, max_columns=500)),
    "maxload-ip": _of_placer(lambda: MaxloadIp(annealing_rounds=2)),
    "sequential-ip": _of_placer(SequentialIp),
    "ideal-dp": _of_placer(IdealDp),
    "dpl": _of_placer(Dpl),
    "pipedream": _of_placer(Pipedream),
    "latency-ip after another search": _after_another(
        lambda: LatencyIp(annealing_rounds=0, max_nodes=10, max_columns=500)
    ),
    "auto": _of_placer(Auto, _EVALUATIONS),
    "auto without enumeration": _portfolio,
}


def faults(claim: Claim, best: float) -> list[str]:
    """What is false about a claim, where `best` is the least value over placements and orders."""
    found, slack = [], 1e-9 * best if math.isfinite(best) else 0.0
    if claim.bound > best + slack:
        found.append("bound")
    if claim.status == "optimal" and claim.value > best * (1.0 + CLOSED) + slack:
        found.append("optimal")
    if claim.status == "infeasible" and math.isfinite(best):
        found.append("infeasible")
    if claim.value < best - slack:
        found.append("value")
    return found
