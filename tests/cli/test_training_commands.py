"""Training steps through every command, end to end on the smallest zoo models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli.runner import Benchmark, InProcess, the_line

STEP = ("--objective", "training", "--devices", "cpu:0,cpu:1")
FEW = ("--placer", "local-search", "--evaluations", 30, "--quick", "--no-check")


@pytest.fixture(autouse=True)
def two_cores() -> None:
    from placewright.frameworks.torch.running.devices import discovered

    if not [device for device in discovered() if device.name == "cpu:1"]:
        pytest.skip("two cores are needed")


def test_a_step_is_read_placed_run_and_simulated(tmp_path: Path, cli: InProcess) -> None:
    read = cli("graph", "zoo:rnnlm/tiny", "--objective", "training", "--json", cwd=tmp_path)
    summary = json.loads(read.stdout)
    assert min(summary["phases"].values()) > 0
    largest = summary["largest_unit"]
    shown = cli("graph", "zoo:rnnlm/tiny", "--objective", "training", cwd=tmp_path).stdout
    assert f" edges, {summary['units']} units" in shown
    assert f"ops around '{largest['op']}' with " in shown
    words = ("--placer", "even-split", "--quick", "--no-check")
    placed = cli("place", "zoo:rnnlm/tiny", *STEP, *words, cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["runtime"] == "torch"
    split = (plan["searched"] or plan)["placement"]
    assert sorted(dict.fromkeys(split.values())) == ["cpu:0", "cpu:1"]
    done = cli("run", "plan.json", "--searched", "--runs", 2, "--json", cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    found = json.loads(done.stdout)
    # Embedding, two cells of weight and bias, head of weight and bias; each with its momentum.
    assert found["equal"] is True
    assert found["updated_tensors"] == 14
    simulated = cli("simulate", "plan.json", "--json", cwd=tmp_path)
    assert simulated.returncode == 0, simulated.stderr


def test_a_model_that_fits_no_device_is_placed_and_its_peaks_are_measured(
    tmp_path: Path, benchmark: Benchmark
) -> None:
    limits = ("--share", 0.8, "--budget", "3s", "--results", "memory.json")
    done = benchmark("memory", "--models", "zoo:rnnlm/tiny", *limits, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["equal"] is True
    assert row["limit"] == pytest.approx(0.8 * row["whole"])
    for device, predicted in row["predicted"].items():
        assert 0 < predicted <= row["limit"]
        assert row["measured"][device] == pytest.approx(predicted, rel=0.1)
    assert json.loads((tmp_path / "memory.json").read_text())["rows"] == [row]
    refused = benchmark("memory", "--models", "zoo:rnnlm/tiny", "--share", 1.5, cwd=tmp_path)
    assert "--share must be between 0 and 1, got 1.5" in refused.stderr
    assert refused.returncode == 2


def test_a_device_that_cannot_hold_the_step_is_no_alternative(
    tmp_path: Path, cli: InProcess
) -> None:
    limits = ("--memory", "cpu:0=250KB", "--memory", "cpu:1=250KB", "--evaluations", 200)
    placed = cli("place", "zoo:rnnlm/tiny", *STEP, "--placer", "local-search", *limits,
                 cwd=tmp_path)  # fmt: skip
    assert placed.returncode == 0, placed.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert sorted(dict.fromkeys(plan["placement"].values())) == ["cpu:0", "cpu:1"]
    assert "cpu:0" not in plan["measured"]["baselines"]
    assert "has 244.14 KiB" in " ".join(placed.stdout.split())
    done = cli("run", "plan.json", "--runs", 1, "--json", cwd=tmp_path)
    for peaks in json.loads(done.stdout)["memory"].values():
        assert peaks["measured"] == pytest.approx(peaks["predicted"], rel=0.1)
        assert peaks["measured"] <= 1.01 * 250e3


def test_the_optimizer_is_part_of_the_plan(tmp_path: Path, cli: InProcess) -> None:
    placed = cli("place", "zoo:rnnlm/tiny", *STEP, *FEW, "--optimizer", "adamw", cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    problem = json.loads((tmp_path / "plan.problem.json").read_text())
    assert "adamw" in json.dumps(problem)
    done = cli("run", "plan.json", "--runs", 1, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["updated_tensors"] == 7 * 4  # itself and three of AdamW


def test_a_file_of_a_module_that_returns_its_loss(tmp_path: Path, cli: InProcess) -> None:
    model = SmallLoss()
    examples = (torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    torch.export.save(torch.export.export(model, examples), tmp_path / "step.pt2")
    placed = cli("place", "step.pt2", *STEP, *FEW, cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    done = cli("run", "plan.json", "--runs", 1, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["updated_tensors"] == 8
    with torch.no_grad():
        model.first.weight.mul_(2.0)
    torch.export.save(torch.export.export(model, examples), tmp_path / "step.pt2")
    trained = cli("run", "plan.json", "--runs", 1, cwd=tmp_path)
    assert trained.returncode == 0, "training changes the values of weights itself"
    other = (torch.randn(3, 4), torch.tensor([0, 1, 2]))
    torch.export.save(torch.export.export(model, other), tmp_path / "step.pt2")
    refused = cli("run", "plan.json", cwd=tmp_path)
    assert "has changed" in the_line(refused, 2)


def test_a_loss_that_the_model_does_not_return_is_told(tmp_path: Path, cli: InProcess) -> None:
    """And is none of what a model that does return its loss is told."""
    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    torch.export.save(torch.export.export(layer, (x,)), tmp_path / "layer.pt2")
    told = "loss: sum of means of the outputs, because the model returns no scalar"
    read = cli("graph", "layer.pt2", "--objective", "training", cwd=tmp_path)
    assert told in read.stdout
    placed = cli("place", "layer.pt2", *STEP, *FEW, cwd=tmp_path)
    assert told in placed.stdout, placed.stderr
    done = cli("run", "plan.json", "--runs", 1, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["equal"] is True
    other = cli("graph", "zoo:rnnlm/tiny", "--objective", "training", cwd=tmp_path)
    assert "loss:" not in other.stdout


def test_a_module_in_memory_from_python(cli: InProcess) -> None:
    import placewright as pw

    module, examples = SmallLoss(), (torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    model = pw.read(module, examples, objective="training", optimizer="adam")
    cluster = pw.discover("cpu:0,cpu:1", runtime="torch")
    problem = pw.profile(model, cluster, objective="training")
    plan = pw.place(problem, placer="even-split")
    assert plan.runtime == "torch"
    inputs = [example.numpy() for example in examples]
    with torch.no_grad():
        expected = float(module(*examples))
    assert float(pw.run(plan, inputs)[0]) == pytest.approx(expected, rel=1e-6)


def test_inference_with_the_same_runtime(tmp_path: Path, cli: InProcess) -> None:
    placed = cli("place", "zoo:moe/tiny", "--runtime", "torch", "--devices", "cpu:0,cpu:1", *FEW,
                 cwd=tmp_path)  # fmt: skip
    assert placed.returncode == 0, placed.stderr
    done = cli("run", "plan.json", "--runs", 1, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (found["equal"], found["updated_tensors"]) == (True, 0)


def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, cli: InProcess) -> None:
    model, step = "zoo:rnnlm/tiny", ("--objective", "training")
    wrong = cli("graph", model, *step, "--runtime", "openvino", cwd=tmp_path)
    assert "cannot train" in the_line(wrong, 2)
    wrong = cli("graph", model, *step, "--optimizer", "lion", cwd=tmp_path)
    assert "sgd, adam, adamw" in the_line(wrong, 2)
    wrong = cli("graph", model, *step, "--shape", "tokens=3,4", cwd=tmp_path)
    assert "keeps the shapes" in the_line(wrong, 2)
    (tmp_path / "m.onnx").write_bytes(b"")
    wrong = cli("graph", "m.onnx", *step, cwd=tmp_path)
    assert ".pt2" in the_line(wrong, 2)


class SmallLoss(torch.nn.Module):
    """Two layers and their loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of rows (rows, 4)."""
        hidden = torch.tanh(self.first(x))
        return torch.nn.functional.cross_entropy(self.second(hidden), labels)
