"""The simulator: values, violations, timelines and streams of placements of one problem.

For values in joules or money (see `core.charges`) the execution model of the problem is asked for
seconds, from which all quantities follow.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import FloatArray, IntArray, frozen_ints
from placewright.core.charges import CHARGED, LIMIT_ROUNDING, QUANTITIES, amount_text
from placewright.core.placement import A_PLACEMENT, Placement, integers
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.simulation.behaviours import Behaviour, Explanation, Outcome, behaviour_of
from placewright.simulation.layout import problem_arrays
from placewright.simulation.legality import (
    FINE,
    NO_ORDER,
    OVER_LIMIT,
    TOO_LARGE,
    TOO_MANY_SEGMENTS,
    Shortage,
    Violation,
    bytes_over,
    check,
    violation_of,
)
from placewright.simulation.max_load import Loads
from placewright.simulation.stream.play import Stream, play_stream
from placewright.simulation.stream.tasks import why_no_stream
from placewright.simulation.timeline import Timeline


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


_PARALLEL_FROM = 64  # units times placements below which threads cost more than they bring


class Simulator:
    """Values placements of one problem under the problem's execution model.

    Queries do not change its state, so that threads may share an instance.

    >>> simulator = pw.Simulator(pw.read_problem("problem.json"))
    >>> simulator.value(pw.Placement.of([0, 0, 1, 0]))
    4.0
    >>> simulator.values([[0, 0, 0, 0], [0, 0, 1, 0]])
    array([6., 4.])
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.arrays = problem_arrays(problem)
        made = behaviour_of(problem)(problem, self.arrays)
        self._applied = Charged(problem, made) if problem.charges else made

    @cached_property
    def max_load(self) -> Loads:
        """Loads of placements, whatever the execution model."""
        made = self._applied.timed if isinstance(self._applied, Charged) else self._applied
        return made if isinstance(made, Loads) else Loads(self.problem, self.arrays)

    @cached_property
    def limited_bytes(self) -> float:
        """Sum of all finite limits of memory, at least 1."""
        limits = self.problem.cluster.memory_limits
        return max(float(limits[np.isfinite(limits)].sum()), 1.0)

    def value(self, placement: Placement) -> float:
        """Value of a placement in the problem's time unit; inf if it is infeasible."""
        self._check_length(placement.device_of)
        return self._applied.value(placement.device_of, _order_of(placement))

    def seconds(self, placement: Placement) -> float:
        """Time of a placement, whatever is minimised, in the problem's time unit."""
        self._check_length(placement.device_of)
        made = self._applied.timed if isinstance(self._applied, Charged) else self._applied
        return made.value(placement.device_of, _order_of(placement))

    def value_of_seconds(self, placement: Placement, seconds: float) -> float:
        """Value of a placement that was measured to take so many seconds."""
        made = self._applied
        if isinstance(made, Charged):
            return made.of_seconds(placement.device_of, seconds)
        return seconds

    def amounts(self, placement: Placement) -> dict[str, float]:
        """Latency, and energy and price if the problem counts them, of a feasible placement."""
        return amounts_of(self.problem, placement.device_of, self.seconds(placement))

    def values(self, devices_of: ArrayLike) -> FloatArray:
        """Values of placements without order, in parallel over cores.

        Args:
            devices_of: shape (n_placements, n_units).

        Returns:
            Shape (n_placements,), in the same order whatever the number of threads.

        Raises:
            InputError: `devices_of` is not an integer for each unit of each placement.
        """
        devices = np.atleast_2d(integers(devices_of, A_PLACEMENT, n_axes=2))
        rows = np.ascontiguousarray(devices).view()
        rows.setflags(write=False)  # as placements are: kernels are compiled for that alone
        if len(rows):
            self._check_length(rows[0])
        threads = min(len(rows), os.cpu_count() or 1)
        if threads < 2 or rows.size < _PARALLEL_FROM:
            return self._values(rows)
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(self._values, np.array_split(rows, threads)))
        return np.concatenate(parts)

    def violation(self, placement: Placement) -> Violation | None:
        """The constraint that a placement breaks; None if it is feasible."""
        order = _order_of(placement)
        value, fault, at, peaks = self._evaluate(placement.device_of, order)
        if fault == OVER_LIMIT:
            assert isinstance(self._applied, Charged)
            return self._applied.violation(placement.device_of, order)
        if fault != FINE:
            return violation_of(self.problem, placement, fault, at, peaks)
        if math.isinf(value):
            return Violation(
                "subgraphs",
                self.problem.execution_model.name,
                self._applied.explain(placement.device_of, order).broken or "",
            )
        return None

    def shortage(self, placement: Placement) -> Shortage:
        """The distance of a placement from keeping every limit."""
        order = _order_of(placement)
        value, fault, at, peaks = self._evaluate(placement.device_of, order)
        total, over = math.inf, np.zeros(len(self.problem.cluster.memory_limits))
        if fault == TOO_LARGE:
            over = bytes_over(self.problem.cluster, peaks)
            total = float(over.sum()) / self.limited_bytes
        elif fault == OVER_LIMIT:
            assert isinstance(self._applied, Charged)
            broken = self._applied.violation(placement.device_of, order)
            total = broken.excess / max(self.problem.limits[broken.where], 1e-300)
        elif fault == TOO_MANY_SEGMENTS:
            total = violation_of(self.problem, placement, fault, at, peaks).excess
        elif math.isfinite(value):
            total = 0.0
        return Shortage(value, total, peaks, over)

    def value_and_peaks(self, placement: Placement) -> tuple[float, FloatArray]:
        """Value, and peak bytes of each device, shape (n_devices,)."""
        value, _, _, peaks = self._evaluate(placement.device_of, _order_of(placement))
        return value, peaks

    def memory_peaks(self, placement: Placement) -> FloatArray:
        """Peak bytes of each device, shape (n_devices,)."""
        return self._evaluate(placement.device_of, _order_of(placement))[3]

    def loads(self, device_of: IntArray) -> FloatArray:
        """Loads under `max-load`: devices, channels, shared processors; (n_phases, n), seconds.

        Raises:
            InputError: `device_of` has another length than the units.
            InfeasibleError: a unit is where it may not be.
        """
        placement = Placement.of(device_of)
        self._require_allowed(placement)
        return self.max_load.loads(placement.device_of)

    def stream(
        self, placement: Placement, *, samples: int = 200, in_flight: int | None = None
    ) -> Stream:
        """Simulate a stream of samples through a placement, under any execution model.

        Args:
            placement: its devices; a stream has an order of its own.
            samples: >= 1.
            in_flight: samples under way at most, >= 1; None takes as many as shorten the period
                and fit into memory.

        Raises:
            InputError: a number is below 1, or the problem's value has no stream.
            InfeasibleError: the placement breaks a constraint, or a sample does not fit.
        """
        self._require_allowed(placement)
        # A stream pays for hops as `max-load` does, whoever they occupy. It plays the tensors of
        # its samples, so that those that `max-load` keeps in their place do not count again.
        cluster, weights = self.problem.cluster, self.problem.kept_weights
        arrays = self.arrays._replace(
            latency=cluster.link_latency,
            seconds_per_byte=cluster.link_seconds_per_byte,
            kept_ptr=weights.units.indptr,
            kept_units=weights.units.indices,
            kept_bytes=weights.sizes,
        )
        return play_stream(
            self.problem, arrays, placement.device_of, samples=samples, in_flight=in_flight
        )

    def sample_peaks(self, placement: Placement) -> FloatArray | None:
        """Peak bytes of a stream of one sample at a time, whatever the limits, (n_devices,).

        None where nothing can be played: another objective, `why_no_stream`, too many segments.
        """
        problem = self.problem
        if problem.objective != "throughput" or why_no_stream(problem) is not None:
            return None
        roomy = replace(problem, cluster=problem.cluster.without_memory_limits)
        try:
            return Simulator(roomy).stream(placement, samples=2, in_flight=1).memory_peaks
        except InfeasibleError:
            return None

    @property
    def has_timeline(self) -> bool:
        """True if placements have a timeline under the problem's execution model."""
        return self._applied.has_timeline

    def explain(self, placement: Placement) -> Explanation:
        """The parts of the value of a placement.

        Raises:
            InfeasibleError: the placement breaks a constraint.
        """
        violation = self.violation(placement)
        if violation is not None:
            raise InfeasibleError(violation.message)
        return self._applied.explain(placement.device_of, _order_of(placement))

    def timeline(self, placement: Placement) -> Timeline:
        """The timeline of a placement under execution model `event`.

        Raises:
            InputError: another execution model, which has no timeline.
            InfeasibleError: the placement breaks a constraint.
        """
        if not self.has_timeline:
            raise InputError(
                f"execution model '{self.problem.execution_model.name}' has no timeline; "
                "use 'event'"
            )
        timeline = self.explain(placement).timeline
        assert timeline is not None
        return timeline

    def _values(self, rows: IntArray) -> FloatArray:
        return self._applied.values(rows)

    def _check_length(self, device_of: IntArray) -> None:
        if len(device_of) != self.problem.n_units:
            raise InputError(
                f"a placement needs {self.problem.n_units} devices, got {len(device_of)}"
            )

    def _require_allowed(self, placement: Placement) -> None:
        """Refuse a placement that breaks support, a pin or colocation."""
        self._check_length(placement.device_of)
        fault, at = check(self.arrays, placement.device_of, NO_ORDER)
        if fault != FINE:
            nothing = np.zeros(self.problem.n_devices)
            violation = violation_of(self.problem, placement, fault, at, nothing)
            raise InfeasibleError(violation.message)

    def _evaluate(self, device_of: IntArray, order: IntArray) -> tuple[float, int, int, FloatArray]:
        """Value, fault, its place, peak bytes of each device."""
        self._check_length(device_of)
        return self._applied.evaluate(device_of, order)


def _order_of(placement: Placement) -> IntArray:
    return NO_ORDER if placement.order is None else frozen_ints(placement.order)
