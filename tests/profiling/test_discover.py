"""Discovery: names, overlaps, options, links in both directions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from profiling.synthetic import SyntheticRuntime

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.core.replicas import alike_devices
from placewright.errors import ClusterError, UnknownNameError
from placewright.profiling.discover import (
    check_no_overlap,
    completed_cluster,
    discover,
    measure_links,
    same_between_alike,
)

WHOLE = Device("cpu", options={"precision": "f32"})
CORES = tuple(Device(f"cpu:{n}", options={"core": str(n)}) for n in range(3))
RUNTIME = SyntheticRuntime((WHOLE, *CORES, Device("GPU.0", "gpu")))
MODULE = "placewright.profiling.discover"
ALIKE_CORES = tuple(
    Device(f"cpu:{at}", memory_domain="cpu", fingerprint="a core", options={"core": str(at)})
    for at in range(3)
)
GPU = Device("gpu", "gpu", fingerprint="a gpu")
CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
PROCESSOR = "CPUExecutionProvider"


def test_cores_are_devices_with_links_between_every_pair() -> None:
    cluster = discover(["cpu:0", "GPU.0"], RUNTIME)
    assert cluster.device_names == ("cpu:0", "GPU.0")
    ends = {(link.source, link.destination) for link in cluster.links}
    assert ends == set(itertools.permutations(["cpu:0", "GPU.0", "host"], 2))
    between = next(link for link in cluster.links if link.source == "cpu:0")
    assert 0 < between.latency_seconds < 0.1
    assert between.bandwidth == math.inf


def test_names_by_word_and_by_commas() -> None:
    assert discover("cores", RUNTIME).device_names == ("cpu:0", "cpu:1", "cpu:2")
    assert discover("cpu", RUNTIME).device_names == ("cpu",)
    assert discover("cpu:1, cpu:0", RUNTIME).device_names == ("cpu:1", "cpu:0")


def test_options_are_added() -> None:
    (device,) = discover("cpu", RUNTIME, options={"precision": "bf16"}).devices
    assert device.options["precision"] == "bf16"


@pytest.mark.parametrize("names", [["cpu", "cpu:0"], ["cpu:1", "cpu:1"], ["GPU.0", "GPU.0"]])
def test_overlapping_devices_are_refused(names: list[str]) -> None:
    with pytest.raises(ClusterError, match=f"'{names[0]}' and '{names[1]}' overlap"):
        discover(names, RUNTIME)


def test_an_unknown_device_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"'cpu:9'; .*available: cpu, cpu:0"):
        discover("cpu:9", RUNTIME)


def test_a_cluster_file_gets_what_it_leaves_open() -> None:
    bare = Cluster((Device("cpu:0", options={"core": "0"}), Device("cpu:1", options={"core": "1"})))
    cluster = completed_cluster(bare, RUNTIME)
    assert [device.fingerprint for device in cluster.devices] == ["cpu:0", "cpu:1"]
    assert len(cluster.links) == 6
    again = completed_cluster(cluster, RUNTIME)
    assert again.links == cluster.links


def test_a_cluster_file_gets_the_memory_of_the_machine() -> None:
    """A core of any name shares the CPU's memory; a limit and a domain of the file's own stay."""
    whole = Device("cpu", memory_bytes=1e9, memory_domain="cpu")
    gpu = Device("GPU.0", "gpu", memory_bytes=2e9)
    mine = (
        Device("mine", options={"core": "0"}),
        Device("small", memory_bytes=5.0, memory_domain="socket 1", options={"core": "1"}),
        Device("GPU.0", "gpu"),
    )
    cluster = completed_cluster(Cluster(mine), SyntheticRuntime((whole, gpu)))
    assert [device.memory_bytes for device in cluster.devices] == [math.inf, 5.0, 2e9]
    assert cluster.pools == {"ram": 1e9}
    assert [device.pool for device in cluster.devices] == ["ram", "ram", None]
    assert [device.memory_domain for device in cluster.devices] == ["cpu", "socket 1", None]


def test_an_integrated_gpu_shares_the_pool_of_the_processor() -> None:
    """Its driver's limit holds inside the pool; without the processor there is nothing to share."""
    whole = Device("cpu", memory_bytes=8e9, memory_domain="cpu")
    gpu = Device("GPU.0", "gpu", memory_bytes=4e9, pool="ram")
    card = Device("GPU.1", "gpu", memory_bytes=16e9)
    runtime = SyntheticRuntime((whole, gpu, card))
    cluster = discover("cpu,GPU.0,GPU.1", runtime)
    assert cluster.pools == {"ram": 8e9}
    assert [device.pool for device in cluster.devices] == ["ram", "ram", None]
    assert [device.memory_bytes for device in cluster.devices] == [math.inf, 4e9, 16e9]
    assert discover("GPU.0,GPU.1", runtime).pools == {}


def test_the_runtime_says_whether_devices_hold_a_weight_once() -> None:
    class Threads(SyntheticRuntime):
        """Runs its devices as threads that share weights."""

        def shares_weights(self, devices: Sequence[Device]) -> bool:
            return all(device.kind == "cpu" for device in devices)

    gpu = Device("GPU.0", "gpu")
    threads = Threads((*CORES, gpu))
    assert discover("cpu:0,cpu:1", threads).shares_weights
    assert not discover("cpu:0", threads).shares_weights
    assert not discover("cpu:0,GPU.0", threads).shares_weights
    claimed = Cluster(CORES[:2], shares_weights=True)
    assert completed_cluster(claimed, threads).shares_weights
    assert not completed_cluster(claimed, RUNTIME).shares_weights


def test_a_core_and_a_gpu_do_not_overlap() -> None:
    check_no_overlap([CORES[0], Device("GPU.0", "gpu")])


def cards(first: dict[str, str], second: dict[str, str]) -> list[Device]:
    return [Device("one", "gpu", options=first), Device("two", "gpu", options=second)]


@pytest.mark.parametrize(
    "devices",
    [
        cards({"device": "GPU.0"}, {"device": "GPU.0"}),
        [Device("GPU.0", "gpu"), Device("mine", "gpu", options={"device": "GPU.0"})],
        [Device("mine", options={"device": "GPU.0"}), Device("GPU.0", "gpu")],
        cards({"provider": "P", "device_id": "1"}, {"provider": "P", "device_id": "1"}),
        cards({"provider": "P", "device_id": "0"}, {"provider": "P"}),
        cards({"provider": "P"}, {"provider": "P"}),
        cards({"device": "GPU"}, {"device": "GPU.0"}),
        cards({"device": "NPU"}, {"device": "NPU.4000"}),
        cards({"provider": CUDA}, {"provider": CUDA, "session.disable_prepacking": "1"}),
        cards({"provider": CUDA, "device_id": "1"}, {"provider": TENSORRT, "device_id": "1"}),
        cards(
            {"provider": "P", "device_type": "GPU.1_FP16"},
            {"provider": "P", "device_type": "GPU.1_FP32"},
        ),
    ],
)
def test_one_accelerator_under_two_names_is_refused(devices: list[Device]) -> None:
    one, two = (device.name for device in devices)
    with pytest.raises(ClusterError, match=f"'{one}' and '{two}' overlap: .* same accelerator"):
        check_no_overlap(devices)
    check_no_overlap([replace(device, kind="gpu", processors=("card",)) for device in devices])


@pytest.mark.parametrize(
    "devices",
    [
        cards({"device": "GPU.0"}, {"device": "GPU.1"}),
        cards({"device": "GPU.0"}, {}),
        [Device("cpu", options={"device": "CPU"}), Device("GPU.0", "gpu")],
        cards({"provider": "P", "device_id": "1"}, {"provider": "P"}),
        cards({"provider": "P", "device_id": "1"}, {"provider": "Q", "device_id": "1"}),
        cards({"provider": "P", "device_type": "NPU"}, {"provider": "P", "device_type": "GPU"}),
        cards(
            {"provider": "P", "device_type": "NPU", "device_id": "0"},
            {"provider": "P", "device_type": "GPU", "device_id": "0"},
        ),
        cards({"provider": "P", "backend_path": "a.so"}, {"provider": "P", "backend_path": "b.so"}),
        cards({"provider": "P", "units": "a"}, {"provider": "P", "units": "b"}),
        cards({"provider": "P", "units": "a"}, {"provider": "P"}),
        cards({"provider": CUDA}, {"provider": TENSORRT, "device_id": "1"}),
        cards({"provider": PROCESSOR}, {"provider": PROCESSOR, "core": "1"}),
    ],
)
def test_two_accelerators_do_not_overlap(devices: list[Device]) -> None:
    check_no_overlap(devices)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"device": "GPU.0"}, {"device": "GPU.1"}),
        ({"provider": CUDA}, {"provider": TENSORRT, "device_id": "1"}),
    ],
)
def test_modes_that_name_two_accelerators_are_refused(
    first: dict[str, str], second: dict[str, str]
) -> None:
    """Two cards that divide each operator are no such modes."""
    both = cards(first, second)
    with pytest.raises(ClusterError, match="share their processors, but are different hardware"):
        check_no_overlap([replace(device, processors=("card",)) for device in both])
    check_no_overlap([replace(device, processors=("card", "another")) for device in both])


def test_modes_of_two_makers_of_providers_may_be_one_accelerator() -> None:
    both = cards({"provider": CUDA}, {"provider": "P", "device_id": "1"})
    check_no_overlap([replace(device, processors=("card",)) for device in both])


def link(source: str, destination: str, latency: float) -> Link:
    return Link(source, destination, latency, bandwidth=1e9)


def latencies(links: list[Link]) -> dict[tuple[str, str], float]:
    return {(one.source, one.destination): one.latency_seconds for one in links}


def test_cores_of_one_kind_get_the_median() -> None:
    measured = [
        link("cpu:0", "cpu:1", 5.0),
        link("cpu:1", "cpu:0", 4.0),
        link("cpu:0", "cpu:2", 9.0),
        link("gpu", "cpu:0", 20.0),
        link("gpu", "cpu:1", 30.0),
        link("gpu", "cpu:2", 70.0),
        link("cpu:0", "gpu", 11.0),
    ]
    found = latencies(same_between_alike(measured, (*ALIKE_CORES, GPU)))
    between = {found[pair] for pair in found if "gpu" not in pair}
    assert between == {5.0}
    assert {found["gpu", f"cpu:{at}"] for at in range(3)} == {30.0}
    assert found["cpu:0", "gpu"] == 11.0
    again = same_between_alike(measured, (*ALIKE_CORES, GPU))
    assert [one.bandwidth for one in again] == [1e9] * 7


def test_cores_of_two_kinds_and_what_has_no_fingerprint_keep_their_own() -> None:
    slow = replace(ALIKE_CORES[1], fingerprint="another core")
    bare = replace(ALIKE_CORES[2], fingerprint="")
    measured = [
        link("cpu:0", "cpu:1", 5.0),
        link("cpu:1", "cpu:0", 4.0),
        link("cpu:0", "cpu:2", 9.0),
        link("cpu:1", "cpu:2", 8.0),
    ]
    assert same_between_alike(measured, (ALIKE_CORES[0], slow, bare)) == measured


def test_cores_whose_measured_wake_ups_differ_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measurement has noise of its own; the cores may take turns all the same."""
    noise = iter(np.random.default_rng(0).uniform(1e-5, 2e-5, 100).tolist())
    monkeypatch.setattr(f"{MODULE}.wake_seconds", lambda *_, **__: next(noise))
    monkeypatch.setattr(f"{MODULE}._copy", lambda *_: (0.0, float("inf")))
    links = measure_links(ALIKE_CORES, None)  # type: ignore[arg-type]
    builder = GraphBuilder()
    builder.add_op("only", "Op")
    problem = Problem(
        builder.build(),
        Cluster(ALIKE_CORES, tuple(links)),
        CostTable(np.ones((1, 3))),
        Grouping.identity(1),
        objective="throughput",
        execution_model=MaxLoad(),
    )
    assert alike_devices(problem).n_groups == 1


class Named(SyntheticRuntime):
    """Fills the options that a device leaves open, by its name."""

    def completed(self, device: Device) -> Device:
        base = next(known for known in self.devices if known.name == device.name)
        return super().completed(replace(device, options={**base.options, **device.options}))


def test_a_mode_is_completed_like_the_device_that_it_names() -> None:
    """It stays on that core, shares its pool, and gets tensors of the core's other mode at once."""
    whole = Device("cpu", memory_bytes=8e9, memory_domain="cpu")
    runtime = Named((whole, *(replace(core, memory_domain="cpu") for core in CORES)))
    half = Device("half", processors=("cpu:1",), options={"precision": "bf16"})
    cluster = completed_cluster(Cluster((Device("cpu:0"), Device("cpu:1"), half)), runtime)
    assert cluster.device_names == ("cpu:0", "cpu:1", "half")
    assert cluster.devices[2].options == {"core": "1", "precision": "bf16"}
    assert [device.pool for device in cluster.devices] == ["ram"] * 3
    assert [device.memory_domain for device in cluster.devices] == ["cpu", None, None]
    latency = {(link.source, link.destination): link.latency_seconds for link in cluster.links}
    assert latency["cpu:1", "half"] == latency["half", "cpu:1"] == 0.0
    assert latency["cpu:0", "half"] > 0.0


def test_a_mode_takes_what_it_leaves_open_from_the_entry_of_its_processor() -> None:
    """A limit of 1 GiB, and an option."""
    whole = Device("cpu", memory_bytes=8e9, memory_domain="cpu")
    runtime = Named((whole, *(replace(core, memory_domain="cpu") for core in CORES)))
    core = Device("cpu:0", memory_bytes=2.0**30, options={"weights": "shared"})
    half = Device("cpu:0-bf16", processors=("cpu:0",), options={"precision": "bf16"})
    cluster = completed_cluster(Cluster((half, core)), runtime)
    options = {"core": "0", "weights": "shared"}
    assert [device.options for device in cluster.devices] == [
        {**options, "precision": "bf16"},
        options,
    ]
    assert [device.memory_bytes for device in cluster.devices] == [2.0**30, 2.0**30]


def test_a_device_without_a_kind_has_that_of_the_machine() -> None:
    """So does its mode, and a kind that the file gives stays."""
    runtime = SyntheticRuntime((WHOLE, Device("GPU.0", "gpu"), Device("NPU", "npu")))
    mode = Device("GPU.0-f16", processors=("GPU.0",))
    mine = (Device("GPU.0"), mode, Device("NPU", "accelerator"), Device("cpu"))
    cluster = completed_cluster(Cluster(mine), runtime)
    assert [device.kind for device in cluster.devices] == ["gpu", "gpu", "accelerator", "cpu"]


@pytest.mark.parametrize(
    ("processors", "options", "words"),
    [
        (("cpu:0", "cpu:1"), {"core": "0"}, "share processor 'cpu:0', but not all"),
        (("cpu:0",), {"core": "1"}, "share their processors, but are different hardware"),
    ],
)
def test_modes_that_no_worker_can_run_are_refused(
    processors: tuple[str, ...], options: dict[str, str], words: str
) -> None:
    runtime = Named((*CORES, Device("cpu", memory_domain="cpu"), Device("mode")))
    mode = Device("mode", processors=processors, options=options)
    with pytest.raises(ClusterError, match=words):
        completed_cluster(Cluster((Device("cpu:0"), mode)), runtime)
