"""Discovery: names, overlaps, options, links in both directions."""

from __future__ import annotations

import itertools
import math

import pytest
from profiling.synthetic import SyntheticRuntime

from placewright.core.cluster import Cluster, Device
from placewright.errors import ClusterError, UnknownNameError
from placewright.profiling.discover import check_no_overlap, completed_cluster, discover

WHOLE = Device("cpu", options={"precision": "f32"})
CORES = tuple(Device(f"cpu:{n}", options={"core": str(n)}) for n in range(3))
RUNTIME = SyntheticRuntime((WHOLE, *CORES, Device("GPU.0", "gpu")))


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
    with pytest.raises(UnknownNameError, match="'cpu:9'; available: cpu, cpu:0"):
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
    assert [device.memory_bytes for device in cluster.devices] == [1e9, 5.0, 2e9]
    assert [device.memory_domain for device in cluster.devices] == ["cpu", "socket 1", None]


def test_a_core_and_a_gpu_do_not_overlap() -> None:
    check_no_overlap([CORES[0], Device("GPU.0", "gpu")])
