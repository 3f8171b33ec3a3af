"""Published tables of Tarnawski et al. 2020, and an own small workload that always runs."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from golden.workloads import (
    EXPERT_LATENCY,
    FOLDER,
    GIVEN_THROUGHPUT,
    LATENCY,
    THROUGHPUT,
    expert_file,
    needs_workloads,
)
from support.pipelines import best_by_brute_force

from placewright.core.execution_models import SubgraphIP
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import InputError
from placewright.files.tarnawski import read_workload
from placewright.placers.pipelines.ideals.items import enumerate_ideals, items_of
from placewright.placers.pipelines.ideals.program import replicated
from placewright.placers.registry import make_placer
from placewright.simulation.bounds.lower import balanced_load_bound
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator

SMALL = Path(__file__).parent / "small_workload.json"
CONTIGUOUS, FREE, LEAST_LATENCY = 17.0, 14.0, 35.5  # by brute force over 3^7 placements
SLOW = ("gnmt", "bert_L-12", "bert_l-12")


def marked(names: list[str]) -> list[object]:
    """Expensive workloads run with `make test-all` only."""
    slow = [any(part in name for part in SLOW) for name in names]
    return [
        pytest.param(name, marks=pytest.mark.slow) if is_slow else name
        for name, is_slow in zip(names, slow, strict=True)
    ]


def solved(name: str, problem: Problem, seconds: float | None = None, **settings: str) -> Solution:
    evaluator = Evaluator(problem, Budget(seconds=seconds))
    return make_placer(name, settings).place(problem, evaluator, np.random.default_rng(0))


def test_small_workload_under_max_load() -> None:
    """The constants are counted again here; placers must hit them."""
    problem = read_workload(SMALL)
    assert best_by_brute_force(problem, contiguous=True) == pytest.approx(CONTIGUOUS)
    assert best_by_brute_force(problem, contiguous=False) == pytest.approx(FREE)
    assert solved("ideal-dp", problem).value == pytest.approx(CONTIGUOUS)
    free = solved("maxload-ip", problem)
    assert free.value == pytest.approx(FREE)
    assert free.status == "optimal"


def test_small_workload_under_latency() -> None:
    """One subgraph per accelerator."""
    problem = read_workload(SMALL, objective="latency", execution_model=SubgraphIP())
    solution = solved("latency-ip", problem, annealing_steps="500", annealing_rounds="2")
    assert solution.value == pytest.approx(LEAST_LATENCY)
    assert solution.lower_bound <= LEAST_LATENCY + 1e-9


@needs_workloads
@pytest.mark.parametrize("name", marked(list(THROUGHPUT)))
def test_ideal_dp_equals_the_published_program(name: str) -> None:
    """Value to four digits, and as many ideals."""
    problem = read_workload(FOLDER / "throughput" / f"{name}.json")
    value, n_ideals, _, _ = THROUGHPUT[name]
    lattice = enumerate_ideals(items_of(problem).successors, 100_000)
    assert lattice is not None
    assert lattice.n_ideals == n_ideals
    solution = solved("ideal-dp", problem)
    assert solution.value == pytest.approx(value, rel=1e-5)
    assert solution.message.startswith("optimal among pipelines of contiguous stages")


@needs_workloads
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("inceptionv3_inference", 51.5519), ("inceptionv3_training", 122.762)]
)
def test_ideal_dp_proves_what_the_published_program_cannot_finish(name: str, value: float) -> None:
    """36,596 ideals; the published program needs more than 15 minutes and 3 GB."""
    problem = read_workload(FOLDER / "throughput" / "LayerGraphs" / f"{name}.json")
    solution = solved("ideal-dp", problem)
    assert solution.value == pytest.approx(value, rel=1e-5)
    assert solution.message.startswith("optimal among pipelines of contiguous stages")


@needs_workloads
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, row[2]) for name, row in THROUGHPUT.items() if row[2] is not None],
)
def test_pipedream_equals_the_published_program(name: str, value: float) -> None:
    problem = read_workload(FOLDER / "throughput" / f"{name}.json")
    settings = {"ignored": "2,40,46"} if "gnmt" in name else {}
    assert solved("pipedream", problem, **settings).value == pytest.approx(value, rel=1e-5)


def without_memory_limits(problem: Problem) -> Problem:
    devices = tuple(replace(device, memory_bytes=inf) for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def within(value: float) -> object:
    """As many digits as the tables have: two decimals, which are four digits and more."""
    return pytest.approx(value, rel=0, abs=0.005000001)


@needs_workloads
@pytest.mark.parametrize("name", list(GIVEN_THROUGHPUT))
def test_throughput_of_given_splits(name: str) -> None:
    """One accelerator and the expert's split, inference and training.

    The published program counts the load of one accelerator even where that lacks the memory.
    """
    problem = read_workload(FOLDER / "throughput" / f"{name}.json")
    single, fits, expert = GIVEN_THROUGHPUT[name]
    on_first = Placement.of([0] * problem.n_units)
    assert Simulator(without_memory_limits(problem)).value(on_first) == within(single)
    assert Simulator(problem).value(on_first) == (within(single) if fits else inf)
    if expert is not None:
        assert solved("expert", problem, file=str(expert_file(name))).value == within(expert)


@needs_workloads
@pytest.mark.parametrize("name", list(EXPERT_LATENCY))
def test_latency_of_the_experts_splits(name: str, tmp_path: Path) -> None:
    """Infeasible in the workload itself; as published with six accelerators and room in each."""
    document = json.loads((FOLDER / "latency" / f"{name}.json").read_text())
    roomy = {**document, "maxFPGAs": max(6, document["maxFPGAs"]), "maxSizePerFPGA": 1e12}
    split = str(expert_file(name))
    values = {}
    for key, content in (("as it is", document), ("roomy", roomy)):
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps(content))
        problem = read_workload(path, objective="latency")
        if key == "as it is" and document["maxFPGAs"] < 6:
            with pytest.raises(InputError, match=r"unknown device 'fpgas\[5\]'"):
                solved("expert", problem, file=split)
        else:
            values[key] = solved("expert", problem, file=split).value
    assert values["roomy"] == within(EXPERT_LATENCY[name])
    assert values.get("as it is", inf) == inf


def test_the_document_lists_every_given_split() -> None:
    """Each number of the published tables stands beside its workload in the results page."""
    lines = (
        (Path(__file__).parents[2] / "docs" / "results" / "tarnawski.md").read_text().splitlines()
    )
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| `")}
    for name, (single, _, expert) in GIVEN_THROUGHPUT.items():
        assert f"| {single:.2f} " in rows[f"`throughput/{name}`"]
        assert expert is None or f"| {expert:.2f} " in rows[f"`throughput/{name}`"]
    for name, (on_cpu, greedy, _) in LATENCY.items():
        numbers = [on_cpu, greedy, *([EXPERT_LATENCY[name]] if name in EXPERT_LATENCY else [])]
        for number in numbers:
            assert f"| {number:.2f} " in rows[f"`latency/{name}`"]


@needs_workloads
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "LayerGraphs/bert24_inference",
        "LayerGraphs/bert24_training",
        "OperatorGraphs/bert_l-3_inference",
        "OperatorGraphs/bert_l-3_training",
    ],
)
def test_max_load_program_proves_optimality(name: str) -> None:
    problem = read_workload(FOLDER / "throughput" / f"{name}.json")
    solution = solved("maxload-ip", problem, 60.0)
    assert solution.value <= THROUGHPUT[name][3] + 0.005
    assert solution.status == "optimal"


@needs_workloads
@pytest.mark.parametrize("name", list(LATENCY))
def test_latency_columns(name: str) -> None:
    """All ops on CPUs, and greedy, to four digits."""
    problem = read_workload(FOLDER / "latency" / f"{name}.json", objective="latency")
    on_cpu, greedy, _ = LATENCY[name]
    cpu = problem.cluster.device("cpu:0")
    evaluator = Evaluator(problem)
    assert evaluator.evaluate(np.full(problem.n_units, cpu)) == within(on_cpu)
    assert solved("greedy", problem).value == within(greedy)


@needs_workloads
@pytest.mark.slow
@pytest.mark.parametrize("name", list(LATENCY))
def test_latency_is_at_least_as_good_as_every_legal_column(name: str) -> None:
    problem = read_workload(FOLDER / "latency" / f"{name}.json", objective="latency")
    solution = solved(
        "latency-ip", problem, annealing_steps="50000", annealing_rounds="8", max_columns="0"
    )
    assert solution.value <= LATENCY[name][2] + 0.005
    assert 0 < solution.lower_bound <= solution.value


@needs_workloads
@pytest.mark.parametrize(
    "name", marked([name for name in THROUGHPUT if name.endswith("inference")])
)
def test_replicas_beat_pipelines_and_copies(name: str) -> None:
    """No worse than the best pipeline, nor, where one accelerator holds all, than k copies of the
    model, the value of one accelerator / k (BERT-24: 92.41 / 6 = 15.40 against 17.79)."""
    problem = read_workload(FOLDER / "throughput" / f"{name}.json")
    found = replicated(problem)
    assert found.device_of is not None
    value = Simulator(found.problem).value(Placement.of(found.device_of))
    single, fits, _ = GIVEN_THROUGHPUT[name]
    k = sum(device.kind == "accelerator" for device in problem.cluster.devices)
    assert value <= THROUGHPUT[name][0] * (1 + 1e-5)
    assert not fits or value <= single / k + 0.005
    assert value >= balanced_load_bound(problem)
