"""Compare the answers of `auto` with workers and in one process on the problems of `bench auto`.

Both have the same budget and seed. Rows are stored at once; runs in the file are not repeated.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import run
from placewright.cli.output import print_line, print_note
from placewright.cli.overwriting import Writes
from placewright.core.solution import Budget
from placewright.files.results import ResultsFile
from placewright.placers.portfolio.auto import Auto
from placewright.session.hosts import SpreadAuto
from placewright.session.parsing import parse_names
from placewright.session.search import search
from placewright.suites.suite.runs import OF_AUTO, chosen_problems, suite_problems
from placewright.workers.processes import open_workers

FORMAT = "placewright.auto-with-workers/1"


@dataclass(frozen=True)
class WorkersRow:
    """One run of `auto`.

    Attributes:
        problem: name.
        workers: number of workers; 0 is one process.
        evaluations: limit of the budget, 0 without.
        seconds: limit of the budget, 0 without.
        seed: of the run.
        status, value, bound: of the answer; NaN and 0 without an answer.
        asked: used evaluations.
        took: used seconds.
    """

    problem: str
    workers: int
    evaluations: int
    seconds: float
    seed: int
    status: str
    value: float
    bound: float
    asked: int
    took: float


def identity(row: WorkersRow) -> tuple[object, ...]:
    """Problem, workers, budget and seed."""
    return (row.problem, row.workers, row.evaluations, row.seconds, row.seed)


def main(
    workers: Annotated[int, typer.Option(help="Processes of the runs with workers.")] = 2,
    evaluations: Annotated[int, typer.Option(help="Of each run; 0 is no limit.")] = 2000,
    seconds: Annotated[float, typer.Option(help="Of each run; 0 is no limit.")] = 0.0,
    problems: Annotated[str, typer.Option(help="Names or parts of names; empty for all.")] = "",
    seed: Annotated[int, typer.Option(help="Of each run.")] = 0,
    results: Annotated[Path, typer.Option(help="Results file."), Writes()] = Path(
        "auto-with-workers.json"
    ),
) -> None:
    """Compare the values of `auto` with and without workers on each problem; resumable."""
    names = parse_names(problems) if problems else OF_AUTO
    budget = Budget(seconds or None, evaluations or None)
    kept = ResultsFile(results, FORMAT, WorkersRow, identity)
    ratios = []
    for case in chosen_problems(suite_problems(), names):
        values = []
        for count in (0, workers):
            key = (case.name, count, evaluations, seconds, seed)
            if key not in kept.rows:
                problem = case.build()
                if count == 0:
                    found = search(problem, Auto(), budget, seed=seed)
                else:
                    with open_workers(count, apart=True) as hands:
                        found = search(problem, SpreadAuto(Auto(), hands), budget, seed=seed)
                value = found.value if math.isfinite(found.value) else math.nan
                told = (found.status, value, found.lower_bound, found.evaluations, found.seconds)
                kept.add([WorkersRow(*key, *told)])
                print_note(f"{case.name}, {count} workers: {found.status} {found.value:.6g}")
            values.append(kept.rows[key].value)
        ratios.append(values[1] / values[0])
        print_line(f"{case.name}: with {workers} workers over without: {ratios[-1]:.4f}")
    print_line(f"median {statistics.median(ratios):.4f}, largest {max(ratios):.4f}")


if __name__ == "__main__":
    run(main)
