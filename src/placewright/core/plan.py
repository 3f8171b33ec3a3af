"""A plan: a placement plus all that is needed to use it again.

Contenders of a plan have names in tables, reports and plan files. Users choose the names of
devices, and a device may be called `plan`. A contender of ours and a device that runs everything
never have the same name: a device with one of our names is marked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from textwrap import wrap

import numpy as np

from placewright.core.charges import CHARGED, amounts_text
from placewright.core.cluster import STREAMED_BY
from placewright.core.execution_models import Event
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.quantities import counted, format_bytes, format_duration, value_text
from placewright.core.solution import HistoryPoint, Solution, Status, Stop
from placewright.core.source import CLUSTER, calls_of, calls_text

PLAN = "plan"  # the placement that the search found, or that a plan holds
SEARCHED = "searched"  # the placement that the search found, if a plan holds another
ALL_CORES = "all cores"  # the runtime's own default
EVEN_SPLIT = "even split"
COPIES = "one copy per device"
CORES = "one copy per core"
MODE = "throughput mode"
LOWER_BOUND = "lower bound"  # a row beside the contenders
UNSPLIT_STREAMS = (COPIES, CORES, MODE)  # for streams; no placement can express them

_OURS = (PLAN, SEARCHED, ALL_CORES, EVEN_SPLIT, LOWER_BOUND, *UNSPLIT_STREAMS)
_MARK = "device:"


def contender_of(device: str) -> str:
    """Name of the contender that runs everything on a device: the device's, marked if it is ours.

    >>> contender_of("cpu:0"), contender_of("plan")
    ('cpu:0', 'device:plan')
    """
    return f"{_MARK}{device}" if device in _OURS or device.startswith(_MARK) else device


def device_of(contender: str, devices: Sequence[str]) -> int | None:
    """The device that runs everything in a contender; None for other contenders."""
    return next((at for at, name in enumerate(devices) if contender_of(name) == contender), None)


WIDTH, LINES = 80, 24  # of the text of a plan
_DEVICES = 12
_INDENT = " " * 11
_NAME = 24


@dataclass(frozen=True)
class Measurement:
    """The measurement of a plan on the hardware."""

    median: float  # of the plan's runs, seconds
    iqr: float  # distance between the quartiles, seconds
    runs: int  # number of runs
    # name -> median seconds of contenders measured in turns with the plan; ``"searched"`` is the
    # searched placement, if the plan holds another
    baselines: Mapping[str, float] = field(default_factory=dict)
    # contender that the user should run: ``"plan"`` is the searched placement, any other name a
    # simpler contender (a single device, ``"even split"``, ``"all cores"``)
    recommendation: str = "plan"


@dataclass(frozen=True)
class PlacerRecord:
    """The search that produced a placement, with all settings to repeat it."""

    name: str  # of the placer
    version: str  # of Placewright
    seed: int  # of every random choice
    evaluations: int  # queries that were used
    seconds: float  # wall-clock seconds that were used
    history: tuple[HistoryPoint, ...] = ()  # improvements of the incumbent, in time order
    stop: Stop | None = None  # why the search ended; None in files of versions that did not say it
    # processor seconds that were used (see `core.solution.Budget`); None likewise
    core_seconds: float | None = None
    # all hyperparameters of the placer, by name; None likewise
    settings: Mapping[str, str | float | bool | None] | None = None

    @property
    def settings_text(self) -> str:
        """The hyperparameters as ``key=value``, separated by spaces."""
        return " ".join(f"{key}={value}" for key, value in (self.settings or {}).items())

    @property
    def is_interrupted(self) -> bool:
        """True if the search was cut short, so that its budget says nothing about the result."""
        return self.stop is Stop.INTERRUPTED


@dataclass(frozen=True, eq=False)
class Searched:
    """The placement that the search found, if the hardware preferred another."""

    placement: Placement  # of the plan's problem
    value: float  # predicted, in the problem's time unit
    in_flight: int | None = None  # of its streams, as `Plan.in_flight` of the plan's own


@dataclass(frozen=True, eq=False)
class Plan:
    """The recommended placement of a problem, its predicted and measured value, how it was found.

    A search returns a plan of its best placement. A check on the hardware may recommend a simpler
    placement of the same problem: the plan is then about that one, and `searched` keeps the other.

    >>> plan = pw.place("problem.json", placer="heft", evaluations=9)
    >>> plan.value, plan.memory
    (4.0, {'cpu': 12.0, 'gpu': 8.0})

    Attributes:
        problem: the problem that was placed.
        placement: devices and order of the problem's units.
        value: predicted, in the problem's `value_unit`.
        lower_bound: no placement in any order has a smaller value, or none that the engine of a
            language model can express; 0 where nothing is known.
        status: see `core.solution.Solution`.
        runtime: name of the runtime that executes it.
        memory: device name -> predicted peak bytes.
        segments: (device, units) in execution order; None where the model of execution has none.
        measured: None until it was run.
        placer: how the searched placement was found.
        bound_method: name of the method that proved the lower bound, empty if it has none.
        searched: the placement of the search, if it is not `placement`.
        left_out: work that was skipped for want of time, a clause for each.
        in_flight: samples that a stream keeps under way at most; None is as many as pay.
        amounts: predicted latency in seconds and, as far as the devices' power and prices are
            known, ``"energy"`` in joules and ``"price"``, of one sample.
    """

    problem: Problem
    placement: Placement
    value: float
    lower_bound: float
    status: Status
    runtime: str
    memory: Mapping[str, float]
    segments: tuple[tuple[int, tuple[int, ...]], ...] | None
    placer: PlacerRecord
    measured: Measurement | None = None
    bound_method: str = ""
    searched: Searched | None = None
    left_out: tuple[str, ...] = ()
    in_flight: int | None = None
    amounts: Mapping[str, float] = field(default_factory=dict)

    @property
    def timed(self) -> Plan:
        """The plan with time as its value, as a run on hardware measures it."""
        if self.problem.objective not in CHARGED:
            return self
        return replace(
            self,
            problem=self.problem.timed,
            value=self.amounts["latency"],
            lower_bound=0.0,
            bound_method="",
            status="feasible",
            searched=None,
        )

    @property
    def gap(self) -> float:
        """value / lower_bound - 1; inf without a bound."""
        return Solution(self.placement, self.value, self.status, self.lower_bound).gap

    def __str__(self) -> str:
        """Verdict, value, gap, devices, segments and measurement, on one screen."""
        return _summary(self)


def stream_by_name(plan: Plan) -> str | None:
    """The recommended contender of a plan's streams if no placement expresses it; else None.

    A device of the cluster may be a group; each of its members can run the whole model alone.
    """
    name = None if plan.measured is None else plan.measured.recommendation
    members = (one.name for device in plan.problem.cluster.devices for one in device.members)
    return name if name in (*UNSPLIT_STREAMS, *map(contender_of, members)) else None


def _summary(plan: Plan) -> str:
    """Verdict, value, gap, devices, segments and measurement, as `print` shows them."""
    problem = plan.problem
    model = "" if problem.source is None else f"{problem.source.path}: "
    size, calls = f"{problem.graph.n_ops} ops in {problem.n_units} units", calls_of(problem.source)
    lines = [
        f"{model}{size}, {problem.objective} under '{problem.execution_model.name}'",
        f"verdict    {_verdict(plan)}",
        f"value      {value_text(plan.value, problem.value_unit)} predicted",
        *([f"amounts    {amounts_text(plan.amounts)}"] if len(plan.amounts) > 1 else []),
        *([f"           mean call of {calls_text(calls)}"] if calls else []),
        f"bound      {_bound(plan)}",
        f"measured   {_measured(plan)}",
        f"found by   {search_text(plan.placer)}",
        *_runtime(plan),
        *_devices(plan),
    ]
    shown = [_cut(line, WIDTH) for line in lines]
    if len(shown) >= LINES:
        shown = [*shown[: LINES - 2], "..."]
    skipped: list[str] = []
    for what in plan.left_out:  # whole, because they qualify all that stands above them
        skipped += wrap(f"left out   {what}", WIDTH, subsequent_indent=_INDENT)
    room = LINES - len(shown)
    if len(skipped) > room:
        skipped = [*skipped[: room - 1], f"{_INDENT}... and more in plan.left_out"]
    return "\n".join([*shown, *skipped])


def _runtime(plan: Plan) -> list[str]:
    """The runtime; none runs graphs alone and language models, whose plans are exported."""
    source = plan.problem.source
    return [] if source is None or CLUSTER in source.options else [f"runs on    {plan.runtime}"]


_ENDED = {
    Stop.DONE: "nothing left to try",
    Stop.PROVEN: "proven",
    Stop.EVALUATIONS: "evaluations used up",
    Stop.SECONDS: "time used up",
    Stop.CORE_SECONDS: "core-seconds used up",
    Stop.INTERRUPTED: "interrupted",
}


def search_text(record: PlacerRecord) -> str:
    """Amount of a search and the reason for its end, as text."""
    work = "" if record.core_seconds is None else f", {record.core_seconds:.3g} core-seconds"
    ended = "" if record.stop is None else f", {_ENDED[record.stop]}"
    number = counted(record.evaluations, "evaluation")
    return f"{record.name}, seed {record.seed}, {number}{work}{ended}"


def _verdict(plan: Plan) -> str:
    """The recommendation, from the measurement if there is one."""
    names = devices_in_use(plan)
    is_by_time = plan.problem.objective not in CHARGED
    advised = plan.measured.recommendation if plan.measured and is_by_time else PLAN
    if not holds_advised(advised, names):
        return f"run '{advised}' instead: it was measured to be as fast or faster"
    if len(names) == 1:
        return f"do not split: '{names[0]}' runs everything"
    if plan.measured is None:
        return f"split over {len(names)} devices by prediction: not measured"
    return f"split over {len(names)} devices"


def devices_in_use(plan: Plan) -> list[str]:
    """Names of the devices that a placement uses; two for weights that one copies to compute.

    A placement in one column of a language model has the name of that column.
    """
    cluster = plan.problem.cluster
    used = [cluster.devices[at] for at in np.unique(plan.placement.device_of).tolist()]
    if len(used) == 1:
        return [used[0].name]
    found: list[str] = []
    for device in used:
        card = device.options.get(STREAMED_BY)
        found += [device.name] if card is None else [cluster.host, card]
    return list(dict.fromkeys(found))


def holds_advised(advised: str, devices: Sequence[str]) -> bool:
    """True if a placement on the devices is the recommended contender.

    A split is not one of its devices alone.
    """
    return advised == PLAN or [advised] == [contender_of(name) for name in devices]


def no_choice(problem: Problem) -> str:
    """The reason why there is nothing to prove: nothing can be chosen; else an empty text."""
    choices = problem.allowed_by_class.sum(axis=1)
    used = np.flatnonzero(problem.allowed_by_class.any(axis=0)).tolist()
    is_split = len(used) > 1 and len(choices) > 1
    has_streams = any(problem.cluster.devices[at].streams > 1 for at in used)
    has_segments = any(problem.cluster.devices[at].limits_segments for at in used)
    sends = any(at != problem.cluster.host_endpoint for at in used)  # outputs, in some order
    is_ordered = is_split or has_streams or has_segments or sends
    if isinstance(problem.execution_model, Event) and is_ordered:
        graph = problem.unit_graph
        order = graph.topological_order.tolist()
        if any(b not in graph.successors.row(a) for a, b in pairwise(order)):
            return ""  # the order of units is chosen, too
    if (choices == 1).all():
        return "only one placement exists, because every unit has one possible device"
    if len(choices) == 1:
        return f"all ops move together, so only {choices[0]} placements exist, each on one device"
    return ""


def scope_of_proof(plan: Plan) -> str:
    """Of a language model, the clause that restricts placements to those in the search; else ""."""
    source, devices = plan.problem.source, plan.problem.cluster.devices
    if source is None or CLUSTER not in source.options:
        return ""
    # Limits leave room for copies of weights on a card that may stream them, whoever computes.
    cards = {each.options[STREAMED_BY] for each in devices if STREAMED_BY in each.options}
    room = f" and that leaves room for copies on '{min(cards)}'" if cards else ""
    return f" that the engine can express{room}"


def _bound(plan: Plan) -> str:
    if alone := no_choice(plan.problem):
        return alone
    if not (plan.lower_bound > 0 and math.isfinite(plan.gap)):
        return "none is proven, so that the gap is unknown"
    by = f" by {plan.bound_method}" if plan.bound_method else ""
    bound = value_text(plan.lower_bound, plan.problem.value_unit)
    engine = " for its engine" if scope_of_proof(plan) else ""
    return f"{bound}{engine}{by}: gap {plan.gap:.1%} ({plan.status})"


def _measured(plan: Plan) -> str:
    measured = plan.measured
    if measured is None:
        return "not yet"
    fastest = sorted(measured.baselines.items(), key=lambda pair: pair[1])[:2]
    beside = "".join(f"; '{name}' {format_duration(value)}" for name, value in fastest)
    spread, runs = format_duration(measured.iqr), counted(measured.runs, "run")
    return f"{format_duration(measured.median)}, spread {spread}, {runs}{beside}"


def _devices(plan: Plan) -> list[str]:
    """A line for each device that is used; of many devices those with most units."""
    problem = plan.problem
    counts = np.bincount(plan.placement.device_of, minlength=problem.n_devices)
    used = [device for device in range(problem.n_devices) if counts[device]]
    shown = used
    if len(used) > _DEVICES:
        shown = sorted(sorted(used, key=lambda device: -int(counts[device]))[:_DEVICES])
    held = np.bincount(
        np.array([device for device, _ in plan.segments or ()], dtype=np.int64),
        minlength=problem.n_devices,
    )
    rows = [f"{'device':<{_NAME}}{'units':>10}{'segments':>10}{'memory':>14}{'limit':>14}"]
    for device in shown:
        spec = problem.cluster.devices[device]
        pieces = str(held[device]) if plan.segments is not None else "-"
        most = float(problem.cluster.memory_bytes[device])
        limit = "-" if math.isinf(most) else format_bytes(most)
        memory = format_bytes(plan.memory[spec.name])
        name = _cut(spec.name, _NAME - 1)
        rows.append(f"{name:<{_NAME}}{counts[device]:>10}{pieces:>10}{memory:>14}{limit:>14}")
    if len(used) > len(shown):
        rows.append(f"... and {len(used) - len(shown)} more devices")
    cluster = problem.cluster
    peaks = np.array([plan.memory[name] for name in cluster.device_names])
    pools = zip(cluster.shared_pools, cluster.pooled(peaks), cluster.pool_bytes, strict=True)
    for name, taken, size in pools:
        title = _cut(f"pool {name}", _NAME - 1)
        memory, limit = format_bytes(float(taken)), format_bytes(float(size))
        rows.append(f"{title:<{_NAME}}{'':>10}{'':>10}{memory:>14}{limit:>14}")
    return rows


def _cut(text: str, width: int) -> str:
    """The beginning of a text, cut between words."""
    if len(text) <= width:
        return text
    words = text[: width - 3].rpartition(" ")[0].rstrip()
    return f"{words} ..." if len(words) > width // 2 else f"{text[: width - 3]}..."
