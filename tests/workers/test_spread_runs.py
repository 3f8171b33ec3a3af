"""Searches and runs on workers: the same values for any number of them, whoever is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placewright as pw
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget, Stop
from placewright.errors import FieldError
from placewright.files.problem_file import read_problem, write_problem
from placewright.placers.portfolio.auto import Auto, PortfolioMembers
from placewright.session.comparison import compare
from placewright.session.spread_search import SpreadAuto
from placewright.simulation.evaluator import Evaluator
from placewright.suites.learned import Case, read_runs, run_learned_benchmark
from placewright.testing.problems import random_problem
from placewright.workers.here import ThisProcess
from placewright.workers.interface import Workers
from placewright.workers.processes import Processes

KILLED = "workers.killed_search:KilledSearch"


def problem_of(n_ops: int = 14, objective: Objective = "latency") -> Problem:
    rng = np.random.default_rng(5)
    return random_problem(rng, n_ops=n_ops, n_devices=3, objective=objective)


class Searches(Auto):
    """No proof closes the gap, so that all rounds take place."""

    def members(self, problem: Problem) -> PortfolioMembers:
        return replace(super().members(problem), quick=("single", "heft", "m-topo"), proofs=())


def found_by(
    workers: Workers, problem: Problem, evaluations: int, auto: Auto | None = None, seed: int = 3
) -> list[Any]:
    """All that a search tells but its seconds."""
    search = SpreadAuto(auto or Searches(gap=0.0), workers)
    found = search.search(problem, Budget(evaluations=evaluations), seed)
    assert found.placement is not None
    assert found.evaluations <= evaluations
    order = found.placement.order
    return [
        found.value.hex(),
        found.lower_bound.hex(),
        found.status,
        found.evaluations,
        found.placement.device_of.tolist(),
        None if order is None else order.tolist(),
        [(point.evaluations, point.value) for point in found.history],
    ]


@pytest.fixture(scope="module")
def two() -> Any:
    with Processes(2) as workers:
        yield workers


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_members_find_the_same_with_one_worker_and_with_two(
    objective: Objective, two: Workers
) -> None:
    problem = problem_of(40, objective)
    for evaluations in (3, 700):
        alone = found_by(ThisProcess(), problem, evaluations)
        assert found_by(two, problem, evaluations) == alone
    assert len({point[1] for point in alone[-1]}) > 1  # the rounds gained something
    small = problem_of(8, objective)
    assert found_by(two, small, 200, Auto()) == found_by(ThisProcess(), small, 200, Auto())


def test_members_find_the_same_on_ray(ray_here: Any) -> None:
    from placewright.workers.ray_tasks import RayWorkers

    problem = problem_of(40)
    with RayWorkers() as workers:
        assert found_by(workers, problem, 150) == found_by(ThisProcess(), problem, 150)


def test_a_search_with_seconds_shares_what_is_found(two: Workers) -> None:
    """The budget holds, the value is the simulator's, and a small problem is closed early."""
    problem = problem_of(10)
    search = SpreadAuto(Auto(), two)
    found = search.search(problem, Budget(seconds=4.0), 0)
    assert found.placement is not None
    assert found.value <= pw.place(problem, placer="single", evaluations=9).value
    assert found.lower_bound <= found.value
    assert found.history[-1].value == found.value
    limited = SpreadAuto(Searches(gap=0.0), two)
    both = limited.search(problem_of(40), Budget(seconds=60.0, evaluations=100), 0)
    assert 1 <= both.evaluations <= 100


@pytest.mark.parametrize("is_apart", [False, True])
def test_core_seconds_of_all_workers_together(is_apart: bool, two: Workers) -> None:
    """The turns of other processes count, too: this process alone waits and uses nearly nothing."""
    problem = problem_of(40)
    Evaluator(problem)  # has its kernels compiled, once per process
    search = SpreadAuto(Searches(gap=0.0), two if is_apart else ThisProcess())
    began = time.process_time()
    found = search.search(problem, Budget(core_seconds=2.0), 0)
    own = time.process_time() - began
    assert found.placement is not None
    assert (found.stop, found.status) == (Stop.CORE_SECONDS, "feasible")
    assert found.core_seconds >= 2.0
    assert (found.core_seconds > own) == is_apart


def test_place_and_compare_take_workers(tmp_path: Path) -> None:
    """The facade is the same door: equal plans, equal tables, and wrong requests in one line."""
    problem = problem_of(8)
    plans = [pw.place(problem, evaluations=300, seed=1, workers=count) for count in (1, 2)]
    assert plans[0].value == plans[1].value
    assert plans[0].placement.device_of.tolist() == plans[1].placement.device_of.tolist()
    alone, spread = (
        pw.compare(problem, "heft,local-search", seeds=2, evaluations=60, workers=count)
        for count in (None, 2)
    )
    assert [(run.placer, run.seed, run.value, run.evaluations) for run in spread.runs] == [
        (run.placer, run.seed, run.value, run.evaluations) for run in alone.runs
    ]
    with pytest.raises(FieldError, match="spreads the members of placer auto; 'heft' is one"):
        pw.place(problem, placer="heft", workers=2)
    with pytest.raises(FieldError, match="one placement is measured at a time"):
        pw.compare(problem, "heft", evaluator="measured", workers=2)
    with pytest.raises(FieldError, match="expects HOST:PORT, ray://HOST:PORT, auto or local"):
        pw.place(problem, ray="nowhere")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """All that a results file says but seconds, in an order that does not depend on workers."""
    rows = json.loads(path.read_text())["rows"]
    for row in rows:
        del row["seconds"]
    return sorted(rows, key=lambda row: (row["problem"], row["placer"], row["seed"]))


CASES = [Case(f"ops{n_ops}", lambda n_ops=n_ops: problem_of(n_ops)) for n_ops in (9, 12)]  # type: ignore[misc]


def test_learned_runs_are_the_same_by_one_worker_and_by_two(tmp_path: Path, two: Workers) -> None:
    for name, workers in (("one", None), ("two", two)):
        run_learned_benchmark(CASES, ["cem", "random"], 60, 2, tmp_path / name, workers=workers)
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "two")


def test_runs_are_the_same_on_ray(tmp_path: Path, ray_here: Any) -> None:
    """Of a comparison with its file, too."""
    from placewright.workers.ray_tasks import RayWorkers

    run_learned_benchmark(CASES, ["cem", "random"], 60, 2, tmp_path / "here")
    with RayWorkers() as workers:
        run_learned_benchmark(CASES, ["cem", "random"], 60, 2, tmp_path / "ray", workers=workers)
        assert rows_of(tmp_path / "here") == rows_of(tmp_path / "ray")
        problem, budget = problem_of(), Budget(evaluations=50)
        there = compare(problem, ["cem", "random"], 2, budget, workers=workers)
    here = compare(problem, ["cem", "random"], 2, budget)
    assert [run.value for run in there.runs] == [run.value for run in here.runs]


@pytest.mark.slow
def test_eight_workers_find_what_one_finds(tmp_path: Path) -> None:
    with Processes(8) as workers:
        problem = problem_of(40)
        assert found_by(workers, problem, 500) == found_by(ThisProcess(), problem, 500)


@pytest.mark.parametrize("seeds", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_workers_that_are_killed_change_nothing(seeds: int, tmp_path: Path) -> None:
    """Each run's first worker is killed at a question that its seed names."""
    marks = tmp_path / "marks"
    marks.mkdir()
    case = [Case("small", lambda: problem_of(40))]
    with Processes(2) as workers:
        run_learned_benchmark(
            case, [f"{KILLED}:folder={marks}"], 60, seeds, tmp_path / "killed", workers=workers
        )
    assert len(list(marks.iterdir())) == seeds
    run_learned_benchmark(case, [KILLED], 60, seeds, tmp_path / "quiet")
    values = [[row["value"] for row in rows_of(tmp_path / name)] for name in ("killed", "quiet")]
    assert values[0] == values[1]


DRIVER = """
import os, signal, sys
from pathlib import Path
from typing import Any

import numpy as np
from placewright.suites.learned import Case
from placewright.suites.learned import run_learned_benchmark
from placewright.files.problem_file import read_problem
from placewright.workers.processes import Processes

folder, last = Path(sys.argv[1]), int(sys.argv[2])
told = 0

def report(fraction, what):
    global told
    told += 1
    if told == last:
        os.kill(os.getpid(), signal.SIGKILL)

with Processes(2) as workers:
    case = Case("small", lambda: read_problem(folder / "problem.json"))
    run_learned_benchmark(
        [case], ["random", "local-search"], 60, 4, folder / "runs", workers=workers, progress=report
    )
"""


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_driver_that_is_killed_goes_on_from_its_file(kills: int, tmp_path: Path) -> None:
    """The file is whole at any time, and what is in it is not done again."""
    write_problem(tmp_path / "problem.json", problem_of(40))
    points = np.random.default_rng(1).integers(1, 3, size=kills).tolist()
    known = 0
    for last in [*points, 0]:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(tmp_path), str(last)], timeout=600, check=False
        )
        runs = read_runs(tmp_path / "runs")
        finished = done.returncode == 0
        assert finished or done.returncode == -signal.SIGKILL
        assert len(runs) == 8 if finished else len(runs) == known + last
        known = len(runs)
    case = [Case("small", lambda: read_problem(tmp_path / "problem.json"))]
    run_learned_benchmark(case, ["random", "local-search"], 60, 4, tmp_path / "quiet")
    assert rows_of(tmp_path / "runs") == rows_of(tmp_path / "quiet")


@pytest.mark.parametrize("placer", ["placeto", "hsdag", "zero-shot"])
def test_a_policy_is_the_same_for_any_number_of_workers(
    placer: str, tmp_path: Path, two: Workers
) -> None:
    """Rounds of episodes are taken in by their numbers; an interrupted training goes on."""
    pytest.importorskip("torch_geometric", reason="the extra 'learned' is not installed")
    from placewright.placers.learned.training import TrainingOptions, train
    from placewright.session.spread_training import spread_rollouts

    problems = [problem_of(6), problem_of(7)]
    settings = {} if placer == "placeto" else {"hidden": "8"}

    def trained(name: str, by: Workers, end_at: float = 2.0) -> bytes:
        def stop(fraction: float, what: str) -> None:
            if fraction > end_at:
                raise KeyboardInterrupt

        options = TrainingOptions(rollouts=spread_rollouts(by))
        path = tmp_path / name
        with suppress(KeyboardInterrupt):
            train(
                placer,
                problems,
                path,
                episodes=19,
                settings=settings,
                progress=stop,
                options=options,
            )
        return path.read_bytes()

    alone = trained("alone", ThisProcess())
    assert trained("both", two) == alone
    assert trained("cut off", two, end_at=0.5) != alone
    assert trained("cut off", ThisProcess()) == alone
