"""Plans for a target: what is refused before and after the search, and whole modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from support.branching_model import branching_model
from writers.plans import plan_with

from placewright.core.cluster import Cluster, Device
from placewright.errors import FieldError, InexpressibleError, Interrupted
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.session import search
from placewright.session.export import (
    formats,
    formats_that_take,
    require_names,
    require_source,
    require_target,
)
from placewright.session.parsing import FORMATS
from placewright.session.problems import _granularity
from placewright.session.request import Request
from placewright.session.session import Session

CPU = Device("cpu")
CARDS = [Device(f"cuda:{at}", "gpu") for at in (0, 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(branching_model(), str(tmp_path / "m.onnx"))
    return tmp_path / "m.onnx"


def test_devices_that_a_target_cannot_tell_apart_are_refused() -> None:
    cores = Cluster((Device("cpu:0"), Device("cpu:1")))
    for target, name in (("openvino-affinity", "CPU"), ("onnx-layers", "cpu")):
        with pytest.raises(InexpressibleError, match=f"one name, '{name}', for 'cpu:0' and 'cpu:"):
            require_names(cores, target)
    with pytest.raises(InexpressibleError, match="two devices that PyTorch calls 'cpu'"):
        require_names(cores, "device-map")
    for target in (None, "onnx-segments", "llama.cpp"):
        require_names(cores, target)
    require_names(Cluster((CPU, CARDS[1])), "onnx-layers")
    with pytest.raises(InexpressibleError, match="one name, 'gpu', for 'cuda:0' and 'cuda:1'"):
        require_names(Cluster((CPU, *CARDS)), "onnx-layers")
    require_names(Cluster((CPU, *CARDS)), "device-map")


def test_a_model_that_was_read_otherwise_is_refused(path: Path) -> None:
    _, source = read_onnx(path)
    require_source(source, "onnx-layers")
    for target, text in (
        ("openvino-affinity", "place the model with argument `runtime` openvino"),
        ("device-map", "has no PyTorch modules"),
        ("vllm", "is for language models"),
    ):
        with pytest.raises((FieldError, InexpressibleError), match=text):
            require_source(source, target)


def test_modules_move_as_a_whole_for_a_device_map() -> None:
    assert _granularity(Request("m", target="device-map")) == "module"
    assert _granularity(Request("m", target="device-map", granularity="layer")) == "layer"
    assert _granularity(Request("m", target="onnx-layers")) == "op"
    assert formats() == FORMATS
    with pytest.raises(FieldError, match=r"target: is device-map, .*got 'onnx'"):
        Request("m", target="onnx")


def test_a_plan_that_its_target_cannot_express_is_refused(path: Path) -> None:
    graph, source = read_onnx(path)
    plan = plan_with(graph, [CPU, *CARDS], lambda op: op % 2 * 2, source, "onnxruntime")
    require_target(plan, "onnx-layers")
    require_target(plan, None)
    assert "onnx-layers" in formats_that_take(plan)
    pair = plan_with(graph, [CPU, *CARDS], lambda op: op % 3, source, "onnxruntime")
    with pytest.raises(InexpressibleError, match="uses cuda:0 and cuda:1; export it as onnx-seg"):
        require_target(pair, "onnx-layers")
    assert "onnx-layers" not in formats_that_take(pair)
    cores = plan_with(graph, [CPU, Device("cpu:0")], lambda op: op % 2, source, "onnxruntime")
    with pytest.raises(InexpressibleError, match="export it as onnx-segments"):
        require_target(cores, "onnx-layers")


@pytest.mark.parametrize("is_expressible", [True, False])
def test_an_interrupted_search_has_no_plan_that_its_target_cannot_express(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_expressible: bool
) -> None:
    graph, source = read_onnx(path)
    devices = [CPU, CARDS[0] if is_expressible else Device("cpu:0")]
    plan = plan_with(graph, devices, lambda op: op % 2, source, "onnxruntime")

    def interrupted(*_: object) -> None:
        raise Interrupted(None, plan)

    monkeypatch.setattr(search, "search_and_check", interrupted)
    said = {"runtime": "onnxruntime", "evaluations": 20, "target": "onnx-layers"}
    with pytest.raises(Interrupted) as caught:
        Session(str(path), devices="catalogue:cpu-xeon-8480", **said).place()
    assert caught.value.plan is (plan if is_expressible else None)


def test_a_session_places_for_its_target(path: Path) -> None:
    """The catalogue calls its cards `gpu`, which is no name of ONNX Runtime's."""

    def said(target: str) -> dict[str, Any]:
        return {"runtime": "onnxruntime", "evaluations": 20, "target": target}

    sheets = said("onnx-layers")
    plan = Session(str(path), devices="catalogue:cpu-xeon-8480", **sheets).place()
    assert "onnx-layers" in formats_that_take(plan)
    with pytest.raises(InexpressibleError, match="'gpu' has no name in ONNX Runtime"):
        Session(str(path), devices="catalogue:cpu-xeon-8480,gpu-t4", **sheets).place()
    with pytest.raises(InexpressibleError, match="`runtime` openvino"):
        Session(str(path), devices="catalogue:2gpu", **said("openvino-affinity")).place()
