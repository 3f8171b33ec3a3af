"""A processor that several devices share has rows of its own wherever time is shown."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from report.report_problems import plan_for

from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.report.page import asset, summary_parts
from placewright.report.page_document import document_of
from placewright.report.page_times import device_times
from placewright.report.timeline_text import load_bars, timeline_bars
from placewright.simulation.model import Simulator

_ASK = """
const root = globalThis.placewright;
const state = new root.State(JSON.parse(require("fs").readFileSync(process.argv[2])));
const rows = root.timelineRows(state, state.current, "");
const units = rows.filter((row) => row.kind === "unit")
  .map((row) => [row.label, row.items.map((unit) => state.names[unit])]);
process.stdout.write(JSON.stringify([units, state.waitText(rows[0].view, 0)]));
"""


def two_modes() -> Problem:
    """Ops of 2 and 3 s, each in a mode of a card: the longer one begins, and the other waits."""
    graph = nx.DiGraph()
    graph.add_nodes_from(["short", "long"])
    return Problem.from_costs(
        graph,
        [[2.0, 9.0], [9.0, 3.0]],
        (0.0, float("inf")),
        devices=["f32", "f16"],
        processors={"f32": ["card"], "f16": ["card"]},
    )


def test_the_terminal_has_a_bar_of_the_processor() -> None:
    problem = two_modes()
    apart, together = (
        timeline_bars(problem, Simulator(problem).timeline(Placement.of(row)), 60, plain=True)
        for row in ([0, 1], [0, 0])
    )
    (line,) = [line for line in apart if line.startswith("processor card")]
    assert line.endswith("100%")
    assert not any("processor" in line for line in together)


def test_processors_without_a_bar_are_counted() -> None:
    """Nine cards, each with two modes that run an op: eight have a bar."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(18))
    names = [f"mode {at}" for at in range(18)]
    problem = Problem.from_costs(
        graph,
        np.ones((18, 18)),
        (0.0, float("inf")),
        devices=names,
        processors={name: [f"card {at // 2}"] for at, name in enumerate(names)},
    )
    timeline = Simulator(problem).timeline(Placement.of(range(18)))
    lines = timeline_bars(problem, timeline, 60, plain=True)
    assert sum(line.startswith("processor card") for line in lines) == 8
    assert "1 more processors, less busy, are not shown" in lines


def test_loads_are_to_the_scale_of_the_busiest_processor() -> None:
    problem = replace(two_modes(), objective="throughput", execution_model=MaxLoad(0))
    loads = Simulator(problem).loads(np.array([0, 1]))
    lines = load_bars(problem, loads, 60, plain=True)
    assert [line.split()[-2] for line in lines] == ["2", "3", "5"]
    bars = [line.count("#") for line in lines]
    assert bars[0] + bars[1] == bars[2]


def test_idle_time_of_a_device_is_the_work_of_its_processor() -> None:
    problem = two_modes()
    first, second = device_times(problem, Simulator(problem).timeline(Placement.of([0, 1])))
    assert (first.busy, first.idle["processor"]) == (2.0, 3.0)
    assert (second.busy, second.idle["no work left"]) == (3.0, 2.0)


def test_the_page_has_the_processor_in_its_tables() -> None:
    parts = summary_parts(document_of(plan_for(two_modes(), np.array([0, 1])), "net"))
    text = "".join(parts.values())
    assert "processor card" in text
    assert "waits for its processor" in text


def test_the_page_draws_a_row_of_the_processor(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    scripts = [asset(f"{name}.js") for name in ("format", "state", "timeline_rows")]
    (tmp_path / "ask.js").write_text("\n".join([*scripts, _ASK]))
    document = document_of(plan_for(two_modes(), np.array([0, 1])), "net")
    (tmp_path / "data.json").write_text(json.dumps(document))
    command = ["node", str(tmp_path / "ask.js"), str(tmp_path / "data.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    rows, waited = json.loads(done.stdout)
    assert rows == [["f32", ["short"]], ["f16", ["long"]], ["processor card", ["long", "short"]]]
    assert waited == "its processor was busy with long"
