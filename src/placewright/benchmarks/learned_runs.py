"""Runs of placers on many problems, in parallel processes: each is kept as soon as it ends.

A run is found again by what it is a run of: the content of the problem (whatever folder the model
lay in), the number of evaluations, the placer with its settings, and the seed.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from placewright.benchmarks.learned import Case
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import InputError
from placewright.files.problem_file import content_sha256
from placewright.files.results import read_rows, write_rows
from placewright.isolation.with_parent import end_with_parent
from placewright.placers.homogeneous import homogeneous_placements
from placewright.placers.registry import reason_against
from placewright.report.learned.runs import LearnedRun
from placewright.session.comparison import named_placer
from placewright.simulation.evaluator import Evaluator

FORMAT = "placewright.learned/1"
PARTS = 10  # of a run's samples, whose medians are kept
THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")

Report = Callable[[float, str], None]


def run_learned_benchmark(
    cases: Sequence[Case],
    placers: Sequence[str],
    evaluations: int,
    seeds: int,
    results: Path,
    *,
    workers: int = 1,
    progress: Report | None = None,
) -> list[LearnedRun]:
    """All placers with seeds 0 .. seeds - 1 on all problems.

    Args:
        cases: the problems, in the order in which they are run.
        placers: ``NAME`` or ``NAME:key=value:...``.
        evaluations: of every run.
        seeds: runs per placer and problem.
        results: JSON file that is written after every run; runs in it are not repeated.
        workers: processes, with one thread each.
        progress: told the fraction done and what has ended.

    Returns:
        The runs that were asked for.

    Raises:
        InputError: a placer is unknown, or cannot place a problem.
    """
    made = {name: named_placer(name, {}) for name in placers}
    if not made or seeds < 1 or evaluations < 1 or workers < 1:
        raise InputError(
            "bench learned needs placers, seeds, evaluations and workers >= 1, got "
            f"{len(made)}, {seeds}, {evaluations}, {workers}"
        )
    kept = {run.identity: run for run in read_runs(results)}
    asked: list[LearnedRun] = []
    for index, case in enumerate(cases):
        problem = case.build()
        for name, placer in made.items():
            if reason := reason_against(placer, problem):
                raise InputError(f"placer '{name}' cannot place {case.name}: {reason}")
        key = content_sha256(problem)
        wanted = [(name, seed) for seed in range(seeds) for name in placers]
        missing = [pair for pair in wanted if (key, evaluations, *pair) not in kept]
        for number, run in enumerate(_runs(case.name, problem, evaluations, missing, workers)):
            kept[run.identity] = run
            write_runs(results, list(kept.values()))
            if progress is not None:
                done = (index + (number + 1) / len(missing)) / len(cases)
                progress(done, f"{case.name}: {run.placer}, seed {run.seed}")
        asked += [kept[key, evaluations, name, seed] for name, seed in wanted]
    return asked


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
    solution = named_placer(name, {}).place(problem, evaluator, np.random.default_rng(seed))
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


def _runs(
    name: str, problem: Problem, evaluations: int, missing: Sequence[tuple[str, int]], workers: int
) -> Iterator[LearnedRun]:
    """Runs as they end; in this process where there is one worker."""
    if not missing:
        return
    if workers == 1:
        for placer, seed in missing:
            yield one_run(name, problem, evaluations, placer, seed)
        return
    with _one_thread_each():
        pool = ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), _keep, (name, problem, evaluations)
        )
        with pool:
            futures: list[Future[LearnedRun]] = [pool.submit(_kept_run, *one) for one in missing]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


_KEPT: list[tuple[str, Problem, int]] = []  # of a worker process


def _keep(name: str, problem: Problem, evaluations: int) -> None:
    end_with_parent()
    _KEPT.append((name, problem, evaluations))


def _kept_run(placer: str, seed: int) -> LearnedRun:
    return one_run(*_KEPT[-1], placer, seed)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that start inside see one thread; the variables are given back."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _run_of(**row: object) -> LearnedRun:
    parts = [math.nan if value is None else float(value) for value in row.pop("parts")]  # type: ignore[attr-defined]
    return LearnedRun(**row, parts=parts)  # type: ignore[arg-type]
