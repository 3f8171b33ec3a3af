"""Speedup of two workers over one on the runs of `bench learned`, with one core per worker.

A measurement, the driver included, runs on as many cores as it has workers. One worker and two take
turns, so that drift of the machine affects both.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.command import ResultsIfAny, run
from benchmarks.ray_of_cores import only_on, ray_nodes_on
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_line, print_note
from placewright.errors import AnswerError, InputError
from placewright.files.results import ResultsFile
from placewright.suites.learned import Case, read_runs, run_learned_benchmark
from placewright.workers.interface import Workers
from placewright.workers.processes import Processes

KINDS = ("processes", "ray")
FORMAT = "placewright.workers/1"


@dataclass(frozen=True)
class WorkersSpeed:
    """Wall-clock seconds of the same runs.

    Attributes:
        kind: of workers.
        problems, runs: their number in each round.
        placers: of the runs.
        evaluations: of each run.
        one: seconds with one worker in each round.
        two: seconds with two workers.
        equal: all values are equal to the last digit.
    """

    kind: str
    problems: int
    runs: int
    placers: list[str]
    evaluations: int
    one: list[float]
    two: list[float]
    equal: bool

    @property
    def ratio(self) -> float:
        """Median seconds with one worker over those with two."""
        return statistics.median(self.one) / statistics.median(self.two)


def measure_workers(
    kind: str,
    cases: Sequence[Case],
    placers: Sequence[str],
    evaluations: int,
    *,
    seeds: int = 1,
    rounds: int = 3,
    told: Callable[[str], None] = lambda text: None,
) -> WorkersSpeed:
    """Time the runs with one worker and with two, in turn.

    Making the problems and starting the nodes of a Ray cluster, each on its own core, do not count.
    Starting the workers' processes counts, ending them does not.

    Args:
        kind: one of `KINDS`.
        cases: the problems.
        placers: see `run_learned_benchmark`.
        evaluations: of each run.
        seeds: of each placer on each problem.
        rounds: measurements of each, >= 1.
        told: called with a line for each measurement.

    Raises:
        InputError: the kind is unknown, a number is below 1, or the machine has one core.
        AnswerError: the values differ.
    """
    cores = sorted(os.sched_getaffinity(0))
    if kind not in KINDS or rounds < 1 or len(cores) < 2:
        raise InputError(
            f"workers are measured as {' or '.join(KINDS)} on two cores or more, with rounds >= 1; "
            f"got '{kind}', {len(cores)} cores, {rounds} rounds"
        )
    held = [Case(case.name, _held(case.build())) for case in cases]
    seconds: dict[int, list[float]] = {1: [], 2: []}
    values: list[list[Any]] = []
    for number in range(rounds):
        for count in (1, 2) if number % 2 == 0 else (2, 1):
            with (
                tempfile.TemporaryDirectory() as folder,
                _opener(kind, cores[:count]) as opened,
                only_on(cores[:count]),
            ):
                results = Path(folder) / "runs.json"
                began = time.perf_counter()
                with opened() as workers:
                    run_learned_benchmark(
                        held, placers, evaluations, seeds, results, workers=workers
                    )
                    seconds[count].append(time.perf_counter() - began)
                values.append(sorted((*run.identity, run.value) for run in read_runs(results)))
            told(f"{kind}, {count}: {seconds[count][-1]:.1f} s")
    if any(one != values[0] for one in values):
        raise AnswerError(f"{kind}: values differ between one worker and two")
    runs = len(values[0])
    return WorkersSpeed(
        kind, len(held), runs, list(placers), evaluations, seconds[1], seconds[2], True
    )


def speed_data(found: WorkersSpeed) -> dict[str, Any]:
    """The row as a JSON document."""
    return {**asdict(found), "ratio": found.ratio}


def keep_speed(path: Path, found: WorkersSpeed) -> None:
    """Write a row to a results file; it replaces the row of the same kind of workers."""
    ResultsFile(path, FORMAT, WorkersSpeed, lambda row: row.kind).add([found])


@contextmanager
def _opener(kind: str, cores: Sequence[int]) -> Iterator[Callable[[], Workers]]:
    """A function that starts workers of one core each; a Ray cluster is started before."""
    if kind == "processes":
        yield lambda: Processes(len(cores))
        return
    from placewright.workers.ray_workers import RayWorkers

    with ray_nodes_on(cores) as address:
        yield lambda: RayWorkers(address)


def _held(problem: Any) -> Callable[[], Any]:
    return lambda: problem


def workers(
    models: Annotated[str, typer.Option(help="Comma-separated zoo models.")] = (
        "inception_v3,resnet50,bert_base,gnmt,rnnlm"
    ),
    clusters: Annotated[
        str, typer.Option(help="Comma-separated clusters of the catalogue.")
    ] = "2gpu,4gpu",
    placers: Annotated[
        str, typer.Option(help="Comma-separated placers.")
    ] = "cem,local-search,random",
    evaluations: Annotated[int, typer.Option(help="Of every run.")] = 200,
    seeds: Annotated[int, typer.Option(help="Runs per placer, seeds 0 .. N-1.")] = 2,
    rounds: Annotated[int, typer.Option(help="Measurements with one worker and with two.")] = 3,
    kinds: Annotated[
        str, typer.Option(help="Comma-separated: processes, ray (a node on each core).")
    ] = "processes,ray",
    results: ResultsIfAny = None,
    as_json: opt.Json = False,
) -> None:
    """Time runs of `bench learned` with one worker and with two; values must be equal."""
    from placewright.session.parsing import parse_names
    from placewright.suites.learned import zoo_cases

    cases = zoo_cases(parse_names(models), parse_names(clusters), "latency")
    found = []
    for kind in parse_names(kinds):
        one = measure_workers(
            kind,
            cases,
            parse_names(placers),
            evaluations,
            seeds=seeds,
            rounds=rounds,
            told=print_note,
        )
        found.append(one)
        if results is not None:
            keep_speed(results, one)
        if not as_json:
            print_line(
                f"{one.runs} runs on {one.problems} problems, {kind}: two workers are "
                f"{one.ratio:.2f} x as fast as one"
            )
    if as_json:
        print_json([speed_data(one) for one in found])


if __name__ == "__main__":
    run(workers)
