"""Draw the diagrams of the concept pages from values that the code computes.

python -m benchmarks.concept_pictures
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.placers.registry import make_placer
from placewright.profiling.verdict import median_interval
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.simulation.segments import segments_of

ROOT = Path(__file__).parents[1]
BLUE, ORANGE, GREY, TEXT = "#2b7bba", "#d98200", "#6e7781", "#57606a"
EDGES = (("read", "left"), ("read", "right"), ("left", "join"), ("right", "join"), ("join", "out"))
NAMES = ("read", "left", "right", "join", "out")


def five_ops() -> Problem:
    """A fork and a join on a fast and a slow device."""
    import networkx as nx

    graph = nx.DiGraph()
    for name in NAMES:
        graph.add_node(name, flops=1e9)
    graph.add_edges_from(EDGES, bytes=1e6)
    seconds = np.array([[1, 2], [3, 4], [3, 4], [2, 3], [1, 2]]) * 1e-3
    links = (np.full((2, 2), 1e-4), np.full((2, 2), 2e9))
    return Problem.from_costs(graph, seconds=seconds, links=links, devices=["fast", "slow"])


def main() -> None:
    """Write the pictures into docs/pictures."""
    for draw in (levels, timeline, gap, ideals, intervals, learning):
        (ROOT / "docs" / "pictures" / f"{draw.__name__}.svg").write_text(draw())


UNITS = {  # name -> number of ops, readers, device, left edge and width in the picture
    "stem": (3, ("left", "right"), 0, 75, 110),
    "left": (2, ("more",), 0, 225, 75),
    "more": (2, ("join",), 0, 320, 75),
    "right": (2, ("join",), 1, 272, 75),
    "join": (1, ("head",), 0, 440, 55),
    "head": (2, (), 0, 515, 75),
}


def grouped_ops() -> Problem:
    """Ops in units of up to three, most of them on the first of two devices."""
    builder, ends, labels = GraphBuilder(), dict[str, int](), list[int]()
    for number, (name, (count, *_)) in enumerate(UNITS.items()):
        read = [ends[other] for other, (_, readers, *_) in UNITS.items() if name in readers]
        for at in range(count):
            op = builder.add_op(f"{name} {at}", "op", inputs=read or [builder.add_input(1e6)])
            is_last = name == "head" and at == count - 1
            read = [builder.add_tensor(op, 1e6, is_output=is_last)]
            labels.append(number)
        ends[name] = read[0]
    links = (Link("one", "two"), Link("two", "one"))
    cluster = Cluster((Device("one"), Device("two")), links, host="one")
    costs = CostTable(np.full((len(UNITS), 2), 1e-3))
    return Problem(builder.build(), cluster, costs, Grouping.from_labels(labels))


def levels() -> str:
    """Ops in units, and the units of a placement in segments."""
    problem = grouped_ops()
    devices = [device for _, _, device, *_ in UNITS.values()]
    placement = Placement.of(devices)
    order = Simulator(problem).timeline(placement).order
    places = list(UNITS.values())
    shapes = [_label(4, 68, "one"), _label(4, 198, "two")]
    for _, readers, device, left, width in UNITS.values():
        for reader in readers:
            _, _, there, to, _ = UNITS[reader]
            color = GREY if device == there else ORANGE
            ends = f"M{left + width} {62 + 130 * device}L{to} {62 + 130 * there}"
            shapes.append(f'<path d="{ends}" stroke="{color}" stroke-width="2.5"/>')
    for segment in segments_of(problem, placement, order):
        left = places[segment.units[0]][3] - 9
        _, _, device, last, width = places[segment.units[-1]]
        shapes.append(_frame(left, 24 + 130 * device, last + width + 9 - left, 76))
    for name, (count, _, device, left, width) in UNITS.items():
        y = 62 + 130 * device
        shapes.append(_box(left, y - 22, width, 44, BLUE, ""))
        for at in range(count):
            x = left + width * (at + 0.5) / count
            shapes.append(f'<circle cx="{x:.1f}" cy="{y}" r="9" fill="#fff"/>')
        shapes.append(_label(left + width / 2, y + 60, name, "middle"))
    return _picture(
        620, 265, "Ops (circles) in units (boxes) in segments (frames) on two devices", shapes
    )


def intervals() -> str:
    """Ratios of rounds with their medians and intervals: three measurements, three verdicts."""
    rng = np.random.default_rng(3)
    scale = 1300.0
    origin = 200 - 0.92 * scale

    def at(ratio: float) -> float:
        return origin + ratio * scale

    line = at(1.01)
    shapes = [f'<path d="M{line:.1f} 12V182" stroke="{GREY}" stroke-dasharray="4 4"/>']
    for row, (name, mean) in enumerate((("split", 1.1), ("do not split", 1.01), ("slower", 0.96))):
        ratios = rng.normal(mean, 0.03, 15)
        median, low, high = median_interval(ratios)
        y = 40 + 55 * row
        shapes.append(_label(4, y + 6, name))
        shapes += [
            f'<circle cx="{at(ratio):.1f}" cy="{y}" r="4" fill="{ORANGE}"/>' for ratio in ratios
        ]
        ends = f"M{at(low):.1f} {y + 16}H{at(high):.1f}"
        shapes.append(f'<path d="{ends}" stroke="{BLUE}" stroke-width="5"/>')
        shapes.append(f'<circle cx="{at(median):.1f}" cy="{y + 16}" r="7" fill="{BLUE}"/>')
    shapes += [_label(line, 204, "1.01", "middle"), _label(line + 40, 204, "seconds alone / split")]
    return _picture(660, 215, "Ratios of 15 rounds, with the median and its interval", shapes)


def learning() -> str:
    """Samples of a learner, of the same without updates, and of the control that reads nothing."""
    problem, batch = _layered(factors=(1.0, 6.0, 9.0)), 150
    runs = {}
    for name, settings in (
        ("cem", {}), ("without updates", {"updates": "false"}), ("cooling", {})
    ):  # fmt: skip
        placer = make_placer("cooling" if name == "cooling" else "cem", settings)
        evaluator = Evaluator(problem, Budget(evaluations=3000))
        samples = placer.place(problem, evaluator, np.random.default_rng(0)).samples
        whole = np.array(samples[: len(samples) // batch * batch])
        runs[name] = np.median(whole.reshape(-1, batch), axis=1)  # (batches,)
    low, top = min(map(np.min, runs.values())), max(map(np.max, runs.values()))
    colors = {"cem": BLUE, "without updates": GREY, "cooling": ORANGE}
    shapes = []
    for name, medians in runs.items():
        points = [
            (100 + 392 * at / (len(medians) - 1), 165 - 135 * (value - low) / (top - low))
            for at, value in enumerate(medians.tolist())
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        shapes.append(
            f'<polyline points="{line}" fill="none" stroke="{colors[name]}" stroke-width="2.5"/>'
        )
        away = {"cem": 16, "cooling": -2}.get(name, 6)
        shapes.append(_label(500, points[-1][1] + away, name))
    shapes += [_label(296, 206, "evaluations", "middle"), _label(4, 30, "time of")]
    shapes += [_label(4, 52, "samples")]
    return _picture(660, 215, "Samples of a learner and of its controls", shapes)


def timeline() -> str:
    """The event timeline of the five ops, with `right` on the slow device."""
    problem = five_ops()
    names = problem.unit_graph.op_names
    placement = Placement.of([1 if name == "right" else 0 for name in names])
    played = Simulator(problem).timeline(placement)
    scale = 560 / played.value
    shapes = [_label(4, 45, "fast"), _label(4, 105, "link"), _label(4, 165, "slow")]
    for index, name in enumerate(names):
        row = 20 if played.device_of[index] == 0 else 140
        left, right = played.start[index], played.end[index]
        shapes.append(_box(70 + left * scale, row, (right - left) * scale, 40, BLUE, name))
    for hop in played.transfers:
        width = (hop.end - hop.start) * scale
        shapes.append(_box(70 + hop.start * scale, 80, width, 40, ORANGE, ""))
    end = 70 + 560
    shapes.append(f'<path d="M{end} 10V190" stroke="{GREY}" stroke-dasharray="4 4"/>')
    shapes.append(_label(end, 206, f"makespan {played.value * 1e3:.1f} ms", "end"))
    return _picture(660, 215, "Timeline of five units on two devices", shapes)


def gap() -> str:
    """Incumbent of local search by evaluations, and the bound of `auto`, on a layered graph."""
    problem = _layered()
    evaluator = Evaluator(problem, Budget(evaluations=3000))
    solution = make_placer("local-search").place(problem, evaluator, np.random.default_rng(0))
    history = [(point.evaluations, point.value) for point in solution.history]
    proving = Evaluator(problem, Budget(evaluations=3000))
    bound = make_placer("auto").place(problem, proving, np.random.default_rng(0)).lower_bound
    top = history[0][1]
    last = max(history[-1][0], 1) * 1.15

    def place(at: float, value: float) -> tuple[float, float]:
        return 70 + 560 * np.log1p(at) / np.log1p(last), 180 - 150 * (value - bound) / (top - bound)

    points = [place(*history[0])]
    for at, value in history[1:]:
        x, y = place(at, value)
        points += [(x, points[-1][1]), (x, y)]
    points.append((630, points[-1][1]))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    low = points[-1][1]
    shapes = [
        f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2.5"/>',
        f'<path d="M70 180H630" stroke="{ORANGE}" stroke-width="2.5"/>',
        f'<path d="M600 {low + 3:.1f}V177" stroke="{GREY}" stroke-width="2"/>',
        _label(590, (low + 186) / 2, "gap", "end"),
        _label(points[0][0], points[0][1] - 8, "incumbent"),
        _label(76, 172, "lower bound"),
        _label(350, 206, "evaluations (logarithmic)", "middle"),
    ]
    return _picture(660, 215, "The incumbent falls towards the lower bound", shapes)


def _layered(factors: Sequence[float] = (1.0, 1.0, 1.0)) -> Problem:
    import networkx as nx

    rng = np.random.default_rng(4)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(60), flops=1e9)
    for node in range(6, 60):
        for source in rng.choice(np.arange(node - node % 6 - 6, node - node % 6), 2, False):
            graph.add_edge(int(source), node, bytes=2e6)
    seconds = rng.uniform(1e-3, 4e-3, (60, 1)) * rng.uniform(0.8, 1.6, (60, 3)) * factors
    links = (np.full((3, 3), 1e-5), np.full((3, 3), 4e9))
    return Problem.from_costs(graph, seconds=seconds, links=links)


def ideals() -> str:
    """All ideals of the five ops, joined where one op makes the difference."""
    sets = [
        frozenset(chosen) for size in range(6) for chosen in itertools.combinations(NAMES, size)
    ]
    closed = [each for each in sets if all(a in each for a, b in EDGES if b in each)]
    columns: dict[int, list[frozenset[str]]] = {}
    for each in closed:
        columns.setdefault(len(each), []).append(each)
    at = {
        each: (60 + 108 * size, 100 + 70 * (row - (len(column) - 1) / 2))
        for size, column in columns.items()
        for row, each in enumerate(column)
    }
    shapes = []
    for small, large in itertools.product(closed, closed):
        if small < large and len(large) == len(small) + 1:
            (x, y), (to_x, to_y) = at[small], at[large]
            shapes.append(f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{GREY}"/>')
            (added,) = large - small
            middle = (y + to_y) / 2
            away = -8 if y == to_y else -16 if middle < 100 else 28
            shapes.append(_label((x + to_x) / 2, middle + away, f"+{added}", "middle"))
    for x, y in at.values():
        shapes.append(f'<circle cx="{x}" cy="{y}" r="9" fill="{BLUE}"/>')
    shapes.append(_label(60, 134, "nothing", "middle"))
    shapes.append(_label(600, 134, "all ops", "middle"))
    return _picture(
        660, 185, "Ideals: sets that contain every predecessor of their members", shapes
    )


def _frame(x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="8" fill="none" '
        f'stroke="{GREY}" stroke-width="2" stroke-dasharray="7 4"/>'
    )


def _box(x: float, y: float, width: float, height: float, color: str, text: str) -> str:
    shape = (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="3" fill="{color}"/>'
    )
    if not text:
        return shape
    middle = x + width / 2
    return (
        f'{shape}<text x="{middle:.1f}" y="{y + height / 2 + 6}" text-anchor="middle" '
        f'fill="#fff">{escape(text)}</text>'
    )


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{TEXT}">{escape(text)}</text>'
    )


def _picture(width: int, height: int, title: str, shapes: list[str]) -> str:
    style = "font:18px system-ui,sans-serif;background:#fff;border-radius:6px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="{style}" role="img"><title>{escape(title)}</title>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
