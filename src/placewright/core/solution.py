"""Solutions that placers return, and budgets that limit a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from typing import Literal

from placewright.core.placement import Placement
from placewright.errors import InputError

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


class Stop(Enum):
    """Reason for the end of a search."""

    DONE = "done"  # the method had nothing left to do
    PROVEN = "proven"  # the incumbent is proven to be best, or no placement to be possible
    EVALUATIONS = "evaluations"  # the budget's were used up
    SECONDS = "seconds"  # the budget's were used up
    CORE_SECONDS = "core-seconds"  # the budget's were used up
    INTERRUPTED = "interrupted"  # the user pressed Ctrl-C, or the system ended the process


@dataclass(frozen=True)
class Budget:
    """Limits of a search, which ends at the first limit that it meets.

    >>> pw.Budget(seconds=10, evaluations=500).is_timed
    True
    >>> pw.Budget(evaluations=500).is_timed
    False

    Attributes:
        seconds: wall-clock seconds; None is no limit.
        evaluations: queries to the evaluator, intermediate ones included; None is no limit.
            A run that is limited by evaluations alone gives the same answer on every machine.
        core_seconds: processor seconds of all threads of this process, and of what worker processes
            do for the search (see `Evaluator.core_seconds`); None is no limit.
    """

    seconds: float | None = None
    evaluations: int | None = None
    core_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "core_seconds"):
            limit = getattr(self, name)
            is_number = isinstance(limit, Real)
            if limit is not None and not (is_number and limit > 0):
                raise InputError(f"a budget needs a number of {name} > 0, got {limit!r}")
        most = self.evaluations
        is_whole = isinstance(most, Integral) and not isinstance(most, bool)
        if most is not None and not (is_whole and most >= 1):
            raise InputError(f"a budget needs a whole number of evaluations >= 1, got {most!r}")

    @property
    def is_limited(self) -> bool:
        """True if there is any limit."""
        return self.is_timed or self.evaluations is not None

    @property
    def half(self) -> Budget:
        """Half of each limit, so that a second placer can follow."""
        return Budget(
            None if self.seconds is None else 0.5 * self.seconds,
            None if self.evaluations is None else math.ceil(0.5 * self.evaluations),
            None if self.core_seconds is None else 0.5 * self.core_seconds,
        )

    @property
    def is_timed(self) -> bool:
        """True if a clock limits the search, so that its answer depends on the machine."""
        return self.seconds is not None or self.core_seconds is not None

    @property
    def least_seconds(self) -> float:
        """The smaller limit in seconds, of wall-clock or processor time; inf if there is none."""
        limits = (self.seconds, self.core_seconds)
        return min((seconds for seconds in limits if seconds is not None), default=math.inf)


@dataclass(frozen=True)
class HistoryPoint:
    """One improvement of the incumbent: after how many evaluations and seconds, which value."""

    evaluations: int  # queries so far
    seconds: float  # wall-clock seconds so far
    value: float  # of the new incumbent
    lower_bound: float | None = None  # the largest proven by then; None where there was none


@dataclass(frozen=True)
class UpdatePoint:
    """One update of a policy."""

    evaluations: int  # queries until then
    # by name, where the method measures it: ``mean_time`` of the samples (in the problem's unit,
    # each at most ten reference times), ``entropy`` of a choice in nats, ``loss``, ``kl`` (old ||
    # new, of the joint distribution, in nats), ``gain`` of an episode of `placeto`, and the number
    # of ``clusters`` of `hsdag`
    values: Mapping[str, float]


@dataclass(frozen=True)
class Solution:
    """The outcome of a search."""

    placement: Placement | None  # the incumbent, None when none was found
    value: float  # of the incumbent, from the evaluator; inf without one
    # `optimal` only against all placements and orders; `infeasible` only when proven
    status: Status
    lower_bound: float = 0.0  # no placement in any order is faster; 0 where nothing better is known
    evaluations: int = 0  # queries that were used
    seconds: float = 0.0  # wall-clock seconds that were used
    history: tuple[HistoryPoint, ...] = ()  # improvements of the incumbent, in time order
    message: str = ""  # why there is no placement, or remarks on the answer
    bound_method: str = ""  # name of the method that proved the lower bound, empty if it has none
    stop: Stop = Stop.DONE  # why the search ended
    # values of what a policy drew from its own distribution, in time order, inf for infeasible
    # placements; empty for methods without one
    samples: tuple[float, ...] = ()
    updates: tuple[UpdatePoint, ...] = ()  # measurements of a policy's updates, in time order
    core_seconds: float = 0.0  # processor seconds that were used (see `Budget`)

    @property
    def gap(self) -> float:
        """value / lower_bound - 1; inf without a bound or a placement."""
        if self.lower_bound <= 0 or not math.isfinite(self.value):
            return math.inf if self.value > 0 else 0.0
        return self.value / self.lower_bound - 1.0
