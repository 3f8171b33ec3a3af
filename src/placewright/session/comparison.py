"""Several placers on one problem: same evaluator, same budget, several seeds, results on disk."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FileFormatError, InputError
from placewright.files.problem_file import content_sha256
from placewright.io.json_text import finite, read_json_object
from placewright.io.written import write_text
from placewright.placers.anytime import pass_interrupt_on
from placewright.placers.registry import (
    REGISTRY,
    is_path,
    make_placer,
    reason_against,
    resolved_settings,
    tell_of_mended,
)
from placewright.report.comparison_table import FORMAT, ComparisonTable, Run
from placewright.simulation.evaluator import Evaluator
from placewright.workers.interface import ThisProcess, Workers
from placewright.workers.tasks import Done, Shared, Task


class ComparisonFile:
    """The runs on one problem with one budget.

    Args:
        path: JSON file, read now where it exists; None keeps the runs in memory only.
        problem: to place.
        budget: of every run.

    Attributes:
        runs: (placer, seed) -> run.

    Raises:
        FileFormatError: the file is damaged or of another format.
        InputError: it belongs to another problem or budget.
    """

    def __init__(self, path: str | Path | None, problem: Problem, budget: Budget) -> None:
        self.runs: dict[tuple[str, int], Run] = {}
        self._path = None if path is None else Path(path)
        self._unit = problem.time_unit
        self._key = {
            "problem": content_sha256(problem),
            "evaluations": budget.evaluations,
            "budget_seconds": budget.seconds,
            "budget_core_seconds": budget.core_seconds,
        }
        if self._path is not None and self._path.exists():
            document = _read(self._path)
            if {name: document.get(name) for name in self._key} != self._key:
                raise InputError(
                    f"'{path}' holds results of another problem or budget; give another file"
                )
            self.runs = {(run.placer, run.seed): run for run in _runs(self._path, document)}

    def add(self, run: Run) -> None:
        """Add a run and write all runs."""
        self.runs[run.placer, run.seed] = run
        if self._path is not None:
            table = table_of_runs(self._unit, list(self.runs.values()))
            write_text(self._path, _text({**self._key, **table.data()}))


def table_of_runs(unit: str, runs: Sequence[Run]) -> ComparisonTable:
    """The table of some runs on one problem."""
    return ComparisonTable(
        unit,
        tuple(runs),
        min(run.value for run in runs),
        settings_by_placer(run.placer for run in runs),
    )


def settings_by_placer(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """All hyperparameters of placers that are given as ``NAME:key=value:...``, by that text."""
    return {name: resolved_settings(named_placer(name, {})) for name in dict.fromkeys(names)}


def _read(path: Path) -> dict[str, Any]:
    document = read_json_object(path)
    if document.get("format") != FORMAT:
        raise FileFormatError(
            f"results '{path}' have format {document.get('format')!r}, expected '{FORMAT}'"
        )
    return document


def _runs(path: Path, document: Mapping[str, Any]) -> list[Run]:
    try:
        return [_run_from(entry) for entry in document["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"results '{path}' are damaged: {error}") from error


def _run_from(entry: Mapping[str, Any]) -> Run:
    value = math.inf if entry["value"] is None else float(entry["value"])
    history = tuple((int(n), float(v)) for n, v in entry["history"])
    return Run(**{**entry, "value": value, "history": history})


def _text(document: Mapping[str, Any]) -> str:
    """JSON with one row and one run per line."""
    lines = []
    for name, value in document.items():
        if isinstance(value, list) and value:
            entries = ",\n  ".join(json.dumps(finite(entry)) for entry in value)
            lines.append(f" {json.dumps(name)}: [\n  {entries}\n ]")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(finite(value))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


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
        problem: to place.
        placers: registry names; ``name:key=value:...`` sets hyperparameters of that one.
        seeds: runs per placer.
        budget: of every single run; all queries count, intermediate ones too.
        measure: seconds of a placement on hardware; None simulates.
        progress: is called with the fraction done and what is running.
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
    shown = _ComparisonProgress(progress, len(wanted))
    shared = Shared(problem)

    def missing() -> Iterator[Task]:
        for name, seed in wanted:
            shown.begins(name, seed)
            if (name, seed) not in store.runs:
                yield Task(_run, (name, seed, budget, measure), shared, f"{name}, seed {seed}")

    for done in (workers or ThisProcess()).run(missing()):
        store.add(done.result)
        shown.ended(done)
    runs = tuple(store.runs[key] for key in wanted)
    best = min(run.value for run in store.runs.values())
    return ComparisonTable(
        problem.time_unit, runs, best, settings_by_placer(run.placer for run in runs)
    )


class _ComparisonProgress:
    """Reports the progress of a comparison."""

    def __init__(self, progress: Report | None, count: int) -> None:
        self._progress, self._count, self._begun = progress, count, 0

    def begins(self, name: str, seed: int) -> None:
        """A run was given to a worker, or is stored."""
        if self._progress is not None:
            self._progress(self._begun / self._count, f"{name}, seed {seed}")
        self._begun += 1

    def ended(self, done: Done) -> None:
        """A run has ended; the report names the worker if it is another process."""
        if self._progress is not None and done.worker:
            what = f"{done.task.label}, by worker {done.worker}"
            self._progress((self._begun - 1) / self._count, what)


def made_placers(names: Sequence[str], seeds: int) -> dict[str, Any]:
    """Make the placers of `compare` by name, before any long work.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: no placer or seed is asked for, or a setting is wrong.
        MissingExtraError: a package that a placer needs is not installed.
    """
    if not names or seeds < 1:
        raise InputError(f"compare needs placers and seeds >= 1, got {list(names)} and {seeds}")
    placers = {name: named_placer(name, {}) for name in names}
    for placer in placers.values():
        tell_of_mended(placer.name)
    return placers


def named_placer(name: str, settings: Mapping[str, str]) -> Any:
    """Make the placer of ``NAME:key=value:...``, with further settings as text."""
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
