"""Stored costs of splitting: of this machine for any model, and fits to the placements of a model.

A few placements of a framework's small model run on the devices. Their measurements replace those
of another model if there is no time for its own. They are stored for the devices (processor,
options and core), the cores that we may use, and the runtime's version. A probe checks the machine
at each start: two threads compute and copy alone and at the same time, and pass messages. If the
ratios differ from the stored ones, the machine has changed.

Fits are stored without the cluster itself: two clusters of the same devices may differ in memory
limits, bandwidths and channels that the user wrote into a file. A fit belongs to the devices and
the model, and holds for all such clusters. The fit of a quick calibration has a key of its own.
Only quick requests use it, and only while there is no complete one that still holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.graph import ComputationGraph
from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.execution.processor import cores_text, may_use_all
from placewright.execution.runtime import LoadedModel
from placewright.profiling.calibration import TrialPlan, calibration
from placewright.profiling.discover import on_core, wake_seconds
from placewright.profiling.evidence import LEAST_TRIALS, Evidence, takes_rule
from placewright.profiling.hardware import NEVER, Deadline
from placewright.profiling.measure import ProgressCallback
from placewright.profiling.profile import model_identity
from placewright.profiling.store import CostStore

VERSION = "machine costs/4"  # changes with the way of measuring
_PROBED_BYTES = 2 * 1024 * 1024
_PROBED_ROUNDS = 7
_DRIFTS = (1.5, 2.0, 4.0)  # ratios that probes of one machine do not reach


def machine_key(cluster: Cluster, runtime: str, version: str) -> str:
    """Key under which the costs of a machine are stored."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return f"{VERSION}|{runtime}|{version}|{cores}|{_devices_of(cluster)}"


def _devices_of(cluster: Cluster) -> list[tuple[str, str, str | None, str]]:
    """Facts about devices in a key; cores with one fingerprint may be near each other, or far."""
    return [
        (d.name, d.fingerprint, d.memory_domain, d.options.get("core", "")) for d in cluster.devices
    ]


def known_machine_costs(
    store: CostStore, key: str, probe: Callable[[], Sequence[float]]
) -> Evidence | None:
    """Return the stored measurements; None if there are none or the machine has changed.

    Args:
        key: from `machine_key`.
        probe: examines the machine, see `probe`.
    """
    text = store.fact(key)
    if text is None:
        return None
    stored = json.loads(text)
    return None if has_drifted(stored["probe"], probe) else Evidence.of_text(stored["evidence"])


def keep_machine_costs(
    store: CostStore, key: str, evidence: Evidence, probed: Sequence[float]
) -> None:
    """Store measurements, with the result of a probe."""
    store.put_fact(key, json.dumps({"evidence": evidence.text(), "probe": list(probed)}))


def measure_machine(
    problem: Problem,
    model: LoadedModel,
    *,
    progress: ProgressCallback | None = None,
    deadline: Deadline = NEVER,
) -> Evidence | None:
    """Measure placements of the small model; None if the time was too short.

    Args:
        problem: of the small model, as it was profiled.
        progress: called before each placement.
        deadline: no round starts after it.

    Raises:
        RuntimeFailure: a device cannot run the small model.
    """
    result = calibration(
        problem,
        model,
        np.random.default_rng(0),
        TrialPlan(in_threads=True),
        progress=progress,
        deadline=deadline,
    )
    return result.evidence if result.placements >= LEAST_TRIALS else None


def has_drifted(before: Sequence[float], probe: Callable[[], Sequence[float]]) -> bool:
    """True if two probes in turn differ from an earlier one by more than probes scatter.

    Args:
        before: result of the probe beside a measurement; zeros do not count.
        probe: examines the machine, see `probe`.
    """
    return any(before) and _differs(before, probe()) and _differs(before, probe())


def _differs(before: Sequence[float], now: Sequence[float]) -> bool:
    pairs = zip(before, now, _DRIFTS, strict=True)
    return any(max(a / b, b / a) > limit for a, b, limit in pairs if a > 0 and b > 0)


def probe(devices: Sequence[Device]) -> tuple[float, float, float]:
    """Probe the first two cores; the result is zero if there are no two. Takes about 0.1 s.

    Returns:
        How many times as long computing and copying take while both cores are busy, and the seconds
        of a message from one core to the other.
    """
    by_core = {d.options["core"]: d for d in devices if d.options.get("core") is not None}
    cores = list(by_core.values())[:2]  # modes of a core count once
    if len(cores) < 2:
        return (0.0, 0.0, 0.0)
    wake = wake_seconds(*cores)
    return (_slowdown(cores, _hashing), _slowdown(cores, _copying), wake)


def _hashing() -> Callable[[], object]:
    data = bytes(_PROBED_BYTES)
    return lambda: hashlib.sha256(data).digest()


def _copying() -> Callable[[], object]:
    source = np.ones(4 * _PROBED_BYTES, dtype=np.uint8)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


def _slowdown(cores: Sequence[Device], make: Callable[[], Callable[[], object]]) -> float:
    """Seconds with both cores busy over seconds alone, lower quartiles of rounds in turns."""
    alone: list[float] = []
    both: list[float] = []
    start, done = threading.Barrier(2), threading.Event()

    def second() -> None:
        on_core(cores[1])
        work = make()
        while True:
            start.wait()
            if done.is_set():
                return
            while not start.n_waiting:  # busy until the first core is done
                work()
            start.wait()

    def first() -> None:
        on_core(cores[0])
        work = make()
        work()
        for _ in range(_PROBED_ROUNDS):
            alone.append(_timed(work))
            start.wait()
            both.append(_timed(work))
            start.wait()
        done.set()
        start.wait()

    threads = [threading.Thread(target=run, daemon=True) for run in (second, first)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The quarter that other programs disturbed least: a probe is about the machine, not its users.
    return _quarter(both) / max(_quarter(alone), 1e-9)


def _quarter(seconds: Sequence[float]) -> float:
    return float(np.quantile(seconds, 0.25))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


Probe = Callable[[], Sequence[float]]
_VERSION = "calibration/19"  # changes with the meaning of a stored fit
_OF_STREAMS = "stream calibration/2"
_FITTED = (
    "dispatch_seconds",
    "cut_seconds",
    "cut_seconds_per_byte",
    "layout_seconds",
    "layout_seconds_per_byte",
    "split_share",
)
_QUICK = "quick calibration/2"


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
        is_quick: also take the fit of a quick calibration, if no complete one holds.
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
    """The complete fit, else the quick one if it may be; each must hold by its own probe."""
    for at in (key, f"{_QUICK}|{key}") if is_quick else (key,):
        text = store.fact(at)
        if text is None:
            continue
        fit: dict[str, Any] = json.loads(text)
        if probe is None or not has_drifted(fit.get("probe", ()), probe):
            return fit
    return None


def keep_calibration(
    problem: Problem,
    store: CostStore,
    version: str,
    probed: Sequence[float] = (),
    *,
    left_out: str = "",
) -> None:
    """Store the fit of a problem's cluster, with the result of a probe.

    A complete fit takes the place of a quick one.

    Args:
        problem: with the fit.
        left_out: parts that a quick calibration left out, as a clause; "" if it was complete.
    """
    cluster = problem.cluster
    fit = {
        "devices": {d.name: [getattr(d, name) for name in _FITTED] for d in cluster.devices},
        "latencies": [[x.source, x.destination, x.latency_seconds] for x in cluster.links],
        "occupies": [[x.source, x.destination, x.occupies] for x in cluster.links],
        "scatter": {d.name: d.speed_scatter for d in cluster.devices},
        "contention": {domain: list(row) for domain, row in cluster.contention.items()},
        "prediction_error": cluster.prediction_error,
        "call_seconds": cluster.call_seconds,
        "probe": list(probed),
        "left_out": left_out,
    }
    key = _key_of(problem, version)
    store.put_fact(f"{_QUICK}|{key}" if left_out else key, json.dumps(fit))
    if not left_out:
        store.remove_fact(f"{_QUICK}|{key}")


def drop_calibration(problem: Problem, store: CostStore, version: str) -> None:
    """Remove the fits of a problem's cluster, which a quick measurement is to replace.

    Args:
        problem, store, version: see `known_calibration`.
    """
    key = _key_of(problem, version)
    store.remove_fact(key)
    store.remove_fact(f"{_QUICK}|{key}")


def _key_of(problem: Problem, version: str) -> str:
    if problem.source is None:
        raise ValueError("only the problem of a model is calibrated")
    key = _key((problem.graph, problem.source), problem.n_units, problem.cluster, version)
    return f"{_OF_STREAMS}|{key}" if problem.objective == "throughput" else key


def _key(
    model: tuple[ComputationGraph, ModelSource], n_units: int, cluster: Cluster, version: str
) -> str:
    cores = [int(d.options["core"]) for d in cluster.devices if "core" in d.options]
    kind = "" if may_use_all() or not cores else f"|cores apart{cores_text(cores)}"
    return f"{_VERSION}|{model_identity(*model)}|{n_units}|{_devices_of(cluster)}|{version}{kind}"


def _rule_for(
    cluster: Cluster, link: Link, rules: Mapping[tuple[str, str], str | None]
) -> str | None:
    """Whom copies of a link occupy by a fit, if the link and its ends can have such a rule here."""
    rule = rules.get((link.source, link.destination))
    return rule if rule is not None and takes_rule(cluster, link, rule) else None


def _with_fit(cluster: Cluster, fit: dict[str, Any]) -> Cluster:
    scatter = fit.get("scatter", {})  # earlier versions did not store it
    latency = {(source, destination): value for source, destination, value in fit["latencies"]}
    # earlier versions did not find out whom copies occupy
    rules = {(source, destination): rule for source, destination, rule in fit.get("occupies", ())}
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
                occupies=link.occupies or _rule_for(cluster, link, rules),
            )
            for link in cluster.links
        ),
        contention={domain: tuple(row) for domain, row in fit["contention"].items()},
        prediction_error=fit["prediction_error"],
        call_seconds=fit.get("call_seconds", 0.0),
    )
