"""A calibration that outlives a process: what was fitted is kept, never the cluster itself.

Two clusters of the same devices may differ in memory limits, bandwidths and channels that the user
wrote into a file; a fit belongs to the devices and the model, and goes with any of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from placewright.core.cluster import Cluster
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.profiling.profile import model_identity
from placewright.profiling.store import CostStore

_VERSION = "calibration/6"  # what a stored fit means
_OF_STREAMS = "stream calibration/2"
_FITTED = (
    "dispatch_seconds",
    "cut_seconds",
    "cut_seconds_per_byte",
    "layout_seconds",
    "layout_seconds_per_byte",
)


def known_calibration(problem: Problem, store: CostStore, version: str) -> Problem | None:
    """The problem with what an earlier call of `keep_calibration` fitted; None without.

    Args:
        problem: as it was profiled.
        store: in the user's cache folder.
        version: of the runtime.
    """
    text = store.fact(_key_of(problem, version))
    if text is None:
        return None
    return replace(problem, cluster=_with_fit(problem.cluster, json.loads(text)))


def is_calibration_known(
    model: tuple[ComputationGraph, ModelSource],
    n_units: int,
    cluster: Cluster,
    store: CostStore,
    version: str,
) -> bool:
    """Whether `known_calibration` will find a fit, before there is a problem.

    Args:
        model: as it was read.
        n_units: of it on these devices.
        cluster, store, version: as there.
    """
    return store.fact(_key(model, n_units, cluster, version)) is not None


def keep_calibration(problem: Problem, store: CostStore, version: str) -> None:
    """Store what a calibration fitted to a problem's cluster."""
    cluster = problem.cluster
    fit = {
        "devices": {d.name: [getattr(d, name) for name in _FITTED] for d in cluster.devices},
        "latencies": [[x.source, x.destination, x.latency_seconds] for x in cluster.links],
        "scatter": {d.name: d.speed_scatter for d in cluster.devices},
        "contention": {domain: list(row) for domain, row in cluster.contention.items()},
    }
    store.put_fact(_key_of(problem, version), json.dumps(fit))


def _key_of(problem: Problem, version: str) -> str:
    if problem.source is None:
        raise ValueError("only the problem of a model is calibrated")
    key = _key((problem.graph, problem.source), problem.n_units, problem.cluster, version)
    return f"{_OF_STREAMS}|{key}" if problem.objective == "throughput" else key


def _key(
    model: tuple[ComputationGraph, ModelSource], n_units: int, cluster: Cluster, version: str
) -> str:
    of_devices = [(d.name, d.fingerprint, d.memory_domain) for d in cluster.devices]
    return f"{_VERSION}|{model_identity(*model)}|{n_units}|{of_devices}|{version}"


def _with_fit(cluster: Cluster, fit: dict[str, Any]) -> Cluster:
    scatter = fit.get("scatter", {})  # earlier versions did not keep it
    latency = {(source, destination): value for source, destination, value in fit["latencies"]}
    return replace(
        cluster,
        devices=tuple(
            replace(
                device,
                speed_scatter=scatter.get(device.name),
                **dict(zip(_FITTED, fit["devices"][device.name], strict=True)),
            )
            for device in cluster.devices
        ),
        links=tuple(
            replace(
                link,
                latency_seconds=latency.get((link.source, link.destination), link.latency_seconds),
            )
            for link in cluster.links
        ),
        contention={domain: tuple(row) for domain, row in fit["contention"].items()},
    )
