"""Groups of equal devices that stand for one device, and the problems that result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import InputError


def alike_devices(problem: Problem) -> Grouping:
    """Device -> pool: devices of one pool may be exchanged in every placement.

    They take the same seconds and energy for every unit, may run the same units, have the same
    traits, and exchanging two of them changes no link. The host, devices whose links share a
    channel, devices that share a processor and groups stand alone.
    """
    cluster, n = problem.cluster, problem.n_devices
    alone = (cluster.replicas > 1) | cluster.excludes.any(axis=1)
    if cluster.host_endpoint < n:
        alone = alone | (np.arange(n) == cluster.host_endpoint)
    for link in cluster.links:
        for end in (link.source, link.destination):
            if link.channel is not None and cluster.endpoint_index[end] < n:
                alone[cluster.endpoint_index[end]] = True
    pool = list(range(n))
    for device in range(n):
        firsts = [first for first in range(device) if pool[first] == first]
        if not alone[device]:
            same = (
                first for first in firsts if not alone[first] and _alike(problem, first, device)
            )
            pool[device] = next(same, device)
    return Grouping.from_labels(pool)


def grouped(problem: Problem, groups: Sequence[Sequence[int]]) -> Problem:
    """The problem whose devices are groups of alike devices, called ``"a+b"``.

    Args:
        problem: of single devices.
        groups: devices of each group, each from one pool of `alike_devices`; every device once.

    Returns:
        A problem with a device for each group, in the order of `groups`.

    Raises:
        InputError: a group is of devices that differ, or a device is in none or in two.
    """
    pool_of = alike_devices(problem).group_of
    names = problem.cluster.device_names
    if sorted(device for group in groups for device in group) != list(range(problem.n_devices)):
        raise InputError(f"every device must be in one group, got {[list(g) for g in groups]}")
    for group in groups:
        if not group:
            raise InputError("a group of devices is empty; leave it out")
        if len({int(pool_of[device]) for device in group}) > 1:
            members = ", ".join(f"'{names[device]}'" for device in group)
            raise InputError(
                f"{members} differ, so they cannot be replicas of one stage; choose identical "
                "devices"
            )
    first = [group[0] for group in groups]
    devices = tuple(
        _as_group(problem, group, "+".join(names[d] for d in group)) for group in groups
    )
    of_device = {device: at for at, group in enumerate(groups) for device in group}
    joules = problem.op_joules
    return replace(
        problem,
        cluster=_over_firsts(problem.cluster, devices, first),
        costs=CostTable(frozen_floats(problem.costs.seconds[:, first]), problem.costs.source),
        op_joules=None if joules is None else frozen_floats(joules[:, first]),
        pins={op: of_device[device] for op, device in problem.pins.items()},
    )


def one_group_per_size(problem: Problem) -> Problem:
    """A problem in which the i-th device of each pool stands for i devices of that pool.

    Its devices are all groups that can be formed, one for each pool and size; no cluster holds
    them together, but what a set of units costs on each of them can be asked as of any cluster.
    """
    devices = list(problem.cluster.devices)
    pools = alike_devices(problem)
    for pool in range(pools.n_groups):
        for size, device in enumerate(pools.members.row(pool).tolist(), start=1):
            members = pools.members.row(pool).tolist()[:size]
            devices[device] = _as_group(problem, members, devices[device].name)
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def _as_group(problem: Problem, group: Sequence[int], name: str) -> Device:
    devices = problem.cluster.devices
    known = devices[group[0]]
    if len(group) == 1:
        return known
    return replace(
        known,
        name=name,
        replicas=len(group),
        replica_bandwidth=_bandwidth(problem, group[0]),
        members=tuple(devices[device] for device in group),
    )


def _bandwidth(problem: Problem, device: int) -> float | None:
    """Bytes per second between members of the device's pool; None if unknown.

    Without a link between them bytes go through the host, one hop after the other.
    """
    if problem.transfer_seconds is not None:
        return None
    cluster, host = problem.cluster, problem.cluster.host_endpoint
    pool_of = alike_devices(problem).group_of
    other = next(d for d in np.flatnonzero(pool_of == pool_of[device]).tolist() if d != device)
    per_byte = cluster.link_seconds_per_byte
    seconds = float(per_byte[device, other])
    if math.isinf(seconds):
        seconds = float(per_byte[device, host] + per_byte[host, other])
    if math.isinf(seconds):
        return None
    return 1.0 / seconds if seconds > 0 else math.inf


def _over_firsts(cluster: Cluster, devices: tuple[Device, ...], first: Sequence[int]) -> Cluster:
    """The cluster of groups, with the links of their first members."""
    kept = {
        cluster.devices[at].name: device.name for at, device in zip(first, devices, strict=True)
    }
    if cluster.host not in cluster.device_index:
        kept[cluster.host] = cluster.host
    links: list[Link] = [
        replace(link, source=kept[link.source], destination=kept[link.destination])
        for link in cluster.links
        if link.source in kept and link.destination in kept
    ]
    return replace(cluster, devices=devices, links=tuple(links))


def _is_alike(first: Device, second: Device) -> bool:
    """True if two devices differ only in name, fingerprint and, for example, number of their core.

    Options tell that, too (a core has its number); a fingerprint says which of them matter.
    """
    options = second.options
    if first.fingerprint and first.fingerprint == second.fingerprint:
        options = first.options
    same = replace(
        second,
        name=first.name,
        fingerprint=first.fingerprint,
        options=options,
        speed_scatter=first.speed_scatter,
    )
    return same == first and dict(options) == dict(first.options)


def _alike(problem: Problem, one: int, other: int) -> bool:
    """True if exchanging two devices changes nothing but their names."""
    cluster = problem.cluster
    first, second = cluster.devices[one], cluster.devices[other]
    if not _is_alike(first, second):
        return False
    columns: list[FloatArray | BoolArray] = [problem.costs.seconds, problem.allowed]
    columns += [] if problem.op_joules is None else [problem.op_joules]
    if any((matrix[:, one] != matrix[:, other]).any() for matrix in columns):
        return False
    swapped = np.arange(cluster.n_endpoints)
    swapped[[one, other]] = other, one
    links = (
        *(cluster.link_latency, cluster.link_seconds_per_byte),
        *(cluster.link_queues, cluster.occupied),
    )
    return all(np.array_equal(matrix, matrix[swapped][:, swapped]) for matrix in links)
