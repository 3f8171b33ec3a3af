"""The zoo through both readers: op and edge counts, and the IR files made for OpenVINO."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from support.zoo_families import FAMILY_OF
from torch_programs import read_torch

from placewright import zoo
from placewright.errors import FileFormatError
from placewright.frameworks.openvino.conversion import OpenVinoConverter
from placewright.frameworks.openvino.reader import read_openvino
from placewright.frameworks.torch.programs import program_file
from placewright.placers.baselines.expert.placer import family_of


def ir_of(name: str, folder: Path) -> tuple[Path, zoo.ZooModel]:
    model = zoo.build(name, variant="tiny")
    arguments = (f"{name}/tiny", model.module, model.example_inputs, model.input_names)
    return OpenVinoConverter().file_of_module(*arguments, folder=folder), model


@pytest.mark.parametrize(
    ("name", "ops", "edges", "raw_ops", "raw_edges"),
    [  # as docs/reference/zoo.md lists them; the tiny variants have every layer of the full ones
        ("inception_v3", 310, 344, 504, 538),
        ("resnet50", 176, 191, 288, 303),
    ],
)
def test_counts(
    converted: Path, name: str, ops: int, edges: int, raw_ops: int, raw_edges: int
) -> None:
    file, _ = ir_of(name, converted)
    graph, _ = read_openvino(file)
    raw, source = read_openvino(file, fold_constants=False)
    assert (graph.n_ops, graph.n_edges) == (ops, edges)
    assert (raw.n_ops, raw.n_edges) == (raw_ops, raw_edges)
    assert source.options == {"fold_constants": "no"}


def test_inception_has_the_convolutions_of_the_paper(converted: Path) -> None:
    graph, _ = read_openvino(ir_of("inception_v3", converted)[0])
    kinds = Counter(graph.op_kinds)
    assert kinds["Convolution"] == kinds["Relu"] == 94
    assert kinds["Concat"] == 11
    assert (kinds["MaxPool"], kinds["AvgPool"]) == (4, 9)


def test_ops_are_called_by_module_and_type(converted: Path) -> None:
    graph, _ = read_openvino(ir_of("bert_base", converted)[0])
    assert "bert.encoder.layer.1.output.dense/MatMul" in graph.op_names
    assert "bert.encoder.layer.0.attention.self" in graph.op_modules
    graph, _ = read_openvino(ir_of("inception_v3", converted)[0])
    for op, kind in enumerate(graph.op_kinds):
        if kind == "Convolution":  # the converter makes their names up
            assert graph.op_modules[op].startswith(("conv_", "mixed_"))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n == "nasnet_a" else ()) for n in zoo.names()],
)
def test_the_ir_computes_what_the_module_does(converted: Path, name: str) -> None:
    file, model = ir_of(name, converted)
    graph, source = read_openvino(file)
    assert tuple(source.shapes) == model.input_names
    assert family_of(graph) == FAMILY_OF[name]
    shapes = [tuple(example.shape) for example in model.example_inputs]
    assert list(source.shapes.values()) == shapes
    assert set(source.native_names) == set()  # names are stored in an IR
    sinks = [op for op in range(graph.n_ops) if graph.op_outputs.row(op).size == 0]
    assert sinks == []
    compiled = ov.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled([example.numpy() for example in model.example_inputs])
    with torch.no_grad():
        outputs = model.module(*model.example_inputs)
    for number, output in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
        expected = output.numpy()
        np.testing.assert_allclose(
            results[number], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()
        )


@pytest.mark.parametrize("name", ["resnet50", "moe"])
def test_both_readers_count_the_same_products(converted: Path, name: str) -> None:
    file, model = ir_of(name, converted)
    products = []
    for graph in (read_openvino(file)[0], read_torch(model.module, model.example_inputs)[0]):
        heavy = [kind.lower() in ("matmul", "convolution", "linear", "conv2d", "mm", "addmm")
                 for kind in graph.op_kinds]  # fmt: skip
        products.append(graph.op_flops[heavy].sum())
    # PyTorch's linear counts its bias, which is an Add of its own in OpenVINO.
    assert products[0] == pytest.approx(products[1], rel=0.02)


def test_gpt2_ties_its_embedding_and_head(converted: Path) -> None:
    file, model = ir_of("gpt2", converted)
    table = model.module.gpt2.transformer.wte.weight.numel() * 4
    for graph in (read_openvino(file)[0], read_torch(model.module, model.example_inputs)[0]):
        assert np.count_nonzero(graph.weight_bytes == table) == 1
        tied = int(np.flatnonzero(graph.weight_bytes == table)[0])
        assert graph.op_weights.transposed(len(graph.weight_bytes)).row(tied).size == 2


def test_a_file_is_made_once_and_again_when_its_key_changes(tmp_path: Path) -> None:
    model = zoo.build("rnnlm", variant="tiny")
    arguments = ("rnnlm", model.module, model.example_inputs, model.input_names)
    first = OpenVinoConverter().file_of_module(*arguments, version="1", folder=tmp_path)
    changed = first.stat().st_mtime_ns
    assert OpenVinoConverter().file_of_module(*arguments, version="1", folder=tmp_path) == first
    assert first.stat().st_mtime_ns == changed
    assert OpenVinoConverter().file_of_module(*arguments, version="2", folder=tmp_path) != first
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".bin", ".bin", ".xml", ".xml"]


def test_a_pt2_file_becomes_an_ir(tmp_path: Path, converted: Path) -> None:
    model = zoo.build("rnnlm", variant="tiny")
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model.module, model.example_inputs), path)
    graph, source = read_openvino(
        OpenVinoConverter().file_of_program(program_file(path), folder=tmp_path / "kept")
    )
    assert graph.n_ops == read_openvino(ir_of("rnnlm", converted)[0])[0].n_ops
    assert source.shapes == {"tokens": (2, 4)}
    path.write_bytes(b"hello")
    with pytest.raises(FileFormatError):
        OpenVinoConverter().file_of_program(program_file(path), folder=tmp_path / "kept")


def test_the_raw_resnet_has_the_counts_that_hsdag_publishes(
    converted: Path, tmp_path: Path
) -> None:
    """396 nodes and 411 edges: HSDAG (NeurIPS 2024) reads IR with weights compressed to f16."""
    file, _ = ir_of("resnet50", converted)
    compressed = tmp_path / "compressed.xml"
    ov.save_model(ov.Core().read_model(str(file)), str(compressed), compress_to_fp16=True)
    raw, _ = read_openvino(compressed, fold_constants=False)
    assert (raw.n_ops, raw.n_edges) == (396, 411)
    graph, _ = read_openvino(compressed)
    assert (graph.n_ops, graph.n_edges) == (176, 191)
