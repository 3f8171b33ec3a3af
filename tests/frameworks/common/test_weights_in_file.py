"""A process that has compiled a model holds its weights once: as the engine has packed them."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from placewright.errors import UnknownNameError
from placewright.frameworks import weights_in_file
from placewright.frameworks.registry import make_runtime
from placewright.frameworks.weights_in_file import are_in_file, give_back_pages, in_file
from placewright.profiling.discover import discover

WIDTH = 4096  # 64 MiB of weights, which no other part of the process comes near
MAPS = Path("/proc/self/smaps_rollup")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="needs the memory of a process in /proc")


def write_product(path: Path, stored: str, times: int = 1) -> int:
    """Write x @ w @ ..., with w in the file, beside it, or as a constant; return the bytes of w."""
    onnx = pytest.importorskip("onnx", reason="the models are made with onnx")
    helper = onnx.helper
    values = np.eye(WIDTH, dtype=np.float32)
    weight = onnx.numpy_helper.from_array(values, "w")
    values_between = ["x", *(f"y{at}" for at in range(1, times)), "y"]
    products = [
        helper.make_node("MatMul", [read, "w"], [made], f"product{at}")
        for at, (read, made) in enumerate(pairwise(values_between))
    ]
    constant = helper.make_node("Constant", [], ["w"], "constant", value=weight)
    kind = onnx.TensorProto.FLOAT
    row = [helper.make_tensor_value_info(name, kind, [1, WIDTH]) for name in "xy"]
    is_constant = stored == "constant"
    graph = helper.make_graph(
        [constant, *products] if is_constant else products, "g", row[:1], row[1:],
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
from placewright.execution.runtime import segments_of_ops
from placewright.frameworks.registry import make_runtime
from placewright.profiling.discover import discover

def held():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

path, name, weights = sys.argv[1:]
if name == "openvino":
    from placewright.frameworks.openvino.reader import read_openvino as read
else:
    from placewright.frameworks.onnxruntime.reader import read_onnx as read
runtime = make_runtime(name)
cluster = discover("cores", runtime, options={"weights": weights})
graph, source = read(Path(path))
before = held()
model = runtime.load(source, graph)
segments = segments_of_ops(graph, [(op % cluster.n_devices, [op]) for op in range(graph.n_ops)])
instances = [each.instance() for each in model.compile(segments, cluster.devices)]
loaded = held()
x = np.arange(4096, dtype=np.float32).reshape(1, 4096)
y = model.from_host(x)
for instance in instances:
    (y,) = instance.run([y])
right = np.array_equal(x, model.to_host(y))
print(right, loaded - before, held() - before, cluster.shares_weights)
"""


def held_by_a_process(path: Path, runtime: str, weights: str) -> tuple[float, float, bool]:
    """Bytes after loading and after a run, and whether cores share weights; outputs are checked."""
    command = [sys.executable, "-c", LOAD, str(path), runtime, weights]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    is_right, loaded, ran, is_shared = printed.split()
    assert is_right == "True"
    return float(loaded), float(ran), is_shared == "True"


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
    pytest.importorskip(runtime, reason=f"{runtime} is not installed")
    path = tmp_path / "product.onnx"
    size = write_product(path, stored)
    loaded, ran, is_shared = held_by_a_process(path, runtime, "packed")
    assert not is_shared
    assert 0.9 * size < loaded < 1.7 * size
    assert 0.9 * size < ran < 1.7 * size


@needs_maps
@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_segments_share_a_weight_that_nobody_packs(tmp_path: Path, runtime: str) -> None:
    """Three segments that would pack it take it from its file; the cluster counts it once."""
    pytest.importorskip(runtime, reason=f"{runtime} is not installed")
    path = tmp_path / "products.onnx"
    size = write_product(path, "inside", times=3)
    loaded, ran, is_shared = held_by_a_process(path, runtime, "shared")
    assert is_shared
    assert loaded < 1.7 * size
    assert 0.9 * size < ran < 1.7 * size


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_weights_are_packed_or_shared(runtime: str) -> None:
    """Another word is refused with both."""
    pytest.importorskip(runtime, reason=f"{runtime} is not installed")
    with pytest.raises(UnknownNameError, match=r"'once'.*packed, shared"):
        discover("cpu", make_runtime(runtime), options={"weights": "once"})


@needs_maps
def test_arrays_keep_their_values_after_their_pages_went() -> None:
    """Of any type and shape, of none too; an array in other memory stays untouched."""
    rng = np.random.default_rng(0)
    arrays: list[NDArray[Any]] = [
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
