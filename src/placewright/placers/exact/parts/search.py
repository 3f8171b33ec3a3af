"""Parts within a larger search: their bounds as they rise, and the placements that they make."""

from __future__ import annotations

import math

from placewright.core.arrays import IntArray
from placewright.core.problem import Problem
from placewright.placers.exact.parts.bound import parts_bound
from placewright.placers.exact.parts.exact import solve_parts
from placewright.placers.exact.parts.programs import PartPrograms
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator

_METHOD = "parts"
_WORK = 4.0  # the solver's own seconds where the budget has none
_KEPT = 0.98  # of the seconds, so that what the last program gives can be evaluated


def search_parts(
    problem: Problem, evaluator: Evaluator, share: float, parts: PartPrograms | None
) -> None:
    """Offer the bounds of parts; evaluate what their solutions make together, two ways.

    Args:
        problem: what is placed.
        evaluator: gets bounds and placements.
        share: of the remaining seconds; without a limit in seconds the solver's own measure of
            work ends it, so that the answer repeats.
        parts: programs of the parts, which keep what is found; None where there are none.
    """
    evaluator.offer_bound(parts_bound(problem), _METHOD)
    if parts is None or evaluator.is_closed or evaluator.remaining_seconds <= 0:
        return
    ends = evaluator.seconds + _KEPT * share * evaluator.remaining_seconds
    has_clock = math.isfinite(evaluator.remaining_seconds)

    def try_placement(device_of: IntArray, order: IntArray) -> None:
        device_of = repaired(problem, device_of)
        evaluator.evaluate(device_of, order)
        evaluator.evaluate(device_of)

    solve_parts(
        parts,
        lambda: ends - evaluator.seconds if has_clock else _WORK,
        deterministic=not has_clock,
        on_bound=lambda bound: evaluator.offer_bound(bound, _METHOD),
        on_placement=try_placement,
        is_over=lambda: evaluator.is_closed or (has_clock and evaluator.is_spent),
    )
