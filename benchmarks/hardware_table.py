"""The chosen placement on the hardware beside placements without a search.

For each model: single devices, whole layers in order, the map of `accelerate`, and the placement of
a placer, measured in turns, with predicted and measured peak memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from benchmarks.hardware_report import CHOSEN
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.execution.comparing import compare_outputs
from placewright.execution.placements import call_runner, placement_segments, taking_turns
from placewright.execution.runtime import LoadedModel, MeasuresMemory
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.registry import make_placer, placer_names
from placewright.profiling.hardware import measure_interleaved
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.serving import served_seconds

SIMPLER = ("expert", "accelerate")
_MEASURING_SECONDS = 30.0  # of all contenders, where that is enough for nine rounds


@dataclass(frozen=True)
class ContenderRow:
    """One way to run a model.

    Attributes:
        name: of a device or placer, or ``"chosen"``.
        predicted: seconds; inf if it breaks a constraint.
        measured: median seconds; None if it was not run.
        spread: distance between the quartiles of the measured seconds.
        reason: why it was not run.
        memory_predicted, memory_measured: device name -> peak bytes.
    """

    name: str
    predicted: float
    measured: float | None = None
    spread: float = 0.0
    reason: str = ""
    memory_predicted: Mapping[str, float] = field(default_factory=dict)
    memory_measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HardwareTable:
    """All contenders of one model under one set of memory limits.

    Attributes:
        model: its name.
        limits: device name -> bytes, for devices with a limit.
        rows: contenders; ``"chosen"`` is last.
        equal: outputs and updated state are those of the unsplit model.
        error: their largest relative error.
    """

    model: str
    limits: Mapping[str, float]
    rows: tuple[ContenderRow, ...]
    equal: bool
    error: float


def compare_on_hardware(
    name: str,
    problem: Problem,
    model: LoadedModel,
    *,
    placer: str = "auto",
    budget: Budget,
    seed: int = 0,
    rounds: int = 15,
    limits: Mapping[str, float] | None = None,
) -> HardwareTable:
    """Search, then measure the result beside simpler placements.

    Args:
        name: of the model.
        problem: calibrated, with its memory limits.
        model: loaded by the runtime.
        placer: name of the placer.
        budget: of the search.
        seed: of its random choices.
        rounds: most rounds of the measurement.
        limits: intended limits, for the record.

    Raises:
        RuntimeFailure: a segment cannot run.
    """
    simulator = Simulator(problem)
    found = dict(_contenders(problem, placer, budget, seed))
    rows: dict[str, ContenderRow] = {}
    inputs = model.random_inputs(np.random.default_rng(0))
    with ExitStack() as stack:
        runners = {}
        with taking_turns(model):
            for key, (placement, reason) in found.items():
                violation = None if placement is None else simulator.violation(placement)
                if placement is None or violation is not None:
                    text = reason if violation is None else violation.message
                    rows[key] = ContenderRow(key, float("inf"), reason=text)
                    continue
                rows[key] = ContenderRow(key, served_seconds(problem, placement))
                runners[key] = call_runner(problem, placement, model)
                stack.callback(runners[key].close)
        samples = {}
        if runners:
            limit = _MEASURING_SECONDS
            samples = measure_interleaved(runners, inputs, rounds=rounds, seconds=limit)
    for key, row in samples.items():
        rows[key] = _measured(rows[key], row, problem, found[key][0], model)
    chosen = found[CHOSEN][0]
    if chosen is None or CHOSEN not in samples:
        return HardwareTable(name, limits or {}, tuple(rows.values()), False, float("inf"))
    comparison = compare_outputs(problem, chosen, model)
    return HardwareTable(
        name, limits or {}, tuple(rows.values()), comparison.equal, comparison.error
    )


def _contenders(
    problem: Problem, placer: str, budget: Budget, seed: int
) -> Iterable[tuple[str, tuple[Placement | None, str]]]:
    """Name -> (placement, reason without a placement)."""
    for index, device in enumerate(problem.cluster.devices):
        if np.isfinite(problem.costs.seconds[:, index]).all():
            yield device.name, (Placement.on_one_device(problem.n_units, index), "")
        else:
            yield device.name, (None, "cannot run all ops")
    for name in SIMPLER:
        if name in placer_names():
            yield name, _placed(problem, name, budget, seed)
    yield CHOSEN, _placed(problem, placer, budget, seed)


def _placed(problem: Problem, name: str, budget: Budget, seed: int) -> tuple[Placement | None, str]:
    placer = make_placer(name)
    reason = placer.why_not(problem)
    if reason is not None:
        return None, reason
    rng = np.random.default_rng(seed)
    solution = pass_interrupt_on(placer.place(problem, Evaluator(problem, budget), rng))
    return solution.placement, "" if solution.placement is not None else "found no placement"


def _measured(
    row: ContenderRow,
    samples: list[float],
    problem: Problem,
    placement: Placement | None,
    model: LoadedModel,
) -> ContenderRow:
    low, high = np.percentile(samples, [25, 75]).tolist()
    predicted: dict[str, float] = {}
    measured: dict[str, float] = {}
    if placement is not None and isinstance(model, MeasuresMemory):
        names, devices = problem.cluster.device_names, problem.cluster.devices
        peaks = model.memory_peaks(placement_segments(problem, placement), devices)
        measured = dict(zip(names, peaks.tolist(), strict=True))
        expected = Simulator(problem).memory_peaks(placement).tolist()
        predicted = dict(zip(names, expected, strict=True))
    return ContenderRow(
        row.name,
        row.predicted,
        statistics.median(samples),
        high - low,
        "",
        predicted,
        measured,
    )
