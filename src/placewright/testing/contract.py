"""The contract of every placer; outside implementers call `check_placer` in their own tests.

>>> from placewright.placers.baselines.simple import Single
>>> check_placer(Single)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import BoolArray
from placewright.core.charges import CHARGED
from placewright.core.execution_models import (
    Event,
    ExecutionModel,
    MaxLoad,
    Sequential,
    Subgraph,
    SubgraphIP,
)
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget, Solution
from placewright.placers.registry import Placer
from placewright.simulation.bounds.feasibility import prove_infeasible
from placewright.simulation.evaluator import CLOSED, Evaluator
from placewright.simulation.legality import Shortage
from placewright.simulation.model import Simulator
from placewright.testing.brute_force import brute_force
from placewright.testing.checker import check_legal, check_max_load, check_timeline
from placewright.testing.problems import (
    impossible_problem,
    packing_problem,
    random_problem,
    under_subgraphs,
    with_modes,
    with_pool,
    with_power,
    with_replicas,
)

MakePlacer = Callable[[], Placer]
_OBJECTIVES: tuple[Objective, ...] = ("latency", "training", "throughput", "energy", "price")
_CHARGED_SHARE = 3  # one problem of energy, and of price, for so many of time


def check_placer(make: MakePlacer, *, evaluations: int = 40, n_problems: int = 6) -> None:
    """Check all promises of a placer that one process can check.

    Args:
        make: makes a fresh placer; its class works.
        evaluations: budget of each run.
        n_problems: random problems per objective that the placer names.

    Raises:
        AssertionError: the placer breaks the contract; the message says how.
    """
    placer = make()
    check_declaration(placer)
    for problem in contract_problems(placer, n_problems):
        solution = run(make(), problem, evaluations)
        check_solution(problem, solution, brute_force(problem))
        assert solution.evaluations <= evaluations, "more evaluations than the budget has"
        again = run(make(), problem, evaluations)
        assert fingerprint(again) == fingerprint(solution), "same seed, another answer"
        check_interrupt(make(), problem, evaluations)
    for objective in map(_objective, placer.objectives):
        if objective in CHARGED:
            continue
        for problem in _as_supported(placer, impossible_problem(objective=objective)):
            check_infeasible(make(), problem)
        for problem in _as_supported(placer, packing_problem(objective=objective)):
            check_unproven(make(), problem)


def contract_problems(placer: Placer, n_problems: int = 6) -> list[Problem]:
    """Random problems to which the placer applies."""
    found = []
    for number, objective in enumerate(_OBJECTIVES):
        if objective not in placer.objectives:
            continue
        rng = np.random.default_rng(100 + number)
        if objective in CHARGED:
            for _ in range(max(1, n_problems // _CHARGED_SHARE)):
                found += _as_supported(placer, with_power(random_problem(rng), objective))
            continue
        for index in range(n_problems):
            problem = random_problem(
                rng, n_devices=2 + index % 2, objective=objective, constrained=index > 0
            )
            if objective == "throughput" and index % 2:
                problem = with_replicas(problem, 2 + index // 2)
            if objective == "throughput" and index % 3 == 2:
                problem = problem.with_samples_in_flight(1 + index % 2)
            if index == 1 or index == 3:
                problem = with_pool(problem)
            if index == 2 and placer.why_not(modes := with_modes(problem)) is None:
                found.append(modes)
            found += _as_supported(placer, problem, index)
    return found


def _as_supported(placer: Placer, problem: Problem, index: int = 0) -> list[Problem]:
    """The problem, under another execution model if the placer refuses its own; empty if all."""
    variants = [problem]
    if problem.objective == "latency":
        models: tuple[ExecutionModel, ...] = (SubgraphIP(per_accelerator=2), Subgraph())
        variants.append(under_subgraphs(problem, models[index % 2]))
        variants.append(replace(problem, execution_model=Sequential()))
    reasons = [placer.why_not(variant) for variant in variants]
    assert "" not in reasons, "why_not gives a reason, or None where the placer applies"
    return [one for one, reason in zip(variants, reasons, strict=True) if reason is None][:1]


def check_declaration(placer: Placer) -> None:
    """Check that name, paper and objectives are declared."""
    assert placer.name, "a placer needs a name"
    assert placer.paper, "a placer names its paper"
    assert placer.objectives, "a placer names its objectives"
    assert all(objective in _OBJECTIVES for objective in placer.objectives)


def run(placer: Placer, problem: Problem, evaluations: int, seed: int = 0) -> Solution:
    """Run a placer with a limit of evaluations, and check that the problem is unchanged."""
    before = _state(problem)
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    solution = placer.place(problem, evaluator, np.random.default_rng(seed))
    assert _state(problem) == before, "the placer changed its input"
    return solution


def check_solution(problem: Problem, solution: Solution, best: float) -> None:
    """Check legality, value, lower bound and status of a solution against brute force.

    Args:
        problem: the problem that was placed.
        solution: the result of the placer.
        best: value by brute force, inf when nothing is feasible.
    """
    slack = 1e-9 * (1.0 + (best if math.isfinite(best) else 0.0))
    assert solution.lower_bound <= best + slack, f"bound {solution.lower_bound} is above {best}"
    proof = prove_infeasible(problem)
    assert proof is None or math.isinf(best), f"there is a placement, but: {proof}"
    if solution.placement is None:
        expected = "infeasible" if proof else "unknown"
        assert solution.status == expected, f"{solution.status} where it is {expected}"
        return
    assert math.isfinite(best), "a placement of an infeasible problem"
    check_legal(problem, solution.placement)
    simulator = Simulator(problem)
    assert simulator.value(solution.placement) == solution.value, "the value is not the simulator's"
    assert solution.value >= best - slack, f"{solution.value} is better than the best, {best}"
    assert solution.lower_bound <= solution.value + slack, "the bound is above the value"
    if solution.status == "optimal":
        limit = best * (1.0 + CLOSED) + slack
        assert solution.value <= limit, f"{solution.value} is not optimal: {best}"
    if isinstance(problem.execution_model, Event):
        check_timeline(problem, solution.placement, simulator.timeline(solution.placement))
    if isinstance(problem.execution_model, MaxLoad):
        check_max_load(problem, solution.placement, solution.value)


def check_infeasible(placer: Placer, problem: Problem) -> None:
    """Check that a provably infeasible problem is reported as infeasible, with the proof.

    Placers that are not defined for it are left alone.
    """
    if placer.why_not(problem) is not None:
        return
    solution = run(placer, problem, 20)
    assert solution.placement is None, "a placement of an infeasible problem"
    assert solution.status == "infeasible", solution.status
    assert solution.message == prove_infeasible(problem), "another explanation than the proof"
    assert math.isinf(solution.value)


def check_unproven(placer: Placer, problem: Problem) -> None:
    """Check that a problem without a placement and without a short proof of that is `unknown`.

    A placer that has tried every placement may answer `infeasible`.

    A solver's word is no proof that a reader can check. Placers that are not defined for the
    problem are left alone.
    """
    if placer.why_not(problem) is not None:
        return
    assert prove_infeasible(problem) is None, "this problem has a short proof"
    solution = run(placer, problem, 20)
    assert solution.placement is None, "a placement of an infeasible problem"
    n_placements = math.prod(problem.allowed_by_class.sum(axis=1).tolist())
    if solution.evaluations < n_placements:  # who has tried them all may say that none is left
        assert solution.status == "unknown", f"{solution.status}, which only a short proof allows"


def check_interrupt(placer: Placer, problem: Problem, evaluations: int) -> None:
    """Check that Ctrl-C during the search returns the incumbent."""
    evaluator = _Interrupted(problem, Budget(evaluations=evaluations))
    solution = placer.place(problem, evaluator, np.random.default_rng(0))
    assert solution.value == evaluator.best_value, "the incumbent was lost"
    assert (solution.placement is None) == math.isinf(evaluator.best_value)


def fingerprint(solution: Solution) -> tuple[object, ...]:
    """The fields that must repeat: placement, order, value, status, bound, evaluations."""
    placement = solution.placement
    devices = None if placement is None else tuple(placement.device_of.tolist())
    has_order = placement is not None and placement.order is not None
    order = tuple(placement.order.tolist()) if has_order else None  # type: ignore[union-attr]
    bound = float(f"{solution.lower_bound:.9g}")
    return devices, order, solution.value, solution.status, bound, solution.evaluations


def fingerprints(names: Sequence[str], evaluations: int = 40) -> dict[str, list[str]]:
    """Fingerprints of placers, ``NAME:key=value``, to compare processes.

    Each is asked about one problem of each objective that it names, with constraints where there
    are any. Of energy and price the evaluator alone makes a difference: one of them is enough.
    """
    from placewright.session.comparison import named_placer

    found = {}
    for name in names:
        problems = contract_problems(named_placer(name, {}), 2)
        chosen = {one.objective if one.objective not in CHARGED else "": one for one in problems}
        found[name] = [
            repr(fingerprint(run(named_placer(name, {}), problem, evaluations)))
            for problem in chosen.values()
        ]
    return found


class _Interrupted(Evaluator):
    """An evaluator that raises KeyboardInterrupt instead of its second answer."""

    def evaluate(
        self, device_of: ArrayLike, order: ArrayLike | None = None, *, keep: bool = True
    ) -> float:
        if self.evaluations >= 1:
            raise KeyboardInterrupt
        return super().evaluate(device_of, order, keep=keep)

    def evaluate_many(self, devices_of: ArrayLike, *, keep: BoolArray | None = None) -> np.ndarray:
        if self.evaluations >= 1:
            raise KeyboardInterrupt
        return super().evaluate_many(devices_of, keep=keep)

    def evaluate_shortage(self, device_of: ArrayLike, order: ArrayLike | None = None) -> Shortage:
        if self.evaluations >= 1:
            raise KeyboardInterrupt
        return super().evaluate_shortage(device_of, order)


def _objective(text: str) -> Objective:
    return next(objective for objective in _OBJECTIVES if objective == text)


def _state(problem: Problem) -> tuple[bytes, ...]:
    graph = problem.graph
    columns = (
        problem.costs.seconds,
        problem.units.group_of,
        graph.tensor_bytes,
        graph.tensor_producers,
        graph.tensor_consumers.indices,
        graph.weight_bytes,
        graph.op_colocation,
    )
    return (*(column.tobytes() for column in columns), repr(sorted(problem.pins.items())).encode())
