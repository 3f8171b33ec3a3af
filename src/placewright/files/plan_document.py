"""The fields of a plan file: ``placewright.plan/2``, and what version 1 had instead."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from placewright.core.execution_models import ModelName
from placewright.core.problem import Objective
from placewright.core.solution import Status, Stop
from placewright.files.cluster_file import ClusterDocument
from placewright.files.schema import Strict, validated

PLAN_FORMAT = "placewright.plan/2"
EARLIER_FORMAT = "placewright.plan/1"


class ModelEntry(Strict):
    """The model, by content."""

    source: str
    sha256: str
    shapes: dict[str, list[int]]
    values: dict[str, list[int | float]] = Field(default_factory=dict)
    ops: int
    edges: int


class ProblemEntry(Strict):
    """The problem file; a relative path starts at the plan's folder."""

    path: str
    sha256: str


class SegmentEntry(Strict):
    """One segment: consecutive ops of one device."""

    device: str
    ops: list[str]


class PredictedEntry(Strict):
    """What the simulator and the bounds say, in the plan's unit; gap is null without a bound.

    `memory_counts` tells what the bytes of `memory` stand for: ``"peak"``, ``"weights only"`` or
    weights and samples in flight. Files of earlier versions leave it out.
    """

    value: float
    lower_bound: float
    gap: float | None
    status: Status
    memory: dict[str, float]
    bound_method: str = ""
    memory_counts: str = ""


class MeasuredEntry(Strict):
    """What the hardware said, seconds; `recommendation` is "plan" or the name of a baseline."""

    median: float
    iqr: float
    runs: int
    baselines: dict[str, float] = Field(default_factory=dict)
    recommendation: str = "plan"


class PlacerEntry(Strict):
    """How `searched` was found; history rows are [evaluations, seconds, value, lower bound].

    `stop` tells why the search ended, `core_seconds` its processor time. Files of earlier versions
    leave both out.
    """

    name: str
    version: str
    seed: int
    evaluations: int
    seconds: float
    history: list[tuple[int, float, float, float | None]]
    stop: Stop | None = None
    core_seconds: float | None = None


class SearchedEntry(Strict):
    """What the search found, where the hardware preferred another placement."""

    placement: dict[str, str]
    order: list[str] | None
    value: float


class PlanDocument(Strict):
    """The whole file; `placement` and `order` name every op of the graph.

    `placement`, `order`, `segments`, `predicted` and `measured` are about the recommended
    placement. `searched` is null where that is what the search found.
    """

    format: Literal["placewright.plan/2"]
    unit: str
    model: ModelEntry
    problem: ProblemEntry
    objective: Objective
    execution_model: ModelName
    runtime: str
    cluster: ClusterDocument
    placement: dict[str, str]
    order: list[str] | None
    resident_inputs: list[str] = Field(default_factory=list)
    searched: SearchedEntry | None
    segments: list[SegmentEntry] | None
    predicted: PredictedEntry
    measured: MeasuredEntry | None
    placer: PlacerEntry
    left_out: list[str] = Field(default_factory=list)
    in_flight: int | None = Field(None, ge=1)


class PlacerEntry1(Strict):
    """As version 1 has it: history rows are [evaluations, seconds, value]."""

    name: str
    version: str
    seed: int
    evaluations: int
    seconds: float
    history: list[tuple[int, float, float]]


class PlanDocument1(Strict):
    """Version 1: `placement` is what the search found, whatever was recommended."""

    format: Literal["placewright.plan/1"]
    unit: str
    model: ModelEntry
    problem: ProblemEntry
    objective: Objective
    execution_model: ModelName
    runtime: str
    cluster: ClusterDocument
    placement: dict[str, str]
    order: list[str] | None
    segments: list[SegmentEntry] | None
    predicted: PredictedEntry
    measured: MeasuredEntry | None
    placer: PlacerEntry1


def plan_document(data: dict[str, Any], path: object) -> PlanDocument:
    """A plan file of any version, as the present one.

    Raises:
        FileFormatError: another format, or a field that is missing, unknown or wrong.
    """
    if data.get("format") != EARLIER_FORMAT:
        return validated(PlanDocument, data, path, PLAN_FORMAT, EARLIER_FORMAT)
    validated(PlanDocument1, data, path, EARLIER_FORMAT)
    rows = [[*row, None] for row in data["placer"]["history"]]
    placer = {**data["placer"], "history": rows}
    upgraded = {**data, "format": PLAN_FORMAT, "searched": None, "placer": placer}
    return validated(PlanDocument, upgraded, path, PLAN_FORMAT)
