"""A paper's suite: its problems, our runs, and the figures that the paper reports.

`run_suite` runs every stage on every problem, one row each, and continues a results file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from placewright.core.problem import Problem
from placewright.files.problem_file import content_sha256
from placewright.report.learned_statistics import LearnedRun
from placewright.simulation.bounds.lower import lower_bound
from placewright.suites.learned import (
    Case,
    read_runs,
    run_learned_benchmark,
    single_value,
    write_runs,
)
from placewright.workers.interface import Workers

Certainty = Literal["stated", "recalled", "uncertain"]
CERTAINTIES: dict[Certainty, str] = {
    "stated": "read in the abstract, in a review or in a summary of the paper",
    "recalled": "recalled from the table and consistent with figures that were read",
    "uncertain": "recalled only; do not cite it",
}
BOUND = "lower bound"  # name of the placer in the row with a problem's bound
BOUND_SECONDS = 20.0
Report = Callable[[float, str], None]


@dataclass(frozen=True)
class Published:
    """One figure of a paper.

    Attributes:
        problem: name of our case for the paper's problem.
        method: name in the paper.
        seconds: as reported.
        certainty: source of the figure, see `CERTAINTIES`.
    """

    problem: str
    method: str
    seconds: float
    certainty: Certainty


@dataclass(frozen=True)
class Stage:
    """Runs with one budget.

    Attributes:
        title: heading of these runs.
        placers: ``NAME:key=value`` -> its counterpart in the paper.
        evaluations: of every run.
        seeds: runs of each at most; methods without chance need one.
    """

    title: str
    placers: dict[str, str]
    evaluations: int
    seeds: int = 5


@dataclass(frozen=True)
class PaperSuite:
    """A paper's experiment as far as it can be run here.

    Attributes:
        name: ``hsdag``, ``post`` or ``placeto``.
        title: of the paper.
        rules: its experiment, sentence by sentence.
        cases: its problems.
        baseline: method of `published` that other figures are divided by.
        stages: our runs on every case.
        published: its figures.
        claims: figures that belong to no cell, each with its source.
        missing: differences that remain, sentence by sentence.
    """

    name: str
    title: str
    rules: Sequence[str]
    cases: Sequence[Case]
    baseline: str
    stages: Sequence[Stage]
    published: Sequence[Published]
    claims: Sequence[str]
    missing: Sequence[str]


def run_suite(
    suite: PaperSuite,
    results: Path,
    *,
    seeds: int,
    workers: Workers | None = None,
    progress: Report | None = None,
) -> list[LearnedRun]:
    """Run all stages of a suite on all its problems; rows in the file are not repeated.

    Args:
        suite: of the paper.
        results: the results file, written after every run.
        seeds: largest number of runs of one placer; a stage may ask for fewer.
        workers: run the tasks; None is this process.
        progress: called with the fraction done and the run that has ended.

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
    stored = read_runs(results)
    for row in stored:
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
    write_runs(results, [*stored, row])
    return row


def _held(problem: Problem) -> Callable[[], Problem]:
    return lambda: problem


def _part(progress: Report | None, number: int, count: int) -> Report | None:
    if progress is None:
        return None
    return lambda fraction, text: progress((number + fraction) / count, text)
