"""A problem of devices that this machine lacks: placed, asked what if, and not run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess, the_line

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.source import ModelSource


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two ops in a row, each at home on another of two devices; 2 s in all, 1 s on the way."""
    builder = GraphBuilder()
    first = builder.add_tensor(builder.add_op("first", "Op"), 8.0)
    builder.add_op("second", "Op", inputs=[first])
    devices = (Device("cuda:0", kind="gpu"), Device("cuda:1", kind="gpu"))
    links = (Link("cuda:0", "cuda:1", 0.0, 8.0), Link("cuda:1", "cuda:0", 0.0, 8.0))
    seconds = frozen_floats(np.array([[1.0, 9.0], [np.inf, 1.0]]))
    costs = CostTable(seconds, source="recorded")
    problem = pw.Problem.of_ops(builder.build(), Cluster(devices, links), costs)
    problem = replace(problem, source=ModelSource("elsewhere.onnx", "0" * 64, "onnx"))
    path = tmp_path / "problem.json"
    pw.write_problem(path, problem)
    return path


def test_it_is_placed_and_asked_but_not_run(recorded: Path, cli: InProcess) -> None:
    folder = recorded.parent
    placed = cli("place", "problem.json", "--placer", "heft", "--json", cwd=folder)
    assert placed.returncode == 0, placed.stderr
    plan = json.loads(placed.stdout)
    assert plan["placement"] == {"first": "cuda:0", "second": "cuda:1"}
    assert plan["predicted"]["value"] == 3.0
    assert plan["measured"] is None
    moved = cli("simulate", "plan.json", "--set", "first=cuda:1", "--json", cwd=folder)
    assert json.loads(moved.stdout)["value"] == 10.0
    told = the_line(cli("run", "plan.json", cwd=folder), 2)
    assert "costs are 'recorded'" in told


def test_the_facade_gives_the_same_values(recorded: Path) -> None:
    problem = pw.read_problem(recorded)
    assert problem.costs.source == "recorded"
    simulator = pw.Simulator(problem)
    assert simulator.values([[0, 1], [1, 1], [0, 0]]).tolist() == [3.0, 10.0, np.inf]
