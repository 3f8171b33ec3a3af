"""Seconds of kernels in a profile that ONNX Runtime wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placewright.frameworks.onnxruntime import kernels
from placewright.frameworks.onnxruntime.kernels import kernel_microseconds


def node(name: str, duration: float, provider: str = "CPUExecutionProvider") -> dict[str, Any]:
    args = {"provider": provider, "op_name": name}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": duration, "args": args}


def kernel(of: str, duration: float) -> dict[str, Any]:
    args = {"parent_name": f"{of}_kernel_time", "op_name": of}
    return {"cat": "Kernel", "name": "gemm", "dur": duration, "args": args}


def profile(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps([{"cat": "Session", "name": "model_run", "dur": 9}, *events]))
    return path


def test_the_last_runs_count(tmp_path: Path) -> None:
    runs = [node("a", 50), node("b", 1), node("a", 3), node("b", 1), node("a", 5), node("b", 3)]
    assert kernel_microseconds(profile(tmp_path / "p", *runs), 2) == {"a": 4.0, "b": 2.0}


def test_nodes_of_a_card_take_what_their_kernels_take(tmp_path: Path) -> None:
    """The node's own event is over as soon as the kernels are queued."""
    card = "CUDAExecutionProvider"
    runs = [
        *(node("conv", 8, card), kernel("conv", 900), kernel("conv", 100)),
        *(node("shape", 2), node("add", 7, card), kernel("add", 5)),
    ]
    found = kernel_microseconds(profile(tmp_path / "p", *runs, *runs), 2)
    assert found == {"conv": 1000.0, "shape": 2.0, "add": 5.0}


def test_without_kernels_of_a_card_seconds_are_unknown(tmp_path: Path) -> None:
    """Times of queueing would give all operators about the same share."""
    runs = [node("conv", 8, "CUDAExecutionProvider"), node("shape", 2)]
    assert kernel_microseconds(profile(tmp_path / "p", *runs), 1) == {}


def test_a_full_profile_has_no_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ONNX Runtime drops later events, and their operators would take 0 s."""
    monkeypatch.setattr(kernels, "MOST_EVENTS", 4)
    assert kernel_microseconds(profile(tmp_path / "p", *[node("a", 1)] * 2), 1) == {"a": 1.0}
    assert kernel_microseconds(profile(tmp_path / "q", *[node("a", 1)] * 3), 1) == {}
    assert "keeps 4 events" in caplog.text


def test_a_loop_on_a_card_takes_what_its_body_takes(tmp_path: Path) -> None:
    """Kernels name the nodes of the body, and the loop took nothing."""
    card = "CUDAExecutionProvider"
    loop = node("Loop", 5000, card)
    events = [node("body", 3, card), kernel("body", 4000), loop]
    assert kernel_microseconds(profile(tmp_path / "p", *events), 1)["Loop"] == 5000.0
