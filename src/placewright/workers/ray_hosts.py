"""Hosts of a Ray cluster that measure: one measurement at a time, alone on the host's cores."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import AnswerError, InputError, PlacewrightError
from placewright.workers.tasks import Versions, difference, versions_here

_SECONDS = 120.0  # until a node has answered; a first process of a node imports Ray


@dataclass(frozen=True)
class RayNode:
    """One node that is alive."""

    identity: str  # of Ray
    host: str  # name of its machine
    cpus: float  # that Ray gives to tasks
    resources: dict[str, float]  # all that Ray counts of it


def nodes_of(ray: Any) -> list[RayNode]:
    """Return the nodes that are alive, sorted by name."""
    alive = [
        RayNode(
            identity=node["NodeID"],
            host=node["NodeManagerHostname"],
            cpus=float(node["Resources"].get("CPU", 0.0)),
            resources=dict(node["Resources"]),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(alive, key=lambda node: (node.host, node.identity))


def require_same_versions(ray: Any, nodes: Sequence[RayNode]) -> None:
    """Check that all nodes have the versions of this process.

    Raises:
        InputError: a node has other versions, or lacks a package.
        AnswerError: a node does not answer.
    """
    ours = versions_here()
    answers = ask(ray, nodes, _versions_there(tuple(ours)))
    faults = [
        f"node '{node.host}' ({node.identity[:8]}): {fault}"
        for node, theirs in zip(nodes, answers, strict=True)
        if (fault := difference(ours, theirs))
    ]
    if faults:
        more = f" (and {len(faults) - 1} further nodes)" if len(faults) > 1 else ""
        raise InputError(faults[0] + more)


def ask(ray: Any, nodes: Sequence[RayNode], function: Callable[[], Any]) -> list[Any]:
    """Call a function on each node, which need not have this package.

    Args:
        nodes: in the order of the answers.
        function: no function of a module, since Ray sends those by name only.

    Raises:
        AnswerError: a node does not answer.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = ray.remote(function)
    calls = [
        asked.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.identity, soft=False),
        ).remote()
        for node in nodes
    ]
    answers = []
    for node, call in zip(nodes, calls, strict=True):
        try:
            answers.append(ray.get(call, timeout=_SECONDS))
        except ray.exceptions.RayError as error:
            raise AnswerError(
                f"node '{node.host}' ({node.identity[:8]}) does not answer: "
                f"{type(error).__name__}; see `ray status`"
            ) from None
    return answers


def _versions_there(names: tuple[str, ...]) -> Callable[[], Versions]:
    def versions() -> Versions:
        import platform
        from importlib.metadata import PackageNotFoundError, version

        found = {}
        for name in names:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = ""
        return {**found, "python": ".".join(platform.python_version_tuple()[:2])}

    return versions


_LOOKS_EVERY = 1.0  # seconds
_MESSAGES, _TRANSFERS = 50, 5
_LARGE = 32 << 20  # bytes of a timed transfer


@dataclass(frozen=True)
class RayHost:
    """A node that measures."""

    name: str  # of its machine; a second node of it has a number behind it
    machine: str  # name of its machine: nodes of one machine measure one after the other
    node: RayNode  # its node


@dataclass(frozen=True)
class Answer:
    """The answer of a host."""

    value: Any = None  # of the function; None without one
    error: str = ""  # the exception that it raised, as one line
    is_lost: bool = False  # the host went away


def hosts_of(nodes: Sequence[RayNode], first: str) -> list[RayHost]:
    """Name the nodes, the node with the identity `first` before the others."""
    ordered = sorted(nodes, key=lambda node: (node.identity != first, node.host, node.identity))
    seen: Counter[str] = Counter()
    named = []
    for node in ordered:
        seen[node.host] += 1
        number = seen[node.host]
        named.append(
            RayHost(node.host if number == 1 else f"{node.host}-{number}", node.host, node)
        )
    return named


class MeasuringActor:
    """An actor that calls functions, one at a time."""

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
        """Return the function's result and no text, or None and its error as one line."""
        try:
            return function(*arguments), ""
        except PlacewrightError as error:
            return None, " ".join(str(error).split())

    def echo(self) -> None:
        """Answer an empty message."""

    def fetch_seconds(self, reference: list[Any]) -> float:
        """Measure the seconds to bring a value here."""
        import ray

        began = time.perf_counter()
        ray.get(reference[0])
        return time.perf_counter() - began

    def way_seconds(self, other: Any) -> tuple[float, float]:
        """Measure the seconds of a message and of `_LARGE` bytes to another host, medians."""
        import ray

        for _ in range(3):  # the first ones make connections
            ray.get(other.echo.remote())
        messages = []
        for _ in range(_MESSAGES):
            began = time.perf_counter()
            ray.get(other.echo.remote())
            messages.append((time.perf_counter() - began) / 2)
        transfers = []
        for number in range(_TRANSFERS + 1):
            value = ray.put(np.full(_LARGE, number, dtype=np.uint8))
            transfers.append(ray.get(other.fetch_seconds.remote([value])))
        return statistics.median(messages), statistics.median(transfers[1:])


@contextmanager
def measuring_actors(ray: Any, hosts: Sequence[RayHost]) -> Iterator[dict[str, Any]]:
    """Yield host -> its actor, which has all cores of its node; actors end with the block."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actors = {}
    try:
        for host in hosts:
            actors[host.name] = (
                ray.remote(MeasuringActor)
                .options(
                    num_cpus=host.node.cpus,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(
                        host.node.identity, soft=False
                    ),
                )
                .remote()
            )
        yield actors
    finally:
        for actor in actors.values():
            ray.kill(actor)


def answers(
    ray: Any,
    actors: Mapping[str, Any],
    hosts: Sequence[RayHost],
    function: Callable[..., Any],
    arguments: Mapping[str, tuple[Any, ...]],
    report: Callable[[str, int], None] = lambda host, done: None,
) -> dict[str, Answer]:
    """Call a function of this package on each host; machines work at the same time.

    Args:
        actors: of `measuring_actors`.
        hosts: that are asked, in this order on each machine.
        arguments: host -> arguments.
        report: called with the host that begins, and the number of hosts that are done.
    """
    waiting: dict[str, list[RayHost]] = {}
    for host in hosts:
        waiting.setdefault(host.machine, []).append(host)
    busy: dict[Any, RayHost] = {}
    answered: dict[str, Answer] = {}
    while waiting or busy:
        at_work = {host.machine for host in busy.values()}
        for machine in [name for name in waiting if name not in at_work]:
            host = waiting[machine].pop(0)
            if not waiting[machine]:
                del waiting[machine]
            report(host.name, len(answered))
            call = actors[host.name].call.remote(function, arguments[host.name])
            busy[call] = host
        ready, _ = ray.wait(list(busy), timeout=_LOOKS_EVERY)
        for call in ready:
            answered[busy.pop(call).name] = _answer(ray, call)
    return {host.name: answered[host.name] for host in hosts}


def way_between(ray: Any, source: Any, destination: Any) -> tuple[float, float]:
    """Measure latency in seconds and bytes per second between the hosts of two actors."""
    message, transfer = ray.get(source.way_seconds.remote(destination))
    return message, _LARGE / max(transfer - message, 1e-9)


def _answer(ray: Any, call: Any) -> Answer:
    try:
        value, fault = ray.get(call)
    except ray.exceptions.RayTaskError as error:
        lines = str(error.cause).strip().splitlines() or [type(error.cause).__name__]
        return Answer(error=lines[-1])
    except ray.exceptions.RayError as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return Answer(error=f"{type(error).__name__}: {first}"[:200], is_lost=True)
    return Answer(value, fault)
