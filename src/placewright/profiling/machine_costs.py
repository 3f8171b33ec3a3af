"""Costs of splitting on this machine for any model: measured once on a small model, and stored.

A few placements of a framework's small model run on the devices. Their measurements replace those
of another model if there is no time for its own. They are stored for the devices (processor and
options), the cores that we may use, and the runtime's version. A probe checks the machine at each
start: two threads compute and copy alone and at the same time, and pass messages. If the ratios
differ from the stored ones, the machine has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from placewright.core.cluster import Cluster, Device
from placewright.core.problem import Problem
from placewright.execution.runtime import LoadedModel
from placewright.profiling.calibration import TrialPlan, calibration
from placewright.profiling.deadline import NEVER, Deadline
from placewright.profiling.discover import on_core, wake_seconds
from placewright.profiling.evidence import LEAST_TRIALS, Evidence
from placewright.profiling.measure import ProgressCallback
from placewright.profiling.store import CostStore

VERSION = "machine costs/2"
_PROBED_BYTES = 2 * 1024 * 1024
_PROBED_ROUNDS = 7
_DRIFTS = (1.5, 2.0, 4.0)  # ratios that probes of one machine do not reach


def machine_key(cluster: Cluster, runtime: str, version: str) -> str:
    """Key under which the costs of a machine are stored."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    devices = [(d.name, d.fingerprint, d.memory_domain) for d in cluster.devices]
    return f"{VERSION}|{runtime}|{version}|{cores}|{devices}"


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
    cores = [device for device in devices if device.options.get("core") is not None][:2]
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
    """Seconds with both cores busy over seconds alone, medians of rounds in turns."""
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
