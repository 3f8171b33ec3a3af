"""`--report` on every command that has it, `report`, `explain`, `diff`, and `run --trace`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx
import pytest
from cli.runner import InProcess, the_line
from support.branching_model import branching_model
from support.page_data import unpacked
from support.trace_check import check_trace

CORES = ("--devices", "cpu:0,cpu:1", "--evaluations", 20)
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    return tmp_path


def test_one_plan_through_all_commands(folder: Path, cli: InProcess) -> None:
    placed = cli(
        "place", "m.onnx", *CORES, "--quick", "--no-check", "--report", "place.html", cwd=folder
    )
    assert placed.returncode == 0, placed.stderr
    assert "wrote place.html" in placed.stderr
    page = unpacked((folder / "place.html").read_text())
    plan = json.loads((folder / "plan.json").read_text())
    assert page["plan"]["value"] == plan["predicted"]["value"]
    assert page["plan"]["measured"] is None
    ops = list(plan["placement"])

    ran = cli(
        "run", "plan.json", "--runs", 3, "--trace", "t.json", "--report", "run.html", cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    measured = unpacked((folder / "run.html").read_text())["plan"]["measured"]
    assert measured["runs"] == 3
    assert measured["median"] > 0
    events = check_trace((folder / "t.json").read_text())
    segments = [event for event in events if event["cat"] == "segment"]
    assert sorted(op for event in segments for op in event["args"]["ops"]) == sorted(ops)
    units = [e for e in events if e["cat"] not in ("segment", "transfer")]
    assert sum(event["args"]["ops"] for event in units) == len(ops)

    other = "cpu:1" if plan["placement"][ops[0]] == "cpu:0" else "cpu:0"
    change = ("--set", f"{ops[0]}={other}")
    simulated = cli("simulate", "plan.json", *change, "--report", "what.html", cwd=folder)
    assert simulated.returncode == 0, simulated.stderr
    moved = unpacked((folder / "what.html").read_text())
    assert moved["plan"]["device"] != page["plan"]["device"]
    assert moved["plan"]["run"] == moved["plan"]["verdict"]["next"] == ""
    assert "Next:" not in simulated.stdout
    searched = cli("report", "plan.json", "--searched", "--json", cwd=folder)
    run = page["plan"]["run"].replace("plan.json", "plan.json --searched")
    assert json.loads(searched.stdout)["plan"]["run"] == run

    found = json.loads(cli("explain", "plan.json", ops[0], "--json", cwd=folder).stdout)
    assert {row["device"] for row in found["devices"]} == {"cpu:0", "cpu:1"}
    there = next(row for row in found["devices"] if row["device"] == other)
    assert there["value"] == moved["plan"]["value"]
    assert "no op 'nothing'" in the_line(cli("explain", "plan.json", "nothing", cwd=folder), 2)

    same = cli("diff", "plan.json", "plan.json", cwd=folder)
    assert same.stdout.startswith("the placements are the same")
    two = cli("report", "plan.json", "plan.json", "-o", "two.html", cwd=folder)
    assert two.returncode == 0, two.stderr
    assert two.stdout.splitlines()[0] == page["plan"]["verdict"]["sentence"]
    assert unpacked((folder / "two.html").read_text())["other"]["moved_units"] == []


def test_a_report_never_replaces_what_was_read(folder: Path, cli: InProcess) -> None:
    before = (folder / "m.onnx").read_bytes()
    refused = cli("place", "m.onnx", *CORES, "--no-check", "--report", "m.onnx", cwd=folder)
    assert refused.returncode == 2
    assert (folder / "m.onnx").read_bytes() == before


def test_compare_and_bench_keep_their_tables(folder: Path, cli: InProcess) -> None:
    words = ("compare", "m.onnx", *CORES, "--placers", "heft,random", "--report", "c.html")
    compared = cli(*words, "--quick", cwd=folder)
    assert compared.returncode == 0, compared.stderr
    page = (folder / "c.html").read_text()
    assert "the smallest value" in page
    assert "<td>heft</td>" in page
    assert "<script" not in page
    assert "--seeds</span> runs more" in page
    assert "argument `" not in page
    suite = ("suite", "--problems", "layered 1000 x 4", "--placers", "heft", "--seconds", 3)
    benched = cli("bench", "--report", "b.html", *suite, cwd=folder)
    assert benched.returncode == 0, benched.stderr
    assert "<table>" in (folder / "b.html").read_text()
    (folder / "b.html").unlink()
    silent = cli("bench", "--report", "b.html", *suite, "--json", cwd=folder)
    assert "warning: b.html was not written: no table was printed" in silent.stderr
    assert not (folder / "b.html").exists()
