"""A plan: a placement plus all that is needed to use it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placewright.core.placement import Placement
from placewright.core.plan import summary
from placewright.core.problem import Problem
from placewright.core.solution import HistoryPoint, Solution, Status, Stop


@dataclass(frozen=True)
class Measurement:
    """What the hardware said.

    Attributes:
        median: of the plan's runs, seconds.
        iqr: distance between the quartiles, seconds.
        runs: number of runs.
        baselines: name -> median seconds of what was measured interleaved with the plan;
            ``"searched"`` is the searched placement, where the plan holds another.
        recommendation: what the user should run: ``"plan"`` is the searched placement, any other
            name a simpler way (a single device, ``"even split"``, ``"all cores"``).
    """

    median: float
    iqr: float
    runs: int
    baselines: Mapping[str, float] = field(default_factory=dict)
    recommendation: str = "plan"


@dataclass(frozen=True)
class PlacerRecord:
    """How a placement was found: enough to find it again.

    Attributes:
        name: of the placer.
        version: of Placewright.
        seed: of every random choice.
        evaluations: queries that were used.
        seconds: wall-clock seconds that were used.
        history: improvements of the incumbent, in time order.
        stop: why the search ended; None in files of versions that did not say it.
        core_seconds: processor seconds that were used (see `core.solution.Budget`); None likewise.
    """

    name: str
    version: str
    seed: int
    evaluations: int
    seconds: float
    history: tuple[HistoryPoint, ...] = ()
    stop: Stop | None = None
    core_seconds: float | None = None

    @property
    def is_interrupted(self) -> bool:
        """True if the search was cut short, so that its budget says nothing about the result."""
        return self.stop is Stop.INTERRUPTED


@dataclass(frozen=True, eq=False)
class Searched:
    """What the search found, where the hardware preferred another placement.

    Attributes:
        placement: of the plan's problem.
        value: predicted, in the problem's time unit.
    """

    placement: Placement
    value: float


@dataclass(frozen=True, eq=False)
class Plan:
    """The recommended placement of a problem, its predicted and measured value, how it was found.

    A search returns a plan of what it found. A check on the hardware may recommend a simpler
    placement of the same problem: the plan is then about that one, and `searched` keeps the other.

    Attributes:
        problem: what was placed.
        placement: devices and order of the problem's units.
        value: predicted, in the problem's time unit.
        lower_bound: no placement in any order is faster; 0 where nothing better is known.
        status: see `core.solution.Solution`.
        runtime: name of the runtime that executes it.
        memory: device name -> predicted peak bytes.
        segments: (device, units) in execution order; None where the model of execution has none.
        measured: None until it was run.
        placer: how the searched placement was found.
        bound_method: what proved the lower bound, empty where it has no name.
        searched: what the search found, where that is not `placement`.
        left_out: what was not measured, searched or checked for want of time, one clause each.
        in_flight: samples that a stream keeps under way at most; None is as many as pay.
    """

    problem: Problem
    placement: Placement
    value: float
    lower_bound: float
    status: Status
    runtime: str
    memory: Mapping[str, float]
    segments: tuple[tuple[int, tuple[int, ...]], ...] | None
    placer: PlacerRecord
    measured: Measurement | None = None
    bound_method: str = ""
    searched: Searched | None = None
    left_out: tuple[str, ...] = ()
    in_flight: int | None = None

    @property
    def gap(self) -> float:
        """value / lower_bound - 1; inf without a bound."""
        return Solution(self.placement, self.value, self.status, self.lower_bound).gap

    def __str__(self) -> str:
        """Verdict, value, gap, devices, segments and measurement, on one screen."""
        return summary(self)
