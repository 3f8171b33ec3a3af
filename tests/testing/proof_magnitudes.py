"""Problems in other magnitudes than the campaign has, whose values are about 1."""

from __future__ import annotations

from dataclasses import replace

from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Device, Link
from placewright.core.costs import CostTable
from placewright.core.problem import Problem

# Powers of two, so that sums stay exact: some 1e-7 and 1e6.
FACTORS = (2.0**-24, 2.0**20)


def in_other_seconds(problem: Problem, factor: float) -> Problem:
    """Multiply all seconds of a problem without energy and price; its values are multiplied too."""
    assert not problem.charges, "joules would have to follow"
    cluster, own = problem.cluster, problem.transfer_seconds
    return replace(
        problem,
        cluster=replace(
            cluster,
            devices=tuple(_device(device, factor) for device in cluster.devices),
            links=tuple(_link(link, factor) for link in cluster.links),
        ),
        costs=CostTable(frozen_floats(problem.costs.seconds * factor)),
        transfer_seconds=None if own is None else frozen_floats(own * factor),
    )


def _device(device: Device, factor: float) -> Device:
    rate = device.replica_bandwidth
    return replace(
        device,
        dispatch_seconds=device.dispatch_seconds * factor,
        cut_seconds=device.cut_seconds * factor,
        cut_seconds_per_byte=device.cut_seconds_per_byte * factor,
        layout_seconds=device.layout_seconds * factor,
        layout_seconds_per_byte=device.layout_seconds_per_byte * factor,
        replica_bandwidth=None if rate is None else rate / factor,
    )


def _link(link: Link, factor: float) -> Link:
    return replace(
        link,
        latency_seconds=link.latency_seconds * factor,
        bandwidth=link.bandwidth / factor,
    )
