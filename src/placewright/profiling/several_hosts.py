"""What several hosts measured of one model on their own devices, as one problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import FloatArray, frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.profiling.profile import model_identity
from placewright.profiling.units import common_units

SOURCE = "measured on several hosts"
_NO_LINK = Link("a", "b")


@dataclass(frozen=True)
class Way:
    """From one host's memory to another's.

    Attributes:
        latency_seconds: of a message.
        bandwidth: bytes per second.
    """

    latency_seconds: float
    bandwidth: float


def joined_cluster(clusters: Mapping[str, Cluster], ways: Mapping[tuple[str, str], Way]) -> Cluster:
    """One cluster of the devices of several hosts, each named ``host:device``.

    The memory of the first host is where graph inputs start and outputs end. All that goes from one
    host to another shares the way between them: a tensor leaves its device, crosses and enters the
    other device, one after the other.

    Args:
        clusters: host -> its devices, links between them and to its memory.
        ways: (host, other host) -> measured way, both ways of each pair.
    """
    devices = [_named(host, one) for host, own in clusters.items() for one in own.devices]
    first = next(iter(clusters))
    links: list[Link] = []
    for host, own in clusters.items():
        for link in own.links:
            if own.host in (link.source, link.destination) and host != first:
                continue  # the host of the whole is another one
            links.append(_renamed(host, own, link))
    for (host, other), way in ways.items():
        channel = f"{host} -> {other}"
        leaving = {_name(host, one): _link(clusters[host], one.name, None)
                   for one in clusters[host].devices}  # fmt: skip
        entering = {_name(other, one): _link(clusters[other], None, one.name)
                    for one in clusters[other].devices}  # fmt: skip
        if host == first:
            leaving["host"] = _NO_LINK
        if other == first:
            entering["host"] = _NO_LINK
        links += [
            _through(source, destination, (before, way, after), channel)
            for source, before in leaving.items()
            for destination, after in entering.items()
        ]
    contention = {
        f"{host}:{domain}": factors
        for host, own in clusters.items()
        for domain, factors in own.contention.items()
    }
    return Cluster(tuple(devices), tuple(links), "host", contention)


def joined_problem(found: Mapping[str, Problem], ways: Mapping[tuple[str, str], Way]) -> Problem:
    """One problem of what several hosts measured of the same model.

    A unit is what no host takes apart; where a host measured its ops apart, their seconds add up.

    Args:
        found: host -> problem of its devices, calibrated.
        ways: as of `joined_cluster`.

    Raises:
        InputError: two hosts have read different models.
    """
    (first_host, first), *_ = found.items()
    _require_one_model(found, first_host)
    units = common_units(first.graph, [problem.units for problem in found.values()])
    columns = [_seconds(problem, units) for problem in found.values()]
    return replace(
        first,
        cluster=joined_cluster({host: one.cluster for host, one in found.items()}, ways),
        costs=CostTable(frozen_floats(np.concatenate(columns, axis=1)), SOURCE),
        units=units,
        op_working_bytes=_most([problem.op_working_bytes for problem in found.values()]),
    )


def _require_one_model(found: Mapping[str, Problem], first: str) -> None:
    def identity(problem: Problem) -> str:
        assert problem.source is not None
        return model_identity(problem.graph, problem.source)

    ours = identity(found[first])
    for host, problem in found.items():
        if identity(problem) != ours:
            raise InputError(
                f"host '{host}' has read another model than host '{first}'; give both the same "
                "file and the same versions"
            )


def _seconds(problem: Problem, units: Grouping) -> FloatArray:
    """Of the joined units on the devices of one host, shape (n_units, n_devices)."""
    into = np.empty(problem.n_units, dtype=np.int64)
    into[problem.units.group_of] = units.group_of
    found = np.zeros((units.n_groups, problem.n_devices))
    np.add.at(found, into, problem.costs.seconds)
    return found


def _most(found: Sequence[FloatArray | None]) -> FloatArray | None:
    known = [one for one in found if one is not None]
    return frozen_floats(np.max(known, axis=0)) if known else None


def _name(host: str, device: Device) -> str:
    return f"{host}:{device.name}"


def _named(host: str, device: Device) -> Device:
    domain = None if device.memory_domain is None else f"{host}:{device.memory_domain}"
    return replace(device, name=_name(host, device), memory_domain=domain)


def _renamed(host: str, own: Cluster, link: Link) -> Link:
    def end(name: str) -> str:
        return "host" if name == own.host else f"{host}:{name}"

    channel = None if link.channel is None else f"{host}:{link.channel}"
    return replace(
        link, source=end(link.source), destination=end(link.destination), channel=channel
    )


def _link(own: Cluster, source: str | None, destination: str | None) -> Link:
    """Between a device and its host's memory; None stands for the memory."""
    ends = (source or own.host, destination or own.host)
    return next((one for one in own.links if (one.source, one.destination) == ends), _NO_LINK)


def _through(source: str, destination: str, parts: tuple[Link, Way, Link], channel: str) -> Link:
    latency = sum(part.latency_seconds for part in parts)
    per_byte = sum(1.0 / part.bandwidth for part in parts)
    return Link(source, destination, latency, 1.0 / per_byte, channel)
