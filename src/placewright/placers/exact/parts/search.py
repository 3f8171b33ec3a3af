"""Search by parts: bounds that rise as programs are solved, and placements made of their solutions.

The dynamic program of `parts.bound` finds the cheapest devices of the articulation units for the
present bounds of all parts and pairs of devices. Only the pairs that it chose can raise the sum, so
that only they are solved (`parts.problems` proves that the result is a bound). This repeats until
all chosen pairs are solved or the time is up. A program that is not solved to its end gives its own
bound, and gets more time when it is chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from placewright.core.arrays import IntArray
from placewright.core.charges import CHARGED
from placewright.core.problem import Problem
from placewright.placers.exact.parts.bound import parts_bound
from placewright.placers.exact.parts.problems import Pair
from placewright.placers.exact.parts.programs import PartPrograms
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator

_METHOD = "parts"
_WORK = 4.0  # limit in the solver's own measure, if the budget has none
_KEPT = 0.98  # share of the seconds, which leaves time to evaluate the last placement
_MOST_UNITS = 300  # larger parts are not solved


def search_parts(
    problem: Problem, evaluator: Evaluator, share: float, parts: PartPrograms | None
) -> None:
    """Offer the bounds of parts; evaluate the combined solutions, with and without the order.

    The bounds are seconds, so that nothing is done if energy or price is minimised.

    Args:
        share: of the remaining seconds; without a limit in seconds the solver's own measure of
            work ends it, so that the answer repeats.
        parts: programs of the parts, which store results; None if there are none.
    """
    if problem.objective in CHARGED:
        return
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


@dataclass(frozen=True)
class PartsFound:
    """Bound and combined solution after the time, or after all chosen pairs were solved."""

    bound: float  # of the value of the whole, in seconds
    is_solved: bool  # the bound is the least sum of solved programs
    # a placement made of the parts' solutions, (n_units,); None if one has none
    device_of: IntArray | None
    order: IntArray | None  # all units by their starts in the parts, (n_units,)


def solve_parts(
    parts: PartPrograms,
    remaining: Callable[[], float],
    *,
    workers: int = 2,
    deterministic: bool = False,
    on_bound: Callable[[float], None] = lambda bound: None,
    on_placement: Callable[[IntArray, IntArray], None] = lambda device_of, order: None,
    is_over: Callable[[], bool] = lambda: False,
) -> PartsFound:
    """Solve the pairs that limit the bound until the time is up; a second call continues.

    Args:
        parts: programs, and what is known of them.
        remaining: seconds left, asked between programs.
        deterministic: count the solver's own measure of work as seconds, with one thread.
        on_bound: called with each bound of the whole, larger each time.
        on_placement: called with each new placement and order that the parts' solutions make.
        is_over: asked, also within a program, whether to end at once.
    """
    threads, best, spent = 1 if deterministic else workers, 0.0, 0.0
    reported: list[Pair] | None = None
    while True:
        total, chosen = parts.cheapest()
        if total * (1.0 - 1e-9) > best:
            best = total * (1.0 - 1e-9)
            on_bound(best)
        made = parts.together(chosen)
        if made is not None and chosen != reported:
            on_placement(*made)
            reported = chosen
        open_ones = [at for at in enumerate(chosen) if not parts.known(*at).is_solved]
        small = [entry for entry in open_ones if parts.size(entry[0]) <= _MOST_UNITS]
        left = remaining() - spent
        if not small or left <= 0 or is_over():
            return PartsFound(best, not open_ones, *(made or (None, None)))
        # The least time first: easy parts are solved before hard ones are tried again.
        at = min(small, key=lambda entry: (parts.known(*entry).seconds, entry[0]))
        seconds = min(left, parts.known(*at).seconds)
        if parts.solve(*at, seconds, threads, deterministic, is_over):
            reported = None
        spent += seconds if deterministic else 0.0
