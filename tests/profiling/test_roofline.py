"""The catalogue of real devices and costs by the roofline model."""

from __future__ import annotations

import math
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import yaml

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.data_sheet import DataSheet
from placewright.core.execution_models import MaxLoad
from placewright.core.graph import ComputationGraph
from placewright.errors import ClusterError, UnknownNameError
from placewright.profiling.catalogue import (
    catalogue_cluster,
    cluster_names,
    device_entry,
    device_name,
    device_names,
    fit_named,
    fit_names,
    is_device_name,
    link_entry,
    link_names,
    listing,
    with_precision,
)
from placewright.profiling.roofline import (
    FITTED_CLASSES,
    narrow_products,
    roofline_costs,
    roofline_interval,
    roofline_problem,
    sheet_lines,
    traffic_of,
    work_of,
)


def lookup_graph(kind: str = "Gather") -> ComputationGraph:
    """Ten rows of a hundred floats from a table of 1 GB."""
    builder = GraphBuilder()
    ids = builder.add_input(80, shape=(10,), dtype="i64")
    table = builder.add_weight(1e9)
    lookup = builder.add_op("lookup", kind, inputs=[ids], weights=[table])
    builder.add_tensor(lookup, 4000, shape=(10, 100), dtype="f32", is_output=True)
    return builder.build()


def three_ops() -> ComputationGraph:
    """A product that is bound by arithmetic, an activation that is bound by bytes, a reshape."""
    builder = GraphBuilder()
    x = builder.add_input(4e6, shape=(1000, 1000), dtype="f32")
    weight = builder.add_weight(4e6)
    product = builder.add_op("product", "MatMul", inputs=[x], flops=2e9, weights=[weight])
    y = builder.add_tensor(product, 4e6, shape=(1000, 1000), dtype="f32")
    relu = builder.add_op("relu", "Relu", inputs=[y], flops=1e6)
    z = builder.add_tensor(relu, 4e6, shape=(1000, 1000), dtype="f32")
    reshape = builder.add_op("reshape", "Reshape", inputs=[z])
    builder.add_tensor(reshape, 4e6, shape=(1_000_000,), dtype="f32", is_output=True)
    return builder.build()


def test_costs_are_the_larger_of_arithmetic_and_traffic_plus_the_launch() -> None:
    costs = roofline_costs(three_ops(), catalogue_cluster(["gpu-v100-sxm2-16gb"]), fitted=False)
    # 2e9 / (15.7e12 * 0.65) against 12e6 / (900e9 * 0.8); 8e6 bytes for the activation.
    expected = [2e9 / (15.7e12 * 0.65) + 5e-6, 8e6 / (900e9 * 0.8) + 5e-6, 0.0]
    np.testing.assert_allclose(costs.seconds[:, 0], expected, rtol=1e-12)
    assert costs.source == "roofline"


def test_half_precision_uses_tensor_cores_and_half_the_bytes() -> None:
    half = catalogue_cluster(["gpu-v100-sxm2-16gb"], precision="f16")
    costs = roofline_costs(three_ops(), half, fitted=False)
    expected = [2e9 / (125e12 * 0.65) + 5e-6, 4e6 / (900e9 * 0.8) + 5e-6, 0.0]
    np.testing.assert_allclose(costs.seconds[:, 0], expected, rtol=1e-12)


def test_a_device_without_the_precision_takes_one_that_it_has() -> None:
    cluster = catalogue_cluster(["cpu-i9-12900k", "npu-lunar-lake"], precision="bf16")
    assert [device.options["precision"] for device in cluster.devices] == ["f32", "f16"]


@pytest.mark.parametrize("kind", ["Gather", "GatherND", "GatherElements", "GatherBlockQuantized"])
def test_a_lookup_reads_no_more_of_its_table_than_it_returns(kind: str) -> None:
    v100 = catalogue_cluster(["gpu-v100-sxm2-16gb"])
    costs = roofline_costs(lookup_graph(kind), v100, fitted=False)
    expected = [(80 + 4000 + 4000) / (900e9 * 0.8) + 5e-6]
    np.testing.assert_allclose(costs.seconds[:, 0], expected, rtol=1e-12)


@pytest.mark.parametrize("name", device_names())
def test_every_device_states_plausible_numbers_and_its_source(name: str) -> None:
    entry = device_entry(name)
    assert name.startswith(f"{entry.kind}-")
    assert len(entry.source) > 10
    assert 2**33 <= entry.memory_bytes <= 2**43
    assert 1e10 < entry.bandwidth < 1e13
    assert entry.peak
    assert all(1e10 < rate < 1e16 for rate in entry.peak.values())
    assert all(0 < fraction <= 1 for fraction in entry.efficiency.values())
    if "f32" in entry.peak:  # narrower numbers are never slower
        assert entry.peak["f32"] == min(entry.peak.values())


PRECISIONS = {"int8": ("i8",), "bf16": ("bf16",), "f16": ("f16",), "XMX": ("bf16", "f16")}


def stated_rates(source: str) -> dict[str, float]:
    """Operations per second by precision of ``rate = cores x 64 (bf16 128) x 2 GHz + ...``."""
    formula = source.partition("rate = ")[2].partition(";")[0]
    rates: dict[str, float] = {}
    for term in formula.split(" + "):
        plain = re.sub(r"\(.*?\)", "", term)
        count, per_cycle, clock = (float(number) for number in re.findall(r"[\d.]+", plain))
        rates["f32"] = rates.get("f32", 0.0) + count * per_cycle * clock * 1e9
        for group in re.findall(r"\((.*?)\)", term):
            for part in group.split(", "):
                *words, number = part.split()
                for precision in (p for word in words for p in PRECISIONS.get(word, ())):
                    rates[precision] = count * float(number) * clock * 1e9
    return rates


@pytest.mark.parametrize(
    "name", [name for name in device_names() if "rate = " in device_entry(name).source]
)
def test_rates_are_what_their_formula_gives(name: str) -> None:
    entry = device_entry(name)
    assert dict(entry.peak) == pytest.approx(stated_rates(entry.source), rel=1.5e-3)


@pytest.mark.parametrize(
    "name", [name for name in device_names() if "AMX" in device_entry(name).source]
)
def test_matrix_units_of_intel_multiply_tiles_in_sixteen_cycles(name: str) -> None:
    """16 x 16 sums of 32 products in bf16, of 64 in int8; a core has 64 operations a cycle in f32.

    The catalogue had twice as many.
    """
    peak = device_entry(name).peak
    for precision, products in {"bf16": 32, "f16": 32, "i8": 64}.items():
        of_tile = 2 * 16 * 16 * products / 16
        if precision in peak:
            assert peak[precision] / peak["f32"] == pytest.approx(of_tile / 64, rel=1e-3)


def test_the_document_names_every_cluster() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "costs-without-hardware.md").read_text()
    assert [name for name in cluster_names() if f"`{name}`" not in text] == []


def test_a_listing_has_the_entries_that_match() -> None:
    """By the words of a name, of the vendor's name, or of the name that PyTorch has for it."""
    everything = listing()
    assert tuple(device.name for device in everything.devices) == device_names()
    assert tuple(link.name for link in everything.links) == link_names()
    assert tuple(everything.clusters) == cluster_names()
    assert everything.clusters["2gpu"] == ("cpu-xeon-e5-2699v3", "gpu-k80", "gpu-k80")
    for pattern in ("a100 pcie-40", "NVIDIA A100-PCIE-40GB", "gpu-a100-pcie-40gb"):
        assert [device.name for device in listing(pattern).devices] == ["gpu-a100-pcie-40gb"]
    only_links = listing("infiniband")
    assert (only_links.devices, len(only_links.links), only_links.clusters) == ((), 4, {})
    with pytest.raises(UnknownNameError, match=r"mean gpu-rtx-4090.* --catalogue` lists"):
        listing("rtx-4091")


def test_integers_keep_their_bytes_when_floats_are_halved() -> None:
    """10 x 8 bytes of indices, then 1000 x 4 or 2 bytes of a table's rows read and written."""
    graph = lookup_graph()
    for precision, row_bytes in (("f32", 4000), ("f16", 2000)):
        cluster = catalogue_cluster(["gpu-v100-sxm2-16gb"], precision=precision)
        expected = (80 + 2 * row_bytes) / (900e9 * 0.8) + 5e-6
        costs = roofline_costs(graph, cluster, fitted=False)
        assert costs.seconds[0, 0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", link_names())
def test_every_link_states_its_source(name: str) -> None:
    entry = link_entry(name)
    assert len(entry.source) > 10
    assert 1e9 <= entry.bandwidth < 1e12
    assert 0 < entry.latency_seconds < 1e-3


@pytest.mark.parametrize("name", cluster_names())
def test_named_clusters_give_problems(name: str) -> None:
    problem = roofline_problem(three_ops(), name, "throughput")
    assert problem.execution_model == MaxLoad(samples_in_flight=1)
    assert np.isfinite(problem.costs.seconds).all()
    host = problem.cluster.host_endpoint
    reached = problem.cluster.link_seconds_per_byte[host]
    assert np.isfinite(reached).all()


def test_the_published_system_of_two_gpus() -> None:
    cluster = catalogue_cluster("2gpu")
    assert cluster.device_names == ("cpu", "gpu:0", "gpu:1")
    assert cluster.host == "cpu"
    assert math.isinf(cluster.link_seconds_per_byte[1, 2])  # through the host
    assert cluster.link_seconds_per_byte[0, 1] == pytest.approx(1 / (15.75e9 * 0.8))
    assert cluster.memory_bytes[1] == 12 * 2**30


def test_peer_links_connect_accelerators_directly() -> None:
    cluster = catalogue_cluster(["gpu-a100-80gb"] * 2, link="pcie-4-x16", peer_link="nvlink-3")
    assert cluster.host == "host"
    assert cluster.link_seconds_per_byte[0, 1] == pytest.approx(1 / (300e9 * 0.8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": ["gpu-z"]}, "unknown catalogue device 'gpu-z'; did you mean gpu-"),
        ({"devices": "3gpu"}, r"'3gpu'; did you mean .*2gpu.* available: cpu\+gpu"),
        ({"devices": ["gpu-t4"], "link": "string"}, "unknown catalogue link 'string'"),
        ({"devices": ["gpu-t4"], "precision": "f8"}, "unknown precision 'f8'"),
    ],
)
def test_unknown_names_list_the_known(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        catalogue_cluster(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "gpu-a100-80gb"),  # torch.cuda.get_device_name()
        ("Tesla T4", "gpu-t4"),
        ("nvidia geforce rtx 4090", "gpu-rtx-4090"),
        ("Intel(R) Arc(TM) A770 Graphics (dGPU)", "gpu-arc-a770"),  # OpenVINO's FULL_DEVICE_NAME
        ("12th Gen Intel(R) Core(TM) i9-12900K", "cpu-i9-12900k"),
        ("gpu-l4", "gpu-l4"),
    ],
)
def test_devices_have_the_names_of_pytorch_and_openvino(given: str, name: str) -> None:
    assert is_device_name(given)
    assert device_entry(given).name == name
    cluster = catalogue_cluster([given])
    assert cluster.devices[0].fingerprint == f"catalogue:{name}"


def test_no_alias_names_two_devices() -> None:
    text = resources.files("placewright.profiling").joinpath("catalogue.yaml").read_text("utf-8")
    for name, entry in yaml.safe_load(text)["devices"].items():
        for alias in entry.get("aliases", ()):
            assert device_name(alias) == name


def test_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean .*gpu-rtx-3090"):
        device_name("NVIDIA GeForce RTX 3050")
    with pytest.raises(UnknownNameError, match=r"did you mean .*gpu-a100-80gb"):
        device_name("A100")


CARD = DataSheet({"f16": 101e12, "f32": 12.7e12}, 360e9)


def test_a_card_of_ones_own_has_the_assumptions_of_its_kind() -> None:
    card = Device("card", kind="gpu", memory_bytes=12 * 2**30, data_sheet=CARD)
    costs = roofline_costs(three_ops(), Cluster((card,)))
    expected = [2e9 / (12.7e12 * 0.65) + 5e-6, 8e6 / (360e9 * 0.8) + 5e-6, 0.0]
    np.testing.assert_allclose(costs.seconds[:, 0], expected, rtol=1e-12)
    half = with_precision(Cluster((card,)), "f16")
    assert roofline_costs(three_ops(), half).seconds[0, 0] == pytest.approx(
        2e9 / (101e12 * 0.65) + 5e-6
    )


def test_peaks_of_ones_own_replace_those_of_the_catalogue() -> None:
    device = Device("npu", kind="npu", fingerprint="catalogue:npu-lunar-lake", data_sheet=CARD)
    seconds = roofline_costs(three_ops(), Cluster((device,))).seconds[0, 0]
    assert seconds == pytest.approx(2e9 / (12.7e12 * 0.5) + 20e-6)  # launches of the NPU


def test_a_card_of_a_kind_without_assumptions_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"kind 'fpga'; .* need kind cpu, gpu, npu"):
        roofline_costs(three_ops(), Cluster((Device("card", kind="fpga", data_sheet=CARD),)))


def test_a_device_outside_the_catalogue_is_refused_by_name() -> None:
    with pytest.raises(ClusterError, match="'mine' is not of the catalogue"):
        roofline_costs(three_ops(), Cluster((Device("mine"),)))


def test_fitted_efficiencies_follow_class_and_size() -> None:
    """On a V100 of the catalogue: 2e9 operations and 8e6 bytes, between two sizes each."""
    fit = device_entry("gpu-v100-sxm2-16gb").fit
    assert fit is not None
    costs = roofline_costs(three_ops(), catalogue_cluster(["gpu-v100-sxm2-16gb"])).seconds[:, 0]

    def share(name: str, at_peak: float) -> float:
        return float(np.interp(math.log(at_peak), np.log(fit.sizes), fit.efficiency[name]))

    product, relu = 2e9 / 15.7e12, 8e6 / 900e9
    expected = [
        product / share("matmul", product) + fit.launch_seconds,
        relu / share("vector", fit.sizes[0]) + fit.launch_seconds,  # smaller than every size
        0.0,
    ]
    np.testing.assert_allclose(costs, expected, rtol=1e-12)
    assert fit.share("matmul", np.array([1e9]))[0] == fit.efficiency["matmul"][-1]


def test_intervals_surround_what_was_fitted_and_nothing_else() -> None:
    """The activation takes 8.9 us at the peak, less than any op of the fit."""
    cluster = catalogue_cluster(["gpu-v100-sxm2-16gb", "cpu-xeon-8480"])
    seconds = roofline_costs(three_ops(), cluster).seconds
    interval = roofline_interval(three_ops(), cluster)
    low, high = fit_named("nvidia").interval["matmul"]
    assert interval.low[0, 0] == pytest.approx(low * seconds[0, 0])
    assert interval.high[0, 0] == pytest.approx(high * seconds[0, 0])
    assert interval.low[1, 0] == 0.0
    assert np.isinf(interval.high[1, 0])
    assert np.isinf(interval.high[:2, 1]).all()  # assumed
    assert interval.high[2].tolist() == [0.0, 0.0]  # a reshape takes no time
    half = catalogue_cluster(["gpu-v100-sxm2-16gb"], precision="f16")
    assert np.isinf(roofline_interval(three_ops(), half).high[0, 0])


def test_loops_run_at_the_rate_of_products_but_have_no_interval() -> None:
    """Nobody measured any; they had the interval of a product."""
    builder = GraphBuilder()
    x = builder.add_input(4e6, shape=(1000, 1000), dtype="f32")
    op = builder.add_op("loop", "Loop", inputs=[x], flops=2e10)
    builder.add_tensor(op, 4e6, shape=(1000, 1000), dtype="f32", is_output=True)
    graph, cluster = builder.build(), catalogue_cluster(["gpu-v100-sxm2-16gb"])
    interval = roofline_interval(graph, cluster)
    assert (interval.low[0, 0], interval.high[0, 0]) == (0.0, math.inf)
    assert sheet_lines(graph, cluster) == ()
    (lacking,) = sheet_lines(graph, cluster, "bf16")
    assert lacking.endswith("its data sheet has no rate for bf16")
    seconds = roofline_costs(graph, cluster, fitted=False).seconds[0, 0]
    assert seconds == pytest.approx(2e10 / (15.7e12 * 0.65) + 5e-6)


@pytest.mark.parametrize("name", fit_names())
def test_every_fit_is_complete_and_plausible(name: str) -> None:
    fit = fit_named(name)
    assert set(fit.efficiency) == set(fit.interval) == set(FITTED_CLASSES)
    assert all(len(row) == len(fit.sizes) for row in fit.efficiency.values())
    assert all(0 < share <= 1 for row in fit.efficiency.values() for share in row)
    assert all(0 < low <= 1 <= high for low, high in fit.interval.values())
    assert list(fit.sizes) == sorted(fit.sizes)
    assert "licence" in fit.source


def test_a_longer_op_never_takes_less() -> None:
    """Efficiency grows with size, but not as fast as the size."""
    at_peak = np.geomspace(1e-6, 1.0, 400)
    for name in fit_names():
        fit = fit_named(name)
        for one in FITTED_CLASSES:
            assert (np.diff(at_peak / fit.share(one, at_peak)) > 0).all()


@pytest.mark.parametrize(
    ("kind", "work", "traffic"),
    [
        ("Softmax", "vector", "softmax"),
        ("_softmax", "vector", "softmax"),
        ("native_layer_norm", "vector", "normalisation"),
        ("MVN", "vector", "normalisation"),
        ("Transpose", "vector", "copy"),
        ("Gather", "vector", "lookup"),
        ("GatherND", "vector", "lookup"),
        ("GatherElements", "vector", "lookup"),
        ("GatherBlockQuantized", "vector", "lookup"),
        ("Relu", "vector", "vector"),
        ("MatMul", "matmul", "vector"),
        ("MatMulIntegerToFloat", "matmul", "vector"),
        ("QLinearMatMul", "matmul", "vector"),
        ("MatMulNBits", "matmul", "vector"),
        ("QGemm", "matmul", "vector"),
        ("DynamicQuantizeMatMul", "matmul", "vector"),
        ("DynamicQuantizeLSTM", "matmul", "vector"),
        ("QAttention", "matmul", "vector"),
        ("MultiHeadAttention", "matmul", "vector"),
        ("GroupQueryAttention", "matmul", "vector"),
        ("ConvInteger", "convolution", "vector"),
        ("QLinearConv", "convolution", "vector"),
        ("FusedConv", "convolution", "vector"),
        ("ConvTranspose", "convolution", "vector"),
        ("GroupConvolution", "convolution", "vector"),
        ("DeformConv", "convolution", "vector"),
        ("DeformableConvolution", "convolution", "vector"),
        ("deform_conv2d", "convolution", "vector"),
        ("If", "matmul", "vector"),
        ("Loop", "matmul", "vector"),
        ("while_loop", "matmul", "vector"),
        ("cond", "matmul", "vector"),
        ("map_impl", "matmul", "vector"),
        ("Scan", "matmul", "vector"),
        ("TensorIterator", "matmul", "vector"),
    ],
)
def test_kinds_have_classes(kind: str, work: str, traffic: str) -> None:
    plain = re.sub(r"[^a-z0-9]", "", kind.lower())
    assert (work_of(plain), traffic_of(plain)) == (work, traffic)


def test_products_with_a_short_extent_are_narrow() -> None:
    builder = GraphBuilder()
    x = builder.add_input(1.0, shape=(8, 512, 1024), dtype="f32")
    wide = builder.add_weight(1.0)
    for name, shape, inner, weights in (
        ("linear", (8, 512, 1024), 1024, [wide]),
        ("one token each", (256, 1, 1024), 1024, [wide]),
        ("scores", (8, 16, 512, 512), 64, []),
        ("long sums", (8, 16, 512, 512), 512, []),
        ("few columns", (8, 16, 512, 64), 512, []),
    ):
        flops = 2.0 * math.prod(shape) * inner
        op = builder.add_op(name, "MatMul", inputs=[x], flops=flops, weights=weights)
        builder.add_tensor(op, 1.0, shape=shape, dtype="f32", is_output=True)
    assert narrow_products(builder.build()).tolist() == [0, 0, 1, 0, 1]
