"""Verdicts of quick and checked plans of foreign models, beside measured times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.foreign.process import in_a_process
from benchmarks.foreign.wheels import WheelModel, located
from placewright.core.plan import EVEN_SPLIT, PLAN, Plan
from placewright.errors import PlacewrightError
from placewright.execution.comparing import compare_outputs
from placewright.execution.placements import call_runner, taking_turns, whole_call_runner
from placewright.execution.runtime import LoadedModel
from placewright.files.results import ResultsFile
from placewright.frameworks.runtimes import default_runtime_name
from placewright.io.content import one_line
from placewright.profiling.hardware import measure_interleaved
from placewright.profiling.verdict import median_interval
from placewright.session.running import limited
from placewright.session.session import Session
from placewright.simulation.model import Simulator

FORMAT = "placewright.foreign-wheels/1"
QUICK, FULL = "quick", "full"
_NONE = float("nan")


@dataclass(frozen=True)
class Protocol:
    """Parameters of placing and measuring.

    Attributes:
        devices: of a request.
        budget: seconds of each search.
        total: limit of a checked plan in seconds; None is no limit.
        rounds: of the measurement in turns.
        measuring_seconds: limit of all rounds.
    """

    devices: str = "cores"
    budget: float = 3.0
    total: float | None = 60.0
    rounds: int = 31
    measuring_seconds: float = 15.0


@dataclass(frozen=True)
class WheelRow:
    """One model under one runtime.

    Attributes:
        model: package and file.
        version: of the installed package.
        runtime: name.
        outcome: ``measured``, ``skipped`` (not installed), ``refused`` (by us, in one line) or
            ``failed`` (a foreign exception, a crash, or a timeout).
        reason: why it was not measured, or which step was not done.
        ops, units: of the graph.
        equal: outputs of the quick plan's split, recommended or only searched, equal those of the
            unsplit model.
        error, tolerance: of that comparison.
        single: the best measured single device.
        single_seconds: its median.
        quick_devices, full_devices: number of devices that the plan uses; 0 without a plan.
        quick_place_seconds, full_place_seconds: duration of `place`.
        quick_predicted, full_predicted: seconds of the plan.
        quick_gain: predicted seconds of the best single device over those of the quick plan.
        quick_ratio, quick_low, quick_high: measured seconds of the quick plan over those of the
            best single device, in the same round: median and its 95 % interval; null if the plan
            uses one device.
        full_recommendation: of the checked plan.
        full_ratio, full_low, full_high: the same for the checked plan.
        seconds: of the whole row.
    """

    model: str
    version: str
    runtime: str
    outcome: str = "failed"
    reason: str = ""
    ops: int = 0
    units: int = 0
    equal: bool | None = None
    error: float = _NONE
    tolerance: float = _NONE
    single: str = ""
    single_seconds: float = _NONE
    quick_devices: int = 0
    quick_place_seconds: float = _NONE
    quick_predicted: float = _NONE
    quick_gain: float = _NONE
    quick_ratio: float = _NONE
    quick_low: float = _NONE
    quick_high: float = _NONE
    full_devices: int = 0
    full_place_seconds: float = _NONE
    full_predicted: float = _NONE
    full_recommendation: str = ""
    full_ratio: float = _NONE
    full_low: float = _NONE
    full_high: float = _NONE
    seconds: float = 0.0

    @property
    def quick_splits(self) -> bool:
        """Whether the quick plan has the verdict *split*."""
        return self.quick_devices > 1

    @property
    def full_splits(self) -> bool:
        """Whether the checked plan recommends a split."""
        return self.full_devices > 1 and self.full_recommendation in (PLAN, EVEN_SPLIT)


def run_verdicts(
    models: Sequence[WheelModel],
    runtimes: Sequence[str],
    protocol: Protocol,
    *,
    folders: Sequence[Path] = (),
    seconds: float = 300.0,
    results_path: Path | None = None,
    on_row: Callable[[WheelRow], None] = lambda row: None,
) -> list[WheelRow]:
    """Run every model in every runtime; rows of the file are not repeated, except skipped ones.

    Args:
        models: of the list.
        runtimes: names; without, the runtime of each model.
        protocol: parameters of placing and measuring.
        folders: of installed packages, searched before Python's own.
        seconds: limit of a row.
        results_path: file of the rows.
        on_row: called with each new row.

    Raises:
        InputError: the file cannot be read or written.
    """
    kept = ResultsFile(results_path, FORMAT, WheelRow, lambda row: (row.model, row.runtime))
    found = []
    for model in models:
        for runtime in runtimes or [model.runtime or default_runtime_name()]:
            row = kept.rows.get((model.name, runtime))
            if row is None or row.outcome == "skipped":
                row = _guarded_row(model, runtime, protocol, folders, seconds)
                kept.add([row])
                on_row(row)
            found.append(row)
    return found


def _guarded_row(
    model: WheelModel, runtime: str, protocol: Protocol, folders: Sequence[Path], seconds: float
) -> WheelRow:
    """The last state of a row before its process ended."""
    place = located(model, folders)
    row = WheelRow(model.name, place.version, runtime)
    if place.path is None:
        return replace(row, outcome="skipped", reason=place.reason)
    rows, reason = in_a_process(wheel_rows, (row, place.path, model, protocol), seconds)
    last = rows[-1] if rows else row
    return replace(last, outcome="failed", reason=reason) if reason else last


def wheel_rows(
    row: WheelRow, path: Path, model: WheelModel, protocol: Protocol
) -> Iterator[WheelRow]:
    """Yield the row after each finished step, in this process."""
    began = time.monotonic()
    row = replace(row, outcome="measured")  # unless a step below cannot be done
    steps = (_placed_quickly, _compared, _placed_fully, _measured)
    work = _Work(path, model, row.runtime, protocol)
    for step in steps:
        try:
            row = step(row, work)
        except PlacewrightError as error:
            row = _stopped(row, "refused", step, error, path)
        except Exception as error:  # the faults that this suite is there to find
            row = _stopped(row, "failed", step, error, path)
        row = replace(row, seconds=round(time.monotonic() - began, 1))
        yield row
        if QUICK not in work.plans:
            return


def _stopped(
    row: WheelRow, outcome: str, step: Callable[..., Any], error: Exception, path: Path
) -> WheelRow:
    name = step.__name__.strip("_").replace("_", " ")
    kind = "" if outcome == "refused" else f"{type(error).__name__}: "
    line = one_line(error).replace(f"{path.parent}/", "")
    before = f"{row.reason}; " if row.reason else ""
    return replace(row, outcome=outcome, reason=f"{before}{name}: {kind}{line}")


class _Work:
    """State of a model during the steps of a row."""

    def __init__(self, path: Path, model: WheelModel, runtime: str, protocol: Protocol) -> None:
        self.protocol = protocol
        self.plans: dict[str, Plan] = {}
        self.loaded: LoadedModel | None = None
        self._path, self._model, self._runtime = path, model, runtime

    def session(self, *, quick: bool) -> Session:
        return Session(
            str(self._path),
            runtime=self._runtime,
            devices=self.protocol.devices,
            budget=self.protocol.budget,
            total=None if quick else self.protocol.total,
            quick=quick,
            shapes=self._model.shapes,
            values=self._model.values,
        )


def _placed_quickly(row: WheelRow, work: _Work) -> WheelRow:
    session = work.session(quick=True)
    began = time.monotonic()
    plan = session.place()
    took = time.monotonic() - began
    work.loaded = session.loaded
    work.plans[QUICK] = plan
    problem = plan.problem
    each = np.repeat(np.arange(problem.n_devices)[:, None], problem.n_units, axis=1)
    alone = float(np.min(Simulator(problem).values(each)))
    return replace(
        row,
        ops=problem.graph.n_ops,
        units=problem.n_units,
        quick_devices=_used(plan),
        quick_place_seconds=round(took, 1),
        quick_predicted=plan.value,
        quick_gain=alone / plan.value,
    )


def _compared(row: WheelRow, work: _Work) -> WheelRow:
    """Compare the outputs of the searched split, even if the plan recommends one device."""
    plan = work.plans[QUICK]
    assert work.loaded is not None
    placement = plan.placement if plan.searched is None else plan.searched.placement
    found = compare_outputs(plan.problem, placement, work.loaded)
    row = replace(row, equal=found.equal, error=found.error, tolerance=found.tolerance)
    return row if found.equal else replace(row, reason=f"outputs differ: {found.text}")


def _placed_fully(row: WheelRow, work: _Work) -> WheelRow:
    session = work.session(quick=False)
    began = time.monotonic()
    plan = session.place()
    took = time.monotonic() - began
    work.plans[FULL] = plan
    return replace(
        row,
        full_devices=_used(plan),
        full_place_seconds=round(took, 1),
        full_predicted=plan.value,
        full_recommendation="" if plan.measured is None else plan.measured.recommendation,
    )


def _measured(row: WheelRow, work: _Work) -> WheelRow:
    """Measure all single devices and the plans that split in the same rounds."""
    model = work.loaded
    assert model is not None
    some = next(iter(work.plans.values()))
    devices = some.problem.cluster.devices
    split = {name: plan for name, plan in work.plans.items() if _used(plan) > 1}
    with ExitStack() as stack:
        stack.enter_context(limited(some))
        with taking_turns(model):
            runners = {
                name: call_runner(plan.problem, plan.placement, model)
                for name, plan in split.items()
            }
            for runner in runners.values():
                stack.callback(runner.close)
            for device in devices:
                runners[device.name] = stack.enter_context(whole_call_runner(model, device))
        samples = measure_interleaved(
            runners,
            model.random_inputs(np.random.default_rng(0)),
            rounds=work.protocol.rounds,
            seconds=work.protocol.measuring_seconds,
        )
    best = min((device.name for device in devices), key=lambda n: statistics.median(samples[n]))
    row = replace(row, single=best, single_seconds=statistics.median(samples[best]))
    for name in split:
        middle, low, high = median_interval(np.asarray(samples[name]) / np.asarray(samples[best]))
        found = {f"{name}_ratio": middle, f"{name}_low": low, f"{name}_high": high}
        row = replace(row, **found)  # type: ignore[arg-type]
    return row


def _used(plan: Plan) -> int:
    return len(np.unique(plan.placement.device_of))
