"""A process that has compiled a model holds its weights once: as the engine has packed them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from placewright.frameworks import weights_in_file
from placewright.frameworks.weights_in_file import are_in_file, give_back_pages, in_file

WIDTH = 4096  # 64 MiB of weights, which no other part of the process comes near
MAPS = Path("/proc/self/smaps_rollup")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="needs the memory of a process in /proc")


def write_product(path: Path, stored: str) -> int:
    """Write x @ w, with w in the file, beside it, or as a constant; return the bytes of w."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    values = np.eye(WIDTH, dtype=np.float32)
    weight = onnx.numpy_helper.from_array(values, "w")
    product = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    constant = helper.make_node("Constant", [], ["w"], "constant", value=weight)
    kind = onnx.TensorProto.FLOAT
    row = [helper.make_tensor_value_info(name, kind, [1, WIDTH]) for name in "xy"]
    is_constant = stored == "constant"
    graph = helper.make_graph(
        [constant, product] if is_constant else [product], "g", row[:1], row[1:],
        [] if is_constant else [weight],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=stored == "beside")
    return values.nbytes


# A process of its own, since a large one takes new arrays from memory that it has freed before.
LOAD = """
import sys
from pathlib import Path
import numpy as np
from placewright.frameworks.registry import make_runtime

def held():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

path, name = sys.argv[1:]
if name == "openvino":
    from placewright.frameworks.openvino.reader import read_openvino as read
else:
    from placewright.frameworks.onnxruntime.reader import read_onnx as read
runtime = make_runtime(name)
device = next(device for device in runtime.discover() if device.name == "cpu:0")
graph, source = read(Path(path))
before = held()
model = runtime.load(source, graph)
instance = model.reference(device).instance()
loaded = held()
x = np.arange(4096, dtype=np.float32).reshape(1, 4096)
y = model.to_host(instance.run([model.from_host(x)])[0])
print(np.array_equal(x, y), loaded - before, held() - before)
"""


@needs_maps
@pytest.mark.parametrize(
    ("runtime", "stored"),
    [
        ("openvino", "inside"),
        ("openvino", "beside"),
        ("onnxruntime", "constant"),
        ("onnxruntime", "beside"),
    ],
)
def test_a_compiled_model_holds_its_weights_once(tmp_path: Path, runtime: str, stored: str) -> None:
    """Not a second time as the file has them: in its message, an array, or the engine's constant.

    The rest of the growth is the engine's own code, which the first compilation loads.
    """
    pytest.importorskip(runtime)
    path = tmp_path / "product.onnx"
    size = write_product(path, stored)
    command = [sys.executable, "-c", LOAD, str(path), runtime]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    is_right, loaded, ran = printed.split()
    assert is_right == "True"
    assert 0.9 * size < float(loaded) < 1.7 * size
    assert 0.9 * size < float(ran) < 1.7 * size


@needs_maps
def test_arrays_keep_their_values_after_their_pages_went() -> None:
    """Of any type and shape, of none too; an array in other memory stays untouched."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal((70, 300)),
        rng.integers(0, 255, 5000).astype(np.uint8),
        np.zeros((0, 3), np.float16),
        np.asfortranarray(rng.standard_normal((33, 65)).astype(np.float32)),
    ]
    mapped = in_file(arrays)
    assert are_in_file(mapped) == [True] * 4
    assert are_in_file(arrays) == [False] * 4
    for _ in range(2):
        give_back_pages([*mapped, *arrays])
        for array, copy in zip(arrays, mapped, strict=True):
            np.testing.assert_array_equal(copy, array, strict=True)


@needs_maps
def test_a_cache_that_cannot_be_written_to_leaves_arrays_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are used as they are, after one warning."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    weights_in_file._tell_kept.cache_clear()
    arrays = [np.ones(9)]
    for _ in range(2):
        assert in_file(arrays) is arrays
    assert caplog.text.count("stay in memory beside") == 1
