"""Stored calibrations: fits of earlier processes, without the cluster itself.

Two clusters of the same devices may differ in memory limits, bandwidths and channels that the user
wrote into a file. A fit belongs to the devices and the model, and holds for all such clusters. The
fit of a quick calibration has a key of its own. Only quick requests use it, and only until there is
a complete one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from placewright.core.cluster import Cluster
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.profiling.machine_costs import has_drifted
from placewright.profiling.profile import model_identity
from placewright.profiling.store import CostStore

Probe = Callable[[], Sequence[float]]
_VERSION = "calibration/9"  # changes with the meaning of a stored fit
_OF_STREAMS = "stream calibration/2"
_FITTED = (
    "dispatch_seconds",
    "cut_seconds",
    "cut_seconds_per_byte",
    "layout_seconds",
    "layout_seconds_per_byte",
)
_QUICK = "quick calibration/1"


@dataclass(frozen=True)
class KnownCalibration:
    """A problem with a stored fit."""

    problem: Problem  # with the fit
    left_out: str  # parts that its calibration left out, as a clause; "" if it was complete


def known_calibration(
    problem: Problem,
    store: CostStore,
    version: str,
    probe: Probe | None = None,
    *,
    is_quick: bool = False,
) -> KnownCalibration | None:
    """Return a problem with the fit that `keep_calibration` stored earlier.

    The result is None if there is no fit, or if the machine has changed since.

    Args:
        probe: examines the machine; None trusts the store.
        is_quick: also take the fit of a quick calibration, if there is no complete one.
    """
    fit = _stored_fit(store, _key_of(problem, version), probe, is_quick=is_quick)
    if fit is None:
        return None
    with_fit = replace(problem, cluster=_with_fit(problem.cluster, fit))
    return KnownCalibration(with_fit, fit.get("left_out", ""))


def is_calibration_known(
    model: tuple[ComputationGraph, ModelSource],
    n_units: int,
    cluster: Cluster,
    store: CostStore,
    version: str,
    *,
    of_streams: bool = False,
    probe: Probe | None = None,
    is_quick: bool = False,
) -> bool:
    """True if `known_calibration` will return a fit, before there is a problem.

    Args:
        n_units: number of its units on these devices.
        cluster, store, version: see `known_calibration`.
        of_streams: whether the objective is throughput.
        probe, is_quick: see `known_calibration`.
    """
    key = _key(model, n_units, cluster, version)
    key = f"{_OF_STREAMS}|{key}" if of_streams else key
    return _stored_fit(store, key, probe, is_quick=is_quick) is not None


def _stored_fit(
    store: CostStore, key: str, probe: Probe | None, *, is_quick: bool
) -> dict[str, Any] | None:
    text = store.fact(key)
    if text is None and is_quick:
        text = store.fact(f"{_QUICK}|{key}")
    if text is None:
        return None
    fit: dict[str, Any] = json.loads(text)
    if probe is not None and has_drifted(fit.get("probe", ()), probe):
        return None
    return fit


def keep_calibration(
    problem: Problem,
    store: CostStore,
    version: str,
    probed: Sequence[float] = (),
    *,
    left_out: str = "",
) -> None:
    """Store the fit of a problem's cluster, with the result of a probe.

    Args:
        problem: with the fit.
        left_out: parts that a quick calibration left out, as a clause; "" if it was complete.
    """
    cluster = problem.cluster
    fit = {
        "devices": {d.name: [getattr(d, name) for name in _FITTED] for d in cluster.devices},
        "latencies": [[x.source, x.destination, x.latency_seconds] for x in cluster.links],
        "scatter": {d.name: d.speed_scatter for d in cluster.devices},
        "contention": {domain: list(row) for domain, row in cluster.contention.items()},
        "prediction_error": cluster.prediction_error,
        "probe": list(probed),
        "left_out": left_out,
    }
    key = _key_of(problem, version)
    store.put_fact(f"{_QUICK}|{key}" if left_out else key, json.dumps(fit))


def _key_of(problem: Problem, version: str) -> str:
    if problem.source is None:
        raise ValueError("only the problem of a model is calibrated")
    key = _key((problem.graph, problem.source), problem.n_units, problem.cluster, version)
    return f"{_OF_STREAMS}|{key}" if problem.objective == "throughput" else key


def _key(
    model: tuple[ComputationGraph, ModelSource], n_units: int, cluster: Cluster, version: str
) -> str:
    devices = [(d.name, d.fingerprint, d.memory_domain) for d in cluster.devices]
    return f"{_VERSION}|{model_identity(*model)}|{n_units}|{devices}|{version}"


def _with_fit(cluster: Cluster, fit: dict[str, Any]) -> Cluster:
    scatter = fit.get("scatter", {})  # earlier versions did not store it
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
        prediction_error=fit["prediction_error"],
    )
