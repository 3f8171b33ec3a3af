"""Rates and bytes of data sheets follow the precision of each op's data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster
from placewright.core.graph import ComputationGraph
from placewright.core.residency import with_resident_inputs
from placewright.files.graph_file import read_graph, write_graph
from placewright.profiling.catalogue import catalogue_cluster, fit_named, with_precision
from placewright.profiling.roofline import (
    own_precisions,
    roofline_costs,
    roofline_problem,
    sheet_lines,
)

BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i32": 4}
WIDTH, HIDDEN, VOCABULARY, LAYERS = 4096, 11008, 32000, 32
PARAMETERS = LAYERS * (4 * WIDTH**2 + 3 * WIDTH * HIDDEN) + VOCABULARY * WIDTH
# Of a GeForce RTX 4090: bytes/s, operations/s, and the assumed share of them that kernels reach.
BANDWIDTH, F32, F16, OF_PRODUCTS, OF_BANDWIDTH, LAUNCH = 1008e9, 82.6e12, 165.2e12, 0.65, 0.8, 5e-6


def llama(tokens: int, dtype: str) -> ComputationGraph:
    """The matrix products of Llama-7B in turn, without attention to earlier tokens."""
    builder = GraphBuilder()
    size = BYTES[dtype]
    x = builder.add_input(tokens * WIDTH * size, shape=(tokens, WIDTH), dtype=dtype)
    shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, HIDDEN)] * 2 + [(HIDDEN, WIDTH)]
    for number, (inner, outer) in enumerate([*shapes * LAYERS, (WIDTH, VOCABULARY)]):
        weight = builder.add_weight(inner * outer * size, dtype=dtype)
        op = builder.add_op(
            f"linear {number}",
            "MatMul",
            inputs=[x],
            weights=[weight],
            flops=2.0 * tokens * inner * outer,
        )
        x = builder.add_tensor(op, tokens * outer * size, shape=(tokens, outer), dtype=dtype)
    builder.mark_output(x)
    return builder.build()


def product(dtype: str, weight_dtype: str, out: str = "") -> ComputationGraph:
    """One product of 1000 x 1000 numbers by as many weights."""
    builder = GraphBuilder()
    x = builder.add_input(1e6 * BYTES[dtype], shape=(1000, 1000), dtype=dtype)
    known = weight_dtype.removeprefix("unknown ")
    weight = builder.add_weight(1e6 * BYTES[known], dtype=known if known == weight_dtype else "")
    op = builder.add_op("product", "MatMul", inputs=[x], flops=2e9, weights=[weight])
    made = out or dtype
    builder.add_tensor(op, 1e6 * BYTES[made], shape=(1000, 1000), dtype=made, is_output=True)
    return builder.build()


def on(*names: str, precision: str | None = None) -> Cluster:
    return catalogue_cluster(names, precision=precision)


@pytest.mark.parametrize("precision", [None, "f16"])
def test_a_token_of_a_large_model_takes_at_least_its_bytes_at_full_bandwidth(
    precision: str | None,
) -> None:
    """13.2 GB of f16 weights at 1008 GB/s take 13.1 ms. Halving them twice gave less."""
    graph = llama(1, "f16")
    seconds = roofline_costs(graph, on("gpu-rtx-4090", precision=precision)).seconds.sum()
    at_full_bandwidth = 2 * PARAMETERS / BANDWIDTH
    assert at_full_bandwidth == pytest.approx(13.1e-3, rel=0.01)
    assert seconds > at_full_bandwidth
    moved = graph.weight_bytes.sum() + 2 * graph.tensor_bytes.sum()  # tensors: at most twice
    least = graph.weight_bytes.sum() / (BANDWIDTH * OF_BANDWIDTH) + graph.n_ops * LAUNCH
    assert least < seconds <= moved / (BANDWIDTH * OF_BANDWIDTH) + graph.n_ops * LAUNCH


def test_a_prompt_of_512_tokens_runs_at_the_rate_of_its_data() -> None:
    """Half precision doubles the rate on this card: its f16 graph was given the rate of f32."""
    operations = 2.0 * 512 * PARAMETERS
    for dtype, rate in (("f32", F32), ("f16", F16)):
        graph = llama(512, dtype)
        seconds = roofline_costs(graph, on("gpu-rtx-4090")).seconds.sum()
        expected = operations / (rate * OF_PRODUCTS) + graph.n_ops * LAUNCH
        assert seconds == pytest.approx(expected, rel=1e-9)


def seconds_of(graph: ComputationGraph, rate: float, moved: float) -> float:
    """On a V100: 900 GB/s."""
    return max(graph.op_flops[0] / (rate * 0.65), moved / (900e9 * 0.8)) + 5e-6


@pytest.mark.parametrize(
    ("data", "weights", "wish", "rate", "moved"),
    [
        ("f32", "f32", None, 15.7e12, 12e6),
        ("f16", "f16", None, 125e12, 6e6),
        ("f16", "unknown f16", None, 125e12, 6e6),
        ("f32", "f32", "f16", 125e12, 6e6),
        ("f16", "f32", None, 125e12, 6e6),  # as OpenVINO's processors keep f16: on cards it is f16
        ("f16", "f32", "f32", 15.7e12, 12e6),
        ("f16", "f16", "f16", 125e12, 6e6),  # nothing is left to halve
        ("f16", "unknown f16", "f16", 125e12, 6e6),
        ("f32", "f16", "f16", 125e12, 6e6),  # weights that are stored narrow already
        ("f32", "i8", "f16", 125e12, 5e6),  # integers stay integers
        ("f32", "i8", None, 15.7e12, 9e6),
        ("f16", "f16", "f32", 15.7e12, 12e6),
        ("bf16", "bf16", None, 125e12, 6e6),  # this card has no bf16
    ],
)
def test_rate_and_bytes_of_a_product(
    data: str, weights: str, wish: str | None, rate: float, moved: float
) -> None:
    graph = product(data, weights)
    costs = roofline_costs(graph, on("gpu-v100-sxm2-16gb", precision=wish), fitted=False)
    assert costs.seconds[0, 0] == pytest.approx(seconds_of(graph, rate, moved), rel=1e-12)


def test_integers_by_integers_run_at_the_rate_of_integers() -> None:
    graph = product("i8", "i8", out="i32")
    costs = roofline_costs(graph, on("gpu-t4"), fitted=False)
    moved = (1e6 + 1e6 + 4e6) / (300e9 * 0.8)
    assert costs.seconds[0, 0] == pytest.approx(max(2e9 / (130e12 * 0.65), moved) + 5e-6)


def test_a_device_that_lacks_a_precision() -> None:
    """An NPU of f16 stores f32 data in half; a CPU of f32 reads f16 data as it is."""
    narrow, wide = on("npu-lunar-lake"), on("cpu-i9-12900k")
    of_f32 = roofline_costs(product("f32", "f32"), narrow).seconds[0, 0]
    of_f16 = roofline_costs(product("f16", "f16"), narrow).seconds[0, 0]
    assert of_f32 == of_f16 == pytest.approx(2e9 / (24e12 * 0.5) + 20e-6)
    graph = product("f16", "f16")
    slow = roofline_costs(graph, wide).seconds[0, 0]
    assert slow == pytest.approx(2e9 / (1.126e12 * 0.7) + 2e-6)


def test_the_precision_of_an_op_is_the_widest_of_what_it_reads() -> None:
    builder = GraphBuilder()
    half = builder.add_input(2.0, shape=(1,), dtype="f16")
    single = builder.add_input(4.0, shape=(1,), dtype="f32")
    index = builder.add_input(8.0, shape=(1,), dtype="i64")
    for name, read in (("mixed", [half, single]), ("indexed", [half, index]), ("ids", [index])):
        op = builder.add_op(name, "Op", inputs=read)
        builder.add_tensor(op, 2.0, shape=(1,), dtype="f16", is_output=True)
    op = builder.add_op("counting", "Op", inputs=[index])
    builder.add_tensor(op, 8.0, shape=(1,), dtype="i64", is_output=True)
    assert own_precisions(builder.build()) == ("f32", "f16", "f16", "f32")


def test_what_really_runs_is_said() -> None:
    cluster = with_precision(on("cpu-i9-12900k", "gpu-t4"), "bf16")
    assert [device.options["precision"] for device in cluster.devices] == ["f32", "f16"]
    lacking = "its data sheet has no rate for bf16; how fast they run is assumed"
    assert sheet_lines(product("f32", "f32"), cluster, "bf16") == (
        f"cpu: products run in f32; {lacking}",
        f"gpu: products run in f16; {lacking}",
    )
    (half,) = sheet_lines(product("f16", "f16"), on("gpu-t4"))
    assert half == "gpu: products run in f16; how fast they run is assumed"
    (single,) = sheet_lines(product("f32", "f32"), on("gpu-t4"))
    low, high = fit_named("nvidia-75w").model_interval
    assert single.endswith(
        f"nine of ten measured models took {low:.2f} to {high:.2f} times such costs"
    )
    assert with_precision(cluster, None) is cluster
    builder = GraphBuilder()
    x = builder.add_input(4.0, shape=(1,), dtype="f32")
    builder.add_tensor(builder.add_op("relu", "Relu", inputs=[x]), 4.0, is_output=True)
    assert sheet_lines(builder.build(), on("gpu-t4")) == ()


def test_types_of_weights_survive_files_and_resident_inputs(tmp_path: Path) -> None:
    graph = product("f32", "i8")
    write_graph(tmp_path / "g.json", graph, None)
    read, _ = read_graph(tmp_path / "g.json")
    assert read.weight_dtypes == graph.weight_dtypes == ("i8",)
    changed = with_resident_inputs(graph, [0]).graph
    assert changed.weight_dtypes == ("i8", "f32")
    assert np.array_equal(changed.weight_bytes, [1e6, 4e6])


@pytest.mark.parametrize(
    ("names", "wish", "share", "dtype"),
    [
        (("gpu-t4",), "f16", 0.5, "f16"),
        (("gpu-t4", "cpu-xeon-8480"), "bf16", 0.5, "f16"),  # the T4 has f16 instead
        (("gpu-t4", "cpu-i9-12900k"), "f16", 1.0, "f32"),  # the CPU has f32 alone: the widest
        (("gpu-t4", "npu-lunar-lake"), None, 1.0, "f32"),
        (("npu-lunar-lake",), None, 0.5, "f16"),
        (("gpu-t4",), None, 1.0, "f32"),
    ],
)
def test_memory_and_copies_count_the_bytes_that_the_devices_store(
    names: tuple[str, ...], wish: str | None, share: float, dtype: str
) -> None:
    """A card of 24 GiB was too small for 13 GiB of f16 weights that the file has in f32."""
    graph, cluster = product("f32", "f32"), on(*names, precision=wish)
    problem = roofline_problem(graph, cluster)
    assert problem.graph.weight_bytes.tolist() == [4e6 * share]
    assert problem.graph.tensor_bytes.tolist() == [4e6 * share] * 2
    assert problem.graph.tensor_dtypes == (dtype,) * 2
    assert (problem.graph is graph) == (share == 1.0)
    same = roofline_costs(problem.graph, cluster).seconds
    assert np.array_equal(same, problem.costs.seconds)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_weights_that_a_reader_counts_as_f32_have_the_bytes_of_the_model(half: str) -> None:
    """OpenVINO's graphs count weights of f16 as its processors keep them: 4 bytes each."""
    graph, cluster = product(half, "f32"), on("cpu-i9-12900k")
    problem = roofline_problem(graph, cluster)
    assert problem.graph.weight_bytes.tolist() == [2e6]
    assert problem.graph.weight_dtypes == (half,)
    same = roofline_costs(problem.graph, cluster).seconds
    assert np.array_equal(same, problem.costs.seconds)


def test_a_weight_that_an_op_of_f32_reads_too_keeps_its_bytes() -> None:
    builder = GraphBuilder()
    weight = builder.add_weight(4e6, dtype="f32")
    for dtype in ("f16", "f32"):
        x = builder.add_input(1e6 * BYTES[dtype], shape=(1000, 1000), dtype=dtype)
        op = builder.add_op(f"product of {dtype}", "MatMul", inputs=[x], weights=[weight])
        size = 1e6 * BYTES[dtype]
        builder.add_tensor(op, size, shape=(1000, 1000), dtype=dtype, is_output=True)
    problem = roofline_problem(builder.build(), on("cpu-i9-12900k"))
    assert problem.graph.weight_bytes.tolist() == [4e6]


def test_a_conversion_of_a_weight_to_half_precision_reads_all_its_bytes() -> None:
    builder = GraphBuilder()
    weight = builder.add_weight(4e6, dtype="f32")
    op = builder.add_op("conversion", "Cast", weights=[weight])
    builder.add_tensor(op, 2e6, shape=(1000, 1000), dtype="f16", is_output=True)
    problem = roofline_problem(builder.build(), on("gpu-t4"))
    assert problem.graph.weight_bytes.tolist() == [4e6]
    assert problem.graph.weight_dtypes == ("f32",)


def test_weights_of_integers_keep_their_bytes_in_memory() -> None:
    problem = roofline_problem(product("f32", "i8"), on("gpu-t4", precision="f16"))
    assert problem.graph.weight_bytes.tolist() == [1e6]
    assert problem.graph.weight_dtypes == ("i8",)
