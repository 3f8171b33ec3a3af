"""Several placers on one problem: same evaluator, same budget, median and range over seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError
from placewright.placers.anytime import pass_interrupt_on
from placewright.placers.outside import is_path
from placewright.placers.registry import REGISTRY, make_placer, reason_against
from placewright.report.comparison_table import ComparisonTable, Run
from placewright.session.comparison_file import ComparisonFile
from placewright.simulation.evaluator import Evaluator
from placewright.workers.here import ThisProcess
from placewright.workers.interface import Workers
from placewright.workers.tasks import Done, Shared, Task

Report = Callable[[float, str], None]


def compare(
    problem: Problem,
    placers: Sequence[str],
    seeds: int,
    budget: Budget,
    *,
    measure: Callable[[Placement], float] | None = None,
    progress: Report | None = None,
    results_path: str | Path | None = None,
    workers: Workers | None = None,
) -> ComparisonTable:
    """Run every placer with seeds 0 .. seeds - 1 under one evaluator and one budget.

    Args:
        problem: what is placed.
        placers: registry names; ``name:key=value:...`` sets hyperparameters of that one.
        seeds: runs per placer.
        budget: of every single run; all queries count, intermediate ones too.
        measure: seconds of a placement on hardware; None simulates.
        progress: told the fraction done and what is running.
        results_path: results are kept here after every run, and runs found here are not repeated.
        workers: that do the runs, which simulate; None is this process.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: no placer or seed is asked for, a placer does not support the problem, or the
            results file belongs to another problem or budget.
    """
    for name, placer in made_placers(placers, seeds).items():
        reason = reason_against(placer, problem)
        if reason is not None:
            raise InputError(f"placer '{name}' cannot place this problem: {reason}")
    store = ComparisonFile(results_path, problem, budget)
    wanted = [(name, seed) for name in dict.fromkeys(placers) for seed in range(seeds)]
    told = _Told(progress, len(wanted))
    shared = Shared(problem)

    def missing() -> Iterator[Task]:
        for name, seed in wanted:
            told.begins(name, seed)
            if (name, seed) not in store.runs:
                yield Task(_run, (name, seed, budget, measure), shared, f"{name}, seed {seed}")

    for done in (workers or ThisProcess()).run(missing()):
        store.add(done.result)
        told.ended(done)
    runs = tuple(store.runs[key] for key in wanted)
    best = min(run.value for run in store.runs.values())
    return ComparisonTable(problem.time_unit, runs, best)


class _Told:
    """Who runs, for whoever follows a comparison."""

    def __init__(self, progress: Report | None, count: int) -> None:
        self._progress, self._count, self._begun = progress, count, 0

    def begins(self, name: str, seed: int) -> None:
        """A run is given to a worker, or was found."""
        if self._progress is not None:
            self._progress(self._begun / self._count, f"{name}, seed {seed}")
        self._begun += 1

    def ended(self, done: Done) -> None:
        """A run has ended; which worker did it is told where it was another process."""
        if self._progress is not None and done.worker:
            what = f"{done.task.label}, by worker {done.worker}"
            self._progress((self._begun - 1) / self._count, what)


def made_placers(names: Sequence[str], seeds: int) -> dict[str, Any]:
    """Placers by the names of `compare`; a wrong one is found before any long work.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: no placer or seed is asked for, or a setting is wrong.
        MissingExtraError: a package that a placer needs is not installed.
    """
    if not names or seeds < 1:
        raise InputError(f"compare needs placers and seeds >= 1, got {list(names)} and {seeds}")
    return {name: named_placer(name, {}) for name in names}


def named_placer(name: str, settings: Mapping[str, str]) -> Any:
    """The placer behind ``NAME:key=value:...``, with further settings as text."""
    base, *pairs = name.split(":")
    if base not in REGISTRY and pairs and is_path(f"{base}:{pairs[0]}"):  # package.module:Class
        base = f"{base}:{pairs.pop(0)}"
    values = dict(settings)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"placer '{name}': expected NAME:key=value, got '{pair}'")
        values[key] = value
    return make_placer(base, values)


def _run(
    problem: Problem,
    name: str,
    seed: int,
    budget: Budget,
    measure: Callable[[Placement], float] | None,
) -> Run:
    placer, evaluator = named_placer(name, {}), Evaluator(problem, budget, measure=measure)
    start = time.process_time()
    solution = pass_interrupt_on(placer.place(problem, evaluator, np.random.default_rng(seed)))
    return Run(
        placer=name,
        seed=seed,
        value=solution.value,
        evaluations=solution.evaluations,
        seconds=time.process_time() - start,
        history=tuple((point.evaluations, point.value) for point in solution.history),
        message=solution.message,
    )
