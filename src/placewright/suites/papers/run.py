"""Runs of a paper's suite: every stage on every problem, one row each, resumable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from placewright.core.problem import Problem
from placewright.files.problem_file import content_sha256
from placewright.report.learned.runs import LearnedRun
from placewright.simulation.bounds import lower_bound
from placewright.suites.learned import Case
from placewright.suites.learned_runs import (
    read_runs,
    run_learned_benchmark,
    write_runs,
)
from placewright.suites.papers.suite import PaperSuite
from placewright.workers.interface import Workers

BOUND = "lower bound"  # stands for a placer in the row that holds a problem's bound
BOUND_SECONDS = 20.0

Report = Callable[[float, str], None]


def run_suite(
    suite: PaperSuite,
    results: Path,
    *,
    seeds: int,
    workers: Workers | None = None,
    progress: Report | None = None,
) -> list[LearnedRun]:
    """All stages of a suite on all its problems; rows that the file holds are not made again.

    Args:
        suite: what is run.
        results: the results file, written after every run.
        seeds: largest number of runs of one placer; a stage may ask for fewer.
        workers: that do the runs; None is this process.
        progress: told the fraction done and what has ended.

    Returns:
        The rows of this suite.
    """
    rows: list[LearnedRun] = []
    for number, case in enumerate(suite.cases):
        problem = case.build()
        rows.append(bound_row(case.name, problem, results))
        for stage in suite.stages:
            rows += run_learned_benchmark(
                [Case(case.name, _held(problem))],
                list(stage.placers),
                stage.evaluations,
                min(seeds, stage.seeds),
                results,
                workers=workers,
                progress=_part(progress, number, len(suite.cases)),
            )
    return rows


def bound_row(name: str, problem: Problem, results: Path) -> LearnedRun:
    """The problem's lower bound as a row, from the file or new."""
    key = content_sha256(problem)
    kept = read_runs(results)
    for row in kept:
        if (row.key, row.placer) == (key, BOUND):
            return row
    bound = lower_bound(problem, BOUND_SECONDS)
    row = LearnedRun(
        problem=name,
        key=key,
        evaluations=0,
        placer=BOUND,
        seed=0,
        value=bound.value,
        single=single_value(problem),
        seconds=round(bound.seconds, 3),
        samples=0,
        parts=[],
        history=[],
    )
    write_runs(results, [*kept, row])
    return row


def single_value(problem: Problem) -> float:
    """Of the fastest homogeneous placement."""
    from placewright.placers.baselines.homogeneous import homogeneous_placements
    from placewright.simulation.evaluator import Evaluator

    return float(Evaluator(problem).evaluate_many(homogeneous_placements(problem)).min())


def _held(problem: Problem) -> Callable[[], Problem]:
    return lambda: problem


def _part(progress: Report | None, number: int, count: int) -> Report | None:
    if progress is None:
        return None
    return lambda fraction, text: progress((number + fraction) / count, text)
