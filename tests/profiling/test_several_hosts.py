"""Problems of several hosts as one, by hand and by what a joined problem must keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.errors import InputError
from placewright.profiling.several_hosts import Way, joined_cluster, joined_problem
from placewright.simulation.model import Simulator

WAYS = {("a", "b"): Way(1e-3, 1e6), ("b", "a"): Way(2e-3, 2e6)}


def machine(*names: str) -> Cluster:
    """Cores that share memory, a copy of 1 us and 1 GB/s away from the host's."""
    devices = tuple(Device(name, memory_domain="ram") for name in names)
    links = []
    for name in names:
        links += [Link("host", name, 1e-6, 1e9), Link(name, "host", 3e-6, 1e9)]
        links += [Link(name, other, 5e-6) for other in names if other != name]
    return Cluster(devices, tuple(links), "host", {"ram": (1.0, 1.5)})


def chain(cluster: Cluster, labels: list[int], seconds: list[list[float]]) -> Problem:
    builder = GraphBuilder()
    tensor = builder.add_input(8e3)
    for number in range(3):
        op = builder.add_op(f"op{number}", "Op", inputs=[tensor])
        tensor = builder.add_tensor(op, 1e6)
    builder.mark_output(tensor)
    costs = CostTable(frozen_floats(np.array(seconds)), "measured")
    source = ModelSource(path="m.onnx", format="onnx", sha256="0" * 64)
    return Problem(builder.build(), cluster, costs, Grouping.from_labels(labels), source=source)


def test_devices_links_and_contention_carry_their_host() -> None:
    joined = joined_cluster({"a": machine("cpu:0", "cpu:1"), "b": machine("cpu:0")}, WAYS)
    assert joined.device_names == ("a:cpu:0", "a:cpu:1", "b:cpu:0")
    assert [one.memory_domain for one in joined.devices] == ["a:ram", "a:ram", "b:ram"]
    assert joined.contention == {"a:ram": (1.0, 1.5), "b:ram": (1.0, 1.5)}
    links = {(one.source, one.destination): one for one in joined.links}
    assert links["host", "a:cpu:0"].latency_seconds == 1e-6
    assert links["a:cpu:0", "a:cpu:1"].latency_seconds == 5e-6
    # From the device to its host's memory, over, and to the other device.
    there = links["a:cpu:1", "b:cpu:0"]
    assert there.latency_seconds == pytest.approx(3e-6 + 1e-3 + 1e-6)
    assert 1.0 / there.bandwidth == pytest.approx(1e-9 + 1e-6 + 1e-9)
    # The memory of the first host is the host: nothing is left there, or entered.
    assert links["host", "b:cpu:0"].latency_seconds == pytest.approx(1e-3 + 1e-6)
    assert links["b:cpu:0", "host"].latency_seconds == pytest.approx(3e-6 + 2e-3)
    crossing = {one.channel for one in joined.links if one.channel}
    assert crossing == {"a -> b", "b -> a"}
    assert len(joined.links) == 2 * 2 + 2 + (3 * 1) * 2


def test_units_are_what_no_host_takes_apart() -> None:
    first = chain(machine("cpu:0"), [0, 0, 1], [[3.0], [4.0]])
    second = chain(machine("cpu:0", "cpu:1"), [0, 1, 2], [[1.0, 10.0], [2.0, 20.0], [5.0, np.inf]])
    joined = joined_problem({"a": first, "b": second}, WAYS)
    assert joined.units.group_of.tolist() == [0, 0, 1]
    expected = [[3.0, 3.0, 30.0], [4.0, 5.0, np.inf]]
    assert joined.costs.seconds.tolist() == expected
    assert joined.costs.source == "measured on several hosts"
    # Within one host a placement takes what it takes there alone.
    alone = Simulator(first).value(Placement.of(np.array([0, 0])))
    assert Simulator(joined).value(Placement.of(np.array([0, 0]))) == alone
    across = Simulator(joined).value(Placement.of(np.array([0, 1])))
    assert across == pytest.approx(1e-6 + 8e-6 + 3.0 + 5.0 + (1e-3 + 4e-6 + 1e6 * 1.002e-6)
                                   + (2e-3 + 3e-6 + 1e6 * (0.5e-6 + 1e-9)))  # fmt: skip


def test_hosts_that_have_read_different_models_are_told() -> None:
    first = chain(machine("cpu:0"), [0, 1, 2], [[1.0], [1.0], [1.0]])
    assert first.source is not None
    other = replace(first, source=replace(first.source, sha256="1" * 64))
    with pytest.raises(InputError, match="host 'b' has read another model than host 'a'"):
        joined_problem({"a": first, "b": other}, WAYS)


def test_a_joined_cluster_is_calibrated_if_all_hosts_are() -> None:
    """Without the error of predictions, a split would be judged as if none was calibrated."""
    one = replace(machine("cpu:0"), prediction_error=0.1, call_seconds=1e-5)
    two = replace(machine("cpu:0"), prediction_error=0.2, call_seconds=3e-5)
    joined = joined_cluster({"a": one, "b": two}, WAYS)
    assert (joined.prediction_error, joined.call_seconds) == (0.2, 3e-5)
    assert joined_cluster({"a": one, "b": machine("cpu:0")}, WAYS).prediction_error is None


def test_processors_of_two_hosts_are_not_one() -> None:
    def card(kind: str) -> Device:
        return Device(kind, "gpu", processors=("GPU.0",))

    clusters = {}
    for host in ("a", "b"):
        names = ("f32", "f16")
        links = tuple(Link(*ends) for n in names for ends in ((n, "host"), ("host", n)))
        clusters[host] = Cluster(tuple(map(card, names)), links, "host")
    joined = joined_cluster(clusters, WAYS)
    assert [one.processors for one in joined.devices] == [
        ("a:GPU.0",), ("a:GPU.0",), ("b:GPU.0",), ("b:GPU.0",)
    ]  # fmt: skip
