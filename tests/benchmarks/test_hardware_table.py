"""The table of contenders on the hardware: what is run, what breaks a limit, what is recorded."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_programs import step_program

from benchmarks.hardware_record import RecordRequest, record_hardware
from benchmarks.hardware_report import CHOSEN
from benchmarks.hardware_table import compare_on_hardware
from placewright.core.cluster import Cluster, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import InputError, StalePlanError
from placewright.frameworks.torch.running.runtime import TorchRuntime


@pytest.mark.slow
def test_contenders_are_measured_and_those_that_break_a_limit_are_told() -> None:
    program, graph, source = step_program()
    runtime = TorchRuntime(lambda _: program)
    model = runtime.load(source, graph)
    from dataclasses import replace

    devices = [d for d in runtime.discover() if d.name in ("cpu:0", "cpu:1")]
    if len(devices) < 2:
        pytest.skip("needs two cores")
    devices[0] = replace(devices[0], memory_bytes=100.0)
    names = ["cpu:0", "cpu:1", "host"]
    links = tuple(Link(a, b, 1e-5) for a in names for b in names if a != b)
    problem = Problem(
        graph,
        Cluster(tuple(devices), links),
        CostTable(np.full((graph.n_ops, 2), 1e-5), "measured"),
        Grouping.identity(graph.n_ops),
        objective="training",
    )
    table = compare_on_hardware(
        "step", problem, model, placer="heft", budget=Budget(evaluations=50), rounds=3
    )
    rows = {row.name: row for row in table.rows}
    assert rows["cpu:0"].measured is None
    assert "100" in rows["cpu:0"].reason
    assert math.isinf(rows["cpu:0"].predicted)
    assert rows["cpu:1"].measured is not None
    assert rows["cpu:1"].memory_measured["cpu:1"] > 0
    assert table.rows[-1].name == CHOSEN


def test_a_request_without_devices_names_what_is_missing(tmp_path: Path) -> None:
    options = {
        "folder": tmp_path,
        "models": "rnnlm/tiny,moe",
        "objective": "training",
        "placements": 3,
        "accuracy_models": "rnnlm",
        "budget": "2s",
        "memory": "1MiB",
    }
    request = RecordRequest.of_texts(devices="cpu:0,cpu:1", **options)
    assert request.accuracy_models == ("rnnlm/tiny",)
    assert request.memory == 2**20
    if not torch.accelerator.is_available():
        with pytest.raises(InputError, match="name devices"):
            RecordRequest.of_texts(devices=None, **options)


def test_a_record_keeps_the_machine_that_it_was_made_on(tmp_path: Path) -> None:
    """A later run on another machine, with nothing left to measure, put its own name there."""
    request = RecordRequest(tmp_path, "cpu:0")
    before = record_hardware(request, lambda line: None)["machine"]
    assert list(before["devices"]) == ["cpu:0"]
    assert record_hardware(request, lambda line: None)["machine"] == before
    path = tmp_path / "record.json"
    path.write_text(path.read_text().replace(before["devices"]["cpu:0"], "another core"))
    with pytest.raises(StalePlanError, match="was recorded on other devices"):
        record_hardware(request, lambda line: None)
    assert "another core" in path.read_text()
