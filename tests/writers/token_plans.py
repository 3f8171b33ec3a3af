"""Plans of language models on a CPU and cards, for tests of writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placewright.core.cluster import Cluster, Device
from placewright.core.data_sheet import DataSheet
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.session.plans import plan_of
from placewright.session.session import Session
from placewright.simulation.model import Simulator

SHEET = DataSheet({"f32": 1e12, "f16": 2e12}, 1e11)


def problem_of(path: Path, names: list[str], **said: Any) -> Problem:
    """A problem on one CPU and the cards with these names of the engine."""
    cards = tuple(
        Device(f"card:{at}", "gpu", 24e9, data_sheet=SHEET, options={"llama.cpp": name})
        for at, name in enumerate(names)
    )
    cluster = Cluster((*cards, Device("cpu", memory_bytes=64e9, data_sheet=SHEET)), host="cpu")
    said = {"prompt": 4, "generate": 2, "context": 256, **said}
    return Session(str(path), cluster=cluster, **said).profile()


def plan_with(problem: Problem, at: dict[str, str]) -> Plan:
    """A plan with modules on devices; of those that are not named the first card has all."""
    names = problem.cluster.device_names
    chosen = [0 if op != "embedding" else names.index("cpu") for op in problem.graph.op_names]
    for op, device in at.items():
        chosen[problem.graph.op_index[op]] = names.index(device)
    placement = Placement.of(chosen)
    value = Simulator(problem).value(placement)
    record = PlacerRecord("single", "0", 0, 1, 0.0, ())
    return plan_of(problem, Solution(placement, value, "feasible"), record, "openvino")
