"""Sequences and texts stay inside a unit: only numbers go from one device to another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from placewright.core.placement import Placement
from placewright.errors import InputError
from placewright.execution.comparing import compare_outputs
from placewright.session.session import Session


def write_model(path: Path, nodes: list[onnx.NodeProto], output: onnx.ValueInfoProto) -> None:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 3])
    graph = helper.make_graph(nodes, "sequences", [given], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)


def opened(path: Path) -> Session:
    return Session(
        str(path), runtime="onnxruntime", devices="cpu:0,cpu:1", quick=True, calibrate=False
    )


def test_what_makes_a_sequence_stays_with_what_reads_it(tmp_path: Path) -> None:
    """A sequence with two readers, one of them behind a tensor that was made outside."""
    one = helper.make_tensor("one", TensorProto.INT64, [], [1])
    nodes = [
        helper.make_node("Constant", [], ["one"], value=one),
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("SplitToSequence", ["e"], ["parts"], axis=0, keepdims=1),
        helper.make_node("SequenceAt", ["parts", "one"], ["second"]),
        helper.make_node("Tanh", ["second"], ["t"]),
        helper.make_node("SequenceInsert", ["parts", "t"], ["more"]),
        helper.make_node("ConcatFromSequence", ["more"], ["joined"], axis=0),
        helper.make_node("Relu", ["joined"], ["y"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 3])
    write_model(tmp_path / "m.onnx", nodes, output)
    session = opened(tmp_path / "m.onnx")
    problem = session.problem
    unit = dict(zip(problem.graph.op_names, problem.units.group_of.tolist(), strict=True))
    kept = {unit[name] for name in ("parts", "second", "t", "more", "joined")}
    assert len(kept) == 1  # the op between two readers too, or their unit would need itself
    assert unit["e"] not in kept
    assert unit["y"] not in kept
    placement = Placement.of(np.arange(problem.n_units) % 2)
    compared = compare_outputs(problem, placement, session.loaded)
    assert compared.equal
    assert compared.error == 0.0


def test_what_makes_texts_stays_with_what_reads_them(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Cast", ["e"], ["texts"], to=TensorProto.STRING),
        helper.make_node("Cast", ["texts"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["numbers"], ["y"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 3])
    write_model(tmp_path / "m.onnx", nodes, output)
    session = opened(tmp_path / "m.onnx")
    problem = session.problem
    assert problem.n_units == 3
    placement = Placement.of(np.arange(problem.n_units) % 2)
    assert compare_outputs(problem, placement, session.loaded).equal


def test_a_sequence_as_an_output_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0)]
    output = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    write_model(tmp_path / "m.onnx", nodes, output)
    with pytest.raises(InputError, match="output 'parts' is no tensor but a sequence"):
        Session(str(tmp_path / "m.onnx"), runtime="onnxruntime", devices="cpu:0").problem  # noqa: B018
