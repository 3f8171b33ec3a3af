"""Small model files of every format, written into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_makers import WEIGHT, graph_def, write_onnx

CHAIN: dict[str, Any] = {
    "maxSizePerFPGA": 100.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {
            "id": node,
            "supportedOnFpga": 1,
            "cpuLatency": 40.0,
            "fpgaLatency": 4.0,
            "isBackwardNode": 0,
            "colorClass": node,
            "size": 40.0,
        }
        for node in (1, 2)
    ],
    "edges": [{"sourceId": 1, "destId": 2, "cost": 1.0, "size": 1.0}],
}


def make_onnx(folder: Path) -> Path:
    write_onnx(folder / "m.onnx")
    return folder / "m.onnx"


def make_xml(folder: Path) -> Path:
    import openvino

    openvino.save_model(openvino.convert_model(make_onnx(folder)), str(folder / "m.xml"))
    return folder / "m.xml"


def make_tflite(folder: Path) -> Path:
    from tflite_maker import write_tflite

    write_tflite(folder / "m.tflite", WEIGHT)
    return folder / "m.tflite"


def make_pt2(folder: Path) -> Path:
    import torch

    layer = torch.nn.Linear(4, 4)
    torch.export.save(torch.export.export(layer, (torch.ones(1, 4),)), folder / "m.pt2")
    return folder / "m.pt2"


def make_pb(folder: Path) -> Path:
    (folder / "m.pb").write_bytes(graph_def())
    return folder / "m.pb"
