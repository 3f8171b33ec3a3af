"""`bench incremental`: one move re-evaluated in part, beside a full evaluation, in one loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from placewright.benchmarks.random_graphs import random_layered_problem
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.errors import MismatchError
from placewright.simulation.incremental import Incremental
from placewright.simulation.model import Simulator


@dataclass(frozen=True)
class IncrementalRow:
    """Median seconds of one move of one unit.

    Attributes:
        objective: ``"throughput"`` (`max-load`) or ``"latency"`` (`event`).
        ops, devices: of the random problem.
        full, incremental: seconds of the value of the moved placement.
        speed_up: median of full / incremental, move by move.
    """

    objective: str
    ops: int
    devices: int
    full: float
    incremental: float
    speed_up: float


def run_incremental_benchmark(
    sizes: Sequence[int], n_devices: int = 4, *, seed: int = 0, moves: int = 200
) -> list[IncrementalRow]:
    """Time random moves of single units.

    Raises:
        MismatchError: the two values differ.
    """
    return [
        _row(objective, size, n_devices, np.random.default_rng(seed), moves)
        for size in sizes
        for objective in ("throughput", "latency")
    ]


def _row(
    objective: str, n_ops: int, n_devices: int, rng: np.random.Generator, moves: int
) -> IncrementalRow:
    problem = random_layered_problem(rng, n_ops, n_devices)
    if objective == "throughput":
        problem = replace(problem, objective="throughput", execution_model=MaxLoad())
    simulator = Simulator(problem)
    held = Incremental(simulator, rng.integers(0, n_devices, n_ops))
    full, in_part = [], []
    for attempt in range(moves + 1):
        unit, device = int(rng.integers(n_ops)), int(rng.integers(n_devices))
        expected, full_seconds = _timed(partial(_value_after, simulator, held, unit, device))
        value, seconds = _timed(partial(held.value_after, unit, device))
        if value != expected:
            raise MismatchError(f"incremental: {value}, full: {expected}; they must be equal")
        if attempt:  # the first compiles
            full.append(full_seconds)
            in_part.append(seconds)
    return IncrementalRow(
        objective,
        n_ops,
        n_devices,
        statistics.median(full),
        statistics.median(in_part),
        statistics.median(a / b for a, b in zip(full, in_part, strict=True)),
    )


def _value_after(simulator: Simulator, held: Incremental, unit: int, device: int) -> float:
    """What `held.value_after` answers, by a full evaluation of the changed placement."""
    trial = held.device_of.copy()
    trial[unit] = device
    return simulator.value(Placement.of(trial))


def _timed(call: Callable[[], float]) -> tuple[float, float]:
    began = time.perf_counter()
    value = call()
    return value, time.perf_counter() - began
