"""Plans of decoders on two cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from support.training_loops import cores_of

import placewright as pw
from benchmarks.own_decoders import Decoding
from placewright.core.arrays import frozen_floats
from placewright.core.cluster import Cluster, Link
from placewright.core.costs import CostTable
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.execution.runtime import Runtime
from placewright.placers.repair import repaired
from placewright.profiling.units import common_units, light_ops_joined
from placewright.session.models import runnable_source, runtime_named
from placewright.session.plans import plan_of
from placewright.simulation.model import Simulator


def plan_on_cores(
    decoding: Decoding,
    seed: int | None,
    file: Path | None = None,
    share: float = 0.0,
    runtime_name: str = "openvino",
) -> Plan:
    """A random split over two cores; without a seed all on the first.

    With a file the decoder is exported to it, if it is not there, and the named runtime runs the
    plan. With a share each core has memory for so much of all weights and state.
    """
    runtime: Runtime = runtime_named("torch" if file is None else runtime_name)
    if file is None:
        model = pw.read(
            decoding.module, decoding.example_inputs, runtime="torch", state=decoding.state
        )
        units = light_ops_joined(model.graph)
    else:
        if not file.exists():
            torch.export.save(torch.export.export(decoding.module, decoding.example_inputs), file)
        model = pw.read(file, runtime=runtime_name, state=decoding.state)
    devices = cores_of(2, runtime)
    if file is not None:
        assert model.source is not None
        held = runtime.load(runnable_source(model.source, model.graph), model.graph)
        units = common_units(model.graph, [held.fused_groups(device) for device in devices])
    ends = [*(device.name for device in devices), "host"]
    links = tuple(Link(a, b, 1e-6) for a in ends for b in ends if a != b)
    seconds = frozen_floats(np.full((units.n_groups, len(devices)), 1e-6))
    problem = Problem(
        model.graph, Cluster(devices, links), CostTable(seconds, "measured"), units,
        source=model.source,
    )  # fmt: skip
    if share:
        return _within(problem, share, runtime.name)
    of_class = np.zeros(problem.colocation.n_groups, dtype=np.int64)
    if seed is not None:
        of_class = np.random.default_rng(seed).integers(len(devices), size=len(of_class))
    found = Solution(Placement.of(of_class[problem.colocation.group_of]), 1.0, "feasible", 0.0)
    return plan_of(problem, found, PlacerRecord("manual", "0", 0, 0, 0.0), runtime.name)


def _within(problem: Problem, share: float, runtime: str) -> Plan:
    """The first core as full as its memory allows, and the rest on the second."""
    kept, alone = share * problem.kept.total, np.zeros(problem.n_units, dtype=np.int64)
    split = repaired(problem, alone, np.full(problem.n_devices, kept))
    for part in np.linspace(0.0, 1.0, 41):  # of all tensors, of which few live at a time
        cluster = problem.cluster
        for name in cluster.device_names:
            room = float(part * problem.unit_graph.tensor_bytes.sum())
            cluster = cluster.with_limit(name, kept + room)
        simulator = Simulator(replace(problem, cluster=cluster))
        if simulator.violation(Placement.of(split)) is None:
            break
    assert simulator.violation(Placement.of(split)) is None
    assert simulator.violation(Placement.of(alone)) is not None, "it fits on one core"
    found = Solution(Placement.of(split), 1.0, "feasible", 0.0)
    return plan_of(simulator.problem, found, PlacerRecord("manual", "0", 0, 0, 0.0), runtime)
