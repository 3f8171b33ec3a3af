"""Timing of placements on the hardware: values for a search, and contenders in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.execution.direct import DirectRunner
from placewright.execution.placements import call_runner, whole_model_runner
from placewright.execution.runner import ConcurrentRunner
from placewright.execution.runtime import HostArray, LoadedModel
from placewright.profiling.deadline import NEVER, Deadline

LONG_SECONDS = 0.1
_LEAST_ROUNDS = 9  # for an interval of 95 %


def warm_time(runner: DirectRunner | ConcurrentRunner, expected: float) -> float:
    """Seconds of a request that finds the caches as the previous request left them.

    Args:
        expected: seconds of a request; a long one refills the caches itself and needs no request
            before it.
    """
    return runner.time(2 if expected < LONG_SECONDS else 1)[-1]


def measured_values(
    problem: Problem, model: LoadedModel, *, runs: int = 7
) -> Callable[[Placement], float]:
    """Make a function for `Evaluator(measure=...)`: median seconds of a placement.

    The machine drifts. So each value is a ratio of `measured_ratios`, times the reference's first
    median.
    """
    ratio, base = measured_ratios(problem, model, runs=runs)
    return lambda placement: base * ratio(placement)


def measured_ratios(
    problem: Problem, model: LoadedModel, *, runs: int = 7
) -> tuple[Callable[[Placement], float], float]:
    """Make a function that times a placement in one loop with a reference; also time that alone.

    The reference is the unsplit model on the first device.

    Args:
        runs: of a placement and of the reference, in turns.

    Returns:
        The function, whose value is the median of the placement's time over the reference's, and
        median seconds of the reference.
    """
    inputs = model.random_inputs(np.random.default_rng(0))
    reference = whole_model_runner(model, problem.cluster.devices[0])
    reference.run(inputs)
    reference.time(2)
    base = statistics.median(reference.time(runs))

    def ratio(placement: Placement) -> float:
        with call_runner(problem, placement, model) as runner:
            runner.run(inputs)
            runner.time(1)
            pairs = [(runner.time(1)[0], reference.time(1)[0]) for _ in range(runs)]
        return statistics.median(mine / other for mine, other in pairs)

    return ratio, base


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

    The first run of each short turn does not count, since another contender filled the caches.

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
    affordable = seconds / max(sum(took.values()), 1e-9)
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
