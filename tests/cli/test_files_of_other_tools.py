"""Models that other tools wrote: placed on two cores, run in another process, outputs theirs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess, placewright

from placewright.session.plans import read_plan
from placewright.session.session import run

DATA = Path(__file__).parents[1] / "data" / "tensorflow"
SPLIT = ("--placer", "round-robin", "--quick", "--no-check", "-o", "plan.json")


def two_cores() -> str:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    return "cpu:0,cpu:1"


def place_and_run(cli: InProcess, model: Path, folder: Path, *options: object) -> Path:
    """Place on two cores, in turns, and run in a process of its own; the plan."""
    placed = cli(
        "place", model, "--devices", two_cores(), "--evaluations", 20, *SPLIT, *options, cwd=folder
    )
    assert placed.returncode == 0, placed.stderr
    done = placewright("run", "plan.json", "--searched", "--runs", 1, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "outputs equal to the unsplit model" in done.stdout
    return folder / "plan.json"


@pytest.mark.parametrize("name", ["network.tflite", "network.pb", "network"])
def test_tensorflow(name: str, tmp_path: Path, cli: InProcess) -> None:
    """A flat buffer, a frozen graph and a SavedModel folder with variables, by TensorFlow 2.21."""
    plan = read_plan(place_and_run(cli, DATA / name, tmp_path), searched=True)
    assert len(np.unique(plan.placement.device_of)) == 2
    held = np.load(DATA / "expected.npz")
    (found,) = run(plan, [held["image"]])
    np.testing.assert_allclose(found, held["output"], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_network_of_the_onnx_package(runtime: str, tmp_path: Path, cli: InProcess) -> None:
    """ShuffleNet as Caffe2 exported it: half of its nodes have no name, nodes make its weights."""
    import onnx

    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    model = data / "light" / "light_shufflenet.onnx"
    if not model.exists():
        pytest.skip("this onnx package has no backend test data")
    plan = read_plan(place_and_run(cli, model, tmp_path, "--runtime", runtime), searched=True)
    assert len(np.unique(plan.placement.device_of)) == 2


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_program_of_torch_export(runtime: str, tmp_path: Path, cli: InProcess) -> None:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4), torch.nn.Softmax(-1)
    )
    x = torch.randn(3, 8)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "m.pt2")
    path = place_and_run(cli, tmp_path / "m.pt2", tmp_path, "--runtime", runtime)
    plan = read_plan(path, searched=True)
    (found,) = run(plan, [x.numpy()])
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-4, atol=1e-6)


def test_no_option_at_all(tmp_path: Path, cli: InProcess) -> None:
    """`placewright place model.onnx` measures, searches, runs, compares and writes plan.json."""
    import onnx
    from support.branching_model import branching_model

    onnx.save(branching_model(), str(tmp_path / "model.onnx"))
    done = cli("place", "model.onnx", "--budget", "1s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "outputs equal to the unsplit model" in done.stdout
    assert "lower bound" in done.stdout
    assert "searched (auto)" in done.stdout
    assert (tmp_path / "plan.json").is_file()
