"""Predicted and measured streams: seconds per sample of a placement with samples in flight."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices, grouped
from placewright.errors import InfeasibleError
from placewright.execution.runtime import LoadedModel
from placewright.profiling.stream_calibration import (
    different_samples,
    measure_streams,
    stream_runner,
)
from placewright.simulation.model import Simulator

REPLICATED = "replicated"
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 8  # of each visit
_SECONDS = 5.0  # that a visit should take
_WINDOW = 8  # samples between filling and draining, at least
_BESIDE = 2  # samples of the reference after each round
_PLAYED = 60
_MINE = "placement"


def is_streamed(problem: Problem) -> bool:
    """Whether the value of a placement is that of a stream."""
    return problem.objective == "throughput"


def one_group(problem: Problem) -> Problem | None:
    """The problem with the group of all devices as only device; None if the devices differ."""
    pools = alike_devices(problem)
    if pools.n_groups > 1 or problem.n_devices < 2:
        return None
    return grouped(problem, [list(range(problem.n_devices))])


class StreamMeasurement:
    """Seconds per sample of placements and of one device, whose streams take turns.

    Attributes:
        base: seconds per sample of the reference, the first device alone, by the simulator.
    """

    def __init__(self, problem: Problem, model: LoadedModel) -> None:
        self._problem, self._model = problem, model
        self._group = one_group(problem)
        device = int(np.flatnonzero(np.isfinite(problem.costs.seconds).all(axis=0))[0])
        self._alone = Placement.on_one_device(problem.n_units, device)
        self.base = self.predicted("", self._alone)
        self._stack = ExitStack()
        self._reference = self._stack.enter_context(
            stream_runner(problem, self._alone, model, in_flight=1)
        )

    def __enter__(self) -> StreamMeasurement:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def replicated(self) -> Placement | None:
        """The whole model on the group of all devices; None if they form no group."""
        return None if self._group is None else Placement.on_one_device(self._problem.n_units, 0)

    def predicted(self, kind: str, placement: Placement) -> float:
        """Seconds per sample of the simulated stream; inf if it does not fit into memory.

        Args:
            kind: `REPLICATED` is a placement on the group.
            placement: of the problem, or of that with the group.
        """
        try:
            return Simulator(self._of(kind)).stream(placement, samples=_PLAYED).steady.period
        except InfeasibleError:
            return float("inf")

    def ratios(self, kind: str, placement: Placement) -> list[float]:
        """Ratios of the seconds per sample to the reference's median, one for each round."""
        problem = self._of(kind)
        in_flight = Simulator(problem).stream(placement, samples=_PLAYED).in_flight
        window = -(-_WINDOW // in_flight) * in_flight
        samples = different_samples(self._model, 2 * in_flight + window + 1)
        one_round = self.base * (len(samples) + _BESIDE)
        rounds = int(np.clip(_SECONDS / max(one_round, 1e-9), _LEAST_ROUNDS, _MOST_ROUNDS))
        periods: list[float] = []
        beside: list[float] = []
        with stream_runner(problem, placement, self._model, in_flight=in_flight) as runner:
            runner.run_many(samples[: in_flight + 1])
            self._reference.run_many(samples[:1])
            for _ in range(rounds):
                found = measure_streams(
                    {_MINE: runner.run_many},
                    samples,
                    rounds=1,
                    skipped=in_flight,
                    bursts={_MINE: in_flight},
                )
                periods.append(found[_MINE][0].period)
                beside += [one.seconds for one in self._reference.run_many(samples[:_BESIDE])]
        # A machine that others disturb half of the time or less is as fast as its medians say.
        return [period / statistics.median(beside) for period in periods]

    def _of(self, kind: str) -> Problem:
        if kind == REPLICATED and self._group is not None:
            return self._group
        return self._problem
