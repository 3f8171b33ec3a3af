"""Links that occupy devices: what units pay, what is refused, how it is written."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright.cli.inspect import _copies_text
from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.errors import ClusterError, CostError, UnknownNameError
from placewright.files.cluster_file import read_cluster, write_cluster
from placewright.report.explain import _transfer_text
from placewright.simulation.model import Simulator


def _fork(occupies: str | None) -> Problem:
    """Op a makes 8 bytes for b and c; every op takes 4 s, a copy from p to q takes 1 + 8 / 4 s."""
    builder = GraphBuilder()
    made = builder.add_tensor(builder.add_op("a", "Op"), 8.0)
    for name in "bc":
        builder.add_tensor(builder.add_op(name, "Op", inputs=[made]), 0.0, is_output=True)
    links = (
        Link("p", "q", 1.0, 4.0, occupies=occupies),
        Link("q", "p", 1.0, 4.0, occupies=occupies),
        *(Link(name, "host") for name in "pq"),
        *(Link("host", name) for name in "pq"),
    )
    return Problem.of_ops(
        builder.build(),
        Cluster((Device("p"), Device("q")), links),
        CostTable(frozen_floats(np.full((3, 2), 4.0))),
    )


@pytest.mark.parametrize(
    ("occupies", "device_of", "value", "ends"),
    [
        # b and c on q: a 0-4, transfer 4-7, b 7-11, c 11-15.
        ("nobody", (0, 1, 1), 15.0, (4, 11, 15)),
        # The first reader takes 3 s longer; the second one finds the tensor there.
        ("receiver", (0, 1, 1), 15.0, (4, 11, 15)),
        # a copies for 3 s, once for both readers.
        ("sender", (0, 1, 1), 15.0, (7, 11, 15)),
        # Two copies, one after the other: a 0-7, b 7-14, c 14-18.
        ("both", (0, 1, 1), 18.0, (7, 14, 18)),
        # b on p, c on q. The sender's copy delays b, the receiver's does not.
        ("nobody", (0, 0, 1), 11.0, (4, 8, 11)),
        ("receiver", (0, 0, 1), 11.0, (4, 8, 11)),
        ("sender", (0, 0, 1), 11.0, (7, 11, 11)),
        ("both", (0, 0, 1), 14.0, (7, 11, 14)),
        ("both", (0, 0, 0), 12.0, (4, 8, 12)),  # nothing is copied
    ],
)
def test_the_unit_that_copies_takes_longer(
    occupies: str, device_of: tuple[int, ...], value: float, ends: tuple[float, ...]
) -> None:
    simulator, placement = Simulator(_fork(occupies)), Placement.of(device_of)
    assert simulator.value(placement) == value
    assert simulator.timeline(placement).end.tolist() == list(ends)


def test_a_sender_copies_each_tensor_once_to_each_device_and_in_each_play() -> None:
    """Two outputs of a, each with two readers on q: 2 copies of 3 s. A second play is equal."""
    builder = GraphBuilder()
    op = builder.add_op("a", "Op")
    made = [builder.add_tensor(op, 8.0) for _ in range(2)]
    for name in "bc":
        builder.add_tensor(builder.add_op(name, "Op", inputs=made), 0.0, is_output=True)
    problem = replace(_fork("sender"), graph=builder.build())
    simulator, placement = Simulator(problem), Placement.of([0, 1, 1])
    for _ in range(2):
        assert simulator.timeline(placement).end.tolist() == [10.0, 14.0, 18.0]


def test_a_receiver_that_computes_delays_the_copy() -> None:
    """q is busy until 4 with c; then it copies for 3 s: b ends at 11, not at 4 + 4 + 3 - 4."""
    problem = _fork("receiver")
    builder = GraphBuilder()
    made = builder.add_tensor(builder.add_op("a", "Op"), 8.0)
    builder.add_tensor(builder.add_op("b", "Op", inputs=[made]), 0.0, is_output=True)
    builder.add_tensor(builder.add_op("c", "Op"), 0.0, is_output=True)
    alone = replace(problem, graph=builder.build())
    free = replace(alone, cluster=_fork("nobody").cluster)
    costs = CostTable(frozen_floats(np.array([[4.0, 4.0], [4.0, 4.0], [7.0, 7.0]])))
    placement = Placement.of((0, 1, 1), (0, 2, 1))
    assert Simulator(replace(free, costs=costs)).value(placement) == 11.0
    assert Simulator(replace(alone, costs=costs)).value(placement) == 14.0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda one: replace(one, channel="bus"), "waits for no channel"),
        (lambda one: replace(one, queues=False), "waits for no channel"),
    ],
)
def test_an_occupying_link_waits_for_no_channel(change: object, text: str) -> None:
    with pytest.raises(ClusterError, match=text):
        change(Link("p", "q", occupies="both"))  # type: ignore[operator]
    with pytest.raises(UnknownNameError, match="receiver"):
        Link("p", "q", occupies="somebody")


def test_an_occupied_device_can_do_nothing_else_and_is_not_the_host() -> None:
    cluster = _fork("receiver").cluster
    for change in ({"streams": 2}, {"overlaps_transfers": True}):
        with pytest.raises(ClusterError, match="could go on"):
            replace(cluster, devices=(cluster.devices[0], replace(cluster.devices[1], **change)))
    with pytest.raises(ClusterError, match="is the host"):
        replace(cluster, host="p", links=cluster.links[:2])
    own = frozen_floats(np.ones(3))
    with pytest.raises(CostError, match="no link can occupy"):
        replace(_fork("receiver"), transfer_seconds=own)


def test_a_cluster_file_keeps_who_is_occupied(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    cluster = _fork("receiver").cluster
    write_cluster(path, cluster)
    assert read_cluster(path).links == cluster.links
    write_cluster(path, _fork("nobody").cluster)
    assert read_cluster(path).links == _fork("nobody").cluster.links
    write_cluster(path, _fork(None).cluster)
    assert "occupies" not in path.read_text()  # files of earlier versions keep their hashes
    assert math.isfinite(Simulator(_fork("nobody")).value(Placement.of((0, 0, 0))))


@pytest.mark.parametrize(
    ("occupies", "in_line", "in_devices"),
    [
        (None, "", "nobody: no other rule predicts splits clearly better"),
        ("nobody", "", "nobody"),
        ("receiver", ", occupies the receiver", "the receiver"),
        ("both", ", occupies both", "both"),
    ],
)
def test_texts_say_who_is_occupied(occupies: str | None, in_line: str, in_devices: str) -> None:
    line = _transfer_text(_fork(occupies), (0, 0, 1), 3.0, "saves the")
    assert line == f"saves the transfer of 'a' from p to q (8 B, 3 s{in_line})"
    assert _copies_text({occupies}) == f"Copies between devices occupy {in_devices}"
