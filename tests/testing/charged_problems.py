"""Energy, price and limits on the random problems of the proofs, and their least value.

The formulas are written from docs/reference/simulation.md, apart from `core.charges`. For one
placement every amount grows with the seconds, so that its best order is its fastest.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from testing.event_truth import _least, legal_placements, told, topological_orders
from testing.plain_truth import plain_value
from testing.proof_problems import EVENT, LOAD, proof_problem

from placewright.core.arrays import frozen_floats
from placewright.core.problem import Problem

CHARGED_MODELS = (EVENT, LOAD)


def charged_problem(seed: int, model: str) -> Problem:
    """The proof problem of a seed with power, prices, an objective and limits.

    Args:
        seed: of everything.
        model: name of an execution model of `CHARGED_MODELS`.
    """
    plain = proof_problem(seed, model, {"shared processors"})  # which energy and price refuse
    rng = np.random.default_rng([seed, 99])
    cluster = plain.cluster
    devices = []
    for device in cluster.devices:
        idle = float(rng.choice([0, 0, 1, 2, 8]))
        busy, price = idle + float(rng.choice([0, 1, 4, 16])), float(rng.choice([0, 1, 2, 9]))
        devices.append(
            replace(device, busy_watts=busy, idle_watts=idle, price_per_hour=3600.0 * price)
        )
    table = rng.integers(0, 9, plain.costs.seconds.shape) / 2.0
    has_table = rng.random() < 0.2
    problem = replace(
        plain,
        cluster=replace(cluster, devices=tuple(devices)),
        objective=str(rng.choice(["energy", "price", "latency"]))
        if model == EVENT
        else "throughput",
        op_joules=frozen_floats(table) if has_table else None,
    )
    return replace(problem, limits=_limits(problem, rng))


def _limits(problem: Problem, rng: np.random.Generator) -> dict[str, float]:
    """Limits near the amounts of random placements; some are below all, some above all."""
    rows, limits = legal_placements(problem), {}
    names = (
        ["energy", "price"] if problem.objective == "throughput" else ["latency", "energy", "price"]
    )
    for name in names:
        if len(rows) == 0 or rng.random() < 0.55:
            continue
        row = rng.choice(rows)
        most = amount(problem, name, row, seconds_of(problem, row)) * rng.choice([0.75, 1.0, 1.25])
        if 0 < most < math.inf:
            limits[name] = float(most)
    return limits


def seconds_of(problem: Problem, device_of: np.ndarray) -> float:
    """The least seconds of one placement over all orders."""
    if problem.execution_model.name != EVENT:
        return plain_value(problem, device_of)
    model = told(problem)
    return float(_least(model, device_of[None, :], topological_orders(model.edge)))


def amount(problem: Problem, quantity: str, device_of: np.ndarray, seconds: float) -> float:
    """A quantity of one placement that takes so many seconds."""
    if quantity not in ("energy", "price") or math.isinf(seconds):
        return seconds
    devices, total = problem.cluster.devices, 0.0
    if quantity == "price":
        for at in sorted(set(device_of.tolist())):
            total += devices[at].price_per_hour / 3600.0 * devices[at].replicas * seconds
        return total
    for unit, at in enumerate(device_of.tolist()):
        watts = (devices[at].busy_watts - devices[at].idle_watts) / devices[at].streams
        own = watts * problem.costs.seconds[unit, at]
        total += own if problem.op_joules is None else problem.op_joules[unit, at]
    for device in devices:
        total += device.idle_watts * device.replicas * seconds
    return total


def charged_value(problem: Problem, device_of: np.ndarray, seconds: float) -> float:
    """The value of one placement that takes so many seconds; inf above a limit."""
    for quantity, most in problem.limits.items():
        if amount(problem, quantity, device_of, seconds) > most * (1.0 + 1e-9):
            return math.inf
    return amount(problem, problem.objective, device_of, seconds)


def least_charged(problem: Problem) -> float:
    """The least value over placements and orders; inf if there is none."""
    values = [
        charged_value(problem, row, seconds_of(problem, row)) for row in legal_placements(problem)
    ]
    return min(values, default=math.inf)
