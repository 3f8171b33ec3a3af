"""Random problems, brute force, and every method that claims something: counts, what was false."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from simulation.oracle import Reference
from testing.event_truth import legal_placements, makespan, told, topological_orders
from testing.plain_truth import charged_value, is_charged, least_value, plain_value
from testing.proof_methods import METHODS, Claim, faults
from testing.proof_problems import EVENT, FIFO, drawn_features, features_of, proof_problem

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.simulation.model import Simulator

ORDERS = "orders"  # a feature of its own: the rule of dispatch alone is left without it


@dataclass
class Tally:
    """What is known of one execution model.

    Attributes:
        counts: method -> how often it answered, and what.
        faults: method and seed of each false claim, with what is false.
    """

    problems: int = 0
    infeasible: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def look_at(
    model: str,
    seed: int,
    tally: Tally,
    methods: Collection[str] = METHODS,
    without: tuple[str, ...] = (),
) -> None:
    """One brute force, and all methods on its problem."""
    problem, best = proof_problem(seed, model, without), least_known(model, seed, without)
    ask(f"{model} {seed}", problem, best, tally, methods)


def ask(
    label: str, problem: Problem, best: float, tally: Tally, methods: Collection[str] = METHODS
) -> None:
    """All methods on a problem whose least value is known."""
    tally.problems += 1
    tally.infeasible += math.isinf(best)
    for name in methods:
        counts = tally.counts.setdefault(name, Counter())
        try:
            claim = METHODS[name](problem)
        except Exception as error:
            counts["errors"] += 1
            tally.faults.append(f"{label}: {name}: {type(error).__name__}: {error}")
            continue
        if claim is None:
            continue
        counts["problems"] += 1
        counts[claim.status] += 1
        found = faults(claim, best)
        found += [] if is_worth_it(problem, claim) else ["worth"]
        counts["with a placement"] += math.isfinite(best)
        claimed = f"bound {claim.bound:.9g}, value {claim.value:.9g}, best {best:.9g}"
        for what in found:
            counts[f"false {what}"] += 1
            tally.faults.append(f"{label}: {name}: false {what} ({claimed})")


@functools.cache
def least_known(model: str, seed: int, without: tuple[str, ...]) -> float:
    """By brute force, once for all mutations: it knows nothing that they break."""
    return least_value(proof_problem(seed, model, without))


def is_worth_it(problem: Problem, claim: Claim) -> bool:
    """What a method found is worth what it says, by the plain references."""
    if claim.device_of is None:
        return True
    if problem.execution_model.name != EVENT:
        value = plain_value(problem, claim.device_of)
    elif claim.order is None:
        return True  # by dispatch: an order, which the brute force has tried
    else:
        value = makespan(problem, claim.device_of, claim.order)
    value = charged_value(problem, claim.device_of, value)
    return math.isclose(value, claim.value, rel_tol=1e-9)


def disagreements(model: str, seed: int, count: int = 4) -> tuple[int, int, list[str]]:
    """Compare the simulator with the plain reference on random placements of a problem.

    Under `event` half of them have an order; seconds and peak bytes must be equal to the last bit.

    Returns:
        How many placements were tried and how many are feasible, and a line for each that has
        another value, another verdict or other peaks.
    """
    problem, rng = proof_problem(seed, model), np.random.default_rng(seed)
    placements, simulator = legal_placements(problem), Simulator(problem)
    finite, found = 0, []
    count = count if len(placements) else 0
    for number in range(count):
        device_of = rng.choice(placements)
        if model != EVENT:
            placement, slack = Placement.of(device_of), 1e-9
            expected, peaks = plain_value(problem, device_of), None
        else:
            orders = topological_orders(told(problem).edge)
            placement, slack = (
                Placement.of(device_of, rng.choice(orders) if number % 2 else None),
                1e-9 if is_charged(problem) else 0,
            )
            reference = Reference(problem, placement)
            expected = reference.value()
            peaks = None if reference.is_cut_off else reference.peaks()
        expected = charged_value(problem, device_of, expected)
        value, measured = simulator.value_and_peaks(placement)
        finite += math.isfinite(expected)
        if value != expected and not math.isclose(value, expected, rel_tol=slack):
            found.append(f"{model} {seed}: value {value!r}, reference {expected!r}")
        if (simulator.violation(placement) is None) != math.isfinite(expected):
            found.append(f"{model} {seed}: another verdict than the reference")
        if peaks is not None and math.isfinite(expected) and measured.tolist() != peaks:
            found.append(f"{model} {seed}: peaks {measured.tolist()}, reference {peaks}")
    return count, finite, found


def changes(model: str, seeds: Sequence[int]) -> dict[str, float]:
    """Share of problems whose best value is another without a feature, by feature.

    A rule of dispatch counts if it changes the value of a placement without an order.
    """
    found: Counter[str] = Counter({name: 0 for name in features_of(model)})
    for seed in seeds:
        problem = proof_problem(seed, model)
        best = least_value(problem)
        for name in (one for one in drawn_features(seed, model) if one in found):
            other = proof_problem(seed, model, {name})
            if name == FIFO:
                found[name] += not np.allclose(by_dispatch(problem), by_dispatch(other), 1e-9, 0.0)
            else:
                found[name] += differs(best, least_value(other))
        if model == EVENT:
            found[ORDERS] += math.isfinite(best) and differs(best, by_dispatch(problem).min())
    return {name: count / len(seeds) for name, count in found.items()}


def differs(one: float, other: float) -> bool:
    """By more than rounding."""
    return one != other and not math.isclose(one, other, rel_tol=1e-9)


def by_dispatch(problem: Problem) -> np.ndarray:
    """The value of every placement without an order, as the simulator has it."""
    return np.array(Simulator(problem).values(legal_placements(problem)))
