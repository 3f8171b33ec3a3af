"""The nodes of a Ray cluster, whose versions are checked before any work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from placewright.errors import AnswerError, InputError
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
