"""Experts' placements: files, and whole layers by module path."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.pipelines import pipeline_problem

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import FileFormatError, InputError
from placewright.placers.baselines.expert.placer import Expert, by_layers, layers_of
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator


def chain_of_three() -> Problem:
    return pipeline_problem([[1, 1, 9]] * 3, [(0, 1), (1, 2)], [0] * 3, n_cpus=1)


def test_a_published_split(tmp_path: Path) -> None:
    file = tmp_path / "split.json"
    file.write_text(
        json.dumps({"fpgas": [{"nodes": [0]}, {"nodes": [1]}], "cpus": [{"nodes": [2]}]})
    )
    problem = chain_of_three()
    solution = Expert(file=str(file)).place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.placement is not None
    assert solution.placement.device_of.tolist() == [0, 1, 2]


def test_our_own_form(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"0": "acc:1", "1": "acc:1", "2": "acc:0"}))
    problem = chain_of_three()
    solution = Expert(file=str(file)).place(problem, Evaluator(problem), np.random.default_rng(0))
    assert solution.placement is not None
    assert solution.placement.device_of.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"0": "acc:0"}', "gives op '1' no device"),
        ('{"7": "acc:0"}', "no op '7'"),
        ('{"0": "gpu"}', "unknown device 'gpu'"),
        ('{"fpgas": [{}]}', "lists of 'nodes'"),
        ('{"fpgas": 3}', "'fpgas' must be a list of devices"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(content)
    problem = chain_of_three()
    with pytest.raises((FileFormatError, InputError), match=message):
        Expert(file=str(file)).place(problem, Evaluator(problem), np.random.default_rng(0))


def test_layers_stay_whole_and_follow_one_another() -> None:
    """Layers 0, 1, 2 of 3, 3 and 4 s on two devices: the middle of layer 1 (4.5 of 10) is in the
    first half, that of layer 2 (8 of 10) in the second."""
    builder = GraphBuilder()
    tensors: list[int] = []
    for module in ("net.layer.0.a", "net.layer.0.b", "net.layer.1.a", "net.layer.2.a"):
        op = builder.add_op(module, "Op", inputs=tensors[-1:], module=module)
        tensors.append(builder.add_tensor(op, 1))
    seconds = np.array([[1.0] * 2, [2.0] * 2, [3.0] * 2, [4.0] * 2])
    cluster = Cluster((Device("gpu:0", "gpu"), Device("gpu:1", "gpu")))
    problem = Problem.of_ops(builder.build(), cluster, CostTable(seconds))
    assert layers_of(problem).group_of.tolist() == [0, 0, 1, 2]
    assert by_layers(problem).tolist() == [0, 0, 0, 1]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_unit_that_no_fast_device_may_run_has_no_share_of_the_layers() -> None:
    """Ops of 2, 2 and 4 s for two devices, and b, which only the CPU can run: c ends at 4 of 8."""
    builder = GraphBuilder()
    tensors: list[int] = []
    for name in ("a", "b", "c", "d"):
        tensors.append(builder.add_tensor(builder.add_op(name, "Op", inputs=tensors[-1:]), 1))
    seconds = np.array([[2.0, 2.0, 9.0], [np.inf, np.inf, 9.0], [2.0, 2.0, 9.0], [4.0, 4.0, 9.0]])
    cluster = Cluster((Device("gpu:0", "gpu"), Device("gpu:1", "gpu"), Device("cpu:0", "cpu")))
    problem = Problem.of_ops(builder.build(), cluster, CostTable(seconds))
    assert by_layers(problem).tolist() == [0, 2, 0, 1]


def test_parts_that_do_not_fit_move_unless_the_published_placement_is_asked_for() -> None:
    builder = GraphBuilder()
    tensors: list[int] = []
    for number in range(6):
        weight = builder.add_weight(1000.0 * (1 + number % 3))
        op = builder.add_op(f"net.layer.{number}", "Op", inputs=tensors[-1:], weights=[weight],
                            module=f"net.layer.{number}")  # fmt: skip
        tensors.append(builder.add_tensor(op, 1))
    links = (Link("gpu:0", "gpu:1"), Link("gpu:1", "gpu:0"))
    cluster = Cluster((Device("gpu:0", "gpu"), Device("gpu:1", "gpu")), links)
    problem = Problem.of_ops(builder.build(), cluster, CostTable(np.ones((6, 2))))
    assert by_layers(problem).tolist() == [0, 0, 0, 1, 1, 1]
    tight = replace(problem, cluster=cluster.with_limit("gpu:0", 5500.0))

    def solved(problem: Problem, expert: Expert) -> Solution:
        return expert.place(problem, Evaluator(problem), np.random.default_rng(0))

    published = solved(tight, Expert(rule="layers", within_memory=False))
    assert published.placement is None
    assert published.message.startswith("the expert's placement is infeasible: ")
    found = solved(tight, Expert(rule="layers"))
    assert found.placement is not None
    assert Simulator(tight).violation(found.placement) is None
    assert found.message.startswith("parts of the expert's placement were moved, because ")
    free = solved(problem, Expert(rule="layers"))
    assert free.placement is not None
    assert not free.message
    assert free.placement.device_of.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_file_and_a_rule_are_refused_together() -> None:
    with pytest.raises(InputError, match=r"give file or rule, not both, got 'a.json' and 'layers'"):
        Expert(file="a.json", rule="layers")


def test_layers_follow_the_speeds_of_devices() -> None:
    """Four equal layers; gpu:0 takes a third of the seconds of gpu:1, so three of four."""
    builder = GraphBuilder()
    tensors: list[int] = []
    for name in ("a", "b", "c", "d"):
        tensors.append(builder.add_tensor(builder.add_op(name, "Op", inputs=tensors[-1:]), 1))
    cluster = Cluster((Device("gpu:0", "gpu"), Device("gpu:1", "gpu")))
    problem = Problem.of_ops(builder.build(), cluster, CostTable(np.tile([1.0, 3.0], (4, 1))))
    assert by_layers(problem).tolist() == [0, 0, 0, 1]
