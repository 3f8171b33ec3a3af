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
from placewright.report.learned_statistics import LearnedRun, controls_of
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
CONTROLS = (
    "its first policy, updates off",
    "uniform over its groups",
    "cooling, which reads no feedback",
    "uniform over the groups of Post",
)
BOUND = "lower bound"  # name of the placer in the row with a problem's bound
BOUND_SECONDS = 20.0
Report = Callable[[float, str], None]


@dataclass(frozen=True)
class Published:
    """One figure of a paper."""

    problem: str  # name of our case for the paper's problem
    method: str  # name in the paper
    seconds: float  # as reported
    certainty: Certainty  # source of the figure, see `CERTAINTIES`


@dataclass(frozen=True)
class Stage:
    """Runs with one budget."""

    title: str  # heading of these runs
    placers: dict[str, str]  # ``NAME:key=value`` -> its counterpart in the paper
    evaluations: int  # of every run
    seeds: int = 5  # runs of each at most; methods without chance need one
    cases: Sequence[str] = ()  # names of the problems that it runs on; empty is all


def equal_budgets(learner: str, others: dict[str, str], evaluations: int, seeds: int) -> Stage:
    """A learner with its four controls and other methods, all with the same evaluations."""
    controls = dict(zip(controls_of(learner), CONTROLS, strict=True))
    placers = {learner: "", **others, **controls, "local-search": "no learning"}
    return Stage("Equal budgets, all with our defaults", placers, evaluations, seeds)


@dataclass(frozen=True)
class Headline:
    """The figure that a paper is known for, and what we compare it with.

    A figure compares a method with the best of some others: their least seconds, `t`, and those of
    the method, `s`. It is the share of time saved, 100 (1 - s / t) per cent.
    """

    figure: str  # the metric in words, such as ``"time saved over CPU-only"``
    stated: str  # the paper's largest figure with its source
    over: dict[str, str]  # our placers that stand for the others -> their names in the paper
    method: str  # of the paper, by its name in `PaperSuite.published`
    rules: str  # ``NAME:key=value``, the paper's system under the paper's rules
    mended: str  # the system with our defaults or mends
    evaluations: int  # of the runs that are compared
    cases: Sequence[str]  # names of the problems
    device: str = "single"  # the single device that stands for no placement at all

    @property
    def placers(self) -> dict[str, str]:
        """Placer of a run -> its part in the comparison."""
        return {
            self.rules: "under its rules",
            self.mended: "ours, equal budget",
            "local-search": "local search, equal budget",
            "heft": "HEFT, one evaluation",
            controls_of(self.mended)[1]: "uniform over its groups",
            self.device: "one GPU",
        }


@dataclass(frozen=True)
class PaperSuite:
    """A paper's experiment as far as it can be run here."""

    name: str  # of the experiment, see `catalogue.PAPERS`
    title: str  # of the paper
    stand_ins: str  # what is not the paper's in models and machines; the first line of its page
    rules: Sequence[str]  # its experiment, sentence by sentence
    cases: Sequence[Case]  # its problems
    baseline: str  # method of `published` that other figures are divided by
    stages: Sequence[Stage]  # our runs on every case
    published: Sequence[Published]  # its figures
    claims: Sequence[str]  # figures that belong to no cell, each with its source
    missing: Sequence[str]  # differences that remain, sentence by sentence
    headline: Headline  # its best-known figure

    def cases_of(self, stage: Stage) -> list[Case]:
        """The problems that a stage runs on."""
        return [case for case in self.cases if not stage.cases or case.name in stage.cases]


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
            if case not in suite.cases_of(stage):
                continue
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
