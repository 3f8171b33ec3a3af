"""Several placers on one problem: same evaluator, same budget, median and range over seeds."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import FileFormatError, InputError
from placewright.files.problem_file import problem_text, text_sha256
from placewright.files.text import write_text
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator

FORMAT = "placewright.comparison/1"
NEAR = 1.02  # "within 2 % of the best known"

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class Run:
    """One placer, one seed.

    Attributes:
        placer: registry name, with its settings where any differ from the defaults.
        seed: of its generator.
        value: of the incumbent, inf without one.
        evaluations: queries used.
        seconds: processor seconds used.
        history: (evaluations, value) of each improvement.
        message: why there is no placement.
    """

    placer: str
    seed: int
    value: float
    evaluations: int
    seconds: float
    history: tuple[tuple[int, float], ...] = ()
    message: str = ""

    def evaluations_to(self, target: float) -> float:
        """Queries until the incumbent was at most `target`; inf where it never was."""
        return next((float(n) for n, value in self.history if value <= target), math.inf)


@dataclass(frozen=True)
class Row:
    """One placer over all seeds; values in the problem's time unit."""

    placer: str
    median: float
    low: float
    high: float
    gap_to_best: float
    evaluations_to_near: float
    runs_near: int
    runs: int
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class ComparisonTable:
    """All runs on one problem, and what a table shows of them.

    Attributes:
        unit: time unit of values.
        runs: in the order of placers, then seeds.
        best_known: smallest value of any run (or a smaller one known from elsewhere).
    """

    unit: str
    runs: tuple[Run, ...]
    best_known: float
    columns: tuple[str, ...] = field(
        default=("placer", "median", "range", "above best", "evaluations to 2 %", "core s"),
        init=False,
    )

    @property
    def rows(self) -> tuple[Row, ...]:
        """One row per placer, fastest median first."""
        names = list(dict.fromkeys(run.placer for run in self.runs))
        rows = [self._row([run for run in self.runs if run.placer == name]) for name in names]
        return tuple(sorted(rows, key=lambda row: (row.median, row.placer)))

    def text_rows(self) -> list[list[str]]:
        """The rows as text, one column per entry of `columns`."""
        return [
            [
                row.placer,
                self._text(row.median),
                f"{self._text(row.low)} .. {self._text(row.high)}",
                f"{row.gap_to_best:.1%}" if math.isfinite(row.gap_to_best) else "-",
                f"{row.evaluations_to_near:.0f} ({row.runs_near}/{row.runs})"
                if row.runs_near
                else f"- (0/{row.runs})",
                f"{row.seconds:.1f}",
            ]
            for row in self.rows
        ]

    def data(self) -> dict[str, Any]:
        """A JSON document: rows and all runs."""
        return {
            "format": FORMAT,
            "unit": self.unit,
            "best_known": self.best_known,
            "rows": [asdict(row) for row in self.rows],
            "runs": [asdict(run) for run in self.runs],
        }

    def _row(self, runs: list[Run]) -> Row:
        values = [run.value for run in runs]
        reached = [run.evaluations_to(NEAR * self.best_known) for run in runs]
        near = [count for count in reached if math.isfinite(count)]
        median = statistics.median(values)
        gap = median / self.best_known - 1.0 if math.isfinite(self.best_known) else math.inf
        return Row(
            placer=runs[0].placer,
            median=median,
            low=min(values),
            high=max(values),
            gap_to_best=gap,
            evaluations_to_near=statistics.median(near) if near else math.inf,
            runs_near=len(near),
            runs=len(runs),
            seconds=statistics.median(run.seconds for run in runs),
            message=next((run.message for run in runs if run.message), ""),
        )

    def _text(self, value: float) -> str:
        if not math.isfinite(value):
            return "-"
        return f"{value * 1e3:.4g} ms" if self.unit == "s" else f"{value:.5g} {self.unit}"


def compare(
    problem: Problem,
    placers: Sequence[str],
    seeds: int,
    budget: Budget,
    *,
    measure: Callable[[Placement], float] | None = None,
    evaluator_factory: Callable[[], Evaluator] | None = None,
    settings: Mapping[str, Mapping[str, str]] | None = None,
    progress: Report | None = None,
    results_path: str | Path | None = None,
) -> ComparisonTable:
    """Run every placer with seeds 0 .. seeds - 1 under one evaluator and one budget.

    Args:
        problem: what is placed.
        placers: registry names; ``name:key=value:...`` sets hyperparameters of that one.
        seeds: runs per placer.
        budget: of every single run; all queries count, intermediate ones too.
        measure: seconds of a placement on hardware; None simulates.
        evaluator_factory: makes the evaluator of one run; by default from `budget` and `measure`.
        settings: hyperparameters by name, besides those in the name.
        progress: told the fraction done and what is running.
        results_path: results are kept here after every run, and runs found here are not repeated.

    Raises:
        UnknownNameError: there is no such placer.
        InputError: no placer or seed is asked for, a placer does not support the problem, or the
            results file belongs to another problem or budget.
    """
    if not placers or seeds < 1:
        raise InputError(f"compare needs placers and seeds >= 1, got {list(placers)} and {seeds}")
    made = {name: _placer(name, (settings or {}).get(name, {})) for name in placers}
    for name, placer in made.items():
        reason = placer.supports(problem)
        if reason:
            raise InputError(f"placer '{name}' cannot place this problem: {reason}")
    store = _Results(results_path, problem, budget)
    wanted = [(name, seed) for name in made for seed in range(seeds)]
    for index, (name, seed) in enumerate(wanted):
        if progress is not None:
            progress(index / len(wanted), f"{name}, seed {seed}")
        if (name, seed) not in store.runs:
            evaluator = (
                evaluator_factory()
                if evaluator_factory is not None
                else Evaluator(problem, budget, measure=measure)
            )
            store.add(_run(made[name], name, seed, problem, evaluator))
    runs = tuple(store.runs[key] for key in wanted)
    values = [run.value for run in store.runs.values()]
    return ComparisonTable(problem.time_unit, runs, min(values))


def _placer(name: str, settings: Mapping[str, str]) -> Any:
    base, *pairs = name.split(":")
    values = dict(settings)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"placer '{name}': expected NAME:key=value, got '{pair}'")
        values[key] = value
    return make_placer(base, values)


def _run(placer: Any, name: str, seed: int, problem: Problem, evaluator: Evaluator) -> Run:
    start = time.process_time()
    solution = placer.place(problem, evaluator, np.random.default_rng(seed))
    return Run(
        placer=name,
        seed=seed,
        value=solution.value,
        evaluations=solution.evaluations,
        seconds=time.process_time() - start,
        history=tuple((point.evaluations, point.value) for point in solution.history),
        message=solution.message,
    )


class _Results:
    """Runs on disk: written after each one, read again to resume."""

    def __init__(self, path: str | Path | None, problem: Problem, budget: Budget) -> None:
        self.path = None if path is None else Path(path)
        self.runs: dict[tuple[str, int], Run] = {}
        self._unit = problem.time_unit
        self._key = {
            "problem": text_sha256(problem_text(problem)),
            "evaluations": budget.evaluations,
            "budget_seconds": budget.seconds,
        }
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def add(self, run: Run) -> None:
        """Keep one run and write all."""
        self.runs[run.placer, run.seed] = run
        if self.path is not None:
            best = min(run.value for run in self.runs.values())
            table = ComparisonTable(self._unit, tuple(self.runs.values()), best)
            text = json.dumps(_without_inf({**self._key, **table.data()}), indent=1)
            write_text(self.path, text + "\n")

    def _read(self, path: Path) -> None:
        try:
            document = json.loads(path.read_text())
            if document["format"] != FORMAT:
                raise KeyError("format")
            found = {name: document[name] for name in self._key}
            runs = [_run_from(entry) for entry in document["runs"]]
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"'{path}' is no comparison that can be resumed") from error
        if found != self._key:
            raise InputError(
                f"'{path}' holds results of another problem or budget; give another file"
            )
        self.runs = {(run.placer, run.seed): run for run in runs}


def _run_from(entry: Mapping[str, Any]) -> Run:
    value = math.inf if entry["value"] is None else float(entry["value"])
    history = tuple((int(n), float(v)) for n, v in entry["history"])
    return Run(**{**entry, "value": value, "history": history})


def _without_inf(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_inf(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_inf(item) for item in value]
    return value
