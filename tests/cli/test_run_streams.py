"""`run --samples`, `--seconds` and `--latency-limit`: what they measure, and what they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import onnx
import pytest
from cli.runner import InProcess, the_line
from support.branching_model import branching_model

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@two_cores
def test_a_stream_for_some_time_and_under_a_limit(tmp_path: Path, cli: InProcess) -> None:
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    words = ("--devices", "cpu:0,cpu:1", "--objective", "throughput", "--evaluations", 20)
    placed = cli("place", "m.onnx", *words, "--quick", cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr

    few = json.loads(cli("run", "plan.json", "--samples", 25, "--json", cwd=tmp_path).stdout)
    assert few["samples"] == 25
    assert few["equal"] is True
    assert {"plan", "one copy per device"} <= set(few["contenders"])

    for number in (0, -1):
        words = ("plan.json", "--samples", 20, "--in-flight", number)
        line = the_line(cli("run", *words, cwd=tmp_path), 2)
        assert f"in-flight must be >= 1, got {number}" in line
        assert cli("simulate", *words, cwd=tmp_path).stderr == line

    done = cli("run", "plan.json", "--seconds", 2, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] >= 1

    done = cli("run", "plan.json", "--samples", 20, "--latency-limit", "1h", cwd=tmp_path)
    assert "for 95 % of the samples, more than" not in " ".join(done.stdout.split())
    done = cli("run", "plan.json", "--samples", 20, "--latency-limit", "1ns", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "'plan' takes" in said
    assert "no contender keeps the latency limit" in said


def test_what_a_stream_needs(tmp_path: Path, cli: InProcess) -> None:
    (tmp_path / "plan.json").write_text("{}")
    alone = cli("run", "plan.json", "--latency-limit", "1s", cwd=tmp_path)
    assert "--latency-limit applies to streams" in the_line(alone, 2)
    bad = cli("run", "plan.json", "--samples", 20, "--latency-limit", "soon", cwd=tmp_path)
    assert bad.returncode == 2
