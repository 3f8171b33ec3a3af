"""The process holds the weights of a file once, beside what sessions make of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

WIDTH = 4096  # 64 MiB of weights, which no other part of the process comes near
STATUS = Path("/proc/self/statm")


def write_product(path: Path, *, as_constant: bool) -> int:
    """Write x @ w with a stored or a constant w; return the bytes of w."""
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((WIDTH, WIDTH), np.float32), "w")
    product = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    constant = helper.make_node("Constant", [], ["w"], "constant", value=weight)
    row = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in "xy"]
    graph = helper.make_graph(
        [constant, product] if as_constant else [product], "g", row[:1], row[1:],
        [] if as_constant else [weight],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return len(weight.raw_data)


# A process of its own, since a large one takes new arrays from memory that it has freed before.
LOAD = """
import resource, sys
from pathlib import Path
from placewright.frameworks.onnxruntime.reader import read_onnx
from placewright.frameworks.onnxruntime.segments import OnnxParts

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

path = Path(sys.argv[1])
graph, source = read_onnx(path)
before = resident()
parts = OnnxParts(path, graph, source)
print(sum(array.nbytes for array in parts.shared_arrays.values()), resident() - before)
"""


@pytest.mark.skipif(not STATUS.exists(), reason="needs the memory of a process in /proc")
@pytest.mark.parametrize("as_constant", [False, True])
def test_a_loaded_model_holds_its_weights_once(tmp_path: Path, as_constant: bool) -> None:
    """Not a second time in the file's own message, whose parts free their memory together."""
    path = tmp_path / "product.onnx"
    size = write_product(path, as_constant=as_constant)
    command = [sys.executable, "-c", LOAD, str(path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    held, grown = map(int, printed.split())
    assert held == size
    assert 0.5 * size < grown < 1.5 * size
