"""Parts within a larger search: their bounds as they rise, and the placement that they make."""

from __future__ import annotations

import math

from placewright.core.problem import Problem
from placewright.placers.parts.bound import parts_bound
from placewright.placers.parts.exact import solve_parts
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator

_METHOD = "parts"
_WORK = 4.0  # the solver's own seconds where the budget has none


def search_parts(problem: Problem, evaluator: Evaluator, share: float) -> None:
    """Offer the bounds of parts; evaluate what their solutions make together, two ways.

    Args:
        problem: what is placed.
        evaluator: gets bounds and placements.
        share: of the remaining seconds; without a limit in seconds the solver's own measure of
            work ends it, so that the answer repeats.
    """
    evaluator.offer_bound(parts_bound(problem), _METHOD)
    if evaluator.is_closed or evaluator.remaining_seconds <= 0:
        return
    ends = evaluator.seconds + share * evaluator.remaining_seconds
    has_clock = math.isfinite(evaluator.remaining_seconds)
    found = solve_parts(
        problem,
        lambda: ends - evaluator.seconds if has_clock else _WORK,
        deterministic=not has_clock,
        on_bound=lambda bound: evaluator.offer_bound(bound, _METHOD),
        is_over=lambda: evaluator.is_closed or (has_clock and evaluator.is_spent),
    )
    if found is not None and found.device_of is not None:
        device_of = repaired(problem, found.device_of)
        evaluator.evaluate(device_of, found.order)
        evaluator.evaluate(device_of)
