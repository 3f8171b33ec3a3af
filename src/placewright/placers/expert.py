"""A human expert's placement: from a file, or by a rule over module paths.

The file is a split as published with Tarnawski et al. 2020 (``{"fpgas": [{"nodes": [...]}, ...],
"cpus": [...]}``, node ids as text are op names; what it leaves out goes where its colocation class
is) or our own ``{"op name": "device name", ...}``. The rule is what practitioners do by hand (and
what Mirhoseini et al. 2017 compare with): whole layers, in order, contiguous, as many to each
device as keeps its share of the time level; graphs without module paths are cut by ops in
topological order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from placewright.core.arrays import IntArray
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import FileFormatError, UnknownNameError
from placewright.placers.anytime import anytime
from placewright.placers.ideals.items import components_fused
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Expert:
    """Places what a file says, or whole layers in order.

    Attributes:
        file: path of the placement; empty uses the rule.
    """

    name: ClassVar[str] = "expert"
    paper: ClassVar[str] = "Mirhoseini et al., ICML 2017 (baseline)"
    objectives: ClassVar[tuple[str, ...]] = ("latency", "throughput", "training")
    needs_training: ClassVar[bool] = False

    file: str = ""

    def supports(self, problem: Problem) -> str:
        """Empty always."""
        return ""

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation."""
        device_of = from_file(self.file, problem) if self.file else by_layers(problem)
        value = evaluator.evaluate(device_of)
        if np.isfinite(value):
            return evaluator.solution()
        violation = evaluator.simulator.violation(Placement.of(device_of))
        reason = violation.message if violation else "it breaks a constraint"
        return evaluator.solution(message=f"the expert's placement is infeasible: {reason}")


def from_file(path: str, problem: Problem) -> IntArray:
    """Device of each unit as a file says, shape (n_units,).

    Raises:
        FileFormatError: the file is unreadable or places too little, or splits a unit.
        UnknownNameError: it names an op or a device that the problem does not have.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileFormatError(f"expert placement '{path}' cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise FileFormatError(f"expert placement '{path}' must hold a JSON object")
    chosen = _split(path, document, problem) if "fpgas" in document else document
    device_of = np.full(problem.n_units, -1, dtype=np.int64)
    for op_name, device_name in chosen.items():
        if op_name not in problem.graph.op_index:
            raise FileFormatError(f"expert placement '{path}': the graph has no op '{op_name}'")
        unit = int(problem.units.group_of[problem.graph.op_index[op_name]])
        device = problem.cluster.device(str(device_name))
        if device_of[unit] not in (-1, device):
            raise FileFormatError(
                f"expert placement '{path}' puts op '{op_name}' on '{device_name}', but another "
                "op of its unit elsewhere; a unit moves as one"
            )
        device_of[unit] = device
    return _with_classes(path, problem, device_of)


def _split(path: str, document: Mapping[str, Any], problem: Problem) -> dict[str, str]:
    """A published split as op name -> device name."""
    chosen: dict[str, str] = {}
    for key, is_cpu in (("fpgas", False), ("cpus", True)):
        names = [
            device.name for device in problem.cluster.devices if (device.kind == "cpu") == is_cpu
        ]
        for number, share in enumerate(document.get(key, [])):
            nodes = share.get("nodes") if isinstance(share, dict) else None
            if not isinstance(nodes, list):
                raise FileFormatError(f"expert placement '{path}': '{key}' needs lists of 'nodes'")
            if nodes and number >= len(names):
                raise UnknownNameError("device", f"{key}[{number}]", names)
            chosen.update({str(node): names[number] for node in nodes})
    return chosen


def _with_classes(path: str, problem: Problem, device_of: IntArray) -> IntArray:
    """Give what the file leaves out the device of its colocation class."""
    classes = problem.colocation
    of_class = np.full(classes.n_groups, -1, dtype=np.int64)
    placed = device_of >= 0
    of_class[classes.group_of[placed]] = device_of[placed]
    full = np.where(placed, device_of, of_class[classes.group_of])
    if np.any(full < 0):
        name = problem.unit_graph.op_names[int(np.argmax(full < 0))]
        raise FileFormatError(f"expert placement '{path}' gives op '{name}' no device")
    return full


def by_layers(problem: Problem) -> IntArray:
    """Whole layers in topological order, contiguous, time shares level; shape (n_units,).

    Devices take their stretch in the order of the cluster, the fast kind first; the CPU takes part
    only where there is nothing else, as an expert leaves it out.
    """
    layers = layers_of(problem)
    seconds = np.where(problem.allowed, problem.costs.seconds, np.nan)
    devices = _fast_devices(problem)
    with np.errstate(all="ignore"):
        work = np.nan_to_num(np.nanmean(seconds[:, devices], axis=1), nan=0.0)
    layer_work = np.bincount(layers.group_of, work, minlength=layers.n_groups)
    position = np.full(layers.n_groups, problem.n_units, dtype=np.int64)
    rank = np.empty(problem.n_units, dtype=np.int64)
    rank[problem.unit_graph.topological_order] = np.arange(problem.n_units)
    np.minimum.at(position, layers.group_of, rank)
    order = np.argsort(position, kind="stable")
    middle = np.cumsum(layer_work[order]) - layer_work[order] / 2
    share = middle / max(float(layer_work.sum()), 1e-300) * len(devices)
    turn = np.clip(share.astype(np.int64), 0, len(devices) - 1)
    device_of_layer = np.empty(layers.n_groups, dtype=np.int64)
    device_of_layer[order] = np.array(devices, dtype=np.int64)[turn]
    return _legal(problem, layers.expand(device_of_layer))


def layers_of(problem: Problem) -> Grouping:
    """Units of one layer: equal module path up to its first number (`encoder.layer.3`)."""
    classes = problem.colocation
    label = {f"#{c}": c for c in range(classes.n_groups)}
    names: list[int] = []
    for unit, module in enumerate(problem.unit_graph.op_modules):
        match = re.match(r"^(.*?[./_]?\d+)(?=[./]|$)", module)
        key = match.group(1) if match else module or f"#{classes.group_of[unit]}"
        names.append(label.setdefault(key, len(label)))
    pairs = np.stack([classes.group_of, classes.n_groups + np.array(names)], axis=1)
    joined = np.concatenate([pairs, pairs[:, ::-1]])
    n_nodes = classes.n_groups + len(label)
    both = components_fused(Grouping.identity(n_nodes), joined)
    return Grouping.from_labels(both.group_of[classes.group_of])


def _fast_devices(problem: Problem) -> list[int]:
    kinds = [device.kind for device in problem.cluster.devices]
    fast = [index for index, kind in enumerate(kinds) if kind != "cpu"]
    return fast or list(range(problem.n_devices))


def _legal(problem: Problem, device_of: IntArray) -> IntArray:
    """Move classes that may not be where they are to the device where they take least time."""
    classes = problem.colocation
    seconds = np.zeros((classes.n_groups, problem.n_devices))
    np.add.at(seconds, classes.group_of, np.where(problem.allowed, problem.costs.seconds, np.inf))
    first = classes.members.indices[classes.members.indptr[:-1]]
    chosen = device_of[first]
    here = np.isfinite(seconds[np.arange(classes.n_groups), chosen])
    return classes.expand(np.where(here, chosen, seconds.argmin(axis=1)))
