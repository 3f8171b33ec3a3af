"""Values of placements in joules or money, and limits on them; see `core.charges`.

The execution model of the problem is asked for seconds, from which all quantities follow.
"""

from __future__ import annotations

import math

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.charges import CHARGED, LIMIT_ROUNDING, QUANTITIES, amount_text
from placewright.core.problem import Problem
from placewright.simulation.behaviours import Behaviour, Explanation, Outcome
from placewright.simulation.legality import FINE, OVER_LIMIT, Violation


class Charged:
    """An execution model whose value is that of the problem's objective, within its limits.

    Args:
        problem: with an objective or limits of `core.charges`.
        timed: the problem's execution model, whose values are seconds.
    """

    def __init__(self, problem: Problem, timed: Behaviour) -> None:
        self.timed, self._charges = timed, problem.charges
        self._limits, self._objective = problem.limits, problem.objective

    @property
    def has_timeline(self) -> bool:
        """True if `explain` returns a timeline."""
        return self.timed.has_timeline

    def value(self, device_of: IntArray, order: IntArray) -> float:
        """Value of a placement, inf if it is infeasible; device_of and order (n_units,)."""
        return self.of_seconds(device_of, self.timed.value(device_of, order))

    def values(self, devices_of: IntArray) -> FloatArray:
        """Values of placements without order, devices_of (n_placements, n_units)."""
        return self.of_many(devices_of, self.timed.values(devices_of))

    def evaluate(self, device_of: IntArray, order: IntArray) -> Outcome:
        """Value, fault (a code of `legality`), its place, and bytes of each device (n_devices,)."""
        seconds, fault, at, peaks = self.timed.evaluate(device_of, order)
        value = self.of_seconds(device_of, seconds)
        if fault == FINE and math.isfinite(seconds) and math.isinf(value):
            return value, OVER_LIMIT, -1, peaks
        return value, fault, at, peaks

    def explain(self, device_of: IntArray, order: IntArray) -> Explanation:
        """The parts of a placement's seconds."""
        return self.timed.explain(device_of, order)

    def of_seconds(self, device_of: IntArray, seconds: float) -> float:
        """Value of a placement that takes so many seconds."""
        return float(self.of_many(np.asarray(device_of)[None, :], np.array([seconds]))[0])

    def of_many(self, devices_of: IntArray, seconds: FloatArray) -> FloatArray:
        """Values of placements (n_placements, n_units) that take so many seconds."""
        values = np.array(seconds)
        if self._objective in CHARGED:
            values = self._charges[self._objective].of(devices_of, seconds)
        for quantity, most in self._limits.items():
            amounts = self._charges[quantity].of(devices_of, seconds)
            values[amounts > most * (1.0 + LIMIT_ROUNDING)] = np.inf
        return values

    def violation(self, device_of: IntArray, order: IntArray) -> Violation:
        """The limit that a placement of finite seconds exceeds most."""
        seconds = self.timed.value(device_of, order)
        amounts = {name: self._charges[name].of_one(device_of, seconds) for name in self._limits}
        over = {name: amounts[name] / most for name, most in self._limits.items()}
        quantity = max(over, key=lambda name: over[name])
        return Violation(
            "limit",
            quantity,
            over_limit_text(quantity, amounts[quantity], self._limits[quantity]),
            amounts[quantity] - self._limits[quantity],
        )


def amounts_of(problem: Problem, device_of: IntArray, seconds: float) -> dict[str, float]:
    """All quantities that a problem counts, of a placement that takes so many seconds."""
    known = [name for name in QUANTITIES if problem.counts(name)]
    return {name: problem.charges_of(name).of_one(device_of, seconds) for name in known}


def over_limit_text(quantity: str, amount: float, most: float) -> str:
    """The excess of a quantity over its limit, as text."""
    texts = [amount_text(number, quantity) for number in (amount, most, amount - most)]
    return (
        f"{quantity} is {texts[0]} and its limit {texts[1]}: {texts[2]} too much; choose other "
        "devices or raise the limit (argument `limits`)"
    )
