"""Joining of the measurements that several hosts made of one model on their own devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import FloatArray, frozen_floats
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.pools import renamed
from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.profiling.profile import model_identity
from placewright.profiling.units import common_units

SOURCE = "measured on several hosts"
_NO_LINK = Link("a", "b")


@dataclass(frozen=True)
class Way:
    """Connection from one host's memory to another's."""

    latency_seconds: float  # of a message
    bandwidth: float  # bytes per second


def joined_cluster(clusters: Mapping[str, Cluster], ways: Mapping[tuple[str, str], Way]) -> Cluster:
    """Join clusters of several hosts; devices are named ``host:device``.

    Graph inputs start and outputs end in the memory of the first host. All tensors from one host to
    another share a channel. Each leaves its device, crosses, and enters the other device, in turn.

    Args:
        clusters: host -> its devices, with links between them and to its memory.
        ways: (host, other host) -> measured connection, in both directions of each pair.
    """
    devices = [_named(host, device) for host, own in clusters.items() for device in own.devices]
    first = next(iter(clusters))
    links: list[Link] = []
    for host, own in clusters.items():
        for link in own.links:
            if own.host in (link.source, link.destination) and host != first:
                continue  # the joined cluster has another host
            links.append(_renamed(host, own, link))
    for (host, other), way in ways.items():
        channel = f"{host} -> {other}"
        leaving = {_name(host, device): _link(clusters[host], device.name, None)
                   for device in clusters[host].devices}  # fmt: skip
        entering = {_name(other, device): _link(clusters[other], None, device.name)
                    for device in clusters[other].devices}  # fmt: skip
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
    pools = {f"{host}:{name}": size for host, own in clusters.items()
             for name, size in own.pools.items()}  # fmt: skip
    errors = [own.prediction_error for own in clusters.values()]
    known = [error for error in errors if error is not None]
    return Cluster(
        tuple(devices),
        tuple(links),
        "host",
        contention,
        prediction_error=max(known) if len(known) == len(errors) else None,
        call_seconds=max(own.call_seconds for own in clusters.values()),
        pools=pools,
    )


def joined_problem(problems: Mapping[str, Problem], ways: Mapping[tuple[str, str], Way]) -> Problem:
    """Join problems of the same model that several hosts measured.

    A unit is the smallest group of ops that no host splits. Seconds of ops that a host measured
    separately add up.

    Args:
        problems: host -> problem of its devices, calibrated.
        ways: see `joined_cluster`.

    Raises:
        InputError: two hosts have read different models.
    """
    (first_host, first), *_ = problems.items()
    _require_one_model(problems, first_host)
    units = common_units(first.graph, [problem.units for problem in problems.values()])
    columns = [_seconds(problem, units) for problem in problems.values()]
    return replace(
        first,
        cluster=joined_cluster({host: problem.cluster for host, problem in problems.items()}, ways),
        costs=CostTable(frozen_floats(np.concatenate(columns, axis=1)), SOURCE),
        units=units,
        op_working_bytes=_most([problem.op_working_bytes for problem in problems.values()]),
    )


def _require_one_model(problems: Mapping[str, Problem], first: str) -> None:
    def identity(problem: Problem) -> str:
        assert problem.source is not None
        return model_identity(problem.graph, problem.source)

    expected = identity(problems[first])
    for host, problem in problems.items():
        if identity(problem) != expected:
            raise InputError(
                f"host '{host}' has read another model than host '{first}'; give both the same "
                "file and the same versions"
            )


def _seconds(problem: Problem, units: Grouping) -> FloatArray:
    """Seconds of the joined units on the devices of a host, shape (n_units, n_devices)."""
    into = np.empty(problem.n_units, dtype=np.int64)
    into[problem.units.group_of] = units.group_of
    seconds = np.zeros((units.n_groups, problem.n_devices))
    np.add.at(seconds, into, problem.costs.seconds)
    return seconds


def _most(rows: Sequence[FloatArray | None]) -> FloatArray | None:
    known = [row for row in rows if row is not None]
    return frozen_floats(np.max(known, axis=0)) if known else None


def _name(host: str, device: Device) -> str:
    return f"{host}:{device.name}"


def _named(host: str, device: Device) -> Device:
    domain = None if device.memory_domain is None else f"{host}:{device.memory_domain}"
    pool = renamed(device.pool, f"{host}:")
    processors = tuple(f"{host}:{name}" for name in device.processors)
    return replace(
        device,
        name=_name(host, device),
        memory_domain=domain,
        pool=pool,
        processors=processors,
    )


def _renamed(host: str, own: Cluster, link: Link) -> Link:
    def end(name: str) -> str:
        return "host" if name == own.host else f"{host}:{name}"

    channel = None if link.channel is None else f"{host}:{link.channel}"
    return replace(
        link, source=end(link.source), destination=end(link.destination), channel=channel
    )


def _link(own: Cluster, source: str | None, destination: str | None) -> Link:
    """The link between a device and its host's memory; None stands for the memory."""
    ends = (source or own.host, destination or own.host)
    return next((x for x in own.links if (x.source, x.destination) == ends), _NO_LINK)


def _through(source: str, destination: str, parts: tuple[Link, Way, Link], channel: str) -> Link:
    latency = sum(part.latency_seconds for part in parts)
    per_byte = sum(1.0 / part.bandwidth for part in parts)
    return Link(source, destination, latency, 1.0 / per_byte, channel)
