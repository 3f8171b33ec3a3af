"""Searches and runs on workers: the same values for any number of them, whoever is killed."""

from __future__ import annotations

import json
import signal
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.warm import run_warm
from workers.searches import problem_of

import placewright as pw
from placewright.core.solution import Budget
from placewright.errors import FieldError
from placewright.files.problem_file import read_problem, write_problem
from placewright.placers.learned.shared.training_episodes import Job
from placewright.placers.portfolio.auto import Auto
from placewright.session.comparison import compare
from placewright.session.hosts import SpreadAuto, spread_rollouts
from placewright.session.search import search
from placewright.suites.learned import Case, read_runs, run_learned_benchmark
from placewright.workers.interface import ThisProcess, Workers
from placewright.workers.processes import Processes

KILLED = "workers.killed_search:KilledSearch"


@pytest.fixture(scope="module")
def two() -> Any:
    with Processes(2) as workers:
        yield workers


def test_auto_gives_one_answer_here_and_on_ray(ray_here: Any) -> None:
    from placewright.workers.ray_workers import RayWorkers

    problem, budget = problem_of(), Budget(evaluations=100)
    here = search(problem, Auto(), budget)
    with RayWorkers() as workers:
        there = search(problem, SpreadAuto(Auto(), workers), budget)
    assert here.placement is not None
    assert there.placement is not None
    assert there.placement.device_of.tolist() == here.placement.device_of.tolist()
    points = [[(one.evaluations, one.value) for one in found.history] for found in (here, there)]
    assert points[0] == points[1]


def test_compare_takes_workers() -> None:
    """Equal tables with and without."""
    problem = problem_of(8)
    alone, spread = (
        pw.compare(problem, "heft,local-search", seeds=2, evaluations=60, workers=count)
        for count in (None, 2)
    )
    assert [(run.placer, run.seed, run.value, run.evaluations) for run in spread.runs] == [
        (run.placer, run.seed, run.value, run.evaluations) for run in alone.runs
    ]
    with pytest.raises(FieldError, match="one placement is measured at a time"):
        pw.compare(problem, "heft", evaluator="measured", workers=2)


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
    from placewright.workers.ray_workers import RayWorkers

    run_learned_benchmark(CASES, ["cem", "random"], 60, 2, tmp_path / "here")
    with RayWorkers() as workers:
        run_learned_benchmark(CASES, ["cem", "random"], 60, 2, tmp_path / "ray", workers=workers)
        assert rows_of(tmp_path / "here") == rows_of(tmp_path / "ray")
        problem, budget = problem_of(), Budget(evaluations=50)
        there = compare(problem, ["cem", "random"], 2, budget, workers=workers)
    here = compare(problem, ["cem", "random"], 2, budget)
    assert [run.value for run in there.runs] == [run.value for run in here.runs]


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
        done = run_warm(DRIVER, [str(tmp_path), str(last)], cwd=tmp_path)
        runs = read_runs(tmp_path / "runs")
        finished = done.returncode == 0
        assert finished or done.returncode == -signal.SIGKILL
        assert len(runs) == 8 if finished else len(runs) == known + last
        known = len(runs)
    case = [Case("small", lambda: read_problem(tmp_path / "problem.json"))]
    run_learned_benchmark(case, ["random", "local-search"], 60, 4, tmp_path / "quiet")
    assert rows_of(tmp_path / "runs") == rows_of(tmp_path / "quiet")


def test_rollouts_keep_the_job_by_whose_id_they_find_its_graphs() -> None:
    """Another job could get the id of one that is gone."""
    job = Job("placeto", None, (problem_of(6),))
    kept = weakref.ref(job)
    rollouts = spread_rollouts(ThisProcess())
    assert rollouts(job, {}, []) == []
    del job
    assert kept() is not None


@pytest.mark.parametrize(  # they share `spread_rollouts`, which spreads episodes
    "placer",
    ["placeto", *(pytest.param(n, marks=pytest.mark.slow) for n in ("hsdag", "zero-shot"))],
)
def test_a_policy_is_the_same_for_any_number_of_workers(
    placer: str, tmp_path: Path, two: Workers
) -> None:
    """Rounds of episodes are taken in by their numbers; an interrupted training goes on."""
    pytest.importorskip("torch_geometric", reason="the extra 'learned' is not installed")
    import torch

    from placewright.placers.learned.shared.checkpoint import load_checkpoint
    from placewright.placers.learned.training import TrainingOptions, train

    problems = [problem_of(6), problem_of(7)]
    settings = {} if placer == "placeto" else {"hidden": "8"}

    def trained(name: str, by: Workers, end_at: float = 2.0, **more: str) -> bytes:
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
                settings={**settings, **more},
                progress=stop,
                options=options,
            )
        return path.read_bytes()

    alone = trained("alone", ThisProcess())
    assert trained("both", two) == alone
    assert trained("cut off", two, end_at=0.5) != alone
    assert trained("cut off", ThisProcess()) == alone
    if placer != "placeto":
        return
    # It learned from returns: without the entropy bonus a policy without them stays as it was.
    trained("returns", ThisProcess(), entropy_weight="0")
    trained("first", ThisProcess(), end_at=-1.0, entropy_weight="0")
    kept = {name: load_checkpoint(tmp_path / name, placer) for name in ("returns", "first")}
    baselines = kept["returns"].under("trainee").values()
    assert sum(len(returns) for returns in baselines) == 19
    first, last = (kept[name].under("policy") for name in ("first", "returns"))
    assert any(not torch.equal(first[name], last[name]) for name in first)
