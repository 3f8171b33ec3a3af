"""A timeline, or the loads of devices, as rows of text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

from placewright.core.arrays import Csr, FloatArray
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.quantities import value_text
from placewright.report.page_times import channel_names
from placewright.report.tables import short_name
from placewright.report.terminal import wrapped
from placewright.simulation.model import Simulator
from placewright.simulation.timeline import Timeline


def timeline_rows(problem: Problem, timeline: Timeline) -> list[list[str]]:
    """A row per segment, in order of start: times, first unit, and the reason for its wait."""
    names, segment_of = problem.cluster.device_names, timeline.segment_of
    units_of = Csr.from_pairs(segment_of, np.arange(len(segment_of)), int(segment_of.max()) + 1)
    rows = []
    for segment in range(units_of.n_rows):
        units = units_of.row(segment)
        first = int(units[np.argmin(timeline.start[units])])
        rows.append(
            [
                str(segment),
                names[int(timeline.device_of[first])],
                value_text(float(timeline.start[units].min()), problem.time_unit),
                value_text(float(timeline.end[units].max()), problem.time_unit),
                short_name(problem.unit_graph.op_names[first]),
                _wait_text(timeline.waits[first]),
            ]
        )
    return rows


def _wait_text(wait: str) -> str:
    """An entry of `Timeline.waits` as text: its kind, and the shortened name."""
    kind, _, name = wait.partition(" ")
    if name.startswith("graph input"):
        return name
    return f"{kind} {short_name(name)}".strip()


def load_rows(problem: Problem, loads: FloatArray) -> list[list[str]]:
    """A row per device and shared processor: load, share of the largest; loads (n_phases, n)."""
    cluster, totals = problem.cluster, loads.sum(axis=0)
    shared = [f"processor '{name}'" for name in cluster.shared_processors]
    named = [
        *enumerate(cluster.device_names),
        *enumerate(shared, start=cluster.n_devices + cluster.n_channels),
    ]
    return [
        [name, f"{totals[at]:.6g}", f"{totals[at] / max(totals.max(), 1e-300):.0%}"]
        for at, name in named
    ]


def _value(plan: Plan, seconds: float) -> dict[str, Any]:
    """Time of a plan and its value, each with its unit; the lower bound has the value's."""
    problem = plan.problem
    return {
        "unit": problem.time_unit,
        "time": seconds,
        "value": plan.value,
        "value_unit": problem.value_unit,
    }


def value_data(plan: Plan, loads: FloatArray | None) -> dict[str, Any]:
    """Value, bound, memory and loads of a plan without a timeline; loads (n_phases, n)."""
    names = plan.problem.cluster.device_names
    data: dict[str, Any] = {
        **_value(plan, Simulator(plan.problem).seconds(plan.placement)),
        "lower_bound": plan.lower_bound,
        "memory": dict(plan.memory),
        "memory_counts": plan.problem.execution_model.memory_counts,
    }
    if loads is not None:
        cluster, totals = plan.problem.cluster, loads.sum(axis=0).tolist()
        data["loads"] = dict(zip(names, totals[: len(names)], strict=True))
        shared = totals[cluster.n_devices + cluster.n_channels :]
        if shared:
            data["processor_loads"] = dict(zip(cluster.shared_processors, shared, strict=True))
    return data


def timeline_data(plan: Plan, timeline: Timeline) -> dict[str, Any]:
    """A timeline as a JSON document; times in the problem's unit, the value in its own."""
    problem = plan.problem
    graph, cluster = problem.unit_graph, problem.cluster
    endpoints = list(cluster.endpoint_index)
    producers = graph.tensor_producers
    return {
        **_value(plan, timeline.value),
        "lower_bound": plan.lower_bound,
        "memory": dict(zip(cluster.device_names, timeline.memory_peaks.tolist(), strict=True)),
        "units": [
            {
                "name": graph.op_names[unit],
                "device": cluster.device_names[int(timeline.device_of[unit])],
                "segment": int(timeline.segment_of[unit]),
                "start": float(timeline.start[unit]),
                "end": float(timeline.end[unit]),
                "waited_for": timeline.waits[unit],
            }
            for unit in timeline.order.tolist()
        ],
        "transfers": [
            {
                "from_op": None
                if producers[hop.tensor] < 0
                else graph.op_names[int(producers[hop.tensor])],
                "bytes": float(graph.tensor_bytes[hop.tensor]),
                "source": endpoints[hop.source],
                "destination": endpoints[hop.destination],
                "start": hop.start,
                "end": hop.end,
            }
            for hop in timeline.transfers
        ],
        "critical_path": [
            {"what": step.what, "start": step.start, "end": step.end, "after": step.reason}
            for step in timeline.critical_path
        ],
    }


_SHADES, _PLAIN_SHADES = "·░▒▓█", ".:-=#"
_BOUNDS = np.array([0.0, 1 / 3, 2 / 3, 0.999])  # busy shares of a cell between two shades
_MOST_DEVICES, _MOST_CHANNELS = 26, 8
_MOST_UNITS = 200_000  # of more units, a timeline takes seconds
_LONGEST_NAME, _FEWEST_CELLS, _MOST_CELLS = 20, 10, 160
_SENT = ">"  # a transfer on the critical path


def plan_bars(plan: Plan, width: int, *, plain: bool = False) -> list[str]:
    """Bars of a plan's timeline or loads; none if the execution model has neither."""
    if plan.problem.n_units > _MOST_UNITS:
        return []
    simulator = Simulator(plan.problem)
    if simulator.has_timeline:
        timeline = simulator.timeline(plan.placement)
        return timeline_bars(plan.problem, timeline, width, plain=plain)
    loads = simulator.explain(plan.placement).loads
    return [] if loads is None else load_bars(plan.problem, loads, width, plain=plain)


def timeline_bars(
    problem: Problem, timeline: Timeline, width: int, *, plain: bool = False
) -> list[str]:
    """A bar per device, shared processor and channel, the critical path, and a legend.

    Each bar has its busy share. A processor has a bar if several of its devices run units.

    Args:
        timeline: drawn from 0 to its value.
        width: columns of each line at most.
        plain: use ASCII only.
    """
    if timeline.value <= 0:
        return []
    devices, left_out = _busiest(_device_spans(problem, timeline), _MOST_DEVICES)
    processors, processors_left_out = _busiest(_processor_spans(problem, timeline), _MOST_CHANNELS)
    channels, channels_left_out = _busiest(_channel_spans(problem, timeline), _MOST_CHANNELS)
    letters = dict(zip((name for name, _ in devices), ascii_lowercase, strict=False))
    others = [*processors, *channels]
    names = [f"{letters[name]} {name}" for name, _ in devices] + [name for name, _ in others]
    room = min(max(map(len, [*names, "critical path"])), max(_LONGEST_NAME, width // 3))
    cells = min(_MOST_CELLS, max(_FEWEST_CELLS, width - room - 7))
    shades = _PLAIN_SHADES if plain else _SHADES
    lines = []
    for name, (_, spans) in zip(names, [*devices, *others], strict=True):
        shares = busy_shares(spans, timeline.value, cells)
        bar = "".join(shades[at] for at in np.searchsorted(_BOUNDS, shares).tolist())
        lines.append(f"{_cut(name, room, plain)} {bar} {shares.mean():>4.0%}")
    path = _critical_bar(problem, timeline, letters, cells)
    value = value_text(timeline.value, problem.time_unit)
    lines.append(f"{'critical path':<{room}} {path}".rstrip())
    lines.append(f"{'':<{room}} 0{value:>{cells - 1}}")
    for number, thing in (
        (left_out, "devices"),
        (processors_left_out, "processors"),
        (channels_left_out, "channels"),
    ):
        if number:
            lines += wrapped(f"{number} more {thing}, less busy, are not shown", width)
    legend = (
        f"{shades[4]} busy, {shades[3]} {shades[2]} {shades[1]} in part, {shades[0]} idle; "
        f"path: letter of the device, {_SENT} transfer"
    )
    return lines + wrapped(legend, width)


def load_bars(problem: Problem, loads: FloatArray, width: int, *, plain: bool = False) -> list[str]:
    """A bar per device and shared processor with its load, to the scale of the largest.

    Args:
        loads: shape (n_phases, n), of `Simulator.loads`.
        width: columns of each line at most.
        plain: use ASCII only.
    """
    cluster, sums = problem.cluster, loads.sum(axis=0)
    # Channels, in between, have no bars.
    totals = np.concatenate(
        [sums[: cluster.n_devices], sums[cluster.n_devices + cluster.n_channels :]]
    )
    largest = float(totals.max(initial=0.0))
    if largest <= 0:
        return []
    names = [*cluster.device_names, *map(_processor_name, cluster.shared_processors)]
    chosen = np.argsort(-totals, kind="stable")[:_MOST_DEVICES]
    room = min(max(map(len, names)), max(_LONGEST_NAME, width // 3))
    cells = min(_MOST_CELLS, max(_FEWEST_CELLS, width - room - 14))
    full = "#" if plain else "█"
    lines = []
    for device in np.sort(chosen).tolist():
        length = round(cells * float(totals[device]) / largest)
        text = value_text(float(totals[device]), problem.time_unit)
        lines.append(f"{_cut(names[device], room, plain)} {full * length:<{cells}} {text:>12}")
    if len(names) > _MOST_DEVICES:
        what = "devices and processors" if cluster.shared_processors else "devices"
        text = f"{len(names) - _MOST_DEVICES} more {what}, less busy, are not shown"
        lines += wrapped(text, width)
    return lines


def busy_shares(spans: FloatArray, until: float, cells: int) -> FloatArray:
    """Busy share of each of `cells` equal parts of [0, until].

    Args:
        spans: starts and ends, shape (n, 2), in any order; they may overlap.
        until: > 0.
        cells: number of parts.

    Returns:
        Shares in [0, 1], shape (cells,).
    """
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return np.zeros(cells)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    latest = np.maximum.accumulate(spans[:, 1])
    begins = np.concatenate([[True], spans[1:, 0] > latest[:-1]])
    starts = spans[begins, 0]
    ends = latest[np.concatenate([begins[1:], [True]])]
    points = np.stack([starts, ends], axis=1).ravel()
    busy = np.stack([np.zeros(len(starts)), ends - starts], axis=1).ravel().cumsum()
    edges = np.linspace(0.0, until, cells + 1)
    shares: FloatArray = np.diff(np.interp(edges, points, busy)) * (cells / until)
    return np.clip(shares, 0.0, 1.0)


def _device_spans(problem: Problem, timeline: Timeline) -> list[tuple[str, FloatArray]]:
    times = np.stack([timeline.start, timeline.end], axis=1)  # (units, 2)
    return [
        (name, times[timeline.device_of == device])
        for device, name in enumerate(problem.cluster.device_names)
    ]


def _processor_spans(problem: Problem, timeline: Timeline) -> list[tuple[str, FloatArray]]:
    """Units of all devices of a shared processor, for those that compute for several."""
    times = np.stack([timeline.start, timeline.end], axis=1)  # (units, 2)
    spans = []
    for name, users in problem.cluster.shared_processors.items():
        on_it = np.isin(timeline.device_of, users)
        if len(np.unique(timeline.device_of[on_it])) > 1:
            spans.append((_processor_name(name), times[on_it]))
    return spans


def _processor_name(name: str) -> str:
    return f"processor {name}"


def _channel_spans(problem: Problem, timeline: Timeline) -> list[tuple[str, FloatArray]]:
    names = channel_names(problem, ">")
    spans: dict[int, list[tuple[float, float]]] = {}
    for hop in timeline.transfers:
        spans.setdefault(hop.channel, []).append((hop.start, hop.end))
    return [(names[at], np.array(spans[at])) for at in sorted(spans)]


def _busiest(
    rows: Sequence[tuple[str, FloatArray]], most: int
) -> tuple[list[tuple[str, FloatArray]], int]:
    """The `most` busiest rows in their order, and the number of other rows with spans."""
    busy = [row for row in rows if len(row[1])]
    order = sorted(range(len(busy)), key=lambda at: -float(np.diff(busy[at][1]).sum()))
    shown = sorted(order[:most])
    return [busy[at] for at in shown], len(busy) - len(shown)


def _critical_bar(problem: Problem, timeline: Timeline, letters: dict[str, str], cells: int) -> str:
    """The mark of the critical path's step in the middle of each cell."""
    names = problem.cluster.device_names
    middles = (np.arange(cells) + 0.5) * (timeline.value / cells)
    bar = [" "] * cells
    for step in timeline.critical_path:
        device = None if step.is_transfer else names[int(timeline.device_of[step.index])]
        mark = _SENT if device is None else letters.get(device, "?")
        first, last = np.searchsorted(middles, [step.start, step.end]).tolist()
        for at in range(first, last):
            bar[at] = mark
    return "".join(bar)


def _cut(name: str, room: int, plain: bool) -> str:
    dots = ".." if plain else "…"
    return f"{name:<{room}}" if len(name) <= room else name[: room - len(dots)] + dots
