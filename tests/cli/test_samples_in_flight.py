"""Memory under `max-load`: what is counted, what is said of the rest, --samples-in-flight."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli.runner import InProcess, the_line

import placewright as pw
from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.problem import Problem
from placewright.errors import InfeasibleError, InputError
from placewright.files.problem_file import write_problem
from placewright.session.search import WEIGHTS_ONLY
from placewright.simulation.model import Simulator

STEP = ("zoo:bert_base/tiny", "--objective", "training", "--execution-model", "max-load")
SPLIT = ("--devices", "catalogue:2gpu", "--placer", "even-split", "--memory", "gpu:1=1MB")


def pipeline_problem(*, near: float = 1.0) -> Problem:
    """A chain of four ops on two machines of two devices; links within one take `near` a byte."""
    builder = GraphBuilder()
    tensor = None
    for name in "abcd":
        inputs = [] if tensor is None else [tensor]
        op = builder.add_op(name, "Op", inputs=inputs, weights=[builder.add_weight(5.0)])
        tensor = builder.add_tensor(op, 7.0, is_output=name == "d")
    names = ["0.0", "0.1", "1.0", "1.1"]
    ends = [(a, b) for a in [*names, "host"] for b in [*names, "host"] if a != b]
    links = tuple(Link(a, b, bandwidth=1 / (near if a[0] == b[0] else 1.0)) for a, b in ends)
    cluster = Cluster(tuple(Device(name) for name in names), links)
    base = Problem.of_ops(builder.build(), cluster, CostTable(frozen_floats(np.ones((4, 4)))))
    return replace(base, objective="throughput", execution_model=MaxLoad(samples_in_flight=0))


def plain_bytes(problem: Problem, device_of: list[int], samples: int) -> list[float]:
    """Weights once per device, and each tensor once per sample wherever it is made or read."""
    graph = problem.unit_graph
    kept: list[dict[str, float]] = [{} for _ in range(problem.n_devices)]
    for unit, device in enumerate(device_of):
        for weight in graph.op_weights.row(unit).tolist():
            kept[device][f"weight {weight}"] = float(graph.weight_bytes[weight])
        for tensor in [*graph.op_inputs.row(unit).tolist(), *graph.op_outputs.row(unit).tolist()]:
            kept[device][f"tensor {tensor}"] = samples * float(graph.tensor_bytes[tensor])
    return [sum(of_device.values()) for of_device in kept]


def test_a_plan_says_what_its_bytes_leave_out(tmp_path: Path, cli: InProcess) -> None:
    """A training step of which weights fit a device and one sample does not."""
    told = cli("place", *STEP, *SPLIT, "--samples-in-flight", 0, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "(weights only)" in told.stdout
    assert "peak memory" not in told.stdout
    assert "warning: with one sample in flight 'gpu:1' needs" in told.stdout
    assert "warning: memory limits hold for weights only under 'max-load'" in told.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["predicted"]["memory_counts"] == "weights only"
    simulated = cli("simulate", tmp_path / "plan.json", "--json", cwd=tmp_path)
    assert json.loads(simulated.stdout)["memory_counts"] == "weights only"


def test_a_model_that_is_read_keeps_one_sample(tmp_path: Path, cli: InProcess) -> None:
    told = cli("place", *STEP, *SPLIT, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "(weights and 1 sample in flight)" in told.stdout
    assert "warning" not in told.stdout + told.stderr
    plan = pw.read_plan(tmp_path / "plan.json")
    assert plan.problem.execution_model == MaxLoad(1)
    assert plan.memory["gpu:1"] <= 1e6
    counted = plain_bytes(plan.problem, plan.placement.device_of.tolist(), samples=1)
    assert list(plan.memory.values()) == pytest.approx(counted)


def squares(path: Path) -> Path:
    """Eight products with square matrices of 16 KiB each, which also are all tensors' sizes."""
    names = [f"x{at}" for at in range(9)]
    nodes = [
        onnx.helper.make_node("MatMul", [names[at], f"w{at}"], [names[at + 1]]) for at in range(8)
    ]
    weights = [
        onnx.numpy_helper.from_array(np.full((64, 64), 0.1, np.float32), f"w{at}")
        for at in range(8)
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (64, 64))
        for name in (names[0], names[-1])
    ]
    graph = onnx.helper.make_graph(nodes, "squares", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def test_what_fits_as_a_stream_is_placed_and_the_answer_says_how(
    tmp_path: Path, cli: InProcess
) -> None:
    """Half of the weights and all tensors of that half: 144 KiB; two at a time: 96 KiB."""
    squares(tmp_path / "squares.onnx")
    words = ("place", "squares.onnx", "--devices", "catalogue:2gpu", "--objective", "throughput")
    limits = ("--memory", "cpu=40KiB", "--memory", "gpu:*=120KiB", "--evaluations", 50)
    told = cli(*words, *limits, "--report", "page.html", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    line = f"left out: {WEIGHTS_ONLY}"
    assert line in told.stdout
    assert "(weights only)" in told.stdout
    assert "warning" not in told.stdout + told.stderr
    assert escape(line) in (tmp_path / "page.html").read_text()
    document = json.loads((tmp_path / "plan.json").read_text())
    assert WEIGHTS_ONLY in document["left_out"]
    plan = pw.read_plan(tmp_path / "plan.json")
    assert plan.problem.execution_model == MaxLoad(samples_in_flight=0)
    simulated = cli("simulate", "plan.json", "--samples", 20, "--json", cwd=tmp_path)
    assert simulated.returncode == 0, simulated.stderr
    for number in (1, "pipeline"):
        refused = the_line(cli(*words, *limits, "--samples-in-flight", number, cwd=tmp_path), 1)
        assert "no placement is possible" in refused
        assert "or --samples-in-flight 0, which counts weights only" in refused


@pytest.mark.filterwarnings("error")
def test_the_facade_falls_back_as_the_command_does(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "devices": "catalogue:2gpu", "objective": "throughput", "evaluations": 50,
        "memory": {"cpu": "40KiB", "gpu:*": "120KiB"},
    }  # fmt: skip
    path = str(squares(tmp_path / "squares.onnx"))
    plan = pw.place(path, **asked)
    assert WEIGHTS_ONLY in plan.left_out
    assert WEIGHTS_ONLY.split(",")[0] in " ".join(str(plan).split())
    with pytest.raises(InfeasibleError, match="no placement is possible"):
        pw.place(path, **asked, samples_in_flight=1)


def test_no_samples_where_the_execution_model_has_none(tmp_path: Path, cli: InProcess) -> None:
    words = ("place", "zoo:moe/tiny", "--devices", "catalogue:2gpu", "--samples-in-flight")
    assert "execution model 'event' has no samples" in the_line(cli(*words, 2, cwd=tmp_path), 2)
    below = the_line(cli(*words, -1, "--objective", "throughput", cwd=tmp_path), 2)
    assert "expects a number >= 0 of at most 18 digits, or 'pipeline', got '-1'" in below
    with pytest.raises(InputError, match="must be >= 0"):
        MaxLoad(samples_in_flight=-1)


def test_a_stored_problem_keeps_its_own_and_takes_another(tmp_path: Path, cli: InProcess) -> None:
    stored = tmp_path / "stored.problem.json"
    write_problem(stored, pipeline_problem().with_samples_in_flight(3))
    option = "--samples-in-flight"
    for words, expected in (((), 3), ((option, 0), 0), ((option, "pipeline"), 4)):
        few = ("--placer", "single", "--evaluations", 3, "-o", tmp_path / "plan.json")
        made = cli("place", stored, *few, *words, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        stored_model = pw.read_plan(tmp_path / "plan.json").problem.execution_model
        assert stored_model == MaxLoad(expected)


def test_the_facade_says_what_a_limit_leaves_out() -> None:
    base = pipeline_problem()
    tensors = float(base.unit_graph.tensor_bytes.sum())
    weights = float(base.unit_graph.weight_bytes.sum())
    devices = tuple(replace(one, memory_bytes=weights + 1) for one in base.cluster.devices)
    problem = replace(base, cluster=replace(base.cluster, devices=devices))
    assert tensors > 1
    with pytest.warns(UserWarning, match="memory limits hold for weights only"):
        pw.place(problem, placer="single", budget=pw.Budget(evaluations=5))
    flying = problem.with_samples_in_flight(2)
    device_of = np.zeros(problem.n_units, dtype=np.int64)
    one = Simulator(flying).memory_peaks(pw.Placement(device_of))
    assert one.tolist() == plain_bytes(flying, device_of.tolist(), samples=2)
