"""`auto` gives one answer by evaluations: in one process and in any number of workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.warm import COMMAND, run_warm
from workers.searches import Searches, found_by, problem_of

import placewright as pw
from placewright.core.execution_models import Event, ExecutionModel, Placeto, Subgraph, SubgraphIP
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget, Stop
from placewright.errors import FieldError
from placewright.files.problem_file import write_problem
from placewright.placers.portfolio.auto import Auto
from placewright.session.hosts import SpreadAuto
from placewright.session.search import search
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import under_subgraphs
from placewright.workers.interface import ThisProcess, Workers
from placewright.workers.processes import Processes


def problem_under(model: str, n_ops: int) -> Problem:
    """A problem of an execution model, or of the training objective."""
    objectives: dict[str, Objective] = {"max-load": "throughput", "training": "training"}
    problem = problem_of(n_ops, objectives.get(model, "latency"))
    models: dict[str, ExecutionModel] = {
        "event-fifo": Event(dispatch="fifo"),
        "placeto": Placeto(),
        "subgraph": Subgraph(),
        "subgraph-ip": SubgraphIP(per_accelerator=2),
    }
    if model.startswith("subgraph"):
        return under_subgraphs(problem, models[model])
    return replace(problem, execution_model=models.get(model, problem.execution_model))


@pytest.fixture(scope="module")
def one() -> Iterator[Workers]:
    with Processes(1) as workers:
        yield workers


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    with Processes(2) as workers:
        yield workers


@pytest.mark.parametrize(
    "model",
    ["event", "event-fifo", "training", "max-load", "subgraph", "subgraph-ip", "placeto"],
)
def test_one_process_and_one_or_two_workers_give_one_answer(
    model: str, one: Workers, two: Workers
) -> None:
    """Enumerated, closed by a proof, or searched to the end of the budget."""
    apart = (one, two) if model == "event" else (two,)  # a model has no code of its own here
    cases = ((5, 5000, apart), (14, 90, apart[:1]), (14, 200, apart[-1:]))
    for n_ops, evaluations, everyone in cases:
        problem = problem_under(model, n_ops)
        here = found_by(None, problem, evaluations, Auto())
        for workers in everyone:
            assert found_by(workers, problem, evaluations, Auto()) == here, (model, n_ops)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_many_rounds_of_searches_give_one_answer(objective: Objective, two: Workers) -> None:
    problem = problem_of(40, objective)
    for evaluations in (3, 1500):
        here = found_by(None, problem, evaluations)
        assert found_by(two, problem, evaluations) == here
        assert found_by(ThisProcess(), problem, evaluations) == here
    assert len({point[1] for point in here[-1]}) > 1  # the rounds gained something


@pytest.mark.slow
def test_eight_workers_find_the_same() -> None:
    with Processes(8) as workers:
        problem = problem_of(40)
        assert found_by(workers, problem, 500) == found_by(None, problem, 500)


def test_a_search_with_seconds_shares_its_incumbents(two: Workers) -> None:
    """The budget holds, the value is the simulator's, and a small problem is closed early."""
    problem = problem_of(10)
    found = search(problem, SpreadAuto(Auto(), two), Budget(seconds=4.0))
    assert found.placement is not None
    assert found.value <= pw.place(problem, placer="single", evaluations=9).value
    assert found.lower_bound <= found.value
    assert found.history[-1].value == found.value
    limited = SpreadAuto(Searches(gap=0.0), two)
    both = search(problem_of(40), limited, Budget(seconds=60.0, evaluations=100))
    assert 1 <= both.evaluations <= 100


@pytest.mark.parametrize("is_apart", [False, True])
def test_core_seconds_of_all_workers_together(is_apart: bool, two: Workers) -> None:
    """The turns of other processes count, too: this process alone waits and uses nearly nothing."""
    problem = problem_of(40)
    Evaluator(problem)  # has its kernels compiled, once per process
    spread = SpreadAuto(Searches(gap=0.0), two if is_apart else ThisProcess())
    began = time.process_time()
    found = search(problem, spread, Budget(core_seconds=1.0))
    own = time.process_time() - began
    assert found.placement is not None
    assert (found.stop, found.status) == (Stop.CORE_SECONDS, "feasible")
    assert found.core_seconds >= 1.0
    assert (found.core_seconds > own) == is_apart


def test_place_takes_workers() -> None:
    """The facade is the same door: equal plans, and wrong requests in one line."""
    problem = problem_of(8)
    plans = [pw.place(problem, evaluations=300, seed=1, workers=count) for count in (None, 1, 2)]
    assert plans[0].value == plans[1].value == plans[2].value
    placements = [plan.placement.device_of.tolist() for plan in plans]
    assert placements[0] == placements[1] == placements[2]
    with pytest.raises(FieldError, match="spreads the members of placer auto; 'heft' is one"):
        pw.place(problem, placer="heft", workers=2)
    with pytest.raises(FieldError, match="expects HOST:PORT, ray://HOST:PORT, auto or local"):
        pw.place(problem, ray="nowhere")


def test_the_command_ends_by_core_seconds(tmp_path: Path) -> None:
    """As `placewright place p.json --core-seconds 1 --workers 2`; no clock but the processors'."""
    write_problem(tmp_path / "p.json", problem_of(40))
    words = ["place", "p.json", "--core-seconds", "1", "--workers", "2", "-o", "plan.json"]
    done = run_warm(COMMAND, words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.json").exists()
