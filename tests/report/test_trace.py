"""Traces pass a checker of the Chrome trace format, and hold every op."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.trace_check import check_trace

from placewright.core.placement import Placement
from placewright.report.trace import SegmentRun, run_trace_text, trace_text
from placewright.simulation.model import Simulator
from tests.report.report_problems import allowed_rows, feasible_rows, odd_problem


def test_the_checker_finds_overlaps() -> None:
    event = {"ph": "X", "name": "a", "cat": "c", "pid": 0, "tid": 0}
    name = {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "p"}}
    both = [name, {**event, "ts": 0, "dur": 5}, {**event, "ts": 3, "dur": 5}]
    with pytest.raises(AssertionError, match="overlap"):
        check_trace(json.dumps({"traceEvents": both}))


@pytest.mark.parametrize("seed", range(12))
def test_predicted_and_measured_traces_are_well_formed_and_complete(seed: int) -> None:
    problem = odd_problem(seed)
    simulator = Simulator(problem)
    feasible = feasible_rows(problem, seed)
    timeline = simulator.timeline(Placement.of(feasible[0]))
    events = check_trace(trace_text(problem, timeline))
    names = [event["name"] for event in events if event["cat"] != "transfer"]
    assert sorted(names) == sorted(problem.unit_graph.op_names)
    assert len(events) - len(names) == len(timeline.transfers)
    runs = _segments(problem, timeline)
    both = check_trace(run_trace_text(problem, timeline, runs))
    measured = [event for event in both if event["cat"] == "segment"]
    ops = [op for event in measured for op in event["args"]["ops"]]
    assert sorted(ops) == sorted(problem.graph.op_names)
    predicted = {event["pid"] for event in both if event["cat"] != "segment"}
    assert not predicted & {event["pid"] for event in measured}


def test_perfetto_reads_the_trace_where_it_is_installed(tmp_path: Path) -> None:
    processor = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if processor is None:
        pytest.skip("Perfetto's trace_processor is not installed")
    problem = odd_problem(1)
    timeline = Simulator(problem).timeline(
        Placement.of(allowed_rows(problem, np.random.default_rng(1), 1)[0])
    )
    path, query = tmp_path / "t.json", tmp_path / "q.sql"
    path.write_text(trace_text(problem, timeline))
    query.write_text("select count(*) as n from slice;")
    done = subprocess.run(
        [processor, "-q", str(query), str(path)], capture_output=True, text=True, check=True
    )
    assert str(problem.n_units + len(timeline.transfers)) in done.stdout


def _segments(problem: Any, timeline: Any) -> list[SegmentRun]:
    """The predicted segments as if they had been measured, a tenth slower."""
    found = []
    for segment in range(int(timeline.segment_of.max()) + 1):
        units = np.flatnonzero(timeline.segment_of == segment)
        if not len(units):
            continue
        ops = [
            problem.graph.op_names[op]
            for unit in units
            for op in problem.units.members.row(int(unit)).tolist()
        ]
        before = max((run.end for run in found), default=0.0)
        found.append(
            SegmentRun(int(timeline.device_of[units[0]]), tuple(ops), before, before + 1.1)
        )
    return found
