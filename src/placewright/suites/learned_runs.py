"""Runs of placers on many problems, in parallel processes: each is kept as soon as it ends.

A run is found again by what it is a run of: the content of the problem (whatever folder the model
lay in), the number of evaluations, the placer with its settings, and the seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import InputError
from placewright.files.problem_file import content_sha256
from placewright.files.results import ResultsFile, read_rows, write_rows
from placewright.placers.anytime import pass_interrupt_on
from placewright.placers.baselines.homogeneous import homogeneous_placements
from placewright.placers.registry import reason_against
from placewright.report.learned.runs import LearnedRun
from placewright.session.comparison import named_placer
from placewright.simulation.evaluator import Evaluator
from placewright.suites.learned import Case
from placewright.workers.here import ThisProcess
from placewright.workers.interface import Workers
from placewright.workers.tasks import Shared, Task

FORMAT = "placewright.learned/1"
PARTS = 10  # of a run's samples, whose medians are kept

Report = Callable[[float, str], None]


def run_learned_benchmark(
    cases: Sequence[Case],
    placers: Sequence[str],
    evaluations: int,
    seeds: int,
    results: Path,
    *,
    workers: Workers | None = None,
    progress: Report | None = None,
) -> list[LearnedRun]:
    """All placers with seeds 0 .. seeds - 1 on all problems.

    Args:
        cases: the problems, in the order in which they are run.
        placers: ``NAME`` or ``NAME:key=value:...``.
        evaluations: of every run.
        seeds: runs per placer and problem.
        results: JSON file that is written after every run; runs in it are not repeated.
        workers: that do the runs; None is this process.
        progress: told the fraction done and what has ended.

    Returns:
        The runs that were asked for.

    Raises:
        InputError: a placer is unknown, or cannot place a problem.
    """
    made = {name: named_placer(name, {}) for name in placers}
    if not made or seeds < 1 or evaluations < 1:
        raise InputError(
            "bench learned needs placers, seeds and evaluations >= 1, got "
            f"{len(made)}, {seeds}, {evaluations}"
        )
    file = ResultsFile(results, FORMAT, _run_of, lambda run: run.identity)
    kept = file.rows
    asked: list[tuple[str, int, str, int]] = []
    wanted = [(name, seed) for seed in range(seeds) for name in placers]

    def missing() -> Iterator[Task]:
        """Runs of a problem, which is made when a worker is free for it."""
        for case in cases:
            problem = case.build()
            for name, placer in made.items():
                if reason := reason_against(placer, problem):
                    raise InputError(f"placer '{name}' cannot place {case.name}: {reason}")
            key, shared = content_sha256(problem), Shared((case.name, problem, evaluations))
            for name, seed in wanted:
                asked.append((key, evaluations, name, seed))
                if asked[-1] not in kept:
                    label = f"{case.name}: {name}, seed {seed}"
                    yield Task(_run_of_case, (name, seed), shared, label)

    for done in (workers or ThisProcess()).run(missing()):
        file.add([done.result])
        if progress is not None:
            found = sum(one in kept for one in asked) / (len(cases) * len(wanted))
            by = f", by worker {done.worker}" if done.worker else ""
            progress(found, f"{done.task.label}{by}")
    return [kept[one] for one in asked]


def _run_of_case(case: tuple[str, Problem, int], name: str, seed: int) -> LearnedRun:
    return one_run(*case, name, seed)


def read_runs(path: Path) -> list[LearnedRun]:
    """The runs in a results file, none where there is no file.

    Raises:
        FileFormatError: it is no results file of this benchmark.
    """
    return read_rows(path, FORMAT, _run_of)


def write_runs(path: Path, runs: Sequence[LearnedRun]) -> None:
    """Write a results file with one run per line; what is not finite becomes null."""
    write_rows(path, FORMAT, runs)


def one_run(
    problem_name: str, problem: Problem, evaluations: int, name: str, seed: int
) -> LearnedRun:
    """Run one placer with one seed."""
    reference = Evaluator(problem)
    single = float(reference.evaluate_many(homogeneous_placements(problem)).min())
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    start = time.process_time()
    placer = named_placer(name, {})
    solution = pass_interrupt_on(placer.place(problem, evaluator, np.random.default_rng(seed)))
    seconds = time.process_time() - start
    return LearnedRun(
        problem=problem_name,
        key=content_sha256(problem),
        evaluations=evaluations,
        placer=name,
        seed=seed,
        value=solution.value,
        single=single,
        seconds=round(seconds, 3),
        samples=len(solution.samples),
        parts=parts_of(solution),
        history=[[point.evaluations, point.value] for point in solution.history],
    )


def parts_of(solution: Solution) -> list[float]:
    """Medians of successive tenths of a policy's samples; of fewer samples fewer parts."""
    samples = np.asarray(solution.samples)
    parts = np.array_split(samples, min(PARTS, len(samples))) if len(samples) else []
    return [float(np.median(part)) for part in parts]


def _run_of(**row: object) -> LearnedRun:
    parts = [math.nan if value is None else float(value) for value in row.pop("parts")]  # type: ignore[attr-defined]
    return LearnedRun(**row, parts=parts)  # type: ignore[arg-type]
