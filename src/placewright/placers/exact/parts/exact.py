"""The sum of parts with each part's own constraint program, where the sum needs it.

The dynamic program of `placers.parts.bound` finds the cheapest devices of the articulation units
for what is known of each part and pair of devices. Only those pairs that it chose can raise the
sum, so that only they are solved (`placers.parts.problems` says why that is a bound), and it is
asked again, until all that it chose is solved or the time is up. A program that is not solved to
its end gives its own bound, and gets more time when it is chosen again. Parts that come again, and
pairs of devices that alike devices make equal, share one program (`placers.parts.twins`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from placewright.core.arrays import IntArray
from placewright.placers.exact.parts.programs import PartPrograms
from placewright.placers.exact.parts.twins import Pair

_MOST_UNITS = 300  # of a part whose program is tried


@dataclass(frozen=True)
class PartsFound:
    """What is known when the time is up, or all that matters is solved.

    Attributes:
        bound: of the value of the whole, in seconds.
        is_solved: the bound is the least sum of solved programs.
        device_of: a placement made of the parts' solutions, (n_units,); None where one has none.
        order: all units by their starts in the parts, (n_units,).
    """

    bound: float
    is_solved: bool
    device_of: IntArray | None
    order: IntArray | None


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
    """Solve what matters until the time is up; a second call goes on where the first one ended.

    Args:
        parts: programs, and what is known of them.
        remaining: seconds left, asked between programs.
        workers: threads of the solver.
        deterministic: count the solver's own measure of work as seconds, with one thread.
        on_bound: told each bound of the whole, larger each time.
        on_placement: told the placement and the order that the parts' solutions make, whenever
            these are others.
        is_over: asked, also within a program, whether to end at once.
    """
    threads, best, spent = 1 if deterministic else workers, 0.0, 0.0
    told: list[Pair] | None = None
    while True:
        total, chosen = parts.cheapest()
        if total * (1.0 - 1e-9) > best:
            best = total * (1.0 - 1e-9)
            on_bound(best)
        made = parts.together(chosen)
        if made is not None and chosen != told:
            on_placement(*made)
            told = chosen
        open_ones = [at for at in enumerate(chosen) if not parts.known(*at).is_solved]
        small = [one for one in open_ones if parts.size(one[0]) <= _MOST_UNITS]
        left = remaining() - spent
        if not small or left <= 0 or is_over():
            return PartsFound(best, not open_ones, *(made or (None, None)))
        # The least time first: an easy part is solved before a hard one is tried again.
        at = min(small, key=lambda one: (parts.known(*one).seconds, one[0]))
        seconds = min(left, parts.known(*at).seconds)
        if parts.solve(*at, seconds, threads, deterministic, is_over):
            told = None
        spent += seconds if deterministic else 0.0
