"""The Pareto front of latency and energy: placements that no other one beats in both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.charges import amount_text, require_known
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FieldError, InfeasibleError
from placewright.io.json_text import finite
from placewright.placers.portfolio.auto import Auto
from placewright.report.time_left import Report, no_report
from placewright.session.search import search
from placewright.simulation.model import Simulator


@dataclass(frozen=True, eq=False)
class ParetoPoint:
    """One placement of a front."""

    placement: Placement  # of the problem's units
    latency: float  # in seconds
    energy: float  # in joules
    # energy / lower bound - 1 among placements of at most the latency that was asked for; inf if
    # the placement is that of least latency
    gap: float
    units: dict[str, int]  # device -> number of its units


FRONT_COLUMNS = ("latency", "energy", "above bound", "units")


def front_rows(front: Sequence[ParetoPoint]) -> tuple[tuple[str, ...], ...]:
    """A row of text for each point, with `FRONT_COLUMNS`."""
    return tuple(
        (
            amount_text(point.latency, "latency"),
            amount_text(point.energy, "energy"),
            f"{point.gap:.1%}" if math.isfinite(point.gap) else "-",
            ", ".join(f"{name} {count}" for name, count in point.units.items() if count),
        )
        for point in front
    )


def front_data(front: Sequence[ParetoPoint]) -> list[dict[str, Any]]:
    """The points as a JSON document: seconds, joules, units of each device."""
    return [
        {"latency": point.latency, "energy": point.energy, "gap": finite(point.gap),
         "units": point.units}
        for point in front
    ]  # fmt: skip


def pareto_front(
    problem: Problem,
    budget: Budget,
    *,
    points: int = 5,
    seed: int = 0,
    report: Report = no_report,
) -> tuple[ParetoPoint, ...]:
    """Search for placements of little latency and energy.

    The first search minimises latency, the second energy. Each further one minimises energy below a
    limit on latency between those of the first two.

    Args:
        problem: under an execution model of one sample; its own limits hold for all points.
        points: number of searches, >= 2.

    Returns:
        The points that no other point beats, least latency first.

    Raises:
        FieldError: `points` is below 2, or a device has no power.
        InfeasibleError: no placement was found.
    """
    whole = charged_by_energy(problem, points)
    report(0.0, "least latency")
    first = _found(replace(problem, objective="latency"), budget, seed, None)
    report(1.0 / points, "least energy")
    last = _found(whole, budget, seed, first.placement)
    found = [first, last]
    for number, latency in enumerate(_between(first.latency, last.latency, points - 2)):
        report((2.0 + number) / points, f"latency {latency:.3g} s at most")
        most = min(latency, problem.limits.get("latency", latency))
        limited = replace(whole, limits={**problem.limits, "latency": most})
        found.append(_found(limited, budget, seed, first.placement))
    return tuple(_undominated(found))


def charged_by_energy(problem: Problem, points: int) -> Problem:
    """The problem with energy as its objective, for a front with so many searches.

    Raises:
        FieldError: `points` is below 2, a device has no power, or a sample has no energy here.
    """
    if points < 2:
        raise FieldError("pareto", f"needs at least 2 searches, got {points}")
    if problem.objective in ("throughput", "training"):
        raise FieldError("pareto", f"is of one sample: objective {problem.objective} has no front")
    if not problem.counts("energy"):
        require_known(problem.cluster, "energy")
    return replace(problem, objective="energy")


def _between(shortest: float, longest: float, count: int) -> Iterator[float]:
    """Latencies with equal ratios between two; none if the two are about equal."""
    if longest > shortest * 1.001:
        yield from np.geomspace(shortest, longest, count + 2)[1:-1].tolist()


def _found(problem: Problem, budget: Budget, seed: int, start: Placement | None) -> ParetoPoint:
    row = None if start is None else start.device_of
    solution = search(problem, Auto(), budget, seed=seed, start=row)
    if solution.placement is None:
        raise InfeasibleError(f"none was found: {solution.message or 'the budget ended first'}")
    amounts = Simulator(problem).amounts(solution.placement)
    counts = np.bincount(solution.placement.device_of, minlength=problem.n_devices).tolist()
    return ParetoPoint(
        solution.placement,
        amounts["latency"],
        amounts["energy"],
        solution.gap if problem.objective == "energy" else float("inf"),
        dict(zip(problem.cluster.device_names, counts, strict=True)),
    )


def _undominated(points: list[ParetoPoint]) -> Iterator[ParetoPoint]:
    """Points that no other one beats or equals, least latency first."""
    least = float("inf")
    for point in sorted(points, key=lambda other: (other.latency, other.energy)):
        if point.energy < least:
            least = point.energy
            yield point
