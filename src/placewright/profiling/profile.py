"""Profiling of a model on devices: a problem with measured costs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from placewright.core.arrays import FloatArray, frozen_floats, frozen_ints
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.execution_models import default_model
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Objective, Problem
from placewright.core.source import ModelSource
from placewright.execution.runtime import (
    LoadedModel,
    MeasuresMemory,
    RunsOpByOp,
    Runtime,
)
from placewright.execution.state_pairs import OPTION
from placewright.profiling.measure import Effort, Ends, Progress, ProgressCallback, measure_costs
from placewright.profiling.store import CostStore
from placewright.profiling.units import common_units, light_ops_joined

_GROUPS_VERSION = 2  # increase it if runtimes group in another way
_WORKING = "working/2"  # likewise, if runtimes measure working space in another way
_KEY = "last measured 4"  # of the store


@dataclass(frozen=True)
class Measuring:
    """Settings of the measurement of a model."""

    store: CostStore | None = None  # of samples; None is the store in the user's cache folder
    effort: Effort | None = None  # limits on the measurement
    progress: ProgressCallback | None = None  # called with the present part and the time left
    ends: Ends = field(default_factory=Ends)  # ends of measuring, even with few samples


USUAL = Measuring()


def profile(
    graph: ComputationGraph,
    source: ModelSource,
    cluster: Cluster,
    runtime: Runtime,
    *,
    objective: Objective = "latency",
    model: LoadedModel | None = None,
    measuring: Measuring = USUAL,
    units: Grouping | None = None,
) -> Problem:
    """Measure every unit of a model on every device of a cluster.

    A second call with the same model, devices and runtime measures nothing; an interrupted call
    resumes.

    Args:
        graph: read from `source`.
        source: of the model.
        cluster: from `profiling.discover`, or of a file and completed by it.
        runtime: which will execute plans.
        objective: of the problem.
        model: from `runtime.load`, if the caller has loaded it already.
        measuring: store and limits.
        units: to measure; None forms them of what each device fuses, and of light ops.

    Raises:
        RuntimeFailure: a device cannot run the model.
        CostError: no device runs an op.
        OutOfTime: the deadline passed before each device had run the model once.
    """
    store, progress = measuring.store or CostStore(), measuring.progress
    loaded = model or runtime.load(source, graph)
    context = f"{model_identity(graph, source)}|{runtime.version}"
    eager = runtime if isinstance(runtime, RunsOpByOp) else None
    if units is None:
        groups = []
        for device in {d.fingerprint: d for d in cluster.devices}.values():
            if progress is not None:
                progress(Progress(f"what {device.name} fuses", 0.0, None))
            groups.append(_fused_groups(loaded, device, store, context))
        if eager is not None:
            groups.append(light_ops_joined(graph))
        units = common_units(graph, groups)
    seconds = measure_costs(
        loaded,
        units,
        cluster.devices,
        store,
        context=context,
        effort=measuring.effort,
        progress=progress,
        ends=measuring.ends,
    )
    own = [at for at, d in enumerate(cluster.devices) if d.name not in measuring.ends.estimated]
    names = tuple(cluster.devices[at].name for at in own)
    marks = tuple(cluster.devices[at].fingerprint for at in own)
    times = UnitTimes(names, marks, units, frozen_floats(seconds[:, own]))
    keep_last(store, model_identity(graph, source), times)
    is_eager = eager is not None and eager.keeps_inner_tensors(cluster.devices)
    return Problem(
        graph=graph,
        cluster=cluster,
        costs=CostTable(frozen_floats(seconds), "measured"),
        units=units,
        objective=objective,
        execution_model=default_model(objective),
        source=source,
        inner_tensors=is_eager,
        op_working_bytes=_working_bytes(loaded, cluster, store, context) if is_eager else None,
    )


def _working_bytes(
    model: LoadedModel, cluster: Cluster, store: CostStore, context: str
) -> FloatArray | None:
    """Largest working space of each op on any device; None if no op takes any."""
    if not isinstance(model, MeasuresMemory):
        return None
    most = np.zeros(model.graph.n_ops)
    for device in {d.fingerprint: d for d in cluster.devices}.values():
        key = f"{_WORKING}|{context}|{device.fingerprint}"
        if (known := store.fact(key)) is None:
            known = json.dumps(model.op_working_bytes(device).tolist())
            store.put_fact(key, known)
        most = np.maximum(most, json.loads(known))
    return frozen_floats(most) if most.any() else None


def _fused_groups(model: LoadedModel, device: Device, store: CostStore, context: str) -> Grouping:
    key = f"fused|{_GROUPS_VERSION}|{context}|{device.fingerprint}"
    known = store.fact(key)
    if known is not None:
        return Grouping(frozen_ints(json.loads(known)))
    grouping = model.fused_groups(device)
    store.put_fact(key, json.dumps(grouping.group_of.tolist()))
    return grouping


def model_identity(graph: ComputationGraph, source: ModelSource) -> str:
    """Hash a model as it was read (SHA-256 of content, shapes, values of inputs, and ops)."""
    shapes = sorted((name, list(shape)) for name, shape in source.shapes.items())
    text = repr((source.sha256, shapes, source.reader_version, graph.op_names, graph.op_kinds))
    if source.signature is not None and source.signature.values:
        text += repr(sorted(source.signature.values.items()))
    text += source.options.get(OPTION, "")
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class UnitTimes:
    """Seconds of units on devices."""

    devices: tuple[str, ...]  # names
    fingerprints: tuple[str, ...]  # of the devices
    units: Grouping  # groups of ops
    seconds: FloatArray  # shape (n_units, n_devices); inf if a device cannot run a unit

    @classmethod
    def of(cls, problem: Problem) -> UnitTimes:
        """The seconds of a problem."""
        marks = tuple(device.fingerprint for device in problem.cluster.devices)
        return cls(problem.cluster.device_names, marks, problem.units, problem.costs.seconds)

    def on(self, here: Mapping[str, str]) -> UnitTimes | None:
        """The seconds on devices of these names and fingerprints; None if there are none.

        A device whose name is not among them, such as one that a cluster file names, has the
        fingerprint of one of them that is left.
        """
        left = Counter(here.values())
        kept = []
        for at in sorted(range(len(self.devices)), key=lambda at: self.devices[at] not in here):
            name, mark = self.devices[at], self.fingerprints[at]
            if left[mark] > 0 and here.get(name, mark) == mark:
                left[mark] -= 1
                kept.append(at)
        if not kept:
            return None
        kept.sort()
        return UnitTimes(
            tuple(self.devices[at] for at in kept),
            tuple(self.fingerprints[at] for at in kept),
            self.units,
            frozen_floats(self.seconds[:, kept]),
        )


def keep_last(store: CostStore, identity: str, times: UnitTimes) -> None:
    """Store the seconds of the last measurement of a model, for `last_measured`."""
    columns = [[None if np.isinf(s) else s for s in row] for row in times.seconds.tolist()]
    devices, marks = list(times.devices), list(times.fingerprints)
    stored = [devices, marks, times.units.group_of.tolist(), columns]
    store.put_fact(f"{_KEY}|{identity}", json.dumps(stored))


def last_measured(store: CostStore, identity: str, n_ops: int) -> UnitTimes | None:
    """Seconds of the last measurement of a model, if there was one."""
    text = store.fact(f"{_KEY}|{identity}")
    if text is None:
        return None
    devices, marks, group_of, rows = json.loads(text)
    if len(group_of) != n_ops:
        return None
    seconds = [[np.inf if s is None else s for s in row] for row in rows]
    units = Grouping(frozen_ints(group_of))
    return UnitTimes(tuple(devices), tuple(marks), units, frozen_floats(seconds))
