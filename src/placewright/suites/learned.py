"""The learned benchmark: its problems, its runs, and the controls of learners.

Runs are tasks of workers; each is stored as soon as it ends. A run is identified by the content of
the problem (in whatever folder the model lies), the number of evaluations, the placer with its
settings, and the seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewright.core.graph import ComputationGraph
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import InputError
from placewright.files.problem_file import content_sha256
from placewright.files.results import ResultsFile, read_rows
from placewright.placers.baselines.simple import homogeneous_placements
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.registry import (
    placer_class,
    placers_that_learn,
    solution_by,
)
from placewright.profiling.roofline import roofline_problem
from placewright.report.learned_statistics import (
    BESIDE,
    STARTS,
    UPDATES,
    LearnedRun,
    controls_of,
    sets,
)
from placewright.report.time_left import Report
from placewright.session.comparison import named_placer
from placewright.session.models import load_model
from placewright.simulation.evaluator import Evaluator
from placewright.suites.tarnawski import find_workloads
from placewright.workers.interface import ThisProcess, Workers
from placewright.workers.tasks import Shared, Task

MODELS = ("inception_v3", "resnet50", "bert_base", "gnmt", "rnnlm")
CLUSTERS = ("2gpu", "4gpu", "8gpu", "cpu+gpu")
FORMAT = "placewright.learned/1"
PARTS = 10  # parts of a run's samples, each stored as its median


@dataclass(frozen=True)
class Case:
    """One problem of the benchmark, built on demand."""

    name: str  # such as ``"gnmt 2gpu"``
    build: Callable[[], Problem]  # makes the problem


def zoo_cases(
    models: Sequence[str] = MODELS,
    clusters: Sequence[str] = CLUSTERS,
    objective: Objective = "latency",
) -> list[Case]:
    """Every zoo model on every catalogue cluster, all models on the first cluster first.

    Args:
        models, clusters: names.
        objective: `training` places whole training steps, as PyTorch captures them.
    """
    what = " training" if objective == "training" else ""

    def case(model: str, cluster: str) -> Case:
        def build() -> Problem:
            return roofline_problem(zoo_graph(model, objective), cluster, objective)

        return Case(f"{model}{what} {cluster}", build)

    return [case(model, cluster) for cluster in clusters for model in models]


def workload_cases(data: Path | str, parts: Sequence[str] = ()) -> list[Case]:
    """The latency workloads of Tarnawski et al. 2020, found under `data`.

    Args:
        data: folder of the workloads.
        parts: of their names; a workload needs one of them. Empty takes all.

    Raises:
        InputError: there are none.
    """

    def case(name: str, path: Path) -> Case:
        def build() -> Problem:
            problem = load_model(str(path), objective="latency").problem
            assert problem is not None  # a workload carries its costs
            return problem

        return Case(name, build)

    wanted = [f"latency/{part}" for part in parts or ("",)]
    return [case(name, path) for name, path in find_workloads(data, wanted).items()]


def zoo_graph(model: str, objective: Objective = "latency") -> ComputationGraph:
    """The graph of a zoo model as OpenVINO sees it, or of its training step as PyTorch does."""
    return load_model(f"zoo:{model}", objective=objective).graph


def with_controls(placers: Sequence[str], *, controls: bool, starts: bool) -> list[str]:
    """The placers and their controls, without repetition.

    Args:
        placers: ``NAME`` or ``NAME:key=value:...``.
        controls: add the controls of each learner, and the methods that stand in every table.
        starts: False switches off the homogeneous placements of all placers that evaluate them.
    """
    wanted: list[str] = []
    for placer in placers:
        name = placer.partition(":")[0]
        has_starts = hasattr(placer_class(name), STARTS)
        # Before the controls, which are named after it.
        own = f"{placer}:{STARTS}=false" if has_starts and not starts else placer
        learns = name in placers_that_learn() and not sets(placer, UPDATES)
        wanted += [own, *((*controls_of(own), *BESIDE) if controls and learns else ())]
    return list(dict.fromkeys(wanted))


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
    """Run all placers with seeds 0 .. seeds - 1 on all problems.

    Args:
        cases: the problems, in the order in which they are run.
        placers: ``NAME`` or ``NAME:key=value:...``.
        seeds: runs per placer and problem.
        results: JSON file that is written after every run; runs in it are not repeated.
        workers: run the tasks; None is this process.
        progress: called with the fraction done and the run that has ended.

    Returns:
        The requested runs.

    Raises:
        InputError: a placer is unknown, or cannot place a problem; a problem fits no single device.
    """
    made = {name: named_placer(name, {}) for name in placers}
    if not made or seeds < 1 or evaluations < 1:
        raise InputError(
            "bench learned needs placers, seeds and evaluations >= 1, got "
            f"{len(made)}, {seeds}, {evaluations}"
        )
    file = runs_file(results)
    stored = file.rows
    asked: list[tuple[str, int, str, int]] = []
    wanted = [(name, seed) for seed in range(seeds) for name in placers]

    def missing() -> Iterator[Task]:
        """Missing runs; a problem is built when a worker is free for it."""
        for case in cases:
            problem = case.build()
            if not math.isfinite(single_value(problem)):
                raise InputError(
                    f"{case.name} fits no single device, and reports divide by the value of the "
                    "best one; leave it out"
                )
            for name, placer in made.items():
                if reason := placer.why_not(problem):
                    raise InputError(f"placer '{name}' cannot place {case.name}: {reason}")
            key, shared = content_sha256(problem), Shared((case.name, problem, evaluations))
            for name, seed in wanted:
                asked.append((key, evaluations, name, seed))
                if asked[-1] not in stored:
                    label = f"{case.name}: {name}, seed {seed}"
                    yield Task(_run_of_case, (name, seed), shared, label)

    for done in (workers or ThisProcess()).run(missing()):
        file.add([done.result])
        if progress is not None:
            share = sum(identity in stored for identity in asked) / (len(cases) * len(wanted))
            by = f", by worker {done.worker}" if done.worker else ""
            progress(share, f"{done.task.label}{by}")
    return [stored[identity] for identity in asked]


def _run_of_case(case: tuple[str, Problem, int], name: str, seed: int) -> LearnedRun:
    return one_run(*case, name, seed)


def runs_file(path: Path | None) -> ResultsFile[LearnedRun]:
    """The runs of a results file, also those of earlier contents of a problem."""
    return ResultsFile(path, FORMAT, _run_of, lambda run: run.identity)


def read_runs(path: Path) -> list[LearnedRun]:
    """The runs in a results file, none if there is no file.

    A problem that has changed since has another key, and is run again. Its runs with one budget and
    placer count if they have the key of the last of them, so that no placer's seeds mix two
    contents; those of two placers may still differ.

    Raises:
        FileFormatError: it is no results file of this benchmark.
    """
    runs = read_rows(path, FORMAT, _run_of)
    last = {(run.problem, run.evaluations, run.placer): run.key for run in runs}
    kept = [run for run in runs if run.key == last[run.problem, run.evaluations, run.placer]]
    return list({run.identity: run for run in kept}.values())


def one_run(
    problem_name: str, problem: Problem, evaluations: int, name: str, seed: int
) -> LearnedRun:
    """Run one placer with one seed."""
    single = single_value(problem)
    evaluator = Evaluator(problem, Budget(evaluations=evaluations))
    start = time.process_time()
    placer = named_placer(name, {})
    solution = pass_interrupt_on(solution_by(placer, problem, evaluator, seed))
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


def single_value(problem: Problem) -> float:
    """The value of the fastest homogeneous placement, inf if none is feasible."""
    return float(Evaluator(problem).evaluate_many(homogeneous_placements(problem)).min())


def parts_of(solution: Solution) -> list[float]:
    """Medians of successive tenths of a policy's samples; of fewer samples fewer parts."""
    samples = np.asarray(solution.samples)
    parts = np.array_split(samples, min(PARTS, len(samples))) if len(samples) else []
    return [float(np.median(part)) for part in parts]


def _run_of(**row: object) -> LearnedRun:
    parts = [math.nan if value is None else float(value) for value in row.pop("parts")]  # type: ignore[attr-defined]
    return LearnedRun(**row, parts=parts)  # type: ignore[arg-type]
