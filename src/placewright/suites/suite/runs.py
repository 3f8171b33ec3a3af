"""Runs of the suite: one process each, stored as soon as it ends, never repeated.

A run has a budget in wall-clock seconds, as for users. Its row also has the processor seconds of
the run and the load of the machine, which show disturbances.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError, MissingExtraError, PlacewrightError
from placewright.files.results import ResultsFile
from placewright.placers.anytime import pass_interrupt_on
from placewright.session.comparison import named_placer
from placewright.simulation.evaluator import Evaluator
from placewright.suites.suite.problems import SUITE_VERSION, SuiteProblem
from placewright.suites.tarnawski import peak_memory
from placewright.workers.interface import Workers
from placewright.workers.processes import open_workers
from placewright.workers.tasks import Done, Shared, Task

FORMAT = "placewright.suite/1"
_PATIENCE = (10.0, 300.0)  # limit on a run: factor on its seconds, plus seconds


@dataclass(frozen=True)
class SuiteRow:
    """One placer on one problem with one seed; values and bounds in the problem's unit.

    Attributes:
        version: of the suite.
        problem, kind: of the problem.
        units, devices: its size.
        placer: registry name, with settings that differ from the defaults.
        seed: of its generator.
        budget: wall-clock seconds of its budget.
        status: of the solution; ``"left out"`` if the placer does not take the problem, ``"error"``
            if it failed, ``"ended"`` if the run was ended from outside.
        value: of the incumbent; NaN without one.
        bound: proven lower bound; 0 without one.
        evaluations: queries used.
        seconds: wall-clock seconds of the search.
        processor_seconds: of the search, all threads.
        peak_bytes: largest resident set of the run's process; 0 if the system does not tell.
        load: mean number of runnable threads of the machine in the last minute of the run.
        message: of the solution.
        history: (seconds, value, bound or 0) of each improvement.
    """

    version: int
    problem: str
    kind: str
    units: int
    devices: int
    placer: str
    seed: int
    budget: float
    status: str
    value: float = math.nan
    bound: float = 0.0
    evaluations: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    peak_bytes: int = 0
    load: float = 0.0
    message: str = ""
    history: list[list[float]] = field(default_factory=list)

    @property
    def identity(self) -> tuple[int, str, str, int, float]:
        """Identity of the run."""
        return self.version, self.problem, self.placer, self.seed, self.budget


Report = Callable[[SuiteRow], None]


def run_suite(
    problems: Sequence[SuiteProblem],
    placers: Sequence[str],
    seconds: float,
    results: Path,
    *,
    seeds: Sequence[int] = (0,),
    on_row: Report = lambda row: None,
    on_ahead: Callable[[int], None] = lambda number: None,
    workers: Workers | None = None,
) -> list[SuiteRow]:
    """Run all placers with all seeds on all problems; rows in the file are not repeated.

    Args:
        problems: in the order in which they are run.
        placers: ``NAME`` or ``NAME:key=value:...``.
        seconds: budget of each run, > 0.
        results: JSON file, written after every run.
        seeds: of the runs of each placer on each problem, >= 0.
        on_ahead: called with the number of new rows, before the first.
        workers: run the tasks, each in a process of its own; None is one worker here.

    Returns:
        The requested rows.

    Raises:
        UnknownNameError: a placer is not registered.
        FileFormatError: the results file is none of this benchmark.
    """
    for name in placers:
        try:
            named_placer(name, {})
        except MissingExtraError:
            continue  # its rows say so
    if not placers or not seconds > 0 or min(seeds, default=-1) < 0:
        raise InputError(
            f"bench suite needs placers, seconds > 0 and seeds >= 0, got {len(placers)}, "
            f"{seconds}, {list(seeds)}"
        )
    file = ResultsFile(results, FORMAT, SuiteRow, lambda row: row.identity)
    stored = file.rows
    keys = {
        problem.name: [
            (SUITE_VERSION, problem.name, name, seed, float(seconds))
            for seed in seeds
            for name in placers
        ]
        for problem in problems
    }
    on_ahead(sum(key not in stored for wanted in keys.values() for key in wanted))

    def keep(row: SuiteRow) -> None:
        file.add([row])
        on_row(row)

    def missing() -> Iterator[Task]:
        for problem in problems:
            yield from _tasks(
                problem, [key for key in keys[problem.name] if key not in stored], keep
            )

    with open_workers(1, apart=True) if workers is None else nullcontext(workers) as all_workers:
        for done in all_workers.run(missing()):
            keep(_row_of(done))
    return [stored[key] for problem in problems for key in keys[problem.name]]


def _tasks(
    case: SuiteProblem, missing: Sequence[tuple[int, str, str, int, float]], keep: Report
) -> Iterator[Task]:
    """Each missing run in a process of its own, so that its memory is that of the run.

    A run that takes far too long is ended. Rows of problems that a placer does not take go to
    `keep` at once.
    """
    if not missing:
        return
    problem = case.build()
    shared = Shared(problem)
    for version, _, placer, seed, seconds in missing:
        row = SuiteRow(
            version=version,
            problem=case.name,
            kind=case.kind,
            units=problem.n_units,
            devices=problem.n_devices,
            placer=placer,
            seed=seed,
            budget=seconds,
            status="ended",
        )
        reason = _reason_to_leave_out(placer, problem)
        if reason is not None:
            keep(replace(row, status="left out", message=reason))
            continue
        longest = _PATIENCE[0] * seconds + _PATIENCE[1]
        yield Task(run_one, (row,), shared, placer, longest, tries=1, may_be_lost=True, alone=True)


def _row_of(done: Done) -> SuiteRow:
    row: SuiteRow = done.task.arguments[0] if done.lost else done.result
    if not done.lost or done.is_overdue:
        return row
    # As it is when the system has no memory left.
    return replace(row, status="error", message=done.lost)


def _reason_to_leave_out(placer: str, problem: Problem) -> str | None:
    try:
        return named_placer(placer, {}).why_not(problem)
    except MissingExtraError as error:
        return str(error)


def run_one(problem: Problem, row: SuiteRow) -> SuiteRow:
    """Do the run that a row describes, in this process; return the row with its results."""
    try:
        placer = named_placer(row.placer, {})
        evaluator = Evaluator(problem, Budget(seconds=row.budget))
        began = time.process_time()
        rng = np.random.default_rng(row.seed)
        solution = pass_interrupt_on(placer.place(problem, evaluator, rng))
    except PlacewrightError as error:
        return replace(row, status="error", message=str(error))
    return replace(
        row,
        status=solution.status,
        value=solution.value if math.isfinite(solution.value) else math.nan,
        bound=solution.lower_bound if math.isfinite(solution.lower_bound) else 0.0,
        evaluations=solution.evaluations,
        seconds=round(evaluator.seconds, 3),
        processor_seconds=round(time.process_time() - began, 3),
        peak_bytes=peak_memory(),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
        message=solution.message,
        history=[
            [round(point.seconds, 4), point.value, point.lower_bound or 0.0]
            for point in solution.history
        ],
    )
