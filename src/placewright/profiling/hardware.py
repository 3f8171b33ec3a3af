"""Timing of placements on the hardware, and the deadline that several steps share."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import InputError, OutOfTime
from placewright.execution.direct import DirectRunner
from placewright.execution.placements import call_runner, whole_call_runner
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import HostArray, LoadedModel


class Stopwatch:
    """A clock in seconds that can be stopped for a block.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stood = clock, 0.0

    def __call__(self) -> float:
        """Seconds, without those of all blocks that have ended."""
        return self._clock() - self._stood

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Leave out the seconds of a block, in which nobody may ask for the time."""
        began = self._clock()
        try:
            yield
        finally:
            self._stood += self._clock() - began


@dataclass(frozen=True)
class Deadline:
    """The time after which no further work may start."""

    ends: float = math.inf  # on the clock, in seconds; inf is never
    # shared by all deadlines that are made of this one
    clock: Stopwatch = field(default_factory=Stopwatch)

    @classmethod
    def after(cls, seconds: float | None, clock: Stopwatch | None = None) -> Deadline:
        """A deadline in so many seconds from now; None is never.

        Raises:
            InputError: seconds is not > 0.
        """
        watch = clock or Stopwatch()
        if seconds is None:
            return cls(clock=watch)
        if not seconds > 0:
            raise InputError(f"a total needs seconds > 0, got {seconds:g}")
        return cls(watch() + seconds, watch)

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline, at least 0; inf without a limit."""
        return max(0.0, self.ends - self.clock())

    @property
    def is_over(self) -> bool:
        """True if no further work may start."""
        return self.clock() >= self.ends

    @property
    def is_limited(self) -> bool:
        """True if the deadline is finite."""
        return math.isfinite(self.ends)

    def part(self, share: float) -> Deadline:
        """The deadline of a share (0 to 1) of the seconds that are left."""
        if not self.is_limited:
            return self
        return Deadline(self.clock() + share * self.seconds_left, self.clock)

    def within(self, seconds: float | None) -> Deadline:
        """The earlier of this deadline and so many seconds from now; None is no other limit."""
        if seconds is None:
            return self
        return Deadline(min(self.ends, self.clock() + seconds), self.clock)

    def require(self, what: str) -> None:
        """Raise if the deadline has passed.

        Raises:
            OutOfTime: the message names the work that was to start.
        """
        if self.is_over:
            raise OutOfTime(what)


NEVER = Deadline()


LONG_SECONDS = 0.1
WARM_SECONDS = 0.04  # of requests, after which core and caches are as these requests leave them
_MOST_WARM = 50  # requests before the one that counts
_LEAST_ROUNDS = 9  # for an interval of 95 %


def warm_requests(expected: float) -> int:
    """Requests of a turn, of which the last one counts: `WARM_SECONDS` of them before it.

    A plan whose weights another one has driven out of the processor's caches may take a third
    longer at first, and eight requests of 5 ms until it is as fast as in a loop of its own. A core
    that has waited for a tenth of a second may take six times as long. A long request meets neither
    for most of its time.

    Args:
        expected: seconds of a request.
    """
    if expected >= LONG_SECONDS:
        return 1
    return 1 + min(_MOST_WARM, math.ceil(WARM_SECONDS / max(expected, 1e-9)))


def last_of_turn(timed: Callable[[], float], expected: float) -> float:
    """Seconds of the last request of a turn, see `warm_requests`.

    Args:
        timed: makes a request; returns its seconds. If requests take longer than expected, the
            turn is over after `LONG_SECONDS` and one more.
        expected: seconds of a request.
    """
    spent = 0.0
    for _ in range(warm_requests(expected) - 1):
        spent += timed()
        if spent >= LONG_SECONDS:
            break
    return timed()


def warm_time(runner: DirectRunner | ConcurrentRunner, expected: float) -> float:
    """Seconds of a request behind others of the same plan, as it is served in a loop.

    Args:
        expected: seconds of a request.
    """
    return last_of_turn(lambda: runner.time(1)[0], expected)


@contextmanager
def measured_values(problem: Problem, model: LoadedModel) -> Iterator[Callable[[Placement], float]]:
    """Make a function for `Evaluator(measure=...)`, for a block: median seconds of a placement.

    The machine drifts. So each value is a ratio of `measured_ratios`, times the reference's first
    median.
    """
    with measured_ratios(problem, model) as (ratio, base):
        yield lambda placement: base * ratio(placement)


@contextmanager
def measured_ratios(
    problem: Problem, model: LoadedModel, *, runs: int = 7
) -> Iterator[tuple[Callable[[Placement], float], float]]:
    """Make a function, for a block, that times a placement in one loop with a reference.

    The reference is the unsplit model on the first device, which is also timed alone. It is
    closed with the block.

    Args:
        runs: of a placement and of the reference, in turns.

    Yields:
        The function, whose value is the median of the placement's time over the reference's, and
        median seconds of the reference.
    """
    inputs = model.random_inputs(np.random.default_rng(0))
    with whole_call_runner(model, problem.cluster.devices[0]) as reference:
        reference.run(inputs)
        reference.time(warm_requests(reference.time(2)[-1]))
        base = statistics.median(reference.time(runs))

        def ratio(placement: Placement) -> float:
            with call_runner(problem, placement, model) as runner:
                runner.run(inputs)
                pairs = [(warm_time(runner, base), warm_time(reference, base)) for _ in range(runs)]
            return statistics.median(mine / other for mine, other in pairs)

        yield ratio, base


def measure_interleaved(
    contenders: Mapping[str, DirectRunner | ConcurrentRunner],
    inputs: Sequence[HostArray],
    *,
    rounds: int = 15,
    seconds: float = math.inf,
    progress: Callable[[float], None] | None = None,
    deadline: Deadline = NEVER,
) -> dict[str, list[float]]:
    """Measure seconds of each contender in each round; the order in a round rotates.

    Of a short turn only the last run counts, see `warm_requests`.

    Args:
        contenders: name -> runner; runners made within `taking_turns` share one copy of state.
        inputs: values of all inputs, in the model's own order.
        rounds: samples of each contender.
        seconds: limit on all rounds together; there are fewer rounds if they take longer, but at
            least 9.
        progress: called with the finished part, 0 to 1.
        deadline: no run starts after it.

    Raises:
        OutOfTime: the deadline passed before 9 rounds, or before all if fewer are wanted.
    """
    names = list(contenders)
    least = min(_LEAST_ROUNDS, rounds)
    took: dict[str, float] = {}
    for name in names:
        deadline.require(f"'{name}' had run once")
        took[name] = contenders[name].run(inputs).seconds
    turns = sum(warm_requests(each) * each for each in took.values())
    affordable = seconds / max(turns, 1e-9)
    rounds = int(np.clip(affordable, least, rounds))
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if deadline.is_over and number >= least:  # the finished rounds are enough
                return {key: row[:number] for key, row in samples.items()}
            deadline.require(f"{least} rounds were measured")
            took[name] = warm_time(contenders[name], took[name])
            samples[name].append(took[name])
        if progress is not None:
            progress((number + 1) / rounds)
    return samples
